//! A run: its state and steps.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::sync::Arc;

use super::Dedup;
use super::PART_LEFT_MAX;
use super::files::{DedupFile, DedupLocation, Opener, why_of};
use crate::history::present::{LiveTree, Trail};
use ckptfs_api::{
    Content, DedupOptions, DedupReport, DedupStage, Epoch, ExcludeReason, ExcludedFile,
};
use ckptfs_store::dedup::{DedupGroup, DedupOutcome, DedupStep};
use ckptfs_store::hash::{FileHasher, Hash, HashPool};
use ckptfs_store::ids::{ObjectId, Slot};
use ckptfs_store::index::contents::FileSignature;
use ckptfs_store::record::ObjectHash;
use ckptfs_sys::{self as sys, Errno, Kind, SysResult};

/// Limit of path bytes per reply, except for one longer path.
const PART_PATH_BYTES: usize = 1 << 20;
/// Number of hashes recorded at a time.
const RECORD_OBJECTS_MAX: usize = 512;
/// With less free space no hashes are recorded; the rest is for captures.
const SPACE_KEPT_BYTES: u64 = 64 << 20;
/// With coarse timestamps, a file changed within this time (nanoseconds) may change again with
/// equal attributes: its hash is not stored.
const SETTLED_NS: i64 = 1_000_000_000;

/// A run in progress, or finished and kept. See the parent module.
pub(in crate::engine) struct DedupRun {
    dry_run: bool,
    keep: bool,
    min_size: u64,
    hashers: HashPool,
    report: DedupReport,
    left_out: Vec<ExcludedFile>,
    items: Vec<DedupFile>,
    /// Closed epochs to list.
    epochs: Vec<Epoch>,
    /// Live directories to list.
    dirs: Vec<Arc<Trail>>,
    /// Listed live files, for those with several names.
    slots: HashSet<Slot>,
    work: DedupStageState,
    /// Hashes of objects not yet recorded.
    sealed: BTreeMap<Epoch, Vec<ObjectHash>>,
    /// Hashes of live files not yet in the index.
    seen: Vec<(Slot, FileSignature, Hash)>,
}

enum DedupStageState {
    Listing,
    Hashing {
        left: Vec<usize>,
        now: Option<(usize, Arc<File>, Box<FileHasher>)>,
    },
    Sharing {
        left: Vec<(u64, Vec<usize>)>,
        now: Option<Box<DedupGroup>>,
    },
    Finished,
}

impl DedupRun {
    pub(super) fn new(dedup: &Dedup, options: &DedupOptions) -> SysResult<DedupRun> {
        let open = dedup.timeline().epochs.epoch();
        let mut epochs = dedup
            .timeline()
            .store()
            .layers
            .epochs()
            .map_err(|error| error.errno())?;
        // Captures of the open epoch can still be voided.
        epochs.retain(|epoch| *epoch < open);
        epochs.reverse();
        Ok(DedupRun {
            dry_run: options.dry_run,
            keep: options.keep,
            min_size: options.min_size.max(1),
            hashers: HashPool::new(options.threads),
            report: DedupReport {
                dry_run: options.dry_run,
                total: epochs.len() as u64,
                ..DedupReport::default()
            },
            left_out: Vec::new(),
            items: Vec::new(),
            epochs,
            dirs: if options.live {
                vec![Trail::root()]
            } else {
                Vec::new()
            },
            slots: HashSet::new(),
            work: DedupStageState::Listing,
            sealed: BTreeMap::new(),
            seen: Vec::new(),
        })
    }

    pub(super) fn is_finished(&self) -> bool {
        matches!(self.work, DedupStageState::Finished)
    }

    pub(super) fn left_untold(&self) -> usize {
        self.left_out.len()
    }

    /// Returns the progress, with excluded files not reported yet, up to the limits.
    pub(super) fn tell(&mut self) -> DedupReport {
        let mut bytes = 0;
        let mut fits = |left: &ExcludedFile| {
            bytes += left.path.0.len();
            bytes <= PART_PATH_BYTES
        };
        let count = self
            .left_out
            .iter()
            .take(PART_LEFT_MAX)
            .take_while(|left| fits(left))
            .count()
            .max(1)
            .min(self.left_out.len());
        let rest = self.left_out.split_off(count);
        let left_out = std::mem::replace(&mut self.left_out, rest);
        DedupReport {
            finished: self.is_finished() && self.left_out.is_empty(),
            left_out,
            ..self.report.clone()
        }
    }

