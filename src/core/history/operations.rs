//! The operation log, with undo and redo.
//!
//! The journal has a record of each operation. Memory has their addresses and two stacks. `undo`
//! has the operations that can be undone, newest last. Undoing one is itself an operation, pushed
//! to `redo`. A redo undoes that operation and is pushed to `undo`. Any other operation clears
//! `redo`: the undone line is left, but remains in the log. Every operation can be undone,
//! including an undo, so any earlier state of the history is reachable by undoing the operations
//! since, newest first.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::append::{Appender, asked, fault, now_ns};
use super::catalogue::Catalogue;
use ckptfs_api::{Actor, CheckpointId};
use ckptfs_store::error::CodecError;
use ckptfs_store::operation::{BY_RULE, Operation, OperationEffect, UndoStacks};
use ckptfs_store::record::{CheckpointState, Record};
use ckptfs_store::{Address, StoreError};
use ckptfs_sys::SysResult;
use ckptfs_sys::lock::RwLock;

/// Maximum total bytes of selected paths in the record of an operation.
const ONLY_BYTES_MAX: usize = 1 << 20;

/// Order of the operations, without their content.
#[derive(Clone, Debug, Default)]
pub(super) struct OperationOrder {
    known: BTreeMap<u64, (Address, Option<u64>)>,
    line: UndoStacks,
}

impl OperationOrder {
    /// Adds an operation; earlier ones are already present.
    pub(super) fn note(&mut self, number: u64, at: Address, undoes: Option<u64>) {
        // The undo of a removed operation is removed as well.
        let counts = undoes.is_none_or(|undone| self.known.contains_key(&undone));
        if self.known.insert(number, (at, undoes)).is_none() && counts {
            self.line.note(number, undoes);
        }
    }

    /// Removes operations that are not listed any more: see [`ckptfs_store::expiry`].
    fn forget(&mut self, gone: &BTreeSet<u64>) {
        self.known.retain(|number, _| !gone.contains(number));
        self.line.forget(|number| gone.contains(&number));
    }

    fn next(&self) -> u64 {
        self.known
            .last_key_value()
            .map_or(1, |(last, _)| last.saturating_add(1))
    }

    /// Maps each undone operation to the last one that undid it.
    fn undone_by(&self) -> HashMap<u64, u64> {
        self.known
            .iter()
            .filter_map(|(number, (_, undoes))| Some(((*undoes)?, *number)))
            .collect()
    }

    /// Returns the operations to undo, in order, to return to the state directly after operation
    /// `to`. Operations done and undone since are omitted, and so are those of a retention rule.
    fn since(&self, to: u64) -> Vec<u64> {
        let mut left: Vec<u64> = Vec::new();
        let since = self.known.range(to.saturating_add(1)..);
        for (number, (_, undoes)) in since.filter(|(_, (_, undoes))| *undoes != BY_RULE) {
            match undoes.and_then(|undone| left.iter().rposition(|known| *known == undone)) {
                Some(place) => drop(left.remove(place)),
                None => left.push(*number),
            }
        }
        left.reverse();
        left
    }
}

/// Direction and distance of a walk through the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// The newest operations that can be undone, up to this number.
    Undo(usize),
    /// The last undone operations, up to this number.
    Redo(usize),
    /// Back to the state directly after this operation; 0: before the first.
    To(u64),
}

/// An operation and its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationStatus {
    /// The operation.
    pub operation: Operation,
    /// The operation that undid it, if any.
    pub undone_by: Option<u64>,
    /// It was not undone, or was redone.
    pub in_effect: bool,
}

/// The operation log, and the only API for undoable changes of the history.
pub struct Operations {
    journal: Arc<Appender>,
    catalogue: Arc<Catalogue>,
    /// A leaf lock.
    order: RwLock<OperationOrder>,
}

impl Operations {
    pub(super) fn new(
        journal: Arc<Appender>,
        catalogue: Arc<Catalogue>,
        order: OperationOrder,
    ) -> Operations {
        Operations {
            journal,
            catalogue,
            order: RwLock::new(order),
        }
    }

    /// Creates the next operation, to be appended after its records. Callers are serialized by a
    /// lock of their own.
    pub(super) fn operation(
        &self,
        by: &Actor,
        undoes: Option<u64>,
        deed: OperationEffect,
    ) -> Operation {
        Operation {
            number: self.order.read().next(),
            at_ns: now_ns(),
            by: by.clone(),
            undoes,
            deed,
        }
    }

