//! Kernel requests, routed to the live tree, to a view, or to `.snapshots`.

mod nodes;

use std::sync::Arc;
use std::time::Duration;

pub(super) use self::nodes::open_flags;
use self::nodes::{
    Node, check_not_own, has_content, hide_xattrs, live_stat, made_by, past_opened, past_xattrs,
    removed,
};
use super::Engine;
use super::announce::{self, is_dummy};
use super::counts::RequestCounts;
use super::files::OpenFileRef;
use super::foreign;
use super::past::{PAST, PAST_HANDLE};
use super::request::FOR_EVER;
use super::request::{
    Attr, Caller, Entry, Fh, FsInfo, HandedOverFile, Listed, LookupResult, Names, NewNode, NodeId,
    Opened, Plus, RenameMode, Seek, Service, SetAttr, XattrMode,
};
use super::snapdir::{CONTROL, SNAPDIR, ZFS};
use super::takeover::Takeover;
use crate::live::{AttrChange, HandleId, KernelRequest, NewInode};
use ckptfs_store::ids::Slot;
use ckptfs_sys::open_flags as libc_flags;
use ckptfs_sys::{self as sys, Errno, Kind, Ledger, SysResult, is_own_xattr};

impl Service for Engine {
    fn counts(&self) -> &Arc<RequestCounts> {
        &self.serving.counts
    }

    fn ledger(&self) -> Option<Arc<Ledger>> {
        self.succession
            .as_ref()
            .map(|succession| Arc::clone(&succession.ledger))
    }

    fn adopt(&self, left: &HandedOverFile) -> SysResult<()> {
        Takeover::new(self).adopt_open(left)
    }

    fn adopted(&self) {
        Takeover::new(self).adopt_rest();
    }

    fn started(&self, passthrough: bool) {
        self.live.passthrough.set(
            passthrough && self.serving.config.wants_passthrough,
            self.serving.config.io_for_all,
        );
    }

    fn ended(&self) {
        tracing::info!("the session has ended");
    }

    fn no_passthrough(&self, fh: Fh) {
        tracing::warn!(
            "the kernel refused to do the I/O of a file; files opened from now on are served by the daemon"
        );
        self.live.files.demote(HandleId(fh.0));
        self.live.passthrough.set(false, false);
    }

    fn waits(&self, parent: NodeId) -> bool {
        // A checkpoint waits until the kernel has written dirty pages back, which it does with
        // requests.
        parent == SNAPDIR
    }

    fn lookup(&self, caller: Caller, parent: NodeId, name: &[u8]) -> SysResult<LookupResult> {
        self.announcer
            .lookup(caller, parent, name)
            .unwrap_or_else(|| self.look_up(caller.pid, parent, name))
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        if node.0 & PAST != 0 {
            self.views.past.forget(node, lookups);
        } else if node.0 & CONTROL != 0 {
            self.snapdir.links.forget(node, lookups);
        } else {
            self.live.nodes.forget(Slot(node.0), lookups);
        }
    }

    fn getattr(&self, node: NodeId, fh: Option<Fh>) -> SysResult<Attr> {
        if is_dummy(node) {
            return Ok(announce::attr(node));
        }
        match self.node(node)? {
            Node::Past(past) => Ok(Attr {
                stat: self.views.past_stat(&past)?,
                ttl: FOR_EVER,
            }),
            Node::Control(id) => Ok(Attr {
                stat: self.snapdir.control_stat(id)?,
                ttl: Duration::ZERO,
            }),
            Node::Foreign(id) => foreign::attr(self, id),
            Node::Live(slot) => Ok(self.live_attr(slot, live_stat(&self.live, slot, fh)?)),
        }
    }

