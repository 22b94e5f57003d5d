//! Undo records and captures that precede a change of an inode or a name.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::change::ChangeCtx;
use super::durable::Durability;
use super::inodes::{Inodes, NodeRef};
use super::owner_access::{READ, lent};
use super::shared_tables::{BlockingCalls, HotFiles, NodeTable, SharedTables};
use crate::history::attribution::Author;
use crate::history::timeline::Timeline;
use ckptfs_store::ids::{Name, ObjectId, ObjectOrigin, Slot};
use ckptfs_store::record::{AttrState, Child, DataState, Key, Place, Undo};
use ckptfs_sys::{self as sys, Access, Errno, Kind, RenameMode, Stat, SysResult};

/// Dirty files up to this size are copied instead of cloned. Larger files have their last part
/// copied if only that part is dirty (an append). A clone would first write the pages back, which
/// costs more (FACTS: 110 us against 8).
const COPY_DIRTY_MAX: u64 = 16 * 1024;
/// Larger files are always cloned as a whole.
pub(super) const PARTLY_COPIED_MAX: u64 = 1024 * 1024;
/// The cloned part is a multiple of this, and so of the block size of most filesystems.
const CLONED_UNIT: u64 = 4096;

/// Makes undo records, and captures content.
pub struct Captures {
    timeline: Arc<Timeline>,
    reflink: bool,
    /// The filesystem supports files without copy-on-write (btrfs).
    has_nocow: bool,
    nodes: Arc<NodeTable>,
    hot: Arc<HotFiles>,
    calls: Arc<BlockingCalls>,
    inodes: Arc<Inodes>,
    durability: Arc<Durability>,
}

