//! State of branches preserved by a takeover.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::branch::support::{create, inside, is_mounted, listed};
use crate::common::random::is_long;
use crate::common::wait::{same, wait_until};
use crate::common::{MountOpts, Rig, Variant, for_each_variant, process};
use crate::takeover::map::SharedMapping;

for_each_variant! { xfs =>
    a_shell_in_a_branch_goes_on, inherited_files_stay_open, own_files_stay_open,
    what_was_removed_is_nothing_else, branches_of_branches_go_on, what_ended_is_let_go_of
}
for_each_variant! { xfs => a_branch_that_lost_its_connection_is_mounted_anew, many_kills_in_a_row }

/// Returns a tree with several kinds of files, and a branch of it.
fn start(v: Variant) -> (Rig, PathBuf) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        fs::create_dir_all(dir.join("a/b/c")).unwrap();
        fs::write(dir.join("a/b/small"), "inherited").unwrap();
        fs::write(dir.join("a/b/c/deep"), "below").unwrap();
        fs::write(dir.join("a/large"), vec![b'L'; 300_000]).unwrap();
        fs::write(dir.join("one"), "linked").unwrap();
        fs::hard_link(dir.join("one"), dir.join("a/two")).unwrap();
    });
    let one = create(&rig, "one");
    (rig, one)
}

/// Permanently reads names that only the branch has. It must never see an error, or the directory
/// below the mount, which lacks the inherited names.
struct BranchWatcher<'a> {
    stop: &'a AtomicBool,
    asked: &'a AtomicU64,
}

impl BranchWatcher<'_> {
    fn on(&self, at: &Path) {
        while !self.stop.load(Ordering::Relaxed) {
            let there = fs::metadata(at.join("a/b/small")).expect("an inherited file exists");
            assert_eq!(there.len(), 9);
            fs::metadata(at.join("marker")).expect("a file of the branch exists");
            let nothing = fs::metadata(at.join("nothing")).unwrap_err();
            assert_eq!(nothing.raw_os_error(), Some(libc::ENOENT));
            let names = fs::read_dir(at).expect("it can be listed").count();
            assert_eq!(names, 3, "a, marker and one");
            self.asked.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The shell's working directory is an inherited directory.
fn a_shell_in_a_branch_goes_on(v: Variant) {
    let (mut rig, one) = start(v);
    fs::write(one.join("marker"), "").unwrap();
    let mut shell = Command::new("sh")
        .current_dir(one.join("a/b"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(shell.stdout.take().unwrap()).lines();
    let mut input = shell.stdin.take().unwrap();
    let mut ask = |what: &str| {
        writeln!(input, "{what}").unwrap();
        said.next().unwrap().unwrap()
    };
    let inode = ask("stat -c %i-%Y small");
    let (stop, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let (stop, asked) = (&stop, &asked);
        let (watch, at) = (BranchWatcher { stop, asked }, one.clone());
        let watcher = scope.spawn(move || watch.on(&at));
        for round in 0..3 {
            let before = asked.load(Ordering::Relaxed);
            rig.mount.replace_worker();
            assert_eq!(ask("stat -c %i-%Y small"), inode);
            assert_eq!(ask("cat small; echo"), "inherited");
            assert_eq!(ask("cat c/deep; echo"), "below");
            assert_eq!(
                ask("(cd c && /bin/pwd)"),
                one.join("a/b/c").to_str().unwrap()
            );
            if round == 0 {
                // Only below its directory: the watcher counts the names of the root.
                assert_eq!(ask("echo new > own; mkdir d; mv own d/; cat d/own"), "new");
            }
            assert_eq!(ask("ls | tr '\\n' ' '; echo"), "c d small ");
            wait_until("the watcher continues", || {
                watcher.is_finished() || asked.load(Ordering::Relaxed) > before + 3
            });
        }
        stop.store(true, Ordering::Relaxed);
        watcher.join().expect("the branch always exists");
    });
    drop(input);
    shell.wait().unwrap();
    assert!(
        !rig.path().join("a/b/d").exists(),
        "it belongs to the branch"
    );
    let told = rig.mount.ok(&["branch", "diff", "one"]);
    assert_eq!(told, "A a/b/d\nA a/b/d/own\nA marker\n");
    let status: serde_json::Value =
        serde_json::from_str(&inside(&one, &["status", "--json"])).unwrap();
    assert_eq!(status["daemon"]["takeovers"], 3);
    assert!(
        !rig.mount.status_json()["warnings"]
            .to_string()
            .contains("branch")
    );
}

/// Open inherited files keep their content, whatever happens to the parent's files or later in the
/// branch. The daemon reads small ones; large ones were copied up at open.
fn inherited_files_stay_open(v: Variant) {
    let (mut rig, one) = start(v);
    let mut small = File::open(one.join("a/b/small")).unwrap();
    let again = File::open(one.join("a/b/small")).unwrap();
    let large = File::open(one.join("a/large")).unwrap();
    let linked = File::open(one.join("one")).unwrap();
    let dir = File::open(one.join("a/b")).unwrap();
    let below = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    let map = SharedMapping::read_only(File::open(one.join("a/large")).unwrap(), 300_000);
    let ino = small.metadata().unwrap().ino();
    // In the parent one file is written, one removed, and one replaced.
    fs::write(rig.path().join("a/b/small"), "the parent's own").unwrap();
    fs::remove_file(rig.path().join("one")).unwrap();
    fs::remove_file(rig.path().join("a/two")).unwrap();
    fs::rename(rig.path().join("a/b/c"), rig.path().join("moved")).unwrap();
    fs::create_dir(rig.path().join("a/b/c")).unwrap();
    fs::write(rig.path().join("a/b/c/deep"), "another").unwrap();
    let mut text = String::new();
    (&small).take(3).read_to_string(&mut text).unwrap();
    rig.mount.replace_worker();
    small.read_to_string(&mut text).unwrap();
    assert_eq!(text, "inherited");
    assert_eq!(small.metadata().unwrap().ino(), ino);
    let mut bytes = [0; 6];
    linked.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"linked");
    assert_eq!(linked.metadata().unwrap().nlink(), 2);
    assert_eq!(fs::read(below.join("c/deep")).unwrap(), b"below");
    assert_eq!(fs::read(one.join("a/two")).unwrap(), b"linked");
    let mut bytes = vec![0; 300_000];
    large.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|byte| *byte == b'L'));
    assert_eq!(map.load(299_992 & !7), u64::from_le_bytes(*b"LLLLLLLL"));
    // A copy-up while handles opened before are in use, which remain valid over two takeovers.
    fs::write(one.join("a/b/small"), "changed here").unwrap();
    let mut now = [0; 12];
    again.read_exact_at(&mut now, 0).unwrap();
    assert_eq!(&now, b"changed here");
    rig.mount.replace_worker();
    again.read_exact_at(&mut now, 0).unwrap();
    assert_eq!(&now, b"changed here");
    assert_eq!(again.metadata().unwrap().ino(), ino);
    assert_eq!(
        fs::read(rig.path().join("a/b/small")).unwrap(),
        b"the parent's own"
    );
    drop((small, again, large, linked, map));
    // A new handle of a closed file.
    assert_eq!(fs::read(one.join("a/b/small")).unwrap(), b"changed here");
}

