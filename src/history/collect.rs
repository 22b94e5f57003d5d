//! Which versions only one checkpoint needs.

use std::collections::HashMap;

use super::timeline::{Timeline, fault};
use crate::store::ids::{CheckpointId, Epoch, ObjectId, Slot};
use crate::store::record::{Record, Undo};
use crate::sys::{Errno, SysResult};

impl Timeline {
    /// The objects that no checkpoint needs once `id` is gone.
    ///
    /// Only records between it and the next checkpoint kept, or hidden, can be its own, and of those the ones that are not also the first after the checkpoint
    /// before it. O(changes between its neighbours).
    ///
    /// # Errors
    /// ENOENT if there is no such checkpoint; EIO if the journal cannot be read.
    pub fn unneeded_without(&self, id: CheckpointId) -> SysResult<Vec<ObjectId>> {
        let from = self.address(id).ok_or(Errno::ENOENT)?;
        let kept: Vec<CheckpointId> = self.stored_ids();
        let before = kept.iter().copied().filter(|other| *other < id).max();
        let to = kept.iter().copied().filter(|other| *other > id).min().and_then(|next| self.address(next));
        let mut objects: HashMap<(Slot, Epoch), ObjectId> = HashMap::new();
        for frame in self.store.journal.scan(from, to) {
            match frame.map_err(fault)?.1 {
                Record::Undo { epoch, undo } => {
                    for item in undo {
                        if let Undo::Data { slot, before } = item
                            && let Some(object) = before.object
                        {
                            objects.entry((slot, epoch)).or_insert(object);
                        }
                    }
                }
                Record::Void { epoch, slot } => {
                    objects.remove(&(slot, epoch));
                }
                _ => {}
            }
        }
        let mut unneeded = Vec::new();
        for ((slot, _), object) in objects {
            let needed = match before {
                Some(before) => self.data_at(slot, before)?.is_some_and(|data| data.before.object == Some(object)),
                None => false,
            };
            if !needed {
                unneeded.push(object);
            }
        }
        Ok(unneeded)
    }
}
