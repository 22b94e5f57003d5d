//! Processes that use a mount, or the directory below it, for messages; found on Linux only.
//!
//! A process is **below a mount** if it opened something in the directory before the mount, or uses
//! the filesystem through another mount (a container with a bind mount). It may have its working
//! directory, an open file or a mapping there. Its changes bypass the mount.
//!
//! No file of a process is opened and no filesystem receives a request: only `/proc` is read.
//! Reading the mappings of a process can block without limit, because a process that serves a
//! filesystem can cause its own `mmap_lock` to be held. Threads do this, and the wait for them is
//! limited.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use ckptfs_api::{STORE_NAME, host_path};
use ckptfs_store::layout::TREE_PATH;
use ckptfs_sys::{self as sys, MountPoint, host};
use ckptfs_ui::mounts;
use ckptfs_ui::output::{Out, escape};

/// Threads that inspect processes: one may block.
const THREADS: usize = 4;
/// Limit of the wait for one process.
const STUCK: Duration = Duration::from_millis(300);
/// Limit of a search that should be complete.
pub const THOROUGH: Duration = Duration::from_secs(2);
/// Limit of a search that delays another operation.
pub const QUICK: Duration = Duration::from_millis(200);
/// Limit of the processes that are named.
const SHOWN_MAX: usize = 5;

/// A use of a mount by a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "use", content = "path", rename_all = "kebab-case")]
pub enum Use {
    /// Its working directory.
    WorkingDirectory,
    /// Its root directory, or its program.
    Program,
    /// An open file.
    Open(#[serde(with = "host_path")] PathBuf),
    /// A mapped file.
    Mapped(#[serde(with = "host_path")] PathBuf),
    /// A loop device with this backing file.
    Device(#[serde(with = "host_path")] PathBuf),
}

/// A process that uses a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountUser {
    /// Process id; 0: the kernel.
    pub pid: u32,
    /// Name of its command.
    pub name: String,
    /// The first use that was found; a working directory last.
    #[serde(flatten)]
    pub by: Use,
}

impl std::fmt::Display for MountUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let MountUser { pid, name, by } = self;
        // Other users choose both.
        let name = escape(name.as_bytes());
        let shown = |path: &Path| escape(path.as_os_str().as_bytes());
        match by {
            Use::WorkingDirectory => {
                write!(f, "{name} (pid {pid}) has its working directory there")
            }
            Use::Program => write!(f, "{name} (pid {pid}) runs from there"),
            Use::Open(path) => write!(f, "{name} (pid {pid}) has {} open", shown(path)),
            Use::Mapped(path) => write!(f, "{name} (pid {pid}) has {} mapped", shown(path)),
            Use::Device(path) => write!(f, "{name} is a device of {}", shown(path)),
        }
    }
}

/// Formats some processes, and the number of the others.
pub fn named<'a>(holders: impl ExactSizeIterator<Item = &'a MountUser>) -> String {
    let more = holders.len().saturating_sub(SHOWN_MAX);
    let mut named: Vec<String> = holders.take(SHOWN_MAX).map(MountUser::to_string).collect();
    named.extend((more > 0).then(|| format!("and {more} more")));
    named.join(", ")
}

/// Formats the warning about processes that use the directory below the mount.
pub fn passed_by<'a>(holders: impl ExactSizeIterator<Item = &'a MountUser>) -> String {
    format!(
        "these have the directory under the mount open, and what they change there bypasses the mount: {}",
        named(holders)
    )
}

/// Warns about processes below the mount, except waiting shells, which another message asks to
/// enter it.
pub fn warn(below: &[MountUser], out: &Out) {
    let waiting = ancestors();
    let others: Vec<&MountUser> = below
        .iter()
        .filter(|holder| !(waiting.contains(&holder.pid) && holder.by == Use::WorkingDirectory))
        .collect();
    if !others.is_empty() {
        out.warn(&passed_by(others.into_iter()));
    }
}

/// Warns if the working directory of this process, and of the shell that started it, is the
/// directory below a mount of ckptfs. Costs two system calls.
pub fn warn_if_below(out: &Out) {
    let Ok(cwd) = std::env::current_dir() else {
        return;
    };
    let (Ok(here), Ok(seen)) = (host::mount_id(Path::new(".")), host::mount_id(&cwd)) else {
        return;
    };
    if here == seen {
        return;
    }
    if let Some(mount) = sys::mounts()
        .unwrap_or_default()
        .iter()
        .find(|mount| mount.id == seen && mount.is_ours())
    {
        let at = mount.at.display();
        out.warn(&format!(
            "the working directory is still the one under the mount at {at}; to enter the mount: cd ."
        ));
    }
}