    /// Notes an appended operation.
    pub(super) fn note(&self, done: &Operation, at: Address) {
        self.order.write().note(done.number, at, done.undoes);
    }

    /// Removes operations that are not listed any more.
    pub(super) fn forget(&self, gone: &BTreeSet<u64>) {
        self.order.write().forget(gone);
    }

    /// Performs an operation: appends its records, each with the actor, and the operation after
    /// them, then updates the catalogue. On return this survives `kill -9`.
    ///
    /// # Errors
    /// As [`Appender::append`]; then nothing changed.
    pub fn operate(
        &self,
        by: &Actor,
        undoes: Option<u64>,
        deed: OperationEffect,
        of_it: Vec<Record>,
    ) -> SysResult<()> {
        self.operate_as(self.operation(by, undoes, deed), of_it)
    }

    fn operate_as(&self, operation: Operation, of_it: Vec<Record>) -> SysResult<()> {
        let mut records: Vec<Record> = of_it
            .iter()
            .flat_map(|record| {
                asked(Some(&operation.by))
                    .into_iter()
                    .chain([record.clone()])
            })
            .collect();
        records.push(Record::Operation(operation.clone()));
        let at = self.journal.write(&records)?;
        let mut checkpoints = self.catalogue.write();
        of_it
            .into_iter()
            .for_each(|record| checkpoints.apply(record));
        if let Some(at) = at.last() {
            self.note(&operation, *at);
        }
        Ok(())
    }

    /// Records the start of a restore of `paths`, or of the whole tree if empty: later checkpoints
    /// descend from `target`. `only` excludes everything below the paths. `by` has the actor and
    /// the operation that this one undoes; `None` continues an earlier restore.
    ///
    /// # Errors
    /// As [`Appender::append`]; then the restore has not started.
    pub fn begin_restore(
        &self,
        by: Option<(&Actor, Option<u64>)>,
        target: CheckpointId,
        guard: CheckpointId,
        paths: &[Vec<u8>],
        only: bool,
    ) -> SysResult<()> {
        // The number of selected paths is unlimited. An incomplete list is useless for an undo; for
        // all other uses it only matters that the list is not empty.
        let fit = !only || paths.iter().map(|path| path.len() + 4).sum::<usize>() <= ONLY_BYTES_MAX;
        let begins = Record::RestoreBegin {
            target,
            guard,
            paths: if fit {
                paths.to_vec()
            } else {
                paths.iter().take(1).cloned().collect()
            },
        };
        let Some((by, undoes)) = by else {
            return self.journal.append(&[begins]);
        };
        let paths = if fit { paths.to_vec() } else { Vec::new() };
        self.operate(
            by,
            undoes,
            OperationEffect::Restored {
                target,
                guard,
                paths,
                only,
            },
            vec![begins],
        )
    }

    /// Records that a merge is about to change the tree. Until [`Operations::end_merge`] the target
    /// state is `guard`, so recovery reverts an interrupted merge, and later checkpoints descend
    /// from `guard`.
    ///
    /// # Errors
    /// As [`Appender::append`]; then the merge has not started.
    pub fn begin_merge(&self, by: &Actor, guard: CheckpointId) -> SysResult<()> {
        let begins = Record::RestoreBegin {
            target: guard,
            guard,
            paths: Vec::new(),
        };
        self.unasked(by, vec![begins])
    }

    /// Creates the operation of a merge. The caller excludes other operations until it is recorded.
    pub fn merge(&self, by: &Actor, guard: CheckpointId) -> Operation {
        let deed = OperationEffect::Restored {
            target: guard,
            guard,
            paths: Vec::new(),
            only: false,
        };
        self.operation(by, None, deed)
    }

    /// Records the completion of a merge. On return the complete merge survives `kill -9`.
    ///
    /// # Errors
    /// As [`Appender::append`]; then the merge is not complete.
    pub fn end_merge(&self, merge: Operation) -> SysResult<()> {
        self.operate_as(merge, vec![Record::RestoreEnd])
    }

    /// Whether the log has an operation with this number and time (nanoseconds since 1970).
    ///
    /// # Errors
    /// EIO if the journal cannot be read.
    pub fn was_done(&self, (number, at_ns): (u64, i64)) -> SysResult<bool> {
        let Some((at, _)) = self.order.read().known.get(&number).copied() else {
            return Ok(false);
        };
        let found = self.operation_at(at)?;
        Ok(found.is_some_and(|operation| operation.at_ns == at_ns))
    }

