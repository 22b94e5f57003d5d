//! What the records of a journal must be to each other: of the epoch that is open where they stand, and never of a later one.
//!
//! A frame with a right hash may still hold what nobody wrote: a store may come from a stranger, who knows its id and can chain any frames. Every reading in order goes
//! through this, so whoever replays, indexes or verifies sees one epoch after the other, checkpoints that count up by one, and operations that undo earlier ones only.

use crate::store::error::CodecError;
use crate::store::ids::{CheckpointId, Epoch, ObjectId};
use crate::store::record::{DataState, Record, Undo};

/// Where a reading stands.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The open epoch; `None`: the reading began in the middle, and nothing has told yet.
    open: Option<Epoch>,
    /// The last operation.
    operation: Option<u64>,
}

impl Order {
    /// Of a reading from the beginning.
    pub fn of_all() -> Order {
        Order { open: Some(Epoch(1)), operation: Some(0) }
    }

    /// The next record; `OutOfTime`: it cannot stand here.
    pub fn take(&mut self, record: &Record) -> Result<(), CodecError> {
        let fits = match record {
            Record::Undo { epoch, undo } => *epoch == *self.open.get_or_insert(*epoch) && objects(undo).all(|object| object.epoch <= *epoch),
            Record::Checkpoint(checkpoint) => {
                let epoch = checkpoint.id.epoch();
                let fits = self.open.is_none_or(|open| open == epoch) && (1..u64::MAX).contains(&epoch.0);
                self.open = Some(epoch.next());
                fits
            }
            Record::Void { epoch, .. } | Record::Sealed { epoch, .. } | Record::Dropped { epoch, .. } => self.has_begun(*epoch),
            Record::Ahead { epoch, undo, upto } => self.has_begun(*epoch.max(upto)) && objects(undo).all(|object| object.epoch <= *epoch),
            Record::Replacing { object, .. } => self.has_begun(object.epoch),
            Record::Tags { id, .. } | Record::Deleted { id } | Record::Pinned { id, .. } | Record::Hidden { id, .. } | Record::OpenAt { id, .. } => {
                self.was_made(*id)
            }
            Record::RestoreBegin { target, guard, .. } => self.was_made(*target.max(guard)),
            Record::Operation(operation) => {
                let later = self.operation.is_none_or(|last| operation.number > last) && operation.number < u64::MAX;
                self.operation = Some(operation.number);
                later && operation.undoes.is_none_or(|undone| undone < operation.number)
            }
            Record::Moved { .. }
            | Record::RestoreEnd
            | Record::RestoreOnly { .. }
            | Record::Mounted { .. }
            | Record::Unmounted { .. }
            | Record::By { .. }
            | Record::Comparing(_)
            | Record::Touched { .. } => true,
        };
        if fits { Ok(()) } else { Err(CodecError::OutOfTime) }
    }

    fn has_begun(&self, epoch: Epoch) -> bool {
        self.open.is_none_or(|open| epoch <= open)
    }

    fn was_made(&self, id: CheckpointId) -> bool {
        self.open.is_none_or(|open| id.epoch() < open)
    }
}

fn objects(undo: &[Undo]) -> impl Iterator<Item = ObjectId> {
    undo.iter().filter_map(|item| match item {
        Undo::Data { before: DataState { object, .. }, .. } => *object,
        _ => None,
    })
}