/// A file of the tree that a process may write to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WritableFile {
    /// Inode number, if reported.
    pub ino: Option<u64>,
    /// Path in the tree.
    pub path: PathBuf,
}

/// Result of a search.
#[derive(Debug, Default)]
pub struct MountUsers {
    /// Processes, by id.
    pub holders: Vec<MountUser>,
    /// Files that are open for writing, or mapped.
    pub files: HashSet<WritableFile>,
    /// Every process that may be inspected was inspected.
    pub complete: bool,
}

/// A mount through which the tree is visible.
#[derive(Debug)]
struct TreeMount {
    mount: u64,
    /// Path of the tree, or of the part visible there.
    at: PathBuf,
    /// Path of that part in the tree.
    below: PathBuf,
}

/// A tree, and every mount through which it is visible.
#[derive(Debug)]
pub struct VisibleTree {
    sights: Vec<TreeMount>,
    /// The device, as in mappings.
    dev: u64,
    /// Path of the tree on its filesystem.
    root: PathBuf,
    /// No other mounts exist.
    complete: bool,
    /// Path of the files whose mount the kernel does not report (backing files of devices); empty:
    /// any.
    at: PathBuf,
}

/// Returns the part of the tree at `root` of device `dev` that is visible through a mount.
fn sight(mount: &MountPoint, dev: u64, root: &Path) -> Option<TreeMount> {
    let (at, below) = match root.strip_prefix(&mount.root) {
        Ok(rest) => (mount.at.join(rest), PathBuf::new()),
        Err(_) => (
            mount.at.clone(),
            mount.root.strip_prefix(root).ok()?.to_owned(),
        ),
    };
    (mount.dev == dev).then_some(TreeMount {
        mount: mount.id,
        at,
        below,
    })
}

impl VisibleTree {
    /// Returns the tree of all files on a mount.
    pub fn on(mount: &MountPoint) -> VisibleTree {
        VisibleTree::on_all(mount, &[])
    }

    /// Like [`VisibleTree::on`], of a mount that is in other mount tables also.
    pub fn on_all(mount: &MountPoint, others: &[(u32, MountPoint)]) -> VisibleTree {
        let all = std::iter::once(mount).chain(others.iter().map(|(_, other)| other));
        let sights = all
            .map(|one| TreeMount {
                mount: one.id,
                at: "/".into(),
                below: PathBuf::new(),
            })
            .collect();
        VisibleTree {
            sights,
            dev: mount.dev,
            root: "/".into(),
            complete: true,
            at: mount.at.clone(),
        }
    }

    /// Returns the tree of all files on a detached mount, by its id and device.
    pub fn on_detached((id, dev): (u64, u64), at: &Path) -> VisibleTree {
        let below = PathBuf::new();
        let sight = |mount, at| TreeMount { mount, at, below };
        VisibleTree {
            sights: vec![sight(id, "/".into())],
            dev,
            root: "/".into(),
            complete: true,
            at: at.to_owned(),
        }
    }

    /// Returns the directory below the mount that serves `backing`, as its filesystem is mounted
    /// here.
    pub fn below(backing: &Path) -> Option<VisibleTree> {
        let table: Vec<MountPoint> = sys::mounts()
            .ok()?
            .into_iter()
            .filter(|mount| !(mount.is_ours() && mount.at == backing))
            .collect();
        let base = mounts::containing(&table, backing)?;
        let root = base.root.join(backing.strip_prefix(&base.at).ok()?);
        let sights = table
            .iter()
            .filter_map(|mount| sight(mount, base.dev, &root))
            .collect();
        Some(VisibleTree {
            sights,
            dev: base.dev,
            root,
            complete: false,
            at: PathBuf::new(),
        })
    }

    /// Reports whether the tree is visible through another mount.
    pub fn is_elsewhere(&self) -> bool {
        self.sights.len() > 1
    }

    /// Adds the mounts of every accessible namespace that are found within `patience`.
    fn everywhere(mut self, patience: Duration) -> VisibleTree {
        // Many namespaces with many mounts each may exist.
        let ((tell, told), (dev, root)) = (mpsc::channel(), (self.dev, self.root.clone()));
        let look = move || {
            let others =
                sys::mounts_of_all(|mount| sight(mount, dev, &root).is_some()).unwrap_or_default();
            // The receiver may be gone.
            let _ = tell.send(
                others
                    .iter()
                    .filter_map(|(_, mount)| sight(mount, dev, &root))
                    .collect::<Vec<TreeMount>>(),
            );
        };
        let others = std::thread::Builder::new()
            .spawn(look)
            .ok()
            .and_then(|_| told.recv_timeout(patience).ok());
        self.complete = others.is_some();
        for other in others.into_iter().flatten() {
            // Of a mount in both tables, the paths of our table count.
            if !self.sights.iter().any(|known| known.mount == other.mount) {
                self.sights.push(other);
            }
        }
        self
    }

