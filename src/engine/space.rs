//! What space versions take, and what comes free when some of them go.
//!
//! A filesystem says where the extents of a file are and whether each is shared, but not with whom
//! (FIEMAP). What is not shared is the version's own. What is shared comes free when the last
//! holder goes: the versions whose extents lie at the same place are holders, and so is the live
//! file, which is asked too. An extent that is shared although only one version is known to hold it
//! has a holder that nobody knows (a copy by reflink, or a file that was restored): it never comes
//! free. Only where two versions share an extent with such a holder, too, and it is not the file of
//! either, is it taken for free although it is not.
//!
//! btrfs keeps an extent whole as long as a part of it is used, so there ranges that overlap count
//! as one: it may free more than is told, not less.

use std::collections::HashSet;

use super::gc::Collector;
use crate::history::needed::Census;
use crate::store::ids::{ObjectId, ObjectOrigin, Slot};
use crate::sys::{self, Allocation, Errno, Kind, Placed, Stat, SysResult};

/// Where extents cannot be asked for, a linked file is placed at its inode number shifted left by
/// this many bits; it has fewer bytes than 2 to this power.
const PLACE_BITS: u32 = 40;

/// A range that several hold.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    bytes: u64,
    /// Numbers of versions.
    holders: Vec<usize>,
}

/// The space of a list of versions, each known by its number there.
#[derive(Clone, Debug, Default)]
pub(super) struct Space {
    /// What each has for itself.
    own: Vec<u64>,
    /// What it takes, together with others too.
    all: Vec<u64>,
    segments: Vec<Segment>,
    /// What somebody holds too who is none of these.
    outside: u64,
}

/// Ranges while they are collected.
#[derive(Clone, Debug, Default)]
pub(super) struct Collected {
    own: Vec<u64>,
    all: Vec<u64>,
    /// With who holds them; `None`: somebody who stays.
    shared: Vec<(Placed, Option<usize>)>,
}

impl Collected {
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

    /// The last version that was added shares something.
    pub(super) fn last_shares(&self) -> bool {
        let last = self.own.len().checked_sub(1);
        self.shared
            .last()
            .is_some_and(|(_, holder)| holder.is_some() && *holder == last)
    }

    /// Puts it together. `whole`: a range that is used in part is kept whole.
    pub(super) fn space(mut self, whole: bool) -> Space {
        self.shared.sort_by_key(|(placed, _)| placed.physical);
        let Segments { among, outside } = if whole {
            joined(&self.shared)
        } else {
            split(&self.shared)
        };
        Space {
            own: self.own,
            all: self.all,
            segments: among,
            outside,
        }
    }
}

/// Ranges, each once.
#[derive(Default)]
struct Segments {
    /// Those that only versions hold.
    among: Vec<Segment>,
    /// Bytes of those that somebody else holds too.
    outside: u64,
}

