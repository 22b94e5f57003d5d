//! Files that are believed to hold the same: which of them becomes the source, and that the others
//! come to share it.
//!
//! They are looked at first, one after the other: where their data is tells which of them share
//! already. The source is then the one that most share already, of those that are in few pieces: a
//! file in many pieces would give its pieces to all others. What differs from the source may be the
//! same among itself, if a hash was forged or a file has changed: it is looked at again, without
//! the source.
//!
//! One step does little, so that whoever works can be asked to end, and no more than two files are
//! open at a time.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use super::extents::{self, Sharing, Step};
use crate::sys::{self, Errno, ExtentMap, SysResult};

/// How often what differs from a source is looked at again.
const ROUNDS_MAX: u32 = 8;
/// A source has at most so many times the pieces of the file in fewest.
const PIECES_FACTOR: usize = 2;

/// Who can open the files, by number.
pub trait Files {
    /// Opens a file for reading. ENOENT: it is not there any more.
    fn open(&mut self, number: usize) -> SysResult<Arc<File>>;
    /// How the second can come to share what the first has.
    fn way(&self, _source: usize, _target: usize) -> Way {
        Way::Extents
    }
    /// Makes the second file another name of the first, if they hold the same.
    fn link(&mut self, _source: usize, _target: usize) -> SysResult<bool> {
        Err(Errno::EOPNOTSUPP)
    }
    /// The source is one of the highest.
    fn rank(&self, _number: usize) -> u8 {
        0
    }
}

/// How one file can come to share what another has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Both have the extents.
    Extents,
    /// Both are names of one file.
    Link,
    /// Not at all.
    Never,
}

/// What has become of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The others share it.
    Source,
    /// It shared everything already.
    Already,
    /// It shares everything now (or would); with what so many bytes came free, if nobody else holds
    /// them.
    Shared {
        /// So many.
        freed: u64,
    },
    /// It is another name of the source now (or would be).
    Linked {
        /// So many bytes came free.
        freed: u64,
    },
    /// Nothing of it lies anywhere that could be shared: it is a hole, or stands beside its
    /// attributes.
    Unplaced,
    /// It holds something else than was believed.
    Differs,
    /// It cannot be opened, read or shared.
    Failed(Errno),
}

/// What a step has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// A file was looked at, or shares some bytes more.
    Some,
    /// It is known what has become of a file.
    Fate(usize, Fate),
    /// All of them.
    All,
}

/// Where a member's data is: a number for each place, so that equal ones share.
#[derive(Clone, Copy, Debug)]
struct Member {
    number: usize,
    /// `None`: the place does not tell.
    place: Option<usize>,
    pieces: usize,
    bytes: u64,
}

#[derive(Debug)]
enum Work {
    Looking(Vec<usize>),
    Sharing {
        source: usize,
        file: Arc<File>,
        place: Option<usize>,
        left: Vec<Member>,
        now: Option<(Member, Sharing<Arc<File>>)>,
    },
    /// What differs, to the end.
    Telling(Vec<usize>),
}

/// Files that are believed to hold the same. See the module.
#[derive(Debug)]
pub struct Same {
    size: u64,
    /// Nothing is to be changed.
    only_tell: bool,
    work: Work,
    members: Vec<Member>,
    places: HashMap<ExtentMap, usize>,
    /// Of each place: members that hold it still.
    holders: HashMap<usize, u64>,
    differ: Vec<usize>,
    rounds: u32,
}

impl Same {
    /// Files of this size, by number. `only_tell`: what would become of them.
    pub fn new(size: u64, numbers: Vec<usize>, only_tell: bool) -> Same {
        Same {
            size,
            only_tell,
            work: Work::Looking(numbers),
            members: Vec::new(),
            places: HashMap::new(),
            holders: HashMap::new(),
            differ: Vec::new(),
            rounds: 0,
        }
    }

    /// Does a little more.
    pub fn step(&mut self, files: &mut dyn Files) -> Done {
        match std::mem::replace(&mut self.work, Work::Telling(Vec::new())) {
            Work::Looking(mut numbers) => match numbers.pop() {
                Some(number) => {
                    let done = self.look(number, files);
                    self.work = Work::Looking(numbers);
                    done
                }
                None => self.choose(files),
            },
            Work::Sharing {
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
                self.work = Work::Sharing {
                    source,
                    file,
                    place,
                    left,
                    now,
                };
                done
            }
            Work::Telling(mut differ) => {
                let Some(number) = differ.pop() else {
                    return Done::All;
                };
                self.work = Work::Telling(differ);
                Done::Fate(number, Fate::Differs)
            }
        }
    }

