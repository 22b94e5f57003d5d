//! After a daemon that did not end in an orderly way: operations of two steps are finished or undone.

use std::collections::{HashMap, HashSet};

use super::Live;
use super::find::{At, is_elsewhere};
use crate::history::timeline::{Aftermath, Moved};
use crate::store::ids::{ObjectId, ObjectOrigin, Slot};
use crate::store::layers::file_name;
use crate::store::record::{Place, Record};
use crate::sys::{self, Errno, Kind, RenameMode, SysResult, Time};

impl Live {
    /// Brings tree and history together again. Costs what changed in the open epoch. Nothing may be served yet.
    ///
    /// # Errors
    /// EIO if the journal or a layer cannot be written or read.
    pub fn recover(&self, aftermath: &Aftermath) -> SysResult<()> {
        if let Some((slot, place, object)) = &aftermath.replacing {
            self.finish_replacing(*slot, place, *object)?;
            let layers = &self.timeline.store().layers;
            if object.epoch != self.timeline.epoch() && !layers.exists(*object).map_err(|error| error.errno())? {
                self.timeline.strike_unmade(*object)?;
            }
        }
        aftermath.moved_away.iter().try_for_each(|object| self.set_apart(*object))?;
        self.strike_unmade()?;
        self.watch_mapped()?;
        self.sweep_objects();
        Ok(())
    }

    /// When an inode that has a record in the open epoch, or was made in it, was last changed. Costs what changed in that epoch.
    ///
    /// It says how long a daemon that was killed has lived at least: only such inodes can change without a new record.
    pub fn last_recorded_change(&self) -> Option<Time> {
        let (slots, names) = self.timeline.touched_now();
        let mut last = slots.iter().filter_map(|slot| self.stat(*slot).ok()).map(|stat| stat.ctime).max();
        let mut made = Vec::new();
        for (dir, name) in names {
            let Ok(dir) = self.dir(dir) else { continue };
            let Ok(stat) = sys::stat_at(&dir, name.as_bytes()) else { continue };
            last = last.max(Some(stat.ctime));
            let recorded = self.slot_of(&stat).is_ok_and(|slot| slots.contains(&slot));
            if stat.kind == Kind::Dir && !recorded {
                made.extend(sys::open_path_at(&dir, name.as_bytes()));
            }
        }
        // What is in a new directory has no records at all.
        while let Some(dir) = made.pop() {
            for entry in sys::list_dir(&dir).unwrap_or_default() {
                let Ok(stat) = sys::stat_at(&dir, &entry.name) else { continue };
                last = last.max(Some(stat.ctime));
                if stat.kind == Kind::Dir {
                    made.extend(sys::open_path_at(&dir, &entry.name));
                }
            }
        }
        last
    }

