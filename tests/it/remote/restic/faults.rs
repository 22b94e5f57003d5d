//! Wrong passwords, full disks, bit flips, kills: no incomplete snapshot or copy is ever marked
//! whole.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{SECONDS, User, mark, pulled};
use crate::common::command::{fails, has, run_limited, sh, succeeds};
use crate::common::tree::{assert_same, tree};
use crate::common::{MountOpts, Rig, Variant, for_each_variant, sample_tree, tool};

/// A tree with 20 MB of incompressible data, so that operations can be interrupted in the middle.
fn large(v: Variant) -> Rig {
    v.start_with(MountOpts::new(v.io), |dir| {
        sample_tree(dir);
        sh(
            dir,
            "mkdir large; for n in $(seq 40); do head -c 500000 /dev/urandom > large/$n; done",
        );
    })
}

fn beside(rig: &Rig, name: &str) -> PathBuf {
    rig.path().parent().expect("the image").join(name)
}

for_each_variant! { xfs => a_wrong_password }

fn a_wrong_password(v: Variant) {
    let rig = v.start();
    rig.mount.checkpoint();
    let user = User::new();
    for verb in [
        &["push", "home"][..],
        &["remote", "log", "home"],
        &["pull", "home", "--into", "x"],
    ] {
        let mut command = user.command(rig.path(), verb);
        let said = fails(command.env("CKPTFS_REMOTE_PASSWORD", "wrong"), SECONDS);
        assert!(
            said.contains("the password does not open this repository"),
            "{said}"
        );
        assert!(!said.contains("wrong"), "{said}");
    }
    let config = user.dir.path().join("config/ckptfs/remotes.toml");
    let text = fs::read_to_string(config).expect("the remotes");
    assert!(
        !text.contains(super::PASSWORD),
        "no password is stored: {text}"
    );
    // A password file that others may read is rejected; of a file or command, the first line is the
    // password.
    let file = user.dir.path().join("password");
    fs::write(&file, format!("{}\nsecond line\n", super::PASSWORD)).expect("written");
    sh(user.dir.path(), "chmod 644 password");
    let add = |how: &str, from: &str| {
        let mut add = user.command(
            user.dir.path(),
            &["remote", "add", "home", &user.url, "-f", how, from],
        );
        add.env_remove("CKPTFS_REMOTE_PASSWORD");
        add
    };
    let file = file.to_str().expect("UTF-8");
    let said = fails(&mut add("--password-file", file), SECONDS);
    assert!(said.contains("others may read the password"), "{said}");
    sh(user.dir.path(), "chmod 600 password");
    succeeds(&mut add("--password-file", file), SECONDS);
    succeeds(
        &mut add("--password-command", &format!("cat {file}")),
        SECONDS,
    );
}

for_each_variant! { xfs => a_limit }

/// `--limit` applies after one second's worth of bytes.
fn a_limit(v: Variant) {
    let rig = large(v);
    rig.mount.checkpoint();
    let user = User::new();
    let add = |limit: &str| {
        let add = ["remote", "add", "home", &user.url, "-f", "--limit", limit];
        user.command(user.dir.path(), &add)
    };
    assert!(fails(&mut add("0"), SECONDS).contains("a limit of 0 would let nothing through"));
    succeeds(&mut add("8M"), SECONDS);
    user.push(&rig, &[]);
    let began = std::time::Instant::now();
    user.pull(&rig, "1", &beside(&rig, "into"));
    // 20 MB at 8 MB/s, of which the last chunk is not delayed.
    assert!(began.elapsed() > Duration::from_millis(1500), "{began:?}");
}

for_each_variant! { xfs => a_push_that_is_killed }

