//! Disk space of versions, and the space freed by removing some.
//!
//! The filesystem reports the extents of a file and whether each is shared, but not with which
//! files (FIEMAP). An unshared extent belongs to the version alone. A shared one is freed with its
//! last holder; holders are all versions with extents at the same place, and the live file. An
//! extent that is shared although only one version is known to hold it has an unknown holder (a
//! reflink copy, or a restored file), and counts as never freed. One error remains: if two versions
//! share an extent with an unknown holder, it counts as freed with the two.
//!
//! btrfs retains a whole extent while any part is in use, so overlapping ranges count as one there:
//! it may free more than reported, but not less.

use std::collections::HashSet;

use super::gc::GarbageCollector;
use crate::history::version_census::Census;
use ckptfs_store::ids::{ObjectId, ObjectOrigin, Slot};
use ckptfs_sys::{self as sys, Allocation, Errno, Kind, PhysicalRange, Stat, SysResult};

/// Without FIEMAP, a linked file is placed at its inode number shifted left by this number of bits;
/// its size must be less than 2 to this power.
const PLACE_BITS: u32 = 40;

/// A range with several holders.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SharedRange {
    bytes: u64,
    /// Numbers of versions.
    holders: Vec<usize>,
}

/// The space of a list of versions, identified by their index.
#[derive(Clone, Debug, Default)]
pub(super) struct SpaceUsage {
    /// Unshared bytes of each.
    own: Vec<u64>,
    /// Total bytes of each, including shared ones.
    all: Vec<u64>,
    segments: Vec<SharedRange>,
    /// Bytes with another holder outside of the list.
    outside: u64,
}

/// Ranges being collected.
#[derive(Clone, Debug, Default)]
pub(super) struct ExtentCollector {
    own: Vec<u64>,
    all: Vec<u64>,
    /// Each with its holder; `None`: a file that stays.
    shared: Vec<(PhysicalRange, Option<usize>)>,
}

impl ExtentCollector {
    /// Adds the next version.
    pub(super) fn add(&mut self, allocation: &Allocation) {
        let number = self.own.len();
        let (mut own, mut all) = (allocation.unplaced_bytes, allocation.unplaced_bytes);
        for placed in &allocation.placed {
            all = all.saturating_add(placed.length);
            if placed.shared {
                self.shared.push((*placed, Some(number)));
            } else {
                own = own.saturating_add(placed.length);
            }
        }
        self.own.push(own);
        self.all.push(all);
    }

    /// Adds a file that stays.
    pub(super) fn add_staying(&mut self, allocation: &Allocation) {
        self.shared.extend(
            allocation
                .placed
                .iter()
                .filter(|placed| placed.shared)
                .map(|placed| (*placed, None)),
        );
    }

    /// Returns whether the last version added shares an extent.
    pub(super) fn last_shares(&self) -> bool {
        let last = self.own.len().checked_sub(1);
        self.shared
            .last()
            .is_some_and(|(_, holder)| holder.is_some() && *holder == last)
    }

    /// Combines the ranges. `whole`: extents are retained whole.
    pub(super) fn space(mut self, whole: bool) -> SpaceUsage {
        self.shared.sort_by_key(|(placed, _)| placed.physical);
        let Segments { among, outside } = if whole {
            joined(&self.shared)
        } else {
            split(&self.shared)
        };
        SpaceUsage {
            own: self.own,
            all: self.all,
            segments: among,
            outside,
        }
    }
}

/// Distinct ranges.
#[derive(Default)]
struct Segments {
    /// Those held by versions only.
    among: Vec<SharedRange>,
    /// Bytes of those with another holder.
    outside: u64,
}

