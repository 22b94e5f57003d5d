//! Runs: the undo records of closed epochs in sorted, immutable files, oldest first. They also
//! contain the other entries that every change creates: places outside undo records, and objects by
//! content.
//!
//! Each applied batch becomes a run. Four neighbours of one level are merged into one of the next,
//! so that a look-up reads few files. Only complete runs are listed; the list is in the index's
//! database and changes in one batch with the applied address.
//!
//! Invariants:
//! - a run contains the first record of each key in each of its epochs. If two runs contain the
//!   same key and epoch, the older one's record counts. Of places it is the last, and the newer
//!   run's;
//! - a data record that is voided later is listed as void, for the runs that exist then. A merge
//!   leaves it out;
//! - a file is synced before it is listed, and replaced files are removed after the list was
//!   synced: after a power cut every listed file exists. A missing or incomplete file is damage,
//!   and the index is rebuilt.

mod filter;
mod merge;
pub mod needs;
pub mod run;
mod run_lookup;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::{Range, RangeInclusive};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::OFlags;

use self::merge::{MergeIter, RunEntry};
use self::needs::{NeededFilter, RetentionNeeds};
use self::run::{BlockCache, BlockWeighter, Run, RunBuilder, RunSink, RunSource};
pub use self::run_lookup::{RunSnapshot, RunWalk};
use super::keys;
use crate::at;
use crate::error::{StoreError, StoreResult};
use crate::ids::Slot;
use crate::journal::Address;
use ckptfs_api::Epoch;
use ckptfs_sys::lock::{Mutex, RwLock};

/// The directory of the files, below that of the index.
pub const NAME: &str = "runs";
/// Bytes of cached blocks.
const CACHE_BYTES: u64 = 32 << 20;
/// Approximate number of cached blocks.
const CACHE_BLOCKS: usize = (CACHE_BYTES / 1024) as usize;
/// Neighbours of one level that are merged.
const FAN: usize = 4;
/// Records between two checks whether to stop.
const PASSED_MAX: u32 = 4096;
/// Replaced files are removed after the next sync; with more than this many bytes the sync is
/// immediate.
const REPLACED_BYTES_MAX: u64 = 16 << 20;

/// A listed run.
#[derive(Clone)]
pub struct ListedRun {
    /// The open run.
    pub run: Arc<Run>,
    /// The journal address at which its records start.
    pub from: Address,
    /// Number of merges behind it.
    pub level: u8,
}

/// The list entry from which a run is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunListEntry {
    pub from: Address,
    pub number: u64,
    pub level: u8,
}

impl ListedRun {
    pub fn line(&self) -> RunListEntry {
        RunListEntry {
            from: self.from,
            number: self.run.number,
            level: self.level,
        }
    }
}

/// The list of runs. A look-up uses one version of the list throughout.
#[derive(Clone, Default)]
struct RunList {
    /// Oldest first.
    runs: Vec<ListedRun>,
    /// Void data records.
    struck: VoidRecords,
}

impl RunList {
    /// Returns the changes to the void records when these runs are merged: the merged run contains
    /// none of them, and starts where the oldest does.
    fn clean(
        &self,
        due: Range<usize>,
        epochs: &RangeInclusive<Epoch>,
    ) -> Vec<((Epoch, Slot), Address, Option<Address>)> {
        let place = |at: usize| {
            self.runs
                .get(at)
                .map_or(Address::START, |listed| listed.from)
        };
        let (oldest, newest) = (place(due.start), place(due.end.saturating_sub(1)));
        let others = || {
            self.runs
                .iter()
                .enumerate()
                .filter(|(at, _)| !due.contains(at))
                .map(|(_, listed)| listed)
        };
        let needed = |epoch: Epoch, upto: Address| {
            others().any(|listed| listed.run.covers(epoch) && listed.from < upto)
        };
        let mut clean = Vec::new();
        for (key, upto) in self
            .struck
            .iter()
            .filter(|((epoch, _), upto)| epochs.contains(epoch) && **upto > oldest)
        {
            if *upto > newest {
                if !needed(key.0, *upto) {
                    clean.push((*key, *upto, None));
                }
            } else {
                // Records written after the voiding are in these runs, and count.
                clean.push((
                    *key,
                    *upto,
                    Some(oldest).filter(|oldest| needed(key.0, *oldest)),
                ));
            }
        }
        clean
    }
}

