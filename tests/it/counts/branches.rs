//! Syncs that branch operations wait for, and the cost of idle branches for the daemon.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::strace::Strace;
use crate::common::wait::{seen, wait_until};
use crate::common::{Fs, Io, MountOpts, Rig, Variant, scratch, skip};

const SYNCS: &str = "fsync,fdatasync,syncfs,sync,sync_file_range,msync";
/// Syncs of the whole process for a new branch, including those after the reply: of the journals,
/// of each file and directory of the store, and of the entry.
const MADE_MAX: usize = 24;
/// Branches created and dropped in turn.
const BRANCHES: usize = 4;

/// Idle branches.
const IDLE: usize = 20;
/// Threads of a branch: its readers (two, on few CPUs), the one that joins them, and its control
/// socket.
const THREADS_MAX: usize = 4;
/// Threads for periodic work, shared by all branches.
const SHARED_MAX: usize = 3;
/// Memory of a branch. Failed before: its session had a resident buffer of 16 MiB.
const RSS_MAX: u64 = 2 << 20;
/// Files that `status` may open for each branch to compare it with its parent; a merge opens more
/// than twice as many.
const OPENED_MAX: usize = 4;

/// Returns the calls made during `work`, each with its thread and name.
fn calls(rig: &Rig, more: &str, log: &Path, work: impl FnOnce()) -> Option<Vec<(u32, String)>> {
    let strace = Strace::watch(rig.mount.pid(), &format!("{SYNCS},{more}"), log)?;
    work();
    drop(strace);
    let call = |line: &str| {
        let (thread, rest) = line.split_once(char::is_whitespace)?;
        let name = rest.trim_start().split_once('(')?.0;
        Some((thread.parse().ok()?, name.to_owned()))
    };
    let log = fs::read_to_string(log).expect("the output of strace");
    Some(log.lines().filter_map(call).collect())
}

/// Returns the syncs made by the threads that made this call, and those of all threads.
fn syncs(calls: &[(u32, String)], of: &str) -> (usize, usize) {
    let is_of = |name: &str| SYNCS.split(',').any(|sync| sync == name);
    let answers: Vec<u32> = calls
        .iter()
        .filter(|(_, name)| name == of)
        .map(|(thread, _)| *thread)
        .collect();
    assert!(!answers.is_empty(), "no call of {of}: {calls:?}");
    let all = calls.iter().filter(|(_, name)| is_of(name));
    let mine = all.clone().filter(|(thread, _)| answers.contains(thread));
    (mine.count(), all.count())
}

/// Failed before: creating a branch made fifteen syncs in sequence before the reply, and dropping
/// one made eleven.
#[test]
fn a_branch_is_made_and_dropped_without_a_sync() {
    let variant = Variant {
        fs: Fs::Xfs,
        io: Io::Passthrough,
    };
    if let Some(reason) = variant.unavailable() {
        return skip(&reason);
    }
    let (rig, dir) = (variant.start(), scratch());
    let entry = |name: &str| rig.path().join(".ckptfs/branches").join(name);
    for round in 0..BRANCHES {
        let name = format!("b{round}");
        let create = || {
            rig.mount.ok(&["branch", "create", "--no-git", &name]);
            wait_until("the branch is on the disk", || {
                fs::symlink_metadata(entry(&name)).is_ok_and(|entry| entry.is_file())
            });
        };
        let log = dir.path().join(format!("made-{round}"));
        let Some(made) = calls(&rig, "mount", &log, create) else {
            return skip("strace cannot trace the daemon");
        };
        let (waited, all) = syncs(&made, "mount");
        assert_eq!(waited, 0, "the caller waits for the disk: {made:?}");
        assert!(all <= MADE_MAX, "{all} syncs for a branch: {made:?}");
        let log = dir.path().join(format!("dropped-{round}"));
        let drop = || drop(rig.mount.ok(&["branch", "drop", &name]));
        let dropped = calls(&rig, "umount2", &log, drop).expect("strace could trace it before");
        let (waited, _) = syncs(&dropped, "umount2");
        assert_eq!(waited, 0, "the caller waits for the disk: {dropped:?}");
    }
}

/// Files changed on one side.
const CHANGED: usize = 60;

fn append_all(dir: &Path) {
    for number in 0..CHANGED {
        let path = dir.join(format!("f{number}"));
        let mut file = fs::File::options().append(true).open(path).unwrap();
        std::io::Write::write_all(&mut file, b"more\n").unwrap();
    }
}

