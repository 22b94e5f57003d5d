//! The journal's records: undo records, and operations of several changes.
//!
//! History is stored as **undo records**. Each contains the value of a key *before* its first
//! change in an epoch. The value of a key at checkpoint N is that of its first record with an epoch
//! above N, or that of the live tree without such a record. Within an epoch the first record of a
//! key is authoritative.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use ckptfs_api::{Actor, CheckpointId, Epoch, Reason};

mod processes;

pub use self::processes::{NameTouch, Process, ProcessChange, ProcessNumber};
use super::Address;
use super::ids::{Name, ObjectId, Slot};
use super::operation::Operation;
use ckptfs_sys::{Kind, Stat, Xattrs};

/// The inode that a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Child {
    /// Its slot.
    pub slot: Slot,
    /// Its type.
    pub kind: Kind,
}

/// One of the names of an inode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The directory.
    pub parent: Slot,
    /// The name in it.
    pub name: Name,
}

/// Returns an inode that is its own ancestor. A consistent state has no such cycle unless it was
/// forged. O(places).
pub fn in_a_circle<'a>(places: impl Iterator<Item = (Slot, &'a Place)>) -> Option<Slot> {
    let up: HashMap<Slot, Slot> = places.map(|(slot, place)| (slot, place.parent)).collect();
    // Slot -> start of the climb that passed it.
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
    /// The result of stat(2).
    pub stat: Stat,
    /// Target of a symbolic link; `None` for other types.
    pub target: Option<Vec<u8>>,
}

/// The data of a regular file before a change, or the object of a moved inode of another type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataState {
    /// The object with the bytes; `None`: the file was empty, or its content is lost.
    pub object: Option<ObjectId>,
    /// Size in bytes.
    pub size: u64,
    /// Captured ahead of a change that may never happen (a writable open, a file open across a
    /// checkpoint); it can be voided.
    pub provisional: bool,
}

/// The subject of an undo record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// The inode that a name in a directory led to.
    Entry(Slot, Name),
    /// The attributes of an inode.
    Attr(Slot),
    /// Its extended attributes.
    Xattrs(Slot),
    /// Its data.
    Data(Slot),
    /// Its place, one of its names. Recorded for every directory above a change, so that a past
    /// path is found without a scan.
    Home(Slot),
}

/// An undo record: the value of a key before its first change in the epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undo {
    /// A name led to `before`; `None`: it did not exist.
    Entry {
        /// The directory.
        dir: Slot,
        /// The name.
        name: Name,
        /// The inode that it led to.
        before: Option<Child>,
    },
    /// The attributes of an inode.
    Attr {
        /// The inode.
        slot: Slot,
        /// Its attributes.
        before: AttrState,
    },
    /// The extended attributes of an inode.
    Xattrs {
        /// The inode.
        slot: Slot,
        /// All of them, sorted by name.
        before: Xattrs,
    },
    /// The content of a file.
    Data {
        /// The file.
        slot: Slot,
        /// Its content.
        before: DataState,
    },
    /// The place of an inode.
    Home {
        /// The inode.
        slot: Slot,
        /// One of its names.
        before: Place,
    },
}

impl Undo {
    /// Returns the key of the record.
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

/// Prefix of the tags of incomplete checkpoints: these were not on disk at a power cut.
pub const INCOMPLETE_PREFIX: &str = "!incomplete-";

impl Checkpoint {
    /// Reports whether the checkpoint is tagged as incomplete.
    pub fn is_incomplete(&self) -> bool {
        self.tags
            .iter()
            .any(|tag| tag.starts_with(INCOMPLETE_PREFIX))
    }
}

/// A checkpoint as stored in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Its number, which is also that of the epoch it closed.
    pub id: CheckpointId,
    /// Its tags, sorted.
    pub tags: Vec<String>,
    /// The user's note; may be empty.
    pub note: String,
    /// Wall clock, nanoseconds since 1970.
    pub created_ns: i64,
    /// All files open for writing were captured at one instant.
    pub atomic: bool,
    /// Number of changed keys recorded in the epoch that it closed.
    pub dirty: u64,
    /// The reason for its creation.
    pub reason: Reason,
}

