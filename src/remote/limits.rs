//! Limits on the resources of one operation that reads a server, a repository or an image
//! (docs/cli.md, "Limits of remotes").
//!
//! A server can send any file without the password, and a user with the password can store
//! anything. A few compressed bytes expand to gigabytes, and a directory that is in several places
//! of a snapshot is stored once. Each kind of object therefore has a limit, checked before it is
//! read and before it is decompressed. Most limits are fractions of one amount of memory,
//! [`MEMORY`], or a larger one from `CKPTFS_REMOTE_MEMORY`.

use std::os::fd::AsFd;

use rustic_core::FileType;

use ckptfs_api::{Code, VerbError, VerbResult, hinted};
use ckptfs_core::engine::settings;
use ckptfs_sys::{self as sys, FsInfo};

/// The amount of memory that limits are fractions of.
const MEMORY: u64 = 1 << 30;
/// Environment variable with a larger amount: bytes, or a number with `K`, `M`, `G` or `T`.
const MEMORY_VARIABLE: &str = "CKPTFS_REMOTE_MEMORY";

/// Key files of a repository, each of which is tried with the password.
pub const KEY_FILES_MAX: usize = 64;
/// The work to derive the keys of all key files of a repository, `N * r * p` of scrypt: about 20 s.
/// rustic creates keys of 2^20, restic of at most 2^22.
pub const KEY_WORK_MAX: u64 = 1 << 26;
/// Depth of directories.
pub const DEPTH_MAX: usize = 4096;
/// Depth of directories in an image, whose paths have at most 4096 bytes.
pub const IMAGE_DEPTH_MAX: u64 = 1024;
/// Memory for a node of a tree in addition to its text.
pub const NODE_BYTES: u64 = 450;
/// Memory for an inode or a name of an image in addition to its bytes.
pub const IMAGE_ENTRY_BYTES: u64 = 300;
/// Encryption adds an initialization vector and a message authentication code.
pub const CRYPT_BYTES: u64 = 32;
/// Maximum size of an object in a list of a REST server, in bytes.
const LISTED_BYTES: usize = 128;
/// The fraction of a filesystem that stays free, and its maximum in bytes.
const FREE_SHARE: u64 = 64;
const FREE_BYTES_MAX: u64 = 1 << 30;

/// The limits of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    memory: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::new()
    }
}

impl Limits {
    /// Returns the limits of this process.
    pub fn new() -> Limits {
        let set = std::env::var(MEMORY_VARIABLE).ok();
        Limits::of(set.as_deref().and_then(settings::bytes).unwrap_or(MEMORY))
    }

    /// Returns the limits for an amount of memory; never below the defaults.
    fn of(memory: u64) -> Limits {
        Limits {
            memory: memory.max(MEMORY),
        }
    }

    /// Memory to derive a key from the password: `128 * r * (N + p)` of scrypt.
    pub fn key_memory(self) -> u64 {
        self.memory / 4
    }

    /// Number of objects of a kind in a repository.
    pub fn objects(self, kind: FileType) -> usize {
        let share = |part: u64| usize::try_from(self.memory / part).unwrap_or(usize::MAX);
        match kind {
            FileType::Config => 1,
            FileType::Key => KEY_FILES_MAX,
            FileType::Snapshot => share(4 << 10),
            FileType::Index => share(8 << 10),
            FileType::Pack => share(512),
        }
    }

    /// Size of the list of a kind of objects, in bytes.
    pub fn list(self, kind: FileType) -> usize {
        let objects = self.objects(kind).saturating_add(1);
        objects.saturating_mul(LISTED_BYTES)
    }

    /// Size of a whole object as stored, in bytes.
    pub fn stored(self, kind: FileType) -> u64 {
        match kind {
            FileType::Config | FileType::Key => 64 << 10,
            FileType::Snapshot => self.memory / 256,
            FileType::Index => self.memory / 32,
            FileType::Pack => self.memory / 2,
        }
    }

    /// Size of a whole object after decompression, in bytes.
    pub fn unpacked(self, kind: FileType) -> u64 {
        match kind {
            FileType::Config | FileType::Key => 1 << 20,
            FileType::Snapshot => self.memory / 256,
            FileType::Index => self.memory / 16,
            FileType::Pack => self.memory / 2,
        }
    }

