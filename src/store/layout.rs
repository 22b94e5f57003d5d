//! The store directory `.ckptfs`: its contents, its trust checks, and its lock.
//!
//! Everything is opened relative to a descriptor of the backing directory that was opened before
//! the mount; no path is used (module `at`).
//!
//! Invariants:
//! - a [`Layout`] from [`Layout::open`] holds the store's lock for its lifetime: a store has one
//!   writer;
//! - `.ckptfs` and its subdirectories are real directories owned by the caller, on the filesystem
//!   of the backing directory, so that rename and reflink between live tree and layers work;
//! - `format` is written last: a store without it was not completed, and its creation is resumed.
//!
//! Locking: none within the process; all state is set at open. Between processes: flock(2) on
//! `lock`.
//!
//! ```text
//! .ckptfs/            mode 0700
//!   .gitignore        "*": keeps the store out of git repositories; only created if missing
//!   format            text, see below; written when the store is created, and when it gets a feature
//!   lock              flock(2), exclusive; contains the process id of the last holder, for people, and its mount of the filesystem
//!   synced            time up to which everything was on disk: ns since 1970 (20 digits), space, 16 digits of BLAKE3 of those 20, line feed
//!   snapdir           module `snapdir`
//!   journal/          module `journal`
//!   layers/           module `layers`
//!   index/            module `index`; a cache, may be deleted while nothing is mounted
//!   branches/         module `branches`, as are dropped/ and the file branch
//!   tree/             module `branch_store`; the own part of a tree that looks through to another
//!   tmp/              temporary files; emptied when the store is opened, except tmp/restore and tmp/links
//!
//! format:
//!   ckptfs store
//!   version 1
//!   features -                                  names separated by one space, or - if there are no features
//!   id 00112233445566778899aabbccddeeff         16 random bytes that identify the store
//! ```

use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

pub mod branch_store;
pub mod branches;
mod format;
pub mod merges;
mod notes;
pub mod snapdir;

#[cfg(test)]
pub(super) use self::format::parse_format;
use self::format::{read_and_add_features, read_format, write_format};
use self::notes::SyncedTime;
pub use self::notes::{noted_unhashed, noted_unkept};
use super::at;
use super::error::{StoreError, StoreResult, UntrustedReason};
use super::reserve::Reserve;
pub use ckptfs_api::STORE_NAME;
use ckptfs_sys as sys;

/// Prefix of the extended attributes reserved for ckptfs, on files of a store and on the directory
/// of an export. A served tree shows none of them, because a user who could set them could forge
/// them.
pub const XATTR_PREFIX: &[u8] = sys::OWN_XATTR_PREFIX;
/// The directory of a store that describes remote content.
pub const ORIGIN_NAME: &str = "origin";
/// The directory of a store with the own part of a tree that looks through to another.
const TREE_NAME: &str = "tree";
/// Its path below the backing directory.
pub const TREE_PATH: &str = ".ckptfs/tree";

/// Reports whether the directory `root` has a completed store.
pub fn is_made(root: impl AsFd) -> bool {
    let dir = open_trusted(&root, &root, STORE_NAME);
    dir.is_ok_and(|dir| matches!(has_format(&dir), Ok(true)))
}

/// Reports whether the store of the directory `root` shows that content of its tree is remote.
pub fn has_origin(root: impl AsFd) -> bool {
    open_trusted(&root, &root, STORE_NAME).is_ok_and(|dir| {
        // Removing the description does not make the remaining tree complete.
        sys::stat_at(&dir, ORIGIN_NAME.as_bytes()).is_ok()
            || read_format(&dir)
                .is_ok_and(|format| format.features.iter().any(|one| one == ORIGIN_NAME))
    })
}

/// Creates the store directory of `root` and its description of remote content if missing, and
/// opens the latter. The rest of the store is created when it is served. Not durable on return.
///
/// # Errors
/// Those of mkdir(2); `Untrusted`: it belongs to another user.
pub fn make_origin(root: impl AsFd) -> StoreResult<OwnedFd> {
    let failed = || StoreError::io("make", ORIGIN_NAME);
    at::make_dir(&root, STORE_NAME).map_err(failed())?;
    let dir = open_trusted(&root, &root, STORE_NAME)?;
    at::make_dir(&dir, ORIGIN_NAME).map_err(failed())?;
    open_trusted(&dir, &dir, ORIGIN_NAME)
}

