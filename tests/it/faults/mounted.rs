//! Fault injection in real mounts: the daemon receives the call to fail over its socket.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::common::random::is_long;
use crate::common::tree::assert_tree_is;
use crate::common::wait::{same, seen, wait_longer, wait_until};
use crate::common::{Image, Mount, MountOpts, TreeOpts, Variant, for_each_variant, tree_of};
use ckptfs_api::{Client, Fault};
use ckptfs_sys::Errno;
use ckptfs_sys::fault::{CallKind, FaultPlan};

for_each_variant! { reflink => calls_of_the_daemon_fail }
for_each_variant! { xfs => a_past_file_is_read_while_it_is_renamed, a_failed_sync_ends_the_keeping, an_index_that_fails_refuses_checkpoints, an_eio_is_told_in_the_log }

/// A mount at another place than its backing directory.
struct SeparateMount {
    mount: Mount,
    backing: PathBuf,
    _image: Image,
}

impl SeparateMount {
    fn new(v: Variant) -> SeparateMount {
        let image = Image::in_memory(v.fs, 512 << 20);
        let (backing, point) = (image.dir("project"), image.dir("here"));
        let mount = Mount::start(
            &backing,
            &MountOpts {
                mountpoint: Some(point),
                ..MountOpts::new(v.io)
            },
        );
        SeparateMount {
            mount,
            backing,
            _image: image,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.path().join(name)
    }

    /// Arms or disarms the daemon. Returns the number of calls counted and of calls failed before.
    fn fault(&self, plan: Option<FaultPlan>) -> (u64, u64) {
        let store = File::open(self.backing.join(".ckptfs")).unwrap();
        Client::connect(store).unwrap().ask(Fault { plan }).unwrap()
    }

    fn warnings(&self) -> String {
        self.mount.status_json()["warnings"].to_string()
    }

    /// A failed journal or index is reported by `status`; the next mount repairs it.
    fn mend(&mut self) {
        if self.warnings() != "[]" {
            self.mount.umount();
            self.mount.remount();
        }
    }

    fn plain(&self) -> std::collections::BTreeMap<PathBuf, crate::common::NodeInfo> {
        crate::common::tree::tree_without(&self.backing, &[".ckptfs".to_owned()])
    }
}

fn write(path: &Path, offset: u64, data: &[u8]) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .open(path)?
        .write_all_at(data, offset)
}

/// A rename over another file takes two steps, between which the tables have the old name. Failed
/// before: a view returned ESTALE in between.
fn a_past_file_is_read_while_it_is_renamed(v: Variant) {
    let rig = SeparateMount::new(v);
    // Not in the root, which contains `.snapshots` and is locked by the kernel during the rename.
    let dir = rig.path("dir");
    fs::create_dir(&dir).unwrap();
    for (name, content) in [("from", "as it was"), ("to", "other")] {
        fs::write(dir.join(name), content).unwrap();
    }
    let view = rig.mount.view(rig.mount.checkpoint()).join("dir");
    rig.fault(Some(FaultPlan {
        errno: 0,
        pause_ms: 700,
        ..FaultPlan::nth(2, Errno::EIO).only(CallKind::Rename)
    }));
    std::thread::scope(|scope| {
        let rename = scope.spawn(|| fs::rename(dir.join("from"), dir.join("to")));
        wait_until("the first step is done", || {
            same(fs::read(rig.backing.join("dir/to")).unwrap(), *b"as it was")
        });
        let read = ["from", "to"]
            .map(|name| fs::read_to_string(view.join(name)).map_err(|error| error.to_string()));
        rename.join().unwrap().unwrap();
        assert_eq!(read, [Ok("as it was".to_owned()), Ok("other".to_owned())]);
    });
    assert_eq!(rig.fault(None).1, 1, "no call was delayed");
    assert_eq!(fs::read_to_string(dir.join("to")).unwrap(), "as it was");
}

