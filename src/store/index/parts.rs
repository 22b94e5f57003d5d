//! The two parts of an index, the database and the runs: their creation, and the changes of a
//! batch.

use super::batch::{Batch, KeyChange};
use super::db::{Db, Edits};
use super::files::{IndexDir, guarded};
use super::opening::{close, identity};
use super::runs::{self, RunListEntry, RunMerge, Runs};
use super::{applied_in, checkpoint_after, get, keys, last_checkpoint, list};
use crate::error::StoreResult;
use crate::journal::{Address, Journal};
use crate::layout::StoreId;
use ckptfs_sys::lock::RwLock;

/// An open index.
pub(super) struct IndexParts {
    pub db: Db,
    pub runs: Runs,
}

impl IndexParts {
    /// Returns a copy of an index in memory.
    pub fn copy(&self) -> IndexParts {
        let db = match &self.db {
            Db::Memory(map) => Db::Memory(RwLock::new(map.read().clone())),
            Db::Disk(_) => Db::in_memory(),
        };
        IndexParts {
            db,
            runs: self.runs.copy(),
        }
    }
}

/// Returns the listed runs in order of their addresses, and the void records.
pub(super) fn listed(db: &Db) -> StoreResult<(Vec<RunListEntry>, runs::VoidRecords)> {
    let struck = list(db, &[keys::STRUCK], keys::parse_struck)?;
    Ok((
        list(db, &[keys::RUN], keys::parse_run)?,
        struck.into_iter().collect(),
    ))
}

/// Opens a new database and stores its identity.
pub(super) fn begin(home: &IndexDir, id: StoreId) -> StoreResult<IndexParts> {
    let db = home.open()?;
    match guarded("begin", || say_whose(&db, id))
        .and_then(|()| Runs::open(home.runs()?, &[], runs::VoidRecords::new(), false))
    {
        Ok(runs) => Ok(IndexParts { db, runs }),
        Err(error) => {
            close(db);
            Err(error)
        }
    }
}

fn say_whose(db: &Db, id: StoreId) -> StoreResult<()> {
    let mut edits = Edits::default();
    edits.put(keys::META_STORE.to_vec(), identity(id));
    db.apply(edits)
}

/// Creates an empty index in memory.
pub(super) fn in_memory(id: StoreId) -> StoreResult<IndexParts> {
    let db = Db::in_memory();
    say_whose(&db, id)?;
    Ok(IndexParts {
        db,
        runs: Runs::in_memory(),
    })
}

pub(super) fn filled_in_memory(
    id: StoreId,
    journal: &Journal,
    end: Option<Address>,
) -> StoreResult<IndexParts> {
    let parts = in_memory(id)?;
    fill(&parts, journal, end)?;
    Ok(parts)
}

/// Applies the journal from the applied address, up to `end` or completely.
pub(super) fn fill(parts: &IndexParts, journal: &Journal, end: Option<Address>) -> StoreResult<()> {
    let from = applied_in(&parts.db)?.map_or(journal.start(), |(_, end)| end);
    let mut batch = Batch::after(last_checkpoint(&parts.db)?);
    for entry in journal.scan(from, end) {
        let (at, record) = entry?;
        batch.add(at, &record)?;
        if batch.is_full() {
            let full = batch.take();
            guarded("apply", || fill_in(parts, &full))?;
        }
    }
    guarded("apply", || fill_in(parts, &batch))
}

fn fill_in(parts: &IndexParts, batch: &Batch) -> StoreResult<()> {
    apply(parts, batch)?;
    if merge(parts)? {
        parts.runs.remove_replaced()
    } else {
        Ok(())
    }
}

/// Applies a batch completely or not at all.
pub(super) fn apply(parts: &IndexParts, batch: &Batch) -> StoreResult<()> {
    let db = &parts.db;
    let RunListChange { made, struck } = RunListChange::of(parts, batch)?;
    let mut edits = Edits::default();
    if let Some(made) = &made {
        edits.put(
            keys::key(keys::RUN, [keys::in_key(made.from)]),
            keys::run_value(&made.line()),
        );
    }
    for ((epoch, slot), upto) in &struck {
        edits.put(
            keys::struck_key(*epoch, *slot),
            keys::value(&[keys::in_value(*upto)]),
        );
    }
    for (key, change) in &batch.changes {
        match change {
            KeyChange::Remove => edits.remove(key.clone()),
            KeyChange::Keep(value) | KeyChange::Put(value) => edits.put(key.clone(), value.clone()),
        }
    }
    for (id, change) in &batch.checkpoints {
        let key = keys::checkpoint_key(*id);
        if let Some(value) = checkpoint_after(get(db, &key)?, change)? {
            edits.put(key, value);
        }
    }
    if let Some(applied) = batch.applied {
        let applied = [applied.0, applied.1].map(keys::in_value);
        edits.put(keys::META_APPLIED.to_vec(), keys::value(&applied));
    }
    db.apply(edits)?;
    parts.runs.put(made, struck);
    Ok(())
}

/// The changes of a batch to the list of runs.
struct RunListChange {
    made: Option<runs::ListedRun>,
    struck: runs::VoidRecords,
}

impl RunListChange {
    /// Writes a run of a batch's undo records.
    fn of(parts: &IndexParts, batch: &Batch) -> StoreResult<RunListChange> {
        let from = applied_in(&parts.db)?.map_or(Address::START, |(_, end)| end);
        let mut entries = Vec::with_capacity(batch.undo.len());
        let mut struck = runs::VoidRecords::new();
        for ((key, epoch), change) in &batch.undo {
            if let KeyChange::Keep(value) | KeyChange::Put(value) = change {
                entries.push((key.as_slice(), *epoch, value.as_slice()));
            }
            // Only data records are ever voided.
            if let (KeyChange::Remove | KeyChange::Put(_), Some(slot)) =
                (change, keys::data_slot(key))
                && parts.runs.covers(*epoch)
            {
                struck.insert((*epoch, slot), from);
            }
        }
        Ok(RunListChange {
            made: parts.runs.prepare(&entries, from)?,
            struck,
        })
    }
}

/// Merges the runs that are due. Returns whether enough was replaced to make the index durable now.
fn merge(parts: &IndexParts) -> StoreResult<bool> {
    let mut full = false;
    while let Some(merge) = parts.runs.merge(&|| false)? {
        full |= put_merged(parts, merge)?;
    }
    Ok(full)
}

/// Lists a merged run if its sources are still listed. The caller excludes concurrent batches.
pub(super) fn put_merged(parts: &IndexParts, mut merge: RunMerge) -> StoreResult<bool> {
    if !parts.runs.settle(&mut merge) {
        return Ok(false);
    }
    let mut edits = Edits::default();
    merge
        .old
        .iter()
        .for_each(|old| edits.remove(keys::key(keys::RUN, [keys::in_key(old.from)])));
    edits.put(
        keys::key(keys::RUN, [keys::in_key(merge.made.from)]),
        keys::run_value(&merge.made.line()),
    );
    for ((epoch, slot), _, upto) in &merge.clean {
        let key = keys::struck_key(*epoch, *slot);
        match upto {
            Some(upto) => edits.put(key, keys::value(&[keys::in_value(*upto)])),
            None => edits.remove(key),
        }
    }
    parts.db.apply(edits)?;
    Ok(parts.runs.put_merged(merge))
}