    /// Total size after decompression of all objects of a kind that are read for one list, in
    /// bytes.
    pub fn unpacked_all(self, kind: FileType) -> u64 {
        match kind {
            FileType::Snapshot => self.memory / 16,
            FileType::Config | FileType::Key | FileType::Index | FileType::Pack => self.memory,
        }
    }

    /// Memory for a directory of a snapshot: its text, and [`NODE_BYTES`] for each node.
    pub fn tree(self) -> u64 {
        self.memory / 2
    }

    /// Size of a blob, stored and decompressed, in bytes.
    pub fn blob(self) -> u64 {
        self.memory / 64
    }

    /// Size of one part of a pack, in bytes.
    pub fn part(self) -> u64 {
        self.tree() + CRYPT_BYTES
    }

    /// Number of entries of a snapshot or an image.
    pub fn entries(self) -> u64 {
        self.memory / 64
    }

    /// Memory for the names and attributes of a snapshot or an image held at the same time.
    pub fn names(self) -> u64 {
        self.memory
    }

    /// Memory of a process in which the library decompresses content itself, to check or repack it.
    /// The process is aborted above it.
    pub fn process(self) -> u64 {
        self.memory.saturating_mul(4)
    }

    /// Memory for directories that are read at the same time.
    pub fn open(self) -> u64 {
        self.memory / 2
    }
}

/// The hint of an exceeded limit.
pub const RAISE: &str = "if you trust its source, raise the limits: CKPTFS_REMOTE_MEMORY=4G (the default is 1G); \
     ckptfs verify --remote looks for damage";

/// Returns the error for an exceeded limit.
pub fn exceeded(what: impl Into<String>) -> VerbError {
    hinted(Code::RemoteFailed, what, RAISE)
}

/// Compares a number with a limit. `what`: as in "the snapshot has more than 5 `what`".
///
/// # Errors
/// `remote-failed`.
pub fn check(whose: &str, number: u64, most: u64, what: &str) -> VerbResult<()> {
    match number <= most {
        true => Ok(()),
        false => Err(exceeded(format!("{whose} has more than {most} {what}"))),
    }
}

/// Returns whether a filesystem has space for more bytes and inodes. A 64th of it, at most 1 GiB,
/// stays free.
pub fn has_room(dir: impl AsFd, bytes: u64, inodes: u64) -> bool {
    // A filesystem without statistics is assumed to have space.
    sys::statfs_fd(dir).map_or(true, |info| fits(&info, bytes, inodes))
}

fn fits(info: &FsInfo, bytes: u64, inodes: u64) -> bool {
    let size = u64::from(info.frsize);
    let all = info.blocks.saturating_mul(size);
    let free = info.bavail.saturating_mul(size);
    let stays = (all / FREE_SHARE).min(FREE_BYTES_MAX);
    let has_inodes = info.files == 0 || inodes <= info.ffree;
    bytes.saturating_add(stays) <= free && has_inodes
}

/// Returns the error of [`has_room`].
pub fn no_room() -> VerbError {
    hinted(
        Code::RemoteFailed,
        "the filesystem is almost full: an operation on a remote leaves a 64th of it free, at most 1 GiB",
        "free space there, then run the same command again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_raised_and_never_lowered() {
        assert_eq!(Limits::of(1).blob(), Limits::of(MEMORY).blob());
        assert_eq!(Limits::of(4 << 30).blob(), 64 << 20);
        assert!(RAISE.contains(MEMORY_VARIABLE));
    }

    #[test]
    fn a_limit_is_the_largest_number_that_is_allowed() {
        let most = Limits::of(MEMORY).entries();
        assert_eq!(most, 16 << 20);
        assert!(check("it", most, most, "entries").is_ok());
        let error = check("it", most + 1, most, "entries");
        let said = error.expect_err("one more").message;
        assert_eq!(said, "it has more than 16777216 entries");
    }

    #[test]
    fn some_of_a_filesystem_stays_free() {
        let info = |bavail| FsInfo {
            blocks: 6400,
            bavail,
            bfree: bavail,
            frsize: 4096,
            files: 10,
            ffree: 3,
            bsize: 4096,
            namelen: 255,
            fs_type: 0,
        };
        assert!(fits(&info(110), 10 * 4096, 3));
        assert!(!fits(&info(110), 10 * 4096 + 1, 3));
        assert!(!fits(&info(110), 0, 4));
    }
}
