//! What the journal says: undo records, and the operations that are more than one change.
//!
//! History is kept as **undo records**. Each says what a key held *before* it first changed in an
//! epoch; the state of a key at checkpoint N is what the first record with an epoch above N says,
//! and what the live tree says where there is none. Within an epoch the first record of a key wins.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

mod who;

pub use self::who::{NameTouch, Process, ProcessNumber, Touch};
use super::Address;
use super::ids::{CheckpointId, Epoch, Name, ObjectId, Slot};
use super::operation::Operation;
use crate::sys::{Kind, Stat, Xattrs};

/// The inode that a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Child {
    /// Its slot.
    pub slot: Slot,
    /// What it is.
    pub kind: Kind,
}

/// Where an inode was found: one of its names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The directory.
    pub parent: Slot,
    /// The name in it.
    pub name: Name,
}

/// An inode whose places lead back to itself, if there is one: of one instant there is none unless
/// somebody forged it. O(places).
pub fn in_a_circle<'a>(places: impl Iterator<Item = (Slot, &'a Place)>) -> Option<Slot> {
    let up: HashMap<Slot, Slot> = places.map(|(slot, place)| (slot, place.parent)).collect();
    // By which climb each was passed.
    let mut passed: HashMap<Slot, Slot> = HashMap::with_capacity(up.len());
    for start in up.keys() {
        let mut at = start;
        while let Some(parent) = up.get(at) {
            match passed.insert(*at, *start) {
                None => at = parent,
                Some(climb) if climb == *start => return Some(*at),
                Some(_) => break,
            }
        }
    }
    None
}

/// Attributes of an inode before a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttrState {
    /// Everything stat(2) said.
    pub stat: Stat,
    /// Where a symbolic link led; `None` for every other kind.
    pub target: Option<Vec<u8>>,
}

/// The data of a regular file before a change, and what a moved inode of another kind became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataState {
    /// Where the bytes are; `None`: the file was empty, nothing is kept.
    pub object: Option<ObjectId>,
    /// Size in bytes.
    pub size: u64,
    /// The capture was made ahead of a change that may never come (a writable open, a file held
    /// open over a checkpoint); it can be voided.
    pub provisional: bool,
}

/// What a record is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// What a name in a directory led to.
    Entry(Slot, Name),
    /// The attributes of an inode.
    Attr(Slot),
    /// Its extended attributes.
    Xattrs(Slot),
    /// Its data.
    Data(Slot),
    /// Where it was: one of its names. Made for every directory above a change, so that a past path
    /// can be told without a scan.
    Home(Slot),
}

/// One undo record: what a key held before it first changed in the epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undo {
    /// A name led to `before`; `None`: it did not exist.
    Entry {
        /// The directory.
        dir: Slot,
        /// The name.
        name: Name,
        /// What it led to.
        before: Option<Child>,
    },
    /// An inode had these attributes.
    Attr {
        /// The inode.
        slot: Slot,
        /// Its attributes.
        before: AttrState,
    },
    /// An inode had these extended attributes.
    Xattrs {
        /// The inode.
        slot: Slot,
        /// All of them, sorted by name.
        before: Xattrs,
    },
    /// A file had this content.
    Data {
        /// The file.
        slot: Slot,
        /// Its content.
        before: DataState,
    },
    /// An inode was to be found here.
    Home {
        /// The inode.
        slot: Slot,
        /// One of its names.
        before: Place,
    },
}

impl Undo {
    /// The key that the record is about.
    pub fn key(&self) -> Key {
        match self {
            Undo::Entry { dir, name, .. } => Key::Entry(*dir, name.clone()),
            Undo::Attr { slot, .. } => Key::Attr(*slot),
            Undo::Xattrs { slot, .. } => Key::Xattrs(*slot),
            Undo::Data { slot, .. } => Key::Data(*slot),
            Undo::Home { slot, .. } => Key::Home(*slot),
        }
    }
}

/// Beginning of the tags that name checkpoints as not whole: they were not on the disk yet when the
/// power was cut.
pub const INCOMPLETE_PREFIX: &str = "!incomplete-";

impl Checkpoint {
    /// It is named as not whole.
    pub fn is_incomplete(&self) -> bool {
        self.tags
            .iter()
            .any(|tag| tag.starts_with(INCOMPLETE_PREFIX))
    }
}

