//! Who changes what.

use crate::store::ids::{Name, Slot};

/// A process that changed something, as it was when it first did in an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Process {
    /// Its id; 0 if it is not known.
    pub pid: u32,
    /// When it started, in clock ticks since boot: with `pid` it names one process. 0 if it is not
    /// known.
    pub start: u64,
    /// User id of its request.
    pub uid: u32,
    /// Process that it was a child of.
    pub parent: u32,
    /// Its session.
    pub session: u32,
    /// Its name; empty if it is not known.
    pub name: String,
    /// Its control group: a path from the root of the hierarchy; empty if it is not known.
    pub cgroup: String,
}

/// Number of a process in the journal, from the record that says who it is until another does. 0:
/// one of too many.
pub type ProcessNumber = u32;

/// What becomes of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameTouch {
    /// It leads to nothing.
    Removed,
    /// It leads to a new inode.
    Made,
    /// It leads to an inode that had another name before, or still has.
    Moved,
}

/// What a process is about to change, or has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touch {
    /// What a name leads to.
    Name {
        /// Who.
        by: ProcessNumber,
        /// The directory.
        dir: Slot,
        /// The name.
        name: Name,
        /// What becomes of it.
        how: NameTouch,
    },
    /// The content of a file, or what may come of a writable open.
    Data {
        /// Who.
        by: ProcessNumber,
        /// The file.
        slot: Slot,
    },
    /// Attributes of an inode.
    Attr {
        /// Who.
        by: ProcessNumber,
        /// The inode.
        slot: Slot,
    },
    /// Who made an inode of the open epoch, where its name will not tell any more.
    Made {
        /// Who.
        by: ProcessNumber,
        /// The inode.
        slot: Slot,
    },
    /// The inode loses its last name: what has this number later is another one.
    Gone {
        /// The inode.
        slot: Slot,
    },
    /// The process had the file open for writing, and has not written.
    Left {
        /// Who.
        by: ProcessNumber,
        /// The file.
        slot: Slot,
    },
}
