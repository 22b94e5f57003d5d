//! Keeping the past: what must be recorded before an inode or a name changes.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::change::Change;
use super::durable::Durability;
use super::inodes::{At, Inodes};
use super::lent::{READ, lent};
use super::tables::{Calls, HotFiles, NodeTable, Tables};
use crate::history::attribution::Author;
use crate::history::timeline::Timeline;
use crate::store::ids::{Name, ObjectId, ObjectOrigin, Slot};
use crate::store::record::{AttrState, Child, DataState, Key, Place, Undo};
use crate::sys::{self, Errno, Kind, Open, RenameMode, Stat, SysResult};

/// A dirty file of at most this many bytes is copied and not cloned, and so are as many at the end
/// of a larger one if only they are dirty (something was appended): a clone must write them back
/// first, which costs more (FACTS: 110 us against 8).
const COPY_DIRTY_MAX: u64 = 16 * 1024;
/// Files of more bytes are cloned as a whole.
pub(super) const PARTLY_COPIED_MAX: u64 = 1024 * 1024;
/// What is cloned before them is a multiple of this, and so of the blocks of most filesystems.
const CLONED_UNIT: u64 = 4096;

/// Records what is about to change, and captures content.
pub struct Captures {
    timeline: Arc<Timeline>,
    reflink: bool,
    /// Files can be without copy on write (btrfs).
    has_nocow: bool,
    nodes: Arc<NodeTable>,
    hot: Arc<HotFiles>,
    calls: Arc<Calls>,
    inodes: Arc<Inodes>,
    durability: Arc<Durability>,
}

impl Captures {
    pub(super) fn new(
        tables: &Tables,
        inodes: &Arc<Inodes>,
        durability: &Arc<Durability>,
        has_nocow: bool,
    ) -> Arc<Captures> {
        Arc::new(Captures {
            timeline: Arc::clone(&tables.timeline),
            reflink: tables.reflink,
            has_nocow,
            nodes: Arc::clone(&tables.nodes),
            hot: Arc::clone(&tables.hot),
            calls: Arc::clone(&tables.calls),
            inodes: Arc::clone(inodes),
            durability: Arc::clone(durability),
        })
    }

    /// Records where an inode and every directory above it are, as far as the open epoch does not
    /// know. Of a file with several names all that are known are recorded: each is a path that
    /// changes.
    pub(super) fn keep_homes(&self, at: At<'_>, undo: &mut Vec<Undo>) {
        self.climb_homes(
            at,
            &mut HashSet::new(),
            |slot| self.timeline.epochs.needs(&Key::Home(slot)),
            undo,
        );
    }

    /// As [`Captures::keep_homes`], for the next epoch: what is recorded in the open one does not
    /// count.
    pub(super) fn keep_homes_ahead(
        &self,
        slot: Slot,
        known: &mut HashSet<Slot>,
        ahead: &mut Vec<Undo>,
    ) {
        self.climb_homes(slot.into(), known, |_| true, ahead);
    }

    /// Places that are no longer true, or were forged, can lead in a circle: each inode is passed
    /// once.
    fn climb_homes(
        &self,
        at: At<'_>,
        known: &mut HashSet<Slot>,
        needs: impl Fn(Slot) -> bool,
        undo: &mut Vec<Undo>,
    ) {
        let mut open = vec![at];
        while let Some(at) = open.pop() {
            if at.slot == Slot::ROOT || !needs(at.slot) || !known.insert(at.slot) {
                continue;
            }
            for place in self.inodes.places(at) {
                let up = at
                    .trail
                    .and_then(|trail| trail.up.as_ref())
                    .filter(|up| up.slot == place.parent);
                open.push(At {
                    slot: place.parent,
                    trail: up,
                });
                undo.push(Undo::Home {
                    slot: at.slot,
                    before: place,
                });
            }
        }
    }

    /// The attributes of an inode as they are told: see `Inheritance::shown`.
    pub(super) fn shown(&self, slot: Slot, stat: Stat) -> Stat {
        self.inodes.base().shown(slot, stat)
    }

    /// Records the attributes of an inode, as they are told (`Inheritance::shown`).
    pub(super) fn keep_attr(
        &self,
        slot: Slot,
        stat: &Stat,
        target: Option<Vec<u8>>,
        undo: &mut Vec<Undo>,
    ) {
        if self.timeline.epochs.needs(&Key::Attr(slot)) {
            undo.push(Undo::Attr {
                slot,
                before: AttrState {
                    stat: Stat {
                        ctime: self.timeline.absences.settled(stat.ctime),
                        ..*stat
                    },
                    target,
                },
            });
        }
    }

