//! External load generators: the filesystem stressors of stress-ng, and fio with verification.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::common::process::is_used_by;
use crate::common::wait::wait_longer;
use crate::common::{has, run_limited, stdout_of, succeeds, tool};

/// The stressors of stress-ng that work on a directory and verify results. Excluded are those that
/// affect the whole machine (`bind-mount`, `fanotify`, which marks every mount, `procfs`, `sysfs`),
/// those unrelated to filesystems (`eventfd`, `ioprio`), and `verity`. Each quarter of the list has
/// some of every kind.
const STRESSORS: [&str; 52] = [
    "access",
    "chdir",
    "copy-file",
    "dirdeep",
    "fallocate",
    "filename",
    "fstat",
    "inode-flags",
    "lease",
    "locka",
    "mmap",
    "readahead",
    "utime",
    "chattr",
    "chmod",
    "dentry",
    "dirmany",
    "fcntl",
    "flock",
    "getdent",
    "inotify",
    "link",
    "lockf",
    "mmapfork",
    "rename",
    "xattr",
    "chown",
    "dir",
    "dnotify",
    "fiemap",
    "fpunch",
    "handle",
    "io",
    "iomix",
    "lockofd",
    "msync",
    "open",
    "seek",
    "symlink",
    "dup",
    "file-ioctl",
    "fsize",
    "hdd",
    "mknod",
    "aio",
    "aiol",
    "revio",
    "rmap",
    "sendfile",
    "splice",
    "sync-file",
    "touch",
];
/// Unsupported by FUSE, which does not forward the ioctl that returns extents.
const NOT_ON_FUSE: [&str; 1] = ["fiemap"];
/// Limits for the writes of a round; the defaults are for whole disks.
const SIZES: [&str; 28] = [
    "--hdd-bytes",
    "16M",
    "--iomix-bytes",
    "16M",
    "--fallocate-bytes",
    "32M",
    "--mmap-bytes",
    "8M",
    "--msync-bytes",
    "4M",
    "--readahead-bytes",
    "16M",
    "--seek-size",
    "16M",
    "--sync-file-bytes",
    "16M",
    "--copy-file-bytes",
    "128M",
    "--chdir-dirs",
    "256",
    "--dentries",
    "512",
    "--dirdeep-inodes",
    "512",
    "--dirdeep-dirs",
    "2",
    "--aio-requests",
    "8",
];
/// Concurrent stressors.
const AT_ONCE: usize = 13;
/// Additional time for stress-ng to clean up its many files.
const CLEAN_UP_SECONDS: u64 = 240;

/// fio jobs with verification: random writes by three I/O engines, and appends, verified block by
/// block after all writes.
const FIO: &str = "
[global]
bs=4k
size=12m
verify=crc32c
verify_fatal=1
do_verify=1
rw=randwrite
group_reporting=1
[psync]
ioengine=psync
numjobs=2
fsync=256
[mmap]
ioengine=mmap
[libaio]
ioengine=libaio
direct=1
iodepth=8
bs=16k
[append]
ioengine=sync
rw=write
bsrange=512-64k
";
const FIO_SECONDS: u64 = 300;

/// Returns the reason to skip a test if one of these programs is missing.
pub fn missing(programs: &[&str]) -> Option<String> {
    programs
        .iter()
        .find_map(|name| (!has(name)).then(|| format!("{name} is not installed (make deps)")))
}

/// Returns the stressors that this version of stress-ng supports.
pub fn stressors() -> Vec<&'static str> {
    let known = stdout_of(&mut tool("stress-ng", &["--stressors"]), 60);
    let known: BTreeSet<&str> = known.split_whitespace().collect();
    let found: Vec<&str> = STRESSORS
        .into_iter()
        .filter(|name| known.contains(name))
        .collect();
    assert!(
        found.len() > STRESSORS.len() / 2,
        "stress-ng has too few of the stressors: {known:?}"
    );
    found
}

/// Runs stressors for some seconds each, several concurrently. A stressor that fails or is skipped
/// must also do so in a plain directory.
pub fn stress(dir: &Path, plain: &Path, names: &[&str], seconds: u64) {
    for names in names.chunks(AT_ONCE) {
        let (said, failed) = run(dir, names, seconds);
        for name in failed {
            let name = names.iter().find(|known| **known == name).copied();
            let alone = name.map(|name| (name, run(plain, &[name], seconds).1));
            let excused = alone
                .as_ref()
                .is_some_and(|(name, failed)| NOT_ON_FUSE.contains(name) || !failed.is_empty());
            assert!(
                excused,
                "stress-ng {name:?} fails, but passes in a plain directory:\n{said}"
            );
        }
    }
}

/// Returns the output of stress-ng and the names of failed or skipped stressors, or the empty name
/// if the output does not identify them.
fn run(dir: &Path, names: &[&str], seconds: u64) -> (String, BTreeSet<String>) {
    let inside = dir.join("stress-ng");
    fs::create_dir(&inside).unwrap_or_else(|error| panic!("{}: {error}", inside.display()));
    let mut command = tool(
        "stress-ng",
        &[
            "--verify",
            "--mmap-file",
            "--timeout",
            &seconds.to_string(),
            "--temp-path",
        ],
    );
    command.arg(&inside).args(SIZES);
    for name in names {
        command.arg(format!("--{name}")).arg("1");
    }
    let output = run_limited(command.current_dir(&inside), seconds + CLEAN_UP_SECONDS);
    // A process blocked in sync(2) on the machine's disks outlives the stress-ng that started it.
    wait_longer("the stressors have ended", CLEAN_UP_SECONDS, || {
        !is_used_by("stress-ng", dir)
    });
    let said = format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let mut failed: BTreeSet<String> = said.lines().filter_map(complaint).collect();
    if !output.status.success() && failed.is_empty() {
        failed.insert(String::new());
    }
    fs::remove_dir_all(&inside).unwrap_or_else(|error| panic!("{}: {error}", inside.display()));
    (said, failed)
}

/// Returns the stressor that failed in a line such as `stress-ng: fail:  [123] link: what failed`.
fn complaint(line: &str) -> Option<String> {
    let bad = line.contains(" fail: ")
        || line.contains("skipping stress")
        || line.contains("terminated on signal");
    let (_, rest) = line.split_once("] ").filter(|_| bad)?;
    Some(rest.split_once(':')?.0.trim().to_owned())
}

/// Writes and verifies with fio, which fails on a wrong block.
pub fn fio(dir: &Path) {
    let inside = dir.join("fio");
    fs::create_dir(&inside).unwrap();
    fs::write(inside.join("jobs.fio"), FIO).unwrap();
    succeeds(
        tool("fio", &["--directory=.", "jobs.fio"]).current_dir(&inside),
        FIO_SECONDS,
    );
}

#[test]
fn complaints_are_found() {
    assert_eq!(
        complaint("stress-ng: fail:  [12] io-uring: completion opcode=21").as_deref(),
        Some("io-uring")
    );
    assert_eq!(
        complaint("stress-ng: info:  [1] verity: not supported, skipping stress test").as_deref(),
        Some("verity")
    );
    assert_eq!(
        complaint("stress-ng: info:  [1] dispatching hogs: 1 io"),
        None
    );
}
