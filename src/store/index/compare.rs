//! The index beside what the journal gives.

use std::collections::{BTreeMap, HashSet};

use super::db::Db;
use super::parts::{Parts, fill, filled_in_memory};
use super::runs::Walk;
use super::runs::needs::is_read;
use super::{Index, KnownCheckpoint, keys, list};
use crate::store::error::StoreResult;
use crate::store::forget::Catalogue;
use crate::store::ids::{CheckpointId, Epoch, Slot};
use crate::store::journal::{Address, Journal};

/// How an index differs from its journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Entries that are not there.
    pub missing: u64,
    /// Entries that say something else.
    pub wrong: u64,
    /// Entries of which the journal knows nothing.
    pub strange: u64,
}

impl Difference {
    /// There is none.
    pub fn is_none(&self) -> bool {
        *self == Difference::default()
    }

    /// Of one key, what the index says, what the journal gives as far as it is applied, and all of
    /// it; `counts`: whether somebody asks for it.
    fn take(
        &mut self,
        key: &[u8],
        [found, now, later]: [Option<&[u8]>; 3],
        counts: impl FnOnce() -> StoreResult<bool>,
    ) -> StoreResult<()> {
        match found {
            Some(_) if found == now || found == later => {}
            // An entry that a record beyond takes back may be there still; one that was never told
            // of may not.
            Some(_) if now.is_some() || later.is_some() => self.wrong += u64::from(counts()?),
            Some(_) => self.strange += u64::from(!keys::is_content(key)),
            None if now.is_some() && later.is_some() && !keys::is_hint(key) => {
                self.missing += u64::from(counts()?)
            }
            None => {}
        }
        Ok(())
    }
}

impl Index {
    /// How the index differs from what the journal says, as far as it says that it is applied: the
    /// number of entries that are missing or hold something else, and of those that should not be
    /// there. What is in runs and no checkpoint reads, and what is forgotten, may be there or not.
    /// Entries of records that come after are right if they are those records'. It takes the memory
    /// of another index, whose runs are compressed.
    ///
    /// Errors: those of reading either.
    pub fn compare(&self, journal: &Journal) -> StoreResult<Difference> {
        let _applying = self.applying.lock();
        let now = filled_in_memory(self.id, journal, Some(self.applied()?))?;
        let later = now.copy();
        fill(&later, journal, None)?;
        let mut catalogue = Catalogue::default();
        for entry in journal.scan(journal.start(), None) {
            let (at, record) = entry?;
            catalogue.take(at, &record);
        }
        let end = Address {
            segment: u32::MAX,
            offset: u32::MAX,
        };
        let forgotten: HashSet<Vec<u8>> = keys::of_forgotten(&catalogue.forgotten(end, (end, end)))
            .into_iter()
            .collect();
        self.with_parts("compare", |found| {
            let mut difference = Difference::default();
            compare_catalogues(
                &mut difference,
                [found, &now, &later].map(|parts| &parts.db),
                &forgotten,
            )?;
            compare_runs(&mut difference, [found, &now, &later])?;
            Ok(difference)
        })
    }
}

fn compare_catalogues(
    difference: &mut Difference,
    dbs: [&Db; 3],
    forgotten: &HashSet<Vec<u8>>,
) -> StoreResult<()> {
    let mut all: BTreeMap<Vec<u8>, [Option<Vec<u8>>; 3]> = BTreeMap::new();
    for (number, db) in dbs.into_iter().enumerate() {
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
    all.retain(|key, [found, ..]| found.is_some() || !forgotten.contains(key));
    all.iter().try_for_each(|(key, said)| {
        difference.take(key, said.each_ref().map(|value| value.as_deref()), || {
            Ok(true)
        })
    })
}

/// The checkpoints that were not deleted for good, oldest first.
fn kept(db: &Db) -> StoreResult<Vec<CheckpointId>> {
    let all = list(db, &[keys::CHECKPOINT], |key, value| {
        Some((keys::parse_checkpoint(key)?, KnownCheckpoint::parse(value)?))
    })?;
    let there = all.into_iter().filter(|(_, known)| !known.deleted);
    Ok(there.map(|(id, _)| id).collect())
}

/// All three are walked side by side, in the order of keys and epochs.
fn compare_runs(difference: &mut Difference, [found, now, later]: [&Parts; 3]) -> StoreResult<()> {
    let kept = kept(&later.db)?;
    let [a, b, c] = [found, now, later].map(|parts| parts.runs.walked());
    let mut walks = [Walk::new(&a)?, Walk::new(&b)?, Walk::new(&c)?];
    // Inodes of which the index says where they are.
    let mut placed: HashSet<Slot> = HashSet::new();
    // The last record that the journal gives, as far as it is applied.
    let mut before = (Vec::new(), Epoch(0));
    while let Some((key, epoch)) = walks
        .iter()
        .filter_map(Walk::at)
        .min()
        .map(|(key, epoch)| (key.to_vec(), epoch))
    {
        let said = walks.each_ref().map(|walk| walk.says(&key, epoch));
        let [found, given, _] = said.map(|said| said.is_some());
        if found {
            placed.extend(keys::placed_slot(&key));
        }
        let last = if before.0 == key { before.1 } else { Epoch(0) };
        difference.take(&key, said, || match keys::owner(&key) {
            // Where an inode is without a record nobody asks; and of its places the last counts.
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