/// Syncs the directory that describes remote content; its files must be synced already.
///
/// # Errors
/// Those of fsync(2).
pub fn sync_origin(root: impl AsFd) -> StoreResult<()> {
    let failed = || StoreError::io("sync", ORIGIN_NAME);
    let dir = open_trusted(&root, &root, STORE_NAME)?;
    at::sync_name(&dir, ORIGIN_NAME.as_bytes())
        .and_then(|()| at::sync_dir(&dir))
        .and_then(|()| at::sync_in_order(&root))
        .map_err(failed())
}

/// Opens the directory that describes remote content.
///
/// # Errors
/// ENOENT: it does not exist; `Untrusted`: it belongs to another user.
pub fn open_origin(root: impl AsFd) -> StoreResult<OwnedFd> {
    let dir = open_trusted(&root, &root, STORE_NAME)?;
    open_trusted(&dir, &dir, ORIGIN_NAME)
}

/// Keeps the store out of git repositories.
const GITIGNORE_NAME: &str = ".gitignore";
/// Identifies a store: 16 random bytes. They key the frames of the journal, so that no foreign
/// bytes pass for a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreId(pub [u8; 16]);

impl StoreId {
    /// Returns a new id. `RandomState` gets 128 random bits from the operating system without
    /// opening a path.
    pub fn random() -> StoreId {
        let state = RandomState::new();
        let (low, high) = (state.hash_one(0u8), state.hash_one(1u8));
        StoreId((u128::from(high) << 64 | u128::from(low)).to_le_bytes())
    }

    fn parse(hex: &str) -> Option<StoreId> {
        let plain = hex.len() == 32 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        plain
            .then(|| u128::from_str_radix(hex, 16).ok())
            .flatten()
            .map(|n| StoreId(n.to_be_bytes()))
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store {self}")
    }
}

/// An open store directory, locked unless read-only.
#[derive(Debug)]
pub struct Layout {
    id: StoreId,
    created: bool,
    same_mount: bool,
    synced: SyncedTime,
    read_only: bool,
    dir: OwnedFd,
    journal: OwnedFd,
    layers: OwnedFd,
    tmp: Option<OwnedFd>,
    index_home: Option<PathBuf>,
    reserve: Arc<Reserve>,
    /// The store of a branch, which uses its parent's reserve.
    branch: bool,
    lock: Option<File>,
}

/// A directory in `tmp/` that is never emptied: a restore moves inodes of the live tree through it,
/// and an interrupted one leaves some there.
pub const STAGING_NAME: &[u8] = b"restore";
/// Also never emptied: links of a branch's inodes whose remaining names exist only in its base.
pub const LINKS_NAME: &str = "links";

impl Layout {
    /// Opens the store of a directory for serving it; with `create`, creates a missing store.
    /// Acquires the lock and empties `tmp/`. A created store is durable on return.
    ///
    /// Errors: `NoStore`, `NotAStore`, `Untrusted`, `Locked`, `NewerFormat`, `UnknownFeature`,
    /// `Io`.
    pub fn open(root: impl AsFd, create: bool) -> StoreResult<Layout> {
        Layout::open_with_reserve(root, create, None)
    }

    /// As [`Layout::open`]; uses `lent`, the reserve of another store on the same filesystem, if
    /// given.
    pub fn open_with_reserve(
        root: impl AsFd,
        create: bool,
        lent: Option<Arc<Reserve>>,
    ) -> StoreResult<Layout> {
        let root = root.as_fd();
        let fresh =
            create && at::make_dir(root, STORE_NAME).map_err(StoreError::io("make", STORE_NAME))?;
        let opened = Layout::open_in(root, create, fresh, lent);
        if fresh
            && opened
                .as_ref()
                .is_err_and(|error| !matches!(error, StoreError::Locked))
        {
            unmake(root);
        }
        opened
    }

    /// Removes a store that this call of `open` created, if its purpose failed before it began. The
    /// caller holds it, and it must be empty.
    pub fn unmake(&self, root: impl AsFd) {
        if self.created {
            unmake(root.as_fd());
        }
    }

