//! Changes of attributes and extended attributes.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::capture_ctx::{CaptureCtx, Captures, Durability, Inodes, LockWaits};
use super::change::ChangeCtx;
use super::copy_up::CopyUp;
use super::handles::SET_ID;
use super::inodes::{NodeRef, target_of_fd};
use super::owner_access::{ALL, CONTENT, lending, lent};
use super::shared_tables::{
    BlockingCalls, Dirs, Handles, HotFiles, Locks, NodeTable, Passthrough, SharedTables,
};
use super::xattrs::{check_room, set_xattrs};
use crate::history::timeline::Timeline;
use ckptfs_store::ids::Slot;
use ckptfs_store::record::{AttrState, Key, Undo};
use ckptfs_sys::{
    self as sys, Access, Errno, Kind, RequesterIds, SetTime, Stat, SysResult, XattrMode, Xattrs,
    is_own_xattr,
};

/// Attributes to change; `None` leaves one unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttrChange {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Credentials of the caller; `None` for the daemon itself.
    pub asker: Option<RequesterIds>,
}

impl AttrChange {
    /// Returns whether the request changes no attribute. The kernel sends such a request before a
    /// write to a file with set-id bits by a user who may not keep them. The daemon must then clear
    /// them (`__remove_privs` in fs/inode.c, `fuse_setattr` in fs/fuse/dir.c). A chown(2) without
    /// IDs also leads to it, with the same effect.
    fn is_of_nothing(&self) -> bool {
        matches!(
            self,
            AttrChange {
                mode: None,
                uid: None,
                gid: None,
                size: None,
                atime: None,
                mtime: None,
                ..
            }
        )
    }
}

/// Runs an operation. If the inode has set-id bits, the credentials of `asker` decide whether they
/// are cleared.
fn act_on_set_id<T>(
    fd: &OwnedFd,
    asker: Option<RequesterIds>,
    act: impl FnOnce() -> SysResult<T>,
) -> SysResult<T> {
    if sys::stat_fd(fd)?.mode & SET_ID != 0 {
        sys::act_for(asker, act)
    } else {
        act()
    }
}

/// Changes attributes and extended attributes.
pub struct Attrs {
    timeline: Arc<Timeline>,
    reflink: bool,
    locks: Arc<Locks>,
    nodes: Arc<NodeTable>,
    dirs: Arc<Dirs>,
    hot: Arc<HotFiles>,
    handles: Arc<Handles>,
    calls: Arc<BlockingCalls>,
    passthrough: Arc<Passthrough>,
    inodes: Arc<Inodes>,
    durability: Arc<Durability>,
    captures: Arc<Captures>,
    busy: Arc<LockWaits>,
    copies: Arc<CopyUp>,
}

impl Attrs {
    pub(super) fn new(
        tables: &SharedTables,
        past: &CaptureCtx,
        copies: &Arc<CopyUp>,
    ) -> Arc<Attrs> {
        Arc::new(Attrs {
            timeline: Arc::clone(&tables.timeline),
            reflink: tables.reflink,
            locks: Arc::clone(&tables.locks),
            nodes: Arc::clone(&tables.nodes),
            dirs: Arc::clone(&tables.dirs),
            hot: Arc::clone(&tables.hot),
            handles: Arc::clone(&tables.handles),
            calls: Arc::clone(&tables.calls),
            passthrough: Arc::clone(&tables.passthrough),
            inodes: Arc::clone(&past.inodes),
            durability: Arc::clone(&past.durability),
            captures: Arc::clone(&past.captures),
            busy: Arc::clone(&past.busy),
            copies: Arc::clone(copies),
        })
    }

