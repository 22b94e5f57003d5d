//! What happens to an inode that loses a name.
//!
//! The last name of an inode with a past is not removed: the inode is **moved** into the layer,
//! which touches no data and keeps its number from being given away. Where somebody still has it
//! open it is captured like a change instead, and its name is removed.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::capture::data_undo;
use super::change::Change;
use super::copy_up::CopyUp;
use super::inodes::{At, at_place, target_of};
use super::past::{Busy, Captures, Durability, Inodes, Past};
use super::tables::{Dirs, Handover, HotFiles, Locks, NodeTable, Orphans, RecentUnlinks, Tables};
use super::through::hides as hides_name;
use crate::history::attribution::Author;
use crate::history::timeline::Timeline;
use crate::store::ids::{Name, ObjectId, ObjectOrigin, Slot};
use crate::store::record::{Child, Key, NameTouch, Place, Record, Undo};
use crate::sys::{self, Errno, Kind, Open, RenameMode, Stat, SysResult, Time};

/// What will become of an inode that loses a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The name can be removed: nothing of the inode is needed, or all is kept.
    Free,
    /// The inode is to be moved here.
    Move(ObjectId),
}

/// An inode at a name, found and stat'ed.
pub(super) struct Target<'a> {
    pub(super) parent: At<'a>,
    pub(super) dir: &'a Arc<OwnedFd>,
    pub(super) name: &'a Name,
    pub(super) stat: Stat,
    pub(super) slot: Slot,
    fd: OnceCell<Arc<OwnedFd>>,
    xattrs: OnceCell<sys::Xattrs>,
}

impl<'a> Target<'a> {
    /// What is at a name, as is known.
    pub(super) fn known(
        parent: At<'a>,
        dir: &'a Arc<OwnedFd>,
        name: &'a Name,
        stat: Stat,
        slot: Slot,
    ) -> Target<'a> {
        Target {
            parent,
            dir,
            name,
            stat,
            slot,
            fd: OnceCell::new(),
            xattrs: OnceCell::new(),
        }
    }

    /// With what was asked of it already.
    pub(super) fn seen(
        self,
        xattrs: OnceCell<sys::Xattrs>,
        fd: OnceCell<Arc<OwnedFd>>,
    ) -> Target<'a> {
        Target { fd, xattrs, ..self }
    }

    /// Extended attributes. It is not opened for them alone.
    fn xattrs(&self) -> SysResult<sys::Xattrs> {
        if let Some(xattrs) = self.xattrs.get() {
            return Ok(xattrs.clone());
        }
        self.fd.get().map_or_else(
            || sys::all_xattrs_at(self.dir, self.name.as_bytes()),
            sys::all_xattrs,
        )
    }

    /// A descriptor that names it (`O_PATH`), opened when it is first asked for.
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

    /// This removal takes the last name.
    pub(super) fn is_last(&self) -> bool {
        self.stat.kind == Kind::Dir || self.stat.nlink <= 1
    }
}

/// Takes names from inodes, and keeps those that lose their last one.
pub struct Removal {
    timeline: Arc<Timeline>,
    locks: Arc<Locks>,
    nodes: Arc<NodeTable>,
    dirs: Arc<Dirs>,
    hot: Arc<HotFiles>,
    handover: Arc<Handover>,
    orphans: Arc<Orphans>,
    recent_unlinks: Arc<RecentUnlinks>,
    inodes: Arc<Inodes>,
    durability: Arc<Durability>,
    captures: Arc<Captures>,
    busy: Arc<Busy>,
    copies: Arc<CopyUp>,
    /// Inodes that were discarded by way of another directory.
    discards: AtomicU64,
}