    /// A rename over an existing inode: names exchanged, but the inode not yet moved away.
    fn finish_replacing(&self, slot: Slot, place: &Place, object: ObjectId) -> SysResult<()> {
        let dir = match self.dir(place.parent) {
            Err(errno) if is_elsewhere(errno) => return Ok(()),
            dir => dir?,
        };
        match sys::stat_at(&dir, place.name.as_bytes()) {
            Ok(stat) if self.slot_of(&stat) == Ok(slot) => self.move_away(&dir, &place.name, object),
            Ok(_) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// A record says that an inode was moved into the layer; if it is not there, it never was, and is still in the tree.
    fn strike_unmade(&self) -> SysResult<()> {
        for (slot, data) in self.timeline.data_records() {
            let Some(object) = data.object else { continue };
            let (layer, file) = self.timeline.store().layers.location(object).map_err(|error| error.errno())?;
            if sys::stat_at(&*layer, file.as_bytes()) == Err(Errno::ENOENT) {
                if object.origin == ObjectOrigin::Cloned && !self.timeline.reads_open(slot, object)? {
                    continue;
                }
                if object.origin == ObjectOrigin::Cloned {
                    tracing::error!(slot = slot.0, "a captured version is missing from the store");
                    continue;
                }
                self.timeline.strike(slot);
            }
        }
        Ok(())
    }

    /// After a power cut the log of btrfs may have brought back a name that an inode had before it was moved into the layer, beside the one there: what
    /// is written through that name would change the past. The layer gets a copy of its own.
    fn set_apart(&self, object: ObjectId) -> SysResult<()> {
        let store = self.timeline.store();
        let stat = store.layers.stat(object).map_err(|error| error.errno())?;
        let Some(stat) = stat.filter(|stat| stat.kind == Kind::File && stat.nlink > 1) else { return Ok(()) };
        let kept = store.layers.open(object).map_err(|error| error.errno())?;
        let (tmp, name) = (store.layout.tmp_dir().map_err(|error| error.errno())?, file_name(object));
        match sys::unlink_at(tmp, name.as_bytes()) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        let copy = sys::create_file_at(tmp, name.as_bytes(), sys::Open::READ_WRITE, 0o600)?;
        if self.reflink {
            sys::clone_file(&kept, &copy)?
        } else {
            sys::copy_data(&kept, &copy, stat.size)?
        }
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
        let (layer, name) = store.layers.location(object).map_err(|error| error.errno())?;
        tracing::info!(slot = object.slot.0, "an inode in a layer had a name in the tree again: the layer has a copy of its own now");
        sys::rename_at(tmp, name.as_bytes(), &*layer, name.as_bytes(), RenameMode::Replace)
    }

    /// A mapping outlives the daemon that served its file: a file that was open for writing and is still mapped is watched again.
    fn watch_mapped(&self) -> SysResult<()> {
        for (slot, _) in self.timeline.data_records() {
            let file = match self.open_file(slot.into(), sys::Open::READ) {
                Ok((file, _)) => file,
                // Unwatched, what is stored through a mapping would be missed.
                Err(errno @ (Errno::EIO | Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM)) => return Err(errno),
                Err(_) => continue,
            };
            if sys::lease_free(&file) == Ok(false) {
                self.note_hot(slot, &std::sync::Arc::new(file), true, None)?;
            }
        }
        Ok(())
    }

    /// The last renames recorded may not have happened: then the inodes are where they were.
    ///
    /// # Errors
    /// As [`Live::recover`], before which it comes: what is to be found must be found where it is.
    pub fn verify_moved(&self, moved: &HashMap<Slot, Moved>) -> SysResult<()> {
        let is_at = |slot: Slot, place: &Place| {
            let dir = self.dir(At::from(place.parent));
            dir.and_then(|dir| sys::stat_at(&dir, place.name.as_bytes())).and_then(|stat| self.slot_of(&stat)) == Ok(slot)
        };
        // A directory that is found leads to others: until nothing more is.
        let mut open: Vec<(Slot, &Moved)> =
            moved.iter().filter(|(slot, moved)| !is_at(**slot, &moved.to)).map(|(slot, moved)| (*slot, moved)).collect();
        loop {
            let (before, mut left) = (open.len(), Vec::new());
            for (slot, moved) in open {
                match std::iter::once(&moved.to).chain(moved.before.iter().rev()).find(|place| is_at(slot, place)) {
                    Some(place) if *place == moved.to => {}
                    Some(place) => self.timeline.record(Vec::new(), vec![Record::Moved { places: vec![(slot, place.clone())] }])?,
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

    /// Objects of the open epoch that no record names: captured, but the record never came.
    fn sweep_objects(&self) {
        let epoch = self.timeline.epoch();
        let mut named: HashSet<ObjectId> = self.timeline.data_records().into_iter().filter_map(|(_, data)| data.object).collect();
        match self.timeline.ahead_in_memory() {
            Ok(ahead) => named.extend(ahead),
            Err(_) => return,
        }
        let Ok(objects) = self.timeline.store().layers.list(epoch) else { return };
        for object in objects {
            // A moved inode is the only copy of what it holds: it is never removed on suspicion.
            if object.origin == ObjectOrigin::Cloned && !named.contains(&object) {
                self.drop_object(object);
            }
        }
    }
}
