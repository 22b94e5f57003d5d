//! Staging: creation of inodes in the staging directory, invisible to users, from where they are
//! moved into place. Used for the bulk changes of a plan.
//!
//! Staging needs no lock and may run on several threads: an inode is unknown until it is adopted.
//! Moving inodes into place (`swaps`) requires the freeze lock and the tree for writing.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::capture_ctx::{CaptureCtx, Captures, Inodes};
use super::change::ChangeCtx;
use super::inodes::place;
use super::nodes::generation_of;
use super::shared_tables::{NodeTable, SharedTables};
use crate::history::timeline::Timeline;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{AttrState, Place};
use ckptfs_sys::{self as sys, Access, Errno, Kind, RenameMode, SetTime, Stat, SysResult, Xattrs};

/// Prefix of the names of staged inodes.
pub const STAGED_PREFIX: &str = "new-";

/// A staged inode.
#[derive(Clone, Debug)]
pub struct Staged {
    pub(super) name: Name,
    /// Attributes at its creation, before the requested ones were set. Boxed, because one may exist
    /// for each file of the tree.
    pub(super) stat: Box<Stat>,
}

/// Description of an inode to create.
#[derive(Clone, Copy, Debug)]
pub struct InodeSpec<'a> {
    /// Attributes.
    pub attr: &'a AttrState,
    /// Extended attributes.
    pub xattrs: &'a Xattrs,
    /// Content of a regular file; `None` if it is empty.
    pub source: Option<&'a File>,
    /// No process can write to `source`.
    pub still: bool,
    /// Sets the recorded mtime; otherwise mtime is the time of creation.
    pub times: bool,
}

/// A staged inode, and its destination.
#[derive(Clone, Debug)]
pub struct Swap {
    /// Adopted, but still in the staging directory.
    pub staged: Staged,
    /// Destination.
    pub to: Place,
}

impl Staged {
    /// Returns its type.
    pub fn kind(&self) -> Kind {
        self.stat.kind
    }

    /// Returns the attributes at its creation, before the requested ones were set.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Returns its inode number on the backing filesystem.
    pub(super) fn ino(&self) -> u64 {
        self.stat.ino
    }

    /// Returns its place in the staging directory.
    pub fn place(&self) -> Place {
        place(Slot::STAGING, &self.name)
    }
}

/// Creates inodes in the staging directory.
pub struct Staging {
    timeline: Arc<Timeline>,
    staging: Arc<OwnedFd>,
    nodes: Arc<NodeTable>,
    inodes: Arc<Inodes>,
    captures: Arc<Captures>,
}

impl Staging {
    /// Uses `dir` as the staging directory.
    pub(super) fn new(
        tables: &SharedTables,
        past: &CaptureCtx,
        dir: &Arc<OwnedFd>,
    ) -> Arc<Staging> {
        Arc::new(Staging {
            timeline: Arc::clone(&tables.timeline),
            staging: Arc::clone(dir),
            nodes: Arc::clone(&tables.nodes),
            inodes: Arc::clone(&past.inodes),
            captures: Arc::clone(&past.captures),
        })
    }

    /// Creates an inode of any type, complete with owner, mode, extended attributes and times. A
    /// directory is empty. Its name is unused, or that of a file that was never adopted. Nothing is
    /// durable.
    ///
    /// # Errors
    /// Those of open(2), FICLONE, mknod(2), chown(2), setxattr(2); EIO if the source became
    /// shorter. Nothing remains after a failure.
    pub fn stage(&self, name: Name, wanted: &InodeSpec<'_>) -> SysResult<Staged> {
        let made = match self.make_staged(&name, wanted) {
            Err(Errno::EEXIST) => {
                sys::unlink_at(&self.staging, name.as_bytes())?;
                self.make_staged(&name, wanted)
            }
            made => made,
        };
        let stat = Box::new(made.inspect_err(|_| self.unstage_name(&name))?);
        Ok(Staged { name, stat })
    }

    fn make_staged(&self, name: &Name, wanted: &InodeSpec<'_>) -> SysResult<Stat> {
        let (dir, name, then) = (&*self.staging, name.as_bytes(), &wanted.attr.stat);
        if then.kind == Kind::File {
            let file = match wanted.source {
                Some(source) => {
                    self.captures
                        .duplicate(source, dir, name, then.size, wanted.still)?
                        .0
                }
                None => sys::create_file_at(dir, name, Access::READ_WRITE, 0o600)?,
            };
            return apply_attrs_to_new(&file, wanted, |mode| sys::set_file_mode(&file, mode));
        }
        match then.kind {
            Kind::Symlink => {
                sys::symlink_at(wanted.attr.target.as_deref().ok_or(Errno::EIO)?, dir, name)?
            }
            Kind::Dir => sys::mkdir_at(dir, name, 0o700)?,
            kind => {
                let base = self.inodes.base();
                base.make_node((dir, name), kind, 0o600, then.rdev)?;
            }
        }
        let fd = sys::open_path_at(dir, name)?;
        apply_attrs_to_new(&fd, wanted, |mode| sys::chmod_fd(&fd, mode))
    }

