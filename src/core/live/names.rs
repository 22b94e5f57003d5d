//! Creation, links and renames (`rename`).

mod rename;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use super::capture_ctx::{CaptureCtx, Captures, Durability, Inodes, LockWaits};
use super::change::ChangeCtx;
use super::copy_up::CopyUp;
use super::handles::SET_ID;
use super::inodes::{NodeRef, place, target_of};
use super::nodes::generation_of;
use super::remove::Removal;
use super::shared_tables::{Dirs, HandoverLog, Locks, NodeTable, SharedTables};
use crate::history::present::Trail;
use crate::history::timeline::Timeline;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{NameTouch, Place, Undo};
use ckptfs_sys::{self as sys, Access, Errno, Kind, Stat, SysResult};

/// Description of an inode to create.
#[derive(Clone, Debug)]
pub struct NewInode<'a> {
    /// File type.
    pub kind: Kind,
    /// Requested permission bits.
    pub mode: u32,
    /// The caller's umask; applied unless the directory has a default ACL.
    pub umask: u32,
    /// Device number of a device node.
    pub rdev: u64,
    /// Target of a symbolic link.
    pub target: &'a [u8],
    /// Owner.
    pub uid: u32,
    /// Group, unless it is inherited from the directory.
    pub gid: u32,
    /// Flags to open a regular file; `None` if it is not opened.
    pub open: Option<Access>,
    /// A previous worker may have created it: an existing inode of this type is then used.
    pub again: bool,
}

/// An inode that was created, or found in a retry.
#[derive(Debug)]
pub struct CreatedInode {
    /// Its slot.
    pub slot: Slot,
    /// Its generation.
    pub generation: u64,
    /// Its attributes.
    pub stat: Stat,
    /// The file, if it was opened.
    pub file: Option<File>,
}

/// Creates, links and renames.
pub struct Names {
    timeline: Arc<Timeline>,
    staging: Arc<OwnedFd>,
    locks: Arc<Locks>,
    nodes: Arc<NodeTable>,
    dirs: Arc<Dirs>,
    handover: Arc<HandoverLog>,
    inodes: Arc<Inodes>,
    durability: Arc<Durability>,
    captures: Arc<Captures>,
    busy: Arc<LockWaits>,
    copies: Arc<CopyUp>,
    removal: Arc<Removal>,
    /// Cached error of a rename over a directory that is not empty.
    not_empty: OnceLock<Errno>,
}

impl Names {
    /// Copies up a directory of a branch in which something is about to change, so that it can be
    /// found after renames. The caller holds the freeze lock and the tree for writing.
    ///
    /// # Errors
    /// Those of its creation, and of reading the base.
    pub fn own_in(&self, dir: &Arc<Trail>) -> SysResult<()> {
        self.copies.own_in(dir)
    }

