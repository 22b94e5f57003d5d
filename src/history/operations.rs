//! What was done to the history, and what can be undone and done again.
//!
//! The journal has a record of each operation. Of them this keeps where they are and two stacks. `undo` takes the operations that can be undone next,
//! newest last; to undo one is an operation that goes on `redo`; to redo is to undo that one, and goes on `undo` again. Anything else that is done
//! empties `redo`: the line that was undone is left, and still is in the list. Every operation can be undone, those that undid others too, so that any state that
//! the history was in is reached from any other by undoing what was done since, the newest first.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::timeline::{Inner, Timeline, asked, fault};
use crate::store::error::CodecError;
use crate::store::ids::CheckpointId;
use crate::store::operation::{Deed, Line, Operation};
use crate::store::record::{Actor, Kept, Record};
use crate::store::{Address, Forgotten, StoreError};
use crate::sys::SysResult;

/// The operations there were. Knows the order, and not what they did.
#[derive(Clone, Debug, Default)]
pub(super) struct Operations {
    known: BTreeMap<u64, (Address, Option<u64>)>,
    line: Line,
}

impl Operations {
    /// An operation was done. Those before it were noted.
    pub(super) fn note(&mut self, number: u64, at: Address, undoes: Option<u64>) {
        // One that undid what is forgotten is to be forgotten too.
        let counts = undoes.is_none_or(|undone| self.known.contains_key(&undone));
        if self.known.insert(number, (at, undoes)).is_none() && counts {
            self.line.note(number, undoes);
        }
    }

    /// These are told nobody any more: see [`crate::store::forget`].
    pub(super) fn forget(&mut self, gone: &BTreeSet<u64>) {
        self.known.retain(|number, _| !gone.contains(number));
        self.line.forget(|number| gone.contains(&number));
    }

    fn next(&self) -> u64 {
        self.known.last_key_value().map_or(1, |(last, _)| last.saturating_add(1))
    }

    /// Which operation undid each that was undone; the last, if several did.
    fn undone_by(&self) -> HashMap<u64, u64> {
        self.known.iter().filter_map(|(number, (_, undoes))| Some(((*undoes)?, *number))).collect()
    }

    /// What is to be undone, in this order, so that everything is as it was right after operation `to`. What was done and undone since is left out.
    fn since(&self, to: u64) -> Vec<u64> {
        let mut left: Vec<u64> = Vec::new();
        for (number, (_, undoes)) in self.known.range(to.saturating_add(1)..) {
            match undoes.and_then(|undone| left.iter().rposition(|known| *known == undone)) {
                Some(place) => drop(left.remove(place)),
                None => left.push(*number),
            }
        }
        left.reverse();
        left
    }
}