    /// Records attributes and place of a directory whose entries are to change.
    pub(super) fn keep_dir(
        &self,
        dir: At<'_>,
        fd: &OwnedFd,
        undo: &mut Vec<Undo>,
    ) -> SysResult<()> {
        if self.timeline.epochs.needs(&Key::Attr(dir.slot)) {
            let stat = self.inodes.base().shown(dir.slot, sys::stat_fd(fd)?);
            self.keep_attr(dir.slot, &stat, None, undo);
        }
        // Where it is may not have been known when its attributes were recorded.
        self.keep_homes(dir, undo);
        Ok(())
    }

    /// Records what a name leads to.
    pub(super) fn keep_entry(
        &self,
        dir: Slot,
        name: &Name,
        before: Option<Child>,
        undo: &mut Vec<Undo>,
    ) {
        if self.timeline.epochs.needs(&Key::Entry(dir, name.clone())) {
            undo.push(Undo::Entry {
                dir,
                name: name.clone(),
                before,
            });
        }
    }

    /// Records the extended attributes of an inode.
    pub(super) fn keep_xattrs(
        &self,
        slot: Slot,
        fd: impl AsFd,
        undo: &mut Vec<Undo>,
    ) -> SysResult<()> {
        if self.timeline.epochs.needs(&Key::Xattrs(slot)) {
            undo.push(Undo::Xattrs {
                slot,
                before: sys::all_xattrs(fd)?,
            });
        }
        Ok(())
    }

    /// Whether no checkpoint shows a file whose content is about to change for the first time in
    /// the open epoch, although this daemon does not know it as born: see [`Timeline::is_unseen`].
    /// Its content is not kept then, but its records are made as for any file, because the baseline
    /// and what is captured ahead rely on them. The caller holds the freeze lock.
    pub(super) fn is_unseen(
        &self,
        slot: Slot,
        stat: &Stat,
        place: impl Fn() -> Option<Place>,
    ) -> bool {
        // An inode that a branch has from its base was there before.
        let through = self.inodes.base().through();
        let is_own = |slot| through.is_none_or(|through| through.is_born(slot));
        let now = |at: Slot| {
            let (place, born) = if at == slot {
                (place()?, stat.btime?)
            } else {
                let place = self.inodes.likeliest_place(at)?;
                (place, self.inodes.stat(at).ok()?.btime?)
            };
            is_own(at).then_some((place, born))
        };
        let has_one_name = stat.kind == Kind::File && stat.nlink <= 1;
        let born = stat.btime.filter(|_| has_one_name && is_own(slot));
        born.is_some_and(|born| self.timeline.is_unseen(slot, born, &now).unwrap_or(false))
    }

    /// Makes sure that the content of a file as it is now is kept, if a checkpoint can see it. The
    /// caller holds the freeze lock, and the file's stripe.
    ///
    /// When it returns the content survives `kill -9` whatever is done to the file.
    ///
    /// # Errors
    /// ENOSPC, EIO: nothing was kept and the file must not be changed.
    pub(super) fn capture(
        &self,
        change: &Change,
        at: At<'_>,
        file: &File,
        provisional: bool,
    ) -> SysResult<()> {
        let slot = at.slot;
        if !self.timeline.epochs.needs(&Key::Data(slot)) {
            if !provisional {
                self.timeline.epochs.confirm(slot);
            }
            return Ok(());
        }
        if self.nodes.is_dead(slot) {
            return Ok(());
        }
        let stat = sys::stat_fd(file)?;
        if self.is_unseen(slot, &stat, || self.inodes.places(at).into_iter().next()) {
            return self.record_capture(change, at, file, None, &stat, false);
        }
        let object = self.capture_object(slot, file, stat.size)?;
        let recorded = self.record_capture(change, at, file, object, &stat, provisional);
        if let (Err(_), Some(object)) = (&recorded, object) {
            self.drop_object(object);
        }
        recorded
    }

    /// As [`Captures::capture`], of a file that is open; to be read or not.
    pub(super) fn capture_open(
        &self,
        change: &Change,
        at: At<'_>,
        (file, readable): (&File, bool),
        provisional: bool,
    ) -> SysResult<()> {
        self.with_read(&change.author, at, file, || {
            if readable {
                return self.capture(change, at, file, provisional);
            }
            let source = sys::reopen(file, Open::READ)?;
            self.capture(change, at, &source, provisional)
        })
    }