    fn setattr(
        &self,
        caller: Caller,
        node: NodeId,
        fh: Option<Fh>,
        set: SetAttr,
    ) -> SysResult<Attr> {
        if self.announcer.sets_nothing(caller, node) {
            return self.getattr(node, None);
        }
        let change = &self.live.writers.change_by(caller.pid, caller.uid);
        let slot = self.writable(node)?;
        let handle = match fh {
            Some(fh) if fh.0 & PAST_HANDLE == 0 => self.live.handles.get(HandleId(fh.0)).ok(),
            _ => None,
        };
        let new = AttrChange {
            mode: set.mode,
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: set.atime,
            mtime: set.mtime,
            asker: Some(caller.asker()),
        };
        let file = handle
            .as_ref()
            .filter(|handle| handle.flags.write)
            .map(|handle| &*handle.file);
        let empties = new.size == Some(0);
        let act = || self.live.attrs.set_attr(change, slot, file, &new);
        let stat = if empties {
            self.automatic.destroying(
                caller,
                || has_content(&self.live, slot),
                act,
                |_| Some(slot),
            )
        } else {
            act()
        };
        // A failed call may have changed some attributes, and the kernel keeps its cache.
        let stat = stat.inspect_err(|_| self.serving.attributes_changed(node))?;
        self.snapdir.root_changed(slot);
        Ok(self.live_attr(slot, stat))
    }

    fn readlink(&self, node: NodeId) -> SysResult<Vec<u8>> {
        match self.node(node)? {
            Node::Live(slot) => self.live.inodes.read_link(slot),
            Node::Control(id) => self.snapdir.control_link(id),
            Node::Foreign(_) => Err(Errno::EINVAL),
            Node::Past(past) => {
                self.views.check_kept(&past)?;
                let attr = self.states.view(past.state()).attr(&past.trail)?;
                attr.target.ok_or(Errno::EINVAL)
            }
        }
    }

    fn make(&self, caller: Caller, parent: NodeId, name: &[u8], new: NewNode) -> SysResult<Entry> {
        if let Some(answer) = self.announcer.make(caller, parent, name) {
            return answer;
        }
        if new.kind == Kind::Dir && self.waits(parent) {
            return self.mkdir_snapshot(caller, name);
        }
        let change = &self.live.writers.change_by(caller.pid, caller.uid);
        let (slot, name) = self.writable_name(parent, name)?;
        let make = NewInode {
            mode: new.mode & 0o7777,
            umask: new.umask,
            rdev: new.rdev,
            ..made_by(caller, new.kind)
        };
        Ok(self.made(&self.live.names.make(change, slot, &name, &make)?))
    }

