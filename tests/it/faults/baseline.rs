//! A full disk while the baseline is written, in idle time or at the unmount, and while content is
//! captured. The unmount succeeds. After later changes of the unmounted tree, older views are exact
//! or return EIO.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::tree::copy_tree;
use crate::common::{MountOpts, Rig, Variant, for_each_variant};
use ckptfs_api::{Client, Fault};
use ckptfs_sys::Errno;
use ckptfs_sys::fault::{CallKind, FaultPlan};

for_each_variant! { xfs => no_room_while_the_tree_is_written_down }

mod without_reflink {
    use crate::common::{Fs, Io, Variant, skip};

    #[test]
    fn no_room_for_copies() {
        let variant = Variant {
            fs: Fs::Ext4,
            io: Io::Daemon,
        };
        match variant.unavailable() {
            Some(reason) => skip(&reason),
            None => super::no_room_while_the_tree_is_written_down(variant),
        }
    }
}

/// When the disk is full.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FullWhen {
    /// While the tree is served: the first walk, captures ahead of the unmount.
    Idle,
    /// At the unmount: incremental or full baseline.
    End,
}

fn fill(root: &Path) {
    for dir in 0..4 {
        fs::create_dir(root.join(format!("d{dir}"))).unwrap();
        (0..6).for_each(|file| {
            fs::write(
                root.join(format!("d{dir}/f{file}")),
                format!("{dir} {file}\n").repeat(100),
            )
            .unwrap()
        });
    }
}

/// Writes, creates, moves and removes some files, with a constant total size.
fn change(root: &Path, round: usize, by: &str) {
    let (dir, other) = (
        root.join(format!("d{}", round % 4)),
        root.join(format!("d{}", (round + 1) % 4)),
    );
    let mut names: Vec<PathBuf> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    fs::write(&names[0], format!("{by} {round}\n").repeat(60)).unwrap();
    fs::remove_file(&names[1]).unwrap();
    fs::rename(&names[2], other.join(format!("{by}-moved{round}"))).unwrap();
    (0..2).for_each(|new| {
        fs::write(
            dir.join(format!("{by}-new{round}-{new}")),
            format!("new {round}\n").repeat(80),
        )
        .unwrap()
    });
}

/// Checks that every difference is an EIO, and returns the number of these.
fn assert_never_wrong(view: &Path, copy: &Path, what: &str) -> usize {
    fn known<T>(result: io::Result<T>, path: &Path, what: &str) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) if error.raw_os_error() == Some(libc::EIO) => None,
            Err(error) => panic!("{what}: {}: {error}", path.display()),
        }
    }
    let names = |dir: &Path| -> io::Result<BTreeMap<_, _>> {
        fs::read_dir(dir)?
            .map(|entry| entry.map(|entry| (entry.file_name(), entry.path())))
            .collect()
    };
    let Some(is) = known(names(view), view, what) else {
        return 1;
    };
    let was = names(copy).unwrap();
    let listed = |names: &BTreeMap<_, PathBuf>| {
        names
            .keys()
            .filter(|name: &&OsString| {
                name.to_str()
                    .is_none_or(|name| name != ".ckptfs" && name != ".snapshots")
            })
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(listed(&is), listed(&was), "{what}: {}", view.display());
    let mut unknown = 0;
    for name in listed(&was) {
        let (is, was) = (view.join(&name), copy.join(&name));
        let Some(stat) = known(fs::symlink_metadata(&is), &is, what) else {
            unknown += 1;
            continue;
        };
        let kept = fs::symlink_metadata(&was).unwrap();
        assert_eq!(stat.mode(), kept.mode(), "{what}: {}", is.display());
        if kept.is_dir() {
            unknown += assert_never_wrong(&is, &was, what);
            continue;
        }
        assert_eq!(stat.len(), kept.len(), "{what}: {}", is.display());
        match known(fs::read(&is), &is, what) {
            Some(content) => assert!(
                content == fs::read(&was).unwrap(),
                "{what}: {} has other content",
                is.display()
            ),
            None => unknown += 1,
        }
    }
    unknown
}