fn own_files_stay_open(v: Variant) {
    let (mut rig, one) = start(v);
    let writable = |path: &str| {
        let mut how = OpenOptions::new();
        how.read(true).write(true).create(true).truncate(false);
        how.open(one.join(path)).unwrap()
    };
    // Copied up, new, and each of them unlinked.
    let (copied, born) = (writable("a/b/small"), writable("born"));
    let (copied_gone, born_gone) = (writable("a/b/c/deep"), writable("gone"));
    born.write_all_at(b"0123", 0).unwrap();
    born_gone.write_all_at(b"young", 0).unwrap();
    fs::remove_file(one.join("a/b/c/deep")).unwrap();
    fs::remove_file(one.join("gone")).unwrap();
    let map = SharedMapping::new(writable("a/large"), 4096);
    map.store(0, 1);
    let first = inside(&one, &["checkpoint"]);
    for round in 0..2_u8 {
        rig.mount.replace_worker();
        copied
            .write_all_at(&[b'0' + round], u64::from(round))
            .unwrap();
        born.write_all_at(&[b'a' + round], u64::from(round))
            .unwrap();
        copied_gone
            .write_all_at(&[b'A' + round], u64::from(round))
            .unwrap();
        born_gone.write_all_at(b"Z", u64::from(round)).unwrap();
        map.store(8, u64::from(round));
        for gone in [&copied_gone, &born_gone] {
            assert_eq!(gone.metadata().unwrap().nlink(), 0);
            gone.sync_all().unwrap();
        }
        assert!(!one.join("a/b/c/deep").exists() && !one.join("gone").exists());
    }
    let read = |file: &File| {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    assert_eq!(read(&copied), "01herited");
    assert_eq!(read(&born), "ab23");
    assert_eq!(read(&copied_gone), "ABlow");
    assert_eq!(read(&born_gone), "ZZung");
    assert_eq!(fs::read(one.join("a/b/small")).unwrap(), b"01herited");
    assert_eq!(fs::read(one.join("born")).unwrap(), b"ab23");
    // Writes through older handles are captured.
    let view = one.join(".snapshots").join(first.trim_end());
    assert_eq!(fs::read(view.join("a/b/small")).unwrap(), b"inherited");
    assert_eq!(fs::read(view.join("born")).unwrap(), b"0123");
    let stored = fs::read(view.join("a/large")).unwrap();
    assert_eq!(stored[..8], 1_u64.to_ne_bytes());
    assert_eq!(stored[8..16], *b"LLLLLLLL");
    assert_eq!(
        fs::read(rig.path().join("a/b/small")).unwrap(),
        b"inherited"
    );
    assert_eq!(fs::read(rig.path().join("a/b/c/deep")).unwrap(), b"below");
}

/// A handle of a removed inode returns ESTALE, and never another inode with its name.
fn what_was_removed_is_nothing_else(v: Variant) {
    let (mut rig, one) = start(v);
    let held = |path: &str| {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::open(one.join(path), flags, rustix::fs::Mode::empty()).unwrap()
    };
    let gone = [held("a/b/small"), held("a/b/c"), held("a/b/c/deep")];
    let link = held("a/two");
    fs::remove_file(one.join("a/b/small")).unwrap();
    fs::remove_dir_all(one.join("a/b/c")).unwrap();
    fs::remove_file(one.join("a/two")).unwrap();
    // Recreated with the same names.
    fs::write(one.join("a/b/small"), "another").unwrap();
    fs::create_dir(one.join("a/b/c")).unwrap();
    fs::write(one.join("a/b/c/deep"), "another").unwrap();
    fs::rename(one.join("a/b"), one.join("elsewhere")).unwrap();
    rig.mount.replace_worker();
    for gone in &gone {
        let path = format!("/proc/self/fd/{}", gone.as_raw_fd());
        let error = File::open(path).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}");
    }
    // Reachable by its other name.
    let path = format!("/proc/self/fd/{}", link.as_raw_fd());
    assert_eq!(fs::read(path).unwrap(), b"linked");
    assert_eq!(fs::read(one.join("elsewhere/small")).unwrap(), b"another");
    assert_eq!(fs::read(one.join("elsewhere/c/deep")).unwrap(), b"another");
    assert_eq!(fs::read(one.join("one")).unwrap(), b"linked");
}

