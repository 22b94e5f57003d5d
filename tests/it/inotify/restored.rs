//! Watchers are notified of the changes of a restore.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::inotify::WatchFlags;

use super::support::{CHANGES, Watcher, names, sh};
use crate::common::wait::wait_until;
use crate::common::{MountOpts, Rig, TreeOpts, Variant, assert_same_tree, for_each_variant};

const TREE: &str = "
    mkdir -p d/sub gone/deep keep old; echo 1 > d/modified; echo 2 > d/deleted; echo 3 > d/renamed; echo 4 > d/mode; ln -s a d/link; echo 5 > top
    echo 6 > gone/f; echo 7 > d/sub/same; mkfifo d/pipe; echo 8 > hard1; ln hard1 d/hard2; echo 9 > d/kind; echo 10 > d/xattr
";
const CHANGED: &str = "
    echo changed > d/modified; rm d/deleted; mv d/renamed d/other; chmod 600 d/mode; ln -sfn b d/link; echo x >> top; rm -r gone; echo new > d/new
    mkdir newdir d/newsub; echo n > newdir/n; rm d/pipe; echo more >> hard1; rm d/kind; mkdir d/kind; setfattr -n user.a -v 1 d/xattr; chmod 700 keep
    mv old d/moved
";
/// Events of the parent directories; a rename is reported as a removal and a creation.
const EXPECTED: [&str; 26] = [
    "MOVED_TO d/modified",
    "CREATE d/deleted",
    "CLOSE_WRITE d/deleted",
    "DELETE d/other",
    "CREATE d/renamed",
    "ATTRIB d/mode",
    "MOVED_TO d/link",
    "MOVED_TO top",
    "CREATE,ISDIR gone",
    "DELETE d/new",
    "DELETE,ISDIR newdir",
    "DELETE_SELF newdir",
    "DELETE,ISDIR d/newsub",
    "DELETE_SELF d/newsub",
    "CREATE d/pipe",
    "MODIFY hard1",
    "CLOSE_WRITE hard1",
    "MODIFY d/hard2",
    "CLOSE_WRITE d/hard2",
    "DELETE,ISDIR d/kind",
    "DELETE_SELF d/kind",
    "CREATE d/kind",
    "ATTRIB d/xattr",
    "ATTRIB,ISDIR keep",
    "DELETE,ISDIR d/moved",
    "CREATE,ISDIR old",
];

fn start(v: Variant) -> (Rig, u64) {
    // Made before the mount, so that a branch inherits it.
    let rig = v.start_with(MountOpts::new(v.io), |dir| drop(sh(dir, TREE)));
    let id = rig.mount.checkpoint();
    (rig, id)
}

/// Asserts that the mount equals the checkpoint.
fn assert_exact(rig: &Rig, id: u64) {
    assert_same_tree(&rig.view(id), rig.path(), &TreeOpts::default());
}

fn every_kind_of_change_is_told(v: Variant) {
    let (rig, id) = start(v);
    for round in 0..3 {
        sh(rig.path(), CHANGED);
        let mut watcher = Watcher::all_below(rig.path());
        rig.mount.restore(id);
        watcher.expect(&EXPECTED);
        assert_exact(&rig, id);
        let strange: Vec<&String> = watcher
            .said
            .iter()
            .filter(|line| line.contains("sub/same") || line.contains(".ckptfs"))
            .collect();
        assert!(strange.is_empty(), "round {round}: {strange:?}");
    }
}

fn who_watches_a_file_is_told(v: Variant) {
    let (rig, id) = start(v);
    sh(rig.path(), CHANGED);
    let mut watcher = Watcher::new(rig.path());
    let paths = [
        "d/modified",
        "d/mode",
        "hard1",
        "d/new",
        "newdir",
        "newdir/n",
        "keep",
        "d/sub/same",
        "d/xattr",
    ];
    paths.iter().for_each(|path| watcher.add(path, CHANGES));
    let held = File::open(rig.path().join("d/modified")).unwrap();
    rig.mount.restore(id);
    let told = [
        "ATTRIB d/mode",
        "MODIFY hard1",
        "DELETE_SELF d/new",
        "DELETE_SELF newdir",
        "DELETE_SELF newdir/n",
        "ATTRIB,ISDIR keep",
        "ATTRIB d/xattr",
    ];
    watcher.expect(&told);
    // As with any file, an open one is deleted only when it is closed.
    watcher.take();
    assert!(
        !watcher
            .said
            .iter()
            .any(|line| line == "DELETE_SELF d/modified"),
        "{:#?}",
        watcher.said
    );
    assert_eq!(held.metadata().unwrap().nlink(), 0);
    drop(held);
    watcher.expect(&["DELETE_SELF d/modified"]);
    assert!(
        !watcher.said.iter().any(|line| line.contains("sub/same")),
        "{:#?}",
        watcher.said
    );
    assert_exact(&rig, id);
}

