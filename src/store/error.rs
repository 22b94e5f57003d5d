//! Errors of the store, and the errno of each for a caller of the filesystem.

use std::io;

use super::ids::Address;
use ckptfs_api::Epoch;
use ckptfs_sys::Errno;

/// The result of a store operation.
pub type StoreResult<T> = Result<T, StoreError>;

/// Why a store operation failed. Nothing was changed unless the operation documents otherwise.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A system call failed.
    #[error("cannot {what} {on}")]
    Io {
        /// The attempted action, as a verb: "open", "sync".
        what: &'static str,
        /// Its object, relative to `.ckptfs`.
        on: String,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
    /// The directory has no `.ckptfs`, and none was to be created.
    #[error("there is no store here")]
    NoStore,
    /// A `.ckptfs` exists but is not a store.
    #[error(".ckptfs is not a ckptfs store")]
    NotAStore,
    /// `.ckptfs` or a part of it cannot be trusted.
    #[error("{on} is not trusted: {why}")]
    Untrusted {
        /// The untrusted part.
        on: String,
        /// The reason.
        why: UntrustedReason,
    },
    /// Another process serves this store.
    #[error("the store is in use by another process")]
    Locked,
    /// A newer program wrote this store.
    #[error(
        "the store was made by a newer ckptfs: it has format {found}, and this program knows formats up to {supported}"
    )]
    NewerFormat {
        /// The version in the file `format`.
        found: u32,
        /// The newest version supported.
        supported: u32,
    },
    /// The store uses a feature that this program does not support.
    #[error(
        "the store was made by a newer ckptfs: it has the feature {feature:?}, which this program does not know"
    )]
    UnknownFeature {
        /// Its name in the file `format`.
        feature: String,
    },
    /// An older program created the store and kept the tree where other users could write to it.
    #[error("it was made by an older ckptfs, and other users could have forged what is in it")]
    Forgeable,
    /// The store was opened read-only.
    #[error("the store was opened read-only")]
    ReadOnly,
    /// The record of a branch cannot be parsed.
    #[error("the record of a branch in {file} cannot be parsed")]
    BadBranch {
        /// The name of the file.
        file: String,
    },
    /// A frame of the journal is damaged, other than at a torn end.
    #[error("the journal is damaged at segment {segment}, offset {offset}")]
    JournalDamaged {
        /// Number of the segment file.
        segment: u32,
        /// Byte offset in the segment.
        offset: u32,
    },
    /// A frame is intact, but its record is invalid.
    #[error("the record at {at} cannot be decoded")]
    BadRecord {
        /// Start of the frame.
        at: Address,
        /// The decoding error.
        #[source]
        source: CodecError,
    },
    /// A record cannot be encoded.
    #[error("a record cannot be encoded")]
    Encode(#[from] CodecError),
    /// The records of one append do not fit in one segment.
    #[error("{bytes} bytes of records are more than one append may hold")]
    TooBig {
        /// Their size, including frames.
        bytes: usize,
    },
    /// An earlier write or sync of the journal failed; it rejects all writes until the store is
    /// reopened.
    #[error("the journal has failed, and nothing more can be written to it")]
    Latched,
    /// The index failed.
    #[error("the index failed")]
    Index(#[from] sled::Error),
    /// The index panicked.
    #[error("the index broke down while it was asked to {what}")]
    IndexPanic {
        /// The attempted action, as a verb.
        what: &'static str,
    },
    /// The checksum of an index entry does not match.
    #[error("the index is damaged")]
    IndexDamaged,
    /// The index is closed because a rebuild failed.
    #[error("the index is closed")]
    IndexClosed,
    /// The index cannot be reached by a path: `/proc` is missing, and the caller named no other
    /// location.
    #[error("there is no path by which the index can be opened")]
    NoIndexPath,
    /// The object is not a regular file, and has no data to open.
    #[error("{0} is not a regular file")]
    NotAFile(String),
    /// All serial numbers of an epoch are used up.
    #[error("epoch {} has used up its serial numbers", .0.0)]
    SerialsUsedUp(Epoch),
}

/// Why a part of the store is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UntrustedReason {
    /// It is a symbolic link, or not a directory.
    #[error("it is not a directory")]
    NotADirectory,
    /// It belongs to another user.
    #[error("it belongs to another user")]
    OtherOwner,
    /// It is on another filesystem than the served directory.
    #[error("it is on another filesystem")]
    OtherDevice,
}