    /// Does something for which an inode must be readable by its owner. Where it is not, its mode is
    /// recorded first: see `lent`. The caller holds the freeze lock.
    pub(super) fn with_read<T>(
        &self,
        author: &Author,
        at: At<'_>,
        fd: impl AsFd,
        act: impl FnMut() -> SysResult<T>,
    ) -> SysResult<T> {
        let keep = |stat: &Stat| {
            let mut undo = Vec::new();
            let stat = self.inodes.base().shown(at.slot, *stat);
            self.keep_attr(at.slot, &stat, None, &mut undo);
            self.keep_homes(at, &mut undo);
            self.timeline.epochs.record(author, undo, Vec::new())
        };
        lent(fd, READ, keep, act)
    }

    /// Records what was captured of a file.
    pub(super) fn record_capture(
        &self,
        change: &Change,
        at: At<'_>,
        file: &File,
        object: Option<ObjectId>,
        stat: &Stat,
        provisional: bool,
    ) -> SysResult<()> {
        let slot = at.slot;
        let mut undo = vec![data_undo(slot, object, stat.size, provisional)];
        self.keep_attr(
            slot,
            &self.inodes.base().shown(slot, *stat),
            None,
            &mut undo,
        );
        self.keep_xattrs(slot, file, &mut undo)?;
        self.keep_homes(at, &mut undo);
        self.timeline
            .epochs
            .record(&change.author, undo, Vec::new())?;
        if !self.reflink {
            // The live file is overwritten in place, at a time that only the kernel knows.
            self.timeline.store().journal.sync()?;
        }
        self.timeline.epochs.count(1);
        Ok(())
    }

    /// Clones (or copies) a file into the layer of the open epoch; `None` if it is empty.
    pub(super) fn capture_object(
        &self,
        slot: Slot,
        file: &File,
        size: u64,
    ) -> SysResult<Option<ObjectId>> {
        self.capture_object_in(self.timeline.epochs.epoch(), slot, file, size)
    }

    pub(super) fn capture_object_in(
        &self,
        epoch: crate::store::ids::Epoch,
        slot: Slot,
        file: &File,
        size: u64,
    ) -> SysResult<Option<ObjectId>> {
        if size == 0 {
            return Ok(None);
        }
        let layers = &self.timeline.store().layers;
        let object = layers.next_object(epoch, slot, ObjectOrigin::Cloned)?;
        let kept = self.fill_object(object, file, size);
        if let Err(errno) = kept {
            self.drop_object(object);
            return Err(errno);
        }
        Ok(Some(object))
    }

    /// Gives an object that nothing refers to a name in the layer of a later epoch.
    pub(super) fn move_object(
        &self,
        object: ObjectId,
        epoch: crate::store::ids::Epoch,
    ) -> SysResult<ObjectId> {
        let layers = &self.timeline.store().layers;
        let moved = layers.next_object(epoch, object.slot, object.origin)?;
        let (from, name) = layers.location(object)?;
        let (to, new_name) = layers.location(moved)?;
        self.with_room(|| {
            sys::rename_home(
                &*from,
                name.as_bytes(),
                &*to,
                new_name.as_bytes(),
                RenameMode::NoReplace,
            )
        })?;
        if !self.reflink {
            let kept = sys::open_file_at(&*to, new_name.as_bytes(), Open::READ)?;
            sys::fsync(kept).inspect_err(|_| self.timeline.store().journal.latch())?;
        }
        self.durability.note_captured(moved, false);
        Ok(moved)
    }

    fn fill_object(&self, object: ObjectId, file: &File, size: u64) -> SysResult<()> {
        let (dir, name) = self.timeline.store().layers.location(object)?;
        // One that is captured apart is claimed: a sync of the whole tree would not wait for it.
        let still = !self.hot.has(object.slot)
            && self.durability.may_copy()
            && !self.calls.is_claimed(object.slot);
        let copied = match self.duplicate(file, &*dir, name.as_bytes(), size, still) {
            Err(Errno::ENOSPC) => self.duplicate_in_need(file, &*dir, name.as_bytes(), size),
            kept => kept.map(|(_, copied)| copied),
        }?;
        if !self.reflink {
            let kept = sys::open_file_at(&*dir, name.as_bytes(), Open::READ)?;
            // What a failed sync has lost is not told a second time: nothing more is kept that may
            // be lost too.
            sys::fsync(kept).inspect_err(|_| self.timeline.store().journal.latch())?;
        }
        self.durability.note_captured(object, copied);
        Ok(())
    }

