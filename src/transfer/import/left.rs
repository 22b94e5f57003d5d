//! Paths that an import leaves out, with reasons. Every omitted path is reported.

use serde::Serialize;

use crate::engine::api::TreePath;
use crate::sys::Errno;

/// The reason why a path is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// The history of a ckptfs tree, or a name that ckptfs reserves.
    History,
    /// Another filesystem is mounted on it.
    OtherFilesystem,
    /// It kept changing during the copy.
    Changing,
    /// It cannot be read or created.
    Error(Errno),
}

impl Why {
    /// Returns the reason for an error number.
    pub fn of(errno: Errno) -> Why {
        Why::Error(errno)
    }

    /// Returns the identifier for programs.
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

    /// Reports whether the path belongs to the tree, which is incomplete without it.
    pub fn is_missed(self) -> bool {
        self != Why::History
    }

    /// Returns the description for people.
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
    /// The path.
    pub path: TreePath,
    /// The reason.
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