/// Why bytes cannot be decoded, or a record cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The bytes end too early.
    #[error("it ends too early")]
    Short,
    /// Bytes are left over.
    #[error("bytes are left over")]
    Trailing,
    /// A number is out of range.
    #[error("a number is out of range")]
    Range,
    /// A kind or tag is unknown.
    #[error("a kind is unknown")]
    Unknown,
    /// A name is empty, too long, `.` or `..`, or contains `/` or NUL.
    #[error("a name is not a name")]
    Name,
    /// Text is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
    /// A list or string exceeds its limit.
    #[error("something is longer than its limit")]
    Limit,
    /// The record treats the store as a part of the tree.
    #[error("it speaks of the store as a part of the tree")]
    Reserved,
    /// A directory is its own ancestor, or the root has a parent.
    #[error("a directory leads to itself")]
    Circle,
    /// The epoch, checkpoint or operation of the record is impossible at its position.
    #[error("it is not of the time at which it stands")]
    OutOfTime,
}

impl StoreError {
    /// Creates a converter for `map_err` from the attempted action and its object.
    pub(super) fn io<E: Into<io::Error>>(
        what: &'static str,
        on: impl Into<String>,
    ) -> impl FnOnce(E) -> StoreError {
        move |error| StoreError::Io {
            what,
            on: on.into(),
            source: error.into(),
        }
    }

    /// Returns the errno for a caller of the filesystem.
    pub fn errno(&self) -> Errno {
        match self {
            StoreError::Io { source, .. } => Errno(source.raw_os_error().unwrap_or(Errno::EIO.0)),
            StoreError::NoStore => Errno::ENOENT,
            StoreError::NotAStore
            | StoreError::NotAFile(_)
            | StoreError::BadBranch { .. }
            | StoreError::Forgeable => Errno::EINVAL,
            StoreError::Untrusted {
                why: UntrustedReason::NotADirectory,
                ..
            } => Errno::ENOTDIR,
            StoreError::Untrusted {
                why: UntrustedReason::OtherOwner,
                ..
            } => Errno::EPERM,
            StoreError::Untrusted {
                why: UntrustedReason::OtherDevice,
                ..
            } => Errno::EXDEV,
            StoreError::Locked => Errno::EBUSY,
            StoreError::NewerFormat { .. } | StoreError::UnknownFeature { .. } => Errno::EOPNOTSUPP,
            StoreError::ReadOnly => Errno::EROFS,
            StoreError::Encode(
                CodecError::Name
                | CodecError::Text
                | CodecError::Range
                | CodecError::Reserved
                | CodecError::Circle
                | CodecError::OutOfTime,
            ) => Errno::EINVAL,
            StoreError::Encode(
                CodecError::Limit | CodecError::Short | CodecError::Trailing | CodecError::Unknown,
            ) => Errno::E2BIG,
            StoreError::TooBig { .. } => Errno::E2BIG,
            StoreError::NoIndexPath => Errno::ENOSYS,
            StoreError::SerialsUsedUp(_) => Errno::EOVERFLOW,
            StoreError::Index(sled::Error::Io(source))
                if source
                    .raw_os_error()
                    .is_some_and(|number| Errno(number).is_no_room()) =>
            {
                Errno::ENOSPC
            }
            StoreError::JournalDamaged { .. }
            | StoreError::BadRecord { .. }
            | StoreError::Latched
            | StoreError::Index(_)
            | StoreError::IndexPanic { .. }
            | StoreError::IndexDamaged
            | StoreError::IndexClosed => Errno::EIO,
        }
    }
}

impl From<StoreError> for Errno {
    fn from(error: StoreError) -> Errno {
        error.errno()
    }
}