/// Merges overlapping ranges.
fn joined(shared: &[(PhysicalRange, Option<usize>)]) -> Segments {
    let mut segments = Segments::default();
    let mut rest = shared;
    while let Some((first, _)) = rest.first() {
        let (begin, mut end) = (first.physical, first.physical.saturating_add(first.length));
        let mut count = 1;
        while let Some((placed, _)) = rest.get(count).filter(|(placed, _)| placed.physical < end) {
            end = end.max(placed.physical.saturating_add(placed.length));
            count += 1;
        }
        let (these, others) = rest.split_at(count);
        push(
            &mut segments,
            end - begin,
            these.iter().map(|(_, holder)| *holder),
        );
        rest = others;
    }
    segments
}

/// Splits ranges where another begins or ends.
fn split(shared: &[(PhysicalRange, Option<usize>)]) -> Segments {
    let mut segments = Segments::default();
    let mut active: Vec<(u64, Option<usize>)> = Vec::new();
    let mut at = 0;
    let mut rest = shared.iter().peekable();
    while rest.peek().is_some() || !active.is_empty() {
        if active.is_empty() {
            at = rest.peek().map_or(at, |(placed, _)| placed.physical);
        }
        while let Some((placed, holder)) = rest.next_if(|(placed, _)| placed.physical <= at) {
            active.push((placed.physical.saturating_add(placed.length), *holder));
        }
        let next = active
            .iter()
            .map(|(end, _)| *end)
            .chain(rest.peek().map(|(placed, _)| placed.physical))
            .min()
            .unwrap_or(at);
        if next > at {
            push(
                &mut segments,
                next - at,
                active.iter().map(|(_, holder)| *holder),
            );
            at = next;
        }
        active.retain(|(end, _)| *end > at);
    }
    segments
}

/// Adds a range. One with a holder that stays or is unknown is never freed.
fn push(segments: &mut Segments, bytes: u64, holders: impl Iterator<Item = Option<usize>>) {
    let holders: Vec<Option<usize>> = holders.collect();
    let mut known: Vec<usize> = holders.iter().copied().flatten().collect();
    // A file may contain a range twice.
    if known.len() == holders.len() && known.len() >= 2 {
        known.sort_unstable();
        known.dedup();
        segments.among.push(SharedRange {
            bytes,
            holders: known,
        });
    } else if !known.is_empty() {
        segments.outside = segments.outside.saturating_add(bytes);
    }
}

impl SpaceUsage {
    /// Returns the bytes that versions share with other files: live ones or other projects.
    pub(super) fn outside(&self) -> u64 {
        self.outside
    }

    /// Returns the bytes of a version, including shared ones.
    pub(super) fn all(&self, number: usize) -> u64 {
        self.all.get(number).copied().unwrap_or(0)
    }

    /// Returns the bytes freed by each of `steps` if version N is removed at step `gone[N]`
    /// (`None`: it stays).
    pub(super) fn freed(&self, gone: &[Option<usize>], steps: usize) -> Vec<u64> {
        let mut freed = vec![0_u64; steps];
        let mut add = |step: Option<usize>, bytes: u64| {
            if let Some(sum) = step.and_then(|step| freed.get_mut(step)) {
                *sum = sum.saturating_add(bytes);
            }
        };
        let when = |number: usize| gone.get(number).copied().flatten();
        self.own
            .iter()
            .enumerate()
            .for_each(|(number, own)| add(when(number), *own));
        for segment in &self.segments {
            let last = segment
                .holders
                .iter()
                .map(|holder| when(*holder))
                .try_fold(0, |last, step| step.map(|step| last.max(step)));
            add(last, segment.bytes);
        }
        freed
    }

    /// Returns the bytes freed by removing all versions.
    pub(super) fn freed_with_all(&self, versions: usize) -> u64 {
        self.freed(&vec![Some(0); versions], 1).iter().sum()
    }
    /// Returns the bytes freed by removing each of `groups` alone; version N is in group `of[N]`
    /// (`None`: in no group).
    pub(super) fn freed_alone(&self, of: &[Option<usize>], groups: usize) -> Vec<u64> {
        let mut freed = vec![0_u64; groups];
        let mut add = |group: Option<usize>, bytes: u64| {
            if let Some(sum) = group.and_then(|group| freed.get_mut(group)) {
                *sum = sum.saturating_add(bytes);
            }
        };
        let group = |number: usize| of.get(number).copied().flatten();
        self.own
            .iter()
            .enumerate()
            .for_each(|(number, own)| add(group(number), *own));
        for segment in &self.segments {
            let first = segment.holders.first().and_then(|holder| group(*holder));
            add(
                first.filter(|_| segment.holders.iter().all(|holder| group(*holder) == first)),
                segment.bytes,
            );
        }
        freed
    }
}

