//! What says that a directory is an export: an extended attribute of the directory itself, so that
//! it goes where the directory goes and is no part of the tree in it (docs/adr/0016-export.md).
//!
//! ```text
//! user.ckptfs.export = "1 STORE CHECKPOINT begun|whole"
//! ```
//! `begun` is set before anything is touched, `whole` when everything is as it was at the
//! checkpoint.

use std::os::fd::AsFd;

use crate::store::ids::CheckpointId;
use crate::sys::{self, Errno, SysResult, XattrMode};

/// Name of the attribute.
pub const MARK_NAME: &[u8] = b"user.ckptfs.export";

/// A directory's mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The store that it is a copy from.
    pub store: String,
    /// What it is, or was about to become.
    pub checkpoint: CheckpointId,
    /// Nothing is missing.
    pub whole: bool,
}

impl Mark {
    /// The mark of a directory; `None`: it has none.
    ///
    /// # Errors
    /// EINVAL if it has one that cannot be understood; those of getxattr(2).
    pub fn read(dir: impl AsFd) -> SysResult<Option<Mark>> {
        match sys::getxattr(dir, MARK_NAME) {
            Ok(value) => Mark::parse(&value).map(Some).ok_or(Errno::EINVAL),
            Err(Errno::NO_XATTR | Errno::EOPNOTSUPP) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn parse(value: &[u8]) -> Option<Mark> {
        let text = std::str::from_utf8(value).ok()?;
        let words: Vec<&str> = text.split(' ').collect();
        let ["1", store, checkpoint, state @ ("begun" | "whole")] = words.as_slice() else {
            return None;
        };
        Some(Mark {
            store: (*store).to_owned(),
            checkpoint: CheckpointId(checkpoint.parse().ok()?),
            whole: *state == "whole",
        })
    }

    /// Sets it; `false`: the filesystem keeps no extended attributes.
    ///
    /// # Errors
    /// Those of setxattr(2).
    pub fn write(&self, dir: impl AsFd) -> SysResult<bool> {
        let state = if self.whole { "whole" } else { "begun" };
        let value = format!("1 {} {} {state}", self.store, self.checkpoint);
        match sys::setxattr(dir, MARK_NAME, value.as_bytes(), XattrMode::Any) {
            Ok(()) => Ok(true),
            Err(Errno::EOPNOTSUPP | Errno::EPERM) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Removes the mark of a directory that is to be none any more.
    ///
    /// # Errors
    /// Those of removexattr(2).
    pub fn remove(dir: impl AsFd) -> SysResult<()> {
        match sys::removexattr(dir, MARK_NAME) {
            Err(Errno::NO_XATTR | Errno::EOPNOTSUPP) => Ok(()),
            done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_as_written_and_nothing_else_is_one() {
        for text in [
            "",
            "1 s 5",
            "1 s 5 done",
            "2 s 5 whole",
            "1 s x whole",
            "1 s 5 whole ",
        ] {
            assert_eq!(Mark::parse(text.as_bytes()), None, "{text:?}");
        }
        let mark = Mark {
            store: "s".into(),
            checkpoint: CheckpointId(5),
            whole: false,
        };
        assert_eq!(Mark::parse(b"1 s 5 begun"), Some(mark.clone()));
        assert_eq!(
            Mark::parse(b"1 s 5 whole"),
            Some(Mark {
                whole: true,
                ..mark
            })
        );
    }
}
