//! The directory `.ckptfs`: what is in it, whether it is ours, and who may use it.
//!
//! Everything is opened relative to a descriptor of the backing directory that was taken before the
//! mount; no path is ever used (module `at`).
//!
//! Invariants:
//! - a [`Layout`] from [`Layout::open`] holds the store's lock for as long as it lives: there is
//!   one writer;
//! - `.ckptfs` and its directories are real directories of the caller's own, on the filesystem of
//!   the directory that they are for, so that rename and reflink between the live tree and the
//!   layers work;
//! - `format` is written last, so a store without it is one whose making was cut short, and making
//!   it goes on.
//!
//! Locking: none in the process; everything here is set when it is opened. Between processes:
//! flock(2) on `lock`.
//!
//! ```text
//! .ckptfs/            mode 0700
//!   .gitignore        "*": nothing here is for a repository; only made if there is none
//!   format            text, see below; written when the store is made, and when it gets a feature
//!   lock              flock(2), exclusive; holds the process id of the last that had it, for people, and on which mount of the filesystem
//!   synced            up to when everything was on disk: ns since 1970 (20 digits), blank, 16 digits of BLAKE3 of those 20, line feed
//!   snapdir           module `snapdir`
//!   journal/          module `journal`
//!   layers/           module `layers`
//!   index/            module `index`; a cache, may be deleted while nothing is mounted
//!   branches/         module `branches`, as are dropped/ and the file branch
//!   tree/             module `branch_store`; of a tree that looks through to another: what it has of its own
//!   tmp/              unfinished things; emptied when the store is opened, but for tmp/restore and tmp/links
//!
//! format:
//!   ckptfs store
//!   version 2
//!   features -                                  names with one space between, or - for none
//!   id 00112233445566778899aabbccddeeff         16 random bytes: which store it is
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
use self::format::{read_and_migrate, read_format, write_format};
use self::notes::Synced;
pub use self::notes::{noted_unhashed, noted_unkept};
use super::at;
use super::error::{Mistrust, StoreError, StoreResult};
use super::reserve::Reserve;
use crate::sys;

/// The name of the store in the directory that it is for.
pub const STORE_NAME: &str = ".ckptfs";

/// Begins the names of the extended attributes in which ckptfs notes something: of files in a
/// store, and of a directory that is an export. In a tree that is served there are none: who could
/// set them could forge them.
pub const XATTR_PREFIX: &[u8] = sys::OWN_XATTR_PREFIX;
/// The same, of inodes that can have none of a user's: links, devices, fifos.
const TRUSTED_PREFIX: &[u8] = b"trusted.ckptfs.";

/// Whether an extended attribute is ckptfs's own, and no part of a tree.
pub fn is_own_xattr(name: &[u8]) -> bool {
    name.starts_with(XATTR_PREFIX) || name.starts_with(TRUSTED_PREFIX)
}
/// The directory of a store with what is known of content that is elsewhere.
pub const ORIGIN_NAME: &str = "origin";
/// The directory of a store with what a tree that looks through to another has of its own.
const TREE_NAME: &str = "tree";
/// Where it is below the directory of the store.
pub const TREE_PATH: &str = ".ckptfs/tree";

/// Whether the directory `root` has a store that was made to its end.
pub fn is_made(root: impl AsFd) -> bool {
    let dir = open_trusted(&root, &root, STORE_NAME);
    dir.is_ok_and(|dir| matches!(has_format(&dir), Ok(true)))
}

/// Whether the content of the tree in the directory `root` is elsewhere, as far as it has a store.
pub fn has_origin(root: impl AsFd) -> bool {
    open_trusted(&root, &root, STORE_NAME).is_ok_and(|dir| {
        // Whoever removes what is known of it does not make the rest a whole tree.
        sys::stat_at(&dir, ORIGIN_NAME.as_bytes()).is_ok()
            || read_format(&dir)
                .is_ok_and(|format| format.features.iter().any(|one| one == ORIGIN_NAME))
    })
}

/// Makes the store directory of `root` with what is known of content that is elsewhere, if there is
/// none, and opens that part. The store itself is made by who serves it. Not durable on return.
///
/// # Errors
/// Those of mkdir(2); `Untrusted`: it is somebody else's.
pub fn make_origin(root: impl AsFd) -> StoreResult<OwnedFd> {
    let failed = || StoreError::io("make", ORIGIN_NAME);
    at::make_dir(&root, STORE_NAME).map_err(failed())?;
    let dir = open_trusted(&root, &root, STORE_NAME)?;
    at::make_dir(&dir, ORIGIN_NAME).map_err(failed())?;
    open_trusted(&dir, &dir, ORIGIN_NAME)
}

/// Brings what is known of content that is elsewhere to the disk, whose files were synced.
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