    fn symlink(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> SysResult<Entry> {
        if let Some(answer) = self.announcer.make(caller, parent, name) {
            return answer;
        }
        let change = &self.live.writers.change_by(caller.pid, caller.uid);
        let (slot, name) = self.writable_name(parent, name)?;
        let make = NewInode {
            target,
            ..made_by(caller, Kind::Symlink)
        };
        Ok(self.made(&self.live.names.make(change, slot, &name, &make)?))
    }

    fn link(&self, caller: Caller, node: NodeId, parent: NodeId, name: &[u8]) -> SysResult<Entry> {
        let change = &self.live.writers.change_by(caller.pid, caller.uid);
        let (parent, name) = self.writable_name(parent, name)?;
        let slot = match self.node(node)? {
            Node::Live(slot) => slot,
            Node::Past(_) | Node::Control(_) | Node::Foreign(_) => return Err(Errno::EXDEV),
        };
        Ok(self.made(
            &self
                .live
                .names
                .link(change, slot, parent, &name, caller.again)?,
        ))
    }

    fn unlink(&self, caller: Caller, parent: NodeId, name: &[u8]) -> SysResult<()> {
        if let Some(answer) = self.announcer.remove(caller, parent, name) {
            return answer;
        }
        if parent == SNAPDIR {
            return removed(self.unlink_snapshot(caller, name), caller.again).map(drop);
        }
        let change = &self.live.writers.change_by(caller.pid, caller.uid);
        let (slot, name) = self.writable_name(parent, name)?;
        let act = || removed(self.live.removal.unlink(change, slot, &name), caller.again);
        self.automatic
            .destroying(
                caller,
                || !self.automatic.is_temporary(slot, &name),
                act,
                |gone| *gone,
            )
            .map(drop)
    }

    fn rmdir(&self, caller: Caller, parent: NodeId, name: &[u8]) -> SysResult<()> {
        if let Some(answer) = self.announcer.remove(caller, parent, name) {
            return answer;
        }
        if self.waits(parent) {
            let done = self.rmdir_snapshot(caller, name);
            return removed(done, caller.again).map(drop);
        }
        let change = &self.live.writers.change_by(caller.pid, caller.uid);
        let (slot, name) = self.writable_name(parent, name)?;
        let act = || removed(self.live.removal.rmdir(change, slot, &name), caller.again);
        self.automatic
            .destroying(caller, || true, act, |gone| *gone)
            .map(drop)
    }

    fn rename(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        how: RenameMode,
    ) -> SysResult<()> {
        if let Some(answer) = self
            .announcer
            .rename(caller, (parent, name), (new_parent, new_name))
        {
            return answer;
        }
        let change = &self.live.writers.change_by(caller.pid, caller.uid);
        let from = self.writable_name(parent, name)?;
        let to = self.writable_name(new_parent, new_name)?;
        let turn = KernelRequest {
            request: caller.request,
            again: caller.again,
            owner: (caller.uid, caller.gid),
        };
        let act = |how| {
            self.live
                .names
                .rename(change, (from.0, &from.1), (to.0, &to.1), how, turn)
        };
        let replace = |destroys| {
            self.automatic
                .destroying(caller, || destroys, || act(how), |replaced| *replaced)
                .map(drop)
        };
        if how != RenameMode::Replace || caller.again || !self.automatic.suspects(caller) {
            return replace(false);
        }
        // The rename itself detects an existing target, at no cost without one.
        match act(RenameMode::NoReplace) {
            Err(Errno::EEXIST) => replace(true),
            done => done.map(drop),
        }
    }

    fn open(&self, caller: Caller, node: NodeId, flags: i32) -> SysResult<Opened> {
        if let Some(answer) = self.announcer.open(caller, node) {
            return answer;
        }
        self.views.check_descriptors()?;
        let flags = open_flags(flags, Some(caller.asker()));
        match self.node(node)? {
            Node::Control(_) | Node::Foreign(_) => Err(Errno::EINVAL),
            Node::Past(_) if flags.write || flags.truncate => Err(Errno::EROFS),
            Node::Past(past) => {
                self.views.check_kept(&past)?;
                let view = self.states.view(past.state());
                Ok(past_opened(self.views.past.open(&view, past)?))
            }
            Node::Live(slot) => {
                let changes = flags.write || flags.truncate;
                let change = || self.live.writers.change_by(caller.pid, caller.uid);
                let change = changes.then(change).unwrap_or_default();
                let act = || self.live.files.open(&change, slot, flags);
                let opened = if flags.truncate {
                    self.automatic.destroying(
                        caller,
                        || has_content(&self.live, slot),
                        act,
                        |_| Some(slot),
                    )
                } else {
                    act()
                };
                let (id, handle) = opened?;
                if flags.truncate && handle.may_be_set_id() {
                    self.serving.attributes_changed(node);
                }
                Ok(self.opened(id, &handle))
            }
        }
    }

    fn create(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> SysResult<(Entry, Opened)> {
        if let Some(answer) = self.announcer.make(caller, parent, name) {
            return answer.map(|dummy| (dummy, announce::opened()));
        }
        self.views.check_descriptors()?;
        let change = &self.live.writers.change_by(caller.pid, caller.uid);
        let (slot, name) = self.writable_name(parent, name)?;
        let make = NewInode {
            mode: mode & 0o7777,
            umask,
            ..made_by(caller, Kind::File)
        };
        let flags = open_flags(flags, Some(caller.asker()));
        let files = &self.live.files;
        let (made, id, handle) = files.create(change, slot, &name, &make, flags)?;
        let entry = Entry {
            ttl: FOR_EVER,
            ..self.made(&made)
        };
        Ok((entry, self.opened(id, &handle)))
    }

    fn created(&self, node: NodeId) {
        if let Ok(Node::Live(slot)) = self.node(node)
            && self.live.hot.changes_unseen(slot)
        {
            self.serving.attributes_changed(node);
        }
    }

    fn read(
        &self,
        _node: NodeId,
        fh: Fh,
        offset: u64,
        size: u32,
        for_cache: bool,
    ) -> SysResult<Vec<u8>> {
        match self.views.open_file(fh)? {
            // sendfile(2) and splice(2) fill the page cache even for handles that bypass it; those
            // pages would become stale.
            OpenFileRef::Live(handle)
                if for_cache && self.live.files.changes_past_cache(&handle) =>
            {
                Err(Errno::EINVAL)
            }
            OpenFileRef::Live(_) => self.live.files.read(HandleId(fh.0), offset, size),
            OpenFileRef::Past(handle) => {
                handle.read(&self.states.view(handle.state()), offset, size)
            }
        }
    }

    fn write(
        &self,
        caller: Caller,
        node: NodeId,
        fh: Fh,
        offset: u64,
        data: &[u8],
        from_cache: bool,
    ) -> SysResult<u32> {
        if fh.0 & PAST_HANDLE != 0 {
            return Err(Errno::EROFS);
        }
        let asker = (!from_cache).then(|| caller.asker());
        let change = asker
            .map(|_| self.live.writers.change_by(caller.pid, caller.uid))
            .unwrap_or_default();
        let (written, may_be_set_id) =
            self.live
                .files
                .write(&change, HandleId(fh.0), offset, data, asker)?;
        if may_be_set_id {
            self.serving.attributes_changed(node);
        }
        Ok(written)
    }

    fn flush(&self, _node: NodeId, _fh: Fh) -> SysResult<()> {
        Ok(())
    }

    fn release(&self, _node: NodeId, fh: Fh) {
        if fh.0 & PAST_HANDLE != 0 {
            self.views.past.release(fh)
        } else {
            self.live.files.release(HandleId(fh.0))
        }
    }

    fn fsync(&self, _node: NodeId, fh: Fh, data_only: bool) -> SysResult<()> {
        if fh.0 & PAST_HANDLE != 0 {
            Ok(())
        } else {
            self.live.files.fsync(HandleId(fh.0), data_only)
        }
    }

    fn readdir(&self, node: NodeId, offset: u64) -> SysResult<Names> {
        match self.node(node)? {
            Node::Live(slot) => self.list_live(node, slot, offset),
            Node::Past(dir) => self.views.list_past(&dir, offset),
            Node::Control(id) => self.snapdir.list_control(id, offset),
            Node::Foreign(_) => Err(Errno::EXDEV),
        }
    }

    fn plus(&self, parent: NodeId, listed: &Listed) -> Option<Plus> {
        if let Ok(Node::Past(dir)) = self.node(parent) {
            let entry = self.views.past_listed(&dir, listed).ok()?;
            return Some(Plus { entry, told: true });
        }
        match self.look_up(0, parent, &listed.name) {
            Ok(LookupResult::Found(entry)) => Some(Plus {
                entry,
                // After the lookup: if the lookup saw the name removed, the unlink is recorded
                // here.
                told: !self.live.recent_unlinks.has(Slot(entry.node.0)),
            }),
            Ok(LookupResult::Absent(_)) | Err(_) => None,
        }
    }

    fn fsyncdir(&self, node: NodeId, _data_only: bool) -> SysResult<()> {
        match self.node(node)? {
            Node::Live(slot) => self.live.files.fsync_dir(slot),
            Node::Past(_) | Node::Control(_) | Node::Foreign(_) => Ok(()),
        }
    }

    fn statfs(&self, _node: NodeId) -> SysResult<FsInfo> {
        sys::statfs_fd(self.live.root())
    }

    fn setxattr(
        &self,
        caller: Caller,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        how: XattrMode,
    ) -> SysResult<()> {
        let change = &self.live.writers.change_by(caller.pid, caller.uid);
        check_not_own(name)?;
        let slot = self.writable(node)?;
        match self
            .live
            .attrs
            .set_xattr(change, slot, name, value, how, Some(caller.asker()))
        {
            // Set by the dead worker: the kernel serializes changes of an inode.
            Err(Errno::EEXIST) if caller.again => {}
            set => set?,
        }
        self.snapdir.root_changed(slot);
        Ok(())
    }

    fn getxattr(&self, node: NodeId, name: &[u8]) -> SysResult<Vec<u8>> {
        if is_own_xattr(name) {
            return Err(Errno::NO_XATTR);
        }
        match self.node(node)? {
            Node::Live(slot) => self.live.attrs.get_xattr(slot, name),
            Node::Control(SNAPDIR | ZFS) => self.snapdir.snapdir_xattr(name),
            Node::Control(_) | Node::Foreign(_) => Err(Errno::NO_XATTR),
            Node::Past(past) => {
                let mut xattrs = past_xattrs(self, &past)?.into_iter();
                let found = xattrs.find(|(known, _)| known == name);
                found.map(|(_, value)| value).ok_or(Errno::NO_XATTR)
            }
        }
    }

    fn listxattr(&self, caller: Caller, node: NodeId) -> SysResult<Vec<Vec<u8>>> {
        let mut names: Vec<Vec<u8>> = match self.node(node)? {
            Node::Live(slot) => self.live.attrs.list_xattrs(slot)?,
            Node::Control(_) | Node::Foreign(_) => Vec::new(),
            Node::Past(past) => past_xattrs(self, &past)?
                .into_iter()
                .map(|(name, _)| name)
                .collect(),
        };
        hide_xattrs(&mut names, caller);
        Ok(names)
    }

    fn removexattr(&self, caller: Caller, node: NodeId, name: &[u8]) -> SysResult<()> {
        let change = &self.live.writers.change_by(caller.pid, caller.uid);
        check_not_own(name)?;
        let slot = self.writable(node)?;
        match self.live.attrs.remove_xattr(change, slot, name) {
            Err(Errno::NO_XATTR) if caller.again => {}
            removed => removed?,
        }
        self.snapdir.root_changed(slot);
        Ok(())
    }

    fn access(&self, _caller: Caller, node: NodeId, mask: i32) -> SysResult<()> {
        // The kernel checks permissions (default_permissions); only writes to views are left.
        match self.node(node)? {
            Node::Past(_) if mask & libc_flags::W_OK != 0 => Err(Errno::EROFS),
            _ => Ok(()),
        }
    }

    fn fallocate(
        &self,
        caller: Caller,
        node: NodeId,
        fh: Fh,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> SysResult<()> {
        let change = &self.live.writers.change_by(caller.pid, caller.uid);
        let OpenFileRef::Live(handle) = self.views.open_file(fh)? else {
            return Err(Errno::EROFS);
        };
        let act = |file: &_| sys::fallocate(file, mode, offset, length);
        let files = &self.live.files;
        files.change_content(change, &handle, Some(caller.asker()), act)?;
        if handle.may_be_set_id() {
            self.serving.attributes_changed(node);
        }
        Ok(())
    }

    fn lseek(&self, _node: NodeId, fh: Fh, offset: u64, seek: Seek) -> SysResult<u64> {
        self.views.seek(fh, offset, seek)
    }

    fn copy_file_range(
        &self,
        caller: Caller,
        from: (NodeId, Fh, u64),
        to: (NodeId, Fh, u64),
        length: u64,
    ) -> SysResult<u64> {
        let change = &self.live.writers.change_by(caller.pid, caller.uid);
        let OpenFileRef::Live(target) = self.views.open_file(to.1)? else {
            return Err(Errno::EROFS);
        };
        let (from, into) = ((from.1, from.2), (&*target, to.2));
        let views = &self.views;
        let copied = views.copy_range(change, caller.asker(), from, into, length)?;
        if target.may_be_set_id() {
            self.serving.attributes_changed(to.0);
        }
        Ok(copied)
    }
}
