//! What can go wrong in the store, and which errno each case is for a caller of the filesystem.

use std::io;

use super::ids::Address;
use super::ids::Epoch;
use crate::sys::Errno;

/// The result of a store operation.
pub type StoreResult<T> = Result<T, StoreError>;

/// Why a store operation failed. Nothing was changed unless the operation says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A system call failed.
    #[error("cannot {what} {on}")]
    Io {
        /// The attempt, as a verb: "open", "sync".
        what: &'static str,
        /// On what, relative to `.ckptfs`.
        on: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// There is no `.ckptfs` in the directory, and none was to be made.
    #[error("there is no store here")]
    NoStore,
    /// There is a `.ckptfs`, and it is not a store of ours.
    #[error(".ckptfs is not a ckptfs store")]
    NotAStore,
    /// `.ckptfs` or a part of it cannot be trusted.
    #[error("{on} is not trusted: {why}")]
    Untrusted {
        /// The part.
        on: String,
        /// What is wrong with it.
        why: Mistrust,
    },
    /// Another process serves this store.
    #[error("the store is in use by another process")]
    Locked,
    /// A later program wrote this store.
    #[error(
        "the store was made by a newer ckptfs: it has format {found}, and this program knows formats up to {supported}"
    )]
    NewerFormat {
        /// The version in the file `format`.
        found: u32,
        /// The newest that is known here.
        supported: u32,
    },
    /// The store uses a feature that this program does not know.
    #[error(
        "the store was made by a newer ckptfs: it has the feature {feature:?}, which this program does not know"
    )]
    UnknownFeature {
        /// Its name in the file `format`.
        feature: String,
    },
    /// An older program made it, and kept the tree where other users could write to it.
    #[error("it was made by an older ckptfs, and other users could have forged what is in it")]
    Forgeable,
    /// The store was opened for reading only.
    #[error("the store was opened read-only")]
    ReadOnly,
    /// What is noted of a branch cannot be understood.
    #[error("the record of a branch in {file} cannot be parsed")]
    BadBranch {
        /// The name of the file.
        file: String,
    },
    /// A frame of the journal is damaged, and it is not the torn end.
    #[error("the journal is damaged at segment {segment}, offset {offset}")]
    JournalDamaged {
        /// Number of the segment file.
        segment: u32,
        /// Byte offset in it.
        offset: u32,
    },
    /// A frame is whole, but what it says has no meaning here.
    #[error("the record at {at} cannot be decoded")]
    BadRecord {
        /// Where the frame begins.
        at: Address,
        /// What is wrong with it.
        #[source]
        source: CodecError,
    },
    /// A record cannot be written.
    #[error("a record cannot be encoded")]
    Encode(#[from] CodecError),
    /// The records of one append do not fit in one segment.
    #[error("{bytes} bytes of records are more than one append may hold")]
    TooBig {
        /// Their size with frames.
        bytes: usize,
    },
    /// A write or sync of the journal failed before; it takes nothing more until the store is
    /// opened again.
    #[error("the journal has failed, and nothing more can be written to it")]
    Latched,
    /// The index failed.
    #[error("the index failed")]
    Index(#[from] sled::Error),
    /// The index panicked.
    #[error("the index broke down while it was asked to {what}")]
    IndexPanic {
        /// The attempt, as a verb.
        what: &'static str,
    },
    /// A key or value of the index is not what was written.
    #[error("the index is damaged")]
    IndexDamaged,
    /// The index is closed: a rebuild failed half-way.
    #[error("the index is closed")]
    IndexClosed,
    /// The index cannot be reached by a path: there is no `/proc`, and the caller named no other
    /// place.
    #[error("there is no path by which the index can be opened")]
    NoIndexPath,
    /// The object is not a regular file, so it has no data to open.
    #[error("{0} is not a regular file")]
    NotAFile(String),
    /// All serial numbers of an epoch are used up.
    #[error("epoch {} has used up its serial numbers", .0.0)]
    SerialsUsedUp(Epoch),
}

/// Why a part of the store is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mistrust {
    /// It is a symbolic link, or not a directory.
    #[error("it is not a directory")]
    NotADirectory,
    /// It belongs to somebody else.
    #[error("it belongs to another user")]
    OtherOwner,
    /// It is on another filesystem than the directory that it is for.
    #[error("it is on another filesystem")]
    OtherDevice,
}

/// Why bytes are no record, or a record cannot become bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The bytes end too early.
    #[error("it ends too early")]
    Short,
    /// Bytes are left over.
    #[error("bytes are left over")]
    Trailing,
    /// A number is out of its range.
    #[error("a number is out of range")]
    Range,
    /// A kind or tag is unknown.
    #[error("a kind is unknown")]
    Unknown,
    /// A name is empty, too long, `.` or `..`, or holds `/` or NUL.
    #[error("a name is not a name")]
    Name,
    /// Text is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
    /// A list or string is longer than its limit.
    #[error("something is longer than its limit")]
    Limit,
    /// It says that the store is a part of the tree.
    #[error("it speaks of the store as a part of the tree")]
    Reserved,
    /// A directory is in itself, or the root in another.
    #[error("a directory leads to itself")]
    Circle,
    /// It is of an epoch, a checkpoint or an operation that it cannot be of where it stands.
    #[error("it is not of the time at which it stands")]
    OutOfTime,
}

impl StoreError {
    /// For `map_err`: what was tried on what.
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

    /// The errno that a caller of the filesystem gets.
    pub fn errno(&self) -> Errno {
        match self {
            StoreError::Io { source, .. } => Errno(source.raw_os_error().unwrap_or(Errno::EIO.0)),
            StoreError::NoStore => Errno::ENOENT,
            StoreError::NotAStore
            | StoreError::NotAFile(_)
            | StoreError::BadBranch { .. }
            | StoreError::Forgeable => Errno::EINVAL,
            StoreError::Untrusted {
                why: Mistrust::NotADirectory,
                ..
            } => Errno::ENOTDIR,
            StoreError::Untrusted {
                why: Mistrust::OtherOwner,
                ..
            } => Errno::EPERM,
            StoreError::Untrusted {
                why: Mistrust::OtherDevice,
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