    /// Returns the contents from number `from` on; empty at the end.
    pub(super) fn contents(&self, from: u64, limit: usize) -> Vec<Content> {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let known = self
            .items
            .iter()
            .enumerate()
            .skip(from)
            .filter(|(_, item)| !item.left)
            .filter_map(|(number, item)| Some((number, item, item.hash?)));
        let tell = |(number, item, hash): (usize, &DedupFile, Hash)| {
            Content::new(
                number as u64,
                item.size,
                &hash,
                item.place.path(),
                item.place.is_captured(),
            )
        };
        let mut bytes = 0;
        let mut fits = |content: &Content| {
            bytes += content.path.0.len();
            bytes <= PART_PATH_BYTES
        };
        let mut contents: Vec<Content> = known.take(limit).map(tell).collect();
        let count = contents
            .iter()
            .take_while(|content| fits(content))
            .count()
            .max(1);
        contents.truncate(count);
        contents
    }

    /// Opens one of its files.
    pub(super) fn open(&self, dedup: &Dedup, number: u64) -> Option<Arc<File>> {
        self.items
            .get(usize::try_from(number).ok()?)?
            .open(dedup)
            .ok()
    }

    /// Works on. Returns `false` when the run is finished.
    ///
    /// # Errors
    /// EIO if the history cannot be read. An error of one file only excludes that file.
    pub(super) fn step(&mut self, dedup: &Dedup) -> SysResult<bool> {
        match std::mem::replace(&mut self.work, DedupStageState::Finished) {
            DedupStageState::Listing => {
                self.work = DedupStageState::Listing;
                self.list(dedup)?;
            }
            DedupStageState::Hashing { mut left, now } => match now {
                Some((number, file, hashing)) => {
                    let now = self.hash(dedup, number, file, hashing);
                    self.work = DedupStageState::Hashing { left, now };
                }
                None => match left.pop() {
                    Some(number) => {
                        let now = self.begin_hash(dedup, number);
                        self.work = DedupStageState::Hashing { left, now };
                    }
                    None => self.begin_sharing(dedup),
                },
            },
            DedupStageState::Sharing { mut left, now } => match now {
                Some(same) => {
                    let now = self.share(dedup, same);
                    self.work = DedupStageState::Sharing { left, now };
                }
                None => {
                    let Some((size, numbers)) = left.pop() else {
                        return Ok(false);
                    };
                    let now = Some(Box::new(DedupGroup::new(size, numbers, self.dry_run)));
                    self.work = DedupStageState::Sharing { left, now };
                }
            },
            DedupStageState::Finished => return Ok(false),
        }
        Ok(true)
    }

    fn list(&mut self, dedup: &Dedup) -> SysResult<()> {
        if let Some(epoch) = self.epochs.pop() {
            self.report.done += 1;
            return self.list_epoch(dedup, epoch);
        }
        let Some(dir) = self.dirs.pop() else {
            self.begin_hashing();
            return Ok(());
        };
        self.report.done += 1;
        match dedup.live.inodes.list(&dir) {
            Ok(names) => {
                for (name, child) in names {
                    let trail = dir.step(&name, child.slot);
                    match child.kind {
                        Kind::Dir => {
                            self.report.total += 1;
                            self.dirs.push(trail);
                        }
                        // Inherited content is in the base and takes no space here.
                        Kind::File
                            if dedup.live.inodes.is_own(child.slot)
                                && self.slots.insert(child.slot) =>
                        {
                            self.list_live(dedup, trail)
                        }
                        _ => {}
                    }
                }
            }
            // Removed since its parent was listed.
            Err(Errno::ENOENT | Errno::ESTALE | Errno::ENOTDIR) => {}
            Err(errno) => self.leave_out(&DedupLocation::Live(dir), why_of(errno), Some(errno)),
        }
        Ok(())
    }

    fn list_epoch(&mut self, dedup: &Dedup, epoch: Epoch) -> SysResult<()> {
        let layers = &dedup.timeline().store().layers;
        let objects = layers.list(epoch).map_err(|error| error.errno())?;
        if objects.is_empty() {
            return Ok(());
        }
        let known: HashMap<ObjectId, ObjectHash> = dedup
            .timeline()
            .contents
            .sealed(epoch)?
            .0
            .into_iter()
            .map(|sealed| (sealed.object, sealed))
            .collect();
        for object in objects {
            let (size, hash) = match known.get(&object) {
                Some(sealed) => (sealed.size, Some(sealed.hash)),
                None => match layers.stat(object) {
                    Ok(Some(stat)) if stat.kind == Kind::File => (stat.size, None),
                    Ok(_) => continue,
                    Err(error) => return Err(error.errno()),
                },
            };
            self.add(DedupFile {
                place: DedupLocation::Captured(object),
                size,
                hash,
                look: None,
                left: false,
            });
        }
        Ok(())
    }

