//! After a daemon that did not end in an orderly way: operations of two steps are finished or
//! undone.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::change::Change;
use super::inodes::{At, at_place, is_elsewhere};
use super::past::{Captures, Inodes, Past};
use super::remove::Removal;
use super::tables::{HotFiles, Locks, Tables};
use crate::history::attribution::Author;
use crate::history::present::{Present, Trail};
use crate::history::timeline::{Aftermath, Moved, Timeline};
use crate::store::ids::{Name, ObjectId, ObjectOrigin, Slot};
use crate::store::layers::file_name;
use crate::store::record::{Place, Record};
use crate::sys::{self, Errno, Kind, RenameMode, SysResult, Time};

/// A larger file that somebody can write to past the mount is not copied at each checkpoint, while
/// everybody waits.
const HELD_COPIED_MAX: u64 = 16 << 20;

/// Brings tree and history together again.
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
    pub(super) fn new(tables: &Tables, past: &Past, removal: &Arc<Removal>) -> Recovery {
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

    /// Brings tree and history together again, but for [`Recovery::watch_mapped`], which is to
    /// follow. Costs what changed in the open epoch. Nothing may be served yet.
    ///
    /// # Errors
    /// EIO if the journal or a layer cannot be written or read.
    pub fn recover(&self, aftermath: &Aftermath) -> SysResult<()> {
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

    /// When an inode that has a record in the open epoch, or was made in it, was last changed.
    /// Costs what changed in that epoch.
    ///
    /// It says how long a daemon that was killed has lived at least: only such inodes can change
    /// without a new record. (One with a record of a closed epoch cannot. It was asked too, and
    /// whatever was changed after the kill in the files of the last checkpoint counted as the
    /// daemon's.)
    pub fn last_recorded_change(&self) -> Option<Time> {
        let mut last = None;
        for trail in self.recent(false) {
            last = last.max(self.inodes.stat(&trail).ok().map(|stat| stat.ctime));
        }
        last
    }

    /// What can have changed in the open epoch without a new record: inodes that have one, names
    /// that have one, and all that is in directories without, for those were made in it; `all`: in
    /// one before, too. Where there is no checkpoint nothing has a record: then `all` that there
    /// is, or nothing.
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
            // What is in a new directory has no records at all.
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

    /// Finishes a rename over an existing inode: the names were exchanged, and the replaced inode
    /// may still have the name of the other. After a power cut the log of btrfs may have brought
    /// that name back beside the one in the layer.
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
                    // rename(2) onto another name of the same inode does nothing.
                    Some(kept) if kept.ino == stat.ino => layers.remove(object)?,
                    // The recovery before this one gave the layer a copy.
                    Some(_) => return Ok(()),
                }
                // Without it what is below, or the base of a branch, would be seen there again.
                self.removal.move_away(&dir, &place.name, object, whiteout)
            }
            Ok(_) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Voids the records of the open epoch whose object is missing. A moved inode that is not in the
    /// layer is still in the tree. A clone that no checkpoint reads was freed with the checkpoint
    /// that did; the void lets the next checkpoint capture the file again. A missing clone that a
    /// checkpoint reads is damage: its record stays.
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

    /// After a power cut the log of btrfs may have brought back a name that an inode had before it
    /// was moved into the layer, beside the one there: what is written through that name would
    /// change the past. The layer gets a copy of its own.
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
            sys::create_file_at(tmp, name.as_bytes(), sys::Open::READ_WRITE, 0o600)
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

    /// What somebody has open or mapped to be written where the kernel does the I/O outlives the
    /// daemon, and is written to without a request: it is watched again. A file that had no record
    /// was born in the open epoch, or no checkpoint could see it. Nothing may be served yet.
    ///
    /// `told`: whoever served before has left behind what may be written to.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM, EIO: what cannot be watched would be missed.
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
            // There was no passthrough.
            return Ok(());
        };
        files
            .into_iter()
            .try_for_each(|trail| match self.watch_if_held(&trail) {
                // Unwatched, what is stored through a mapping would be missed.
                Err(errno @ (Errno::EIO | Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM)) => {
                    Err(errno)
                }
                Ok(_) | Err(_) => Ok(()),
            })
    }

    /// As `watch_if_held`, of the file at a path, and numbered so if that is known; the tree may be
    /// served already.
    ///
    /// # Errors
    /// Its own; ENOENT.
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

    /// A file that somebody has open or mapped to be written, though the mount may know of nobody,
    /// is captured and hot from now on; `false`: it is not held so. The caller holds the freeze
    /// lock, the tree and the stripe, or nothing is served yet.
    ///
    /// # Errors
    /// Those of open(2); EACCES where the lease on a file of somebody else may not be asked for;
    /// ESTALE, EINVAL if it is not a regular file there; EFBIG if it would be copied at each
    /// checkpoint and is large; ENOSPC or EIO if the past could not be kept.
    fn watch_if_held(&self, trail: &Arc<Trail>) -> SysResult<bool> {
        if self.inodes.base().is_inherited(trail.slot) {
            // There is no file of it here: what is read is a copy that nobody else has.
            return Ok(false);
        }
        let (file, stat) = self.inodes.open_file(trail.into(), sys::Open::READ)?;
        if sys::lease_free(&file)? {
            return Ok(false);
        }
        if !self.reflink && stat.size > HELD_COPIED_MAX {
            return Err(Errno::EFBIG);
        }
        // Its places are to be found when it is captured.
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
            .capture(&Change::default(), trail.into(), &file, true)?;
        Ok(true)
    }

    /// The last renames recorded may not have happened: then the inodes are where they were.
    ///
    /// # Errors
    /// As [`Recovery::recover`], before which it comes: what is to be found must be found where it
    /// is.
    pub fn verify_moved(&self, moved: &HashMap<Slot, Moved>) -> SysResult<()> {
        let is_at = |slot: Slot, place: &Place| {
            let dir = self.inodes.dir(At::from(place.parent));
            dir.and_then(|dir| sys::stat_at(&dir, place.name.as_bytes()))
                .and_then(|stat| self.inodes.slot_of(&stat))
                == Ok(slot)
        };
        // A directory that is found leads to others: until nothing more is.
        let mut open: Vec<(Slot, &Moved)> = moved
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

    /// Objects of the open epoch that no record names, and of the next one, of which there is no
    /// record yet: captured, but the record never came.
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
            // A moved inode is the only copy of what it holds: it is never removed on suspicion.
            if object.origin == ObjectOrigin::Cloned && !named.contains(&object) {
                self.captures.drop_object(object);
            }
        }
    }
}
