//! Saved content for an absence: a clone in `.ckptfs/kept` of each file that a checkpoint shows and
//! no layer has. Without reflink copies are made, by default of small files only; all are synced
//! before the first of them becomes valid.
//!
//! Content is saved when a daemon ends cleanly, together with the baseline, within a time limit. If
//! a file differs from the baseline at the next start, its clone is cloned (a copy is linked) into
//! the layer, as if it had been captured before the change. A rename would be lost if the daemon
//! were killed before the record. Clones are kept, and remain valid for files that have not changed
//! at the next end. A clone is named by slot and birth time. It has the size of its file, and the
//! file's ctime as its mtime. The mtime is set last, so an incomplete clone is never valid.
//!
//! When every file that needs a clone has one, a file named `whole` is created. While it exists,
//! only changed files are examined. Without it an unmount walks the tree within the time limit.
//! After the first clean end, clones are also made ahead in idle time.
//!
//! A clone shares its extents with the file, or after a change of the file with the layer that has
//! them. When a checkpoint is freed, or live files are deduplicated, a clone may become the only
//! owner of its extents. All clones are then removed.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::capture_ctx::{CaptureCtx, Captures, Inodes};
use super::nodes::{generation_of, is_same};
use super::shared_tables::SharedTables;
use crate::history::timeline::Timeline;
use crate::history::wake::IdleThread;
use ckptfs_api::SavePolicy;
use ckptfs_store::baseline::BaselineNode;
use ckptfs_store::ids::{Name, ObjectId, ObjectOrigin, Slot};
use ckptfs_store::record::Key;
use ckptfs_sys::{
    self as sys, Access, Errno, Kind, RenameMode, SetTime, Stat, SysResult, ThrottledUnlink, Time,
};

const NAME: &[u8] = b"kept";
/// File in the directory; present if nothing is missing.
const WHOLE: &[u8] = b"whole";
/// Name of the directory while its removal is in progress.
const GONE: &[u8] = b"kept.gone";
/// Number of clones removed without a pause.
const DROP_MAX: usize = 10_000;
/// Maximum size of one copy and of all copies, unless all content is to be saved.
const COPY_MAX: u64 = 1 << 20;
const COPIES_MAX: u64 = 64 << 20;
/// Number of files between two checks of the free space.
const LOOK_EVERY: usize = 256;
/// With less free space, nothing is kept for an absence.
pub(super) const SPACE_KEPT_BYTES: u64 = 256 << 20;

fn name_of(slot: Slot, stat: &Stat) -> String {
    format!("{:x}-{:x}", slot.0, generation_of(stat))
}

/// Returns whether the clone is of this state of the file.
fn is_of(clone: &Stat, file: &Stat) -> bool {
    clone.kind == Kind::File && clone.mtime == file.ctime && clone.size == file.size
}

/// Makes clones within a time limit.
pub(super) struct ContentSaver<'a> {
    kept: &'a SavedContent,
    dir: OwnedFd,
    how: SavePolicy,
    /// `None`: no time limit.
    until: Option<Instant>,
    /// Value of `SavedContent::drops` at the start.
    drops: u64,
    /// Saved content was complete, except for changes since the last baseline.
    whole: bool,
    /// A checkpoint will show the current tree: files that were created or changed in the open
    /// epoch are also saved.
    all: bool,
    done: RefCell<SaveProgress>,
}

#[derive(Default)]
struct SaveProgress {
    /// Valid clones.
    used: HashSet<Vec<u8>>,
    /// Clones that may be obsolete.
    doubtful: HashSet<Vec<u8>>,
    made: usize,
    left_out: u64,
    /// A file was not saved because no checkpoint shows it yet.
    unseen: bool,
    /// Total size of the valid copies.
    copied_bytes: u64,
    /// New copies, and the mtime that makes each valid once it is synced.
    copies: Vec<(String, Time)>,
}

/// Content saved for an absence. See the module.
pub struct SavedContent {
    timeline: Arc<Timeline>,
    reflink: bool,
    wake: Arc<IdleThread>,
    inodes: Arc<Inodes>,
    captures: Arc<Captures>,
    /// How often all of it was removed.
    drops: AtomicU64,
}