    fn list_live(&mut self, dedup: &Dedup, trail: Arc<Trail>) {
        match dedup.live.inodes.stat(&trail) {
            Ok(stat) if stat.kind == Kind::File => {
                let look = FileSignature::of(&stat);
                // An unreadable hint is ignored.
                let hash = dedup
                    .timeline()
                    .store()
                    .index
                    .seen(trail.slot, &look)
                    .ok()
                    .flatten();
                self.add(DedupFile {
                    place: DedupLocation::Live(trail),
                    size: stat.size,
                    hash,
                    look: Some(look),
                    left: false,
                });
            }
            Ok(_) | Err(Errno::ENOENT | Errno::ESTALE) => {}
            Err(errno) => self.leave_out(&DedupLocation::Live(trail), why_of(errno), Some(errno)),
        }
    }

    fn add(&mut self, item: DedupFile) {
        if item.size == 0 {
            return;
        }
        let count = if item.place.is_captured() {
            &mut self.report.captured
        } else {
            &mut self.report.live
        };
        count.add(item.size);
        if item.size < self.min_size {
            self.leave_out(&item.place, ExcludeReason::TooSmall, None);
        } else {
            self.items.push(item);
        }
    }

    /// Selects the files that share their size with another: no other file can have the same
    /// content.
    fn begin_hashing(&mut self) {
        let mut sizes: HashMap<u64, u64> = HashMap::new();
        self.items
            .iter()
            .for_each(|item| *sizes.entry(item.size).or_insert(0) += 1);
        let wanted = |item: &DedupFile| {
            item.hash.is_none()
                && (self.keep || sizes.get(&item.size).is_some_and(|count| *count > 1))
        };
        let mut left: Vec<usize> = (0..self.items.len())
            .filter(|at| self.items.get(*at).is_some_and(wanted))
            .collect();
        left.reverse();
        let total = left
            .iter()
            .filter_map(|at| self.items.get(*at))
            .fold(0_u64, |sum, item| sum.saturating_add(item.size));
        (self.report.stage, self.report.done, self.report.total) = (DedupStage::Hashing, 0, total);
        self.work = DedupStageState::Hashing { left, now: None };
    }

    fn begin_hash(
        &mut self,
        dedup: &Dedup,
        number: usize,
    ) -> Option<(usize, Arc<File>, Box<FileHasher>)> {
        let opened = self
            .items
            .get(number)
            .ok_or(Errno::ENOENT)
            .and_then(|item| item.open(dedup));
        match opened {
            Ok(file) => Some((number, file, Box::new(FileHasher::new()))),
            Err(errno) => {
                self.fail(number, errno);
                None
            }
        }
    }

    fn hash(
        &mut self,
        dedup: &Dedup,
        number: usize,
        file: Arc<File>,
        mut hashing: Box<FileHasher>,
    ) -> Option<(usize, Arc<File>, Box<FileHasher>)> {
        let before = hashing.done();
        let stepped = hashing.step(
            &file,
            &self.hashers,
            self.items
                .get(number)
                .is_some_and(|item| item.place.is_captured()),
        );
        self.report.done += hashing.done() - before;
        match stepped {
            Ok(None) => return Some((number, file, hashing)),
            Ok(Some((size, hash))) => self.hashed(dedup, number, &file, size, hash),
            Err(errno) => self.fail(number, errno),
        }
        None
    }

    fn hashed(&mut self, dedup: &Dedup, number: usize, file: &File, size: u64, hash: Hash) {
        let Some(item) = self.items.get_mut(number) else {
            return;
        };
        self.report.hashed.add(size);
        let look = item.look.map(|before| {
            (
                before,
                sys::stat_fd(file).map(|stat| FileSignature::of(&stat)),
            )
        });
        if size != item.size || look.is_some_and(|(before, now)| now != Ok(before)) {
            return self.left(number, ExcludeReason::Differs, None);
        }
        item.hash = Some(hash);
        match (&item.place, item.look) {
            (DedupLocation::Captured(object), _) => {
                let object = *object;
                let of_epoch = self.sealed.entry(object.epoch).or_default();
                of_epoch.push(ObjectHash { object, size, hash });
                if of_epoch.len() >= RECORD_OBJECTS_MAX {
                    self.record(dedup);
                }
            }
            (DedupLocation::Live(trail), Some(look)) if is_settled(&look) => {
                self.seen.push((trail.slot, look, hash));
                if self.seen.len() >= RECORD_OBJECTS_MAX {
                    self.record(dedup);
                }
            }
            (DedupLocation::Live(_), _) => {}
        }
    }

