//! Executes an import plan with several threads.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::plan::{ImportPlan, Item};
use super::record::Hash;
use super::skipped::{SkipReason, SkippedPath};
use crate::dirs::{DirCache, open_below, split};
use crate::write::{Writer, by_several};
use ckptfs_api::{ExportData, ExportEntry, Refused, TreePath};
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Access, Errno, Kind, OpenKind, Stat, SysResult};

/// Paths that a thread claims at a time.
const TAKEN: usize = 64;
/// Attempts to copy a file that changes during the copy.
const COPIES_MAX: u32 = 3;

/// The state in which a path was imported.
#[derive(Clone, Debug)]
pub struct ImportedState {
    /// Its attributes at that time.
    pub stat: Stat,
    /// Hash of its content, if computed.
    pub hash: Option<Hash>,
}

/// The result of executing a plan.
#[derive(Debug, Default)]
pub struct ImportResult {
    /// Paths that differ from the source, sorted.
    pub left: Vec<SkippedPath>,
    /// State of imported paths that differs from the plan's, or includes a hash.
    pub seen: HashMap<Vec<u8>, ImportedState>,
}

/// A running import.
pub struct ImportRun<'a> {
    source: &'a OwnedFd,
    /// See [`ExportEntry::of_stranger`].
    stranger: bool,
    writer: &'a Writer,
    left: Mutex<Vec<SkippedPath>>,
    seen: Mutex<HashMap<Vec<u8>, ImportedState>>,
    done: AtomicU64,
    progress: &'a (dyn Fn(u64) + Sync),
}

impl<'a> ImportRun<'a> {
    /// Imports from `source`, open for reading, through `writer`. `stranger`: another user controls
    /// the source. `progress` receives the number of finished paths.
    pub fn new(
        source: &'a OwnedFd,
        stranger: bool,
        writer: &'a Writer,
        progress: &'a (dyn Fn(u64) + Sync),
    ) -> ImportRun<'a> {
        ImportRun {
            source,
            stranger,
            writer,
            left: Mutex::default(),
            seen: Mutex::default(),
            done: AtomicU64::new(0),
            progress,
        }
    }

    /// Removes and creates paths; [`ImportRun::finish`] completes the import.
    pub fn all(&self, plan: &ImportPlan, threads: usize) {
        for path in &plan.removed {
            if let Err(errno) = self.writer.remove_path(path) {
                self.leave(path, SkipReason::of(errno));
            }
        }
        by_several(&plan.dirs, threads, &|(path, stat)| {
            if let Err(errno) = self.dir(path, stat) {
                self.leave(path, SkipReason::of(errno));
            }
        });
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // If no thread can be created, this one does all the work.
                let _ = std::thread::Builder::new()
                    .spawn_scoped(scope, || self.work(&plan.others, &next));
            }
            self.work(&plan.others, &next);
        });
    }

    /// Creates further names and sets attributes of directories. Returns the result.
    pub fn finish(self, threads: usize) -> ImportResult {
        for Refused { path, errno } in self.writer.finish_by(threads) {
            self.leave(&path.0, SkipReason::of(Errno(errno)));
        }
        let mut left = std::mem::take(&mut *self.left.lock());
        left.sort_by(|a, b| a.path.cmp(&b.path));
        left.dedup_by(|a, b| a.path == b.path);
        let seen = std::mem::take(&mut *self.seen.lock());
        ImportResult { left, seen }
    }

    fn leave(&self, path: &[u8], why: SkipReason) {
        self.left.lock().push(SkippedPath {
            path: TreePath(path.to_vec()),
            why,
        });
    }

    fn work(&self, items: &[Item], next: &AtomicUsize) {
        let (mut from, mut to) = (DirCache::default(), DirCache::default());
        loop {
            let at = next.fetch_add(TAKEN, Ordering::Relaxed);
            let Some(taken) = items
                .get(at..items.len().min(at.saturating_add(TAKEN)))
                .filter(|taken| !taken.is_empty())
            else {
                return;
            };
            for (path, stat) in taken {
                if let Err(why) = self.one(&mut from, &mut to, path, stat) {
                    self.leave(path, why);
                }
            }
            let count = taken.len() as u64;
            (self.progress)(self.done.fetch_add(count, Ordering::Relaxed) + count);
        }
    }

    /// Creates a directory with its missing parents, which the writer then finds existing.
    fn dir(&self, path: &[u8], stat: &Stat) -> SysResult<()> {
        let fd = open_below(self.source, path, OpenKind::Path)?;
        let entry = ExportEntry::new(path.to_vec(), stat, stat.ino, None, sys::all_xattrs(&fd)?);
        self.writer
            .put(&mut DirCache::default(), self.believed(entry)?, None)
    }

    fn believed(&self, entry: ExportEntry) -> SysResult<ExportEntry> {
        if self.stranger {
            entry.of_stranger()
        } else {
            Ok(entry)
        }
    }

    fn one(
        &self,
        from: &mut DirCache,
        to: &mut DirCache,
        path: &[u8],
        planned: &Stat,
    ) -> Result<(), SkipReason> {
        let (above, name) = split(path).ok_or(SkipReason::Error(Errno::EINVAL))?;
        let dir = from.existing(self.source, above).map_err(SkipReason::of)?;
        if planned.kind != Kind::File {
            let entry = read_other(dir, name, path, planned)
                .and_then(|entry| self.believed(entry))
                .map_err(SkipReason::of)?;
            return self.writer.put(to, entry, None).map_err(SkipReason::of);
        }
        for copy in 0..COPIES_MAX {
            let file = sys::open_file_at(dir, name, Access::READ).map_err(SkipReason::of)?;
            let stat = sys::stat_fd(&file).map_err(SkipReason::of)?;
            if stat.kind != Kind::File {
                return Err(SkipReason::Changing);
            }
            // The inode number in the source identifies hard links.
            let entry = ExportEntry::new(
                path.to_vec(),
                &stat,
                stat.ino,
                None,
                sys::file_xattrs(&file).map_err(SkipReason::of)?,
            );
            let mut entry = self.believed(entry).map_err(SkipReason::of)?;
            entry.data = if stat.size > 0 {
                ExportData::File
            } else {
                ExportData::None
            };
            entry.again = copy > 0;
            self.writer
                .put(to, entry, Some(&file).filter(|_| stat.size > 0))
                .map_err(SkipReason::of)?;
            let after = sys::stat_fd(&file).map_err(SkipReason::of)?;
            if (after.ctime, after.size) == (stat.ctime, stat.size) {
                let hash = self
                    .writer
                    .inodes
                    .contents
                    .as_ref()
                    .and_then(|contents| contents.take(path));
                if hash.is_some() || (stat.ino, stat.ctime) != (planned.ino, planned.ctime) {
                    self.seen
                        .lock()
                        .insert(path.to_vec(), ImportedState { stat, hash });
                }
                return Ok(());
            }
        }
        Err(SkipReason::Changing)
    }
}

fn read_other(dir: &OwnedFd, name: &[u8], path: &[u8], planned: &Stat) -> SysResult<ExportEntry> {
    let fd = sys::open_path_at(dir, name)?;
    let stat = sys::stat_fd(&fd)?;
    if stat.kind != planned.kind {
        return Err(Errno::ESTALE);
    }
    let target = if stat.kind == Kind::Symlink {
        Some(sys::readlink_fd(&fd)?)
    } else {
        None
    };
    Ok(ExportEntry::new(
        path.to_vec(),
        &stat,
        stat.ino,
        target,
        sys::all_xattrs(&fd)?,
    ))
}
