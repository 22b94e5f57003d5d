//! Deduplication of files that probably have the same content: selects one as source and lets the
//! others share its data.
//!
//! All files are examined first: their extents show which of them share already. The source is the
//! file that most share already, among those with few extents, because a fragmented file would pass
//! its fragmentation on. Files that differ from the source, due to a forged hash or a change, may
//! equal each other and are compared again without it.
//!
//! A step does little, so that a worker can be stopped, and at most two files are open at a time.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use super::extents::{self, ExtentSharing, SharingStep};
use ckptfs_sys::{self as sys, Errno, ExtentMap, SysResult};

/// Rounds of comparison for files that differ from a source.
const ROUNDS_MAX: u32 = 8;
/// Limit on a source's extents, as a multiple of the least fragmented file's.
const PIECES_FACTOR: usize = 2;

/// Access to the files by number.
pub trait DedupFiles {
    /// Opens a file for reading; ENOENT if it no longer exists.
    fn open(&mut self, number: usize) -> SysResult<Arc<File>>;
    /// Returns how the second file can share the data of the first.
    fn way(&self, _source: usize, _target: usize) -> ShareMethod {
        ShareMethod::Extents
    }
    /// Makes the second file a hard link to the first if their contents are equal; returns whether
    /// they are.
    fn link(&mut self, _source: usize, _target: usize) -> SysResult<bool> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Returns the priority of a file as source; the highest is preferred.
    fn rank(&self, _number: usize) -> u8 {
        0
    }
}

/// How a file can share the data of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareMethod {
    /// By sharing extents.
    Extents,
    /// As a hard link.
    Link,
    /// Not possible.
    Never,
}

/// The outcome for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DedupOutcome {
    /// The file is the source.
    Source,
    /// The file shared all its data already.
    Already,
    /// The file now shares all its data (or would).
    Shared {
        /// Bytes freed, unless a file outside the set shares them.
        freed: u64,
    },
    /// The file is now a hard link to the source (or would be).
    Linked {
        /// Bytes freed.
        freed: u64,
    },
    /// The file has no shareable extents: it is a hole, or its data is inline.
    Unplaced,
    /// The content differs from all others.
    Differs,
    /// The file cannot be opened, read or shared.
    Failed(Errno),
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DedupStep {
    /// A file was examined, or shares more of its bytes.
    Some,
    /// The outcome for a file is final.
    Fate(usize, DedupOutcome),
    /// All outcomes are final.
    All,
}

/// A file with the number of its extent map; equal maps have equal numbers.
#[derive(Clone, Copy, Debug)]
struct GroupMember {
    number: usize,
    /// `None`: the map does not show sharing.
    place: Option<usize>,
    pieces: usize,
    bytes: u64,
}

#[derive(Debug)]
enum DedupPhase {
    Looking(Vec<usize>),
    Sharing {
        source: usize,
        file: Arc<File>,
        place: Option<usize>,
        left: Vec<GroupMember>,
        now: Option<(GroupMember, ExtentSharing<Arc<File>>)>,
    },
    /// Reporting the files that still differ.
    Telling(Vec<usize>),
}

/// A set of files that probably have the same content. See the module.
#[derive(Debug)]
pub struct DedupGroup {
    size: u64,
    /// Only report; change nothing.
    only_tell: bool,
    work: DedupPhase,
    members: Vec<GroupMember>,
    places: HashMap<ExtentMap, usize>,
    /// The number of members with each extent map.
    holders: HashMap<usize, u64>,
    differ: Vec<usize>,
    rounds: u32,
}

impl DedupGroup {
    /// Creates a set of files of this size, by number. With `only_tell` the outcomes are predicted
    /// and nothing changes.
    pub fn new(size: u64, numbers: Vec<usize>, only_tell: bool) -> DedupGroup {
        DedupGroup {
            size,
            only_tell,
            work: DedupPhase::Looking(numbers),
            members: Vec::new(),
            places: HashMap::new(),
            holders: HashMap::new(),
            differ: Vec::new(),
            rounds: 0,
        }
    }

    /// Performs the next step.
    pub fn step(&mut self, files: &mut dyn DedupFiles) -> DedupStep {
        match std::mem::replace(&mut self.work, DedupPhase::Telling(Vec::new())) {
            DedupPhase::Looking(mut numbers) => match numbers.pop() {
                Some(number) => {
                    let done = self.look(number, files);
                    self.work = DedupPhase::Looking(numbers);
                    done
                }
                None => self.choose(files),
            },
            DedupPhase::Sharing {
                source,
                file,
                place,
                mut left,
                now,
            } => {
                let (done, now) = match now {
                    Some((member, sharing)) => self.share(member, sharing),
                    None => match left.pop() {
                        Some(member) => self.begin(source, &file, place, member, files),
                        None => return self.end_round(),
                    },
                };
                self.work = DedupPhase::Sharing {
                    source,
                    file,
                    place,
                    left,
                    now,
                };
                done
            }
            DedupPhase::Telling(mut differ) => {
                let Some(number) = differ.pop() else {
                    return DedupStep::All;
                };
                self.work = DedupPhase::Telling(differ);
                DedupStep::Fate(number, DedupOutcome::Differs)
            }
        }
    }

    fn look(&mut self, number: usize, files: &mut dyn DedupFiles) -> DedupStep {
        let looked = files
            .open(number)
            .and_then(|file| Ok((sys::stat_fd(&*file)?.size, place_of(&file, self.size)?)));
        let (size, map) = match looked {
            Ok(looked) => looked,
            Err(errno) => return DedupStep::Fate(number, DedupOutcome::Failed(errno)),
        };
        if size != self.size {
            return DedupStep::Fate(number, DedupOutcome::Differs);
        }
        let (pieces, bytes) = map
            .as_ref()
            .map_or((1, self.size), |map| (map.pieces(), map.bytes()));
        if bytes == 0 {
            return DedupStep::Fate(number, DedupOutcome::Unplaced);
        }
        let next = self.places.len();
        let place = map.map(|map| *self.places.entry(map).or_insert(next));
        if let Some(place) = place {
            *self.holders.entry(place).or_insert(0) += 1;
        }
        self.members.push(GroupMember {
            number,
            place,
            pieces,
            bytes,
        });
        DedupStep::Some
    }