    /// Stores the hashes for the next run. Best effort, because they can be recomputed.
    fn record(&mut self, dedup: &Dedup) {
        let store = dedup.timeline().store();
        if let Err(error) = store.index.note_seen(&std::mem::take(&mut self.seen)) {
            tracing::debug!(%error, "hashes of live files are not kept");
        }
        let sealed = std::mem::take(&mut self.sealed);
        if self.dry_run
            || store
                .layers
                .free_bytes()
                .is_ok_and(|free| free < SPACE_KEPT_BYTES)
        {
            return;
        }
        for (epoch, objects) in sealed {
            if let Err(errno) = dedup.timeline().contents.add_hashes(epoch, &objects, false) {
                tracing::warn!(%errno, "hashes are not recorded");
                return;
            }
        }
    }

    fn begin_sharing(&mut self, dedup: &Dedup) {
        self.record(dedup);
        let mut groups: HashMap<(u64, Hash), Vec<usize>> = HashMap::new();
        for (number, item) in self.items.iter().enumerate().filter(|(_, item)| !item.left) {
            if let Some(hash) = item.hash {
                groups.entry((item.size, hash)).or_default().push(number);
            }
        }
        groups.retain(|_, numbers| numbers.len() > 1);
        let mut left: Vec<(u64, Vec<usize>)> = groups
            .into_iter()
            .map(|((size, _), numbers)| (size, numbers))
            .collect();
        // The largest last, because they are popped.
        left.sort_by_key(|(size, numbers)| {
            (
                size.saturating_mul(numbers.len() as u64),
                numbers.first().copied(),
            )
        });
        let total = left.iter().map(|(_, numbers)| numbers.len() as u64).sum();
        (self.report.stage, self.report.done, self.report.total) = (DedupStage::Sharing, 0, total);
        let among: HashSet<usize> = left
            .iter()
            .flat_map(|(_, numbers)| numbers.iter().copied())
            .collect();
        for (number, item) in self.items.iter().enumerate() {
            if !item.left && !among.contains(&number) {
                self.report.unique.add(item.size);
            }
        }
        self.work = DedupStageState::Sharing { left, now: None };
    }

    fn share(&mut self, dedup: &Dedup, mut same: Box<DedupGroup>) -> Option<Box<DedupGroup>> {
        match same.step(&mut Opener {
            dedup,
            items: &self.items,
        }) {
            DedupStep::Some => {}
            DedupStep::All => return None,
            DedupStep::Fate(number, fate) => {
                self.note(number, fate);
                if let (
                    DedupOutcome::Shared { .. } | DedupOutcome::Linked { .. },
                    false,
                    Some(item),
                ) = (fate, self.dry_run, self.items.get(number))
                {
                    dedup.live.sharing.counts().add(item.size);
                }
            }
        }
        Some(same)
    }

    fn note(&mut self, number: usize, fate: DedupOutcome) {
        self.report.done += 1;
        let size = self.items.get(number).map_or(0, |item| item.size);
        match fate {
            DedupOutcome::Source => self.report.sources.add(size),
            DedupOutcome::Already => self.report.already.add(size),
            // It has no extents to share.
            DedupOutcome::Unplaced => self.report.unique.add(size),
            DedupOutcome::Shared { freed } => {
                self.report.shared.add(size);
                self.report.freed_bytes = self.report.freed_bytes.saturating_add(freed);
            }
            DedupOutcome::Linked { freed } => {
                self.report.shared.add(size);
                self.report.linked.add(size);
                self.report.freed_bytes = self.report.freed_bytes.saturating_add(freed);
            }
            DedupOutcome::Differs => self.left(number, ExcludeReason::Differs, None),
            DedupOutcome::Failed(errno) => self.fail(number, errno),
        }
    }

    fn fail(&mut self, number: usize, errno: Errno) {
        self.left(number, why_of(errno), Some(errno));
    }

    fn left(&mut self, number: usize, why: ExcludeReason, errno: Option<Errno>) {
        if let Some(item) = self.items.get_mut(number) {
            item.left = true;
            let place = item.place.clone();
            self.leave_out(&place, why, errno);
        }
    }

    fn leave_out(&mut self, place: &DedupLocation, why: ExcludeReason, errno: Option<Errno>) {
        *self.report.left.entry(why).or_insert(0) += 1;
        self.left_out.push(ExcludedFile {
            path: place.path(),
            captured: place.is_captured(),
            why,
            error: errno.map(|errno| errno.to_string()),
        });
    }
}

/// Returns whether another change is certain to change the attributes.
fn is_settled(look: &FileSignature) -> bool {
    sys::now()
        .nanoseconds()
        .saturating_sub(look.ctime.nanoseconds())
        > SETTLED_NS
}