impl SavedContent {
    pub(super) fn new(tables: &SharedTables, past: &CaptureCtx) -> Arc<SavedContent> {
        Arc::new(SavedContent {
            timeline: Arc::clone(&tables.timeline),
            reflink: tables.reflink,
            wake: Arc::clone(&tables.wake),
            inodes: Arc::clone(&past.inodes),
            captures: Arc::clone(&past.captures),
            drops: AtomicU64::new(0),
        })
    }

    fn kept_dir(&self) -> SysResult<OwnedFd> {
        sys::open_dir_at(self.timeline.store().layout.dir(), NAME)
    }

    /// Returns a keeper for this amount of content; `None` if nothing is to be saved.
    pub(super) fn keeper(&self, how: SavePolicy, all: bool) -> SysResult<Option<ContentSaver<'_>>> {
        if how == SavePolicy::None {
            return self.drop_all().map(|()| None);
        }
        self.keeper_until(how, Instant::now().checked_add(how.time_limit()), all)
            .map(Some)
    }

    /// Returns a keeper that clones ahead, in idle time.
    pub(super) fn keeper_ahead(&self) -> SysResult<ContentSaver<'_>> {
        self.keeper_until(SavePolicy::All, None, false)
    }

    fn keeper_until(
        &self,
        how: SavePolicy,
        until: Option<Instant>,
        all: bool,
    ) -> SysResult<ContentSaver<'_>> {
        let drops = self.drops.load(Ordering::SeqCst);
        match sys::mkdir_at(self.timeline.store().layout.dir(), NAME, 0o700) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
        Ok(ContentSaver {
            kept: self,
            dir: self.kept_dir()?,
            how,
            until,
            all,
            drops,
            whole: self.is_kept_whole(),
            done: RefCell::default(),
        })
    }

    /// Returns whether the saved content is complete, except for changes since the baseline. Always
    /// false without reflink, because the total size of copies is limited.
    pub(super) fn is_kept_whole(&self) -> bool {
        self.reflink
            && self
                .kept_dir()
                .is_ok_and(|dir| sys::stat_at(dir, WHOLE).is_ok())
    }

    /// Returns whether clones may exist, of this daemon or an earlier one.
    pub(super) fn has_kept(&self) -> bool {
        self.kept_dir().is_ok()
    }

    /// Removes the completeness marker when the baseline is replaced: changes before the new
    /// baseline will no longer be examined. Only a keeper that has processed all of them sets the
    /// marker again.
    pub(super) fn unsettle_kept(&self) -> SysResult<()> {
        match self.kept_dir() {
            Err(Errno::ENOENT) => Ok(()),
            dir => unlink(dir?, WHOLE),
        }
    }

    /// Adds the saved content of a file to the layer of the open epoch. Returns `None` if no
    /// content was saved, or it is not needed.
    pub(super) fn take_kept(&self, node: &BaselineNode) -> SysResult<Option<ObjectId>> {
        let (slot, stat) = (node.child.slot, &node.attr.stat);
        if !self.timeline.epochs.needs(&Key::Data(slot)) || self.timeline.epochs.is_born(slot) {
            return Ok(None);
        }
        let (dir, name) = match self.kept_dir() {
            Err(Errno::ENOENT) => return Ok(None),
            dir => (dir?, name_of(slot, stat)),
        };
        if !sys::stat_at(&dir, name.as_bytes()).is_ok_and(|clone| is_of(&clone, stat)) {
            return Ok(None);
        }
        if self.reflink {
            let clone = sys::open_file_at(&dir, name.as_bytes(), Access::READ)?;
            return self.captures.capture_object(slot, &clone, stat.size);
        }
        let layers = &self.timeline.store().layers;
        let object =
            layers.next_object(self.timeline.epochs.epoch(), slot, ObjectOrigin::Cloned)?;
        let (layer, file) = layers.location(object)?;
        self.captures
            .with_room(|| sys::link_at(&dir, name.as_bytes(), &*layer, file.as_bytes()))?;
        Ok(Some(object))
    }

    /// Removes all clones; beyond a limit the rest is removed in idle time. Content is saved again
    /// when this daemon ends.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn drop_all(&self) -> SysResult<()> {
        self.drops.fetch_add(1, Ordering::SeqCst);
        let store = self.timeline.store().layout.dir();
        match sys::rename_at(store, NAME, store, GONE, RenameMode::NoReplace) {
            Err(Errno::ENOENT) => Ok(()),
            // A previous removal is incomplete.
            Err(Errno::EEXIST) => drop_kept(store),
            Err(errno) => Err(errno),
            Ok(()) => {
                if self.drop_rest(DROP_MAX)? {
                    self.wake.epoch_closed();
                }
                Ok(())
            }
        }
    }

    /// Removes up to `most` clones whose removal is in progress. Returns whether more exist.
    pub(super) fn drop_rest(&self, most: usize) -> SysResult<bool> {
        drop_some(self.timeline.store().layout.dir(), GONE, most)
    }
}

