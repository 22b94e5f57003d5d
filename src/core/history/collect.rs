//! Versions freed by the deletion of one checkpoint.

use super::append::fault;
use super::timeline::Timeline;
use super::version_census::{CaptureRecords, Captured, Census};
use ckptfs_api::{CheckpointId, Epoch};
use ckptfs_store::ids::ObjectId;
use ckptfs_sys::{Errno, SysResult};

/// A captured version and the epoch of its record.
pub(super) struct Candidate {
    epoch: Epoch,
    version: Captured,
}

impl Timeline {
    /// Returns the objects that no checkpoint needs once `id` is gone.
    ///
    /// Examines the records between `id` and the next retained checkpoint: a checkpoint reads the
    /// first record after it. Costs O(changes between its neighbours).
    ///
    /// A version that the next checkpoint may carry ([`Epochs::may_carry`]) is spared, although no
    /// checkpoint reads it yet. The next call examines it again, so a tripwire mark that is taken
    /// back leaves at most one generation of captures. The list of spared versions is in memory
    /// only; after a restart they are leftovers, which gc removes.
    ///
    /// The caller holds the lock under which checkpoints are made, until the objects are removed.
    ///
    /// # Errors
    /// ENOENT if the checkpoint does not exist; EIO if the journal cannot be read.
    ///
    /// [`Epochs::may_carry`]: super::epochs::Epochs::may_carry
    pub fn unneeded_without(&self, id: CheckpointId) -> SysResult<Vec<ObjectId>> {
        let from = self.catalogue.address(id).ok_or(Errno::ENOENT)?;
        let mut retained = self.catalogue.retained();
        retained.retain(|(other, _)| *other != id);
        let census = Census::of(&retained);
        let next = census
            .kept
            .get(census.kept.partition_point(|other| *other < id));
        let to = next.and_then(|next| self.catalogue.address(*next));
        let mut reading = CaptureRecords::default();
        for frame in self.store().journal.scan(from, to) {
            reading.take(frame.map_err(fault)?.1);
        }
        let recorded = reading.data.iter().filter_map(|((slot, epoch), data)| {
            let version = Captured {
                slot: *slot,
                born_ns: reading.born_ns(*slot, *epoch),
                ..Captured::new(data.object?)
            };
            Some(Candidate {
                epoch: *epoch,
                version,
            })
        });
        let spared = std::mem::take(&mut *self.spared.lock());
        let (mut unneeded, mut still_spared) = (Vec::new(), Vec::new());
        for candidate in spared.into_iter().chain(recorded) {
            let (slot, object) = (candidate.version.slot, candidate.version.object);
            if self.epochs.may_carry(slot, object) {
                still_spared.push(candidate);
            } else if !self.is_needed(&census, candidate)? {
                unneeded.push(object);
            }
        }
        *self.spared.lock() = still_spared;
        Ok(unneeded)
    }

    /// Whether a checkpoint of the census reads the version.
    fn is_needed(&self, census: &Census, candidate: Candidate) -> SysResult<bool> {
        let Candidate { epoch, mut version } = candidate;
        let (slot, object) = (version.slot, version.object);
        let reads = |id: &CheckpointId| -> SysResult<bool> {
            let data = self.lookup.data_at(slot, *id)?;
            Ok(data.is_some_and(|data| data.before.object == Some(object)))
        };
        let older = census.kept.partition_point(|id| id.epoch() < epoch);
        // Carried into the next epoch: the first checkpoint after the record reads it.
        if census.kept.get(older).map_or(Ok(false), reads)? {
            return Ok(true);
        }
        let before = older.checked_sub(1).and_then(|at| census.kept.get(at));
        if !before.map_or(Ok(false), reads)? {
            return Ok(false);
        }
        // The checkpoint before the record reads it. Older ones may read it unless the file is
        // younger.
        version.by = 0..older;
        self.narrow(census, &mut version)?;
        Ok(!version.by.is_empty())
    }
}
