//! Makes a copy of a tree, or makes a copy of another state the copy of this one.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::Sink;
use super::inode::Inodes;
use super::place::{Parent, open_below, remove_tree, split};
use crate::engine::api::TreePath;
use crate::engine::export::parts::{ExportData, ExportEntry, Refused};
use crate::engine::import::{STAGED_PREFIX, is_of_no_tree};
use crate::sys::lock::Mutex;
use crate::sys::{self, Errno, Kind, Open, OpenKind, RenameMode, SysResult};

/// Begins the names of files that are about to replace others.
const NEW_PREFIX: &str = STAGED_PREFIX;

/// As many directories are given their attributes by one thread.
const DRESSED_ALONE: usize = 64;
/// Items that a thread takes at once.
const TAKEN: usize = 16;

/// Does something with each of these, by several threads, in no order but that each thread begins
/// with the first that is left.
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
            // Without another thread this one does it all.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

/// What is at the destination before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Nothing.
    Nothing,
    /// A whole copy of another state: what is told is made in its place, the rest stays.
    Copy,
    /// Anything: what is told is compared and made where it differs, and the rest goes.
    Anything,
}

/// A place beside a tree that is served, where inodes are made before they are put into it.
pub trait Stage: Send + Sync {
    /// The place.
    fn dir(&self) -> &OwnedFd;

    /// What was made there is to be put at a path, in the place of what is there; it may happen
    /// later.
    ///
    /// # Errors
    /// Those of putting there what was to be put before.
    fn put(&self, name: Vec<u8>, path: &[u8]) -> SysResult<()>;

    /// Everything is to be put in its place now; what could not be.
    fn flush(&self) -> Vec<Refused>;
}

/// Writes below a directory.
pub struct Writer {
    root: OwnedFd,
    stage: Option<Box<dyn Stage>>,
    before: Before,
    /// `root` is that of a mount, which shows names of its own.
    is_mount: bool,
    /// See [`Writer::of_compared`].
    is_compared: bool,
    /// How inodes are made.
    pub inodes: Inodes,
    /// Where the first name of an inode with several is.
    first: Mutex<HashMap<u64, Vec<u8>>>,
    /// Further names, and what they are names of.
    links: Mutex<Vec<(Vec<u8>, Vec<u8>)>>,
    dirs: Mutex<Vec<ExportEntry>>,
    /// What belongs there, where anything else is to go.
    seen: Mutex<HashSet<Vec<u8>>>,
    last_new: AtomicU64,
    /// Inodes that were made, and that were changed or removed.
    pub made: AtomicU64,
    /// Paths that were removed.
    pub removed: AtomicU64,
}

impl Writer {
    /// Writes below `root`, which must be open for reading.
    pub fn new(root: OwnedFd, before: Before) -> Writer {
        Writer {
            root,
            stage: None,
            before,
            is_mount: false,
            is_compared: false,
            inodes: Inodes::default(),
            first: Mutex::default(),
            links: Mutex::default(),
            dirs: Mutex::default(),
            seen: Mutex::default(),
            last_new: AtomicU64::new(0),
            made: AtomicU64::new(0),
            removed: AtomicU64::new(0),
        }
    }

    /// As [`Writer::new`], where whoever tells the entries has compared files with what is there:
    /// those that are told as kept are left alone, and those that are told with content are made,
    /// whatever their attributes say.
    pub fn of_compared(root: OwnedFd, before: Before) -> Writer {
        Writer {
            is_compared: true,
            ..Writer::new(root, before)
        }
    }

    /// As [`Writer::of_compared`], below the mount at `root`: `.snapshots` and `.branches`, which it may
    /// show there, are not what is to go.
    pub fn of_compared_mount(root: OwnedFd) -> Writer {
        Writer {
            is_mount: true,
            ..Writer::of_compared(root, Before::Anything)
        }
    }

    /// Writes below the mount at `root`, a copy of another state: inodes are made on the stage.
    pub fn staged(root: OwnedFd, stage: Box<dyn Stage>) -> Writer {
        Writer {
            stage: Some(stage),
            ..Writer::new(root, Before::Copy)
        }
    }

