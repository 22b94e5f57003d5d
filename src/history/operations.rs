//! What was done to the history, and what can be undone and done again.
//!
//! The journal has a record of each operation. Of them this keeps where they are and two stacks.
//! `undo` takes the operations that can be undone next, newest last; to undo one is an operation
//! that goes on `redo`; to redo is to undo that one, and goes on `undo` again. Anything else that
//! is done empties `redo`: the line that was undone is left, and still is in the list. Every
//! operation can be undone, those that undid others too, so that any state that the history was in
//! is reached from any other by undoing what was done since, the newest first.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::append::{Appender, asked, fault, now_ns};
use super::catalogue::Catalogue;
use crate::store::error::CodecError;
use crate::store::ids::CheckpointId;
use crate::store::operation::{BY_RULE, Deed, Line, Operation};
use crate::store::record::{Actor, Kept, Record};
use crate::store::{Address, StoreError};
use crate::sys::SysResult;
use crate::sys::lock::RwLock;

/// Bytes of chosen paths that are in the record of an operation.
const ONLY_BYTES_MAX: usize = 1 << 20;

/// The operations there were. Knows the order, and not what they did.
#[derive(Clone, Debug, Default)]
pub(super) struct Order {
    known: BTreeMap<u64, (Address, Option<u64>)>,
    line: Line,
}

impl Order {
    /// An operation was done. Those before it were noted.
    pub(super) fn note(&mut self, number: u64, at: Address, undoes: Option<u64>) {
        // One that undid what is forgotten is to be forgotten too.
        let counts = undoes.is_none_or(|undone| self.known.contains_key(&undone));
        if self.known.insert(number, (at, undoes)).is_none() && counts {
            self.line.note(number, undoes);
        }
    }

    /// These are told nobody any more: see [`crate::store::forget`].
    fn forget(&mut self, gone: &BTreeSet<u64>) {
        self.known.retain(|number, _| !gone.contains(number));
        self.line.forget(|number| gone.contains(&number));
    }

    fn next(&self) -> u64 {
        self.known
            .last_key_value()
            .map_or(1, |(last, _)| last.saturating_add(1))
    }

    /// Which operation undid each that was undone; the last, if several did.
    fn undone_by(&self) -> HashMap<u64, u64> {
        self.known
            .iter()
            .filter_map(|(number, (_, undoes))| Some(((*undoes)?, *number)))
            .collect()
    }

    /// What is to be undone, in this order, so that everything is as it was right after operation
    /// `to`. What was done and undone since is left out, and so is what a retention rule did.
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

/// Which way to walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// The newest so many that can be undone.
    Undo(usize),
    /// The last so many that were undone.
    Redo(usize),
    /// Back to how everything was right after this operation; 0: before the first.
    To(u64),
}

/// An operation, and whether what it did is so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The operation.
    pub operation: Operation,
    /// The one that undid it, if one did.
    pub undone_by: Option<u64>,
    /// It was not undone, or done again.
    pub in_effect: bool,
}

/// What was done to the history, and the only way to do something to it that can be undone.
pub struct Operations {
    journal: Arc<Appender>,
    catalogue: Arc<Catalogue>,
    /// A leaf.
    order: RwLock<Order>,
}

impl Operations {
    pub(super) fn new(
        journal: Arc<Appender>,
        catalogue: Arc<Catalogue>,
        order: Order,
    ) -> Operations {
        Operations {
            journal,
            catalogue,
            order: RwLock::new(order),
        }
    }

    /// The record of what is about to be done, to be appended behind the records of it. Only one
    /// thread makes records of operations at a time: the caller holds what says so.
    pub(super) fn operation(&self, by: &Actor, undoes: Option<u64>, deed: Deed) -> Operation {
        Operation {
            number: self.order.read().next(),
            at_ns: now_ns(),
            by: by.clone(),
            undoes,
            deed,
        }
    }

    /// An operation was done; its record is there.
    pub(super) fn note(&self, done: &Operation, at: Address) {
        self.order.write().note(done.number, at, done.undoes);
    }

    /// These are told nobody any more.
    pub(super) fn forget(&self, gone: &BTreeSet<u64>) {
        self.order.write().forget(gone);
    }

    /// Does an operation: appends its records with who asked for each, and itself behind them, then
    /// makes the catalogue so. When it returns that survives `kill -9`.
    ///
    /// # Errors
    /// As [`Appender::append`]; then nothing was done.
    pub fn operate(
        &self,
        by: &Actor,
        undoes: Option<u64>,
        deed: Deed,
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

    /// Records that a restore begins, of these paths or, without any, of the whole tree: what comes
    /// after then comes from `target`. `only`: of nothing below them. `by`: who asked for it, and
    /// which operation it undoes; without it, it is one that was begun before.
    ///
    /// # Errors
    /// As [`Appender::append`]; then it has not begun.
    pub fn begin_restore(
        &self,
        by: Option<(&Actor, Option<u64>)>,
        target: CheckpointId,
        guard: CheckpointId,
        paths: &[Vec<u8>],
        only: bool,
    ) -> SysResult<()> {
        // Chosen paths can be any number. Not all of them would be of no use for an undo; for the
        // rest it matters that there are some.
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
            Deed::Restored {
                target,
                guard,
                paths,
                only,
            },
            vec![begins],
        )
    }

