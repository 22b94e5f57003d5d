//! The processes that change the tree.

use crate::ids::{Name, Slot};

/// A process at the time of its first change in an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Process {
    /// Process id; 0: unknown.
    pub pid: u32,
    /// Start time in clock ticks since boot, which identifies a process together with `pid`; 0:
    /// unknown.
    pub start: u64,
    /// User id of its request.
    pub uid: u32,
    /// Parent process id.
    pub parent: u32,
    /// Session id.
    pub session: u32,
    /// Name; empty: unknown.
    pub name: String,
    /// Control group, a path from the root of the hierarchy; empty: unknown.
    pub cgroup: String,
}

/// Number of a process in the journal, valid until a record reassigns it. 0: beyond the maximum
/// number of processes.
pub type ProcessNumber = u32;

/// The change of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameTouch {
    /// It leads to no inode.
    Removed,
    /// It leads to a new inode.
    Made,
    /// It leads to an inode that had, or still has, another name.
    Moved,
}

/// A change that a process is about to make, or made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessChange {
    /// A name.
    Name {
        /// The process.
        by: ProcessNumber,
        /// The directory.
        dir: Slot,
        /// The name.
        name: Name,
        /// The change.
        how: NameTouch,
    },
    /// The content of a file; also recorded for a writable open.
    Data {
        /// The process.
        by: ProcessNumber,
        /// The file.
        slot: Slot,
    },
    /// Attributes of an inode.
    Attr {
        /// The process.
        by: ProcessNumber,
        /// The inode.
        slot: Slot,
    },
    /// The creator of an inode of the open epoch, where its name will no longer show it.
    Made {
        /// The process.
        by: ProcessNumber,
        /// The inode.
        slot: Slot,
    },
    /// The inode loses its last name; a later inode with this number is another.
    Gone {
        /// The inode.
        slot: Slot,
    },
    /// The process had the file open for writing and did not write.
    Left {
        /// The process.
        by: ProcessNumber,
        /// The file.
        slot: Slot,
    },
}
