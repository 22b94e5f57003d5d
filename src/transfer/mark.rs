//! The mark of an exported directory: an extended attribute of the directory itself, which moves
//! with it and is not part of the exported tree (docs/adr/0016-export.md).
//!
//! ```text
//! user.ckptfs.export = "1 STORE CHECKPOINT begun|whole"
//! ```
//! `begun` is set before the first change, `whole` once the copy matches the checkpoint.

use std::os::fd::AsFd;

use ckptfs_api::CheckpointId;
use ckptfs_sys::{self as sys, Errno, SysResult, XattrMode};

/// Name of the extended attribute.
pub const MARK_NAME: &[u8] = b"user.ckptfs.export";

/// The mark of an exported directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportMark {
    /// The store of the exported tree.
    pub store: String,
    /// The checkpoint that the copy shows, or was about to show.
    pub checkpoint: CheckpointId,
    /// The copy is complete.
    pub whole: bool,
}

impl ExportMark {
    /// Returns the mark of a directory, `None` if it has no mark.
    ///
    /// # Errors
    /// EINVAL if the value cannot be parsed; those of getxattr(2).
    pub fn read(dir: impl AsFd) -> SysResult<Option<ExportMark>> {
        match sys::getxattr(dir, MARK_NAME) {
            Ok(value) => ExportMark::parse(&value).map(Some).ok_or(Errno::EINVAL),
            Err(Errno::NO_XATTR | Errno::EOPNOTSUPP) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn parse(value: &[u8]) -> Option<ExportMark> {
        let text = std::str::from_utf8(value).ok()?;
        let words: Vec<&str> = text.split(' ').collect();
        let ["1", store, checkpoint, state @ ("begun" | "whole")] = words.as_slice() else {
            return None;
        };
        Some(ExportMark {
            store: (*store).to_owned(),
            checkpoint: CheckpointId(checkpoint.parse().ok()?),
            whole: *state == "whole",
        })
    }

    /// Sets the mark; returns `false` if the filesystem does not support extended attributes.
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

    /// Removes the mark; succeeds if the directory has no mark.
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
            assert_eq!(ExportMark::parse(text.as_bytes()), None, "{text:?}");
        }
        let mark = ExportMark {
            store: "s".into(),
            checkpoint: CheckpointId(5),
            whole: false,
        };
        assert_eq!(ExportMark::parse(b"1 s 5 begun"), Some(mark.clone()));
        assert_eq!(
            ExportMark::parse(b"1 s 5 whole"),
            Some(ExportMark {
                whole: true,
                ..mark
            })
        );
    }
}
