//! Unlinking: fate of an inode that loses a name.
//!
//! An inode that a checkpoint may see is not deleted with its last name. It is **moved** into the
//! layer, which copies no data and prevents reuse of its number. If the file is still open, it is
//! captured instead and its name is removed.

mod places;

use std::cell::OnceCell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::branch_state::hides as hides_name;
use super::capture::data_undo;
use super::capture_ctx::{CaptureCtx, Captures, Durability, Inodes, LockWaits};
use super::change::ChangeCtx;
use super::copy_up::CopyUp;
use super::inodes::{NodeRef, at_place, target_of};
use super::shared_tables::{
    Dirs, HandoverLog, HotFiles, Locks, NodeTable, OrphanCount, RecentUnlinks, SharedTables,
};
use crate::history::attribution::Author;
use crate::history::timeline::Timeline;
use ckptfs_store::ids::{Name, ObjectId, ObjectOrigin, Slot};
use ckptfs_store::record::{Child, Key, NameTouch, Place, Record, Undo};
use ckptfs_sys::{self as sys, Access, Errno, Kind, RenameMode, Stat, SysResult, Time};

/// Fate of an inode that loses a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnlinkFate {
    /// The name can be removed: the inode is not needed, or is captured.
    Free,
    /// The inode is to be moved to this object.
    Move(ObjectId),
}

/// An inode at a name, with its attributes.
pub(super) struct EntryTarget<'a> {
    pub(super) parent: NodeRef<'a>,
    pub(super) dir: &'a Arc<OwnedFd>,
    pub(super) name: &'a Name,
    pub(super) stat: Stat,
    pub(super) slot: Slot,
    fd: OnceCell<Arc<OwnedFd>>,
    xattrs: OnceCell<sys::Xattrs>,
}

impl<'a> EntryTarget<'a> {
    /// Creates a target from known data.
    pub(super) fn known(
        parent: NodeRef<'a>,
        dir: &'a Arc<OwnedFd>,
        name: &'a Name,
        stat: Stat,
        slot: Slot,
    ) -> EntryTarget<'a> {
        EntryTarget {
            parent,
            dir,
            name,
            stat,
            slot,
            fd: OnceCell::new(),
            xattrs: OnceCell::new(),
        }
    }

    /// Adds data that was read ahead.
    pub(super) fn seen(
        self,
        xattrs: OnceCell<sys::Xattrs>,
        fd: OnceCell<Arc<OwnedFd>>,
    ) -> EntryTarget<'a> {
        EntryTarget { fd, xattrs, ..self }
    }

    /// Returns the extended attributes, without opening the inode for them alone.
    fn xattrs(&self) -> SysResult<sys::Xattrs> {
        if let Some(xattrs) = self.xattrs.get() {
            return Ok(xattrs.clone());
        }
        self.fd.get().map_or_else(
            || sys::all_xattrs_at(self.dir, self.name.as_bytes()),
            sys::all_xattrs,
        )
    }

    /// Returns an `O_PATH` descriptor, opened on first use.
    fn fd(&self) -> SysResult<&Arc<OwnedFd>> {
        if let Some(fd) = self.fd.get() {
            return Ok(fd);
        }
        let fd = Arc::new(sys::open_path_at(self.dir, self.name.as_bytes())?);
        Ok(self.fd.get_or_init(|| fd))
    }

    pub(super) fn place(&self) -> Place {
        super::inodes::place(self.parent.slot, self.name)
    }

    pub(super) fn child(&self) -> Child {
        Child {
            slot: self.slot,
            kind: self.stat.kind,
        }
    }

    /// Returns whether this is the last name.
    pub(super) fn is_last(&self) -> bool {
        self.stat.kind == Kind::Dir || self.stat.nlink <= 1
    }
}

/// Unlinks names, and preserves inodes that lose their last one.
pub struct Removal {
    timeline: Arc<Timeline>,
    locks: Arc<Locks>,
    nodes: Arc<NodeTable>,
    dirs: Arc<Dirs>,
    hot: Arc<HotFiles>,
    handover: Arc<HandoverLog>,
    orphans: Arc<OrphanCount>,
    recent_unlinks: Arc<RecentUnlinks>,
    inodes: Arc<Inodes>,
    durability: Arc<Durability>,
    captures: Arc<Captures>,
    busy: Arc<LockWaits>,
    copies: Arc<CopyUp>,
    /// Number of inodes removed through the staging directory of a branch.
    discards: AtomicU64,
}