/// A checkpoint as the journal keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Its number, and the epoch that it closed.
    pub id: CheckpointId,
    /// Names given to it, sorted.
    pub tags: Vec<String>,
    /// The note of whoever made it; empty if none.
    pub note: String,
    /// Wall clock, nanoseconds since 1970.
    pub created_ns: i64,
    /// All files held open for writing were captured at one instant.
    pub atomic: bool,
    /// Number of changed keys recorded in the epoch that it closed.
    pub dirty: u64,
    /// Why it was made: by a person, as the guard of a restore, ...
    pub reason: Reason,
}

/// Why a checkpoint was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Reason {
    /// Somebody asked for it.
    Asked,
    /// Somebody made the directory `.snapshots/NAME`; it is listed as a directory, so that rmdir(2)
    /// can delete it.
    Directory {
        /// NAME, which is also a tag; or `.branches/NAME`: it is the base of the branch that
        /// somebody made so, and no name in `.snapshots`.
        name: String,
    },
    /// It guards what a restore of this checkpoint replaced, or a merge.
    Guard {
        /// The checkpoint that was restored; before a merge this one.
        restored: CheckpointId,
    },
    /// Nobody asked for it: the daemon made it by itself.
    Auto {
        /// What made it do so.
        trigger: Trigger,
    },
    /// It was imported from a history that somebody else kept.
    Imported {
        /// When the state was there, nanoseconds since 1970.
        of_ns: i64,
    },
}

impl Checkpoint {
    /// When the tree was so, nanoseconds since 1970: what rules of retention and people go by.
    /// `created_ns` is when it was written down, which is what tells changes that nobody saw.
    pub fn state_ns(&self) -> i64 {
        if let Reason::Imported { of_ns } = self.reason {
            of_ns
        } else {
            self.created_ns
        }
    }
}

impl Reason {
    /// The tripwire made it.
    pub fn is_mark(&self) -> bool {
        matches!(
            self,
            Reason::Auto {
                trigger: Trigger::Tripwire
            }
        )
    }

    /// The daemon made it by itself.
    pub fn is_auto(&self) -> bool {
        matches!(self, Reason::Auto { .. })
    }

    /// Somebody asked for it: it can be somebody's `latest`.
    pub fn is_asked(&self) -> bool {
        matches!(
            self,
            Reason::Asked | Reason::Directory { .. } | Reason::Imported { .. }
        )
    }

    /// The guard of a restore, or a mark of the tripwire: it is there so that something can be
    /// undone, and no rule counts it.
    pub fn is_guard_or_mark(&self) -> bool {
        matches!(self, Reason::Guard { .. }) || self.is_mark()
    }

    /// Somebody made the directory `.snapshots/NAME`.
    pub fn is_directory(&self, name: &str) -> bool {
        matches!(self, Reason::Directory { name: made } if made == name)
    }
}

/// What makes the daemon make a checkpoint by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// A process began to destroy things, and went on (`--tripwire`).
    Tripwire,
    /// Something had changed, and it was time (`--auto-every`).
    Interval,
    /// Something had changed, and then nothing was written for a while (`--auto-quiet`).
    Quiet,
    /// The tree as it was when it was last served: it was changed while nothing was mounted
    /// (`--auto-absence`).
    Unmount,
    /// The tree as it was found then.
    Absence,
}

impl Trigger {
    /// Its name, as in `auto:tripwire`.
    pub fn name(self) -> &'static str {
        match self {
            Trigger::Tripwire => "tripwire",
            Trigger::Interval => "interval",
            Trigger::Quiet => "quiet",
            Trigger::Unmount => "unmount",
            Trigger::Absence => "absence",
        }
    }
}

/// Who asked for something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Process (of a request of the kernel: thread) id; 0 if it is not known.
    pub pid: u32,
    /// Name of the process; empty if it is not known.
    pub process: String,
}

/// A checkpoint with what the journal says of it besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// As it was made, with the tags that it has now.
    pub checkpoint: Checkpoint,
    /// Who asked for it, if that was recorded.
    pub by: Option<Actor>,
    /// It is not to be deleted, for this reason, which may be empty.
    pub pinned: Option<String>,
    /// It was deleted or undone, and everything that it needs is still there.
    pub hidden: bool,
    /// The checkpoint that the tree came from.
    pub parent: Option<CheckpointId>,
    /// The content of something that it shows was dropped.
    pub has_dropped: bool,
}