fn branches_of_branches_go_on(v: Variant) {
    let (mut rig, one) = start(v);
    let two = create(&rig, "two");
    fs::write(one.join("a/b/small"), "of one").unwrap();
    let deep = PathBuf::from(inside(&one, &["branch", "create", "deep"]).trim_end());
    let trees = [(&one, "of one"), (&two, "inherited"), (&deep, "of one")];
    let open = |path: &str| trees.map(|(tree, _)| File::open(tree.join(path)).unwrap());
    let (small, below) = (open("a/b/small"), open("a/b/c"));
    let written = trees.map(|(tree, _)| File::create(tree.join("written")).unwrap());
    // Changes a file that the nested branch inherits from this one.
    fs::write(one.join("a/b/small"), "later!").unwrap();
    fs::remove_file(one.join("a/b/c/deep")).unwrap();
    for round in 0..2 {
        rig.mount.replace_worker();
        for (number, (tree, text)) in trees.iter().enumerate() {
            let mut now = vec![0; text.len()];
            small[number].read_exact_at(&mut now, 0).unwrap();
            let text = if number == 0 { "later!" } else { text };
            assert_eq!(String::from_utf8(now).unwrap(), text, "{}", tree.display());
            let deep = format!("/proc/self/fd/{}/deep", below[number].as_raw_fd());
            let there = fs::read(deep).map_err(|error| error.raw_os_error());
            let expected = if number == 0 {
                Err(Some(libc::ENOENT))
            } else {
                Ok(b"below".to_vec())
            };
            assert_eq!(there, expected, "{}", tree.display());
            written[number]
                .write_all_at(&[b'0' + round], u64::from(round))
                .unwrap();
        }
    }
    for (tree, _) in trees {
        assert_eq!(fs::read(tree.join("written")).unwrap(), b"01");
    }
    assert_eq!(
        fs::read(rig.path().join("a/b/small")).unwrap(),
        b"inherited"
    );
    drop((small, below, written));
    rig.mount.umount();
    for (tree, _) in trees {
        assert!(!is_mounted(tree), "{} is also unmounted", tree.display());
    }
    rig.mount.remount();
    for (tree, _) in trees {
        assert_eq!(fs::read(tree.join("written")).unwrap(), b"01");
    }
}

