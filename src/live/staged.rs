//! Inodes that are made in the staging directory before anybody sees them, and how they take the
//! places of others: what an applier of a plan does in bulk.
//!
//! Making them needs no lock and any number of threads may do it: nobody knows them before they are
//! adopted. To put them in place (`swaps`) the freeze lock and the tree are held for writing.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::change::Change;
use super::inodes::place;
use super::nodes::generation_of;
use super::past::{Captures, Inodes, Past};
use super::tables::{NodeTable, Tables};
use crate::history::timeline::Timeline;
use crate::store::ids::{Name, Slot};
use crate::store::record::{AttrState, Place};
use crate::sys::{self, Errno, Kind, Open, RenameMode, SetTime, Stat, SysResult, Xattrs};

/// What every name of an inode that is made here begins with.
pub const STAGED_PREFIX: &str = "new-";

/// An inode that was made in the staging directory.
#[derive(Clone, Debug)]
pub struct Staged {
    pub(super) name: Name,
    /// As it was made, before it got its attributes. There may be one for each file of the tree.
    pub(super) stat: Box<Stat>,
}

/// What an inode is to be that is made.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Its attributes.
    pub attr: &'a AttrState,
    /// Its extended attributes.
    pub xattrs: &'a Xattrs,
    /// What a regular file holds; `None`: nothing.
    pub source: Option<&'a File>,
    /// Nobody can be writing to that.
    pub still: bool,
    /// It gets the time of change that it had; else that at which it is made.
    pub times: bool,
}

/// A new inode, and the place that it is to take.
#[derive(Clone, Debug)]
pub struct Swap {
    /// Adopted, and in the staging directory still.
    pub staged: Staged,
    /// Where it is to be.
    pub to: Place,
}

impl Staged {
    /// What it is.
    pub fn kind(&self) -> Kind {
        self.stat.kind
    }

    /// As it was made, before it got its attributes.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Its number on the backing filesystem.
    pub(super) fn ino(&self) -> u64 {
        self.stat.ino
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        place(Slot::STAGING, &self.name)
    }
}

/// Makes inodes in the staging directory.
pub struct Staging {
    timeline: Arc<Timeline>,
    staging: Arc<OwnedFd>,
    nodes: Arc<NodeTable>,
    inodes: Arc<Inodes>,
    captures: Arc<Captures>,
}

impl Staging {
    /// `dir`: where inodes are made.
    pub(super) fn new(tables: &Tables, past: &Past, dir: &Arc<OwnedFd>) -> Arc<Staging> {
        Arc::new(Staging {
            timeline: Arc::clone(&tables.timeline),
            staging: Arc::clone(dir),
            nodes: Arc::clone(&tables.nodes),
            inodes: Arc::clone(&past.inodes),
            captures: Arc::clone(&past.captures),
        })
    }

    /// Makes an inode of any kind, a directory empty, complete with owner, mode, extended attributes
    /// and times. Its name is free, or that of one that was never adopted. Nothing is durable.
    ///
    /// # Errors
    /// Those of open(2), FICLONE, mknod(2), chown(2), setxattr(2); EIO if the source has become
    /// shorter. Then nothing of it is there.
    pub fn stage(&self, name: Name, wanted: &Wanted<'_>) -> SysResult<Staged> {
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

    fn make_staged(&self, name: &Name, wanted: &Wanted<'_>) -> SysResult<Stat> {
        let (dir, name, then) = (&*self.staging, name.as_bytes(), &wanted.attr.stat);
        if then.kind == Kind::File {
            let file = match wanted.source {
                Some(source) => {
                    self.captures
                        .duplicate(source, dir, name, then.size, wanted.still)?
                        .0
                }
                None => sys::create_file_at(dir, name, Open::READ_WRITE, 0o600)?,
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

    /// What a staged file holds is on the disk when this returns.
    ///
    /// # Errors
    /// EIO.
    pub(super) fn sync(&self, staged: &Staged) -> SysResult<()> {
        let name = staged.name.as_bytes();
        sys::fsync(sys::open_file_at(&self.staging, name, Open::READ)?)
    }

    /// Gives a staged inode a name in a directory.
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

    /// An inode that somebody else has put into the staging directory.
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn take_up(&self, name: Name) -> SysResult<Staged> {
        let stat = Box::new(sys::stat_at(&self.staging, name.as_bytes())?);
        Ok(Staged { name, stat })
    }

    /// Removes an inode that was staged and never adopted.
    pub fn unstage(&self, staged: &Staged) {
        self.unstage_name(&staged.name);
    }

    /// Removes what a daemon that was killed had staged. Nothing may be served yet, and what was
    /// half done must be finished.
    ///
    /// # Errors
    /// Those of listing the staging directory.
    pub fn sweep(&self) -> SysResult<()> {
        for entry in sys::list_dir(&*self.staging)? {
            let place = place(Slot::STAGING, &Name::new(&entry.name));
            // One that changed places with it, and could not be moved on, is in the tree as far as
            // history knows.
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

    /// Takes a staged inode into the tables: it is new, no checkpoint can see it. The caller holds
    /// the freeze lock.
    ///
    /// # Errors
    /// EXDEV.
    pub fn adopt(&self, change: &Change, staged: &Staged) -> SysResult<Slot> {
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

/// Gives a new inode its attributes: nothing of it need be compared or kept. Says what it was made
/// as.
fn apply_attrs_to_new(
    fd: impl AsFd + Copy,
    wanted: &Wanted<'_>,
    chmod: impl FnOnce(u32) -> SysResult<()>,
) -> SysResult<Stat> {
    let (made, then) = (sys::stat_fd(fd)?, &wanted.attr.stat);
    let owner = made.uid != then.uid || made.gid != then.gid;
    // The owner first: a change of it takes set-id bits and file capabilities away.
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
        // Of a group that is not ours the bit is left out without a word.
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