    /// Returns the path in the tree of a path from the kernel; `mount`: the mount that it is on, if
    /// known.
    fn place(&self, path: &Path, mount: Option<u64>) -> Option<PathBuf> {
        let sights = self
            .sights
            .iter()
            .filter(|sight| mount.is_none_or(|mount| sight.mount == mount));
        let mut places = sights.filter_map(|sight| {
            path.strip_prefix(&sight.at)
                .ok()
                .map(|rest| sight.below.join(rest))
        });
        places.find_map(|place| match place.strip_prefix(TREE_PATH) {
            // In a branch.
            Ok(inside) => Some(inside.to_owned()),
            Err(_) => (!place.starts_with(STORE_NAME)).then_some(place),
        })
    }

    /// Returns the processes that use the tree, except `except` and this one, as far as permissions
    /// allow and as many as can be inspected within `patience`.
    pub fn users(self, except: &[u32], patience: Duration) -> MountUsers {
        let Ok(processes) = fs::read_dir("/proc") else {
            return MountUsers::default();
        };
        let pids =
            processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        let pids: Arc<Vec<u32>> = Arc::new(
            pids.filter(|pid| *pid != std::process::id() && !except.contains(pid))
                .collect(),
        );
        let until = Instant::now() + patience;
        let tree = if self.complete {
            self
        } else {
            self.everywhere(patience)
        };
        let (next, tree) = (Arc::new(AtomicUsize::new(0)), Arc::new(tree));
        let (tell, told) = mpsc::channel();
        for _ in 0..THREADS.min(pids.len()) {
            let (pids, next, tree, tell) = (
                Arc::clone(&pids),
                Arc::clone(&next),
                Arc::clone(&tree),
                tell.clone(),
            );
            // With fewer threads, less is found.
            let _ = std::thread::Builder::new().spawn(move || {
                while let Some(pid) = pids.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut files = HashSet::new();
                    let holder = tree.user(*pid, &mut files);
                    if tell.send((holder, files)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(tell);
        let (mut found, mut looked_at) = (tree.devices(), 0);
        while let Ok((holder, files)) =
            told.recv_timeout(STUCK.min(until.saturating_duration_since(Instant::now())))
        {
            found.holders.extend(holder);
            found.files.extend(files);
            looked_at += 1;
        }
        found.complete = tree.complete && looked_at == pids.len();
        found.holders.sort_by_key(|holder| holder.pid);
        found
    }

    /// Returns how a process uses the tree, and adds the files that it may write to.
    fn user(&self, pid: u32, files: &mut HashSet<WritableFile>) -> Option<MountUser> {
        let tasks = PathBuf::from(format!("/proc/{pid}/task"));
        let mut by: [Option<Use>; 4] = Default::default();
        for thread in distinct(&tasks, pid) {
            let thread = tasks.join(thread.to_string());
            let uses = [
                self.open_files(&thread, files).map(Use::Open),
                self.mappings(&thread, files).map(Use::Mapped),
                (self.is_at(&thread.join("root")) || self.is_at(&thread.join("exe")))
                    .then_some(Use::Program),
                self.is_at(&thread.join("cwd"))
                    .then_some(Use::WorkingDirectory),
            ];
            by.iter_mut()
                .zip(uses)
                .for_each(|(by, found)| *by = by.take().or(found));
        }
        let by = by.into_iter().flatten().next()?;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Some(MountUser {
            pid,
            name: name.trim_end().to_owned(),
            by,
        })
    }

    /// Reports whether a link of a process leads into the tree. This sends no request to a
    /// filesystem, and reads the mount only if the path may be in the tree.
    fn is_at(&self, link: &Path) -> bool {
        let path = fs::read_link(link)
            .ok()
            .filter(|path| self.place(path, None).is_some());
        path.is_some_and(|path| {
            host::mount_id(link).is_ok_and(|mount| self.place(&path, Some(mount)).is_some())
        })
    }

    /// Inspects descriptors (proc_pid_fdinfo(5)); returns the first path.
    fn open_files(&self, process: &Path, files: &mut HashSet<WritableFile>) -> Option<PathBuf> {
        let mut first = None;
        for entry in fs::read_dir(process.join("fd"))
            .ok()?
            .filter_map(Result::ok)
        {
            let Some(path) = fs::read_link(entry.path())
                .ok()
                .filter(|path| self.place(path, None).is_some())
            else {
                continue;
            };
            let Ok(info) = fs::read_to_string(process.join("fdinfo").join(entry.file_name()))
            else {
                continue;
            };
            let field = |name: &str| {
                info.lines()
                    .find_map(|line| line.strip_prefix(name))
                    .map(str::trim_ascii)
            };
            let mount = field("mnt_id:").and_then(|id| id.parse().ok());
            let Some(place) = mount.and_then(|mount| self.place(&path, Some(mount))) else {
                continue;
            };
            // The last octal digit is the access mode: 1 and 2 permit writing.
            if field("flags:").is_some_and(|flags| flags.ends_with(['1', '2'])) {
                files.insert(WritableFile {
                    ino: field("ino:").and_then(|ino| ino.parse().ok()),
                    path: place,
                });
            }
            first.get_or_insert(path);
        }
        first
    }

    /// Inspects mapped files of the device (proc_pid_maps(5): range, permissions, offset, device,
    /// inode, path); returns the first path.
    fn mappings(&self, process: &Path, files: &mut HashSet<WritableFile>) -> Option<PathBuf> {
        let wanted = format!(
            "{:02x}:{:02x}",
            sys::device_major(self.dev),
            sys::device_minor(self.dev)
        );
        let maps = fs::read(process.join("maps")).ok()?;
        let mut first = None;
        for line in maps.split(|byte| *byte == b'\n') {
            let mut fields = line.splitn(6, |byte| *byte == b' ');
            if fields.nth(3) != Some(wanted.as_bytes()) {
                continue;
            }
            let ino = fields
                .next()
                .and_then(|ino| std::str::from_utf8(ino).ok()?.parse().ok());
            // A newline in a name is shown as `\012`, which a name may also contain: the inode
            // number decides.
            let text = fields.next().unwrap_or_default().trim_ascii_start();
            let path = bytes_path(text);
            for path in [&path, &bytes_path(&with_line_ends(text))] {
                let place = self.place(path, None);
                files.extend(place.map(|path| WritableFile { ino, path }));
            }
            first = first.or_else(|| self.place(&path, None).map(|_| path));
        }
        first
    }

    /// Finds loop devices of files: their creator has ended, and the kernel writes to the file.
    fn devices(&self) -> MountUsers {
        let mut found = MountUsers::default();
        for device in fs::read_dir("/sys/block")
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
        {
            let Ok(text) = fs::read(device.path().join("loop/backing_file")) else {
                continue;
            };
            let path = bytes_path(text.strip_suffix(b"\n").unwrap_or(&text));
            if let Some(place) = self
                .place(&path, None)
                .filter(|_| path.starts_with(&self.at))
            {
                let name = device.file_name().to_string_lossy().into_owned();
                found.files.insert(WritableFile {
                    ino: None,
                    path: place,
                });
                found.holders.push(MountUser {
                    pid: 0,
                    name,
                    by: Use::Device(path),
                });
            }
        }
        found
    }
}

fn with_line_ends(text: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((&first, after)) = rest.split_first() {
        let end = after.strip_prefix(b"012").filter(|_| first == b'\\');
        bytes.push(if end.is_some() { b'\n' } else { first });
        rest = end.unwrap_or(after);
    }
    bytes
}

fn bytes_path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// Returns the threads of a process with separate open files, mappings or directories; usually one.
fn distinct(tasks: &Path, pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    for entry in fs::read_dir(tasks)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
    {
        let thread = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if let Some(thread) =
            thread.filter(|thread| !found.iter().any(|known| host::same_tables(*known, *thread)))
        {
            found.push(thread);
        }
    }
    found
}

/// Returns the parent of this process, its parent, and further ancestors.
pub fn ancestors() -> Vec<u32> {
    let mut found = Vec::new();
    let mut pid = std::process::id();
    while let Some(parent) = parent(pid).filter(|parent| *parent != 0 && !found.contains(parent)) {
        found.push(parent);
        pid = parent;
    }
    found
}

/// Returns field 4 of proc_pid_stat(5), counted from the name, which may contain any character.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    std::str::from_utf8(stat.get(name_end + 1..)?)
        .ok()?
        .split_ascii_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_child_is_found_by_what_it_has_open() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().canonicalize().expect("path").join("held");
        let file = fs::File::create(&path).expect("create");
        let mut child = Command::new("sleep")
            .arg("10")
            .stdin(Stdio::from(file))
            .spawn()
            .expect("spawn");
        let tree = VisibleTree::below(path.parent().expect("directory")).expect("its mount");
        let mut files = HashSet::new();
        let found = tree.user(child.id(), &mut files);
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert_eq!(found.map(|holder| holder.by), Some(Use::Open(path)));
        assert_eq!(
            files.into_iter().map(|file| file.path).collect::<Vec<_>>(),
            [Path::new("held")]
        );
    }

    #[test]
    fn our_parent_is_our_first_ancestor() {
        assert_eq!(
            ancestors().first().copied(),
            Some(std::os::unix::process::parent_id())
        );
    }
}
