//! Writes a copy of a tree, or updates a copy of another state.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::Sink;
use super::dirs::{DirCache, open_below, remove_tree, split};
use super::inode::InodeCreator;
use ckptfs_api::{ExportData, ExportEntry, Refused, STAGED_PREFIX, TreePath, is_snapdir_inode};
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Access, Errno, Kind, OpenKind, RenameMode, SysResult};

/// Name prefix of files that are about to replace others.
const NEW_PREFIX: &str = STAGED_PREFIX;

/// Below this number of directories, one thread sets their attributes.
const DRESSED_ALONE: usize = 64;
/// Items that a thread claims at a time.
const TAKEN: usize = 16;

/// Runs `each` on all items with several threads. Each thread claims the first unclaimed items; the
/// order is otherwise undefined.
pub fn by_several<T: Sync>(items: &[T], threads: usize, each: &(dyn Fn(&T) + Sync)) {
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let at = next.fetch_add(TAKEN, Ordering::Relaxed);
            match items.get(at..items.len().min(at.saturating_add(TAKEN))) {
                Some(taken) if !taken.is_empty() => taken.iter().for_each(each),
                _ => return,
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // If no thread can be created, this one does all the work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

/// The expected content of the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestState {
    /// Empty.
    Nothing,
    /// A complete copy of another state: received entries replace theirs, the rest stays.
    Copy,
    /// Unknown: received entries are compared and created where they differ; everything else is
    /// removed.
    Anything,
}

/// A staging directory next to a served tree: inodes are created there and then moved into the
/// tree.
pub trait StagingDir: Send + Sync {
    /// The staging directory.
    fn dir(&self) -> &OwnedFd;

    /// Queues the staged inode `name` to replace the one at `path`. The move may happen later.
    ///
    /// # Errors
    /// Those of moving earlier entries into place.
    fn put(&self, name: Vec<u8>, path: &[u8]) -> SysResult<()>;

    /// Moves everything queued into place; returns the paths that failed.
    fn flush(&self) -> Vec<Refused>;
}

/// Writes entries below a directory.
pub struct Writer {
    root: OwnedFd,
    stage: Option<Arc<dyn StagingDir>>,
    before: DestState,
    /// `root` is the root of a mount, which shows its own names.
    is_mount: bool,
    /// See [`Writer::of_compared`].
    is_compared: bool,
    /// Creates inodes and counts failures.
    pub inodes: InodeCreator,
    /// Path of the first name, by inode, for inodes with several names.
    first: Mutex<HashMap<u64, Vec<u8>>>,
    /// Further names and the path each links to.
    links: Mutex<Vec<(Vec<u8>, Vec<u8>)>>,
    dirs: Mutex<Vec<ExportEntry>>,
    /// Paths to keep where everything else is removed.
    seen: Mutex<HashSet<Vec<u8>>>,
    last_new: AtomicU64,
    /// Inodes created, changed or replaced.
    pub made: AtomicU64,
    /// Paths removed.
    pub removed: AtomicU64,
}

impl Writer {
    /// Returns a writer below `root`, which must be open for reading.
    pub fn new(root: OwnedFd, before: DestState) -> Writer {
        Writer {
            root,
            stage: None,
            before,
            is_mount: false,
            is_compared: false,
            inodes: InodeCreator::default(),
            first: Mutex::default(),
            links: Mutex::default(),
            dirs: Mutex::default(),
            seen: Mutex::default(),
            last_new: AtomicU64::new(0),
            made: AtomicU64::new(0),
            removed: AtomicU64::new(0),
        }
    }

    /// As [`Writer::new`], for a source that has compared files with the destination: files sent as
    /// kept are left alone, and files sent with content are created regardless of their attributes.
    pub fn of_compared(root: OwnedFd, before: DestState) -> Writer {
        Writer {
            is_compared: true,
            ..Writer::new(root, before)
        }
    }

    /// As [`Writer::of_compared`], below the mount at `root`: `.snapshots` and `.branches`, which
    /// it may show there, are not removed.
    pub fn of_compared_mount(root: OwnedFd) -> Writer {
        Writer {
            is_mount: true,
            ..Writer::of_compared(root, DestState::Anything)
        }
    }

    /// Updates a copy of another state below the mount at `root`: inodes are created in the staging
    /// directory.
    pub fn staged(root: OwnedFd, stage: Arc<dyn StagingDir>) -> Writer {
        Writer {
            stage: Some(stage),
            ..Writer::new(root, DestState::Copy)
        }
    }

    /// Prepares the destination directory: new inodes must not inherit its ACL or its group.
    ///
    /// # Errors
    /// Those of chmod(2) and removexattr(2).
    pub fn prepare(&self) -> SysResult<()> {
        if self.before == DestState::Nothing {
            for name in [
                b"system.posix_acl_default".as_slice(),
                b"system.posix_acl_access",
            ] {
                match sys::removexattr(&self.root, name) {
                    Ok(()) | Err(Errno::NO_XATTR | Errno::EOPNOTSUPP) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        let mode = sys::stat_fd(&self.root)?.mode;
        // The set-group-id bit would change the group of new inodes; the directory must also be
        // writable.
        let ready = (mode | 0o700) & !0o2000;
        if mode == ready {
            Ok(())
        } else {
            sys::chmod_fd(&self.root, ready)
        }
    }

    /// As [`Writer::finish_by`], with this thread only.
    pub fn finish(&self) -> Vec<Refused> {
        self.finish_by(1)
    }

    /// Completes the copy after all entries: creates further names, removes paths that do not
    /// belong, and sets the attributes of directories. Returns the paths that failed.
    pub fn finish_by(&self, threads: usize) -> Vec<Refused> {
        let mut refused = Vec::new();
        let mut refuse = |path: &[u8], done: SysResult<()>| {
            if let Err(errno) = done {
                refused.push(Refused {
                    path: TreePath(path.to_vec()),
                    errno: errno.0,
                });
            }
        };
        let staged = self
            .stage
            .as_ref()
            .map_or_else(Vec::new, |stage| stage.flush());
        staged
            .into_iter()
            .for_each(|one| refuse(&one.path.0, Err(Errno(one.errno))));
        let mut parent = DirCache::default();
        for (path, to) in std::mem::take(&mut *self.links.lock()) {
            refuse(&path, self.link(&mut parent, &path, &to));
        }
        if self.before == DestState::Anything {
            refuse(b"", self.sweep());
        }
        let mut dirs = std::mem::take(&mut *self.dirs.lock());
        // The sort is stable: a resent directory comes later, and its attributes win.
        dirs.sort_by_key(|dir| std::cmp::Reverse(depth(&dir.path.0)));
        let undressed = Mutex::new(Vec::new());
        // Deepest first: the mode of a directory may deny us access to everything below it.
        for level in dirs.chunk_by(|a, b| depth(&a.path.0) == depth(&b.path.0)) {
            // A resent directory occurs twice; one thread keeps their order.
            let level_threads = if level.len() < DRESSED_ALONE {
                1
            } else {
                threads
            };
            by_several(level, level_threads, &|dir| {
                let given = open_below(&self.root, &dir.path.0, OpenKind::Dir)
                    .and_then(|fd| self.dress(&fd, dir));
                if let Err(errno) = given {
                    undressed.lock().push(Refused {
                        path: dir.path.clone(),
                        errno: errno.0,
                    });
                }
            });
        }
        refused.extend(std::mem::take(&mut *undressed.lock()));
        refused
    }

    /// Sets the attributes of a directory. A directory that already has them is not written to: in
    /// a branch it may be inherited, and a write would copy it up.
    fn dress(&self, fd: &OwnedFd, dir: &ExportEntry) -> SysResult<()> {
        if self.before == DestState::Anything && self.inodes.is_dressed(fd, dir)? {
            return Ok(());
        }
        self.inodes.apply_attrs(fd, dir)
    }

    fn count(&self) {
        self.made.fetch_add(1, Ordering::Relaxed);
    }

    fn new_name(&self) -> Vec<u8> {
        let number = self.last_new.fetch_add(1, Ordering::Relaxed);
        format!("{NEW_PREFIX}{}-{number}", std::process::id()).into_bytes()
    }

    fn dir(&self, entry: ExportEntry) -> SysResult<()> {
        let mut parent = DirCache::default();
        if let Some((above, name)) = split(&entry.path.0) {
            let dir = parent.at(&self.root, above)?;
            match sys::stat_at(dir, name) {
                Err(Errno::ENOENT) if entry.data == ExportData::Kept => return Err(Errno::ENOENT),
                Err(Errno::ENOENT) => {
                    match sys::mkdir_at(dir, name, 0o700) {
                        // Another thread created it for an entry in it.
                        Ok(()) | Err(Errno::EEXIST) => self.count(),
                        Err(errno) => return Err(errno),
                    }
                }
                Ok(stat) if stat.kind == Kind::Dir => {
                    if self.before == DestState::Nothing {
                        self.count();
                    }
                    self.open_up(&sys::open_path_at(dir, name)?)?;
                }
                Ok(_) if self.before == DestState::Anything => {
                    remove_tree(dir, name)?;
                    sys::mkdir_at(dir, name, 0o700)?;
                    self.count();
                }
                Ok(_) => return Err(Errno::ENOTDIR),
                Err(errno) => return Err(errno),
            }
        }
        self.dirs.lock().push(entry);
        Ok(())
    }

    /// Makes a directory writable for its owner; its final mode is set at the end.
    fn open_up(&self, dir: &OwnedFd) -> SysResult<()> {
        let mode = sys::stat_fd(dir)?.mode;
        if mode & 0o700 == 0o700 {
            Ok(())
        } else {
            sys::chmod_fd(dir, mode | 0o700)
        }
    }

    /// Records the first name of an inode with several; `false` if one was recorded before, so that
    /// this name becomes a link.
    fn is_first(&self, entry: &ExportEntry) -> bool {
        let mut first = self.first.lock();
        if first.contains_key(&entry.inode) {
            return false;
        }
        first.insert(entry.inode, entry.path.0.clone());
        true
    }

    fn make(
        &self,
        dir: &OwnedFd,
        name: &[u8],
        entry: &ExportEntry,
        content: Option<&File>,
    ) -> SysResult<()> {
        match self.before {
            DestState::Nothing => self.inodes.make(dir, name, entry, content)?,
            DestState::Anything if self.is_there(dir, name, entry)? => return Ok(()),
            DestState::Copy | DestState::Anything => {
                if self.before == DestState::Anything
                    && sys::stat_at(dir, name).is_ok_and(|stat| stat.kind == Kind::Dir)
                {
                    remove_tree(dir, name)?;
                }
                let new = self.new_name();
                let made = self
                    .inodes
                    .make(dir, &new, entry, content)
                    .and_then(|()| sys::rename_at(dir, &new, dir, name, RenameMode::Replace));
                if made.is_err() {
                    let _ = sys::unlink_at(dir, &new);
                }
                made?;
            }
        }
        self.count();
        Ok(())
    }

    /// Creates an inode in the staging directory and queues it for its path.
    fn make_on(
        &self,
        stage: &dyn StagingDir,
        entry: &ExportEntry,
        content: Option<&File>,
    ) -> SysResult<()> {
        let new = self.new_name();
        let made = self.inodes.make(stage.dir(), &new, entry, content);
        if made.is_err() {
            let _ = sys::unlink_at(stage.dir(), &new);
        }
        made?;
        stage.put(new, &entry.path.0)?;
        self.count();
        Ok(())
    }

    fn is_there(&self, dir: &OwnedFd, name: &[u8], entry: &ExportEntry) -> SysResult<bool> {
        if self.is_compared && entry.kind == Kind::File {
            return Ok(false);
        }
        match self.inodes.is_as_told(dir, name, entry) {
            Err(Errno::ENOENT) => Ok(false),
            same => same,
        }
    }

    /// Links the inode at `to` to `path`, replacing the existing entry.
    fn link(&self, parent: &mut DirCache, path: &[u8], to: &[u8]) -> SysResult<()> {
        let from = open_below(&self.root, to, OpenKind::Path)?;
        let (above, name) = split(path).ok_or(Errno::EINVAL)?;
        let dir = parent.at(&self.root, above)?;
        if self.before == DestState::Nothing {
            sys::link_fd(&from, dir, name)?;
            self.count();
            return Ok(());
        }
        match sys::stat_at(dir, name) {
            Ok(there) if there.ino == sys::stat_fd(&from)?.ino => return Ok(()),
            Ok(there) if there.kind == Kind::Dir => remove_tree(dir, name)?,
            _ => {}
        }
        let new = self.new_name();
        sys::link_fd(&from, dir, &new)?;
        sys::rename_at(dir, &new, dir, name, RenameMode::Replace)?;
        self.count();
        Ok(())
    }

    /// Rewrites an inode that changed while it was copied, at its first name.
    fn again(
        &self,
        parent: &mut DirCache,
        entry: &ExportEntry,
        content: Option<&File>,
    ) -> SysResult<()> {
        let first = self
            .first
            .lock()
            .get(&entry.inode)
            .cloned()
            .filter(|_| entry.is_linked());
        let path = first.unwrap_or_else(|| entry.path.0.clone());
        let (above, name) = split(&path).ok_or(Errno::EINVAL)?;
        let dir = parent.at(&self.root, above)?;
        if entry.kind != Kind::File {
            return self
                .inodes
                .apply_attrs(sys::open_path_at(dir, name)?, entry);
        }
        let fd = match sys::open_path_at(dir, name) {
            Err(Errno::ENOENT) => return self.inodes.make(dir, name, entry, content),
            fd => fd?,
        };
        // A read-only file of an unprivileged user.
        sys::chmod_fd(&fd, 0o600)?;
        self.inodes
            .make_again(&sys::reopen(&fd, Access::WRITE)?, entry, content)
    }

    /// Removes all paths that were not sent.
    fn sweep(&self) -> SysResult<()> {
        let seen = std::mem::take(&mut *self.seen.lock());
        let mut open: Vec<Vec<u8>> = vec![Vec::new()];
        while let Some(path) = open.pop() {
            let dir = open_below(&self.root, &path, OpenKind::Dir)?;
            for entry in sys::list_dir(&dir)? {
                let below = if path.is_empty() {
                    entry.name.clone()
                } else {
                    [&path, b"/".as_slice(), &entry.name].concat()
                };
                if self.is_mount
                    && path.is_empty()
                    && is_snapdir_inode(sys::stat_at(&dir, &entry.name)?.ino)
                {
                    continue;
                }
                if !seen.contains(&below) {
                    self.open_up(&dir)?;
                    remove_tree(&dir, &entry.name)?;
                    self.removed.fetch_add(1, Ordering::Relaxed);
                } else if entry.kind.is_none_or(|kind| kind == Kind::Dir)
                    && sys::stat_at(&dir, &entry.name)?.kind == Kind::Dir
                {
                    open.push(below);
                }
            }
        }
        Ok(())
    }
}

fn depth(path: &[u8]) -> usize {
    if path.is_empty() {
        0
    } else {
        1 + path.iter().filter(|byte| **byte == b'/').count()
    }
}

impl Sink for Writer {
    type Hand = DirCache;

    fn remove(&self, path: &[u8]) -> SysResult<()> {
        self.remove_path(path)
    }

    fn entry(
        &self,
        parent: &mut DirCache,
        entry: ExportEntry,
        file: Option<File>,
    ) -> SysResult<()> {
        self.put(parent, entry, file.as_ref())
    }
}

impl Writer {
    /// Removes a path and everything below it.
    ///
    /// # Errors
    /// Those of the removal.
    pub fn remove_path(&self, path: &[u8]) -> SysResult<()> {
        let (above, name) = split(path).ok_or(Errno::EINVAL)?;
        let dir = match open_below(&self.root, above, OpenKind::Dir) {
            Err(Errno::ENOENT) => return Ok(()),
            dir => dir?,
        };
        self.open_up(&dir)?;
        self.removed.fetch_add(1, Ordering::Relaxed);
        remove_tree(dir.as_fd(), name)
    }

    /// Writes one entry with its content; `parent` caches the directory of the previous entry.
    ///
    /// # Errors
    /// The failure of this entry.
    pub fn put(
        &self,
        parent: &mut DirCache,
        entry: ExportEntry,
        file: Option<&File>,
    ) -> SysResult<()> {
        if self.before == DestState::Anything {
            self.seen.lock().insert(entry.path.0.clone());
        }
        if entry.kind == Kind::Dir {
            return self.dir(entry);
        }
        if let Some(stage) = self.stage.as_deref().filter(|_| entry.again) {
            return self.make_on(stage, &entry, file);
        }
        if entry.again {
            return self.again(parent, &entry, file);
        }
        let (above, name) = split(&entry.path.0).ok_or(Errno::EINVAL)?;
        match &entry.data {
            ExportData::Link(to) => {
                self.links.lock().push((entry.path.0.clone(), to.0.clone()));
                Ok(())
            }
            ExportData::Kept if self.is_compared => Ok(()),
            ExportData::Kept => {
                self.count();
                self.inodes.apply_attrs(
                    sys::open_path_at(parent.at(&self.root, above)?, name)?,
                    &entry,
                )
            }
            _ if entry.is_linked() && !self.is_first(&entry) => {
                let first = self
                    .first
                    .lock()
                    .get(&entry.inode)
                    .cloned()
                    .ok_or(Errno::EIO)?;
                self.links.lock().push((entry.path.0.clone(), first));
                Ok(())
            }
            _ => match self.stage.as_deref() {
                Some(stage) => self.make_on(stage, &entry, file),
                None => self.make(parent.at(&self.root, above)?, name, &entry, file),
            },
        }
    }
}