impl Captures {
    pub(super) fn new(
        tables: &SharedTables,
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

    /// Records the place of an inode and of all directories above it, where the open epoch has
    /// no record. All known names of a file are recorded, because the change affects each path.
    pub(super) fn keep_homes(&self, at: NodeRef<'_>, undo: &mut Vec<Undo>) {
        self.climb_homes(
            at,
            &mut HashSet::new(),
            |slot| self.timeline.epochs.needs(&Key::Home(slot)),
            undo,
        );
    }

    /// As [`Captures::keep_homes`], for the next epoch: records of the open epoch are ignored.
    pub(super) fn keep_homes_ahead(
        &self,
        slot: Slot,
        known: &mut HashSet<Slot>,
        ahead: &mut Vec<Undo>,
    ) {
        self.climb_homes(slot.into(), known, |_| true, ahead);
    }

    /// Visits each inode once: stale or forged places can form a cycle.
    fn climb_homes(
        &self,
        at: NodeRef<'_>,
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
                open.push(NodeRef {
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

    /// Returns the attributes of an inode as users see them: see `Inheritance::shown`.
    pub(super) fn shown(&self, slot: Slot, stat: Stat) -> Stat {
        self.inodes.base().shown(slot, stat)
    }

    /// Records the attributes of an inode as users see them (`Inheritance::shown`).
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

    /// Records attributes and place of a directory whose entries are about to change.
    pub(super) fn keep_dir(
        &self,
        dir: NodeRef<'_>,
        fd: &OwnedFd,
        undo: &mut Vec<Undo>,
    ) -> SysResult<()> {
        if self.timeline.epochs.needs(&Key::Attr(dir.slot)) {
            let stat = self.inodes.base().shown(dir.slot, sys::stat_fd(fd)?);
            self.keep_attr(dir.slot, &stat, None, undo);
        }
        // The place may have been unknown when the attributes were recorded.
        self.keep_homes(dir, undo);
        Ok(())
    }

    /// Records the target of a directory entry.
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

    /// Returns whether no checkpoint shows a file that is about to change for the first time in the
    /// open epoch and is not known as born: see [`Timeline::is_unseen`]. The content of such a file
    /// is not captured. Its records are made nevertheless, because baselines and captures ahead
    /// rely on them. The caller holds the freeze lock.
    pub(super) fn is_unseen(
        &self,
        slot: Slot,
        stat: &Stat,
        place: impl Fn() -> Option<Place>,
    ) -> bool {
        // An inherited inode of a branch existed before the branch.
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

    /// Captures the current content of a file if a checkpoint can see it. The caller holds the
    /// freeze lock and the file's stripe.
    ///
    /// On return the content survives `kill -9`, and the file may be changed.
    ///
    /// # Errors
    /// ENOSPC, EIO: nothing was captured and the file must not be changed.
    pub(super) fn capture(
        &self,
        change: &ChangeCtx,
        at: NodeRef<'_>,
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

    /// As [`Captures::capture`], for an open descriptor that may be write-only.
    pub(super) fn capture_open(
        &self,
        change: &ChangeCtx,
        at: NodeRef<'_>,
        (file, readable): (&File, bool),
        provisional: bool,
    ) -> SysResult<()> {
        self.with_read(&change.author, at, file, || {
            if readable {
                return self.capture(change, at, file, provisional);
            }
            let source = sys::reopen(file, Access::READ)?;
            self.capture(change, at, &source, provisional)
        })
    }

    /// Runs an operation that needs read permission for the owner. If that is missing, the mode is
    /// recorded and changed temporarily: see `lent`. The caller holds the freeze lock.
    pub(super) fn with_read<T>(
        &self,
        author: &Author,
        at: NodeRef<'_>,
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

    /// Records the capture of a file.
    pub(super) fn record_capture(
        &self,
        change: &ChangeCtx,
        at: NodeRef<'_>,
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
            // Without reflink the live file is overwritten in place, and the kernel decides when.
            self.timeline.store().journal.sync()?;
        }
        self.timeline.epochs.count(1);
        Ok(())
    }

    /// Clones or copies a file into the layer of the open epoch. Returns `None` if the file is
    /// empty.
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
        epoch: ckptfs_api::Epoch,
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

    /// Moves an unreferenced object into the layer of a later epoch.
    pub(super) fn move_object(
        &self,
        object: ObjectId,
        epoch: ckptfs_api::Epoch,
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
            let kept = sys::open_file_at(&*to, new_name.as_bytes(), Access::READ)?;
            sys::fsync(kept).inspect_err(|_| self.timeline.store().journal.latch())?;
        }
        self.durability.note_captured(moved, false);
        Ok(moved)
    }

    fn fill_object(&self, object: ObjectId, file: &File, size: u64) -> SysResult<()> {
        let (dir, name) = self.timeline.store().layers.location(object)?;
        // A file that is captured without locks is claimed: a sync of the whole tree would not wait
        // for it.
        let still = !self.hot.has(object.slot)
            && self.durability.may_copy()
            && !self.calls.is_claimed(object.slot);
        let copied = match self.duplicate(file, &*dir, name.as_bytes(), size, still) {
            Err(Errno::ENOSPC) => self.duplicate_in_need(file, &*dir, name.as_bytes(), size),
            kept => kept.map(|(_, copied)| copied),
        }?;
        if !self.reflink {
            let kept = sys::open_file_at(&*dir, name.as_bytes(), Access::READ)?;
            // The kernel reports a failed writeback only once, so no further captures are allowed.
            sys::fsync(kept).inspect_err(|_| self.timeline.store().journal.latch())?;
        }
        self.durability.note_captured(object, copied);
        Ok(())
    }

    /// As [`Captures::duplicate`], on a full filesystem. Uses an inode and the ballast of the
    /// reserve, and always clones where reflink is available.
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
            sys::open_file_at(&dir, name, Access::READ_WRITE)?
        } else {
            self.with_room(|| sys::create_file_at(&dir, name, Access::READ_WRITE, 0o600))?
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

    /// Creates the file `name` in `dir`, mode 0600, with the first `size` bytes of a file, by the
    /// cheapest correct method. With reflink that is a clone, except for small dirty files. `still`
    /// states that no process can write to the file. Otherwise only a clone is a consistent image,
    /// and only a clone makes the next store through a mapping detectable. Returns the new file,
    /// open for reading and writing, and whether it was copied.
    ///
    /// # Errors
    /// EIO if the file became shorter; ENOSPC and others. A failure may leave the new file behind.
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
        let target = sys::create_file_at(dir, name, Access::READ_WRITE, 0o600)?;
        if self.has_nocow {
            sys::make_alike(file, &target);
        }
        if !self.reflink {
            sys::copy_data(file, &target, size)?;
        } else if cloned > 0 && sys::clone_head(file, &target, cloned).is_err() {
            // The block size is larger, or space ran out: a clone of the whole file reports the
            // latter.
            return sys::clone_file(file, &target).map(|()| (target, false));
        } else {
            sys::copy_apart(file, &target, cloned, size)?;
        }
        if sys::stat_fd(&target)?.size != size {
            return Err(Errno::EIO);
        }
        Ok((target, true))
    }

    /// Runs a call that allocates blocks or an inode of the tree on behalf of a user: see
    /// [`sys::within_limits_of`]. XFS and btrfs charge the owner alone, and reserve nothing for
    /// root.
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

    /// Runs a call that must not fail with ENOSPC while the store has space in reserve.
    pub(super) fn with_room<T>(&self, call: impl FnMut() -> SysResult<T>) -> SysResult<T> {
        self.timeline
            .store()
            .reserve
            .with_room(call, |errno| *errno)
    }
}

/// Returns the length of the clean head of a file that is best cloned while the dirty rest is
/// copied. Returns `None` if the whole file is to be cloned. `still` states that no process can
/// write to it.
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

/// Returns the undo record of a file's content. `object` has the content; `None` if the file is
/// empty or no checkpoint shows it.
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
