//! The two parts of an index, the database and the runs: what one batch changes in both, and how they are made.

use super::batch::{self, Batch, Change};
use super::db::Db;
use super::files::{Home, guarded};
use super::runs::{self, Line, Merge, Runs};
use super::{applied_in, checkpoint_after, close, get, identity, keys};
use crate::store::error::{StoreError, StoreResult};
use crate::store::journal::{Address, Journal};
use crate::store::layout::StoreId;

/// An open index.
pub(super) struct Parts {
    pub db: Db,
    pub runs: Runs,
}

/// The runs that are listed, in the order of their places, and what is struck in them.
pub(super) fn listed(db: &Db) -> StoreResult<(Vec<Line>, runs::Struck)> {
    let (mut lines, mut struck) = (Vec::new(), runs::Struck::new());
    for entry in db.scan_prefix(keys::runs_prefix()) {
        let (key, value) = entry?;
        let parsed = keys::unseal(&key, &value).and_then(|value| keys::parse_run(&key, value));
        lines.push(parsed.ok_or(StoreError::IndexDamaged)?);
    }
    for entry in db.scan_prefix(keys::struck_prefix()) {
        let (key, value) = entry?;
        let parsed = keys::unseal(&key, &value).and_then(|value| keys::parse_struck(&key, value));
        struck.extend([parsed.ok_or(StoreError::IndexDamaged)?]);
    }
    Ok((lines, struck))
}

/// Opens a new database and says whose it is.
pub(super) fn begin(home: &Home, id: StoreId) -> StoreResult<Parts> {
    let db = home.open()?;
    let begun = guarded("begin", || {
        if let Some(db) = db.disk() {
            db.insert(keys::META_STORE, keys::seal(keys::META_STORE, identity(id)))?;
        }
        Ok(())
    });
    match begun.and_then(|()| Runs::open(home.runs()?, &[], runs::Struck::new(), false)) {
        Ok(runs) => Ok(Parts { db, runs }),
        Err(error) => {
            close(db);
            Err(error)
        }
    }
}

/// A new one that is on no disk.
pub(super) fn in_memory(id: StoreId) -> Parts {
    let mut image = batch::Image::new();
    image.put(keys::META_STORE, identity(id));
    Parts { db: Db::Memory(image), runs: Runs::in_memory() }
}

pub(super) fn filled_in_memory(id: StoreId, journal: &Journal, end: Option<Address>) -> StoreResult<Parts> {
    let mut parts = in_memory(id);
    fill(&mut parts, journal, end)?;
    Ok(parts)
}

/// Puts the journal into a new one, up to `end` or all of it.
pub(super) fn fill(parts: &mut Parts, journal: &Journal, end: Option<Address>) -> StoreResult<()> {
    let mut batch = Batch::new();
    for entry in journal.scan(journal.start(), end) {
        let (at, record) = entry?;
        batch.add(at, &record)?;
        if batch.is_full() {
            let full = batch.take();
            guarded("apply", || fill_in(parts, &full))?;
        }
    }
    guarded("apply", || fill_in(parts, &batch))
}

fn fill_in(parts: &mut Parts, batch: &Batch) -> StoreResult<()> {
    apply(parts, batch)?;
    if merge(parts)? { parts.runs.remove_replaced() } else { Ok(()) }
}

pub(super) fn apply(parts: &mut Parts, batch: &Batch) -> StoreResult<()> {
    if parts.db.disk().is_some() {
        return apply_on_disk(parts, batch);
    }
    let listing = Listing::of(parts, batch)?;
    parts.db.apply_in_memory(batch)?;
    parts.runs.put(listing.made, listing.struck);
    Ok(())
}

/// What a batch changes in the list of runs.
struct Listing {
    made: Option<runs::Listed>,
    struck: runs::Struck,
}

impl Listing {
    /// Makes a run of a batch's undo records.
    fn of(parts: &Parts, batch: &Batch) -> StoreResult<Listing> {
        let from = applied_in(&parts.db)?.map_or(Address::START, |(_, end)| end);
        let mut entries = Vec::with_capacity(batch.undo.len());
        let mut struck = runs::Struck::new();
        for ((key, epoch), change) in &batch.undo {
            if let Change::Keep(value) | Change::Put(value) = change {
                entries.push((key.as_slice(), *epoch, value.as_slice()));
            }
            // Only data records are taken back.
            if let (Change::Remove | Change::Put(_), Some(slot)) = (change, keys::data_slot(key))
                && parts.runs.covers(*epoch)
            {
                struck.insert((*epoch, slot), from);
            }
        }
        Ok(Listing { made: parts.runs.prepare(&entries, from)?, struck })
    }
}

pub(super) fn apply_on_disk(parts: &Parts, batch: &Batch) -> StoreResult<()> {
    let db = &parts.db;
    let disk = db.disk().ok_or(StoreError::IndexClosed)?;
    let listing = Listing::of(parts, batch)?;
    let mut out = sled::Batch::default();
    let mut insert = |key: &[u8], value: Vec<u8>| out.insert(key, keys::seal(key, value));
    if let Some(made) = &listing.made {
        insert(&keys::run_key(made.from), keys::run_value(&made.line()));
    }
    for ((epoch, slot), upto) in &listing.struck {
        insert(&keys::struck_key(*epoch, *slot), keys::struck_value(*upto));
    }
    for (key, change) in &batch.changes {
        match change {
            Change::Remove => out.remove(key.as_slice()),
            Change::Keep(_) if disk.contains_key(key)? => {}
            Change::Keep(value) | Change::Put(value) => out.insert(key.as_slice(), keys::seal(key, value.clone())),
        }
    }
    for (id, change) in &batch.checkpoints {
        let key = keys::checkpoint_key(*id);
        if let Some(value) = checkpoint_after(&key, get(db, &key)?, change)? {
            out.insert(key.as_slice(), value);
        }
    }
    if let Some(applied) = batch.applied {
        out.insert(keys::META_APPLIED, keys::seal(keys::META_APPLIED, keys::applied_value(applied)));
    }
    disk.apply_batch(out)?;
    parts.runs.put(listing.made, listing.struck);
    Ok(())
}

/// Merges what is due; `true`: so much was replaced that the index should be made durable now.
fn merge(parts: &Parts) -> StoreResult<bool> {
    let mut full = false;
    while let Some(merge) = parts.runs.merge(&|| false)? {
        full |= put_merged(parts, merge)?;
    }
    Ok(full)
}

/// Lists what was merged, if that is still there. Batches are not applied meanwhile.
pub(super) fn put_merged(parts: &Parts, mut merge: Merge) -> StoreResult<bool> {
    if !parts.runs.settle(&mut merge) {
        return Ok(false);
    }
    if let Some(disk) = parts.db.disk() {
        list_merged(disk, &merge)?;
    }
    Ok(parts.runs.put_merged(merge))
}

fn list_merged(disk: &sled::Db, merge: &Merge) -> StoreResult<()> {
    let mut out = sled::Batch::default();
    merge.old.iter().for_each(|old| out.remove(keys::run_key(old.from)));
    let key = keys::run_key(merge.made.from);
    out.insert(key.as_slice(), keys::seal(&key, keys::run_value(&merge.made.line())));
    for ((epoch, slot), _, upto) in &merge.clean {
        let key = keys::struck_key(*epoch, *slot);
        match upto {
            Some(upto) => out.insert(key.as_slice(), keys::seal(&key, keys::struck_value(*upto))),
            None => out.remove(key),
        }
    }
    Ok(disk.apply_batch(out)?)
}