/// Void data records: each is void in runs that start before the address.
pub type VoidRecords = BTreeMap<(Epoch, Slot), Address>;

/// The open runs of an index. Shared by reference between threads; one thread at a time changes the
/// list.
pub struct Runs {
    /// `None`: in memory.
    dir: Option<OwnedFd>,
    list: RwLock<Arc<RunList>>,
    cache: BlockCache,
    /// The next file number, the replaced files, and their bytes.
    files: Mutex<(u64, Vec<u64>, u64)>,
}

/// A merged run that is not listed yet.
pub struct RunMerge {
    pub made: ListedRun,
    /// The range of the list that it replaces.
    due: Range<usize>,
    /// The runs in that range.
    pub old: Vec<ListedRun>,
    /// Void records of these runs: the current address, and the new one; `None` removes the entry.
    pub clean: Vec<((Epoch, Slot), Address, Option<Address>)>,
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    StoreError::io(what, "index/runs")
}

impl Runs {
    /// Creates an empty list in memory.
    pub fn in_memory() -> Runs {
        Runs::with(None)
    }

    fn with(dir: Option<OwnedFd>) -> Runs {
        let cache = BlockCache::with_weighter(CACHE_BLOCKS, CACHE_BYTES, BlockWeighter);
        Runs {
            dir,
            list: RwLock::default(),
            cache,
            files: Mutex::new((1, Vec::new(), 0)),
        }
    }