/// Whether this can be a tag: a name in a directory, that nothing else goes by. A journal may have
/// others, if a stranger made it: they name nothing.
pub fn is_tag(tag: &str) -> bool {
    let taken = ["latest", "live", ".", ".."].contains(&tag)
        || tag.bytes().all(|byte| byte.is_ascii_digit());
    !taken && !tag.chars().any(|c| c == '/' || c.is_control())
}

impl Kept {
    /// A checkpoint of which nothing else is known; it comes from the one before.
    pub fn new(mut checkpoint: Checkpoint, by: Option<Actor>) -> Kept {
        checkpoint.tags.retain(|tag| is_tag(tag));
        let parent = checkpoint
            .id
            .0
            .checked_sub(1)
            .filter(|before| *before > 0)
            .map(CheckpointId);
        Kept {
            checkpoint,
            by,
            pinned: None,
            hidden: false,
            parent,
            has_dropped: false,
        }
    }
}

impl std::ops::Deref for Kept {
    type Target = Checkpoint;

    fn deref(&self) -> &Checkpoint {
        &self.checkpoint
    }
}

/// What an object held when it was hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectHash {
    /// The object.
    pub object: ObjectId,
    /// Its size in bytes.
    pub size: u64,
    /// BLAKE3 of its bytes.
    pub hash: [u8; 32],
}

/// A version whose content is not kept any more, because of where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Where its bytes were. One that was moved stays, empty: it keeps its number from being given
    /// away.
    pub object: ObjectId,
    /// How many there were.
    pub size: u64,
    /// The first checkpoint that was there and shows it, ...
    pub first: CheckpointId,
    /// ... and the last.
    pub last: CheckpointId,
}

/// The first and the last checkpoint that show one of these versions; of none: no checkpoint is
/// between them.
pub fn range_of(dropped: &[Dropped]) -> (CheckpointId, CheckpointId) {
    let first = dropped.iter().map(|one| one.first).min();
    let last = dropped.iter().map(|one| one.last).max();
    first
        .zip(last)
        .unwrap_or((CheckpointId(1), CheckpointId(0)))
}

/// A comparison of the tree with its baseline, at the beginning of a mount. Until it is over
/// nothing is served, and whoever mounts next goes on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparing {
    /// Which baseline: the one of this end of the journal.
    pub baseline: Address,
    /// When the tree was last served, nanoseconds since 1970.
    pub left_ns: i64,
    /// Where what differs is recorded.
    pub apart: Apart,
}

/// Whether what was changed while nothing was mounted is an epoch of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apart {
    /// It is a part of the epoch that was open.
    No,
    /// It will be, if there is anything: the epoch that was open is to be closed first.
    Unclosed,
    /// It is: the newest checkpoint is the tree as it was when it was last served.
    Closed,
}

impl Record {
    /// It is of what mounts, unmounts or frees, and is there also where there is no room for what
    /// keeps the past.
    pub fn has_last_room(&self) -> bool {
        matches!(
            self,
            Record::Mounted { .. }
                | Record::Unmounted { .. }
                | Record::Deleted { .. }
                | Record::Hidden { .. }
                | Record::Dropped { .. }
                | Record::Void { .. }
                | Record::Tags { .. }
                | Record::RestoreEnd
                | Record::Comparing(_)
                | Record::Told { .. }
        )
    }
}

