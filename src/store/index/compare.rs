//! Comparison of the index with the journal.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::db::Db;
use super::parts::{IndexParts, fill, filled_in_memory};
use super::runs::RunWalk;
use super::runs::needs::{LastPlaces, is_read};
use super::{Batch, CheckpointEntry, Index, keys, last_checkpoint, list};
use crate::error::StoreResult;
use crate::expiry::ExpiryScan;
use crate::ids::Slot;
use crate::journal::{Address, Journal};
use crate::layout::StoreId;
use ckptfs_api::{CheckpointId, Epoch};

/// Differences between an index and its journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexDifference {
    /// Missing entries.
    pub missing: u64,
    /// Entries with a wrong value.
    pub wrong: u64,
    /// Entries without a record in the journal.
    pub strange: u64,
}

impl IndexDifference {
    /// Returns whether no difference was found.
    pub fn is_none(&self) -> bool {
        *self == IndexDifference::default()
    }

    /// Compares one key: its values in the index, in the journal up to the applied address, and in
    /// the whole journal. `counts` returns whether the entry is ever read.
    fn take(
        &mut self,
        key: &[u8],
        [found, now, later]: [Option<&[u8]>; 3],
        counts: impl FnOnce() -> StoreResult<bool>,
    ) -> StoreResult<()> {
        match found {
            Some(_) if found == now || found == later => {}
            // An entry voided by a later record may still exist; one that was never recorded may
            // not.
            Some(_) if now.is_some() || later.is_some() => self.wrong += u64::from(counts()?),
            Some(_) => {
                let strange = !keys::is_content(key) && (!keys::is_place(key) || counts()?);
                self.strange += u64::from(strange);
            }
            None if now.is_some() && later.is_some() && !keys::is_hint(key) => {
                self.missing += u64::from(counts()?)
            }
            None => {}
        }
        Ok(())
    }
}

/// The indexes that a journal yields.
struct ExpectedIndex {
    /// Up to the address applied in the compared index.
    now: IndexParts,
    /// Of the whole journal.
    later: IndexParts,
    /// Database values set by each record not yet applied. A batch is applied in pieces, so the
    /// index may already contain some of them, and a later batch may set others.
    told: HashMap<Vec<u8>, Vec<Vec<u8>>>,
    /// Keys of entries that no request can reach any more.
    forgotten: HashSet<Vec<u8>>,
}

impl ExpectedIndex {
    fn read(id: StoreId, journal: &Journal, applied: Address) -> StoreResult<ExpectedIndex> {
        // The journal is scanned several times, and all scans must see the same records.
        let _packs = journal.hold_packs();
        let now = filled_in_memory(id, journal, Some(applied))?;
        let later = now.copy();
        fill(&later, journal, None)?;
        let mut catalogue = ExpiryScan::default();
        let mut told: HashMap<Vec<u8>, Vec<Vec<u8>>> = HashMap::new();
        let mut batch = Batch::after(last_checkpoint(&now.db)?);
        for entry in journal.scan(journal.start(), None) {
            let (at, record) = entry?;
            catalogue.take(at, &record);
            if at >= applied {
                batch.add(at, &record)?;
                for (key, value) in batch.take().into_puts() {
                    let value = keys::seal(&key, value);
                    told.entry(key).or_default().push(value);
                }
            }
        }
        let end = Address {
            segment: u32::MAX,
            offset: u32::MAX,
        };
        let forgotten = keys::of_forgotten(&catalogue.forgotten(end, (end, end)));
        Ok(ExpectedIndex {
            now,
            later,
            told,
            forgotten: forgotten.into_iter().collect(),
        })
    }

    fn is_told(&self, key: &[u8], value: Option<&[u8]>) -> bool {
        value.is_some_and(|value| {
            self.told
                .get(key)
                .is_some_and(|told| told.iter().any(|told| told == value))
        })
    }
}