    /// Selects and opens the source.
    fn choose(&mut self, files: &mut dyn DedupFiles) -> DedupStep {
        let mut members = std::mem::take(&mut self.members);
        let few = members
            .iter()
            .map(|member| member.pieces)
            .min()
            .unwrap_or(1)
            .saturating_mul(PIECES_FACTOR);
        let holders = |member: &GroupMember| {
            member
                .place
                .and_then(|place| self.holders.get(&place).copied())
                .unwrap_or(1)
        };
        let best = |member: &GroupMember| {
            let few_pieces = member.pieces <= few;
            (
                files.rank(member.number),
                few_pieces,
                holders(member),
                std::cmp::Reverse(member.pieces),
                std::cmp::Reverse(member.number),
            )
        };
        let Some(at) = (0..members.len()).max_by_key(|at| members.get(*at).map(&best)) else {
            return DedupStep::All;
        };
        let source = members.swap_remove(at);
        if members.is_empty() {
            return DedupStep::Fate(
                source.number,
                if self.rounds == 0 {
                    DedupOutcome::Source
                } else {
                    DedupOutcome::Differs
                },
            );
        }
        match files.open(source.number) {
            Ok(file) => {
                self.work = DedupPhase::Sharing {
                    source: source.number,
                    file,
                    place: source.place,
                    left: members,
                    now: None,
                };
                DedupStep::Fate(source.number, DedupOutcome::Source)
            }
            Err(errno) => {
                // Another member may still be a source.
                self.members = members;
                self.work = DedupPhase::Looking(Vec::new());
                DedupStep::Fate(source.number, DedupOutcome::Failed(errno))
            }
        }
    }

    fn begin(
        &mut self,
        source: usize,
        file: &Arc<File>,
        place: Option<usize>,
        member: GroupMember,
        files: &mut dyn DedupFiles,
    ) -> StepState {
        let number = member.number;
        let told = |fate| (DedupStep::Fate(number, fate), None);
        if member.place.is_some() && member.place == place {
            return told(DedupOutcome::Already);
        }
        let opened = files.open(number).and_then(|target| {
            Ok((
                sys::stat_fd(&*target)?.ino == sys::stat_fd(&**file)?.ino,
                target,
            ))
        });
        let target = match opened {
            Ok((true, _)) => return told(DedupOutcome::Already),
            Ok((false, target)) => target,
            Err(errno) => return told(DedupOutcome::Failed(errno)),
        };
        let way = files.way(source, number);
        let same = match (way, self.only_tell) {
            (ShareMethod::Never, _) => Err(Errno::EOPNOTSUPP),
            (ShareMethod::Extents, false) => {
                return self.share(
                    member,
                    ExtentSharing::new(Arc::clone(file), target, self.size),
                );
            }
            (ShareMethod::Link, false) => files.link(source, number),
            (_, true) => extents::same_bytes(file, &target),
        };
        match same {
            Ok(true) if way == ShareMethod::Link => told(DedupOutcome::Linked {
                freed: self.freed(&member),
            }),
            Ok(true) => told(DedupOutcome::Shared {
                freed: self.freed(&member),
            }),
            Ok(false) => self.differs(number),
            Err(errno) => told(DedupOutcome::Failed(errno)),
        }
    }

    fn share(&mut self, member: GroupMember, mut sharing: ExtentSharing<Arc<File>>) -> StepState {
        match sharing.step() {
            Ok(SharingStep::More(_)) => (DedupStep::Some, Some((member, sharing))),
            Ok(SharingStep::Done) => (
                DedupStep::Fate(
                    member.number,
                    DedupOutcome::Shared {
                        freed: self.freed(&member),
                    },
                ),
                None,
            ),
            Ok(SharingStep::Differs) => self.differs(member.number),
            Err(errno) => (
                DedupStep::Fate(member.number, DedupOutcome::Failed(errno)),
                None,
            ),
        }
    }

    fn differs(&mut self, number: usize) -> StepState {
        self.differ.push(number);
        (DedupStep::Some, None)
    }

    /// Returns the bytes freed with a member: its own, if no other member still has the same
    /// extents.
    fn freed(&mut self, member: &GroupMember) -> u64 {
        let Some(holders) = member.place.and_then(|place| self.holders.get_mut(&place)) else {
            return member.bytes;
        };
        *holders = holders.saturating_sub(1);
        if *holders == 0 { member.bytes } else { 0 }
    }

    /// Files that differ from the source may equal each other.
    fn end_round(&mut self) -> DedupStep {
        let differ = std::mem::take(&mut self.differ);
        self.rounds += 1;
        self.places.clear();
        self.holders.clear();
        let again = differ.len() > 1 && self.rounds < ROUNDS_MAX;
        self.work = if again {
            DedupPhase::Looking(differ)
        } else {
            DedupPhase::Telling(differ)
        };
        DedupStep::Some
    }
}

type StepState = (DedupStep, Option<(GroupMember, ExtentSharing<Arc<File>>)>);

/// Returns the extent map; `None` if the filesystem does not support sharing.
fn place_of(file: &File, size: u64) -> SysResult<Option<ExtentMap>> {
    match sys::extent_map(file, size) {
        Err(errno) if extents::cannot_share(errno) => Ok(None),
        map => map,
    }
}
