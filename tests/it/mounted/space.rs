//! The space used by history: none for unchanged files, shared extents for changed ones, and freed
//! by deletion.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::support::{Mapping, noise, put, said, sh};
use crate::common::space::free;
use crate::common::wait::{same, seen};
use crate::common::{Io, MountOpts, Rig, Variant, for_each_variant};
use ckptfs_api::{Client, Fault};
use ckptfs_sys::Errno;
use ckptfs_sys::fault::{CallKind, FaultPlan};

for_each_variant! { reflink => a_captured_file_shares_its_extents_and_its_deletion_frees_them }
for_each_variant! { xfs =>
    unchanged_files_take_no_blocks_in_the_store,
    what_is_freed_leaves_no_empty_layer,
    what_was_captured_for_a_checkpoint_that_did_not_come_is_removed,
}
for_each_variant! { reflink => a_file_that_is_open_and_idle_is_captured_once }

/// Returns the objects in the store of a mounted directory.
fn objects(backing: &Path) -> Vec<PathBuf> {
    let found = sh(backing, "find .ckptfs/layers/ -type f 2>/dev/null || true");
    found.lines().map(|line| backing.join(line)).collect()
}

fn unchanged_files_take_no_blocks_in_the_store(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        for number in 0..20 {
            put(dir.join(format!("f{number}")), noise(100_000, number));
        }
    });
    let root = rig.path();
    for round in 0..3 {
        rig.mount.checkpoint();
        sh(
            root,
            "cat f* > /dev/null; chmod 600 f0; mv f1 moved; mv moved f1; ln f2 hard; rm hard; touch -h -a f3",
        );
        drop(
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(root.join("f4"))
                .unwrap(),
        );
        put(root.join("new"), noise(500_000, 99));
        fs::remove_file(root.join("new")).unwrap();
        // The provisional capture of a file opened for writing is voided at its RELEASE, which may
        // follow the return of close(2).
        crate::common::wait_until(&format!("round {round}: nothing is stored"), || {
            same(objects(root), Vec::<PathBuf>::new())
        });
    }
    OpenOptions::new()
        .write(true)
        .open(root.join("f5"))
        .unwrap()
        .write_all_at(b"x", 0)
        .unwrap();
    assert_eq!(objects(root).len(), 1, "one changed file, one object");
}

fn what_is_freed_leaves_no_empty_layer(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        put(dir.join("f"), noise(100, 1))
    });
    let root = rig.path();
    for round in 1..=4 {
        rig.mount.checkpoint();
        put(root.join("f"), noise(100, round));
    }
    for id in ["1", "2", "3"] {
        rig.mount.ok(&["delete", "--now", id]);
    }
    // The layer of the open epoch is created ahead; unused ones of earlier epochs are removed
    // within a second.
    crate::common::wait_until("no closed layer is empty", || {
        sh(root, "cd .ckptfs/layers; for layer in *; do test $layer -ge 5 || test -n \"$(ls $layer/objects)\" || echo $layer; done").is_empty()
    });
    assert_eq!(objects(root).len(), 1, "checkpoint 4 needs one");
}

const OLD: [u8; 8192] = [1; 8192];

/// Failed before: each checkpoint cloned each file open for writing. Now the record of the next
/// epoch refers to the last capture.
fn a_file_that_is_open_and_idle_is_captured_once(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        ["mapped", "written"]
            .iter()
            .for_each(|name| put(dir.join(name), OLD))
    });
    let (root, log) = (rig.path(), File::create(rig.path().join("log")).unwrap());
    // A recent change may not be visible in stat(2).
    std::thread::sleep(std::time::Duration::from_millis(2100));
    rig.mount.checkpoint();
    let mapped = OpenOptions::new()
        .read(true)
        .write(true)
        .open(root.join("mapped"))
        .unwrap();
    let mapping = Mapping::writable(&mapped, OLD.len());
    let written = OpenOptions::new()
        .write(true)
        .open(root.join("written"))
        .unwrap();
    for byte in 2..=7 {
        log.write_all_at(&[byte], 0).unwrap();
        assert_eq!(rig.mount.checkpoint(), u64::from(byte));
    }
    let is_of =
        |object: &&PathBuf| fs::metadata(object).is_ok_and(|found| found.len() == OLD.len() as u64);
    let kept = objects(root).iter().filter(is_of).count();
    assert!(
        kept <= 4,
        "{kept} objects: two files at their open, and one at the next checkpoint"
    );
    mapping.write(4096, b"stored");
    written.write_all_at(b"written", 0).unwrap();
    assert_eq!(rig.mount.checkpoint(), 8);
    let check = |id| assert_shown(&rig, id);
    (1..=8).for_each(check);
    for (gone, left) in [
        (2, [1, 3, 4, 5, 6, 7, 8].as_slice()),
        (1, &[3, 4, 5, 6, 7, 8]),
        (7, &[3, 4, 5, 6, 8]),
        (4, &[3, 5, 6, 8]),
    ] {
        rig.mount.ok(&["delete", "--now", &gone.to_string()]);
        left.iter().copied().for_each(check);
    }
    rig.mount.ok(&["gc", "--keep-last=3"]);
    [5, 6, 8].into_iter().for_each(check);
    drop((mapping, mapped, written, log));
    // A capture made at a checkpoint for an open file lasts until the checkpoint before it is
    // deleted.
    rig.mount.all_is_closed();
    assert_eq!(rig.mount.checkpoint(), 9);
    [5, 6, 8, 9].into_iter().for_each(check);
    rig.mount.ok(&["gc", "--keep-last=2"]);
    [8, 9].into_iter().for_each(check);
    crate::common::wait_until("unused objects are removed", || {
        rig.mount.ok(&["gc", "--keep-last=2"]);
        let left = objects(root);
        seen(!left.iter().any(|object| is_of(&object)), left)
    });
    rig.mount.ok(&["verify"]);
}