/// A push is killed at many positions and repeated; the final repository is complete.
fn a_push_that_is_killed(v: Variant) {
    let rig = large(v);
    rig.mount.checkpoint();
    let expected = tree(rig.path());
    let user = User::new();
    let mut killed = 0;
    for round in 0..12_u64 {
        let mut push = user
            .command(rig.path(), &["push", "home"])
            .spawn()
            .expect("runs");
        std::thread::sleep(Duration::from_millis(100 + 120 * round));
        killed += u64::from(push.try_wait().expect("its state").is_none());
        push.kill().expect("killed");
        push.wait().expect("ended");
        if user.log(&rig) == [1] {
            break;
        }
    }
    assert!(killed > 1, "it was killed while it ran");
    user.push(&rig, &[]);
    assert_eq!(user.log(&rig), [1]);
    if has("restic") {
        user.check();
    }
    let into = beside(&rig, "into");
    // The pull is also killed, and resumes.
    for round in 0..6 {
        let into = into.to_str().expect("UTF-8");
        let mut pull = user
            .command(rig.path(), &["pull", "home", "--into", into])
            .spawn()
            .expect("runs");
        std::thread::sleep(Duration::from_millis(150 + 150 * round));
        let ended = pull.try_wait().expect("its state");
        pull.kill().expect("killed");
        pull.wait().expect("ended");
        if ended.is_none() && Path::new(into).exists() && round < 2 {
            assert_ne!(mark(Path::new(into)), "whole");
        }
    }
    user.pull(&rig, "latest", &into);
    assert_same(&pulled(&into), &expected);
    assert_eq!(tree(rig.path()), expected);
}

for_each_variant! { xfs => a_push_that_is_killed_at_a_call, a_pull_that_is_killed_at_a_call }

/// Runs a command whose threads are killed at their `call`-th system call that modifies something.
/// Returns whether it succeeded.
fn killed_at(call: usize, program: &Command) -> bool {
    const CALLS: &str = "openat,write,pwrite64,copy_file_range,mkdirat,mkdir,rename,renameat,renameat2,fsync,fdatasync,ftruncate,unlink,unlinkat,setxattr,fsetxattr,close";
    let mut strace = tool("strace", &["-f", "-q", "-o", "/dev/null", "-e"]);
    let inject = format!("inject={CALLS}:signal=KILL:when={call}");
    strace.args([format!("trace={CALLS}"), "-e".to_owned(), inject]);
    strace.arg(program.get_program()).args(program.get_args());
    if let Some(dir) = program.get_current_dir() {
        strace.current_dir(dir);
    }
    for (name, value) in program.get_envs() {
        strace.env(name, value.unwrap_or_default());
    }
    run_limited(&mut strace, SECONDS).status.success()
}

/// Returns a small tree with a checkpoint, and the numbers of the calls at which a process is
/// killed.
fn to_be_killed(v: Variant, step: usize) -> Option<(Rig, impl Iterator<Item = usize>)> {
    if !has("strace") {
        crate::common::skip("strace is not installed");
        return None;
    }
    let mut opts = MountOpts::new(v.io);
    opts.limit = Duration::from_secs(3600);
    let rig = v.start_with(opts, |dir| {
        sh(dir, "mkdir d; for n in 1 2 3; do echo $n > d/$n; head -c 700000 /dev/urandom > large-$n; done");
    });
    rig.mount.checkpoint();
    let is_long = std::env::var_os("CKPTFS_LONG").is_some();
    Some((rig, (1..).step_by(if is_long { 1 } else { step })))
}

/// A push killed at any of these calls, or at every `step`-th, leaves no snapshot or a complete
/// one, and the next push succeeds.
fn a_push_that_is_killed_at_a_call(v: Variant) {
    let Some((rig, calls)) = to_be_killed(v, 29) else {
        return;
    };
    let expected = tree(rig.path());
    let (mut user, mut killed, mut whole) = (User::new(), 0, 0);
    for call in calls {
        let ended = killed_at(call, &user.command(rig.path(), &["push", "home"]));
        killed += u64::from(!ended);
        if user.log(&rig) == [1] {
            let into = beside(&rig, &format!("into-{call}"));
            user.pull(&rig, "1", &into);
            assert_same(&pulled(&into), &expected);
            if ended {
                break;
            }
            whole += 1;
            user = User::new();
        }
    }
    eprintln!("killed {killed} times, {whole} of them after the snapshot was written");
    assert!(killed > 3);
    if has("restic") {
        user.check();
    }
    rig.mount.ok(&["verify", "--deep"]);
}