/// Only watched directories and requested events are announced.
fn only_what_is_watched_is_told(v: Variant) {
    let (rig, id) = start(v);
    let mut watcher = Watcher::new(rig.path());
    watcher.add("d", WatchFlags::CREATE);
    sh(
        rig.path(),
        "rm d/modified; rm d/sub/same; echo more >> top; echo more > d/mode; rm -r gone",
    );
    rig.mount.restore(id);
    watcher.expect(&["CREATE d/modified"]);
    assert_eq!(watcher.said, ["CREATE d/modified"]);
}

/// Without watchers a restore only searches for them.
fn a_restore_that_nobody_watches_makes_no_request(v: Variant) {
    let rig = v.start();
    sh(
        rig.path(),
        "mkdir d; for i in $(seq 1000); do echo $i > d/$i; done",
    );
    let id = rig.mount.checkpoint();
    sh(
        rig.path(),
        "for i in $(seq 1000); do echo again > d/$i; done; rm d/1??; mkdir new",
    );
    // A watcher of another directory.
    let mut elsewhere = Watcher::new(rig.image.path());
    elsewhere.add("", CHANGES);
    let before = changing_requests(&rig);
    rig.mount.restore(id);
    wait_until("the announcer has ended", || {
        stats(&rig)["announcing"] == false
    });
    assert_eq!(changing_requests(&rig), before);
    // With a watcher the announcement makes requests, which are counted.
    let id = rig.mount.checkpoint();
    sh(rig.path(), "rm d/5");
    let before = changing_requests(&rig);
    let mut watcher = Watcher::all_below(rig.path());
    rig.mount.restore(id);
    watcher.expect(&["CLOSE_WRITE d/5"]);
    assert_eq!(changing_requests(&rig), before + 1);
    assert_eq!(watcher.said, ["CREATE d/5", "CLOSE_WRITE d/5"]);
}

fn stats(rig: &Rig) -> serde_json::Value {
    rig.mount.stats()
}

/// Returns the number of requests of the kinds that an announcement makes and a walk does not.
fn changing_requests(rig: &Rig) -> u64 {
    let requests = stats(rig)["requests"].clone();
    [
        "create", "mkdir", "mknod", "rename", "unlink", "rmdir", "setattr",
    ]
    .iter()
    .filter_map(|kind| requests[kind].as_u64())
    .sum()
}

/// Once a restore is acknowledged, every access shows the restored names, inode numbers, types,
/// contents and links.
fn nobody_meets_what_is_only_announced(v: Variant) {
    let (rig, id) = start(v);
    let root = rig.path();
    let expected: Vec<(String, Vec<String>)> = ["", "d"]
        .map(|dir| (dir.to_owned(), names(root.join(dir))))
        .into();
    for _ in 0..4 {
        sh(root, CHANGED);
        let mut watcher = Watcher::all_below(root);
        rig.mount.restore(id);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let looks: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        while !over.load(Ordering::Relaxed) {
                            look(root, &expected)
                        }
                    })
                })
                .collect();
            let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                watcher.expect(&EXPECTED)
            }));
            over.store(true, Ordering::Relaxed);
            looks
                .into_iter()
                .for_each(|look| look.join().expect("each look-up is correct"));
            told.expect("every event is reported");
        });
        assert_exact(&rig, id);
    }
}

fn look(root: &Path, expected: &[(String, Vec<String>)]) {
    for path in ["d/other", "d/new", "newdir", "d/newsub", "d/moved"] {
        assert!(
            root.join(path).symlink_metadata().is_err(),
            "{path} is gone"
        );
    }
    for (path, content) in [
        ("d/modified", "1\n"),
        ("d/deleted", "2\n"),
        ("d/renamed", "3\n"),
        ("top", "5\n"),
        ("hard1", "8\n"),
        ("d/kind", "9\n"),
    ] {
        assert_eq!(
            fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}")),
            content,
            "{path}"
        );
        let stat = fs::symlink_metadata(root.join(path)).unwrap();
        assert!(
            stat.ino() < 1 << 59 && stat.nlink() == if path == "hard1" { 2 } else { 1 },
            "{path}: {stat:?}"
        );
    }
    assert_eq!(fs::read_link(root.join("d/link")).unwrap(), Path::new("a"));
    assert!(root.join("gone/deep").is_dir() && root.join("old").is_dir());
    for (dir, names_then) in expected {
        assert_eq!(&names(root.join(dir)), names_then, "{dir}");
    }
}

for_each_variant! { xfs => only_what_is_watched_is_told, a_restore_that_nobody_watches_makes_no_request }
for_each_variant! { reflink => every_kind_of_change_is_told, who_watches_a_file_is_told, nobody_meets_what_is_only_announced }
for_each_variant! { branch => every_kind_of_change_is_told, who_watches_a_file_is_told, nobody_meets_what_is_only_announced }
