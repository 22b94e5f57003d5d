//! The ids that everything is named by. No bare `u64` crosses a module.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of an inode of the live tree: the backing filesystem's inode number, and 1 for the root
/// of the tree.
///
/// A slot is a variable: what inode it holds can change over time, once an inode is gone and the
/// filesystem gives its number to another. History records what a slot held at each checkpoint, so
/// reuse needs no care there (docs/design.md).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u64);

impl Slot {
    /// The root of the tree.
    pub const ROOT: Slot = Slot(1);
    /// The directory in the store where a restore prepares what it puts into the tree. It is no
    /// part of the tree and has no history.
    pub const STAGING: Slot = Slot(0);
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}", self.0)
    }
}

/// A stretch of time between two checkpoints. Epoch N ends with checkpoint N; the first is 1.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default,
)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch after this one.
    pub fn next(self) -> Epoch {
        Epoch(self.0.saturating_add(1))
    }

    /// The checkpoint that closes this epoch.
    pub fn checkpoint(self) -> CheckpointId {
        CheckpointId(self.0)
    }
}

/// Number of a checkpoint: 1, 2, 3 ...; never given twice in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CheckpointId(pub u64);

impl CheckpointId {
    /// The epoch that this checkpoint closed.
    pub fn epoch(self) -> Epoch {
        Epoch(self.0)
    }
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A name in a directory: 1 to 255 bytes, neither `/` nor NUL, any encoding.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(pub Box<[u8]>);

impl Name {
    /// The name with these bytes. The caller has checked them: a name comes from the kernel or from
    /// our own records.
    pub fn new(bytes: &[u8]) -> Name {
        Name(bytes.into())
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl From<&std::ffi::OsStr> for Name {
    fn from(name: &std::ffi::OsStr) -> Self {
        Name::new(std::os::unix::ffi::OsStrExt::as_bytes(name))
    }
}

/// How an object came to be: what the suffix of its file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectOrigin {
    /// The data was cloned or copied from the live file (`.c`).
    Cloned,
    /// The live inode itself was moved into the layer when it lost its last name (`.m`).
    Moved,
}

/// Names one captured version: `layers/<epoch>/objects/<slot>-<serial>.<c|m>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// The epoch in which it was captured: the checkpoints before it may need it.
    pub epoch: Epoch,
    /// Whose version it is.
    pub slot: Slot,
    /// Tells apart captures of one slot in one epoch.
    pub serial: u32,
    /// Cloned or moved.
    pub origin: ObjectOrigin,
}

/// A place in the journal: the beginning of a frame, or the end of the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Number of the segment file.
    pub segment: u32,
    /// Byte offset in it.
    pub offset: u32,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment, self.offset)
    }
}