/// A pulled tree that is marked whole is complete, and the next pull completes any other.
fn a_pull_that_is_killed_at_a_call(v: Variant) {
    let Some((rig, calls)) = to_be_killed(v, 61) else {
        return;
    };
    let expected = tree(rig.path());
    let (user, mut killed) = (User::new(), 0);
    user.push(&rig, &[]);
    for call in calls {
        let into = beside(&rig, &format!("into-{call}"));
        let pull = ["pull", "home", "--into", into.to_str().expect("UTF-8")];
        let ended = killed_at(call, &user.command(rig.path(), &pull));
        killed += u64::from(!ended);
        let mut get = tool("getfattr", &["--only-values", "-n", "user.ckptfs.export"]);
        let said = run_limited(get.arg(&into), SECONDS).stdout;
        if !said.ends_with(b" whole") {
            assert!(!ended);
            user.pull(&rig, "1", &into);
        }
        assert_same(&pulled(&into), &expected);
        fs::remove_dir_all(&into).expect("removed");
        if ended {
            break;
        }
    }
    eprintln!("killed {killed} times");
    assert!(killed > 3);
    user.check();
}

for_each_variant! { xfs => a_daemon_that_is_killed }

/// The daemon is replaced while it sends the tree: no partial snapshot results.
fn a_daemon_that_is_killed(v: Variant) {
    let mut rig = large(v);
    sh(
        rig.path(),
        "mkdir small; cd small; for n in $(seq 4000); do echo $n > $n; done",
    );
    rig.mount.checkpoint();
    let expected = tree(rig.path());
    let (mut user, mut failed) = (User::new(), 0);
    // Approximate number of bytes read before the worker is replaced.
    for moment in [2_000_000, 12_000_000, 19_000_000] {
        let mut push = user.command(rig.path(), &["push", "home"]);
        let push = push.stdout(Stdio::null()).stderr(Stdio::null());
        let mut push = push.spawn().expect("runs");
        while push.try_wait().expect("its state").is_none() && read_by(push.id()) < moment {
            std::thread::sleep(Duration::from_millis(1));
        }
        rig.mount.replace_worker();
        failed += u64::from(!push.wait().expect("ended").success());
        if user.log(&rig) == [1] {
            let into = beside(&rig, &format!("into-{moment}"));
            user.pull(&rig, "1", &into);
            assert_same(&pulled(&into), &expected);
            user = User::new();
        }
    }
    assert!(failed > 0, "no push was interrupted");
    user.push(&rig, &[]);
    assert_eq!(tree(rig.path()), expected);
}

/// Returns the bytes a process has read (`rchar` in proc(5)).
fn read_by(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let read = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    read.and_then(|count| count.parse().ok()).unwrap_or(0)
}

for_each_variant! { xfs => two_at_once }

fn two_at_once(v: Variant) {
    let rig = large(v);
    let trees = [1, 2].map(|n| {
        rig.mount.checkpoint();
        let tree = tree(rig.path());
        sh(
            rig.path(),
            &format!("echo {n} >> large/{n}; head -c 100000 /dev/urandom > large/new-{n}"),
        );
        tree
    });
    let user = User::new();
    let pushes = [(); 2].map(|()| {
        user.command(rig.path(), &["push", "home"])
            .spawn()
            .expect("runs")
    });
    for mut push in pushes {
        assert!(push.wait().expect("ended").success());
    }
    if has("restic") {
        user.check();
    }
    for (id, expected) in ["1", "2"].into_iter().zip(trees) {
        let into = beside(&rig, id);
        user.pull(&rig, id, &into);
        assert_same(&pulled(&into), &expected);
    }
}

