//! Inodes that are made in the staging directory before anybody sees them, and how they take the places of others: what an applier of a plan does in bulk.
//!
//! Making them needs no lock and any number of threads may do it: nobody knows them before they are adopted. To put them in place the gate and the tree are
//! held for writing.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::Live;
use super::find::At;
use super::nodes::generation_of;
use super::remove::{Fate, Target};
use super::takeover::Turn;
use crate::store::ids::{Name, Slot};
use crate::store::record::{AttrState, NameTouch, Place, Record, Undo};
use crate::sys::{self, Errno, Kind, Open, RenameMode, SetTime, Stat, SysResult, Xattrs};

/// What every name of an inode that is made here begins with.
pub const STAGED_PREFIX: &str = "new-";
/// Inodes that are replaced behind one append, so that a crash leaves no more than these to be looked at.
const AT_ONCE_MAX: usize = 128;
/// Bytes of their records, about: what is larger the journal would sync (`store::journal::tail`).
const BYTES_AT_ONCE: usize = 96 << 10;
/// Bytes of the records of one of them, without names and extended attributes, about.
const SWAP_BYTES: usize = 400;

/// An inode that was made in the staging directory.
#[derive(Clone, Debug)]
pub struct Staged {
    name: Name,
    /// As it was made, before it got its attributes.
    stat: Stat,
}

/// What an inode is to be that is made.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Its attributes.
    pub attr: &'a AttrState,
    /// Its extended attributes.
    pub xattrs: &'a Xattrs,
    /// What a regular file holds; `None`: nothing.
    pub source: Option<&'a File>,
    /// Nobody can be writing to that.
    pub still: bool,
    /// It gets the time of change that it had; else that at which it is made.
    pub times: bool,
}

/// A new inode, and the place that it is to take.
#[derive(Clone, Debug)]
pub struct Swap {
    /// Adopted, and in the staging directory still.
    pub staged: Staged,
    /// Where it is to be.
    pub to: Place,
}

/// A swap that is about to be made.
struct Ready<'a> {
    source: Target<'a>,
    target: Option<(Target<'a>, Fate)>,
    held: Option<Arc<OwnedFd>>,
    to: &'a Place,
}

impl Staged {
    /// What it is.
    pub fn kind(&self) -> Kind {
        self.stat.kind
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        Place { parent: Slot::STAGING, name: self.name.clone() }
    }
}

impl Live {
    /// Makes an inode of any kind but a directory, complete with owner, mode, extended attributes and times. Its name is free, or that of one that was never
    /// adopted. Nothing is durable.
    ///
    /// # Errors
    /// Those of open(2), FICLONE, mknod(2), chown(2), setxattr(2); EIO if the source has become shorter. Then nothing of it is there.
    pub fn stage(&self, name: Name, wanted: &Wanted<'_>) -> SysResult<Staged> {
        let made = match self.make_staged(&name, wanted) {
            Err(Errno::EEXIST) => {
                sys::unlink_at(&self.staging, name.as_bytes())?;
                self.make_staged(&name, wanted)
            }
            made => made,
        };
        let stat = made.inspect_err(|_| self.unstage_name(&name))?;
        Ok(Staged { name, stat })
    }

    fn make_staged(&self, name: &Name, wanted: &Wanted<'_>) -> SysResult<Stat> {
        let (dir, name, then) = (&*self.staging, name.as_bytes(), &wanted.attr.stat);
        if then.kind == Kind::File {
            let file = match wanted.source {
                Some(source) => self.duplicate(source, dir, name, then.size, wanted.still)?.0,
                None => sys::create_file_at(dir, name, Open::READ_WRITE, 0o600)?,
            };
            return dress_new(&file, wanted, |mode| sys::set_file_mode(&file, mode));
        }
        match then.kind {
            Kind::Symlink => sys::symlink_at(wanted.attr.target.as_deref().ok_or(Errno::EIO)?, dir, name)?,
            kind => sys::mknod_at(dir, name, kind, 0o600, then.rdev)?,
        }
        let fd = sys::open_path_at(dir, name)?;
        dress_new(&fd, wanted, |mode| sys::chmod_fd(&fd, mode))
    }