    /// Makes the destination's own directory ready: nothing of what it inherited from above goes to
    /// what is made in it.
    ///
    /// # Errors
    /// Those of chmod(2) and removexattr(2).
    pub fn prepare(&self) -> SysResult<()> {
        if self.before == Before::Nothing {
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
        // Its set-group-id bit would give what is made another group; and it is to be written.
        let ready = (mode | 0o700) & !0o2000;
        if mode == ready {
            Ok(())
        } else {
            sys::chmod_fd(&self.root, ready)
        }
    }

    /// As [`Writer::finish_by`], by this thread alone.
    pub fn finish(&self) -> Vec<Refused> {
        self.finish_by(1)
    }

    /// When everything was handed over: further names, what does not belong there, the attributes
    /// of directories. Says what could not be done.
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
        let mut parent = Parent::default();
        for (path, to) in std::mem::take(&mut *self.links.lock()) {
            refuse(&path, self.link(&mut parent, &path, &to));
        }
        if self.before == Before::Anything {
            refuse(b"", self.sweep());
        }
        let mut dirs = std::mem::take(&mut *self.dirs.lock());
        // One that was given again comes later, and is right.
        dirs.sort_by_key(|dir| std::cmp::Reverse(depth(&dir.path.0)));
        let undressed = Mutex::new(Vec::new());
        // What is below a directory comes before it: with its mode it may be closed to us.
        for level in dirs.chunk_by(|a, b| depth(&a.path.0) == depth(&b.path.0)) {
            // One that was given again comes twice, in this order.
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

    /// Gives a directory its attributes. One that has them is not written to: it may be inherited.
    fn dress(&self, fd: &OwnedFd, dir: &ExportEntry) -> SysResult<()> {
        if self.before == Before::Anything && self.inodes.is_dressed(fd, dir)? {
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
        let mut parent = Parent::default();
        if let Some((above, name)) = split(&entry.path.0) {
            let dir = parent.at(&self.root, above)?;
            match sys::stat_at(dir, name) {
                Err(Errno::ENOENT) if entry.data == ExportData::Kept => return Err(Errno::ENOENT),
                Err(Errno::ENOENT) => {
                    match sys::mkdir_at(dir, name, 0o700) {
                        // Another thread needed it for what is in it.
                        Ok(()) | Err(Errno::EEXIST) => self.count(),
                        Err(errno) => return Err(errno),
                    }
                }
                Ok(stat) if stat.kind == Kind::Dir => {
                    if self.before == Before::Nothing {
                        self.count();
                    }
                    self.open_up(&sys::open_path_at(dir, name)?)?;
                }
                Ok(_) if self.before == Before::Anything => {
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

    /// A directory in which something may have to be made; it gets its mode at the end.
    fn open_up(&self, dir: &OwnedFd) -> SysResult<()> {
        let mode = sys::stat_fd(dir)?.mode;
        if mode & 0o700 == 0o700 {
            Ok(())
        } else {
            sys::chmod_fd(dir, mode | 0o700)
        }
    }

    /// An inode that has other names: `false` if one of them was made before, and this is to be one
    /// more.
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
            Before::Nothing => self.inodes.make(dir, name, entry, content)?,
            Before::Anything if self.is_there(dir, name, entry)? => return Ok(()),
            Before::Copy | Before::Anything => {
                if self.before == Before::Anything
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

    /// Makes an inode on the stage, which replaces what is at its path when it is put there.
    fn make_on(
        &self,
        stage: &dyn Stage,
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

    /// Gives an inode at `to` the name `path` too, in the place of what is there.
    fn link(&self, parent: &mut Parent, path: &[u8], to: &[u8]) -> SysResult<()> {
        let from = open_below(&self.root, to, OpenKind::Path)?;
        let (above, name) = split(path).ok_or(Errno::EINVAL)?;
        let dir = parent.at(&self.root, above)?;
        if self.before == Before::Nothing {
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

    /// A file that was changed while it was copied: it gets what it should have had, wherever its
    /// first name is.
    fn again(
        &self,
        parent: &mut Parent,
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
        // A read-only file of somebody who is not root.
        sys::chmod_fd(&fd, 0o600)?;
        self.inodes
            .make_again(&sys::reopen(&fd, Open::WRITE)?, entry, content)
    }

    /// Removes everything that was not told.
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
                    && is_of_no_tree(sys::stat_at(&dir, &entry.name)?.ino)
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
    type Hand = Parent;

    fn remove(&self, path: &[u8]) -> SysResult<()> {
        self.remove_path(path)
    }

    fn entry(&self, parent: &mut Parent, entry: ExportEntry, file: Option<File>) -> SysResult<()> {
        self.put(parent, entry, file.as_ref())
    }
}

impl Writer {
    /// A path goes, with everything below.
    ///
    /// # Errors
    /// Those of removing it.
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

    /// One entry, with its content. `parent`: the directory of the entry before.
    ///
    /// # Errors
    /// What could not be done for this one.
    pub fn put(
        &self,
        parent: &mut Parent,
        entry: ExportEntry,
        file: Option<&File>,
    ) -> SysResult<()> {
        if self.before == Before::Anything {
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
