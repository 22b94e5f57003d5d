//! The end of an epoch.

use std::sync::Arc;

use super::attribution::{self, Numbered};
use super::indexer::HURRY_EPOCHS;
use super::timeline::{Timeline, UNDO_ITEMS_AT_ONCE, asked};
use crate::store::ids::Slot;
use crate::store::operation::Deed;
use crate::store::record::{Actor, Checkpoint, Kept, Record, Undo};
use crate::sys::{Errno, SysResult};

impl Timeline {
    /// Closes the open epoch with `checkpoint` and opens the next, whose first records are `ahead`: all in one append. When it returns the
    /// checkpoint survives `kill -9`.
    ///
    /// # Errors
    /// ENOSPC or EIO of the journal; then the epoch stays open and no checkpoint was made.
    ///
    /// `open`: who has what open for writing; they may write in the next epoch without a request.
    pub fn close_epoch(&self, by: Option<&Actor>, checkpoint: Checkpoint, ahead: Vec<Undo>, open: &[(Slot, Arc<Numbered>)]) -> SysResult<()> {
        self.close_epoch_and(by, checkpoint, ahead, open, None)
    }

    /// As [`Timeline::close_epoch`], with one record more behind the checkpoint.
    ///
    /// # Errors
    /// As [`Timeline::close_epoch`].
    pub fn close_epoch_and(
        &self,
        by: Option<&Actor>,
        checkpoint: Checkpoint,
        ahead: Vec<Undo>,
        open: &[(Slot, Arc<Numbered>)],
        more: Option<Record>,
    ) -> SysResult<()> {
        let asked_for = checkpoint.reason.is_asked();
        let operation = by.filter(|_| asked_for).map(|by| self.operation(by, None, Deed::Made { id: checkpoint.id }));
        let mut inner = self.inner.write();
        let next = inner.open.epoch.next();
        let mut records = asked(by);
        let made = records.len();
        records.push(Record::Checkpoint(checkpoint.clone()));
        records.extend(operation.clone());
        records.extend(more);
        records.extend(ahead.chunks(UNDO_ITEMS_AT_ONCE).map(|undo| Record::Undo { epoch: next, undo: undo.to_vec() }));
        let open = attribution::open_ones(open);
        records.extend(open.clone());
        let addresses = self.write(&records)?;
        let address = addresses.get(made).copied().ok_or(Errno::EIO)?;
        inner.close_epoch(checkpoint.id);
        for item in ahead {
            // Counted as a capture at an open for writing is: it is taken back, and the count with it, if the file turns out unchanged.
            if matches!(item, Undo::Data { .. }) {
                inner.open.count(1);
            }
            inner.open.add(item);
        }
        if let Some(Record::Touched { processes, touches }) = open {
            inner.open.touched.take(&processes, touches);
        }
        inner.clock.made(checkpoint.id, checkpoint.created_ns, crate::sys::clock_ahead_ns());
        inner.put_checkpoint(Kept::new(checkpoint, by.cloned()), address);
        if let (Some(Record::Operation(done)), Some(at)) = (operation, addresses.get(made + 1)) {
            inner.operations.note(done.number, *at, done.undoes);
        }
        let many = inner.closed.len() >= HURRY_EPOCHS;
        drop(inner);
        self.wake.epoch_closed();
        if many {
            self.wake.hurry();
        }
        Ok(())
    }
}