impl Removal {
    pub(super) fn new(tables: &Tables, past: &Past, copies: &Arc<CopyUp>) -> Arc<Removal> {
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

    /// Finds what is at a name.
    pub(super) fn target<'a>(
        &self,
        parent: At<'a>,
        dir: &'a Arc<OwnedFd>,
        name: &'a Name,
    ) -> SysResult<Target<'a>> {
        let stat = sys::stat_at(dir, name.as_bytes())?;
        if self.inodes.base().through().is_some() && hides_name(&stat) {
            return Err(Errno::ENOENT);
        }
        let slot = self.inodes.slot_of(&stat)?;
        let stat = self.inodes.base().shown(slot, stat);
        Ok(Target::known(parent, dir, name, stat, slot))
    }

    /// A directory has no names.
    pub(super) fn is_empty(&self, target: &Target<'_>) -> SysResult<bool> {
        if self.inodes.base().through().is_some() {
            return self.inodes.base().is_empty(target.slot.into());
        }
        let fd = sys::open_path_at(target.dir, target.name.as_bytes())?;
        Ok(sys::list_dir(fd)?.is_empty())
    }

    /// Removes what is at a name, and nothing of which is needed. Where the base of a branch has
    /// something there it is hidden in the same step.
    ///
    /// # Errors
    /// Those of unlink(2) and rmdir(2).
    pub(super) fn discard(
        &self,
        (parent, name): (At<'_>, &Name),
        dir: &OwnedFd,
        kind: Kind,
    ) -> SysResult<()> {
        let remove = |dir: &OwnedFd, name: &[u8]| match kind {
            Kind::Dir => sys::rmdir_at(dir, name),
            _ => sys::unlink_at(dir, name),
        };
        let hides = self.inodes.base().must_hide(parent, name)?;
        // A directory of a branch may have whiteouts in it, which go with it.
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

    /// Collects what must be recorded before an inode loses this name, and decides what becomes of
    /// it. `more` gets the records that are no undo.
    pub(super) fn plan_unlink(
        &self,
        target: &Target<'_>,
        undo: &mut Vec<Undo>,
        more: &mut Vec<Record>,
    ) -> SysResult<Fate> {
        let slot = target.slot;
        if self.timeline.epochs.is_born(slot) {
            return Ok(Fate::Free);
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
            return Ok(Fate::Free);
        }
        let place = || Some(target.place());
        if self.captures.is_unseen(slot, &target.stat, place) {
            undo.push(data_undo(slot, None, target.stat.size, false));
            return Ok(Fate::Free);
        }
        if target.stat.kind == Kind::File && self.in_use(slot) {
            self.keep_content(target, undo)?;
            return Ok(Fate::Free);
        }
        let object = self.timeline.store().layers.next_object(
            self.timeline.epochs.epoch(),
            slot,
            ObjectOrigin::Moved,
        )?;
        undo.push(data_undo(slot, Some(object), target.stat.size, false));
        Ok(Fate::Move(object))
    }

    /// One of several hard links goes: the others lead to the inode still, if we know one; if not,
    /// all of it is kept now.
    fn plan_unlink_of_one_name(
        &self,
        target: &Target<'_>,
        undo: &mut Vec<Undo>,
        more: &mut Vec<Record>,
    ) -> SysResult<Fate> {
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
        Ok(Fate::Free)
    }

    fn keep_content(&self, target: &Target<'_>, undo: &mut Vec<Undo>) -> SysResult<()> {
        let (object, size) = self.with_read(target, || {
            let file = sys::open_file_at(target.dir, target.name.as_bytes(), Open::READ)?;
            let size = sys::stat_fd(&file)?.size;
            let object = self.captures.capture_object(target.slot, &file, size)?;
            Ok((object, size))
        })?;
        undo.push(data_undo(target.slot, object, size, false));
        Ok(())
    }

    fn with_read<T>(
        &self,
        target: &Target<'_>,
        mut act: impl FnMut() -> SysResult<T>,
    ) -> SysResult<T> {
        // Root needs no rights lent, and no descriptor for that.
        if sys::own_user() == 0 {
            return act();
        }
        let trail = at_place(target.parent.slot).step(target.name, target.slot);
        let fd = target.fd()?;
        self.captures
            .with_read(&Author::default(), At::from(&trail), fd, act)
    }

    /// What must be done before with no lock held: LATER. See [`Busy::probe_first`],
    /// [`Busy::capture_first`].
    pub(super) fn removal_first(&self, change: &Change, target: &Target<'_>) -> SysResult<()> {
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

    /// Somebody has it open, or mapped to be written.
    fn in_use(&self, slot: Slot) -> bool {
        self.nodes
            .lock()
            .get(slot)
            .is_some_and(|node| node.handles() > 0)
            || self.hot.lock().contains_key(&slot)
    }

    /// Moves an inode into the layer, from where it is; `whiteout`: one is left there.
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
                // A directory that its owner may not write cannot be moved: its `..` would change.
                // Its mode is on record.
                let fd = sys::open_path_at(dir, name.as_bytes())?;
                let mode = sys::stat_fd(&fd)?.mode;
                sys::chmod_fd(&fd, 0o700)?;
                rename().inspect_err(|_| {
                    // It keeps a mode that lets its owner write, if that fails too; what failed
                    // first is what the caller must know.
                    let _ = sys::chmod_fd(&fd, mode);
                })
            }
            other => other,
        }
    }

    /// An inode was not moved although the record says so: it is still in the tree, and its content
    /// is to be captured when it changes.
    pub(super) fn take_back(&self, slot: Slot) {
        self.timeline.epochs.strike(slot);
    }

    /// Before an inode loses its last name: takes hold of it, if the kernel knows it, so that its
    /// number is not given to another meanwhile. One that is moved into a layer keeps its number
    /// there, and is held only while there are not too many: a restore that replaces more files
    /// than there may be descriptors would fail in the middle.
    pub(super) fn hold(&self, target: &Target<'_>, fate: Fate) -> SysResult<Option<Arc<OwnedFd>>> {
        let (known, open) = self
            .nodes
            .lock()
            .get(target.slot)
            .map_or((false, false), |node| (node.is_known(), node.handles() > 0));
        let needed = open || !matches!(fate, Fate::Move(_));
        if !target.is_last() || !(known || open) || (!needed && self.orphans.are_many()) {
            return Ok(None);
        }
        let held = target.fd()?;
        self.orphans.note(held);
        Ok(Some(Arc::clone(held)))
    }

    /// After an inode has lost a name: the tables follow.
    pub(super) fn lost_name(&self, target: &Target<'_>, held: Option<Arc<OwnedFd>>) {
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

    /// Removes a name: unlink(2) and rmdir(2). The caller holds the freeze lock and the tree.
    pub fn remove_in(
        &self,
        change: &Change,
        parent: At<'_>,
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
        // The filesystem itself would not see what the base has.
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
            Fate::Move(object) => ordered
                .and_then(|()| self.move_away(&dir, name, object, hides))
                .inspect_err(|_| self.take_back(target.slot))?,
            Fate::Free => ordered.and_then(|()| {
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

    /// What must be on the disk before a name of `target` is removed.
    pub(super) fn order_removal(&self, target: &Target<'_>) -> SysResult<()> {
        if !target.is_last() {
            self.durability
                .order_links(target.slot, target.stat.kind, || target.fd().cloned())?;
        }
        self.durability.order_names(&[target.slot])
    }

    /// Whether a name leads to something that no checkpoint can see and that was changed less than
    /// `age` ago.
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

    /// unlink(2).
    ///
    /// # Errors
    /// Those of unlink(2); ENOSPC or EIO if the past could not be kept: then nothing changed.
    pub fn unlink(&self, change: &Change, parent: Slot, name: &Name) -> SysResult<Slot> {
        self.captures
            .with_room(|| self.copies.own_name(parent.into(), name))?;
        self.busy.patiently(change, || {
            let _changing = self.locks.enter();
            let _tree = self.locks.tree.write();
            self.remove_in(change, parent.into(), name, false)
        })
    }

    /// rmdir(2).
    ///
    /// # Errors
    /// Those of rmdir(2); ENOSPC or EIO if the past could not be kept: then nothing changed. ESTALE:
    /// the kernel is to look the name up anew, and to try once more.
    pub fn rmdir(&self, change: &Change, parent: Slot, name: &Name) -> SysResult<Slot> {
        self.captures
            .with_room(|| self.copies.own_name(parent.into(), name))?;
        let _changing = self.locks.enter();
        let _tree = self.locks.tree.write();
        self.locks.stale_names.check(&[(parent, name)])?;
        self.remove_in(change, parent.into(), name, true)
    }

    /// Something with a past is to be found in this directory: if it was made in the open epoch,
    /// records where it is, and those above it.
    pub(super) fn keep_way(&self, dir: Slot, places: &mut Vec<(Slot, Place)>) {
        let (mut at, mut passed) = (dir, HashSet::new());
        while at != Slot::ROOT
            && at != Slot::STAGING
            && self.timeline.epochs.is_born(at)
            && passed.insert(at)
        {
            let Some(place) = self.inodes.likeliest_place(at) else {
                return;
            };
            let up = place.parent;
            self.keep_place(at, place, places);
            at = up;
        }
    }

    pub(super) fn keep_place(&self, slot: Slot, place: Place, places: &mut Vec<(Slot, Place)>) {
        if self.timeline.lookup.place(slot).as_ref() != Some(&place) {
            places.push((slot, place));
        }
    }
}