    fn open_in(
        root: BorrowedFd<'_>,
        create: bool,
        fresh: bool,
        lent: Option<Arc<Reserve>>,
    ) -> StoreResult<Layout> {
        if fresh {
            at::sync_dir(root).map_err(StoreError::io("sync", "the directory"))?;
        }
        let dir = open_trusted(root, root, STORE_NAME)?;
        if !has_format(&dir)? {
            // A foreign directory with our name must not be modified, not even by a lock file.
            check_unfinished(&dir)?;
            if !create {
                return Err(StoreError::NoStore);
            }
        }
        let (lock, same_mount) = take_lock(&dir, create)?;
        rustix::fs::fchmod(&dir, Mode::RWXU)
            .map_err(StoreError::io("set the mode of", STORE_NAME))?;
        let branch = lent.is_some();
        let made = if has_format(&dir)? {
            None
        } else {
            Some(make(&dir, branch)?)
        };
        let reserve = lent.unwrap_or_else(|| Arc::new(Reserve::open(&dir)));
        let own_dir = |name| reserve.with_last_room(|| own_dir(&dir, name), StoreError::errno);
        let (journal, layers, tmp) = (own_dir("journal")?, own_dir("layers")?, own_dir("tmp")?);
        let id = made.map_or_else(
            || reserve.with_last_room(|| read_and_add_features(&dir), StoreError::errno),
            Ok,
        )?;
        if let Err(error) = hide_from_git(&dir) {
            tracing::debug!(%error, "the store is not hidden from git");
        }
        let synced = SyncedTime::noted(&dir);
        for name in at::names(&tmp)
            .map_err(StoreError::io("list", "tmp"))?
            .into_iter()
            .filter(|name| name != STAGING_NAME && name != LINKS_NAME.as_bytes())
        {
            reserve.with_last_room(
                || at::remove_tree(&tmp, &name).map_err(StoreError::io("empty", "tmp")),
                StoreError::errno,
            )?;
        }
        Ok(Layout {
            id,
            created: made.is_some(),
            same_mount: same_mount || made.is_some(),
            synced,
            read_only: false,
            dir,
            journal,
            layers,
            tmp: Some(tmp),
            index_home: None,
            reserve,
            branch,
            lock: Some(lock),
        })
    }

    /// Opens a store for reading, without the lock; writes nothing. Concurrent writes of a daemon
    /// may be seen in part.
    ///
    /// Errors: as [`Layout::open`], except `Locked`.
    pub fn open_existing_readonly(root: impl AsFd) -> StoreResult<Layout> {
        let root = root.as_fd();
        let dir = open_trusted(root, root, STORE_NAME)?;
        if !has_format(&dir)? {
            check_unfinished(&dir)?;
            return Err(StoreError::NoStore);
        }
        let id = read_format(&dir)?.id;
        let synced = SyncedTime::noted(&dir);
        let (journal, layers) = (
            open_trusted(&dir, &dir, "journal")?,
            open_trusted(&dir, &dir, "layers")?,
        );
        let branch = branch_store::marked(&dir).is_ok_and(|mark| mark.is_some());
        Ok(Layout {
            id,
            created: false,
            same_mount: true,
            synced,
            read_only: true,
            dir,
            journal,
            layers,
            tmp: None,
            index_home: None,
            reserve: Arc::default(),
            branch,
            lock: None,
        })
    }

    /// Opens an unserved store for checking: writes nothing, but holds the lock so that no daemon
    /// starts.
    ///
    /// Errors: as [`Layout::open`].
    pub fn open_to_check(root: impl AsFd) -> StoreResult<Layout> {
        let layout = Layout::open_existing_readonly(root)?;
        let (lock, _) = take_lock(&layout.dir, false)?;
        Ok(Layout {
            lock: Some(lock),
            ..layout
        })
    }

    /// Sets a directory for the index, for systems without `/proc/self/fd` (macOS). It must not be
    /// below the mount. The index is a cache and may be lost.
    pub fn with_index_home(mut self, path: Option<PathBuf>) -> Layout {
        self.index_home = path;
        self
    }

    /// Returns the id of the store.
    pub fn id(&self) -> StoreId {
        self.id
    }