    fn look(&mut self, number: usize, files: &mut dyn Files) -> Done {
        let looked = files
            .open(number)
            .and_then(|file| Ok((sys::stat_fd(&*file)?.size, place_of(&file, self.size)?)));
        let (size, map) = match looked {
            Ok(looked) => looked,
            Err(errno) => return Done::Fate(number, Fate::Failed(errno)),
        };
        if size != self.size {
            return Done::Fate(number, Fate::Differs);
        }
        let (pieces, bytes) = map
            .as_ref()
            .map_or((1, self.size), |map| (map.pieces(), map.bytes()));
        if bytes == 0 {
            return Done::Fate(number, Fate::Unplaced);
        }
        let next = self.places.len();
        let place = map.map(|map| *self.places.entry(map).or_insert(next));
        if let Some(place) = place {
            *self.holders.entry(place).or_insert(0) += 1;
        }
        self.members.push(Member {
            number,
            place,
            pieces,
            bytes,
        });
        Done::Some
    }

    /// Chooses the source, and opens it.
    fn choose(&mut self, files: &mut dyn Files) -> Done {
        let mut members = std::mem::take(&mut self.members);
        let few = members
            .iter()
            .map(|member| member.pieces)
            .min()
            .unwrap_or(1)
            .saturating_mul(PIECES_FACTOR);
        let holders = |member: &Member| {
            member
                .place
                .and_then(|place| self.holders.get(&place).copied())
                .unwrap_or(1)
        };
        let best = |member: &Member| {
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
            return Done::All;
        };
        let source = members.swap_remove(at);
        if members.is_empty() {
            return Done::Fate(
                source.number,
                if self.rounds == 0 {
                    Fate::Source
                } else {
                    Fate::Differs
                },
            );
        }
        match files.open(source.number) {
            Ok(file) => {
                self.work = Work::Sharing {
                    source: source.number,
                    file,
                    place: source.place,
                    left: members,
                    now: None,
                };
                Done::Fate(source.number, Fate::Source)
            }
            Err(errno) => {
                // The others are still there.
                self.members = members;
                self.work = Work::Looking(Vec::new());
                Done::Fate(source.number, Fate::Failed(errno))
            }
        }
    }

    fn begin(
        &mut self,
        source: usize,
        file: &Arc<File>,
        place: Option<usize>,
        member: Member,
        files: &mut dyn Files,
    ) -> Working {
        let number = member.number;
        let told = |fate| (Done::Fate(number, fate), None);
        if member.place.is_some() && member.place == place {
            return told(Fate::Already);
        }
        let opened = files.open(number).and_then(|target| {
            Ok((
                sys::stat_fd(&*target)?.ino == sys::stat_fd(&**file)?.ino,
                target,
            ))
        });
        let target = match opened {
            Ok((true, _)) => return told(Fate::Already),
            Ok((false, target)) => target,
            Err(errno) => return told(Fate::Failed(errno)),
        };
        let way = files.way(source, number);
        let same = match (way, self.only_tell) {
            (Way::Never, _) => Err(Errno::EOPNOTSUPP),
            (Way::Extents, false) => {
                return self.share(member, Sharing::new(Arc::clone(file), target, self.size));
            }
            (Way::Link, false) => files.link(source, number),
            (_, true) => extents::same_bytes(file, &target),
        };
        match same {
            Ok(true) if way == Way::Link => told(Fate::Linked {
                freed: self.freed(&member),
            }),
            Ok(true) => told(Fate::Shared {
                freed: self.freed(&member),
            }),
            Ok(false) => self.differs(number),
            Err(errno) => told(Fate::Failed(errno)),
        }
    }

    fn share(&mut self, member: Member, mut sharing: Sharing<Arc<File>>) -> Working {
        match sharing.step() {
            Ok(Step::More(_)) => (Done::Some, Some((member, sharing))),
            Ok(Step::Done) => (
                Done::Fate(
                    member.number,
                    Fate::Shared {
                        freed: self.freed(&member),
                    },
                ),
                None,
            ),
            Ok(Step::Differs) => self.differs(member.number),
            Err(errno) => (Done::Fate(member.number, Fate::Failed(errno)), None),
        }
    }

    fn differs(&mut self, number: usize) -> Working {
        self.differ.push(number);
        (Done::Some, None)
    }

    /// What came free with a member: what it held, if none of the others holds it still.
    fn freed(&mut self, member: &Member) -> u64 {
        let Some(holders) = member.place.and_then(|place| self.holders.get_mut(&place)) else {
            return member.bytes;
        };
        *holders = holders.saturating_sub(1);
        if *holders == 0 { member.bytes } else { 0 }
    }

    /// What differs from the source may be the same among itself.
    fn end_round(&mut self) -> Done {
        let differ = std::mem::take(&mut self.differ);
        self.rounds += 1;
        self.places.clear();
        self.holders.clear();
        let again = differ.len() > 1 && self.rounds < ROUNDS_MAX;
        self.work = if again {
            Work::Looking(differ)
        } else {
            Work::Telling(differ)
        };
        Done::Some
    }
}

type Working = (Done, Option<(Member, Sharing<Arc<File>>)>);

/// `None`: the place does not tell what is shared.
fn place_of(file: &File, size: u64) -> SysResult<Option<ExtentMap>> {
    match sys::extent_map(file, size) {
        Err(errno) if extents::cannot_share(errno) => Ok(None),
        map => map,
    }
}
