//! Recovery after an unclean end of a daemon: operations with two steps are completed or reverted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::capture_ctx::{CaptureCtx, Captures, Inodes};
use super::change::ChangeCtx;
use super::inodes::{NodeRef, at_place, is_elsewhere};
use super::remove::Removal;
use super::shared_tables::{HotFiles, Locks, SharedTables};
use crate::history::attribution::Author;
use crate::history::present::{LiveTree, Trail};
use crate::history::timeline::{RecoveryState, Timeline, UncertainRename};
use ckptfs_store::ids::{Name, ObjectId, ObjectOrigin, Slot};
use ckptfs_store::layers::file_name;
use ckptfs_store::record::{Place, Record};
use ckptfs_sys::{self as sys, Errno, Kind, RenameMode, SysResult, Time};

/// A larger file that is open for writing through the backing directory is not copied at each
/// checkpoint, because that would block all changes.
const HELD_COPIED_MAX: u64 = 16 << 20;

/// Makes tree and history consistent.
pub struct Recovery {
    timeline: Arc<Timeline>,
    reflink: bool,
    locks: Arc<Locks>,
    hot: Arc<HotFiles>,
    inodes: Arc<Inodes>,
    captures: Arc<Captures>,
    removal: Arc<Removal>,
}

impl Recovery {
    pub(super) fn new(
        tables: &SharedTables,
        past: &CaptureCtx,
        removal: &Arc<Removal>,
    ) -> Recovery {
        Recovery {
            timeline: Arc::clone(&tables.timeline),
            reflink: tables.reflink,
            locks: Arc::clone(&tables.locks),
            hot: Arc::clone(&tables.hot),
            inodes: Arc::clone(&past.inodes),
            captures: Arc::clone(&past.captures),
            removal: Arc::clone(removal),
        }
    }

    /// Makes tree and history consistent, except for [`Recovery::watch_mapped`], which must follow.
    /// The cost depends on the changes in the open epoch. To be called before the tree is served.
    ///
    /// # Errors
    /// EIO if the journal or a layer cannot be written or read.
    pub fn recover(&self, aftermath: &RecoveryState) -> SysResult<()> {
        for (slot, place, object, whiteout) in &aftermath.replacing {
            self.finish_replacing(*slot, place, (*object, *whiteout))?;
            let layers = &self.timeline.store().layers;
            if object.epoch != self.timeline.epochs.epoch() && !layers.exists(*object)? {
                self.timeline.strike_unmade(*object)?;
            }
            self.set_apart(*object)?;
        }
        aftermath
            .moved_away
            .iter()
            .try_for_each(|object| self.set_apart(*object))?;
        self.strike_unmade()?;
        self.sweep_objects();
        Ok(())
    }

    /// Returns the latest ctime of the inodes that have a record in the open epoch or were created
    /// in it. The cost depends on the changes in that epoch.
    ///
    /// It is a lower bound of the time at which a killed daemon ended, because only such inodes can
    /// change without a new record. Inodes with a record in a closed epoch cannot; including them
    /// would attribute changes made after the kill to the daemon.
    pub fn last_recorded_change(&self) -> Option<Time> {
        let mut last = None;
        for trail in self.recent(false) {
            last = last.max(self.inodes.stat(&trail).ok().map(|stat| stat.ctime));
        }
        last
    }

    /// Returns all inodes that may have changed in the open epoch without a new record. These are
    /// inodes with a record, entries with a record, and the contents of directories without
    /// records, because those were created in the epoch. `all` includes the records of closed
    /// epochs in memory. Without any checkpoint no records exist: `all` then yields the whole tree,
    /// otherwise nothing is returned.
    fn recent(&self, all: bool) -> impl Iterator<Item = Arc<Trail>> {
        let (slots, names) = self.timeline.epochs.touched_now(all);
        let mut found: Vec<Arc<Trail>> = slots.iter().map(|slot| at_place(*slot)).collect();
        let mut made = if all && self.timeline.catalogue.newest_stored().is_none() {
            vec![Trail::root()]
        } else {
            Vec::new()
        };
        for (dir, name) in names {
            let Ok(Some(child)) = self.inodes.child(&at_place(dir), &name) else {
                continue;
            };
            let trail = at_place(dir).step(&name, child.slot);
            if child.kind == Kind::Dir && !slots.contains(&child.slot) {
                made.push(Arc::clone(&trail));
            }
            found.push(trail);
        }
        let below = std::iter::from_fn(move || {
            // The contents of a new directory have no records.
            let dir = made.pop()?;
            let names = self.inodes.list(&dir).unwrap_or_else(|errno| {
                tracing::warn!(path = %String::from_utf8_lossy(&dir.path()).escape_debug(), %errno, "a directory cannot be looked at");
                Vec::new()
            });
            let trails: Vec<(Arc<Trail>, Kind)> = names
                .into_iter()
                .map(|(name, child)| (dir.step(&name, child.slot), child.kind))
                .collect();
            made.extend(
                trails
                    .iter()
                    .filter(|(_, kind)| *kind == Kind::Dir)
                    .map(|(trail, _)| Arc::clone(trail)),
            );
            Some(trails)
        });
        found
            .into_iter()
            .chain(below.flatten().map(|(trail, _)| trail))
    }

