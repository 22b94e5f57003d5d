//! What an import leaves out, and why: nothing is left out without being told.

use serde::Serialize;

use crate::engine::api::TreePath;
use crate::sys::Errno;

/// Why something is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// It is the history of a tree of ours, or has a name that ours keeps for itself.
    History,
    /// Another filesystem is mounted there.
    OtherFilesystem,
    /// It kept changing while it was read.
    Changing,
    /// It cannot be read, or not be made.
    Error(Errno),
}

impl Why {
    /// Why, from an error number.
    pub fn of(errno: Errno) -> Why {
        Why::Error(errno)
    }

    /// For programs.
    pub fn code(self) -> &'static str {
        match self {
            Why::History => "history",
            Why::OtherFilesystem => "other-filesystem",
            Why::Changing => "changing",
            Why::Error(Errno::EACCES | Errno::EPERM) => "no-permission",
            Why::Error(Errno::ENOENT | Errno::ESTALE) => "vanished",
            Why::Error(_) => "error",
        }
    }

    /// It is a part of the tree, which is not whole without it.
    pub fn is_missed(self) -> bool {
        self != Why::History
    }

    /// For people.
    pub fn told(self) -> String {
        match self {
            Why::History => "belongs to ckptfs: only files of the tree are imported".to_owned(),
            Why::OtherFilesystem => {
                "another filesystem is mounted there: import it separately".to_owned()
            }
            Why::Changing => "kept changing while it was read".to_owned(),
            Why::Error(errno) => errno.to_string(),
        }
    }
}

/// A path that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Which.
    pub path: TreePath,
    /// Why.
    pub why: Why,
}

impl Serialize for Left {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut told = serializer.serialize_struct("Left", 3)?;
        told.serialize_field("path", &self.path)?;
        told.serialize_field("why", self.why.code())?;
        told.serialize_field("told", &self.why.told())?;
        told.end()
    }
}