impl Inner {
    /// What nobody can ask for any more; none of it is among the checkpoints.
    pub(super) fn forget(&mut self, forgotten: &Forgotten) {
        self.operations.forget(&forgotten.operations);
        self.lineage.forget(&forgotten.lineage);
        self.absences.retain(|absence| !forgotten.absences.contains(&absence.to_ns));
        self.clock.forget(&forgotten.checkpoints);
        self.dropped.retain(|place, _| !forgotten.dropped.contains(place));
        self.dropped_spans = self.dropped.values().copied().collect();
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

/// A record of an operation to come; its number is given when it is appended.
fn record(number: u64, by: &Actor, undoes: Option<u64>, deed: Deed) -> Record {
    Record::Operation(Operation { number, at_ns: super::timeline::now_ns(), by: by.clone(), undoes, deed })
}

impl Timeline {
    /// The record of what is about to be done, to be appended behind the records of it. Only one thread makes records of operations at a time:
    /// the caller holds what says so.
    pub(super) fn operation(&self, by: &Actor, undoes: Option<u64>, deed: Deed) -> Record {
        record(self.inner.read().operations.next(), by, undoes, deed)
    }

    /// Does an operation: appends its records with who asked for each, and itself behind them, then makes the tables so.
    ///
    /// # Errors
    /// As [`Timeline::append`]; then nothing was done.
    pub fn operate(&self, by: &Actor, undoes: Option<u64>, deed: Deed, of_it: Vec<Record>) -> SysResult<()> {
        let mut records: Vec<Record> = of_it.iter().flat_map(|record| asked(Some(by)).into_iter().chain([record.clone()])).collect();
        let operation = self.operation(by, undoes, deed);
        records.push(operation.clone());
        let at = self.write(&records)?;
        let mut inner = self.inner.write();
        for record in of_it {
            match record {
                Record::Tags { id, tags } => inner.retag(id, tags),
                Record::Pinned { id, reason } => inner.pin(id, reason),
                Record::Hidden { id, hidden } => inner.hide(id, hidden),
                Record::Deleted { id } => inner.drop_checkpoint(id),
                Record::RestoreBegin { target, guard, paths } => drop(inner.lineage.restored(target, guard, &paths)),
                _ => {}
            }
        }
        if let (Some(at), Record::Operation(done)) = (at.last(), operation) {
            inner.operations.note(done.number, *at, done.undoes);
        }
        Ok(())
    }

    /// Deletes a checkpoint for good that the daemon made and nobody asked for: no operation, for there is nothing to be undone.
    ///
    /// # Errors
    /// As [`Timeline::append`]; then nothing was done.
    pub fn forgo(&self, by: &Actor, id: CheckpointId) -> SysResult<()> {
        let records: Vec<Record> = asked(Some(by)).into_iter().chain([Record::Deleted { id }]).collect();
        self.write(&records)?;
        self.inner.write().drop_checkpoint(id);
        Ok(())
    }

    /// What is to be undone, in this order, to walk so far; fewer if there is no more.
    pub fn walk(&self, walk: Walk) -> Vec<u64> {
        let inner = self.inner.read();
        match walk {
            Walk::Undo(steps) => inner.operations.line.undo.iter().rev().take(steps).copied().collect(),
            Walk::Redo(steps) => inner.operations.line.redo.iter().rev().take(steps).copied().collect(),
            Walk::To(number) => inner.operations.since(number),
        }
    }

    /// Whether there is an operation of this number.
    pub fn has_operation(&self, number: u64) -> bool {
        self.inner.read().operations.known.contains_key(&number)
    }

    /// The operation that this one stands for: if it undid one, or did one again, that one.
    pub fn original(&self, number: u64) -> u64 {
        let inner = self.inner.read();
        let undone = |number: u64| inner.operations.known.get(&number).and_then(|(_, undoes)| *undoes).filter(|before| *before < number);
        std::iter::successors(Some(number), |number| undone(*number)).last().unwrap_or(number)
    }

    /// The operation that undid this one, the last if several did.
    pub fn undone_by(&self, number: u64) -> Option<u64> {
        let inner = self.inner.read();
        let mut later = inner.operations.known.range(number.saturating_add(1)..).rev();
        later.find(|(_, (_, undoes))| *undoes == Some(number)).map(|(by, _)| *by)
    }

    /// At most `limit` operations before `before` (without it: the last), newest first.
    ///
    /// # Errors
    /// EIO if the journal cannot be read.
    pub fn operations(&self, before: Option<u64>, limit: usize) -> SysResult<Vec<Told>> {
        let (found, undone_by) = {
            let inner = self.inner.read();
            let known = inner.operations.known.range(..before.unwrap_or(u64::MAX)).rev().take(limit);
            (known.map(|(number, (at, _))| (*number, *at)).collect::<Vec<_>>(), inner.operations.undone_by())
        };
        let told = |(number, at): (u64, Address)| {
            let by = undone_by.get(&number).copied();
            // Undone, done again, undone again: it ends, for each is later than what it undoes.
            let times = std::iter::successors(by, |by| undone_by.get(by).copied().filter(|next| next > by)).count();
            let operation = self.operation_at(at)?;
            Ok(operation.map(|operation| Told { operation, undone_by: by, in_effect: times.is_multiple_of(2) }))
        };
        found.into_iter().filter_map(|found| told(found).transpose()).collect()
    }

    /// `None`: it was forgotten a moment ago.
    fn operation_at(&self, at: Address) -> SysResult<Option<Operation>> {
        match self.store.journal.read_if_needed(at).map_err(fault)? {
            Some(Record::Operation(operation)) => Ok(Some(operation)),
            Some(_) => Err(fault(StoreError::BadRecord { at, source: CodecError::Unknown })),
            None => Ok(None),
        }
    }

    /// The records that bring a hidden checkpoint back: with its tags, but for those that another has by now.
    pub fn reviving(&self, kept: &Kept) -> Vec<Record> {
        let mut records = Vec::new();
        let free: Vec<String> = kept.tags.iter().filter(|tag| self.tagged(tag).is_none()).cloned().collect();
        if free.len() < kept.tags.len() {
            records.push(Record::Tags { id: kept.id, tags: free });
        }
        records.push(Record::Hidden { id: kept.id, hidden: false });
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(undoes: &[Option<u64>]) -> Operations {
        let mut operations = Operations::default();
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
        assert_eq!(stacks(&[None, None, Some(2), Some(1)]), (vec![], vec![3, 4]));
        assert_eq!(stacks(&[None, None, Some(2), Some(1), Some(4)]), (vec![5], vec![3]));
        assert_eq!(stacks(&[None, None, Some(2), Some(1), Some(4), Some(3)]), (vec![5, 6], vec![]));
        assert_eq!(stacks(&[None, None, Some(2), None]), (vec![1, 4], vec![]));
        // Something further down, past what cannot be undone.
        assert_eq!(stacks(&[None, None, None, Some(2)]), (vec![1, 3], vec![4]));
        // A line that was left is reached again.
        assert_eq!(stacks(&[None, None, Some(2), None, Some(4), Some(3)]), (vec![1, 6], vec![]));
    }

    #[test]
    fn what_was_done_and_undone_is_left_out_on_the_way_back() {
        assert_eq!(done(&[None, None, Some(2), None]).since(2), [4, 3]);
        assert_eq!(done(&[None, None, Some(2), None]).since(1), [4]);
        assert_eq!(done(&[None, None, Some(2), Some(3), Some(4)]).since(0), [1]);
        assert_eq!(done(&[None, None, Some(2), Some(3)]).since(0), [4, 1], "what was done again counts as done then");
        assert_eq!(done(&[None, None, Some(2)]).since(2), [3]);
        assert_eq!(done(&[None]).since(1), Vec::<u64>::new());
        assert_eq!(done(&[]).since(0), Vec::<u64>::new());
    }
}
