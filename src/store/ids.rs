//! Newtypes for all ids. No bare `u64` crosses a module.

use std::fmt;

use ckptfs_api::Epoch;

/// Number of an inode of the live tree: the backing filesystem's inode number, and 1 for the root
/// of the tree.
///
/// Once an inode is removed, the filesystem may reuse its number for another. History records the
/// inode of a slot at each checkpoint, so it needs no special case for reuse (docs/design.md).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u64);

impl Slot {
    /// The root of the tree.
    pub const ROOT: Slot = Slot(1);
    /// The directory in the store where a restore stages its files. It is not part of the tree and
    /// has no history.
    pub const STAGING: Slot = Slot(0);
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}", self.0)
    }
}

/// A name in a directory: 1 to 255 bytes of any encoding, without `/` and NUL.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(pub Box<[u8]>);

impl Name {
    /// Creates a name from bytes that the caller has validated: they are from the kernel or from a
    /// record.
    pub fn new(bytes: &[u8]) -> Name {
        Name(bytes.into())
    }

    /// Returns the bytes.
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

/// The origin of an object, encoded in the suffix of its file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectOrigin {
    /// The data was cloned or copied from the live file (`.c`).
    Cloned,
    /// The live inode itself was moved into the layer when it lost its last name (`.m`).
    Moved,
}

/// Identifies a captured version: `layers/<epoch>/objects/<slot>-<serial>.<c|m>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// The epoch in which it was captured: earlier checkpoints may need it.
    pub epoch: Epoch,
    /// The inode of the file.
    pub slot: Slot,
    /// Distinguishes captures of one slot in one epoch.
    pub serial: u32,
    /// Cloned or moved.
    pub origin: ObjectOrigin,
}

/// A position in the journal: the start of a frame, or the end of the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Number of the segment file.
    pub segment: u32,
    /// Byte offset in the segment.
    pub offset: u32,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment, self.offset)
    }
}