impl Checkpoint {
    /// Returns the time of the state, nanoseconds since 1970, for people and for retention rules.
    /// `created_ns` is when it was recorded, and is the reference for detecting unrecorded changes.
    pub fn state_ns(&self) -> i64 {
        if let Reason::Imported { of_ns } = self.reason {
            of_ns
        } else {
            self.created_ns
        }
    }
}

/// A checkpoint with its later state in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointState {
    /// The checkpoint as created, with its current tags.
    pub checkpoint: Checkpoint,
    /// The origin of the request, if recorded.
    pub by: Option<Actor>,
    /// Protects it from deletion, with a reason that may be empty.
    pub pinned: Option<String>,
    /// Deleted or undone, but all its data still exists.
    pub hidden: bool,
    /// The checkpoint that the tree came from.
    pub parent: Option<CheckpointId>,
    /// The content of a file that it shows was dropped.
    pub has_dropped: bool,
}

/// Reports whether a string can be a tag: a directory entry without another meaning. A forged
/// journal may contain other tags; these are ignored.
pub fn is_tag(tag: &str) -> bool {
    let taken = ["latest", "live", ".", ".."].contains(&tag)
        || tag.bytes().all(|byte| byte.is_ascii_digit());
    !taken && !tag.chars().any(|c| c == '/' || c.is_control())
}

impl CheckpointState {
    /// Returns a checkpoint without later state; its parent is the previous one.
    pub fn new(mut checkpoint: Checkpoint, by: Option<Actor>) -> CheckpointState {
        checkpoint.tags.retain(|tag| is_tag(tag));
        let parent = checkpoint
            .id
            .0
            .checked_sub(1)
            .filter(|before| *before > 0)
            .map(CheckpointId);
        CheckpointState {
            checkpoint,
            by,
            pinned: None,
            hidden: false,
            parent,
            has_dropped: false,
        }
    }
}

impl std::ops::Deref for CheckpointState {
    type Target = Checkpoint;

    fn deref(&self) -> &Checkpoint {
        &self.checkpoint
    }
}

/// The hash of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectHash {
    /// The object.
    pub object: ObjectId,
    /// Its size in bytes.
    pub size: u64,
    /// BLAKE3 of its bytes.
    pub hash: [u8; 32],
}

/// A version whose content was freed by a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The object that contained the bytes. A moved inode stays, empty, so that its number is not
    /// reused.
    pub object: ObjectId,
    /// Their number.
    pub size: u64,
    /// The first existing checkpoint that shows the version.
    pub first: CheckpointId,
    /// The last such checkpoint.
    pub last: CheckpointId,
}

/// Returns the first and the last checkpoint that show any of these versions; an empty range if
/// `dropped` is empty.
pub fn range_of(dropped: &[Dropped]) -> (CheckpointId, CheckpointId) {
    let first = dropped.iter().map(|one| one.first).min();
    let last = dropped.iter().map(|one| one.last).max();
    first
        .zip(last)
        .unwrap_or((CheckpointId(1), CheckpointId(0)))
}

/// A comparison of the tree with its baseline at mount. The tree is not served until it ends; an
/// interrupted comparison is continued by the next mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparing {
    /// The baseline, identified by the end of the journal.
    pub baseline: Address,
    /// When the tree was last served, nanoseconds since 1970.
    pub left_ns: i64,
    /// The epoch for the differences.
    pub apart: AbsenceEpoch,
}

/// Whether changes made while nothing was mounted form a separate epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbsenceEpoch {
    /// They belong to the epoch that was open.
    No,
    /// They will, if any exist: the open epoch is to be closed first.
    Unclosed,
    /// They do: the newest checkpoint is the state at the end of the last service.
    Closed,
}