/// Waits until the daemon has handled every close in a tree, because a checkpoint starts the
/// writeback of files open for writing.
fn all_is_closed(rig: &Rig, tree: &Path) {
    wait_until("every file is closed", || {
        let mut stats = Command::new(rig.mount.command::<&str>(&[]).get_program());
        stats.arg("-C").arg(tree).args(["status", "-v", "--json"]);
        let stats = stats.output().unwrap();
        let stats: serde_json::Value = serde_json::from_slice(&stats.stdout).unwrap();
        seen(stats["stats"]["open_files"] == 0, stats)
    });
}

/// Failed before: storing the new merge base took four syncs within the freeze, and four after it,
/// before the reply.
#[test]
fn a_branch_is_merged_and_updated_without_a_sync() {
    let variant = Variant {
        fs: Fs::Xfs,
        io: Io::Passthrough,
    };
    if let Some(reason) = variant.unavailable() {
        return skip(&reason);
    }
    let rig = variant.start_with(MountOpts::new(variant.io), |dir| {
        for number in 0..CHANGED {
            fs::write(dir.join(format!("f{number}")), "1\n").unwrap();
        }
    });
    rig.mount.ok(&["branch", "create", "--no-git", "fix"]);
    let branch = rig.path().with_file_name("project@fix");
    let dir = scratch();
    // The first round prepares the state that the second finds. A base of many parts is synced
    // once.
    for round in 0..2 {
        let rounds: [(&Path, &[&str]); 2] = [
            (&branch, &["merge", "fix"]),
            (rig.path(), &["branch", "update", "fix"]),
        ];
        for (changed, verb) in rounds {
            append_all(changed);
            all_is_closed(&rig, changed);
            let log = dir.path().join(format!("{}-{round}", verb.len()));
            let merge = || drop(rig.mount.ok(verb));
            let Some(made) = calls(&rig, "renameat2", &log, merge) else {
                return skip("strace cannot trace the daemon");
            };
            let renames = made.iter().filter(|(_, name)| name == "renameat2");
            assert!(renames.count() >= CHANGED, "{verb:?} changed too little");
            let (waited, _) = syncs(&made, "renameat2");
            assert_eq!(waited, 0, "{verb:?} waits for the disk: {made:?}");
        }
    }
}

/// Failed before: each branch had thirteen threads, those of its session and one for each periodic
/// task, and `status` computed a merge of each branch although nothing had changed.
#[test]
fn branches_that_nobody_uses_cost_little() {
    let variant = Variant {
        fs: Fs::Xfs,
        io: Io::Passthrough,
    };
    if let Some(reason) = variant.unavailable() {
        return skip(&reason);
    }
    let opts = MountOpts {
        extra: vec!["--readers=2".into()],
        ..MountOpts::new(variant.io)
    };
    let (rig, dir) = (variant.start_with(opts, |_| {}), scratch());
    fs::write(rig.path().join("f"), "parent").expect("write");
    let tasks = format!("/proc/{}/task", rig.mount.pid());
    let threads = || fs::read_dir(&tasks).expect("threads").count();
    let rss = || {
        let bytes = rig.mount.stats()["rss_bytes"].as_u64();
        bytes.expect("a number")
    };
    let (before, rss_before) = (threads(), rss());
    for number in 0..IDLE {
        let name = format!("b{number}");
        rig.mount.ok(&["branch", "create", "--no-git", &name]);
        let at = rig.path().with_file_name(format!("project@{name}"));
        (0..3).for_each(|file| {
            fs::write(at.join(format!("f{file}")), "in the branch").expect("write")
        });
    }
    wait_until("the branches have few threads", || {
        let now = threads();
        seen(now <= before + IDLE * THREADS_MAX + SHARED_MAX, now)
    });
    let each = rss().saturating_sub(rss_before) / IDLE as u64;
    assert!(each <= RSS_MAX, "{each} bytes of memory per branch");
    let status = |log: &str| {
        let log = dir.path().join(log);
        let status = || drop(rig.mount.ok(&["status"]));
        calls(&rig, "openat,openat2", &log, status).map(|calls| calls.len())
    };
    let (Some(first), Some(second)) = (status("first"), status("second")) else {
        return skip("strace cannot trace the daemon");
    };
    println!(
        "{before} threads, then {}; {each} bytes per branch; {first} files opened, then {second}",
        threads()
    );
    assert!(second <= OPENED_MAX * IDLE, "{first}, then {second}");
}