    /// Returns the space reserved for a full filesystem; empty if the store is read-only.
    pub fn reserve(&self) -> &Arc<Reserve> {
        &self.reserve
    }

    /// Reports whether this is the store of a branch. Branches may be many, so each preallocates
    /// little.
    pub fn is_branch(&self) -> bool {
        self.branch
    }

    /// Returns the locked file, which exists and is writable even when no file can be created.
    pub fn lock_file(&self) -> StoreResult<&File> {
        self.lock.as_ref().ok_or(StoreError::ReadOnly)
    }

    /// Reports whether this is the store of a branch under construction, which is synced as a whole
    /// by [`branch_store::sync_branch`].
    pub fn is_unsynced(&self) -> bool {
        self.branch && self.created
    }

    /// Reports whether this call of `open` created the store.
    pub fn created(&self) -> bool {
        self.created
    }

    /// Reports whether the store was opened for reading only.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Reports whether the previous holder of the lock used this very mount of the filesystem, so
    /// that none of its writes can be lost.
    pub fn same_mount(&self) -> bool {
        self.same_mount
    }

    /// Returns the directory `.ckptfs`.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Returns the directory `.ckptfs/journal`.
    pub fn journal_dir(&self) -> BorrowedFd<'_> {
        self.journal.as_fd()
    }

    /// Returns the directory `.ckptfs/layers`.
    pub fn layers_dir(&self) -> BorrowedFd<'_> {
        self.layers.as_fd()
    }

    /// Returns the directory `.ckptfs/tmp`, on the filesystem of the tree, for files to be renamed
    /// into place; `ReadOnly` if the store was opened read-only.
    pub fn tmp_dir(&self) -> StoreResult<BorrowedFd<'_>> {
        self.tmp
            .as_ref()
            .map(OwnedFd::as_fd)
            .ok_or(StoreError::ReadOnly)
    }

    /// Returns the directory that contains `index`, and a path to it for sled, which only opens
    /// paths.
    ///
    /// On Linux the path uses `/proc/self/fd`: it resolves from the descriptor, below anything
    /// mounted over the tree.
    pub(super) fn index_home(&self) -> StoreResult<(OwnedFd, PathBuf)> {
        let failed = || StoreError::io("open the place of", "index");
        if let Some(path) = &self.index_home {
            let dir = File::open(path).map_err(failed())?;
            return Ok((dir.into(), path.clone()));
        }
        if cfg!(not(target_os = "linux")) {
            return Err(StoreError::NoIndexPath);
        }
        let dir = self.dir.try_clone().map_err(failed())?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
        match path.metadata() {
            Ok(_) => Ok((dir, path)),
            Err(_) => Err(StoreError::NoIndexPath),
        }
    }
}

/// Opens a directory and checks its type, its owner, and that it is on the filesystem of `like`.
fn open_trusted(like: impl AsFd, parent: impl AsFd, name: &str) -> StoreResult<OwnedFd> {
    let refuse = |why| StoreError::Untrusted {
        on: name.to_owned(),
        why,
    };
    let dir = at::open_dir(parent, name).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NOTDIR | Errno::LOOP) => refuse(UntrustedReason::NotADirectory),
        Some(Errno::NOENT) if name == STORE_NAME => StoreError::NoStore,
        Some(Errno::NOENT) => StoreError::NotAStore,
        _ => StoreError::io("open", name)(error),
    })?;
    let stat = rustix::fs::fstat(&dir).map_err(StoreError::io("stat", name))?;
    let wanted = rustix::fs::fstat(like).map_err(StoreError::io("stat", name))?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(refuse(UntrustedReason::OtherOwner));
    }
    if stat.st_dev != wanted.st_dev {
        return Err(refuse(UntrustedReason::OtherDevice));
    }
    Ok(dir)
}

fn unmake(root: BorrowedFd<'_>) {
    if let Err(error) = at::remove_tree(root, STORE_NAME.as_bytes()) {
        tracing::warn!(%error, "a store that was made for nothing stays");
    }
}