    /// Finishes a replacing rename whose exchange was made: the replaced inode may still have the
    /// source's name. After a power cut the btrfs log may have restored that name in addition to
    /// the one in the layer.
    fn finish_replacing(
        &self,
        slot: Slot,
        place: &Place,
        (object, whiteout): (ObjectId, bool),
    ) -> SysResult<()> {
        let dir = match self.inodes.dir(place.parent) {
            Err(errno) if is_elsewhere(errno) => return Ok(()),
            dir => dir?,
        };
        match sys::stat_at(&dir, place.name.as_bytes()) {
            Ok(stat) if self.inodes.slot_of(&stat) == Ok(slot) => {
                let layers = &self.timeline.store().layers;
                match layers.stat(object)? {
                    None => {}
                    // rename(2) onto another name of the same inode has no effect.
                    Some(kept) if kept.ino == stat.ino => layers.remove(object)?,
                    // The previous recovery replaced the inode in the layer by a copy.
                    Some(_) => return Ok(()),
                }
                // Without a whiteout, the entry of the base would be visible again.
                self.removal.move_away(&dir, &place.name, object, whiteout)
            }
            Ok(_) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Voids the records of the open epoch whose object is missing. A moved inode that is not in
    /// the layer is still in the tree. A clone that no checkpoint reads was freed with the
    /// checkpoint that did; the void lets the next checkpoint capture the file again. A missing
    /// clone that a checkpoint reads is damage: its record stays.
    fn strike_unmade(&self) -> SysResult<()> {
        for (slot, data) in self.timeline.epochs.data_records() {
            let Some(object) = data.object else { continue };
            let (layer, file) = self.timeline.store().layers.location(object)?;
            if sys::stat_at(&*layer, file.as_bytes()) == Err(Errno::ENOENT) {
                if object.origin == ObjectOrigin::Cloned
                    && self.timeline.reads_open(slot, object)?
                {
                    tracing::error!(
                        slot = slot.0,
                        "a captured version is missing from the store"
                    );
                    continue;
                }
                self.timeline.epochs.strike(slot);
            }
        }
        Ok(())
    }

    /// Replaces an inode in a layer by a copy if it has a second name. After a power cut the btrfs
    /// log may restore a name that the inode had before its move into the layer. Writes through
    /// that name would change the stored version.
    fn set_apart(&self, object: ObjectId) -> SysResult<()> {
        let store = self.timeline.store();
        let stat = store.layers.stat(object)?;
        let Some(stat) = stat.filter(|stat| stat.kind == Kind::File && stat.nlink > 1) else {
            return Ok(());
        };
        let kept = store.layers.open(object)?;
        let (tmp, name) = (store.layout.tmp_dir()?, file_name(object));
        match sys::unlink_at(tmp, name.as_bytes()) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        let copy = self.captures.with_room(|| {
            sys::create_file_at(tmp, name.as_bytes(), sys::Access::READ_WRITE, 0o600)
        })?;
        self.captures.with_room(|| {
            if self.reflink {
                sys::clone_file(&kept, &copy)
            } else {
                sys::copy_data(&kept, &copy, stat.size)
            }
        })?;
        for (name, value) in sys::file_xattrs(&kept)? {
            sys::set_file_xattr(&copy, &name, &value)?;
        }
        match sys::set_file_owner(&copy, stat.uid, stat.gid) {
            Err(Errno::EPERM) if sys::ids().0 != 0 => {}
            owned => owned?,
        }
        sys::set_file_mode(&copy, stat.mode)?;
        sys::set_file_times(&copy, stat.atime, stat.mtime)?;
        sys::fsync(&copy)?;
        let (layer, name) = store.layers.location(object)?;
        tracing::info!(
            slot = object.slot.0,
            "an inode in a layer had a name in the tree again: the layer has a copy of its own now"
        );
        sys::rename_home(
            tmp,
            name.as_bytes(),
            &*layer,
            name.as_bytes(),
            RenameMode::Replace,
        )
    }

    /// Marks files as hot again that processes have open or mapped for writing with passthrough.
    /// They outlive the daemon and are written to without a request. A file without a record was
    /// born in the open epoch, or no checkpoint could see it. To be called before the tree is
    /// served.
    ///
    /// `told` states that the previous worker left a list of hot files.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM, EIO: changes of the file would be missed.
    pub fn watch_mapped(&self, told: bool) -> SysResult<()> {
        let files: Box<dyn Iterator<Item = Arc<Trail>>> = if told {
            Box::new(
                self.timeline
                    .epochs
                    .data_records()
                    .into_iter()
                    .map(|(slot, _)| at_place(slot)),
            )
        } else if self.reflink {
            Box::new(self.recent(true))
        } else {
            // No passthrough without reflink.
            return Ok(());
        };
        files
            .into_iter()
            .try_for_each(|trail| match self.watch_if_held(&trail) {
                // Stores through a mapping of the file would be missed.
                Err(errno @ (Errno::EIO | Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM)) => {
                    Err(errno)
                }
                Ok(_) | Err(_) => Ok(()),
            })
    }

    /// As `watch_if_held`, for the file at a path, with inode number `ino` if that is known. The
    /// tree may be served already.
    ///
    /// # Errors
    /// As `watch_if_held`; ENOENT.
    pub fn watch_held(&self, path: &[u8], ino: Option<u64>) -> SysResult<bool> {
        let _changing = self.locks.changing();
        let _tree = self.locks.tree.read();
        let mut trail = Trail::root();
        for name in path.split(|byte| *byte == b'/') {
            if matches!(name, b"" | b"." | b"..") {
                return Err(Errno::EINVAL);
            }
            let name = Name::new(name);
            let child = self.inodes.child(&trail, &name)?.ok_or(Errno::ENOENT)?;
            trail = trail.step(&name, child.slot);
        }
        if ino.is_some_and(|ino| self.inodes.slot_of_ino(ino) != Ok(trail.slot)) {
            return Err(Errno::ESTALE);
        }
        let _stripe = self.locks.stripe(trail.slot);
        self.watch_if_held(&trail)
    }

    /// Captures a file and marks it as hot if a process has it open or mapped for writing, possibly
    /// through the backing directory. Returns `false` if no process has. The caller holds the
    /// freeze lock, the tree and the stripe, or the tree is not served yet.
    ///
    /// # Errors
    /// Those of open(2). EACCES if the lease on another user's file is not permitted. ESTALE,
    /// EINVAL if it is not a regular file. EFBIG if it is large and would be copied at each
    /// checkpoint. ENOSPC or EIO if the capture failed.
    fn watch_if_held(&self, trail: &Arc<Trail>) -> SysResult<bool> {
        if self.inodes.base().is_inherited(trail.slot) {
            // An inherited inode has no file here; the daemon reads a private copy.
            return Ok(false);
        }
        let (file, stat) = self.inodes.open_file(trail.into(), sys::Access::READ)?;
        if sys::lease_free(&file)? {
            return Ok(false);
        }
        if !self.reflink && stat.size > HELD_COPIED_MAX {
            return Err(Errno::EFBIG);
        }
        // The capture needs its places.
        let mut at = trail;
        while let Some(up) = &at.up {
            self.inodes.found.remember(up.slot, &at.name, at.slot);
            at = up;
        }
        let file = Arc::new(file);
        self.hot.note(trail.slot, &file, true, None)?;
        self.hot.note_syncs(trail.slot);
        self.hot.note_past_mount(trail.slot);
        self.captures
            .capture(&ChangeCtx::default(), trail.into(), &file, true)?;
        Ok(true)
    }

    /// Verifies the renames recorded last. If one did not happen, the recorded place of the inode
    /// is corrected.
    ///
    /// # Errors
    /// As [`Recovery::recover`]. To be called before it, because it requires correct places.
    pub fn verify_moved(&self, moved: &HashMap<Slot, UncertainRename>) -> SysResult<()> {
        let is_at = |slot: Slot, place: &Place| {
            let dir = self.inodes.dir(NodeRef::from(place.parent));
            dir.and_then(|dir| sys::stat_at(&dir, place.name.as_bytes()))
                .and_then(|stat| self.inodes.slot_of(&stat))
                == Ok(slot)
        };
        // A corrected directory may make further inodes reachable: repeated until nothing changes.
        let mut open: Vec<(Slot, &UncertainRename)> = moved
            .iter()
            .filter(|(slot, moved)| !is_at(**slot, &moved.to))
            .map(|(slot, moved)| (*slot, moved))
            .collect();
        loop {
            let (before, mut left) = (open.len(), Vec::new());
            for (slot, moved) in open {
                match std::iter::once(&moved.to)
                    .chain(moved.before.iter().rev())
                    .find(|place| is_at(slot, place))
                {
                    Some(place) if *place == moved.to => {}
                    Some(place) => self.timeline.epochs.record(
                        &Author::default(),
                        Vec::new(),
                        vec![Record::Moved {
                            places: vec![(slot, place.clone())],
                        }],
                    )?,
                    None => left.push((slot, moved)),
                }
            }
            if left.is_empty() || left.len() == before {
                left.iter().for_each(|(slot, moved)| tracing::debug!(slot = slot.0, to = ?moved.to, "a renamed inode is at none of its places"));
                return Ok(());
            }
            open = left;
        }
    }

    /// Removes objects of the open epoch without a record, and objects of the next epoch: captured,
    /// but not recorded before the kill.
    fn sweep_objects(&self) {
        let epoch = self.timeline.epochs.epoch();
        let named: HashSet<ObjectId> = self
            .timeline
            .epochs
            .data_records()
            .into_iter()
            .filter_map(|(_, data)| data.object)
            .collect();
        let layers = &self.timeline.store().layers;
        for object in [epoch, epoch.next()]
            .into_iter()
            .flat_map(|epoch| layers.list(epoch).unwrap_or_default())
        {
            // A moved inode is the only copy of its content, and is never removed on suspicion.
            if object.origin == ObjectOrigin::Cloned && !named.contains(&object) {
                self.captures.drop_object(object);
            }
        }
    }
}