    fn unstage_name(&self, name: &Name) {
        match sys::unlink_at(&self.staging, name.as_bytes()) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => tracing::debug!(?name, %errno, "what was staged for nothing was not removed"),
        }
    }

    /// An inode that somebody else has put into the staging directory.
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn staged(&self, name: Name) -> SysResult<Staged> {
        let stat = sys::stat_at(&self.staging, name.as_bytes())?;
        Ok(Staged { name, stat })
    }

    /// Removes an inode that was staged and never adopted.
    pub fn unstage(&self, staged: &Staged) {
        self.unstage_name(&staged.name);
    }

    /// Removes what a daemon that was killed had staged. Nothing may be served yet, and what was half done must be finished.
    ///
    /// # Errors
    /// Those of listing the staging directory.
    pub fn sweep_staged(&self) -> SysResult<()> {
        for entry in sys::list_dir(&*self.staging)? {
            let place = Place { parent: Slot::STAGING, name: Name::new(&entry.name) };
            // One that changed places with it, and could not be moved on, is in the tree as far as history knows.
            if entry.name.starts_with(STAGED_PREFIX.as_bytes()) && self.timeline.place_or_fault(Slot(entry.ino))? != Some(place.clone()) {
                self.unstage_name(&place.name);
            }
        }
        Ok(())
    }

    /// Takes a staged inode into the tables: it is new, no checkpoint can see it. The caller holds the gate.
    ///
    /// # Errors
    /// EXDEV.
    pub fn adopt(&self, staged: &Staged) -> SysResult<Slot> {
        let (slot, stat) = (self.slot_of(&staged.stat)?, &staged.stat);
        self.timeline.set_born(slot, true);
        self.nodes.lock().learn(slot, stat.kind, generation_of(stat), Some(&staged.place()), 0);
        Ok(slot)
    }

    /// Puts adopted inodes in place, of which each is another, in order; what is there of what history needs is kept. Many go behind one append. Gives the
    /// inode that each has replaced. Survives `kill -9` as so many renames would: the first of them have happened.
    ///
    /// # Errors
    /// Those of rename(2); ENOSPC or EIO if the past could not be kept. Then some are in place, and the others are in the staging directory.
    pub fn put_in_place(&self, swaps: &[Swap]) -> SysResult<Vec<Option<Slot>>> {
        let mut replaced = Vec::with_capacity(swaps.len());
        while let Some(rest) = swaps.get(replaced.len()..).filter(|rest| !rest.is_empty()) {
            let rest = rest.get(..AT_ONCE_MAX).unwrap_or(rest);
            let before = replaced.len();
            self.put_some(rest, &mut replaced)?;
            if replaced.len() == before {
                // It is in the place of a directory, or of a file with other names: one of a kind.
                let Some(Swap { staged, to }) = rest.first() else { break };
                let (from, to) = ((At::from(Slot::STAGING), &staged.name), (At::from(to.parent), &to.name));
                replaced.push(self.rename_in(from, to, RenameMode::Replace, Turn::default())?);
            }
        }
        Ok(replaced)
    }

    /// As many of these as go behind one append.
    fn put_some(&self, swaps: &[Swap], replaced: &mut Vec<Option<Slot>>) -> SysResult<()> {
        let dirs: Vec<Arc<OwnedFd>> = swaps.iter().map(|swap| self.dir(swap.to.parent)).collect::<SysResult<_>>()?;
        self.keep_dirs(swaps, &dirs)?;
        let _renaming = self.begin_rename();
        let (mut ready, mut undo, mut more, mut bytes) = (Vec::with_capacity(swaps.len()), Vec::new(), Vec::new(), 0);
        for (swap, dir) in swaps.iter().zip(&dirs) {
            let known = undo.len();
            let Some(next) = self.prepare_swap(swap, dir, (&mut undo, &mut more))? else { break };
            bytes += SWAP_BYTES + 4 * swap.to.name.as_bytes().len() + undo.iter().skip(known).map(xattr_bytes).sum::<usize>();
            ready.push(next);
            if bytes > BYTES_AT_ONCE {
                break;
            }
        }
        if ready.is_empty() {
            return Ok(());
        }
        self.timeline.record(undo, more)?;
        for (at, swap) in ready.iter().enumerate() {
            if let Err(errno) = self.swap(swap) {
                // Those that were to follow are where they were.
                let left = ready.iter().skip(at + 1).filter_map(|swap| swap.target.as_ref());
                left.filter(|(_, fate)| matches!(fate, Fate::Move(_))).for_each(|(target, _)| self.take_back(target.slot));
                return Err(errno);
            }
            replaced.push(swap.target.as_ref().map(|(target, _)| target.slot));
        }
        Ok(())
    }

    /// Records the directories, once for all that comes into them.
    fn keep_dirs(&self, swaps: &[Swap], dirs: &[Arc<OwnedFd>]) -> SysResult<()> {
        let (mut undo, mut kept) = (Vec::new(), HashSet::new());
        for (swap, dir) in swaps.iter().zip(dirs) {
            if kept.insert(swap.to.parent) {
                self.keep_dir(At::from(swap.to.parent), dir, &mut undo)?;
            }
        }
        if undo.is_empty() { Ok(()) } else { self.timeline.record(undo, Vec::new()) }
    }

    /// Collects what is to be recorded before a new inode takes a place; `None`: it is no simple case.
    fn prepare_swap<'a>(
        &'a self,
        swap: &'a Swap,
        dir: &'a Arc<OwnedFd>,
        (undo, more): (&mut Vec<Undo>, &mut Vec<Record>),
    ) -> SysResult<Option<Ready<'a>>> {
        let (parent, to) = (At::from(swap.to.parent), &swap.to);
        let source = Target::known(At::from(Slot::STAGING), &self.staging, &swap.staged.name, swap.staged.stat, self.slot_of(&swap.staged.stat)?);
        let target = match self.target(parent, dir, &to.name) {
            Ok(target) if target.stat.kind == Kind::Dir || !target.is_last() || target.slot == source.slot => return Ok(None),
            Ok(target) => Some(target),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(errno),
        };
        let _stripe = target.as_ref().map(|target| self.stripe(target.slot));
        target.as_ref().map_or(Ok(()), |target| self.removal_first(target))?;
        self.keep_entry(to.parent, &to.name, target.as_ref().map(Target::child), undo);
        self.timeline.touch_moved(source.slot, false);
        self.timeline.touch_name(to.parent, &to.name, NameTouch::Moved);
        let Some(target) = target else { return Ok(Some(Ready { source, target: None, held: None, to })) };
        self.timeline.touch_gone(target.slot);
        let fate = self.doom(&target, undo, more)?;
        if let Fate::Move(object) = fate {
            more.push(Record::Replacing { slot: target.slot, place: source.place(), object });
        }
        let held = self.hold(&target, fate)?;
        Ok(Some(Ready { source, target: Some((target, fate)), held, to }))
    }

    /// Does what was recorded.
    fn swap(&self, Ready { source, target, held, to }: &Ready<'_>) -> SysResult<()> {
        let Some((target, fate)) = target else {
            let dir = self.dir(to.parent)?;
            self.order_names()?;
            self.with_room(|| sys::rename_at(source.dir, source.name.as_bytes(), &*dir, to.name.as_bytes(), RenameMode::NoReplace))?;
            self.nodes.lock().move_link(source.slot, &source.place(), to);
            return Ok(());
        };
        let _stripe = self.stripe(target.slot);
        self.replace_recorded(source, target, *fate, held.clone(), RenameMode::Replace)
    }
}

