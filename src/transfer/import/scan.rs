//! Scans a directory with several threads: names and attributes, no content.

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use super::skipped::{SkipReason, SkippedPath};
use crate::dirs::open_below;
use ckptfs_api::{TreePath, is_snapdir_inode};
use ckptfs_store::layout::STORE_NAME;
use ckptfs_sys::lock::{Condvar, Mutex};
use ckptfs_sys::{self as sys, Errno, Kind, OpenKind, Stat, SysResult};

/// Directory of snapshot views in the root of a served tree.
const VIEWS_NAME: &[u8] = b".snapshots";

/// Set-user-id and set-group-id (inode(7)).
const SET_ID: u32 = 0o6000;

/// A name in a directory, and its inode.
#[derive(Clone, Debug)]
pub struct ScanEntry {
    /// The name.
    pub name: Vec<u8>,
    /// The attributes of the inode.
    pub stat: Stat,
}

/// A scanned directory.
#[derive(Debug)]
pub struct Listing {
    /// Its path below the root.
    pub path: Vec<u8>,
    /// Its entries, sorted by name.
    pub names: Vec<ScanEntry>,
}

/// A scanned tree.
#[derive(Debug)]
pub struct Scan {
    /// Its root.
    pub root: Stat,
    /// All its directories, sorted by path.
    pub dirs: Vec<Listing>,
    /// Paths that are missing from `dirs`.
    pub left: Vec<SkippedPath>,
}

impl Scan {
    /// Returns every path except the root, in no defined order.
    pub fn paths(&self) -> impl Iterator<Item = (Vec<u8>, &ScanEntry)> {
        self.dirs.iter().flat_map(|dir| {
            dir.names
                .iter()
                .map(|found| (join(&dir.path, &found.name), found))
        })
    }

    /// Returns the directory at a path.
    pub fn dir(&self, path: &[u8]) -> Option<&Listing> {
        let at = self
            .dirs
            .binary_search_by(|dir| dir.path.as_slice().cmp(path))
            .ok()?;
        self.dirs.get(at)
    }

    /// Returns paths that could not be read: an import leaves them and everything below them
    /// unchanged.
    pub fn unread(&self) -> HashSet<&[u8]> {
        self.left
            .iter()
            .filter(|left| left.why.is_missed())
            .map(|left| left.path.0.as_slice())
            .collect()
    }

    /// Replaces owners and clears set-id bits, as
    /// [`ExportEntry::of_stranger`](ckptfs_api::ExportEntry::of_stranger) does.
    pub fn of_stranger(mut self) -> Scan {
        let (uid, gid) = sys::ids();
        let stats = self
            .dirs
            .iter_mut()
            .flat_map(|dir| &mut dir.names)
            .map(|found| &mut found.stat);
        for stat in stats.chain([&mut self.root]) {
            (stat.uid, stat.gid, stat.mode) = (uid, gid, stat.mode & !SET_ID);
        }
        self
    }

    /// Returns the numbers of inodes by kind.
    pub fn count(&self) -> InodeCounts {
        let mut count = InodeCounts {
            dirs: 1,
            ..InodeCounts::default()
        };
        for found in self.dirs.iter().flat_map(|dir| &dir.names) {
            match found.stat.kind {
                Kind::Dir => count.dirs += 1,
                Kind::File => {
                    count.files += 1;
                    count.bytes += found.stat.size;
                }
                _ => count.others += 1,
            }
        }
        count
    }
}

/// The numbers of inodes in a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct InodeCounts {
    /// Names of regular files.
    pub files: u64,
    /// Directories, including the root.
    pub dirs: u64,
    /// Symbolic links, FIFOs, sockets, devices.
    pub others: u64,
    /// Total size of the files, in bytes.
    pub bytes: u64,
}

/// Appends a name to a path.
pub fn join(above: &[u8], name: &[u8]) -> Vec<u8> {
    if above.is_empty() {
        name.to_vec()
    } else {
        [above, b"/", name].concat()
    }
}

/// Directories that remain to be listed.
#[derive(Default)]
struct DirQueue {
    dirs: Vec<Vec<u8>>,
    busy: usize,
}

struct Scanning<'a> {
    root: &'a OwnedFd,
    device: u64,
    queue: Mutex<DirQueue>,
    more: Condvar,
    done: Mutex<(Vec<Listing>, Vec<SkippedPath>)>,
}

/// Scans the tree below `root`, which is open for reading. The scan follows no symbolic link,
/// enters no other filesystem, and leaves out ckptfs stores and views.
///
/// # Errors
/// Those of reading the root.
pub fn scan(root: &OwnedFd, threads: usize) -> SysResult<Scan> {
    let stat = sys::stat_fd(root)?;
    sys::list_dir(&open_below(root, b"", OpenKind::Dir)?)?;
    let queue = DirQueue {
        dirs: vec![Vec::new()],
        busy: 0,
    };
    let scanning = Scanning {
        root,
        device: stat.dev,
        queue: Mutex::new(queue),
        more: Condvar::default(),
        done: Mutex::default(),
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // If no thread can be created, this one does all the work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, || scanning.work());
        }
        scanning.work();
    });
    let (mut dirs, mut left) = std::mem::take(&mut *scanning.done.lock());
    dirs.sort_by(|a, b| a.path.cmp(&b.path));
    left.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(Scan {
        root: stat,
        dirs,
        left,
    })
}

