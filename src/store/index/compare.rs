//! The index beside what the journal gives.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::db::Db;
use super::parts::{Parts, fill, filled_in_memory};
use super::runs::Walk;
use super::runs::needs::{Places, is_read};
use super::{Batch, Index, KnownCheckpoint, keys, last_checkpoint, list};
use crate::store::error::StoreResult;
use crate::store::forget::Catalogue;
use crate::store::ids::{CheckpointId, Epoch, Slot};
use crate::store::journal::{Address, Journal};
use crate::store::layout::StoreId;

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
            Some(_) => {
                let strange = !keys::may_be_stale(key) && (!keys::is_place(key) || counts()?);
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

/// What a journal gives.
struct Given {
    /// As far as it is applied to the index, ...
    now: Parts,
    /// ... and all of it.
    later: Parts,
    /// What each record that is not applied says of keys of the database. A batch is applied in
    /// pieces, so the index may have some of it already; a later batch may say something else.
    told: HashMap<Vec<u8>, Vec<Vec<u8>>>,
    /// Keys of what nobody can ask for any more.
    forgotten: HashSet<Vec<u8>>,
}

impl Given {
    fn read(id: StoreId, journal: &Journal, applied: Address) -> StoreResult<Given> {
        // It is read more than once, and all of these must see the same.
        let _packs = journal.hold_packs();
        let now = filled_in_memory(id, journal, Some(applied))?;
        let later = now.copy();
        fill(&later, journal, None)?;
        let mut catalogue = Catalogue::default();
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
        Ok(Given {
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
    /// How the index differs from what the journal says, as far as it says that it is applied: the
    /// number of entries that are missing or hold something else, and of those that should not be
    /// there. What is in runs and no checkpoint reads, and what is forgotten, may be there or not.
    /// Entries of records that come after are right if they are those records'. It takes the memory
    /// of another index, whose runs are compressed. While it reads, nothing is applied to the index
    /// and no segment is replaced by its pack.
    ///
    /// Errors: those of reading either.
    pub fn compare(&self, journal: &Journal) -> StoreResult<Difference> {
        let _applying = self.applying.lock();
        let given = Given::read(self.id, journal, self.applied()?)?;
        self.with_parts("compare", |found| {
            let mut difference = Difference::default();
            compare_catalogues(&mut difference, &found.db, &given)?;
            compare_runs(&mut difference, [found, &given.now, &given.later])?;
            Ok(difference)
        })
    }
}

fn compare_catalogues(difference: &mut Difference, found: &Db, given: &Given) -> StoreResult<()> {
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
    let mut needed: Option<Places> = None;
    // The last record that the journal gives, as far as it is applied.
    let mut before = (Vec::new(), Epoch(0));
    while let Some((key, epoch)) = walks
        .iter()
        .filter_map(Walk::at)
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
            // The packs leave out the place of an inode of which no checkpoint reads anything; the
            // index may have it for longer.
            Some(_) if keys::is_place(&key) && !given && !given_later => {
                if needed.is_none() {
                    needed = Some(Places::needed(&a, &kept)?);
                }
                Ok(needed
                    .as_ref()
                    .is_some_and(|places| places.is_needed(&key, epoch)))
            }
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