/// Removes all clones in this store.
///
/// # Errors
/// Those of unlink(2).
pub fn drop_kept(store: impl AsFd) -> SysResult<()> {
    for name in [NAME, GONE] {
        while drop_some(&store, name, DROP_MAX)? {}
    }
    Ok(())
}

/// Removes up to `most` files of a directory, and the directory once it is empty. Returns whether
/// more files exist.
fn drop_some(store: impl AsFd, name: &[u8], most: usize) -> SysResult<bool> {
    let dir = match sys::open_dir_at(&store, name) {
        Err(Errno::ENOENT) => return Ok(false),
        dir => dir?,
    };
    let (entries, last) = sys::read_dir(&dir, 0, most)?;
    let mut gently = ThrottledUnlink::default();
    for entry in entries
        .iter()
        .filter(|entry| !matches!(entry.name.as_slice(), b"." | b".."))
    {
        unlink(&dir, &entry.name)?;
        gently.removed(&dir);
    }
    if !last {
        return Ok(true);
    }
    match sys::rmdir_at(&store, name) {
        // Another thread is adding or removing entries.
        Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY) => Ok(false),
        Err(errno) => Err(errno),
    }
}

impl ContentSaver<'_> {
    /// Saves the content of a file, if a checkpoint shows it and only the file has it.
    pub(super) fn keep(&self, dir: impl AsFd, name: &Name, node: &BaselineNode) {
        self.keep_opened(node, |how| sys::open_file_at(&dir, name.as_bytes(), how));
    }

    /// As [`ContentSaver::keep`], for a file given by descriptor.
    pub(super) fn keep_inode(&self, fd: impl AsFd, node: &BaselineNode) {
        self.keep_opened(node, |how| sys::reopen(&fd, how));
    }

    fn keep_opened(&self, node: &BaselineNode, open: impl Fn(Access) -> SysResult<File>) {
        let (slot, stat) = (node.child.slot, &node.attr.stat);
        if stat.kind != Kind::File || stat.size == 0 {
            return;
        }
        let timeline = &self.kept.timeline;
        if !self.all && (timeline.epochs.is_born(slot) || !timeline.epochs.needs(&Key::Data(slot)))
        {
            self.doubt(node);
            // A born file makes no record that would lead the next daemon to examine it, and its
            // first checkpoint shows it.
            self.done.borrow_mut().unseen |= self.until.is_some() && timeline.epochs.is_born(slot);
            return;
        }
        let clone = name_of(slot, stat);
        let there = sys::stat_at(&self.dir, clone.as_bytes());
        let counts = there.as_ref().is_ok_and(|there| is_of(there, stat))
            || self.done.borrow().used.contains(clone.as_bytes());
        if self.fits(stat)
            && (counts || (self.has_time() && self.make(open, stat, &clone, there.is_ok()).is_ok()))
        {
            let mut done = self.done.borrow_mut();
            done.copied_bytes += stat.size;
            done.used.insert(clone.into_bytes());
        } else {
            self.done.borrow_mut().left_out += 1;
        }
    }

    /// Marks the clone of a file as possibly obsolete.
    pub(super) fn doubt(&self, node: &BaselineNode) {
        if node.child.kind == Kind::File && node.attr.stat.size > 0 {
            self.done
                .borrow_mut()
                .doubtful
                .insert(name_of(node.child.slot, &node.attr.stat).into_bytes());
        }
    }

    /// Returns whether the file may be saved: a clone always may, while copies are limited in size.
    fn fits(&self, stat: &Stat) -> bool {
        let all = self.kept.reflink || self.how == SavePolicy::All;
        all || (stat.size <= COPY_MAX
            && stat.size <= COPIES_MAX.saturating_sub(self.done.borrow().copied_bytes))
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    fn has_time(&self) -> bool {
        let made = self.done.borrow().made;
        if made.is_multiple_of(LOOK_EVERY)
            && !self
                .kept
                .timeline
                .store()
                .layers
                .free_bytes()
                .is_ok_and(|free| free > SPACE_KEPT_BYTES)
        {
            return false;
        }
        !self.is_over()
    }

    fn make(
        &self,
        open: impl Fn(Access) -> SysResult<File>,
        stat: &Stat,
        clone: &str,
        stale: bool,
    ) -> SysResult<()> {
        self.done.borrow_mut().made += 1;
        if stale {
            sys::unlink_at(&self.dir, clone.as_bytes())?;
        }
        let file = match open(Access {
            noatime: true,
            ..Access::READ
        }) {
            Err(Errno::EPERM) => open(Access::READ),
            file => file,
        }?;
        self.kept
            .captures
            .duplicate(&file, &self.dir, clone.as_bytes(), stat.size, false)?;
        if !is_same(&sys::stat_fd(&file)?, stat) {
            return Err(Errno::EBUSY);
        }
        if self.kept.reflink {
            return self.set_time(clone, stat.ctime);
        }
        self.done
            .borrow_mut()
            .copies
            .push((clone.to_owned(), stat.ctime));
        Ok(())
    }

    /// Makes a clone valid.
    fn set_time(&self, clone: &str, time: Time) -> SysResult<()> {
        let made = sys::open_file_at(&self.dir, clone.as_bytes(), Access::READ)?;
        sys::utimens_fd(&made, SetTime::Omit, SetTime::At(time))
    }

    /// Completes a walk of the whole tree: removes all clones that are not valid. Returns the
    /// number of files not saved.
    pub(super) fn finish(self) -> SysResult<u64> {
        let done = self.done.take();
        for entry in sys::list_dir(&self.dir)? {
            if entry.name != WHOLE && !done.used.contains(&entry.name) {
                sys::unlink_at(&self.dir, &entry.name)?;
            }
        }
        self.settle(&done, done.left_out)
    }

    /// Completes an incremental update: removes obsolete clones of changed files, and saves files
    /// that were missed before. `files` is the number of files in the tree. Returns the number of
    /// files not saved.
    pub(super) fn catch_up(self, files: u64) -> SysResult<u64> {
        let mut left_out = self.done.borrow().left_out;
        if !self.whole {
            (
                self.done.borrow_mut().left_out,
                self.done.borrow_mut().copied_bytes,
            ) = (0, 0);
            let all = self.kept.inodes.each_file(|dir, name, node| {
                self.keep(dir, name, node);
                !self.is_over()
            })?;
            let done = self.done.borrow();
            left_out = if all {
                done.left_out
            } else {
                done.left_out
                    .max(files.saturating_sub(done.used.len() as u64))
                    .max(1)
            };
        }
        let done = self.done.take();
        for name in done.doubtful.difference(&done.used) {
            unlink(&self.dir, name)?;
        }
        self.settle(&done, left_out)
    }

    fn settle(&self, done: &SaveProgress, left_out: u64) -> SysResult<u64> {
        if !done.copies.is_empty() {
            // After a power cut an unsynced copy would have its full size and contain zeros.
            sys::syncfs(&self.dir)?;
        }
        done.copies
            .iter()
            .try_for_each(|(clone, time)| self.set_time(clone, *time))?;
        if left_out == 0 && !done.unseen && self.drops == self.kept.drops.load(Ordering::SeqCst) {
            match sys::create_file_at(&self.dir, WHOLE, Access::READ_WRITE, 0o600) {
                Ok(_) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(left_out)
    }
}

fn unlink(dir: impl AsFd, name: &[u8]) -> SysResult<()> {
    match sys::unlink_at(dir, name) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}