/// Returns the number of descriptors of a process.
fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// The holder closes all descriptors of a branch that was dropped or unmounted, and of its files.
fn what_ended_is_let_go_of(v: Variant) {
    let (mut rig, one) = start(v);
    let holder = rig.mount.holder_pid().unwrap();
    let before = descriptors(holder);
    let more: Vec<PathBuf> = (0..4)
        .map(|number| create(&rig, &format!("b{number}")))
        .collect();
    assert!(descriptors(holder) >= before + 3 * more.len());
    let held = File::create(more[0].join("gone")).unwrap();
    fs::remove_file(more[0].join("gone")).unwrap();
    rig.mount.replace_worker();
    drop(held);
    rig.mount.ok(&["umount", more[0].to_str().unwrap()]);
    for number in 0..4 {
        rig.mount.ok(&["branch", "drop", &format!("b{number}")]);
    }
    wait_until("everything is released", || {
        same(descriptors(holder), before)
    });
    // Requested while no worker served, and done by the next one.
    thread::sleep(Duration::from_millis(300));
    process::kill(rig.mount.pid());
    rig.mount.ok(&["branch", "drop", "one"]);
    rig.mount.adopt();
    assert!(!one.exists() && listed(&rig, "one").is_none());
    rig.mount.replace_worker();
    assert!(!one.exists() && !is_mounted(&one));
    rig.mount.ok(&["branch", "restore", "one"]);
    assert_eq!(fs::read(one.join("a/b/small")).unwrap(), b"inherited");
}

/// The connection of a branch is aborted while no worker runs.
fn a_branch_that_lost_its_connection_is_mounted_anew(v: Variant) {
    let (mut rig, one) = start(v);
    let two = create(&rig, "two");
    fs::write(one.join("own"), "1").unwrap();
    let holder = rig.mount.holder_pid().unwrap();
    let signal = |signal| {
        let holder = rustix::process::Pid::from_raw(holder as i32).unwrap();
        rustix::process::kill_process(holder, signal).unwrap();
    };
    let open = File::open(one.join("own")).unwrap();
    let of_two = File::open(two.join("a/b/small")).unwrap();
    thread::sleep(Duration::from_millis(300));
    signal(rustix::process::Signal::STOP);
    rig.mount.kill_worker();
    crate::common::mount::abort(&one);
    signal(rustix::process::Signal::CONT);
    rig.mount.adopt();
    wait_until("it is mounted again", || one.join("a/b/small").exists());
    assert_eq!(fs::read(one.join("own")).unwrap(), b"1");
    assert_eq!(fs::read(one.join("a/b/small")).unwrap(), b"inherited");
    assert!(open.metadata().is_err(), "that was the old connection");
    let mut bytes = [0; 9];
    of_two.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"inherited");
}

/// Writers verify their data in two branches and in the parent.
fn many_kills_in_a_row(v: Variant) {
    let (mut rig, one) = start(v);
    let trees = [rig.path().to_owned(), one, create(&rig, "two")];
    let (stop, rounds) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 3]);
    let kills = if is_long() { 20 } else { 4 };
    thread::scope(|scope| {
        let workers: Vec<_> = (trees.iter().zip(&rounds))
            .map(|(tree, rounds)| scope.spawn(|| write_and_look(tree, &stop, rounds)))
            .collect();
        for _ in 0..kills {
            let before: Vec<u64> = rounds.iter().map(|at| at.load(Ordering::Relaxed)).collect();
            rig.mount.replace_worker();
            wait_until("all workers continue", || {
                let all = rounds.iter().zip(&before);
                workers.iter().any(thread::ScopedJoinHandle::is_finished)
                    || all
                        .into_iter()
                        .all(|(at, before)| at.load(Ordering::Relaxed) > *before)
            });
        }
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().expect("no call fails, and nothing is lost");
        }
    });
    println!("{v:?}: {kills} kills, rounds {rounds:?}");
    assert_eq!(rig.mount.status_json()["daemon"]["takeovers"], kills);
}

fn write_and_look(tree: &Path, stop: &AtomicBool, rounds: &AtomicU64) {
    let log = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .open(tree.join("log"))
        .unwrap();
    while !stop.load(Ordering::Relaxed) {
        let round = rounds.load(Ordering::Relaxed);
        let (dir, text) = (
            tree.join(format!("dir{}", round % 5)),
            format!("{round} of {}", tree.display()),
        );
        if !dir.exists() {
            fs::create_dir(&dir).unwrap();
        }
        fs::write(dir.join("new"), &text).unwrap();
        fs::rename(dir.join("new"), dir.join("file")).unwrap();
        (&log).write_all(&round.to_le_bytes()).unwrap();
        assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), text);
        assert_eq!(fs::read(tree.join("a/b/c/deep")).unwrap(), b"below");
        assert_eq!(fs::read(tree.join("a/two")).unwrap(), b"linked");
        if round % 4 == 3 {
            fs::remove_dir_all(dir).unwrap();
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    let count = rounds.load(Ordering::Relaxed);
    assert_eq!(log.metadata().unwrap().len(), count * 8);
    let mut last = [0; 8];
    log.read_exact_at(&mut last, (count - 1) * 8).unwrap();
    assert_eq!(u64::from_le_bytes(last), count - 1);
}