for_each_variant! { xfs => a_disk_that_is_full }

/// The disk of the repository, and the disk of a pull's destination.
fn a_disk_that_is_full(v: Variant) {
    let rig = large(v);
    rig.mount.checkpoint();
    let expected = tree(rig.path());
    let user = User::new();
    let small = SmallTmpfs::mount(&user.dir.path().join("small"), "12m");
    user.add(small.0.join("repository").to_str().expect("UTF-8"));
    let said = fails(&mut user.command(rig.path(), &["push", "home"]), SECONDS);
    assert!(said.contains("No space left"), "{said}");
    assert!(
        user.log(&rig).is_empty(),
        "there is no snapshot of an incomplete tree"
    );
    small.resize("100m");
    user.push(&rig, &[]);
    let full = SmallTmpfs::mount(&user.dir.path().join("full"), "12m");
    let into = full.0.join("into");
    let target = into.to_str().expect("UTF-8").to_owned();
    let ran = run_limited(
        &mut user.command(rig.path(), &["pull", "home", "--into", &target]),
        SECONDS,
    );
    assert!(!ran.status.success());
    assert_ne!(mark(&into), "whole");
    full.resize("100m");
    user.pull(&rig, "latest", &into);
    assert_eq!(mark(&into), "whole");
    assert_same(&pulled(&into), &expected);
}

/// A tmpfs.
struct SmallTmpfs(PathBuf);

impl SmallTmpfs {
    fn mount(at: &Path, size: &str) -> SmallTmpfs {
        fs::create_dir(at).expect("mkdir");
        let size = format!("size={size}");
        succeeds(
            tool("mount", &["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at),
            60,
        );
        SmallTmpfs(at.to_owned())
    }

    fn resize(&self, size: &str) {
        let size = format!("remount,size={size}");
        succeeds(tool("mount", &["-o", &size]).arg(&self.0), 60);
    }
}

impl Drop for SmallTmpfs {
    fn drop(&mut self) {
        run_limited(tool("umount", &["-l"]).arg(&self.0), 60);
    }
}

for_each_variant! { xfs => flipped_bits }

/// One flipped bit in each kind of file, at several offsets: an error, or the complete tree.
fn flipped_bits(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), sample_tree);
    rig.mount.checkpoint();
    let expected = tree(rig.path());
    let user = User::new();
    user.push(&rig, &[]);
    let mut found = 0;
    for kind in ["data", "index", "snapshots", "keys", "config"] {
        let list = sh(&user.repository(), &format!("find {kind} -type f"));
        for (number, path) in list.lines().enumerate() {
            let path = user.repository().join(path);
            let before = fs::read(&path).expect("read");
            for part in [7, 2] {
                let mut flipped = before.clone();
                let at = (flipped.len() / part).min(flipped.len() - 1);
                flipped[at] ^= 4;
                fs::write(&path, &flipped).expect("written");
                let into = beside(&rig, &format!("{kind}-{number}-{part}"));
                let target = into.to_str().expect("UTF-8").to_owned();
                let mut pull = user.command(rig.path(), &["pull", "home", "--into", &target]);
                let ran = run_limited(&mut pull, SECONDS);
                if ran.status.success() {
                    assert_same(&pulled(&into), &expected);
                } else {
                    found += 1;
                    assert!(!into.exists() || mark(&into) != "whole");
                    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
                    assert!(
                        said.contains("Error: ") && !said.contains("panicked"),
                        "{said}"
                    );
                }
            }
            fs::write(&path, &before).expect("written");
        }
    }
    assert!(found >= 5, "{found} of the flips were found");
    user.pull(&rig, "latest", &beside(&rig, "at-last"));
}
