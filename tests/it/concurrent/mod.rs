//! Many processes in one tree: sixteen create, write, link, rename and delete, one makes and
//! deletes checkpoints, and one walks them.
//!
//! Each worker has a model of its own names, checks the tree against it, and reports it at its end:
//! the tree must equal all models together. In a shared directory all workers use the same names,
//! and only the set of valid errors is known. No view ever changes. `CKPTFS_SECONDS` is the
//! duration of each variant, and `CKPTFS_SEED` the first worker's seed.

mod contention;
mod dump;
mod inherited;
mod model;
mod role;
mod walk;
mod worker;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::random::{is_long, seed};
use crate::common::{MountOpts, Rig, Variant, for_each_variant, scratch};
use model::DiskNode;
use role::{ProcessGroup, ProcessTask, Role, WORKERS};

/// Default duration in seconds (`CKPTFS_SECONDS`).
const SECONDS: u64 = 4;
const SECONDS_LONG: u64 = 120;
/// The number of views walked at the end that the walker has not walked.
const UNSEEN_WALKED: usize = 6;

fn seconds() -> u64 {
    let told = std::env::var("CKPTFS_SECONDS")
        .ok()
        .and_then(|seconds| seconds.parse().ok());
    told.unwrap_or(if is_long() { SECONDS_LONG } else { SECONDS })
}

fn nothing_is_lost(v: Variant) {
    let mut opts = MountOpts::new(v.io);
    opts.limit += Duration::from_secs(seconds());
    let mut rig = v.start_with(opts, |root| worker::prepare(root, WORKERS));
    let notes = scratch();
    let notes = notes.path();
    let mut crew = ProcessGroup::default();
    for index in 0..WORKERS {
        crew.start(orders(Role::Worker, rig.path(), notes, index));
    }
    crew.start(orders(Role::Checkpoints, rig.path(), notes, WORKERS));
    crew.start(orders(Role::Walker, rig.path(), notes, WORKERS + 1));
    crew.wait(Duration::from_secs(seconds()), &rig.mount);

    let (operations, expected) = said(notes);
    let checkpoints: u64 = role::read_note(notes, "checkpoints");
    live_is(&expected, rig.path(), "the live tree");
    let first = walk::walk(rig.path()).unwrap();
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    assert!(
        walk::walk(rig.path()).unwrap() == first,
        "the live tree, read again"
    );
    let mut views: BTreeMap<String, String> = role::read_note(notes, "walker");
    assert!(!views.is_empty(), "the walker reached the end of no view");
    all_views(&rig, &mut views);
    no_panic(&rig);

    let dir = rig.path().to_owned();
    rig.mount.umount();
    if !rig.mount.is_branch() {
        live_is(&expected, &dir, "the plain directory");
    }
    rig.mount.remount();
    live_is(&expected, rig.path(), "the live tree, mounted again");
    same_views(&rig, &views, "mounted again");
    println!(
        "{operations} operations, {checkpoints} checkpoints, {} views walked, {} names at the end",
        views.len(),
        expected.len()
    );
}

fn orders(role: Role, tree: &Path, notes: &Path, index: usize) -> ProcessTask {
    ProcessTask {
        role,
        tree: tree.to_owned(),
        notes: notes.to_owned(),
        index,
        seed: seed("processes", 1) + index as u64,
        seconds: seconds(),
    }
}

/// Returns the operation count and the models of all workers together.
fn said(notes: &Path) -> (u64, BTreeMap<String, DiskNode>) {
    let (mut operations, mut all) = (0, BTreeMap::new());
    for index in 0..WORKERS {
        let (count, mine): (u64, BTreeMap<String, DiskNode>) =
            role::read_note(notes, &worker::name(index));
        operations += count;
        all.extend(mine);
    }
    (operations, all)
}