    /// Records that the whole tree equals a checkpoint although no restore was necessary.
    /// Checkpoints after `newest`, the last one, descend from `target`.
    ///
    /// # Errors
    /// As [`Appender::append`]; then nothing was recorded.
    pub fn comes_from(
        &self,
        by: &Actor,
        target: CheckpointId,
        newest: CheckpointId,
    ) -> SysResult<()> {
        self.unasked(
            by,
            vec![
                Record::RestoreBegin {
                    target,
                    guard: newest,
                    paths: Vec::new(),
                },
                Record::RestoreEnd,
            ],
        )
    }

    /// Deletes a checkpoint permanently, visible or hidden, for a retention rule or because no user
    /// requested it. This is no operation and cannot be undone. On return it survives `kill -9`,
    /// and versions that only this checkpoint needed can be removed.
    ///
    /// # Errors
    /// As [`Appender::append`]; then nothing changed.
    pub fn free(&self, by: &Actor, id: CheckpointId) -> SysResult<()> {
        self.unasked(by, vec![Record::Deleted { id }])
    }

    /// Appends and applies records that are no operation and cannot be undone.
    fn unasked(&self, by: &Actor, records: Vec<Record>) -> SysResult<()> {
        let mut all = asked(Some(by));
        all.extend(records.iter().cloned());
        self.journal.append(&all)?;
        let mut checkpoints = self.catalogue.write();
        records
            .into_iter()
            .for_each(|record| checkpoints.apply(record));
        Ok(())
    }

    /// Returns the operations to undo, in order; fewer than requested if no more exist.
    pub fn walk(&self, walk: Walk) -> Vec<u64> {
        let order = self.order.read();
        match walk {
            Walk::Undo(steps) => order.line.undo.iter().rev().take(steps).copied().collect(),
            Walk::Redo(steps) => order.line.redo.iter().rev().take(steps).copied().collect(),
            Walk::To(number) => order.since(number),
        }
    }

    /// Whether the log has an operation with this number.
    pub fn has_operation(&self, number: u64) -> bool {
        self.order.read().known.contains_key(&number)
    }

    /// Follows a chain of undo and redo to the original operation.
    pub fn original(&self, number: u64) -> u64 {
        let order = self.order.read();
        let undone = |number: u64| {
            order
                .known
                .get(&number)
                .and_then(|(_, undoes)| *undoes)
                .filter(|before| *before < number)
        };
        std::iter::successors(Some(number), |number| undone(*number))
            .last()
            .unwrap_or(number)
    }

    /// Returns the last operation that undid this one.
    pub fn undone_by(&self, number: u64) -> Option<u64> {
        let order = self.order.read();
        let mut later = order.known.range(number.saturating_add(1)..).rev();
        later
            .find(|(_, (_, undoes))| *undoes == Some(number))
            .map(|(by, _)| *by)
    }

    /// Returns up to `limit` operations before `before` (default: the end), newest first.
    ///
    /// # Errors
    /// EIO if the journal cannot be read.
    pub fn operations(&self, before: Option<u64>, limit: usize) -> SysResult<Vec<OperationStatus>> {
        let (found, undone_by) = {
            let order = self.order.read();
            let known = order
                .known
                .range(..before.unwrap_or(u64::MAX))
                .rev()
                .take(limit);
            (
                known
                    .map(|(number, (at, _))| (*number, *at))
                    .collect::<Vec<_>>(),
                order.undone_by(),
            )
        };
        let told = |(number, at): (u64, Address)| {
            let by = undone_by.get(&number).copied();
            // A chain of undo and redo ends, because each operation is later than the one it
            // undoes.
            let times =
                std::iter::successors(by, |by| undone_by.get(by).copied().filter(|next| next > by))
                    .count();
            let operation = self.operation_at(at)?;
            Ok(operation.map(|operation| OperationStatus {
                operation,
                undone_by: by,
                in_effect: times.is_multiple_of(2),
            }))
        };
        found
            .into_iter()
            .filter_map(|found| told(found).transpose())
            .collect()
    }

    /// `None` if the operation was just removed.
    fn operation_at(&self, at: Address) -> SysResult<Option<Operation>> {
        match self
            .journal
            .store()
            .journal
            .read_if_needed(at)
            .map_err(fault)?
        {
            Some(Record::Operation(operation)) => Ok(Some(operation)),
            Some(_) => Err(fault(StoreError::BadRecord {
                at,
                source: CodecError::Unknown,
            })),
            None => Ok(None),
        }
    }