impl Scanning<'_> {
    fn work(&self) {
        let (mut listed, mut left) = (Vec::new(), Vec::new());
        while let Some(path) = self.take() {
            let mut below = Vec::new();
            match self.list(&path, &mut below, &mut left) {
                Ok(listing) => listed.push(listing),
                Err(errno) => left.push(SkippedPath {
                    path: TreePath(path),
                    why: SkipReason::of(errno),
                }),
            }
            self.give(below);
        }
        let mut done = self.done.lock();
        done.0.append(&mut listed);
        done.1.append(&mut left);
    }

    /// Returns the next directory; waits while other threads may find more.
    fn take(&self) -> Option<Vec<u8>> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(path) = queue.dirs.pop() {
                queue.busy += 1;
                return Some(path);
            }
            if queue.busy == 0 {
                return None;
            }
            self.more.wait(&mut queue);
        }
    }

    fn give(&self, mut below: Vec<Vec<u8>>) {
        let mut queue = self.queue.lock();
        queue.busy -= 1;
        queue.dirs.append(&mut below);
        if queue.busy == 0 || queue.dirs.len() > 1 {
            self.more.notify_all();
        }
    }

    fn list(
        &self,
        path: &[u8],
        below: &mut Vec<Vec<u8>>,
        left: &mut Vec<SkippedPath>,
    ) -> SysResult<Listing> {
        let dir = open_below(self.root, path, OpenKind::Dir)?;
        let mut names = Vec::new();
        for entry in sys::list_new_dir(&dir)? {
            let mut leave = |why| {
                left.push(SkippedPath {
                    path: TreePath(join(path, &entry.name)),
                    why,
                })
            };
            let stat = match sys::stat_at(&dir, &entry.name) {
                // The name was removed after it was listed.
                Err(Errno::ENOENT) => continue,
                Err(errno) => {
                    leave(SkipReason::of(errno));
                    continue;
                }
                Ok(stat) => stat,
            };
            if is_ours(path, &entry.name, &dir) {
                leave(SkipReason::History);
                continue;
            }
            if stat.kind == Kind::Dir {
                if stat.dev != self.device {
                    leave(SkipReason::OtherFilesystem);
                    continue;
                }
                below.push(join(path, &entry.name));
            }
            names.push(ScanEntry {
                name: entry.name,
                stat,
            });
        }
        names.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Listing {
            path: path.to_vec(),
            names,
        })
    }
}

/// Reports whether a name is reserved by ckptfs, or is a nested store.
fn is_ours(path: &[u8], name: &[u8], dir: &OwnedFd) -> bool {
    let store = name == STORE_NAME.as_bytes();
    let shown = || sys::stat_at(dir, name).is_ok_and(|stat| is_snapdir_inode(stat.ino));
    if path.is_empty() && (store || name == VIEWS_NAME || shown()) {
        return true;
    }
    store && sys::open_dir_at(dir, name).is_ok_and(|store| sys::host::holds(store, "format"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_read_by_several_threads_without_what_is_ours() {
        let dir = tempfile::tempdir().expect("directory");
        for path in [
            "a/b/c",
            "d",
            ".ckptfs",
            "d/.ckptfs",
            "e/.ckptfs",
            ".snapshots/1",
        ] {
            std::fs::create_dir_all(dir.path().join(path)).expect("mkdir");
        }
        for path in [
            "f",
            "a/g",
            "a/b/c/h",
            ".ckptfs/journal",
            "d/.ckptfs/format",
            "e/.ckptfs/mine",
        ] {
            std::fs::write(dir.path().join(path), path).expect("write");
        }
        let root = sys::open_root(dir.path()).expect("open");
        let one = scan(&root, 1).expect("scan");
        for scan in [&one, &scan(&root, 4).expect("scan")] {
            let mut paths: Vec<String> = scan
                .paths()
                .map(|(path, _)| String::from_utf8(path).expect("text"))
                .collect();
            paths.sort();
            assert_eq!(
                paths,
                [
                    "a",
                    "a/b",
                    "a/b/c",
                    "a/b/c/h",
                    "a/g",
                    "d",
                    "e",
                    "e/.ckptfs",
                    "e/.ckptfs/mine",
                    "f"
                ]
            );
            let left: Vec<(&[u8], &SkipReason)> = scan
                .left
                .iter()
                .map(|left| (left.path.0.as_slice(), &left.why))
                .collect();
            assert_eq!(
                left,
                [
                    (b".ckptfs".as_slice(), &SkipReason::History),
                    (b".snapshots", &SkipReason::History),
                    (b"d/.ckptfs", &SkipReason::History)
                ]
            );
            assert_eq!(
                scan.count(),
                InodeCounts {
                    files: 4,
                    dirs: 7,
                    others: 0,
                    bytes: 1 + 3 + 7 + 14
                }
            );
        }
    }
}