/// A measurement of versions in progress.
pub(super) struct SpaceMeasurement {
    pub(super) census: Census,
    /// Index of each measured version in the census.
    pub(super) measured: Vec<usize>,
    collected: ExtentCollector,
    next: usize,
    /// Live files already measured.
    asked: HashSet<Slot>,
}

impl SpaceMeasurement {
    pub(super) fn new(census: Census) -> SpaceMeasurement {
        SpaceMeasurement {
            census,
            measured: Vec::new(),
            collected: ExtentCollector::default(),
            next: 0,
            asked: HashSet::new(),
        }
    }

    /// Returns the progress and the total.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.next as u64, self.census.versions.len() as u64)
    }

    /// Returns the result.
    pub(super) fn finish(self, whole: bool) -> (Census, Vec<usize>, SpaceUsage) {
        (self.census, self.measured, self.collected.space(whole))
    }
}

impl GarbageCollector {
    /// Measures the next version; `false` at the end. A missing version is skipped.
    pub(super) fn measure_next(&self, measuring: &mut SpaceMeasurement) -> SysResult<bool> {
        let Some(mut version) = measuring.census.versions.get(measuring.next).cloned() else {
            return Ok(false);
        };
        match self.timeline().narrow(&measuring.census, &mut version) {
            // A client deleted the checkpoint since the run began: the version may appear to be
            // needed by more checkpoints than it is, and the next run frees it.
            Err(Errno::ESTALE) => {}
            narrowed => narrowed?,
        }
        if let Some(allocation) = self.object_allocation(version.object)? {
            measuring.collected.add(&allocation);
            measuring.measured.push(measuring.next);
            if measuring.collected.last_shares()
                && measuring.asked.insert(version.slot)
                && let Some(live) = self.live.inodes.allocation(version.slot)
            {
                measuring.collected.add_staying(&live);
            }
        }
        if let Some(known) = measuring.census.versions.get_mut(measuring.next) {
            *known = version;
        }
        measuring.next += 1;
        Ok(true)
    }

    /// Returns the space of a version; `None` if it is missing.
    fn object_allocation(&self, object: ObjectId) -> SysResult<Option<Allocation>> {
        let layers = &self.timeline().store().layers;
        let Some(stat) = layers.stat(object).map_err(|error| error.errno())? else {
            return Ok(None);
        };
        if stat.kind != Kind::File {
            return Ok(Some(Allocation::default()));
        }
        let by_blocks = || by_blocks(&stat, object);
        match layers.open(object) {
            Ok(file) => match sys::allocation(&file) {
                Ok(mut allocation) => {
                    // Objects may be hard links of one file, and then share all extents.
                    if is_linked(&stat, object) {
                        allocation
                            .placed
                            .iter_mut()
                            .for_each(|placed| placed.shared = true);
                    }
                    Ok(Some(allocation))
                }
                Err(Errno::EOPNOTSUPP | Errno::ENOTTY | Errno::EINVAL) => Ok(Some(by_blocks())),
                Err(errno) => Err(errno),
            },
            Err(error) if error.errno() == Errno::ENOENT => Ok(None),
            // Moved with a mode that denies access to an unprivileged daemon.
            Err(error) if error.errno() == Errno::EACCES => Ok(Some(by_blocks())),
            Err(error) => Err(error.errno()),
        }
    }

    /// Returns whether the filesystem retains extents whole while any part is in use.
    pub(super) fn keeps_extents_whole(&self) -> bool {
        self.serving.config.filesystem == "btrfs"
    }
}

