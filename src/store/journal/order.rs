//! What the records of a journal must be to each other: of the epoch that is open where they stand,
//! and never of a later one.
//!
//! A frame with a right hash may still hold what nobody wrote: a store may come from a stranger,
//! who knows its id and can chain any frames. Every reading in order goes through this, so whoever
//! replays, indexes or verifies sees one epoch after the other, checkpoints that count up by one,
//! and operations that undo earlier ones only.
//!
//! Where a pack has frames no more, checkpoints may be among them: there the count may jump, by as
//! many as frames are gone and no further.

use crate::store::error::CodecError;
use crate::store::ids::{CheckpointId, Epoch, ObjectId};
use crate::store::record::{DataState, Record, Undo};

/// Where a reading stands.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The open epoch; `None`: the reading began in the middle, and nothing has told yet.
    open: Option<Epoch>,
    /// Frames that are gone since that was told: it may be later by as many.
    gone: u64,
    /// The last operation.
    operation: Option<u64>,
}

impl Order {
    /// Of a reading from the beginning.
    pub fn of_all() -> Order {
        Order {
            open: Some(Epoch(1)),
            gone: 0,
            operation: Some(0),
        }
    }

    /// So many frames are gone here.
    pub fn pass(&mut self, gone: u64) {
        self.gone = self.gone.saturating_add(gone);
    }

    /// The next record; `OutOfTime`: it cannot stand here.
    pub fn take(&mut self, record: &Record) -> Result<(), CodecError> {
        let fits = match record {
            Record::Undo { epoch, undo } => {
                let fits = self.is_open(*epoch);
                self.tell(*epoch);
                fits && objects(undo).all(|object| object.epoch <= *epoch)
            }
            Record::Checkpoint(checkpoint) => {
                let epoch = checkpoint.id.epoch();
                let fits = self.is_open(epoch) && (1..u64::MAX).contains(&epoch.0);
                self.tell(epoch.next());
                fits
            }
            Record::Void { epoch, .. }
            | Record::Hashes { epoch, .. }
            | Record::Dropped { epoch, .. } => self.has_begun(*epoch),
            Record::Replacing { object, .. } => self.has_begun(object.epoch),
            Record::Tags { id, .. }
            | Record::Deleted { id }
            | Record::Pinned { id, .. }
            | Record::Hidden { id, .. }
            | Record::OpenAt { id, .. } => self.was_made(*id),
            Record::RestoreBegin { target, guard, .. } => self.was_made(*target.max(guard)),
            Record::Operation(operation) => {
                let later = self.operation.is_none_or(|last| operation.number > last)
                    && operation.number < u64::MAX;
                self.operation = Some(operation.number);
                later
                    && operation
                        .undoes
                        .is_none_or(|undone| undone < operation.number)
            }
            Record::Moved { .. }
            | Record::RestoreEnd
            | Record::RestoreOnly { .. }
            | Record::Mounted { .. }
            | Record::Unmounted { .. }
            | Record::By { .. }
            | Record::Comparing(_)
            | Record::Told { .. }
            | Record::Touched { .. } => true,
        };
        if fits {
            Ok(())
        } else {
            Err(CodecError::OutOfTime)
        }
    }

    /// The open epoch is this one.
    fn tell(&mut self, epoch: Epoch) {
        (self.open, self.gone) = (Some(epoch), 0);
    }

    fn is_open(&self, epoch: Epoch) -> bool {
        self.open.is_none_or(|open| open <= epoch) && self.has_begun(epoch)
    }

    fn has_begun(&self, epoch: Epoch) -> bool {
        self.open
            .is_none_or(|open| epoch.0 <= open.0.saturating_add(self.gone))
    }

    fn was_made(&self, id: CheckpointId) -> bool {
        self.open
            .is_none_or(|open| id.epoch().0 < open.0.saturating_add(self.gone))
    }
}

fn objects(undo: &[Undo]) -> impl Iterator<Item = ObjectId> {
    undo.iter().filter_map(|item| match item {
        Undo::Data {
            before: DataState { object, .. },
            ..
        } => *object,
        _ => None,
    })
}