fn arm(rig: &Rig, plan: Option<FaultPlan>) -> (u64, u64) {
    Client::connect(File::open(rig.path().join(".ckptfs")).unwrap())
        .unwrap()
        .ask(Fault { plan })
        .unwrap()
}

/// Waits up to two seconds for a new baseline.
fn wait_for_baseline(root: &Path, since: Option<std::time::SystemTime>) {
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until && written(root) == since {
        thread::sleep(Duration::from_millis(20));
    }
}

fn written(root: &Path) -> Option<std::time::SystemTime> {
    match fs::metadata(root.join(".ckptfs/baseline")) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        found => Some(found.unwrap().modified().unwrap()),
    }
}

fn no_room_while_the_tree_is_written_down(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io).hasty(), fill);
    let root = rig.path().to_owned();
    let mut copies: BTreeMap<u64, PathBuf> = BTreeMap::new();
    let (mut fired, mut unknown, mut round) = (0, 0, 0);
    for when in [FullWhen::Idle, FullWhen::End] {
        for plan in plans(when) {
            round += 1;
            let what = format!("{v:?}, round {round}, {when:?}, {plan:?}");
            change(&root, round, "served");
            let before = written(&root);
            if when == FullWhen::Idle
                && copies.len() > 1
                && let Some((oldest, _)) = copies.pop_first()
            {
                // Frees its versions, which causes a new full walk.
                rig.mount
                    .ok(&["delete", "--now", "--yes", &oldest.to_string()]);
            }
            let copy = rig.image.path().join(format!("copy-{round}"));
            copy_tree(&root, &copy);
            // The idle thread waits a moment after it.
            copies.insert(rig.mount.checkpoint(), copy);
            if when == FullWhen::Idle {
                arm(&rig, Some(plan));
                wait_for_baseline(&root, before);
                fired += arm(&rig, None).1;
            } else {
                if before.is_none() {
                    wait_for_baseline(&root, before);
                }
                arm(&rig, Some(plan));
            }
            rig.mount.umount();
            change(&root, round + 1, "past");
            rig.mount.remount();
            unknown += copies
                .iter()
                .rev()
                .take(3)
                .map(|(id, copy)| assert_never_wrong(&rig.mount.view(*id), copy, &what))
                .sum::<usize>();
        }
    }
    for (id, copy) in &copies {
        assert_never_wrong(&rig.mount.view(*id), copy, "at the end");
    }
    let verified = rig.mount.run(&["verify"]);
    assert!(
        matches!(verified.status.code(), Some(0 | 4)),
        "{verified:?}"
    );
    println!(
        "{v:?}: {round} rounds, {fired} calls failed in idle time, {unknown} states were unknown"
    );
    with_room_all_is_known(&mut rig, round + 2);
}

/// Checks that with free space everything is readable.
fn with_room_all_is_known(rig: &mut Rig, round: usize) {
    let root = rig.path().to_owned();
    let id = rig.mount.checkpoint();
    let copy = rig.image.path().join("last");
    copy_tree(&root, &copy);
    rig.mount.umount();
    change(&root, round, "past");
    rig.mount.remount();
    assert_eq!(
        assert_never_wrong(&rig.mount.view(id), &copy, "with room"),
        0
    );
}

/// Returns the calls that fail with ENOSPC.
fn plans(when: FullWhen) -> Vec<FaultPlan> {
    let any = |nth| FaultPlan::nth(nth, Errno::ENOSPC).lasting();
    let one = [
        CallKind::Clone,
        CallKind::Rename,
        CallKind::Create,
        CallKind::Unlink,
    ]
    .map(|call| any(1).only(call));
    let writes = [2, 3, 5].map(|nth| any(nth).only(CallKind::Write).half());
    let nth: &[u64] = if when == FullWhen::End {
        &[1, 2, 3, 4, 6, 8, 11, 15, 20, 26, 33, 41, 50]
    } else {
        &[]
    };
    nth.iter()
        .map(|nth| any(*nth))
        .chain(one)
        .chain(writes)
        .collect()
}
