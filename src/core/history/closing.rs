//! Closing of an epoch.

use std::sync::Arc;

use super::append::asked;
use super::attribution::{self, NumberedProcess};
use super::epochs::UNDO_ITEMS_AT_ONCE;
use super::timeline::Timeline;
use ckptfs_api::Actor;
use ckptfs_store::ids::Slot;
use ckptfs_store::operation::OperationEffect;
use ckptfs_store::record::{Checkpoint, CheckpointState, Record, Undo};
use ckptfs_sys::{Errno, SysResult};

impl Timeline {
    /// Closes the open epoch with `checkpoint` and opens the next one, whose first records are
    /// `ahead`, in one append. On return the checkpoint survives `kill -9`.
    ///
    /// `open` lists the processes that have files open for writing. They may write in the next
    /// epoch without a request.
    ///
    /// # Errors
    /// ENOSPC or EIO of the journal; then no checkpoint was made and the epoch stays open.
    pub fn close_epoch(
        &self,
        by: Option<&Actor>,
        checkpoint: Checkpoint,
        ahead: Vec<Undo>,
        open: &[(Slot, Arc<NumberedProcess>)],
    ) -> SysResult<()> {
        self.close_epoch_and(by, checkpoint, ahead, open, None)
    }

    /// As [`Timeline::close_epoch`], with an additional record after the checkpoint.
    ///
    /// # Errors
    /// As [`Timeline::close_epoch`].
    pub fn close_epoch_and(
        &self,
        by: Option<&Actor>,
        checkpoint: Checkpoint,
        ahead: Vec<Undo>,
        open: &[(Slot, Arc<NumberedProcess>)],
        more: Option<Record>,
    ) -> SysResult<()> {
        let asked_for = checkpoint.reason.is_asked();
        let operation = by.filter(|_| asked_for).map(|by| {
            self.operations
                .operation(by, None, OperationEffect::Made { id: checkpoint.id })
        });
        let mut tables = self.epochs.write();
        let next = tables.open().epoch.next();
        let mut records = asked(by);
        let at = records.len();
        records.push(Record::Checkpoint(checkpoint.clone()));
        records.extend(operation.clone().map(Record::Operation));
        // A mark is hidden until the burst is confirmed ([`Catalogue::set_hidden`]).
        let hidden = checkpoint.reason.is_mark();
        if hidden {
            records.push(Record::Hidden {
                id: checkpoint.id,
                hidden,
            });
        }
        records.extend(more);
        records.extend(ahead.chunks(UNDO_ITEMS_AT_ONCE).map(|undo| Record::Undo {
            epoch: next,
            undo: undo.to_vec(),
        }));
        let open = attribution::open_ones(open);
        records.extend(open.clone());
        let addresses = self.journal.write(&records)?;
        let address = addresses.get(at).copied().ok_or(Errno::EIO)?;
        tables.close(checkpoint.id);
        for item in ahead {
            // Counted like a capture at an open for writing. If the file turns out unchanged, both
            // the capture and the count are taken back.
            if matches!(item, Undo::Data { .. }) {
                tables.open_mut().count(1);
            }
            tables.open_mut().add(item);
        }
        if let Some(Record::Touched { processes, touches }) = open {
            tables.open_mut().touched.take(&processes, touches);
        }
        self.absences.made(checkpoint.id, checkpoint.created_ns);
        let mut checkpoints = self.catalogue.write();
        let made = CheckpointState {
            hidden,
            ..CheckpointState::new(checkpoint, by.cloned())
        };
        checkpoints.put(made, address);
        if let (Some(done), Some(noted)) = (operation, addresses.get(at + 1)) {
            self.operations.note(&done, *noted);
        }
        let waiting = tables.closed().len();
        drop(checkpoints);
        drop(tables);
        self.indexer.epoch_closed(waiting);
        Ok(())
    }
}