/// Asserts the content of checkpoint `id`: two files differ from the eighth on, and until then
/// `log` contains the ID.
fn assert_shown(rig: &Rig, id: u64) {
    let shown = |name: &str| {
        fs::read(rig.view(id).join(name)).unwrap_or_else(|error| panic!("{name} of {id}: {error}"))
    };
    let (mut store, mut write) = (OLD, OLD);
    if id >= 8 {
        store[4096..4102].copy_from_slice(b"stored");
        write[..7].copy_from_slice(b"written");
    }
    assert!(
        shown("mapped") == store && shown("written") == write,
        "checkpoint {id}"
    );
    if (2..8).contains(&id) {
        assert_eq!(shown("log"), [id as u8]);
    }
}

/// A capture before the freeze belongs to an epoch that may never open.
fn what_was_captured_for_a_checkpoint_that_did_not_come_is_removed(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io).arg("--no-holder"), |dir| {
        (0..4).for_each(|n| put(dir.join(format!("f{n}")), noise(9000, n)))
    });
    let root = rig.path().to_owned();
    rig.mount.checkpoint();
    let open = |n: u8| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(root.join(format!("f{n}")))
            .unwrap()
    };
    let files: Vec<File> = (0..4).map(open).collect();
    files
        .iter()
        .for_each(|file| file.write_all_at(b"new", 0).unwrap());
    let plan = FaultPlan {
        kill: true,
        ..FaultPlan::nth(3, Errno::EIO).only(CallKind::Clone)
    };
    let set_plan = |plan| {
        Client::connect(File::open(root.join(".ckptfs")).unwrap())
            .unwrap()
            .ask(Fault { plan })
            .unwrap()
    };
    set_plan(Some(plan));
    let made = rig.mount.run(&["checkpoint"]);
    drop(files);
    if v.io == Io::Daemon {
        // The daemon captures at a write, so this checkpoint cloned nothing. An unmount clones
        // shared content, and the plan would kill it.
        set_plan(None);
        return assert!(made.status.success(), "{made:?}");
    }
    assert!(!made.status.success(), "{made:?}");
    rig.mount.kill();
    said("umount", &["-l".as_ref(), root.as_os_str()]);
    let left = || {
        sh(&root, "ls .ckptfs/layers/3/objects 2>/dev/null | wc -l")
            .trim()
            .parse::<u32>()
            .unwrap()
    };
    assert!(left() > 0, "it was killed before its first capture");
    rig.mount.remount();
    for n in 0..4 {
        assert_eq!(
            fs::read(rig.view(1).join(format!("f{n}"))).unwrap(),
            noise(9000, n)
        );
    }
    assert_eq!(left(), 0, "no object without a record");
}

fn a_captured_file_shares_its_extents_and_its_deletion_frees_them(v: Variant) {
    const SIZE: usize = 64 << 20;
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        put(dir.join("big"), noise(SIZE, 1))
    });
    let root = rig.path();
    let start = free(rig.image.path());
    rig.mount.checkpoint();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(root.join("big"))
        .unwrap();
    file.write_all_at(&[7; 4096], 1 << 20).unwrap();
    file.sync_all().unwrap();
    drop(file);
    rig.mount.checkpoint();
    // RELEASE may arrive after the checkpoint, which then captures the file ahead; a later settle
    // voids the capture.
    crate::common::wait_until("one object is left", || {
        rig.mount.ok(&["status"]);
        let left = objects(root);
        seen(left.len() == 1, left)
    });
    let [object] = &objects(root)[..] else {
        panic!("one object: {:?}", objects(root))
    };
    let used = start.saturating_sub(free(rig.image.path()));
    assert!(
        used < 16 << 20,
        "a changed page of a file of 64 MiB took {used} bytes"
    );
    let shared = said("filefrag", &["-v".as_ref(), object.as_os_str()]);
    assert!(
        shared.lines().any(|line| line.contains("shared")),
        "{shared}"
    );
    put(root.join("big"), noise(SIZE, 2));
    let full = free(rig.image.path());
    assert!(
        start.saturating_sub(full) > SIZE as u64 / 2,
        "the old content is stored"
    );
    fs::remove_dir(root.join(".snapshots/1")).unwrap();
    fs::remove_dir(root.join(".snapshots/2")).unwrap();
    assert!(!objects(root).is_empty(), "they can be restored");
    for id in ["1", "2"] {
        rig.mount.ok(&["delete", "--now", id]);
    }
    assert_eq!(objects(root), Vec::<PathBuf>::new());
    // XFS and btrfs free extents in the background.
    crate::common::wait_until("the space is free again", || {
        let came = free(rig.image.path()).saturating_sub(full);
        seen(came > SIZE as u64 / 2, came)
    });
}
