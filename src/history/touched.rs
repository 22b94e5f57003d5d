//! Which keys were recorded between two states: the only places where they can differ.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::timeline::{Timeline, fault};
use crate::store::ids::{CheckpointId, Name, Slot};
use crate::store::record::{Record, Undo};
use crate::sys::{Errno, SysResult};

/// The keys recorded in a stretch of the journal.
///
/// Every directory above a change has a record of where it was, so a walk from the root that follows `names` alone meets every change.
#[derive(Debug, Default)]
pub struct Touched {
    /// Directory -> names whose entry was recorded, or below which something was.
    pub names: HashMap<Slot, BTreeSet<Name>>,
    /// Inodes whose attributes, extended attributes or content were recorded.
    pub nodes: HashSet<Slot>,
    /// Inodes whose content was recorded.
    pub data: HashSet<Slot>,
    /// Directories in which a name was recorded.
    pub dirs: HashSet<Slot>,
}

impl Touched {
    fn add(&mut self, undo: Undo) {
        match undo {
            Undo::Entry { dir, name, .. } => {
                self.names.entry(dir).or_default().insert(name);
                self.dirs.insert(dir);
            }
            Undo::Home { before, .. } => {
                self.names.entry(before.parent).or_default().insert(before.name);
            }
            Undo::Data { slot, .. } => {
                self.nodes.insert(slot);
                self.data.insert(slot);
            }
            Undo::Attr { slot, .. } | Undo::Xattrs { slot, .. } => {
                self.nodes.insert(slot);
            }
        }
    }
}

impl Timeline {
    /// What was recorded after checkpoint `after`, up to checkpoint `upto` or until now. Reads that part of the journal: O(changes).
    ///
    /// # Errors
    /// ENOENT if a checkpoint does not exist; EIO if the journal cannot be read.
    pub fn touched(&self, after: CheckpointId, upto: Option<CheckpointId>) -> SysResult<Touched> {
        let from = self.address(after).ok_or(Errno::ENOENT)?;
        let to = upto.map(|id| self.address(id).ok_or(Errno::ENOENT)).transpose()?;
        let mut touched = Touched::default();
        for frame in self.store.journal().scan(from, to) {
            let (_, record) = frame.map_err(fault)?;
            if let Record::Undo { undo, .. } = record {
                undo.into_iter().for_each(|item| touched.add(item));
            }
        }
        Ok(touched)
    }
}
