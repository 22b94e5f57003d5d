//! Paths that an import leaves out, with reasons. Every omitted path is reported.

use serde::Serialize;

use ckptfs_api::TreePath;
use ckptfs_sys::Errno;

/// The reason why a path is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SkipReason {
    /// The history of a ckptfs tree, or a name that ckptfs reserves.
    History,
    /// Another filesystem is mounted on it.
    OtherFilesystem,
    /// It kept changing during the copy.
    Changing,
    /// It cannot be read or created.
    Error(Errno),
}

impl SkipReason {
    /// Returns the reason for an error number.
    pub fn of(errno: Errno) -> SkipReason {
        SkipReason::Error(errno)
    }

    /// Returns the identifier for programs.
    pub fn code(self) -> &'static str {
        match self {
            SkipReason::History => "history",
            SkipReason::OtherFilesystem => "other-filesystem",
            SkipReason::Changing => "changing",
            SkipReason::Error(Errno::EACCES | Errno::EPERM) => "no-permission",
            SkipReason::Error(Errno::ENOENT | Errno::ESTALE) => "vanished",
            SkipReason::Error(_) => "error",
        }
    }

    /// Reports whether the path belongs to the tree, which is incomplete without it.
    pub fn is_missed(self) -> bool {
        self != SkipReason::History
    }

    /// Returns the description for people.
    pub fn told(self) -> String {
        match self {
            SkipReason::History => {
                "belongs to ckptfs: only files of the tree are imported".to_owned()
            }
            SkipReason::OtherFilesystem => {
                "another filesystem is mounted there: import it separately".to_owned()
            }
            SkipReason::Changing => "kept changing while it was read".to_owned(),
            SkipReason::Error(errno) => errno.to_string(),
        }
    }
}

/// A path that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedPath {
    /// The path.
    pub path: TreePath,
    /// The reason.
    pub why: SkipReason,
}

impl Serialize for SkippedPath {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut told = serializer.serialize_struct("Left", 3)?;
        told.serialize_field("path", &self.path)?;
        told.serialize_field("why", self.why.code())?;
        told.serialize_field("told", &self.why.told())?;
        told.end()
    }
}
