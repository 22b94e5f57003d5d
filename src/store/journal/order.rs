//! Order constraints on the records of a journal: a record belongs to the epoch open at its
//! position, never to a later one.
//!
//! A frame with a valid hash may still contain forged data, because the creator of a foreign store
//! knows its id and can chain any frames. All sequential reads apply these checks, so that replay,
//! indexing and verification see epochs in order, consecutive checkpoint numbers, and operations
//! that undo earlier ones only.
//!
//! A gap in a pack may include checkpoints: there the number may increase by up to the number of
//! missing frames.

use crate::error::CodecError;
use crate::ids::ObjectId;
use crate::record::{DataState, Record, Undo};
use ckptfs_api::{CheckpointId, Epoch};

/// The position of a sequential read.
#[derive(Debug, Default)]
pub(super) struct RecordOrder {
    /// The open epoch; `None`: unknown because the read began in the middle.
    open: Option<Epoch>,
    /// Frames missing since that epoch was determined, the maximum by which it may be later.
    gone: u64,
    /// The last operation.
    operation: Option<u64>,
}

impl RecordOrder {
    /// Returns the state at the beginning of the journal.
    pub fn of_all() -> RecordOrder {
        RecordOrder {
            open: Some(Epoch(1)),
            gone: 0,
            operation: Some(0),
        }
    }

    /// Skips missing frames.
    pub fn pass(&mut self, gone: u64) {
        self.gone = self.gone.saturating_add(gone);
    }

    /// Checks the next record; `OutOfTime`: it is invalid at this position.
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

    /// Sets the open epoch.
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