    /// Records that the tree is about to be changed by a merge, and is to be what `guard` holds as
    /// long as [`Operations::end_merge`] was not called: what comes after then comes from it.
    ///
    /// # Errors
    /// As [`Appender::append`]; then it has not begun.
    pub fn begin_merge(&self, by: &Actor, guard: CheckpointId) -> SysResult<()> {
        let begins = Record::RestoreBegin {
            target: guard,
            guard,
            paths: Vec::new(),
        };
        self.unasked(by, vec![begins])
    }

    /// The operation that a merge will be. The caller keeps others from doing any meanwhile.
    pub fn merge(&self, by: &Actor, guard: CheckpointId) -> Operation {
        let deed = Deed::Restored {
            target: guard,
            guard,
            paths: Vec::new(),
            only: false,
        };
        self.operation(by, None, deed)
    }

    /// Records that a merge is done: from now on it survives `kill -9`, whole.
    ///
    /// # Errors
    /// As [`Appender::append`]; then it is not done.
    pub fn end_merge(&self, merge: Operation) -> SysResult<()> {
        self.operate_as(merge, vec![Record::RestoreEnd])
    }

    /// Whether there is an operation of this number that was done then, nanoseconds since 1970.
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

    /// Notes that the whole tree is what a checkpoint holds though nothing had to be restored for
    /// it: what comes after `newest`, the last that was made, comes from that.
    ///
    /// # Errors
    /// As [`Appender::append`]; then nothing was noted.
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

    /// Deletes a checkpoint for good, hidden or not, as the rules of retention say or because
    /// nobody asked for it: no operation, and no way back. When it returns that survives `kill -9`,
    /// and what only it needed can be removed.
    ///
    /// # Errors
    /// As [`Appender::append`]; then nothing was done.
    pub fn free(&self, by: &Actor, id: CheckpointId) -> SysResult<()> {
        self.unasked(by, vec![Record::Deleted { id }])
    }

    /// Does what is no operation: there is nothing to be undone.
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

    /// What is to be undone, in this order, to walk so far; fewer if there is no more.
    pub fn walk(&self, walk: Walk) -> Vec<u64> {
        let order = self.order.read();
        match walk {
            Walk::Undo(steps) => order.line.undo.iter().rev().take(steps).copied().collect(),
            Walk::Redo(steps) => order.line.redo.iter().rev().take(steps).copied().collect(),
            Walk::To(number) => order.since(number),
        }
    }

    /// Whether there is an operation of this number.
    pub fn has_operation(&self, number: u64) -> bool {
        self.order.read().known.contains_key(&number)
    }

    /// The operation that this one stands for: if it undid one, or did one again, that one.
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

    /// The operation that undid this one, the last if several did.
    pub fn undone_by(&self, number: u64) -> Option<u64> {
        let order = self.order.read();
        let mut later = order.known.range(number.saturating_add(1)..).rev();
        later
            .find(|(_, (_, undoes))| *undoes == Some(number))
            .map(|(by, _)| *by)
    }

    /// At most `limit` operations before `before` (without it: the last), newest first.
    ///
    /// # Errors
    /// EIO if the journal cannot be read.
    pub fn operations(&self, before: Option<u64>, limit: usize) -> SysResult<Vec<Told>> {
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
            // Undone, done again, undone again: it ends, for each is later than what it undoes.
            let times =
                std::iter::successors(by, |by| undone_by.get(by).copied().filter(|next| next > by))
                    .count();
            let operation = self.operation_at(at)?;
            Ok(operation.map(|operation| Told {
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

    /// `None`: it was forgotten a moment ago.
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

    /// The checkpoints that operations since this time (nanoseconds since 1970) deleted.
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
                    deed: Deed::Deleted { id, .. },
                    ..
                }) => drop(deleted.insert(id)),
                _ => {}
            }
        }
        Ok(deleted)
    }

    /// The records that bring a hidden checkpoint back: with its tags, but for those that another
    /// has by now.
    pub fn reviving(&self, kept: &Kept) -> Vec<Record> {
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

    fn done(undoes: &[Option<u64>]) -> Order {
        let mut operations = Order::default();
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
        // Something further down, past what cannot be undone.
        assert_eq!(stacks(&[None, None, None, Some(2)]), (vec![1, 3], vec![4]));
        // A line that was left is reached again.
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