    /// As [`Captures::duplicate`], on a full filesystem: into an inode of the reserve, by a clone
    /// also where a copy would be cheaper, with what ballast there is.
    fn duplicate_in_need(
        &self,
        file: &File,
        dir: impl AsFd,
        name: &[u8],
        size: u64,
    ) -> SysResult<bool> {
        match sys::unlink_at(&dir, name) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        let target = if self.with_room(|| self.timeline.store().reserve.take_file(&dir, name))? {
            sys::open_file_at(&dir, name, Open::READ_WRITE)?
        } else {
            self.with_room(|| sys::create_file_at(&dir, name, Open::READ_WRITE, 0o600))?
        };
        self.with_room(|| {
            sys::truncate(&target, 0)?;
            if self.reflink {
                sys::clone_file(file, &target)
            } else {
                sys::copy_data(file, &target, size)
            }
        })?;
        if sys::stat_fd(&target)?.size != size {
            Err(Errno::EIO)
        } else {
            Ok(!self.reflink)
        }
    }

    /// Makes the new file `name` in `dir`, mode 0600, with the first `size` bytes of a file, by the
    /// cheapest way that is right: a clone where there is reflink, but for small files that are
    /// dirty. `still`: nobody can be writing to it; else only a clone is of one instant, and only a
    /// clone makes the next store through a mapping show. Gives it, open for reading and writing,
    /// and says whether it was copied.
    ///
    /// # Errors
    /// EIO if it has become shorter; ENOSPC and others. After a failure there may be a file.
    pub fn duplicate(
        &self,
        file: &File,
        dir: impl AsFd,
        name: &[u8],
        size: u64,
        still: bool,
    ) -> SysResult<(File, bool)> {
        let cloned = if self.reflink {
            cloned_part(file, size, still)
        } else {
            Some(0)
        };
        let Some(cloned) = cloned else {
            return sys::clone_to(file, dir, name).map(|made| (made, false));
        };
        let target = sys::create_file_at(dir, name, Open::READ_WRITE, 0o600)?;
        if self.has_nocow {
            sys::make_alike(file, &target);
        }
        if !self.reflink {
            sys::copy_data(file, &target, size)?;
        } else if cloned > 0 && sys::clone_head(file, &target, cloned).is_err() {
            // Larger blocks, or no space: the latter is told again.
            return sys::clone_file(file, &target).map(|()| (target, false));
        } else {
            sys::copy_apart(file, &target, cloned, size)?;
        }
        if sys::stat_fd(&target)?.size != size {
            return Err(Errno::EIO);
        }
        Ok((target, true))
    }

    /// Does what takes space or an inode of the tree for a user: see [`sys::within_limits_of`]. XFS
    /// and btrfs go by the owner alone, and keep nothing for root.
    pub(super) fn within_limits<T>(&self, uid: Option<u32>, act: impl FnOnce() -> T) -> T {
        match uid {
            Some(uid) if !self.reflink => sys::within_limits_of(uid, act),
            _ => act(),
        }
    }

    /// Removes an object that nothing refers to.
    pub(super) fn drop_object(&self, object: ObjectId) {
        if let Err(error) = self.timeline.store().layers.remove(object) {
            tracing::debug!(%error, ?object, "an unneeded object was not removed");
        }
    }

    /// Does what must not fail for want of space as long as the store has any in reserve.
    pub(super) fn with_room<T>(&self, call: impl FnMut() -> SysResult<T>) -> SysResult<T> {
        self.timeline
            .store()
            .reserve
            .with_room(call, |errno| *errno)
    }
}

/// How much of the beginning of a file is best cloned where the rest is copied, because that is
/// dirty; `None`: all of it is cloned. `still`: nobody can be writing to it.
fn cloned_part(file: &File, size: u64, still: bool) -> Option<u64> {
    let is_dirty = |end| sys::dirty_pages_before(file, end).map(|dirty| dirty > 0);
    if !still || size > PARTLY_COPIED_MAX || is_dirty(0) != Ok(true) {
        return None;
    }
    let before = size
        .saturating_sub(COPY_DIRTY_MAX)
        .next_multiple_of(CLONED_UNIT);
    (before == 0 || is_dirty(before) == Ok(false)).then_some(before)
}

/// The record of a file's content: `object` has it; `None`: it is empty, or no checkpoint shows it.
pub(super) fn data_undo(
    slot: Slot,
    object: Option<ObjectId>,
    size: u64,
    provisional: bool,
) -> Undo {
    let before = DataState {
        object,
        size,
        provisional,
    };
    Undo::Data { slot, before }
}