/// Asserts that the workers' names below `root` equal their models, without additional names.
fn live_is(expected: &BTreeMap<String, DiskNode>, root: &Path, what: &str) {
    let mut found = BTreeMap::new();
    for part in worker::OWNED {
        model::show_all(root, part, &mut found);
    }
    let mut wrong: Vec<String> = Vec::new();
    for (path, shown) in expected {
        match found.remove(path) {
            Some(there) if there == *shown => {}
            there => wrong.push(format!("{path}: found {there:?}, expected {shown:?}")),
        }
    }
    wrong.extend(
        found
            .iter()
            .map(|(path, shown)| format!("{path}: {shown:?} belongs to no worker")),
    );
    assert!(
        wrong.is_empty(),
        "{what}: {} names are wrong:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
}

/// Asserts that every view is readable, and that views walked during the run have not changed.
fn all_views(rig: &Rig, views: &mut BTreeMap<String, String>) {
    same_views(rig, views, "at the end");
    let dir = rig.path().join(".snapshots");
    let mut names: Vec<String> = walk::names(&dir)
        .unwrap()
        .into_iter()
        .filter(|name| name.starts_with(role::KEPT))
        .collect();
    names.sort();
    for name in &names {
        let view = dir.join(name);
        let listed = walk::names(&view)
            .unwrap_or_else(|error| panic!("the view {name} cannot be listed: {error}"));
        assert_eq!(listed, worker::TOP.map(str::to_owned), "the view {name}");
    }
    worker::steps_follow(&dir, &names);
    let unseen: Vec<&String> = names
        .iter()
        .filter(|name| !views.contains_key(*name))
        .collect();
    let every = (unseen.len() / UNSEEN_WALKED).max(1);
    let some: Vec<String> = unseen
        .into_iter()
        .step_by(every)
        .take(UNSEEN_WALKED)
        .cloned()
        .collect();
    for name in some {
        let hash = walk::hash(&dir.join(&name))
            .unwrap_or_else(|error| panic!("the view {name} cannot be walked: {error}"));
        views.insert(name, hash);
    }
}

fn same_views(rig: &Rig, views: &BTreeMap<String, String>, when: &str) {
    for (name, hash) in views {
        let now = walk::hash(&rig.path().join(".snapshots").join(name))
            .unwrap_or_else(|error| panic!("the view {name}, {when}: {error}"));
        assert!(now == *hash, "the view {name} has changed ({when})");
    }
}

/// A request that panics returns EIO, and a panic elsewhere has no visible effect.
fn no_panic(rig: &Rig) {
    let log = fs::read_to_string(rig.path().join(".ckptfs/daemon.log")).unwrap_or_default();
    let line = log.lines().find(|line| line.contains("panicked"));
    assert_eq!(line, None, "the daemon's log");
}

/// A file has a lease while it is settled. Failed before: the daemon's own non-blocking open for
/// writing failed with EAGAIN.
fn an_open_for_writing_is_never_refused(v: Variant) {
    const OPENS: usize = 1500;
    let rig = v.start();
    let path = rig.path().join("f");
    fs::write(&path, "x").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for turn in 0..OPENS {
                    let opened = OpenOptions::new()
                        .read(turn % 2 == 0)
                        .write(true)
                        .open(&path);
                    opened.unwrap_or_else(|error| panic!("open for writing, turn {turn}: {error}"));
                }
            });
        }
    });
}

/// Failed before: a listing of one directory notified the kernel that a file had lost its name in
/// another, before the kernel had processed the reply to that unlink(2). The kernel decremented the
/// link count twice and refused to link the file, which it considered deleted: ENOENT in 35 of
/// 2,239 rounds.
fn a_file_that_lost_a_name_can_be_linked_again(v: Variant) {
    const ROUNDS: usize = 600;
    let rig = v.start();
    let dirs = ["one", "two"].map(|name| rig.path().join(name));
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    fs::write(dirs[0].join("f"), "").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for dir in dirs.iter().chain(&dirs) {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    walk::names(dir).unwrap();
                }
            });
        }
        let refused = (0..ROUNDS).find_map(|round| {
            let (from, to) = (dirs[round % 2].join("f"), dirs[(round + 1) % 2].join("f"));
            fs::hard_link(&from, &to)
                .and_then(|()| fs::remove_file(&from))
                .err()
                .map(|error| (round, error))
        });
        stop.store(true, Ordering::SeqCst);
        assert!(refused.is_none(), "round and error: {refused:?}");
    });
}

for_each_variant! { reflink => nothing_is_lost }
for_each_variant! { xfs => an_open_for_writing_is_never_refused, a_file_that_lost_a_name_can_be_linked_again }
for_each_variant! { branch => nothing_is_lost }

/// One process of the crew. Run as a test, it is a single worker on a plain directory, which
/// validates its model.
#[test]
fn one_of_the_crew() {
    match ProcessTask::given() {
        Some(orders) => role::run(&orders),
        None => {
            let (plain, notes) = (scratch(), scratch());
            worker::prepare(plain.path(), 1);
            role::run(&ProcessTask {
                seconds: 1,
                ..orders(Role::Worker, plain.path(), notes.path(), 0)
            });
            let (operations, expected): (u64, _) = role::read_note(notes.path(), &worker::name(0));
            assert!(operations > 0);
            live_is(&expected, plain.path(), "the plain directory");
        }
    }
}