    /// Syncs the content of a staged file.
    ///
    /// # Errors
    /// EIO.
    pub(super) fn sync(&self, staged: &Staged) -> SysResult<()> {
        let name = staged.name.as_bytes();
        sys::fsync(sys::open_file_at(&self.staging, name, Access::READ)?)
    }

    /// Moves a staged inode to a name in a directory.
    ///
    /// # Errors
    /// Those of rename(2).
    pub(super) fn put(
        &self,
        staged: &Staged,
        dir: &OwnedFd,
        name: &Name,
        how: RenameMode,
    ) -> SysResult<()> {
        let from = staged.name.as_bytes();
        self.captures
            .with_room(|| sys::rename_home(&*self.staging, from, dir, name.as_bytes(), how))
    }

    fn unstage_name(&self, name: &Name) {
        let removed = match sys::unlink_at(&self.staging, name.as_bytes()) {
            Err(Errno::EISDIR | Errno::EPERM) => sys::rmdir_at(&*self.staging, name.as_bytes()),
            removed => removed,
        };
        match removed {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => {
                tracing::debug!(?name, %errno, "what was staged for nothing was not removed")
            }
        }
    }

    /// Returns an inode that other code has created in the staging directory.
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn take_up(&self, name: Name) -> SysResult<Staged> {
        let stat = Box::new(sys::stat_at(&self.staging, name.as_bytes())?);
        Ok(Staged { name, stat })
    }

    /// Removes a staged inode that was never adopted.
    pub fn unstage(&self, staged: &Staged) {
        self.unstage_name(&staged.name);
    }

    /// Removes inodes staged by a daemon that was killed. To be called before the tree is served,
    /// and after incomplete operations are finished.
    ///
    /// # Errors
    /// Those of listing the staging directory.
    pub fn sweep(&self) -> SysResult<()> {
        for entry in sys::list_dir(&*self.staging)? {
            let place = place(Slot::STAGING, &Name::new(&entry.name));
            // An inode that was exchanged with a staged one and not moved on is part of the tree
            // according to the history.
            if entry.name.starts_with(STAGED_PREFIX.as_bytes())
                && self
                    .timeline
                    .lookup
                    .place_or_fault(self.inodes.slot_of_ino(entry.ino)?)?
                    != Some(place.clone())
            {
                self.unstage_name(&place.name);
            }
        }
        Ok(())
    }

    /// Adds a staged inode to the tables as born: no checkpoint can see it. The caller holds the
    /// freeze lock.
    ///
    /// # Errors
    /// EXDEV.
    pub fn adopt(&self, change: &ChangeCtx, staged: &Staged) -> SysResult<Slot> {
        let (slot, stat) = (self.inodes.slot_of(&staged.stat)?, &staged.stat);
        self.timeline.set_born(&change.author, slot);
        self.nodes.lock().learn(
            slot,
            stat.kind,
            generation_of(stat),
            Some(&staged.place()),
            0,
        );
        Ok(slot)
    }
}

/// Sets the attributes of a new inode, without comparing or recording them. Returns its attributes
/// at creation.
fn apply_attrs_to_new(
    fd: impl AsFd + Copy,
    wanted: &InodeSpec<'_>,
    chmod: impl FnOnce(u32) -> SysResult<()>,
) -> SysResult<Stat> {
    let (made, then) = (sys::stat_fd(fd)?, &wanted.attr.stat);
    let owner = made.uid != then.uid || made.gid != then.gid;
    // The owner first: a change of owner clears set-id bits and file capabilities.
    if owner {
        match sys::chown_fd(fd, Some(then.uid), Some(then.gid)) {
            Err(Errno::EPERM) if sys::ids().0 != 0 => {}
            owned => owned?,
        }
    }
    wanted
        .xattrs
        .iter()
        .try_for_each(|(name, value)| sys::setxattr(fd, name, value, sys::XattrMode::Any))?;
    if then.kind != Kind::Symlink && (owner || made.mode != then.mode || !wanted.xattrs.is_empty())
    {
        // For a group that the daemon is not a member of, the kernel drops the bit silently.
        if then.mode & 0o2000 != 0 {
            sys::chmod_fd(fd, then.mode)?
        } else {
            chmod(then.mode)?
        }
    }
    sys::utimens_fd(
        fd,
        SetTime::At(then.atime),
        if wanted.times {
            SetTime::At(then.mtime)
        } else {
            SetTime::Omit
        },
    )?;
    Ok(made)
}