/// Prevents `git add` from adding the store to a repository.
fn hide_from_git(dir: &OwnedFd) -> io::Result<()> {
    match at::open_file(
        dir,
        GITIGNORE_NAME,
        OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
    ) {
        Ok(file) => file.write_all_at(b"*\n", 0),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Opens a subdirectory of the store, creating it if missing: some backups omit empty directories.
fn own_dir(dir: &OwnedFd, name: &str) -> StoreResult<OwnedFd> {
    at::make_dir(dir, name).map_err(StoreError::io("make", name))?;
    open_trusted(dir, dir, name)
}

fn has_format(dir: &OwnedFd) -> StoreResult<bool> {
    match rustix::fs::statat(dir, "format", rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(StoreError::io("stat", "format")(error)),
    }
}

/// Checks that a directory without `format` is an incomplete store: it must contain only files of
/// store creation.
fn check_unfinished(dir: &OwnedFd) -> StoreResult<()> {
    for name in at::names(dir).map_err(StoreError::io("list", STORE_NAME))? {
        let empty = |name| -> StoreResult<bool> {
            let names =
                at::names(open_trusted(dir, dir, name)?).map_err(StoreError::io("list", name))?;
            Ok(names.is_empty())
        };
        let ours = match name.as_slice() {
            // The last three belong to an import, a branch, and remote content.
            b"lock" | b"format.new" | b"importing" | b"importing.new" | b"branch" | b"origin" => {
                true
            }
            b"tree" => branch_store::has_nothing(dir)?,
            b"journal" => empty("journal")?,
            b"layers" => empty("layers")?,
            b"tmp" => empty("tmp")?,
            _ => false,
        };
        if !ours {
            return Err(StoreError::NotAStore);
        }
    }
    Ok(())
}

/// How long to wait for a lock whose holder may be exiting.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// Read limit of the lock file, in bytes.
const LOCK_BYTES_MAX: u64 = 256;
/// Pause between attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// Acquires the lock. Reports whether its previous holder used this mount of the filesystem.
///
/// Only with `serve` is the holder recorded; the next mount uses this to detect losses by a power
/// cut.
fn take_lock(dir: &OwnedFd, serve: bool) -> StoreResult<(File, bool)> {
    let lock = at::open_file(dir, "lock", OFlags::RDWR | OFlags::CREATE)
        .map_err(StoreError::io("open", "lock"))?;
    let started = Instant::now();
    loop {
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            // An exiting process closes its sockets before its other files, so a client that waited
            // for that may arrive too early.
            Err(Errno::WOULDBLOCK) if started.elapsed() < LOCK_WAIT => {
                std::thread::sleep(LOCK_PAUSE)
            }
            Err(Errno::WOULDBLOCK) => return Err(StoreError::Locked),
            Err(error) => return Err(StoreError::io("lock", "lock")(error)),
        }
    }
    // The process id is for people; a full disk must not prevent opening an intact store.
    let (mut last, here) = (String::new(), ckptfs_sys::host::mount_instance(dir));
    let read = (&lock).take(LOCK_BYTES_MAX).read_to_string(&mut last);
    let same = read.is_ok()
        && here
            .as_deref()
            .is_some_and(|here| last.lines().nth(1) == Some(here));
    if !serve {
        return Ok((lock, same));
    }
    let text = format!("{}\n{}\n", std::process::id(), here.unwrap_or_default());
    // In place, so that the old text remains if the disk is full.
    let noted = lock
        .write_all_at(text.as_bytes(), 0)
        .and_then(|()| lock.set_len(text.len() as u64));
    if let Err(error) = noted {
        tracing::debug!(%error, "the process id could not be written to the lock file");
    }
    Ok((lock, same))
}

fn make(dir: &OwnedFd, branch: bool) -> StoreResult<StoreId> {
    if branch || sys::stat_at(dir, ORIGIN_NAME.as_bytes()).is_ok() {
        at::make_dir(dir, TREE_NAME).map_err(StoreError::io("make", TREE_NAME))?;
    }
    // Inodes moved here from the tree may belong to any project (quota).
    sys::give_no_project(dir);
    for name in ["journal", "layers", "tmp"] {
        at::make_dir(dir, name).map_err(StoreError::io("make", name))?;
    }
    let id = branch_store::marked(dir)?.unwrap_or_else(StoreId::random);
    write_format(dir, id, !branch)?;
    Ok(id)
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
