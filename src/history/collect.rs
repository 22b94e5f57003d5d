//! Which versions only one checkpoint needs.

use super::append::fault;
use super::needed::{Captured, Census, Reading};
use super::timeline::Timeline;
use crate::store::ids::{CheckpointId, ObjectId};
use crate::sys::{Errno, SysResult};

impl Timeline {
    /// The objects that no checkpoint needs once `id` is gone.
    ///
    /// Only records between it and the next checkpoint kept, or hidden, can be its own, and of
    /// those the ones that are not also the first after the checkpoint before it. O(changes between
    /// its neighbours).
    ///
    /// # Errors
    /// ENOENT if there is no such checkpoint; EIO if the journal cannot be read.
    pub fn unneeded_without(&self, id: CheckpointId) -> SysResult<Vec<ObjectId>> {
        let from = self.catalogue.address(id).ok_or(Errno::ENOENT)?;
        let census = Census::of(&self.catalogue.retained());
        let before = census.kept.partition_point(|other| *other < id);
        let after = census
            .kept
            .get(census.kept.partition_point(|other| *other <= id))
            .copied();
        let to = after.and_then(|next| self.catalogue.address(next));
        let mut reading = Reading::default();
        for frame in self.store().journal.scan(from, to) {
            reading.take(frame.map_err(fault)?.1);
        }
        let mut unneeded = Vec::new();
        for ((slot, epoch), data) in &reading.data {
            let Some(object) = data.object else { continue };
            let reads = |id| -> SysResult<bool> {
                Ok(self
                    .lookup
                    .data_at(*slot, id)?
                    .is_some_and(|data| data.before.object == Some(object)))
            };
            // It was carried into the next epoch: the one after reads it.
            if after.map_or(Ok(false), reads)? {
                continue;
            }
            let mut version = Captured {
                slot: *slot,
                born_ns: reading.born_ns(*slot, *epoch),
                ..Captured::new(object)
            };
            if let Some(before) = before
                .checked_sub(1)
                .and_then(|number| census.kept.get(number))
                && reads(*before)?
            {
                // The one before reads it, and maybe others before that: unless the file is younger
                // than all of them.
                version.by = 0..census.kept.partition_point(|other| other <= before);
                self.narrow(&census, &mut version)?;
            }
            if version.by.is_empty() {
                unneeded.push(object);
            }
        }
        Ok(unneeded)
    }
}