/// What is known of content that is elsewhere.
///
/// # Errors
/// ENOENT: there is none; `Untrusted`: it is somebody else's.
pub fn open_origin(root: impl AsFd) -> StoreResult<OwnedFd> {
    let dir = open_trusted(&root, &root, STORE_NAME)?;
    open_trusted(&dir, &dir, ORIGIN_NAME)
}

/// The file that says to git that nothing here is to be added.
const GITIGNORE_NAME: &str = ".gitignore";
/// Which store it is: 16 random bytes, made once. Frames of the journal are keyed with it, so that
/// no foreign bytes pass for a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreId(pub [u8; 16]);

impl StoreId {
    /// A new one. `RandomState` takes 128 bits from the operating system without a path, which is
    /// all that is needed here.
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

/// An open store directory, locked unless it is read-only.
#[derive(Debug)]
pub struct Layout {
    id: StoreId,
    created: bool,
    same_mount: bool,
    synced: Synced,
    read_only: bool,
    dir: OwnedFd,
    journal: OwnedFd,
    layers: OwnedFd,
    tmp: Option<OwnedFd>,
    index_home: Option<PathBuf>,
    reserve: Arc<Reserve>,
    /// It is the store of a branch, which uses its parent's reserve.
    branch: bool,
    lock: Option<File>,
}

/// In `tmp/`, and never emptied with it: the directory through which a restore moves inodes of the
/// live tree. One that was killed has left some there.
pub const STAGING_NAME: &[u8] = b"restore";
/// The same: links of inodes of a branch that have names which only its base has.
pub const LINKS_NAME: &str = "links";

impl Layout {
    /// Opens the store of a directory, and makes it if there is none and `create` says so: then it
    /// is going to be served. Takes the lock and empties `tmp/`.
    ///
    /// Errors: `NoStore`, `NotAStore`, `Untrusted`, `Locked`, `NewerFormat`, `UnknownFeature`,
    /// `Io`. A store that was made is durable on return.
    pub fn open(root: impl AsFd, create: bool) -> StoreResult<Layout> {
        Layout::open_with_reserve(root, create, None)
    }

    /// As [`Layout::open`]; the reserve is another store's, of the same filesystem, if one is given.
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

    /// Takes back a store that was made for nothing: what it was for could not be begun. To be
    /// called by who holds it, before anything is in it.
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
            // A directory that somebody else made under our name must not so much as get a lock
            // file from us.
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
            || reserve.with_last_room(|| read_and_migrate(&dir), StoreError::errno),
            Ok,
        )?;
        if let Err(error) = hide_from_git(&dir) {
            tracing::debug!(%error, "the store is not hidden from git");
        }
        let synced = Synced::noted(&dir);
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

    /// Opens a store to look at it: takes no lock, writes nothing. What a daemon writes meanwhile
    /// may be seen in part.
    ///
    /// Errors: as [`Layout::open`], but never `Locked`.
    pub fn open_existing_readonly(root: impl AsFd) -> StoreResult<Layout> {
        let root = root.as_fd();
        let dir = open_trusted(root, root, STORE_NAME)?;
        if !has_format(&dir)? {
            check_unfinished(&dir)?;
            return Err(StoreError::NoStore);
        }
        let id = read_format(&dir)?.id;
        let synced = Synced::noted(&dir);
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

    /// Opens a store that nobody serves to look at it, and holds the lock, so that nobody begins
    /// to: writes nothing but that.
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

    /// Names a directory for the index where the system has no `/proc/self/fd` (macOS). It must not
    /// be below the mount. The index is a cache: it may be anywhere, and be lost.
    pub fn with_index_home(mut self, path: Option<PathBuf>) -> Layout {
        self.index_home = path;
        self
    }

    /// Which store it is.
    pub fn id(&self) -> StoreId {
        self.id
    }

    /// What is kept for when the filesystem is full; nothing, if the store is read-only.
    pub fn reserve(&self) -> &Arc<Reserve> {
        &self.reserve
    }

    /// It is the store of a branch: there may be many, so each takes little in advance.
    pub fn is_branch(&self) -> bool {
        self.branch
    }

    /// The file that is locked: it is there, and may be written where nothing new can be made.
    pub fn lock_file(&self) -> StoreResult<&File> {
        self.lock.as_ref().ok_or(StoreError::ReadOnly)
    }

    /// It is the store of a branch that is being made, and is synced all at once:
    /// [`branch_store::sync_branch`].
    pub fn is_unsynced(&self) -> bool {
        self.branch && self.created
    }

    /// This call of `open` made it.
    pub fn created(&self) -> bool {
        self.created
    }

    /// It was opened to look at only.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// The last process that had the store had it on this very mount of the filesystem: nothing
    /// that it wrote can have been lost since.
    pub fn same_mount(&self) -> bool {
        self.same_mount
    }

    /// The directory `.ckptfs`.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// The directory `.ckptfs/journal`.
    pub fn journal_dir(&self) -> BorrowedFd<'_> {
        self.journal.as_fd()
    }