/// Ranges that overlap as one.
fn joined(shared: &[(Placed, Option<usize>)]) -> Segments {
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

/// Ranges cut where another begins or ends.
fn split(shared: &[(Placed, Option<usize>)]) -> Segments {
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

/// What somebody holds who stays, or who is not known, never comes free.
fn push(segments: &mut Segments, bytes: u64, holders: impl Iterator<Item = Option<usize>>) {
    let holders: Vec<Option<usize>> = holders.collect();
    let mut known: Vec<usize> = holders.iter().copied().flatten().collect();
    // A file may hold a range twice.
    if known.len() == holders.len() && known.len() >= 2 {
        known.sort_unstable();
        known.dedup();
        segments.among.push(Segment {
            bytes,
            holders: known,
        });
    } else if !known.is_empty() {
        segments.outside = segments.outside.saturating_add(bytes);
    }
}

impl Space {
    /// What versions hold together with somebody who is none of them: live files, other projects.
    pub(super) fn outside(&self) -> u64 {
        self.outside
    }

    /// The bytes that a version takes, those that others hold too included.
    pub(super) fn all(&self, number: usize) -> u64 {
        self.all.get(number).copied().unwrap_or(0)
    }

    /// What comes free at each of `steps` when version N goes at step `gone[N]` (`None`: it stays).
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

    /// What comes free when all of so many versions go.
    pub(super) fn freed_with_all(&self, versions: usize) -> u64 {
        self.freed(&vec![Some(0); versions], 1).iter().sum()
    }
    /// What comes free with each of `groups` if it alone goes; version N is in group `of[N]`
    /// (`None`: in none).
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

/// Versions that are measured one after the other, so that somebody can be told how far it is.
pub(super) struct Measuring {
    pub(super) census: Census,
    /// Where each measured version is in the census.
    pub(super) measured: Vec<usize>,
    collected: Collected,
    next: usize,
    /// Files of which it is known what they hold themselves.
    asked: HashSet<Slot>,
}

impl Measuring {
    pub(super) fn new(census: Census) -> Measuring {
        Measuring {
            census,
            measured: Vec::new(),
            collected: Collected::default(),
            next: 0,
            asked: HashSet::new(),
        }
    }

    /// How far it is, and how much there is.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.next as u64, self.census.versions.len() as u64)
    }

    /// What was found.
    pub(super) fn finish(self, whole: bool) -> (Census, Vec<usize>, Space) {
        (self.census, self.measured, self.collected.space(whole))
    }
}

impl Collector {
    /// Measures the next version; `false`: there is no further. One that is not there takes nothing
    /// and is left out.
    pub(super) fn measure_next(&self, measuring: &mut Measuring) -> SysResult<bool> {
        let Some(mut version) = measuring.census.versions.get(measuring.next).cloned() else {
            return Ok(false);
        };
        match self.timeline().narrow(&measuring.census, &mut version) {
            // A client deleted the checkpoint since the run began: more may seem to need the version
            // than do, and the next run frees it.
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

    /// The space of a version; `None`: it is not there.
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
                    // Several objects may be names of one file: whatever it has, they have it
                    // together.
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
            // Moved with a mode that keeps an ordinary user's daemon out.
            Err(error) if error.errno() == Errno::EACCES => Ok(Some(by_blocks())),
            Err(error) => Err(error.errno()),
        }
    }

    /// Extents are kept whole here as long as a part of them is used.
    pub(super) fn keeps_extents_whole(&self) -> bool {
        self.serving.config.filesystem == "btrfs"
    }
}

/// A clone with another name has it from `dedup` or the sealer: there it is another version. A
/// moved inode's are in the tree.
fn is_linked(stat: &Stat, object: ObjectId) -> bool {
    stat.nlink > 1 && object.origin == ObjectOrigin::Cloned
}

/// Where nothing tells where a file's data is. One of several names has a place all the same: one
/// that no other file has.
fn by_blocks(stat: &Stat, object: ObjectId) -> Allocation {
    let bytes = stat.blocks.saturating_mul(512);
    let physical = stat
        .ino
        .checked_mul(1 << PLACE_BITS)
        .filter(|_| is_linked(stat, object) && bytes < 1 << PLACE_BITS);
    match physical {
        Some(physical) => Allocation {
            placed: vec![Placed {
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

    fn at(physical: u64, length: u64, shared: bool) -> Placed {
        Placed {
            physical,
            length,
            shared,
        }
    }

    fn file(placed: &[Placed]) -> Allocation {
        Allocation {
            placed: placed.to_vec(),
            unplaced_bytes: 0,
        }
    }

    fn freed(space: &Space, gone: &[bool]) -> u64 {
        let gone: Vec<Option<usize>> = gone.iter().map(|gone| gone.then_some(0)).collect();
        space.freed(&gone, 1).first().copied().unwrap_or(0)
    }

    /// Three clones of one file of which a block was written between each: what each range takes
    /// comes free with its last holder.
    fn clones() -> Collected {
        let mut collected = Collected::default();
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
        let mut collected = Collected::default();
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
        let mut collected = Collected::default();
        collected.add(&file(&[at(0, 40, true), at(100, 7, false)]));
        assert!(collected.last_shares());
        let space = collected.space(false);
        assert_eq!((freed(&space, &[true]), space.outside()), (7, 40));
        // One that holds a range twice is its only holder.
        let mut collected = Collected::default();
        collected.add(&file(&[at(0, 40, true), at(0, 40, true)]));
        assert_eq!(freed(&collected.space(false), &[true]), 40);
    }
}