/// One frame of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Who is about to change what, for the first time in the open epoch. Inodes made in it count
    /// as changed by whoever made them, and what is in a directory made in it as made by whoever
    /// made that, unless a touch says otherwise.
    Touched {
        /// The processes that get a number.
        processes: Vec<(ProcessNumber, Process)>,
        /// What they touch.
        touches: Vec<Touch>,
    },
    /// What was open for writing when a checkpoint was made.
    OpenAt {
        /// The checkpoint.
        id: CheckpointId,
        /// Path, and who had it open.
        open: Vec<(Vec<u8>, Process)>,
        /// So many more.
        more: u64,
    },
    /// The next restore begins with these names alone, not with what is below them. Several of
    /// these in a row belong together.
    RestoreOnly {
        /// Paths, as in `RestoreBegin`.
        paths: Vec<Vec<u8>>,
    },
    /// The changes of one operation, all in `epoch`.
    Undo {
        /// The epoch that was open.
        epoch: Epoch,
        /// What held before.
        undo: Vec<Undo>,
    },
    /// The data record of this slot in this epoch is void: the file was opened for writing and left
    /// alone.
    Void {
        /// The epoch.
        epoch: Epoch,
        /// The file.
        slot: Slot,
    },
    /// Inodes with a past, and new directories above them, are to be found at these names now; the
    /// last record for a slot counts.
    Moved {
        /// Slot and place.
        places: Vec<(Slot, Place)>,
    },
    /// A checkpoint was made: its epoch is closed, the next one is open.
    Checkpoint(Checkpoint),
    /// A checkpoint's tags are these from now on.
    Tags {
        /// Which one.
        id: CheckpointId,
        /// All its tags, sorted.
        tags: Vec<String>,
    },
    /// A checkpoint was deleted for good: what only it needed is freed.
    Deleted {
        /// Which one.
        id: CheckpointId,
    },
    /// A rename over an existing inode is under way: names were exchanged, and what is now at
    /// `place` (still `slot`) is to be moved into `object`.
    Replacing {
        /// The inode that lost its name.
        slot: Slot,
        /// Where it is between the two steps.
        place: Place,
        /// Where it goes.
        object: ObjectId,
        /// A whiteout is left at the place.
        whiteout: bool,
    },
    /// A restore began.
    RestoreBegin {
        /// What is restored.
        target: CheckpointId,
        /// The checkpoint made before.
        guard: CheckpointId,
        /// Only these paths (relative, `/`-separated bytes); empty: the whole tree.
        paths: Vec<Vec<u8>>,
    },
    /// The restore that began last is complete.
    RestoreEnd,
    /// A daemon began to serve the tree.
    Mounted {
        /// Wall clock, nanoseconds since 1970.
        at_ns: i64,
        /// When the daemon before ended, or was last known to live, if there was one: between the
        /// two, nobody served the tree.
        stopped_ns: Option<i64>,
    },
    /// A daemon stopped serving in an orderly way.
    Unmounted {
        /// Wall clock, nanoseconds since 1970.
        at_ns: i64,
    },
    /// The tree is being compared with a baseline: until the next checkpoint or the next of these,
    /// undo records tell what it was when it was last served, and the baseline goes on to count.
    /// `None`: no more.
    Comparing(Option<Comparing>),
    /// All that was changed while nobody served the tree, between these times, is on record, as far
    /// as it can be told: a comparison has come to its end.
    Told {
        /// When the last daemon ended, wall clock, nanoseconds since 1970.
        from_ns: i64,
        /// When the next one began: that of its [`Record::Mounted`].
        to_ns: i64,
    },
    /// Who asked for what the next record says; appended together with it.
    By {
        /// Wall clock, nanoseconds since 1970.
        at_ns: i64,
        /// Who it was.
        actor: Actor,
    },
    /// A checkpoint is pinned, so that it is not deleted, or no longer.
    Pinned {
        /// Which one.
        id: CheckpointId,
        /// Why, which may be empty; `None`: it is not pinned any more.
        reason: Option<String>,
    },
    /// A checkpoint is hidden: nobody sees it, and everything that it needs stays; or it is seen
    /// again.
    Hidden {
        /// Which one.
        id: CheckpointId,
        /// It is.
        hidden: bool,
    },
    /// What the records before it, appended together with it, were: an operation.
    Operation(Operation),
    /// The content of these versions is freed, though checkpoints show them: they were where little
    /// is kept of the past.
    Dropped {
        /// The layer that they are in.
        epoch: Epoch,
        /// The patterns of the tier, as the configuration has them.
        paths: Vec<String>,
        /// Each once.
        objects: Vec<Dropped>,
    },
    /// Objects of a closed epoch were hashed.
    Hashes {
        /// Their epoch.
        epoch: Epoch,
        /// Each once.
        objects: Vec<ObjectHash>,
        /// With this record every object that the epoch had then is hashed.
        whole: bool,
    },
}
