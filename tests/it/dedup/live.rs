//! Deduplication of live files during writes, without changes of times or dirty paths.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::story::{LARGE, assert_whole, place, rewrite, tell};
use crate::common::space::noise;
use crate::common::wait::{seen, wait_until};
use crate::common::{MountOpts, Variant, for_each_variant, tree_of};

for_each_variant! { reflink => live_files_share_and_no_time_changes, writers_and_checkpoints_meanwhile_are_not_disturbed }

fn times(root: &Path) -> BTreeMap<String, (i64, i64, i64, i64)> {
    let of = |name: &str| {
        let stat = fs::symlink_metadata(root.join(name)).unwrap();
        (
            name.to_owned(),
            (
                stat.mtime(),
                stat.mtime_nsec(),
                stat.ctime(),
                stat.ctime_nsec(),
            ),
        )
    };
    ["a", "d/b", "c", "other", "small1", "small2"]
        .into_iter()
        .map(of)
        .collect()
}

fn live_files_share_and_no_time_changes(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io), |_| {});
    let root = rig.path().to_owned();
    fs::create_dir(root.join("d")).unwrap();
    for name in ["a", "d/b", "c"] {
        fs::write(root.join(name), noise(LARGE, 1)).unwrap();
    }
    fs::write(root.join("other"), noise(LARGE, 2)).unwrap();
    for name in ["small1", "small2"] {
        fs::write(root.join(name), noise(5000, 3)).unwrap();
    }
    fs::hard_link(root.join("a"), root.join("a2")).unwrap();
    rig.mount.checkpoint();
    rewrite(&root.join("c"), &noise(LARGE, 1));
    let (before, was, dirty) = (tree_of(&root), times(&root), rig.mount.dirty());
    let done = rig.mount.json(&["gc", "--dedup", "--live"]);
    // `c` has a version with its current content; one of the files is the source.
    assert!(done["shared"]["files"].as_u64() >= Some(3), "{done}");
    assert_eq!(
        (tree_of(&root), times(&root), rig.mount.dirty()),
        (before.clone(), was.clone(), dirty)
    );
    let again = rig.mount.json(&["gc", "--dedup", "--live"]);
    assert_eq!(again["shared"]["files"], 0, "{again}");
    // Once the files are older than a tick of the coarse clock, their hashes are reused.
    wait_until("the content of live files is known", || {
        let told = rig.mount.json(&["gc", "--dedup", "--live"]);
        seen(told["projects"][0]["hashed"]["files"] == 0, told)
    });
    let status = rig.mount.status_json();
    assert!(status["shared"]["files"].as_u64() >= Some(3), "{status}");
    rig.mount.umount();
    for (one, two) in [("a", "d/b"), ("a", "c"), ("small1", "small2")] {
        let (one, two) = (
            place(&root.join(one)).0.unwrap(),
            place(&root.join(two)).0.unwrap(),
        );
        assert_eq!(one, two, "not shared");
    }
    assert_ne!(place(&root.join("a")).0, place(&root.join("other")).0);
    rig.mount.remount();
    assert_eq!((tree_of(&root), times(&root)), (before, was));
    // A write to a shared file does not change the others.
    rewrite(&root.join("a"), &noise(LARGE, 9));
    assert_eq!(fs::read(root.join("d/b")).unwrap(), noise(LARGE, 1));
    assert_eq!(fs::read(rig.view(1).join("a")).unwrap(), noise(LARGE, 1));
    assert_whole(&rig.mount);
}

const FILES: u64 = 6;
const ROUNDS: u64 = 6;

/// The seed of each file's content, by number.
type SeedByFile = BTreeMap<u64, u64>;

fn content(seed: u64) -> Vec<u8> {
    noise(200_000 + 4096 * (seed as usize % 2), seed)
}

fn writers_and_checkpoints_meanwhile_are_not_disturbed(v: Variant) {
    let rig = tell(v, "hash");
    let root = rig.path();
    let file = |number: u64| root.join(format!("busy{number}"));
    // Each file has its own lock; a checkpoint takes all of them.
    let held: Vec<Mutex<u64>> = (0..FILES).map(|number| Mutex::new(number % 3)).collect();
    (0..FILES).for_each(|number| rewrite(&file(number), &content(number % 3)));
    let stop = AtomicBool::new(false);
    let write = |from: u64| {
        let mut round = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            let number = (from + 2 * round) % FILES;
            let mut held = held[number as usize].lock().unwrap();
            *held = (round * 7 + number) % 3;
            rewrite(&file(number), &content(*held));
            round += 1;
        }
    };
    let mut shown: BTreeMap<u64, SeedByFile> = BTreeMap::new();
    let mut shared = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| write(0));
        scope.spawn(|| write(1));
        let _stop = Stop(&stop);
        for _ in 0..ROUNDS {
            let done = rig.mount.json(&["gc", "--dedup", "--live"]);
            shared += done["shared"]["files"].as_u64().unwrap();
            let guards: Vec<_> = held.iter().map(|held| held.lock().unwrap()).collect();
            let id = rig.mount.checkpoint();
            shown.insert(
                id,
                (0..FILES)
                    .map(|number| (number, *guards[number as usize]))
                    .collect(),
            );
        }
    });
    println!("{v:?}: {shared} files were deduplicated while it ran");
    assert!(shared > 0);
    rig.mount.ok(&["gc", "--dedup", "--live"]);
    for (id, files) in &shown {
        for (number, seed) in files {
            assert!(
                fs::read(rig.view(*id).join(format!("busy{number}"))).unwrap() == content(*seed),
                "checkpoint {id}, file {number}"
            );
        }
    }
    for (number, held) in (0..).zip(&held) {
        assert!(
            fs::read(file(number)).unwrap() == content(*held.lock().unwrap()),
            "file {number}"
        );
    }
    assert_whole(&rig.mount);
}

/// Stops the other threads even when this one panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