    /// Copies up a directory and the inode at a name in it, before a freeze. The caller holds no
    /// lock.
    ///
    /// # Errors
    /// As [`Names::own_in`].
    pub fn own_name(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<()> {
        self.copies.own_name(dir.into(), name)
    }

    pub(super) fn new(
        tables: &SharedTables,
        past: &CaptureCtx,
        copies: &Arc<CopyUp>,
        removal: &Arc<Removal>,
    ) -> Arc<Names> {
        Arc::new(Names {
            timeline: Arc::clone(&tables.timeline),
            staging: Arc::clone(&tables.staging),
            locks: Arc::clone(&tables.locks),
            nodes: Arc::clone(&tables.nodes),
            dirs: Arc::clone(&tables.dirs),
            handover: Arc::clone(&tables.handover),
            inodes: Arc::clone(&past.inodes),
            durability: Arc::clone(&past.durability),
            captures: Arc::clone(&past.captures),
            busy: Arc::clone(&past.busy),
            copies: Arc::clone(copies),
            removal: Arc::clone(removal),
            not_empty: OnceLock::new(),
        })
    }

    /// Creates an inode, and counts one lookup of it.
    ///
    /// # Errors
    /// EEXIST and those of open(2), mkdir(2), mknod(2), symlink(2). ENOSPC or EIO if the record
    /// failed; nothing changed then.
    pub fn make(
        &self,
        change: &ChangeCtx,
        parent: Slot,
        name: &Name,
        make: &NewInode<'_>,
    ) -> SysResult<CreatedInode> {
        self.copies.own(parent)?;
        let _changing = self.locks.enter();
        let _tree = self.locks.tree.write();
        self.make_in(change, parent.into(), name, make, 1)
    }

    /// As [`Names::make`]; the caller holds the freeze lock and the tree.
    pub fn make_in(
        &self,
        change: &ChangeCtx,
        parent: NodeRef<'_>,
        name: &Name,
        make: &NewInode<'_>,
        lookups: u64,
    ) -> SysResult<CreatedInode> {
        if self.nodes.is_dead(parent.slot) {
            return Err(Errno::ENOENT);
        }
        self.copies.own_in(parent)?;
        let dir = self.inodes.dir(parent)?;
        if make.again && self.is_made(&dir, name, make)? {
            let file = make
                .open
                .map(|open| sys::open_file_at(&dir, name.as_bytes(), open))
                .transpose()?;
            let made = self.own(change, parent, &dir, name, make, make.mode, file, lookups)?;
            // A checkpoint made since may see it.
            self.timeline.epochs.drop_born(made.slot);
            return Ok(made);
        }
        self.record_new_name(change, parent, &dir, name, NameTouch::Made, Vec::new())?;
        let mode = if make.umask & make.mode != 0 && !self.has_default_acl(parent.slot, &dir)? {
            make.mode & !make.umask
        } else {
            make.mode
        };
        let create = |name: &Name| {
            let create = || self.create(&dir, name, make, mode);
            // Without a lookup the inode is created by a restore.
            let asker = (lookups > 0).then_some(make.uid);
            self.captures.within_limits(asker, create)
        };
        let file = if self.inodes.base().is_hidden(&dir, name)? {
            self.inodes.base().make_over(&dir, name, create)?
        } else {
            create(name)?
        };
        let made = self.own(change, parent, &dir, name, make, mode, file, lookups);
        if made.is_err() {
            let removed = self.removal.discard((parent, name), &dir, make.kind);
            tracing::debug!(?removed, "an inode that could not be given to its owner");
        }
        made
    }

    /// Returns whether a matching inode exists.
    fn is_made(&self, dir: &OwnedFd, name: &Name, make: &NewInode<'_>) -> SysResult<bool> {
        match sys::stat_at(dir, name.as_bytes()) {
            Ok(stat) if stat.kind == Kind::Symlink && make.kind == Kind::Symlink => {
                Ok(sys::readlink_at(dir, name.as_bytes())? == make.target)
            }
            Ok(stat) => Ok(stat.kind == make.kind && !self.inodes.base().is_hidden(dir, name)?),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    fn create(
        &self,
        dir: &Arc<OwnedFd>,
        name: &Name,
        make: &NewInode<'_>,
        mode: u32,
    ) -> SysResult<Option<File>> {
        let name = name.as_bytes();
        match make.kind {
            Kind::File => match make.open {
                Some(open) => sys::create_file_at(dir, name, open, mode).map(Some),
                None => sys::create_file_at(dir, name, Access::WRITE, mode).map(|_| None),
            },
            Kind::Dir => sys::mkdir_at(dir, name, mode).map(|()| None),
            Kind::Symlink => sys::symlink_at(make.target, dir, name).map(|()| None),
            Kind::Fifo | Kind::Socket | Kind::CharDev | Kind::BlockDev => {
                let base = self.inodes.base();
                base.make_node((dir, name), make.kind, mode, make.rdev)?;
                Ok(None)
            }
        }
    }

    /// Returns whether the directory has a default ACL, which new inodes inherit instead of
    /// applying the umask.
    fn has_default_acl(&self, slot: Slot, dir: &OwnedFd) -> SysResult<bool> {
        if self.dirs.is_plain(slot) {
            return Ok(false);
        }
        let has = match sys::getxattr(dir, b"system.posix_acl_default") {
            Ok(_) => true,
            Err(Errno::NO_XATTR | Errno::EOPNOTSUPP | Errno::EACCES | Errno::EPERM) => false,
            // The ACL is unknown, and a wrong mode could grant access to others.
            Err(errno) => return Err(errno),
        };
        self.dirs.set_plain(slot, !has);
        Ok(has)
    }

    /// Checks that a name is unused, and records its absence.
    fn record_new_name(
        &self,
        change: &ChangeCtx,
        parent: NodeRef<'_>,
        dir: &OwnedFd,
        name: &Name,
        how: NameTouch,
        mut undo: Vec<Undo>,
    ) -> SysResult<()> {
        self.inodes.base().check_free(parent, dir, name)?;
        self.timeline
            .processes
            .touch_name(&change.author, parent.slot, name, how);
        self.captures.keep_entry(parent.slot, name, None, &mut undo);
        self.captures.keep_dir(parent, dir, &mut undo)?;
        self.timeline
            .epochs
            .record(&change.author, undo, Vec::new())
    }

    /// Sets the owner of a new inode, and adds it to the tables.
    #[allow(clippy::too_many_arguments)]
    fn own(
        &self,
        change: &ChangeCtx,
        parent: NodeRef<'_>,
        dir: &OwnedFd,
        name: &Name,
        make: &NewInode<'_>,
        mode: u32,
        file: Option<File>,
        lookups: u64,
    ) -> SysResult<CreatedInode> {
        let mut stat = sys::stat_at(dir, name.as_bytes())?;
        let group_given = stat.gid != make.gid && sys::stat_fd(dir)?.mode & 0o2000 != 0;
        if stat.uid != make.uid || (stat.gid != make.gid && !group_given) {
            let fd = sys::open_path_at(dir, name.as_bytes())?;
            let give = || sys::chown_fd(&fd, Some(make.uid), (!group_given).then_some(make.gid));
            // A directory inherits the set-group-ID bit from its parent, and XFS clears it for
            // users who may not keep it.
            match if stat.mode & SET_ID != 0 {
                sys::act_for(None, give)
            } else {
                give()
            } {
                // Only root can change owners; an ordinary user's daemon serves no other users.
                Ok(()) | Err(Errno::EPERM) => {}
                Err(errno) => return Err(errno),
            }
            stat = sys::stat_at(dir, name.as_bytes())?;
        }
        let lost = mode & SET_ID & !stat.mode;
        if lost != 0 && make.kind != Kind::Symlink {
            sys::chmod_fd(sys::open_path_at(dir, name.as_bytes())?, stat.mode | lost)?;
            stat = sys::stat_at(dir, name.as_bytes())?;
        }
        let slot = self.inodes.slot_of(&stat)?;
        self.timeline.set_born(&change.author, slot);
        self.timeline.epochs.count(1);
        let place = place(parent.slot, name);
        let generation =
            self.nodes
                .lock()
                .learn(slot, stat.kind, generation_of(&stat), Some(&place), lookups);
        Ok(CreatedInode {
            slot,
            generation,
            stat: self.inodes.base().shown(slot, stat),
            file,
        })
    }

    /// Creates a hard link, as link(2). `again`: a previous worker may have created it.
    ///
    /// # Errors
    /// Those of link(2). ENOSPC or EIO if the record failed; nothing changed then.
    pub fn link(
        &self,
        change: &ChangeCtx,
        slot: Slot,
        parent: Slot,
        name: &Name,
        again: bool,
    ) -> SysResult<CreatedInode> {
        self.copies.own(slot)?;
        self.copies.own(parent)?;
        self.busy
            .patiently(change, || self.link_now(change, slot, parent, name, again))
    }

    fn link_now(
        &self,
        change: &ChangeCtx,
        slot: Slot,
        parent: Slot,
        name: &Name,
        again: bool,
    ) -> SysResult<CreatedInode> {
        let _changing = self.locks.enter();
        let _tree = self.locks.tree.write();
        if self.nodes.is_dead(slot) || self.nodes.is_dead(parent) {
            return Err(Errno::ENOENT);
        }
        if again && let Ok((found, generation, stat)) = self.inodes.lookup_in(parent, name, 1) {
            if found == slot {
                return Ok(CreatedInode {
                    slot,
                    generation,
                    stat,
                    file: None,
                });
            }
            self.nodes.forget(found, 1);
        }
        let _stripe = self.locks.stripe(slot);
        let found = self.inodes.find(slot.into())?;
        self.link_found(
            change,
            slot,
            &found.dir,
            &found.name,
            &place(parent, name),
            1,
        )
    }

    /// Links an inode found at `from_name`. The caller holds the freeze lock and the tree.
    fn link_found(
        &self,
        change: &ChangeCtx,
        slot: Slot,
        from: &OwnedFd,
        from_name: &Name,
        to: &Place,
        lookups: u64,
    ) -> SysResult<CreatedInode> {
        self.busy.probe_first_for_name(change, slot)?;
        let stat = sys::stat_at(from, from_name.as_bytes())?;
        let stat = self.inodes.base().shown(slot, stat);
        let dir = self.inodes.dir(to.parent)?;
        let mut undo = Vec::new();
        self.captures
            .keep_attr(slot, &stat, target_of(&stat, from, from_name)?, &mut undo);
        self.captures.keep_homes(slot.into(), &mut undo);
        self.timeline
            .processes
            .touch_moved(&change.author, slot, false);
        self.record_new_name(
            change,
            to.parent.into(),
            &dir,
            &to.name,
            NameTouch::Moved,
            undo,
        )?;
        self.durability.order_names(&[slot])?;
        let link = |name: &Name| sys::link_at(from, from_name.as_bytes(), &dir, name.as_bytes());
        if self.inodes.base().is_hidden(&dir, &to.name)? {
            self.inodes.base().make_over(&dir, &to.name, link)?;
        } else {
            link(&to.name)?;
        }
        let stat = sys::stat_at(&dir, to.name.as_bytes()).inspect_err(|_| {
            let at = (to.parent.into(), &to.name);
            let removed = self.removal.discard(at, &dir, stat.kind);
            tracing::debug!(?removed, "a link that could not be looked at");
        })?;
        let stat = self.inodes.base().shown(slot, stat);
        self.durability.note_linked(slot);
        self.timeline.epochs.count(1);
        let generation =
            self.nodes
                .lock()
                .learn(slot, stat.kind, generation_of(&stat), Some(to), lookups);
        Ok(CreatedInode {
            slot,
            generation,
            stat,
            file: None,
        })
    }

    /// Creates a hard link, without counting a lookup. The caller holds the freeze lock and the
    /// tree.
    ///
    /// # Errors
    /// Those of link(2).
    pub fn link_in(&self, change: &ChangeCtx, from: &Place, to: &Place) -> SysResult<CreatedInode> {
        self.copies.own_name_in(from.parent.into(), &from.name)?;
        self.copies.own_in(to.parent)?;
        let from_dir = self.inodes.dir(from.parent)?;
        let stat = sys::stat_at(&from_dir, from.name.as_bytes())?;
        self.link_found(
            change,
            self.inodes.slot_of(&stat)?,
            &from_dir,
            &from.name,
            to,
            0,
        )
    }
}

impl CreatedInode {}