    /// The directory `.ckptfs/layers`.
    pub fn layers_dir(&self) -> BorrowedFd<'_> {
        self.layers.as_fd()
    }

    /// The directory `.ckptfs/tmp`, on the filesystem of the tree: for things to be renamed into
    /// place. `ReadOnly` if opened so.
    pub fn tmp_dir(&self) -> StoreResult<BorrowedFd<'_>> {
        self.tmp
            .as_ref()
            .map(OwnedFd::as_fd)
            .ok_or(StoreError::ReadOnly)
    }

    /// The directory that holds `index`, and a path to it for sled, which can be opened by path
    /// only.
    ///
    /// On Linux the path leads through `/proc/self/fd`: from the descriptor straight down, not
    /// through what is mounted over the tree.
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

/// Opens a directory and checks that it is one, ours, and on the filesystem of `like`.
fn open_trusted(like: impl AsFd, parent: impl AsFd, name: &str) -> StoreResult<OwnedFd> {
    let refuse = |why| StoreError::Untrusted {
        on: name.to_owned(),
        why,
    };
    let dir = at::open_dir(parent, name).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NOTDIR | Errno::LOOP) => refuse(Mistrust::NotADirectory),
        Some(Errno::NOENT) if name == STORE_NAME => StoreError::NoStore,
        Some(Errno::NOENT) => StoreError::NotAStore,
        _ => StoreError::io("open", name)(error),
    })?;
    let stat = rustix::fs::fstat(&dir).map_err(StoreError::io("stat", name))?;
    let wanted = rustix::fs::fstat(like).map_err(StoreError::io("stat", name))?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(refuse(Mistrust::OtherOwner));
    }
    if stat.st_dev != wanted.st_dev {
        return Err(refuse(Mistrust::OtherDevice));
    }
    Ok(dir)
}

fn unmake(root: BorrowedFd<'_>) {
    if let Err(error) = at::remove_tree(root, STORE_NAME.as_bytes()) {
        tracing::warn!(%error, "a store that was made for nothing stays");
    }
}

/// No `git add` takes the history of a directory into its repository.
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

/// Opens a directory of the store, and makes it if it is missing: an empty directory does not
/// outlive every backup.
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

/// A directory without `format` is a store whose making was cut short, if all that is in it is what
/// making it makes.
fn check_unfinished(dir: &OwnedFd) -> StoreResult<()> {
    for name in at::names(dir).map_err(StoreError::io("list", STORE_NAME))? {
        let empty = |name| -> StoreResult<bool> {
            let names =
                at::names(open_trusted(dir, dir, name)?).map_err(StoreError::io("list", name))?;
            Ok(names.is_empty())
        };
        let ours = match name.as_slice() {
            // The last ones: an import is making the tree, it is a branch, or its content is elsewhere.
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

/// How long a lock may be held by a process that is ending.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// Bytes of the lock file that are looked at.
const LOCK_BYTES_MAX: u64 = 256;
/// Between two attempts at it.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// Takes the lock, and says whether the last process that had it had it on this mount of the
/// filesystem.
///
/// Only who is going to `serve` notes that it had it: what a power cut left is told by that at the
/// next mount.
fn take_lock(dir: &OwnedFd, serve: bool) -> StoreResult<(File, bool)> {
    let lock = at::open_file(dir, "lock", OFlags::RDWR | OFlags::CREATE)
        .map_err(StoreError::io("open", "lock"))?;
    let started = Instant::now();
    loop {
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            // A process that ends closes its sockets before its other files, so whoever waited for
            // it there can come too early.
            Err(Errno::WOULDBLOCK) if started.elapsed() < LOCK_WAIT => {
                std::thread::sleep(LOCK_PAUSE)
            }
            Err(Errno::WOULDBLOCK) => return Err(StoreError::Locked),
            Err(error) => return Err(StoreError::io("lock", "lock")(error)),
        }
    }
    // The number is for people; a full disk must not keep anybody from a store that is otherwise
    // fine.
    let (mut last, here) = (String::new(), crate::sys::host::mount_instance(dir));
    let read = (&lock).take(LOCK_BYTES_MAX).read_to_string(&mut last);
    let same = read.is_ok()
        && here
            .as_deref()
            .is_some_and(|here| last.lines().nth(1) == Some(here));
    if !serve {
        return Ok((lock, same));
    }
    let text = format!("{}\n{}\n", std::process::id(), here.unwrap_or_default());
    // In place: where there is no room for it, what was there must stay.
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
    // What is moved here from the tree may be of any project.
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