    /// Returns the checkpoints deleted by operations since this time (nanoseconds since 1970).
    ///
    /// # Errors
    /// EIO if the journal cannot be read.
    pub fn deleted_since(&self, since_ns: i64) -> SysResult<BTreeSet<CheckpointId>> {
        let addresses: Vec<Address> = {
            let order = self.order.read();
            order.known.values().rev().map(|(at, _)| *at).collect()
        };
        let mut deleted = BTreeSet::new();
        for at in addresses {
            match self.operation_at(at)? {
                Some(operation) if operation.at_ns < since_ns => break,
                Some(Operation {
                    deed: OperationEffect::Deleted { id, .. },
                    ..
                }) => drop(deleted.insert(id)),
                _ => {}
            }
        }
        Ok(deleted)
    }

    /// Returns the records that unhide a checkpoint, with its tags except those in use by another
    /// checkpoint.
    pub fn reviving(&self, kept: &CheckpointState) -> Vec<Record> {
        let mut records = Vec::new();
        let free: Vec<String> = kept
            .tags
            .iter()
            .filter(|tag| self.catalogue.tagged(tag).is_none())
            .cloned()
            .collect();
        if free.len() < kept.tags.len() {
            records.push(Record::Tags {
                id: kept.id,
                tags: free,
            });
        }
        records.push(Record::Hidden {
            id: kept.id,
            hidden: false,
        });
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(undoes: &[Option<u64>]) -> OperationOrder {
        let mut operations = OperationOrder::default();
        for (number, undoes) in (1..).zip(undoes) {
            assert_eq!(operations.next(), number);
            operations.note(number, Address::START, *undoes);
        }
        operations
    }

    #[test]
    fn undo_and_redo_walk_the_line_and_something_new_leaves_it() {
        let stacks = |undoes: &[Option<u64>]| {
            let operations = done(undoes);
            (operations.line.undo, operations.line.redo)
        };
        assert_eq!(stacks(&[None, None]), (vec![1, 2], vec![]));
        assert_eq!(stacks(&[None, None, Some(2)]), (vec![1], vec![3]));
        assert_eq!(
            stacks(&[None, None, Some(2), Some(1)]),
            (vec![], vec![3, 4])
        );
        assert_eq!(
            stacks(&[None, None, Some(2), Some(1), Some(4)]),
            (vec![5], vec![3])
        );
        assert_eq!(
            stacks(&[None, None, Some(2), Some(1), Some(4), Some(3)]),
            (vec![5, 6], vec![])
        );
        assert_eq!(stacks(&[None, None, Some(2), None]), (vec![1, 4], vec![]));
        // An operation further down, below one that cannot be undone.
        assert_eq!(stacks(&[None, None, None, Some(2)]), (vec![1, 3], vec![4]));
        // An abandoned line is reached again.
        assert_eq!(
            stacks(&[None, None, Some(2), None, Some(4), Some(3)]),
            (vec![1, 6], vec![])
        );
    }

    #[test]
    fn the_way_back_and_forth_leaves_out_what_a_rule_did() {
        let order = done(&[None, None, Some(2), BY_RULE, None, BY_RULE, Some(4)]);
        assert_eq!(
            order.line.undo,
            [1, 5, 7],
            "5 is new, 7 brought back what 4 deleted"
        );
        assert_eq!(done(&[None, Some(1), BY_RULE]).line.redo, [2]);
        assert_eq!(order.since(1), [7, 5]);
    }

    #[test]
    fn what_was_done_and_undone_is_left_out_on_the_way_back() {
        assert_eq!(done(&[None, None, Some(2), None]).since(2), [4, 3]);
        assert_eq!(done(&[None, None, Some(2), None]).since(1), [4]);
        assert_eq!(done(&[None, None, Some(2), Some(3), Some(4)]).since(0), [1]);
        assert_eq!(
            done(&[None, None, Some(2), Some(3)]).since(0),
            [4, 1],
            "what was done again counts as done then"
        );
        assert_eq!(done(&[None, None, Some(2)]).since(2), [3]);
        assert_eq!(done(&[None]).since(1), Vec::<u64>::new());
        assert_eq!(done(&[]).since(0), Vec::<u64>::new());
    }
}
