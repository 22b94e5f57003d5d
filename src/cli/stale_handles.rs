//! Processes that still use files that a restore has replaced.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::mount_users::{MountUser, Use};

/// Time limit of the search.
const LOOK_MAX: Duration = Duration::from_millis(500);
/// Limit of the reported processes.
const TOLD_MAX: usize = 8;

/// Returns the processes that have one of these files of the tree at `root` open, as another inode
/// than the current one: they read and write the earlier file. The result has one file of each
/// process, and up to [`TOLD_MAX`] processes, as far as permissions and [`LOOK_MAX`] allow.
pub fn holders(root: &Path, files: &HashSet<PathBuf>) -> Vec<MountUser> {
    let began = Instant::now();
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let in_time = pids
        .filter(|pid| *pid != std::process::id())
        .take_while(|_| began.elapsed() < LOOK_MAX);
    // The daemon has files of the directory below the mount open, under the same names.
    let Ok(dev) = fs::metadata(root).map(|found| found.dev()) else {
        return Vec::new();
    };
    in_time
        .filter_map(|pid| replaced_file(pid, root, dev, files))
        .take(TOLD_MAX)
        .collect()
}

fn replaced_file(pid: u32, root: &Path, dev: u64, files: &HashSet<PathBuf>) -> Option<MountUser> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let found = fs::read_dir(process.join("fd"))
        .ok()?
        .filter_map(Result::ok)
        .find_map(|entry| {
            let link = fs::read_link(entry.path()).ok()?;
            // proc_pid_fd(5): the kernel appends this for a file without a name.
            let bytes = link.as_os_str().as_bytes();
            let path = PathBuf::from(OsStr::from_bytes(
                bytes.strip_suffix(b" (deleted)").unwrap_or(bytes),
            ));
            if !path
                .strip_prefix(root)
                .is_ok_and(|below| files.contains(below))
            {
                return None;
            }
            let (held, there) = (
                fs::metadata(entry.path()).ok()?,
                fs::symlink_metadata(&path).ok(),
            );
            (held.dev() == dev && there.is_none_or(|there| there.ino() != held.ino()))
                .then_some(path)
        })?;
    let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
    Some(MountUser {
        pid,
        name: name.trim_end().to_owned(),
        by: Use::Open(found),
    })
}