impl Index {
    /// Compares the index with the journal up to the applied address. Counts entries that are
    /// missing, wrong, or without a record. Run entries that no checkpoint reads, and forgotten
    /// ones, may exist or not. Values set by later records are valid. Takes the memory of another
    /// index, whose runs are compressed. Until it returns, nothing is applied to the index and no
    /// segment is replaced by its pack.
    ///
    /// Errors: those of reading either.
    pub fn compare(&self, journal: &Journal) -> StoreResult<IndexDifference> {
        let _applying = self.applying.lock();
        let given = ExpectedIndex::read(self.id, journal, self.applied()?)?;
        self.with_parts("compare", |found| {
            let mut difference = IndexDifference::default();
            compare_catalogues(&mut difference, &found.db, &given)?;
            compare_runs(&mut difference, [found, &given.now, &given.later])?;
            Ok(difference)
        })
    }
}

fn compare_catalogues(
    difference: &mut IndexDifference,
    found: &Db,
    given: &ExpectedIndex,
) -> StoreResult<()> {
    let mut all: BTreeMap<Vec<u8>, [Option<Vec<u8>>; 3]> = BTreeMap::new();
    for (number, db) in [found, &given.now.db, &given.later.db]
        .into_iter()
        .enumerate()
    {
        for entry in db.range(..) {
            let (key, value) = entry?;
            let is_meta =
                [keys::META_STORE, keys::META_APPLIED].contains(&&*key) || keys::is_list(&key);
            if let (false, Some(said)) = (
                is_meta,
                all.entry(key.to_vec()).or_default().get_mut(number),
            ) {
                *said = Some(value.to_vec());
            }
        }
    }
    all.retain(|key, [found, ..]| {
        !given.is_told(key, found.as_deref()) && (found.is_some() || !given.forgotten.contains(key))
    });
    all.iter().try_for_each(|(key, said)| {
        difference.take(key, said.each_ref().map(|value| value.as_deref()), || {
            Ok(true)
        })
    })
}

/// Returns the checkpoints that are not freed, oldest first.
fn kept(db: &Db) -> StoreResult<Vec<CheckpointId>> {
    let all = list(db, &[keys::CHECKPOINT], |key, value| {
        Some((keys::parse_checkpoint(key)?, CheckpointEntry::parse(value)?))
    })?;
    let there = all.into_iter().filter(|(_, known)| !known.deleted);
    Ok(there.map(|(id, _)| id).collect())
}

/// Walks all three in parallel, in order of keys and epochs.
fn compare_runs(
    difference: &mut IndexDifference,
    [found, now, later]: [&IndexParts; 3],
) -> StoreResult<()> {
    let kept = kept(&later.db)?;
    let [a, b, c] = [found, now, later].map(|parts| parts.runs.walked());
    let mut walks = [RunWalk::new(&a)?, RunWalk::new(&b)?, RunWalk::new(&c)?];
    // Inodes whose place is in the index.
    let mut placed: HashSet<Slot> = HashSet::new();
    let mut needed: Option<LastPlaces> = None;
    // The last record in the journal up to the applied address.
    let mut before = (Vec::new(), Epoch(0));
    while let Some((key, epoch)) = walks
        .iter()
        .filter_map(RunWalk::at)
        .min()
        .map(|(key, epoch)| (key.to_vec(), epoch))
    {
        let said = walks.each_ref().map(|walk| walk.says(&key, epoch));
        let [found, given, given_later] = said.map(|said| said.is_some());
        if found {
            placed.extend(keys::placed_slot(&key));
        }
        let last = if before.0 == key { before.1 } else { Epoch(0) };
        difference.take(&key, said, || match keys::owner(&key) {
            // Packs omit the place of an inode of which no checkpoint reads a record; the index may
            // retain it longer.
            Some(_) if keys::is_place(&key) && !given && !given_later => {
                if needed.is_none() {
                    needed = Some(LastPlaces::needed(&a, &kept)?);
                }
                Ok(needed
                    .as_ref()
                    .is_some_and(|places| places.is_needed(&key, epoch)))
            }
            // The place of an inode without records is never read, and of its places only the last
            // counts.
            Some(slot) if keys::is_place(&key) => Ok(placed.contains(&slot)
                && now
                    .runs
                    .last_told(slot)?
                    .is_none_or(|(last, _)| last <= epoch)),
            _ => Ok(is_read(&kept, last, epoch)),
        })?;
        walks
            .iter_mut()
            .try_for_each(|walk| walk.pass(&key, epoch))?;
        if given {
            before = (key, epoch);
        }
    }
    Ok(())
}