/// Returns whether an object is a hard link of another version. Only `dedup` and the sealer link
/// clones; the links of a moved inode are in the tree.
fn is_linked(stat: &Stat, object: ObjectId) -> bool {
    stat.nlink > 1 && object.origin == ObjectOrigin::Cloned
}

/// Returns the allocation of a file without FIEMAP. A linked file gets a unique virtual place.
fn by_blocks(stat: &Stat, object: ObjectId) -> Allocation {
    let bytes = stat.blocks.saturating_mul(512);
    let physical = stat
        .ino
        .checked_mul(1 << PLACE_BITS)
        .filter(|_| is_linked(stat, object) && bytes < 1 << PLACE_BITS);
    match physical {
        Some(physical) => Allocation {
            placed: vec![PhysicalRange {
                physical,
                length: bytes,
                shared: true,
            }],
            unplaced_bytes: 0,
        },
        None => Allocation {
            placed: Vec::new(),
            unplaced_bytes: bytes,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(physical: u64, length: u64, shared: bool) -> PhysicalRange {
        PhysicalRange {
            physical,
            length,
            shared,
        }
    }

    fn file(placed: &[PhysicalRange]) -> Allocation {
        Allocation {
            placed: placed.to_vec(),
            unplaced_bytes: 0,
        }
    }

    fn freed(space: &SpaceUsage, gone: &[bool]) -> u64 {
        let gone: Vec<Option<usize>> = gone.iter().map(|gone| gone.then_some(0)).collect();
        space.freed(&gone, 1).first().copied().unwrap_or(0)
    }

    /// Three clones of a file, one block of which was written after each: a range is freed with its
    /// last holder.
    fn clones() -> ExtentCollector {
        let mut collected = ExtentCollector::default();
        collected.add(&file(&[at(0, 40, true), at(1000, 10, false)]));
        collected.add(&file(&[at(0, 40, true)]));
        collected.add(&file(&[at(10, 30, true), at(2000, 10, false)]));
        collected.add_staying(&file(&[at(20, 20, true), at(3000, 10, false)]));
        collected
    }

    #[test]
    fn what_several_hold_comes_free_with_the_last_and_what_the_live_file_holds_never() {
        let space = clones().space(false);
        assert_eq!(freed(&space, &[true, false, false]), 10);
        assert_eq!(freed(&space, &[false, true, false]), 0);
        assert_eq!(freed(&space, &[true, true, false]), 20);
        assert_eq!(freed(&space, &[true, true, true]), 40);
        assert_eq!(space.freed(&[Some(0), Some(1), Some(2)], 3), [10, 10, 20]);
        assert_eq!([space.all(0), space.all(1)], [50, 40]);
        assert_eq!(space.outside(), 20);
    }

    #[test]
    fn where_extents_are_kept_whole_a_part_keeps_all() {
        let space = clones().space(true);
        assert_eq!(freed(&space, &[true, true, true]), 20);
        let mut collected = ExtentCollector::default();
        collected.add(&file(&[at(0, 40, true), at(40, 10, true)]));
        collected.add(&file(&[at(0, 40, true), at(40, 10, true)]));
        collected.add(&file(&[at(45, 5, true)]));
        let space = collected.space(true);
        assert_eq!(
            (
                freed(&space, &[true, true, false]),
                freed(&space, &[true, true, true])
            ),
            (40, 50)
        );
    }

    #[test]
    fn what_is_shared_with_somebody_unknown_never_comes_free() {
        let mut collected = ExtentCollector::default();
        collected.add(&file(&[at(0, 40, true), at(100, 7, false)]));
        assert!(collected.last_shares());
        let space = collected.space(false);
        assert_eq!((freed(&space, &[true]), space.outside()), (7, 40));
        // A version that contains a range twice is its only holder.
        let mut collected = ExtentCollector::default();
        collected.add(&file(&[at(0, 40, true), at(0, 40, true)]));
        assert_eq!(freed(&collected.space(false), &[true]), 40);
    }
}