impl Removal {
    pub(super) fn new(
        tables: &SharedTables,
        past: &CaptureCtx,
        copies: &Arc<CopyUp>,
    ) -> Arc<Removal> {
        Arc::new(Removal {
            timeline: Arc::clone(&tables.timeline),
            locks: Arc::clone(&tables.locks),
            nodes: Arc::clone(&tables.nodes),
            dirs: Arc::clone(&tables.dirs),
            hot: Arc::clone(&tables.hot),
            handover: Arc::clone(&tables.handover),
            orphans: Arc::clone(&tables.orphans),
            recent_unlinks: Arc::clone(&tables.recent_unlinks),
            inodes: Arc::clone(&past.inodes),
            durability: Arc::clone(&past.durability),
            captures: Arc::clone(&past.captures),
            busy: Arc::clone(&past.busy),
            copies: Arc::clone(copies),
            discards: AtomicU64::new(0),
        })
    }

    /// Finds the inode at a name.
    pub(super) fn target<'a>(
        &self,
        parent: NodeRef<'a>,
        dir: &'a Arc<OwnedFd>,
        name: &'a Name,
    ) -> SysResult<EntryTarget<'a>> {
        let stat = sys::stat_at(dir, name.as_bytes())?;
        if self.inodes.base().through().is_some() && hides_name(&stat) {
            return Err(Errno::ENOENT);
        }
        let slot = self.inodes.slot_of(&stat)?;
        let stat = self.inodes.base().shown(slot, stat);
        Ok(EntryTarget::known(parent, dir, name, stat, slot))
    }

    /// Returns whether a directory is empty.
    pub(super) fn is_empty(&self, target: &EntryTarget<'_>) -> SysResult<bool> {
        if self.inodes.base().through().is_some() {
            return self.inodes.base().is_empty(target.slot.into());
        }
        let fd = sys::open_path_at(target.dir, target.name.as_bytes())?;
        Ok(sys::list_dir(fd)?.is_empty())
    }

    /// Deletes an inode that is not needed. If the base of a branch has an entry at the name, a
    /// whiteout replaces it atomically.
    ///
    /// # Errors
    /// Those of unlink(2) and rmdir(2).
    pub(super) fn discard(
        &self,
        (parent, name): (NodeRef<'_>, &Name),
        dir: &OwnedFd,
        kind: Kind,
    ) -> SysResult<()> {
        let remove = |dir: &OwnedFd, name: &[u8]| match kind {
            Kind::Dir => sys::rmdir_at(dir, name),
            _ => sys::unlink_at(dir, name),
        };
        let hides = self.inodes.base().must_hide(parent, name)?;
        // A directory of a branch may contain whiteouts, which are deleted with it.
        let through = match self.inodes.base().through() {
            Some(through) if hides || kind == Kind::Dir => through,
            _ => return remove(dir, name.as_bytes()),
        };
        let number = self.discards.fetch_add(1, Ordering::Relaxed);
        let aside = format!("gone-{number}");
        let how = match hides {
            true => RenameMode::NoReplaceWhiteout,
            false => RenameMode::NoReplace,
        };
        let (from, to) = (name.as_bytes(), aside.as_bytes());
        sys::rename_at(dir, from, &*through.aside, to, how)?;
        if kind == Kind::Dir {
            let emptied = sys::open_path_at(&*through.aside, to)?;
            for entry in sys::list_dir(&emptied)? {
                if !hides_name(&sys::stat_at(&emptied, &entry.name)?) {
                    return Err(Errno::ENOTEMPTY);
                }
                sys::unlink_at(&emptied, &entry.name)?;
            }
        }
        remove(&through.aside, to)
    }

    /// Collects the records that must precede the removal of a name, and returns the fate of the
    /// inode. `more` receives the records that are not undo records.
    pub(super) fn plan_unlink(
        &self,
        target: &EntryTarget<'_>,
        undo: &mut Vec<Undo>,
        more: &mut Vec<Record>,
    ) -> SysResult<UnlinkFate> {
        let slot = target.slot;
        if self.timeline.epochs.is_born(slot) {
            return Ok(UnlinkFate::Free);
        }
        self.captures.keep_attr(
            slot,
            &target.stat,
            target_of(&target.stat, target.dir, target.name)?,
            undo,
        );
        if self.timeline.epochs.needs(&Key::Xattrs(slot)) {
            undo.push(Undo::Xattrs {
                slot,
                before: self.with_read(target, || target.xattrs())?,
            });
        }
        if self.timeline.epochs.needs(&Key::Home(slot)) {
            undo.push(Undo::Home {
                slot,
                before: target.place(),
            });
            self.captures.keep_homes(target.parent, undo);
        }
        if !target.is_last() {
            return self.plan_unlink_of_one_name(target, undo, more);
        }
        if !self.timeline.epochs.needs(&Key::Data(slot)) {
            self.timeline.epochs.confirm(slot);
            return Ok(UnlinkFate::Free);
        }
        let place = || Some(target.place());
        if self.captures.is_unseen(slot, &target.stat, place) {
            undo.push(data_undo(slot, None, target.stat.size, false));
            return Ok(UnlinkFate::Free);
        }
        if target.stat.kind == Kind::File && self.in_use(slot) {
            self.keep_content(target, undo)?;
            return Ok(UnlinkFate::Free);
        }
        let object = self.timeline.store().layers.next_object(
            self.timeline.epochs.epoch(),
            slot,
            ObjectOrigin::Moved,
        )?;
        undo.push(data_undo(slot, Some(object), target.stat.size, false));
        Ok(UnlinkFate::Move(object))
    }

    /// Handles the removal of one of several hard links. If another name is known, it becomes the
    /// recorded place of the inode; otherwise the content is captured now.
    fn plan_unlink_of_one_name(
        &self,
        target: &EntryTarget<'_>,
        undo: &mut Vec<Undo>,
        more: &mut Vec<Record>,
    ) -> SysResult<UnlinkFate> {
        let gone = target.place();
        let other = self
            .nodes
            .lock()
            .get(target.slot)
            .and_then(|node| node.links().find(|link| **link != gone).cloned());
        match other {
            Some(other) => {
                let mut places = Vec::new();
                self.keep_way(other.parent, &mut places);
                places.push((target.slot, other));
                more.push(Record::Moved { places });
            }
            None if target.stat.kind == Kind::File
                && self.timeline.epochs.needs(&Key::Data(target.slot)) =>
            {
                self.keep_content(target, undo)?
            }
            None => {}
        }
        Ok(UnlinkFate::Free)
    }

    fn keep_content(&self, target: &EntryTarget<'_>, undo: &mut Vec<Undo>) -> SysResult<()> {
        let (object, size) = self.with_read(target, || {
            let file = sys::open_file_at(target.dir, target.name.as_bytes(), Access::READ)?;
            let size = sys::stat_fd(&file)?.size;
            let object = self.captures.capture_object(target.slot, &file, size)?;
            Ok((object, size))
        })?;
        undo.push(data_undo(target.slot, object, size, false));
        Ok(())
    }

    fn with_read<T>(
        &self,
        target: &EntryTarget<'_>,
        mut act: impl FnMut() -> SysResult<T>,
    ) -> SysResult<T> {
        // Root needs neither additional permissions nor a descriptor.
        if sys::own_user() == 0 {
            return act();
        }
        let trail = at_place(target.parent.slot).step(target.name, target.slot);
        let fd = target.fd()?;
        self.captures
            .with_read(&Author::default(), NodeRef::from(&trail), fd, act)
    }

    /// Returns LATER if a probe or capture must be made first without locks. See
    /// [`LockWaits::probe_first`], [`LockWaits::capture_first`].
    pub(super) fn removal_first(
        &self,
        change: &ChangeCtx,
        target: &EntryTarget<'_>,
    ) -> SysResult<()> {
        let slot = target.slot;
        self.busy.probe_first_for_name(change, slot)?;
        let stays = || {
            self.nodes
                .lock()
                .get(slot)
                .is_some_and(|node| node.links().any(|link| *link != target.place()))
        };
        let captured = if target.is_last() {
            self.in_use(slot)
        } else {
            !stays()
        };
        if target.stat.kind == Kind::File && captured && !self.timeline.epochs.is_born(slot) {
            self.busy
                .capture_first(change, slot, false, || Ok(target.stat))?;
        }
        Ok(())
    }

    /// Returns whether the file is open, or mapped for writing.
    fn in_use(&self, slot: Slot) -> bool {
        self.nodes
            .lock()
            .get(slot)
            .is_some_and(|node| node.handles() > 0)
            || self.hot.lock().contains_key(&slot)
    }

    /// Moves an inode into the layer; `whiteout` leaves one at its name.
    pub(super) fn move_away(
        &self,
        dir: &OwnedFd,
        name: &Name,
        object: ObjectId,
        whiteout: bool,
    ) -> SysResult<()> {
        let (layer, file) = self.timeline.store().layers.location(object)?;
        let how = if whiteout {
            RenameMode::NoReplaceWhiteout
        } else {
            RenameMode::NoReplace
        };
        let rename = || {
            self.captures
                .with_room(|| sys::rename_home(dir, name.as_bytes(), &*layer, file.as_bytes(), how))
        };
        match rename() {
            Err(Errno::EACCES | Errno::EPERM) => {
                // A directory without write permission for its owner cannot be moved, because its
                // `..` changes. Its mode is recorded.
                let fd = sys::open_path_at(dir, name.as_bytes())?;
                let mode = sys::stat_fd(&fd)?.mode;
                sys::chmod_fd(&fd, 0o700)?;
                rename().inspect_err(|_| {
                    // If this also fails, the mode remains changed; the caller needs the first
                    // error.
                    let _ = sys::chmod_fd(&fd, mode);
                })
            }
            other => other,
        }
    }

    /// Voids the content record of an inode whose recorded move failed: it remains in the tree, and
    /// its next change captures it.
    pub(super) fn take_back(&self, slot: Slot) {
        self.timeline.epochs.strike(slot);
    }

    /// Called before an inode loses its last name: returns a descriptor if the kernel references
    /// the inode, to prevent reuse of its number. An inode moved into a layer keeps its number, so
    /// its descriptor is optional and limited in number. A restore that replaces more files than
    /// the descriptor limit would otherwise fail midway.
    pub(super) fn hold(
        &self,
        target: &EntryTarget<'_>,
        fate: UnlinkFate,
    ) -> SysResult<Option<Arc<OwnedFd>>> {
        let (known, open) = self
            .nodes
            .lock()
            .get(target.slot)
            .map_or((false, false), |node| (node.is_known(), node.handles() > 0));
        let needed = open || !matches!(fate, UnlinkFate::Move(_));
        if !target.is_last() || !(known || open) || (!needed && self.orphans.are_many()) {
            return Ok(None);
        }
        let held = target.fd()?;
        self.orphans.note(held);
        Ok(Some(Arc::clone(held)))
    }

    /// Updates the tables after an inode has lost a name.
    pub(super) fn lost_name(&self, target: &EntryTarget<'_>, held: Option<Arc<OwnedFd>>) {
        let place = target.place();
        let last = target.is_last();
        {
            let mut nodes = self.nodes.lock();
            if let Some(node) = nodes.get_mut(target.slot)
                && last
            {
                node.die(held);
            }
            nodes.remove_link(target.slot, &place);
        }
        if last {
            if let Some(through) = self.inodes.base().through() {
                through.note_gone(target.slot);
            }
            self.dirs.remove(target.slot);
            self.durability.note_cold(target.slot);
            self.hot.lock().remove(&target.slot);
            self.handover.leave_cold(target.slot);
            self.timeline.set_gone(target.slot);
        } else {
            self.recent_unlinks.note(target.slot);
        }
    }

    /// Removes a name, as unlink(2) and rmdir(2). The caller holds the freeze lock and the tree.
    pub fn remove_in(
        &self,
        change: &ChangeCtx,
        parent: NodeRef<'_>,
        name: &Name,
        want_dir: bool,
    ) -> SysResult<Slot> {
        self.captures
            .with_room(|| self.copies.own_name_in(parent, name))?;
        let dir = self.inodes.dir(parent)?;
        let target = self.target(parent, &dir, name)?;
        match (target.stat.kind == Kind::Dir, want_dir) {
            (true, false) => return Err(Errno::EISDIR),
            (false, true) => return Err(Errno::ENOTDIR),
            _ => {}
        }
        let _stripe = self.locks.stripe(target.slot);
        self.removal_first(change, &target)?;
        let past = !self.timeline.epochs.is_born(target.slot);
        // The filesystem itself does not see entries of the base.
        let asks = past || self.inodes.base().through().is_some();
        if want_dir && asks && !self.is_empty(&target)? {
            return Err(Errno::ENOTEMPTY);
        }
        let hides = self.inodes.base().must_hide(parent, name)?;
        let (mut undo, mut more) = (Vec::new(), Vec::new());
        self.captures.keep_dir(parent, &dir, &mut undo)?;
        let fate = self.plan_unlink(&target, &mut undo, &mut more)?;
        self.captures
            .keep_entry(parent.slot, name, Some(target.child()), &mut undo);
        if past {
            self.timeline.processes.touch_name(
                &change.author,
                parent.slot,
                name,
                NameTouch::Removed,
            );
        }
        if target.is_last() {
            self.timeline
                .processes
                .touch_gone(&change.author, target.slot);
        }
        let held = self.hold(&target, fate)?;
        self.timeline.epochs.record(&change.author, undo, more)?;
        self.nodes.leave_orphan(target.slot, held.as_ref());
        let ordered = self.order_removal(&target).and_then(|()| match hides {
            true => self.durability.order_whiteout(),
            false => Ok(()),
        });
        match fate {
            UnlinkFate::Move(object) => ordered
                .and_then(|()| self.move_away(&dir, name, object, hides))
                .inspect_err(|_| self.take_back(target.slot))?,
            UnlinkFate::Free => ordered.and_then(|()| {
                self.captures
                    .with_room(|| self.discard((parent, name), &dir, target.stat.kind))
            })?,
        }
        if hides {
            self.durability.whiteout_made(target.slot);
        }
        self.timeline.epochs.count(if past { 1 } else { -1 });
        self.lost_name(&target, held);
        Ok(target.slot)
    }

    /// Syncs the records that must be on the disk before a name of `target` is removed.
    pub(super) fn order_removal(&self, target: &EntryTarget<'_>) -> SysResult<()> {
        if !target.is_last() {
            self.durability
                .order_links(target.slot, target.stat.kind, || target.fd().cloned())?;
        }
        self.durability.order_names(&[target.slot])
    }

    /// Returns whether a name leads to a born inode that was changed less than `age` ago.
    pub fn is_young(&self, parent: Slot, name: &Name, age: Duration) -> bool {
        let _tree = self.locks.tree.read();
        let look = || {
            let stat = sys::stat_at(self.inodes.dir(parent)?, name.as_bytes())?;
            Ok::<_, Errno>((self.inodes.slot_of(&stat)?, stat.ctime))
        };
        let Ok((slot, ctime)) = look() else {
            return false;
        };
        let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
        let then = Time {
            sec: ctime.sec.saturating_add(seconds),
            nsec: ctime.nsec.saturating_add(age.subsec_nanos()),
        };
        self.timeline.epochs.is_born(slot) && then > sys::now()
    }

    /// Removes a name, as unlink(2).
    ///
    /// # Errors
    /// Those of unlink(2). ENOSPC or EIO if the capture failed; nothing changed then.
    pub fn unlink(&self, change: &ChangeCtx, parent: Slot, name: &Name) -> SysResult<Slot> {
        self.captures
            .with_room(|| self.copies.own_name(parent.into(), name))?;
        self.busy.patiently(change, || {
            let _changing = self.locks.enter();
            let _tree = self.locks.tree.write();
            self.remove_in(change, parent.into(), name, false)
        })
    }

    /// Removes a directory, as rmdir(2).
    ///
    /// # Errors
    /// Those of rmdir(2). ENOSPC or EIO if the record failed; nothing changed then. ESTALE makes
    /// the kernel repeat the lookup and retry once.
    pub fn rmdir(&self, change: &ChangeCtx, parent: Slot, name: &Name) -> SysResult<Slot> {
        self.captures
            .with_room(|| self.copies.own_name(parent.into(), name))?;
        let _changing = self.locks.enter();
        let _tree = self.locks.tree.write();
        self.locks.stale_names.check(&[(parent, name)])?;
        self.remove_in(change, parent.into(), name, true)
    }
}
