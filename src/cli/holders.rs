//! Who uses a mount, so that "in use" can be said with names. Linux only: elsewhere nobody is found.

use std::fs;
use std::path::{Path, PathBuf};

use crate::sys::host;

/// How a process uses a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// Its working directory is there.
    WorkingDirectory,
    /// Its root directory is there, or its program.
    Program,
    /// It has this open.
    Open(PathBuf),
    /// It has this mapped.
    Mapped(PathBuf),
}

/// A process that uses a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The first use that was found; one that is more than a working directory before that.
    pub by: Use,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Holder { pid, name, by } = self;
        match by {
            Use::WorkingDirectory => write!(f, "{name} (pid {pid}) has its working directory there"),
            Use::Program => write!(f, "{name} (pid {pid}) runs from there"),
            Use::Open(path) => write!(f, "{name} (pid {pid}) has {} open", path.display()),
            Use::Mapped(path) => write!(f, "{name} (pid {pid}) has {} mapped", path.display()),
        }
    }
}

/// The processes that use the mount with number `mount_id` and device `dev`, as far as we may look.
pub fn of(mount_id: u64, dev: u64) -> Vec<Holder> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != std::process::id()).filter_map(|pid| holder(pid, mount_id, dev)).collect()
}

/// This process's parent, its parent, and so on.
pub fn ancestors() -> Vec<u32> {
    let mut found = Vec::new();
    let mut pid = std::process::id();
    while let Some(parent) = parent(pid).filter(|parent| *parent != 0 && !found.contains(parent)) {
        found.push(parent);
        pid = parent;
    }
    found
}

fn holder(pid: u32, mount_id: u64, dev: u64) -> Option<Holder> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let is_there = |link: &str| host::mount_id(&process.join(link)) == Ok(mount_id);
    let by = open_file(&process, mount_id)
        .map(Use::Open)
        .or_else(|| mapping(&process, dev).map(Use::Mapped))
        .or_else(|| (is_there("root") || is_there("exe")).then_some(Use::Program))
        .or_else(|| is_there("cwd").then_some(Use::WorkingDirectory))?;
    let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
    Some(Holder { pid, name: name.trim_end().to_owned(), by })
}

/// A descriptor on the mount (proc_pid_fdinfo(5), `mnt_id`).
fn open_file(process: &Path, mount_id: u64) -> Option<PathBuf> {
    let wanted = format!("mnt_id:\t{mount_id}");
    fs::read_dir(process.join("fdinfo")).ok()?.filter_map(Result::ok).find_map(|entry| {
        let info = fs::read_to_string(entry.path()).ok()?;
        info.lines().any(|line| line == wanted).then(|| fs::read_link(process.join("fd").join(entry.file_name())).unwrap_or_default())
    })
}

/// A mapped file of the device (proc_pid_maps(5): range, permissions, offset, device, inode, path).
fn mapping(process: &Path, dev: u64) -> Option<PathBuf> {
    let wanted = format!("{:02x}:{:02x}", crate::sys::device_major(dev), crate::sys::device_minor(dev));
    let maps = fs::read(process.join("maps")).ok()?;
    maps.split(|byte| *byte == b'\n').find_map(|line| {
        let line = String::from_utf8_lossy(line);
        let mut fields = line.splitn(6, ' ');
        (fields.nth(3)? == wanted).then(|| PathBuf::from(fields.nth(1).unwrap_or_default().trim_start()))
    })
}

/// Field 4 of proc_pid_stat(5), counted after the name, which may hold anything.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    std::str::from_utf8(stat.get(name_end + 1..)?).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::linux::fs::MetadataExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_child_is_found_by_what_it_has_open() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().canonicalize().expect("path").join("held");
        let file = fs::File::create(&path).expect("create");
        let mut child = Command::new("sleep").arg("10").stdin(Stdio::from(file)).spawn().expect("spawn");
        let mount_id = host::mount_id(&path).expect("mount id");
        let found = holder(child.id(), mount_id, fs::metadata(&path).expect("stat").st_dev());
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert_eq!(found.map(|holder| holder.by), Some(Use::Open(path)));
    }

    #[test]
    fn our_parent_is_our_first_ancestor() {
        assert_eq!(ancestors().first().copied(), Some(std::os::unix::process::parent_id()));
    }
}