    /// Changes attributes and returns the new ones. `file` is a handle's file, open for writing,
    /// for a change of size.
    ///
    /// # Errors
    /// Those of chmod(2), chown(2), truncate(2), utimensat(2). ENOSPC or EIO if the capture failed;
    /// nothing changed then.
    pub fn set_attr<'a>(
        &self,
        change: &ChangeCtx,
        at: impl Into<NodeRef<'a>>,
        file: Option<&File>,
        new: &AttrChange,
    ) -> SysResult<Stat> {
        let at = at.into();
        self.copies.own(at)?;
        self.busy.patiently(change, || {
            let _changing = self.locks.enter();
            let _tree = self.locks.tree.read();
            let _stripe = self.locks.stripe(at.slot);
            self.busy.probe_first(change, at.slot)?;
            if new.size.is_some() {
                self.busy
                    .capture_first(change, at.slot, false, || self.inodes.stat(at))?;
            }
            self.set_attr_in(change, at, file, new)
        })
    }

    /// As [`Attrs::set_attr`]; the caller holds the locks.
    fn set_attr_in(
        &self,
        change: &ChangeCtx,
        at: NodeRef<'_>,
        file: Option<&File>,
        new: &AttrChange,
    ) -> SysResult<Stat> {
        let fd = match self.inodes.fd(at) {
            Ok(fd) => fd,
            Err(errno) => match file {
                Some(file) => std::sync::Arc::new(OwnedFd::from(file.try_clone()?)),
                None => return Err(errno),
            },
        };
        self.inodes.check_not_kept(at.slot, &fd)?;
        if new.is_of_nothing() {
            self.clear_set_id(change, at, &fd, new.asker)?;
        }
        let owner = new.mode.is_some() || new.uid.is_some() || new.gid.is_some();
        self.touch_by_change(change, at.slot, new);
        self.keep_inode(change, at, &fd, owner || new.size.is_some())?;
        self.durability.order_attributes(at.slot, &fd)?;
        if let Some(size) = new.size {
            self.resize(change, at, &fd, file, size, new.asker)?;
        }
        if new.uid.is_some() || new.gid.is_some() {
            act_on_set_id(&fd, new.asker, || sys::chown_fd(&fd, new.uid, new.gid))?;
        }
        if let Some(mode) = new.mode {
            self.inodes.base().keep_mark(at, mode)?;
            self.handles.note_mode(at.slot, mode);
            sys::chmod_fd(&fd, mode)?;
        }
        if new.atime.is_some() || new.mtime.is_some() {
            sys::utimens_fd(
                &fd,
                new.atime.unwrap_or(SetTime::Omit),
                new.mtime.unwrap_or(SetTime::Omit),
            )?;
        }
        let stat = self.inodes.base().shown(at.slot, sys::stat_fd(&fd)?);
        self.passthrough.note_owner(at.slot, stat.uid);
        Ok(if self.nodes.is_dead(at.slot) {
            Stat { nlink: 0, ..stat }
        } else {
            stat
        })
    }

    /// Clears the set-id bits that `asker` may not keep: see [`AttrChange::is_of_nothing`].
    ///
    /// # Errors
    /// EPERM if `asker` is not root or the owner and the file is not open for writing.
    fn clear_set_id(
        &self,
        change: &ChangeCtx,
        at: NodeRef<'_>,
        fd: &OwnedFd,
        asker: Option<RequesterIds>,
    ) -> SysResult<()> {
        let (stat, Some(asker)) = (sys::stat_fd(fd)?, asker) else {
            return Ok(());
        };
        if stat.kind != Kind::File || stat.mode & SET_ID == 0 {
            return Ok(());
        }
        let is_written = || {
            self.nodes
                .lock()
                .get(at.slot)
                .is_some_and(|node| node.writers() > 0)
        };
        if asker.uid != 0 && asker.uid != stat.uid && !is_written() {
            return Err(Errno::EPERM);
        }
        self.keep_inode(change, at, fd, true)?;
        self.durability.order_attributes(at.slot, fd)?;
        sys::act_for(Some(asker), || sys::chown_fd(fd, None, None))
    }

    /// Records the author of a change of attributes or size.
    fn touch_by_change(&self, change: &ChangeCtx, slot: Slot, new: &AttrChange) {
        if self.nodes.is_dead(slot) {
            return;
        }
        if new.size.is_some() {
            self.timeline.processes.touch_data(&change.author, slot);
        } else {
            self.timeline.processes.touch_attr(&change.author, slot);
        }
    }

    /// Records attributes and place of an inode. Records its extended attributes if the change
    /// may affect them: chmod changes the ACL, chown and write remove file capabilities.
    fn keep_inode(
        &self,
        change: &ChangeCtx,
        at: NodeRef<'_>,
        fd: &OwnedFd,
        xattrs_too: bool,
    ) -> SysResult<()> {
        let mut undo = Vec::new();
        if self.nodes.is_dead(at.slot) {
            return Ok(());
        }
        let attr_is_new = self.timeline.epochs.needs(&Key::Attr(at.slot));
        if attr_is_new {
            let stat = sys::stat_fd(fd)?;
            let target = target_of_fd(&stat, fd)?;
            let stat = self.inodes.base().shown(at.slot, stat);
            self.captures.keep_attr(at.slot, &stat, target, &mut undo);
            self.captures.keep_homes(at, &mut undo);
        }
        if xattrs_too && self.timeline.epochs.needs(&Key::Xattrs(at.slot)) {
            let read = || sys::all_xattrs(fd);
            let xattrs = self.captures.with_read(&change.author, at, fd, read)?;
            if !xattrs.is_empty() {
                undo.push(Undo::Xattrs {
                    slot: at.slot,
                    before: xattrs,
                });
            }
        }
        self.timeline
            .epochs
            .record(&change.author, undo, Vec::new())?;
        if attr_is_new && at.slot != Slot::ROOT {
            self.timeline.epochs.count(1);
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn resize(
        &self,
        change: &ChangeCtx,
        at: NodeRef<'_>,
        fd: &OwnedFd,
        file: Option<&File>,
        size: u64,
        asker: Option<RequesterIds>,
    ) -> SysResult<()> {
        let opened;
        let file = match file {
            Some(file) => file,
            None => {
                opened = sys::reopen(fd, Access::READ_WRITE)
                    .or_else(|_| sys::reopen(fd, Access::WRITE))?;
                &opened
            }
        };
        if self.timeline.epochs.needs(&Key::Data(at.slot)) {
            // A write-only handle cannot be read.
            let source = sys::reopen(fd, Access::READ)?;
            self.captures.capture(change, at, &source, false)?;
        } else {
            self.timeline.epochs.confirm(at.slot);
        }
        // The capture shares the last block, so truncation allocates a new one.
        act_on_set_id(fd, asker, || {
            self.captures.with_room(|| sys::truncate(file, size))
        })
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// Those of setxattr(2). ENOSPC if the inode would exceed the recordable size. ENOSPC or EIO if
    /// the record failed; nothing changed then.
    pub fn set_xattr<'a>(
        &self,
        change: &ChangeCtx,
        at: impl Into<NodeRef<'a>>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        asker: Option<RequesterIds>,
    ) -> SysResult<()> {
        self.change_xattrs(change, at.into(), |fd| {
            check_room(fd, name, value)?;
            let set = || sys::setxattr(fd, name, value, mode);
            // An owner who is not in the group loses the set-group-ID bit with a change of the ACL
            // (`posix_acl_update_mode` in fs/posix_acl.c).
            if name == b"system.posix_acl_access" {
                act_on_set_id(fd, asker, set)
            } else {
                set()
            }
        })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// Those of removexattr(2). ENOSPC or EIO if the record failed; nothing changed then.
    pub fn remove_xattr<'a>(
        &self,
        change: &ChangeCtx,
        at: impl Into<NodeRef<'a>>,
        name: &[u8],
    ) -> SysResult<()> {
        self.change_xattrs(change, at.into(), |fd| sys::removexattr(fd, name))
    }

    fn change_xattrs(
        &self,
        change: &ChangeCtx,
        at: NodeRef<'_>,
        act: impl Fn(&OwnedFd) -> SysResult<()>,
    ) -> SysResult<()> {
        self.copies.own(at)?;
        self.busy
            .patiently(change, || self.change_xattrs_now(change, at, &act))
    }

    fn change_xattrs_now(
        &self,
        change: &ChangeCtx,
        at: NodeRef<'_>,
        act: impl Fn(&OwnedFd) -> SysResult<()>,
    ) -> SysResult<()> {
        let _changing = self.locks.enter();
        let _tree = self.locks.tree.read();
        let _stripe = self.locks.stripe(at.slot);
        self.busy.probe_first(change, at.slot)?;
        let fd = self.inodes.fd(at)?;
        self.inodes.check_not_kept(at.slot, &fd)?;
        self.dirs.set_plain(at.slot, false);
        self.timeline.processes.touch_attr(&change.author, at.slot);
        self.keep_inode(change, at, &fd, false)?;
        if !self.nodes.is_dead(at.slot) {
            self.record_xattrs(change, at.slot, &fd)?;
        }
        self.durability.order_attributes(at.slot, &fd)?;
        act(&fd)
    }

    fn record_xattrs(&self, change: &ChangeCtx, slot: Slot, fd: &OwnedFd) -> SysResult<()> {
        let mut undo = Vec::new();
        self.captures.keep_xattrs(slot, fd, &mut undo)?;
        self.timeline
            .epochs
            .record(&change.author, undo, Vec::new())
    }

    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// Those of getxattr(2).
    pub fn get_xattr<'a>(&self, at: impl Into<NodeRef<'a>>, name: &[u8]) -> SysResult<Vec<u8>> {
        let at = at.into();
        if let Some(xattrs) = self.inodes.base().xattrs_of_base(at)? {
            let found = xattrs.into_iter().find(|(known, _)| known == name);
            return found.map(|(_, value)| value).ok_or(Errno::NO_XATTR);
        }
        match self.hot.file(at.slot) {
            Some(file) => sys::getxattr(&*file, name),
            None => sys::getxattr(self.inodes.fd(at)?, name),
        }
    }

    /// Returns the names of the extended attributes.
    ///
    /// # Errors
    /// Those of listxattr(2).
    pub fn list_xattrs<'a>(&self, at: impl Into<NodeRef<'a>>) -> SysResult<Vec<Vec<u8>>> {
        let at = at.into();
        match self.inodes.base().xattrs_of_base(at)? {
            Some(xattrs) => Ok(xattrs.into_iter().map(|(name, _)| name).collect()),
            None => sys::listxattr(self.inodes.fd(at)?),
        }
    }

    /// Replaces the extended attributes of an inode by `wanted`. Returns whether they differed. The
    /// caller holds the locks.
    fn replace_xattrs_in(
        &self,
        change: &ChangeCtx,
        at: NodeRef<'_>,
        wanted: &Xattrs,
    ) -> SysResult<bool> {
        let fd = self.inodes.fd(at)?;
        let mut now = sys::all_xattrs(&fd)?;
        // Internal attributes are not part of either set and remain.
        now.retain(|(name, _)| !is_own_xattr(name));
        if now == *wanted {
            return Ok(false);
        }
        self.timeline.processes.touch_attr(&change.author, at.slot);
        self.dirs.set_plain(at.slot, false);
        self.keep_inode(change, at, &fd, false)?;
        self.record_xattrs(change, at.slot, &fd)?;
        // An owner who is not root needs write permission to set them.
        let first = |_: &Stat| self.keep_inode(change, at, &fd, true);
        lent(&fd, CONTENT, first, || set_xattrs(&fd, &now, wanted))?;
        Ok(true)
    }

    /// Restores attributes and extended attributes of an inode. Returns whether anything except
    /// times differed. A directory's entries must be restored first, because they change its times.
    /// `times` includes the modification time.
    ///
    /// # Errors
    /// Those of chown(2), chmod(2), utimensat(2), setxattr(2).
    pub fn apply_attrs_in(
        &self,
        change: &ChangeCtx,
        at: NodeRef<'_>,
        wanted: &AttrState,
        xattrs: &Xattrs,
        times: bool,
    ) -> SysResult<bool> {
        self.copies.own_in(at)?;
        self.busy.probe_first(change, at.slot)?;
        let fd = self.inodes.fd(at)?;
        let now = sys::stat_fd(&fd)?;
        let then = &wanted.stat;
        let owner = now.uid != then.uid || now.gid != then.gid;
        let mode = now.mode != then.mode && now.kind != Kind::Symlink;
        let (kept, times) = (times, times && now.mtime != then.mtime);
        if owner || mode || times {
            self.timeline.processes.touch_attr(&change.author, at.slot);
            self.keep_inode(change, at, &fd, owner || mode)?;
        }
        // The owner first: a change of owner removes file capabilities.
        if owner {
            match sys::chown_fd(&fd, Some(then.uid), Some(then.gid)) {
                Ok(()) => self.passthrough.note_owner(at.slot, then.uid),
                Err(Errno::EPERM) if sys::ids().0 != 0 => {}
                Err(errno) => return Err(errno),
            }
        }
        let different = self.replace_xattrs_in(change, at, xattrs)? || owner || mode;
        if mode || (owner && now.kind != Kind::Symlink) {
            self.inodes.base().keep_mark(at, then.mode)?;
            self.handles.note_mode(at.slot, then.mode);
            sys::chmod_fd(&fd, then.mode)?;
        }
        if owner || mode || times {
            sys::utimens_fd(
                &fd,
                SetTime::At(then.atime),
                if kept {
                    SetTime::At(then.mtime)
                } else {
                    SetTime::Omit
                },
            )?;
        }
        Ok(different)
    }

    /// Grants the owner of an inode, who is not root, read and write permission. Records the old
    /// mode, and returns it for [`Attrs::give_back_in`].
    ///
    /// # Errors
    /// Those of chmod(2).
    pub fn lend_in(&self, change: &ChangeCtx, at: NodeRef<'_>) -> SysResult<Option<u32>> {
        if sys::own_user() == 0 || at.slot == Slot::STAGING {
            return Ok(None);
        }
        self.copies.own_in(at)?;
        let fd = self.inodes.fd(at)?;
        let stat = sys::stat_fd(&fd)?;
        let bits = if stat.kind == Kind::Dir { ALL } else { CONTENT };
        let Some(mode) = lending(&stat, bits) else {
            return Ok(None);
        };
        self.keep_inode(change, at, &fd, false)?;
        sys::chmod_fd(&fd, mode)?;
        Ok(Some(stat.mode))
    }

    /// Resets the mode of an inode, if it still exists.
    pub fn give_back_in(&self, at: NodeRef<'_>, mode: u32) {
        let given = self.inodes.fd(at).and_then(|fd| sys::chmod_fd(fd, mode));
        tracing::debug!(slot = at.slot.0, ?given, "an inode has its mode again");
    }

    /// Sets the modification time of a file with one name to the current time.
    ///
    /// # Errors
    /// Those of utimensat(2).
    pub fn renew_in(&self, change: &ChangeCtx, at: NodeRef<'_>) -> SysResult<()> {
        self.copies.own_in(at)?;
        let fd = self.inodes.fd(at)?;
        let stat = sys::stat_fd(&fd)?;
        if stat.kind != Kind::File || stat.nlink > 1 {
            return Ok(());
        }
        self.timeline.processes.touch_attr(&change.author, at.slot);
        self.keep_inode(change, at, &fd, false)?;
        sys::utimens_fd(&fd, SetTime::Omit, SetTime::Now)
    }

    /// Restores the content of a file in place, keeping its inode. Used for files with unknown
    /// names.
    ///
    /// # Errors
    /// Those of open(2), write(2), ftruncate(2).
    pub fn rewrite_in(
        &self,
        change: &ChangeCtx,
        at: NodeRef<'_>,
        source: Option<&File>,
        size: u64,
    ) -> SysResult<()> {
        self.copies.own_in(at)?;
        self.busy.probe_first(change, at.slot)?;
        self.calls.void(at.slot);
        let fd = self.inodes.fd(at)?;
        let file = sys::reopen(&fd, Access::READ_WRITE)?;
        self.timeline.processes.touch_data(&change.author, at.slot);
        self.captures.capture(change, at, &file, false)?;
        self.timeline.processes.tell_touches(&change.author)?;
        sys::truncate(&file, 0)?;
        match source {
            Some(source) if self.reflink => sys::clone_file(source, &file),
            Some(source) => sys::copy_data(source, &file, size),
            None => Ok(()),
        }
    }
}