    /// Opens the listed runs, in order of their addresses. Removes unlisted files, unless opened
    /// only for reading (`looked`).
    ///
    /// Errors: `Io`; `IndexDamaged`: a file is missing or incomplete.
    pub fn open(
        dir: OwnedFd,
        lines: &[RunListEntry],
        struck: VoidRecords,
        looked: bool,
    ) -> StoreResult<Runs> {
        let mut list = RunList {
            runs: Vec::with_capacity(lines.len()),
            struck,
        };
        for RunListEntry {
            from,
            number,
            level,
        } in lines.iter().copied()
        {
            let file = match at::open_file(&dir, &number.to_string(), OFlags::RDONLY) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(StoreError::IndexDamaged);
                }
                file => file.map_err(failed("open"))?,
            };
            list.runs.push(ListedRun {
                run: Arc::new(Run::open(number, RunSource::File(file))?),
                from,
                level,
            });
        }
        let known: Vec<u64> = list.runs.iter().map(|listed| listed.run.number).collect();
        let runs = Runs::with(Some(dir));
        *runs.list.write() = Arc::new(list);
        if !looked {
            runs.remove_others(&known)?;
        }
        Ok(runs)
    }

    /// Removes all files except those with these numbers.
    fn remove_others(&self, known: &[u64]) -> StoreResult<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let mut next = known.iter().max().map_or(1, |last| last + 1);
        for name in at::names(dir).map_err(failed("list"))? {
            let number = std::str::from_utf8(&name)
                .ok()
                .and_then(|name| name.parse::<u64>().ok());
            if number.is_none_or(|number| !known.contains(&number)) {
                at::remove_tree(dir, &name).map_err(failed("remove an old file of"))?;
            }
            next = next.max(number.map_or(0, |number| number.saturating_add(1)));
        }
        self.files.lock().0 = next;
        Ok(())
    }

    /// Returns a copy of runs in memory.
    pub fn copy(&self) -> Runs {
        let (list, next) = (self.list(), self.files.lock().0);
        Runs {
            list: RwLock::new(list),
            files: Mutex::new((next, Vec::new(), 0)),
            ..Runs::in_memory()
        }
    }

    /// Returns the current list for a [`RunWalk`].
    pub fn walked(&self) -> RunSnapshot {
        RunSnapshot(self.list())
    }

    fn list(&self) -> Arc<RunList> {
        Arc::clone(&self.list.read())
    }

    /// Writes a run of sorted records without listing it. Durable on return.
    ///
    /// Errors: `Io`; the file is then removed.
    fn make(
        &self,
        epochs: RangeInclusive<Epoch>,
        count: u64,
        fill: impl FnOnce(&mut RunBuilder) -> StoreResult<()>,
    ) -> StoreResult<Arc<Run>> {
        let number = {
            let mut files = self.files.lock();
            files.0 += 1;
            files.0 - 1
        };
        let name = number.to_string();
        let out = match &self.dir {
            Some(dir) => RunSink::File(
                at::open_file(dir, &name, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)
                    .map_err(failed("make a file of"))?,
            ),
            None => RunSink::Memory(Vec::new()),
        };
        let mut builder = RunBuilder::new(out, *epochs.start(), *epochs.end(), count);
        let made = fill(&mut builder).and_then(|()| {
            let run = builder.finish(number).map_err(failed("write"))?;
            run.sync()
                .and_then(|()| self.dir.as_ref().map_or(Ok(()), at::sync_dir))
                .map_err(failed("sync"))?;
            Ok(run)
        });
        if let (Err(_), Some(dir)) = (&made, &self.dir) {
            let _ = at::remove_tree(dir, name.as_bytes());
        }
        made.map(Arc::new)
    }

    /// Writes a run of these records, sorted by key and epoch; `None` if empty. [`Runs::put`] lists
    /// it.
    ///
    /// Errors: `Io`.
    pub fn prepare<'a>(
        &self,
        entries: &[RunEntry<'a>],
        from: Address,
    ) -> StoreResult<Option<ListedRun>> {
        let epochs = || entries.iter().map(|(_, epoch, _)| *epoch);
        let (Some(first), Some(last)) = (epochs().min(), epochs().max()) else {
            return Ok(None);
        };
        // Objects belong to older epochs.
        let recorded: BTreeSet<Epoch> = entries
            .iter()
            .filter(|(key, ..)| !keys::is_content(key))
            .map(|(_, epoch, _)| *epoch)
            .collect();
        let run = self.make(first..=last, recorded.len() as u64, |builder| {
            entries
                .iter()
                .try_for_each(|(key, epoch, value)| builder.add(key, *epoch, value))
                .map_err(failed("write"))
        })?;
        Ok(Some(ListedRun {
            run,
            from,
            level: 0,
        }))
    }

    /// Returns whether a listed run may have a record of this epoch.
    pub fn covers(&self, epoch: Epoch) -> bool {
        self.list()
            .runs
            .iter()
            .any(|listed| listed.run.covers(epoch))
    }

    /// Lists a run, in place of all that start at its address or later, and adds void records.
    pub fn put(
        &self,
        made: Option<ListedRun>,
        struck: impl IntoIterator<Item = ((Epoch, Slot), Address)>,
    ) {
        let mut guard = self.list.write();
        let mut list = RunList::clone(&guard);
        list.struck.extend(struck);
        if let Some(made) = made {
            list.runs.retain(|listed| listed.from < made.from);
            list.runs.push(made);
        }
        *guard = Arc::new(list);
    }

    /// Merges the runs that are due without listing the result; `None` if none is due or `stop`
    /// returns true. Durable on return.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn merge(&self, stop: &dyn Fn() -> bool) -> StoreResult<Option<RunMerge>> {
        let list = self.list();
        let Some(due) = merge::due(&list.runs) else {
            return Ok(None);
        };
        self.join(&list, due, 1, None, stop)
    }

    /// Puts the runs together without what is not needed, if that is enough, and lists nothing;
    /// `None`: it is not, or `stop` says so. `end` is where the records of the last one end.
    /// Durable on return.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn compact(
        &self,
        needs: &RetentionNeeds<'_>,
        end: Address,
        stop: &dyn Fn() -> bool,
    ) -> StoreResult<Option<RunMerge>> {
        let list = self.list();
        let Some(count) = needs.due(&list.runs, end) else {
            return Ok(None);
        };
        let parts = list.runs.split_at_checked(count).unwrap_or_default();
        let Some(reader) = needs.reader(parts, &list.struck, stop)? else {
            return Ok(None);
        };
        self.join(&list, 0..count, 0, Some(reader), stop)
    }

    /// Merges runs into one, `up` levels above theirs, with only the records that the reader needs,
    /// if one is passed.
    fn join(
        &self,
        list: &RunList,
        due: Range<usize>,
        up: u8,
        mut reader: Option<NeededFilter<'_>>,
        stop: &dyn Fn() -> bool,
    ) -> StoreResult<Option<RunMerge>> {
        let old = list.runs.get(due.clone()).unwrap_or_default();
        let runs = || old.iter().map(|listed| &*listed.run);
        let (Some(from), Some(first), Some(last)) = (
            old.first().map(|oldest| oldest.from),
            runs().map(|run| run.first).min(),
            runs().map(|run| run.last).max(),
        ) else {
            return Ok(None);
        };
        let held = runs().map(|run| run.epochs).fold(0, u64::saturating_add);
        let needed = reader
            .as_ref()
            .map(|reader| reader.needs.epochs(first, last));
        let count = needed.map_or(held, |needed| needed.min(held));
        let mut stopped = false;
        let run = self.make(first..=last, count, |builder| {
            let mut merged = MergeIter::new(old, &list.struck, &[])?;
            let mut passed = 0u32;
            while let Some((key, epoch, value)) = merged.next()? {
                let is_needed = match &mut reader {
                    Some(reader) => reader.needs(key, epoch, value)?,
                    None => true,
                };
                if is_needed {
                    builder.add(key, epoch, value).map_err(failed("write"))?;
                }
                passed = passed.wrapping_add(1);
                if passed.is_multiple_of(PASSED_MAX) && stop() {
                    stopped = true;
                    return Err(StoreError::IndexClosed);
                }
            }
            Ok(())
        });
        if stopped {
            return Ok(None);
        }
        let level = old.iter().map(|listed| listed.level).max().unwrap_or(0);
        let made = ListedRun {
            run: run?,
            from,
            level: level.saturating_add(up),
        };
        Ok(Some(RunMerge {
            made,
            clean: list.clean(due.clone(), &(first..=last)),
            due,
            old: old.to_vec(),
        }))
    }

    /// Returns whether the merged runs are still listed, and drops void records that have changed.
    /// If they are not, they belong to a replaced index, and so does the number of the new run's
    /// file.
    pub fn settle(&self, merge: &mut RunMerge) -> bool {
        let list = self.list();
        merge
            .clean
            .retain(|(key, upto, _)| list.struck.get(key) == Some(upto));
        let now = list.runs.get(merge.due.clone()).unwrap_or_default();
        now.len() == merge.old.len()
            && now
                .iter()
                .zip(&merge.old)
                .all(|(now, old)| Arc::ptr_eq(&now.run, &old.run))
    }

    /// Lists a settled merge. Returns whether so much was replaced that the caller should sync
    /// everything now and call [`Runs::remove_replaced`].
    pub fn put_merged(&self, merge: RunMerge) -> bool {
        let mut guard = self.list.write();
        let mut list = RunList::clone(&guard);
        list.runs.splice(merge.due, [merge.made]);
        for (key, _, upto) in merge.clean {
            match upto {
                Some(upto) => list.struck.insert(key, upto),
                None => list.struck.remove(&key),
            };
        }
        *guard = Arc::new(list);
        drop(guard);
        let mut files = self.files.lock();
        for listed in merge.old {
            files.1.push(listed.run.number);
            files.2 = files.2.saturating_add(listed.run.bytes);
        }
        files.2 > REPLACED_BYTES_MAX
    }

    /// Removes replaced files. The list must have been synced.
    ///
    /// Errors: `Io`.
    pub fn remove_replaced(&self) -> StoreResult<()> {
        let replaced = {
            let mut files = self.files.lock();
            files.2 = 0;
            std::mem::take(&mut files.1)
        };
        let Some(dir) = &self.dir else { return Ok(()) };
        replaced
            .iter()
            .try_for_each(|number| at::remove_tree(dir, number.to_string().as_bytes()))
            .map_err(failed("remove an old file of"))
    }
}

/// Whether the record was voided after the run was written.
fn is_struck(struck: &VoidRecords, listed: &ListedRun, key: &[u8], epoch: Epoch) -> bool {
    let slot = keys::data_slot(key);
    !struck.is_empty()
        && slot
            .and_then(|slot| struck.get(&(epoch, slot)))
            .is_some_and(|upto| listed.from < *upto)
}