impl Record {
    /// Reports whether the record belongs to mounting, unmounting or freeing. Such a record may use
    /// the last reserved space, where captures fail.
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
    /// The processes about to make their first changes in the open epoch. Unless a touch differs,
    /// an inode created in the epoch counts as changed by its creator, and the entries of a
    /// directory created in it as created by that directory's creator.
    Touched {
        /// The processes that get a number.
        processes: Vec<(ProcessNumber, Process)>,
        /// Their touches.
        touches: Vec<ProcessChange>,
    },
    /// The files open for writing when a checkpoint was made.
    OpenAt {
        /// The checkpoint.
        id: CheckpointId,
        /// Path, and the process that had it open.
        open: Vec<(Vec<u8>, Process)>,
        /// The number of further files.
        more: u64,
    },
    /// The following restore covers these names only, not everything below them. Consecutive
    /// records of this kind belong together.
    RestoreOnly {
        /// Paths, as in `RestoreBegin`.
        paths: Vec<Vec<u8>>,
    },
    /// The changes of one operation, all in `epoch`.
    Undo {
        /// The epoch that was open.
        epoch: Epoch,
        /// The previous values.
        undo: Vec<Undo>,
    },
    /// Voids the data record of this slot in this epoch: the file was opened for writing and not
    /// changed.
    Void {
        /// The epoch.
        epoch: Epoch,
        /// The file.
        slot: Slot,
    },
    /// The current places of inodes with history, and of new directories above them; the last
    /// record of a slot is authoritative.
    Moved {
        /// Slot and place.
        places: Vec<(Slot, Place)>,
    },
    /// A checkpoint was made: its epoch is closed, and the next one is open.
    Checkpoint(Checkpoint),
    /// Replaces the tags of a checkpoint.
    Tags {
        /// The checkpoint.
        id: CheckpointId,
        /// All its tags, sorted.
        tags: Vec<String>,
    },
    /// A checkpoint was deleted permanently: data that only it needed is freed.
    Deleted {
        /// The checkpoint.
        id: CheckpointId,
    },
    /// A rename over an existing inode is in progress: the names were exchanged, and `slot`, now at
    /// `place`, is to be moved to `object`.
    Replacing {
        /// The inode that lost its name.
        slot: Slot,
        /// Its place between the two steps.
        place: Place,
        /// Its destination.
        object: ObjectId,
        /// A whiteout stays at the place.
        whiteout: bool,
    },
    /// A restore began.
    RestoreBegin {
        /// The restored checkpoint.
        target: CheckpointId,
        /// The guard checkpoint made before.
        guard: CheckpointId,
        /// Only these paths (relative, `/`-separated bytes); empty: the whole tree.
        paths: Vec<Vec<u8>>,
    },
    /// The most recently begun restore is complete.
    RestoreEnd,
    /// A daemon began to serve the tree.
    Mounted {
        /// Wall clock, nanoseconds since 1970.
        at_ns: i64,
        /// When the previous daemon ended or was last known to run, if one existed. Between the two
        /// times the tree was not served.
        stopped_ns: Option<i64>,
    },
    /// A daemon shut down in an orderly way.
    Unmounted {
        /// Wall clock, nanoseconds since 1970.
        at_ns: i64,
    },
    /// The tree is being compared with a baseline. Until the next checkpoint or the next record of
    /// this kind, undo records describe the state at the end of the last service, and the baseline
    /// stays valid. `None`: the comparison ended.
    Comparing(Option<Comparing>),
    /// All detectable changes made between these times, without service, are recorded: a comparison
    /// is complete.
    Told {
        /// When the previous daemon ended; wall clock, nanoseconds since 1970.
        from_ns: i64,
        /// When the next one began, as in its [`Record::Mounted`].
        to_ns: i64,
    },
    /// The origin of the next record's operation; appended together with it.
    By {
        /// Wall clock, nanoseconds since 1970.
        at_ns: i64,
        /// The origin.
        actor: Actor,
    },
    /// A checkpoint is pinned against deletion, or unpinned.
    Pinned {
        /// The checkpoint.
        id: CheckpointId,
        /// The reason, which may be empty; `None`: unpinned.
        reason: Option<String>,
    },
    /// A checkpoint is hidden, with all its data retained, or visible again.
    Hidden {
        /// The checkpoint.
        id: CheckpointId,
        /// The new state.
        hidden: bool,
    },
    /// The operation that the preceding records form; appended together with them.
    Operation(Operation),
    /// The content of these versions is freed although checkpoints show them, according to a tier.
    Dropped {
        /// Their layer.
        epoch: Epoch,
        /// The patterns of the tier, as configured.
        paths: Vec<String>,
        /// The versions, each once.
        objects: Vec<Dropped>,
    },
    /// Objects of a closed epoch were hashed.
    Hashes {
        /// Their epoch.
        epoch: Epoch,
        /// The objects, each once.
        objects: Vec<ObjectHash>,
        /// With this record all objects that the epoch had then are hashed.
        whole: bool,
    },
}