/// The log names the request, the node, and the failed call.
fn an_eio_is_told_in_the_log(v: Variant) {
    let rig = SeparateMount::new(v);
    fs::write(rig.path("f"), "content").unwrap();
    let node = fs::metadata(rig.path("f")).unwrap().ino();
    rig.fault(Some(FaultPlan {
        lasting: true,
        ..FaultPlan::nth(1, Errno::EIO).only(CallKind::Open)
    }));
    let opened = File::open(rig.path("f")).map(drop);
    rig.fault(None);
    let failed = opened.expect_err("every open fails");
    assert_eq!(failed.raw_os_error(), Some(Errno::EIO.0));
    let log = fs::read_to_string(rig.backing.join(".ckptfs/daemon.log")).unwrap();
    let line =
        format!("a request is answered with EIO request=\"open\" node={node} failed=Some(Open)");
    assert!(log.contains(&line), "{log}");
}

/// Name and function of an operation.
type Case = (&'static str, fn(&Path) -> io::Result<()>);

const CASES: [Case; 9] = [
    ("write", |dir| write(&dir.join("small"), 1, b"XX")),
    ("append", |dir| write(&dir.join("large"), 100_000, b"XX")),
    ("truncate", |dir| {
        OpenOptions::new()
            .write(true)
            .open(dir.join("small"))?
            .set_len(2)
    }),
    ("create", |dir| File::create_new(dir.join("new")).map(drop)),
    ("rename over", |dir| {
        fs::rename(dir.join("small"), dir.join("other"))
    }),
    ("unlink", |dir| fs::remove_file(dir.join("small"))),
    ("mkdir", |dir| fs::create_dir(dir.join("new"))),
    ("link", |dir| {
        fs::hard_link(dir.join("small"), dir.join("new"))
    }),
    ("chmod", |dir| {
        fs::set_permissions(dir.join("small"), fs::Permissions::from_mode(0o600))
    }),
];

fn fill(dir: &Path) {
    fs::create_dir(dir).unwrap();
    fs::write(dir.join("small"), "as it was").unwrap();
    fs::write(dir.join("other"), "other").unwrap();
    fs::write(dir.join("large"), vec![7; 100_000]).unwrap();
}

fn calls_of_the_daemon_fail(v: Variant) {
    let mut rig = SeparateMount::new(v);
    let stride = if is_long() { 1 } else { 7 };
    let (mut number, mut failed, mut refused) = (0, 0, 0);
    for (index, (name, run)) in CASES.iter().enumerate() {
        for errno in [Errno::EIO, Errno::ENOSPC] {
            for n in (1 + index as u64 % stride..).step_by(stride as usize) {
                number += 1;
                let dir = rig.path(&format!("d{number}"));
                fill(&dir);
                let id = rig.mount.checkpoint();
                let kept = tree_of(&dir);
                rig.fault(Some(FaultPlan::nth(n, errno)));
                let done = run(&dir);
                let (_, fired) = rig.fault(None);
                let what = format!("{name}, call {n}, {errno:?}: {done:?}");
                let view = rig.mount.view(id).join(format!("d{number}"));
                assert_tree_is(
                    &view,
                    &kept,
                    &TreeOpts {
                        dir_mtime: false,
                        ..TreeOpts::default()
                    },
                );
                if done.is_err() {
                    refused += 1;
                    assert!(fired > 0, "{what} although nothing failed");
                    rig.mend();
                    // The only error that comes too late: the stat after the change failed.
                    let again = run(&dir);
                    assert!(
                        again.is_ok() || matches!(*name, "truncate" | "chmod"),
                        "{what}; again: {again:?}"
                    );
                }
                let (now, behind) = (
                    tree_of(&dir),
                    tree_of(&rig.backing.join(format!("d{number}"))),
                );
                assert!(
                    now == behind,
                    "{what}: the mount shows another tree than the backing directory"
                );
                assert_tree_is(
                    &view,
                    &kept,
                    &TreeOpts {
                        dir_mtime: false,
                        ..TreeOpts::default()
                    },
                );
                // The fault may have hit a thread of the daemon.
                rig.mend();
                failed += fired;
                if fired == 0 {
                    break;
                }
            }
        }
    }
    eprintln!("{v:?}: {number} cases, {failed} calls failed, {refused} operations refused");
    assert!(refused > 5);
}

fn a_failed_sync_ends_the_keeping(v: Variant) {
    let mut rig = SeparateMount::new(v);
    fs::write(rig.path("f"), "as it was").unwrap();
    let id = rig.mount.checkpoint();
    fs::create_dir(rig.path("new")).unwrap();
    fs::write(rig.path("new/born"), "born").unwrap();
    rig.fault(Some(FaultPlan::nth(1, Errno::EIO).only(CallKind::Sync)));
    // The syncer runs within a second because the journal is dirty.
    wait_until("the journal's sync has failed", || {
        let said = rig.warnings();
        seen(said.contains("cannot be written"), said)
    });
    assert_eq!(rig.fault(None).1, 1, "one sync failed, and only one");
    for _ in 0..2 {
        assert_eq!(
            write(&rig.path("f"), 0, b"XX").unwrap_err().raw_os_error(),
            Some(libc::EIO)
        );
        assert!(
            !rig.mount.run(&["checkpoint", "--sync"]).status.success(),
            "a sync that is repeated proves nothing"
        );
    }
    assert_eq!(
        fs::read(rig.path("f")).unwrap(),
        b"as it was",
        "it can be read, and is unchanged"
    );
    assert!(
        rig.warnings().contains("unmount"),
        "it has a hint: {}",
        rig.warnings()
    );
    fs::write(
        rig.path("new/born"),
        "what no checkpoint can see can be written",
    )
    .unwrap();
    fs::write(rig.path("new/more"), "more").unwrap();
    assert_eq!(
        fs::read(rig.mount.view(id).join("f")).unwrap(),
        b"as it was"
    );
    let before = rig.plain();
    rig.mount.umount();
    rig.mount.remount();
    assert!(rig.plain() == before);
    assert_eq!(rig.warnings(), "[]");
    write(&rig.path("f"), 0, b"XX").unwrap();
    assert_eq!(
        fs::read(rig.mount.view(id).join("f")).unwrap(),
        b"as it was"
    );
    rig.mount.checkpoint();
}

fn an_index_that_fails_refuses_checkpoints(v: Variant) {
    let mut rig = SeparateMount::new(v);
    fs::write(rig.path("f"), "1").unwrap();
    let first = rig.mount.checkpoint();
    rig.fault(Some(
        FaultPlan::nth(1, Errno::EIO)
            .only(CallKind::Index)
            .lasting(),
    ));
    write(&rig.path("f"), 0, b"2").unwrap();
    // The index may have failed already with the epoch of the first checkpoint.
    let answer = rig.mount.run(&["checkpoint"]);
    let second: Option<u64> = answer.status.success().then(|| {
        String::from_utf8_lossy(&answer.stdout)
            .trim()
            .parse()
            .expect("an id")
    });
    assert!(
        second.is_some() || String::from_utf8_lossy(&answer.stderr).contains("the index failed"),
        "{answer:?}"
    );
    let states: Vec<(u64, &[u8])> = [(first, b"1".as_slice())]
        .into_iter()
        .chain(second.map(|id| (id, b"2".as_slice())))
        .collect();
    wait_longer("the index has failed", 120, || {
        let said = rig.warnings();
        seen(said.contains("the index failed"), said)
    });
    let refused = rig.mount.run(&["checkpoint"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success()
            && said.contains("the index failed")
            && said.contains("mount again"),
        "{said}"
    );
    assert_eq!(
        fs::create_dir(rig.path(".snapshots/no"))
            .unwrap_err()
            .raw_os_error(),
        Some(libc::EIO)
    );
    // The live tree remains writable, and changes are captured.
    write(&rig.path("f"), 0, b"3").unwrap();
    fs::write(rig.path("g"), "new").unwrap();
    fs::rename(rig.path("g"), rig.path("h")).unwrap();
    fs::remove_file(rig.path("h")).unwrap();
    for (id, content) in states.iter().copied() {
        assert_eq!(
            fs::read(rig.mount.view(id).join("f")).unwrap(),
            content,
            "the journal has the records that the index lacks"
        );
    }
    rig.fault(None);
    rig.mount.umount();
    rig.mount.remount();
    assert_eq!(rig.warnings(), "[]", "the index was rebuilt");
    for (id, content) in states.iter().copied() {
        assert_eq!(fs::read(rig.mount.view(id).join("f")).unwrap(), content);
    }
    rig.mount.checkpoint();
}