/// Bytes of extended attributes in a record.
fn xattr_bytes(undo: &Undo) -> usize {
    if let Undo::Xattrs { before, .. } = undo { before.iter().map(|(name, value)| name.len() + value.len()).sum() } else { 0 }
}

/// Gives a new inode its attributes: nothing of it need be compared or kept. Says what it was made as.
fn dress_new(fd: impl AsFd + Copy, wanted: &Wanted<'_>, chmod: impl FnOnce(u32) -> SysResult<()>) -> SysResult<Stat> {
    let (made, then) = (sys::stat_fd(fd)?, &wanted.attr.stat);
    let owner = made.uid != then.uid || made.gid != then.gid;
    // The owner first: a change of it takes set-id bits and file capabilities away.
    if owner {
        match sys::chown_fd(fd, Some(then.uid), Some(then.gid)) {
            Err(Errno::EPERM) if sys::ids().0 != 0 => {}
            owned => owned?,
        }
    }
    wanted.xattrs.iter().try_for_each(|(name, value)| sys::setxattr(fd, name, value, sys::XattrMode::Any))?;
    if then.kind != Kind::Symlink && (owner || made.mode != then.mode || !wanted.xattrs.is_empty()) {
        // Of a group that is not ours the bit is left out without a word.
        if then.mode & 0o2000 != 0 { sys::chmod_fd(fd, then.mode)? } else { chmod(then.mode)? }
    }
    sys::utimens_fd(fd, SetTime::At(then.atime), if wanted.times { SetTime::At(then.mtime) } else { SetTime::Omit })?;
    Ok(made)
}
