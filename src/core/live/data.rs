//! Open files: handles, and I/O through the daemon.
//!
//! With passthrough the kernel writes to the backing file itself. A file is therefore captured when
//! it is opened for writing. The capture is voided after the last close if the file did not change
//! (`Settling::settle`). With daemon I/O the first write captures.

mod inherited;
mod sync;

use std::fs::File;
use std::sync::Arc;

use super::attrs::{AttrChange, Attrs};
use super::capture_ctx::{CaptureCtx, Captures, Durability, Inodes, LockWaits, WriterTable};
use super::change::ChangeCtx;
use super::copy_up::CopyUp;
use super::handles::{Handle, HandleId, OpenFlags, SET_ID};
use super::inodes::NodeRef;
use super::mapped::MappedWatch;
use super::names::{CreatedInode, Names, NewInode};
use super::nodes::IoMode;
use super::remove::Removal;
use super::settle::Settling;
use super::shared_tables::{Handles, HotFiles, Locks, NodeTable, Passthrough, SharedTables};
use crate::history::timeline::Timeline;
use crate::history::view::OpenContent;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::Key;
use ckptfs_sys::lock::RwLockReadGuard;
use ckptfs_sys::{self as sys, Access, Errno, Protection, RequesterIds, Stat, SysResult};

/// Opens, reads, writes and closes files.
pub struct Files {
    timeline: Arc<Timeline>,
    locks: Arc<Locks>,
    nodes: Arc<NodeTable>,
    hot: Arc<HotFiles>,
    handles: Arc<Handles>,
    passthrough: Arc<Passthrough>,
    inodes: Arc<Inodes>,
    durability: Arc<Durability>,
    writers: Arc<WriterTable>,
    captures: Arc<Captures>,
    busy: Arc<LockWaits>,
    settling: Arc<Settling>,
    mapped: Arc<MappedWatch>,
    attrs: Arc<Attrs>,
    names: Arc<Names>,
    removal: Arc<Removal>,
    copies: Arc<CopyUp>,
}

/// Dependencies of [`Files`]: the context of every change, the parts that track open files, and
/// those that change names and attributes.
pub(super) type FilesDeps<'a> = (
    (&'a SharedTables, &'a CaptureCtx, &'a Arc<CopyUp>),
    (&'a Arc<Settling>, &'a Arc<MappedWatch>),
    (&'a Arc<Attrs>, &'a Arc<Names>, &'a Arc<Removal>),
);

impl Files {
    pub(super) fn new(
        ((tables, past, copies), (settling, mapped), (attrs, names, removal)): FilesDeps<'_>,
    ) -> Files {
        Files {
            timeline: Arc::clone(&tables.timeline),
            locks: Arc::clone(&tables.locks),
            nodes: Arc::clone(&tables.nodes),
            hot: Arc::clone(&tables.hot),
            handles: Arc::clone(&tables.handles),
            passthrough: Arc::clone(&tables.passthrough),
            inodes: Arc::clone(&past.inodes),
            durability: Arc::clone(&past.durability),
            writers: Arc::clone(&past.writers),
            captures: Arc::clone(&past.captures),
            busy: Arc::clone(&past.busy),
            settling: Arc::clone(settling),
            mapped: Arc::clone(mapped),
            attrs: Arc::clone(attrs),
            names: Arc::clone(names),
            removal: Arc::clone(removal),
            copies: Arc::clone(copies),
        }
    }

    /// Returns whether handles and hot files use fewer than this number of descriptors. A handle
    /// uses one, a mappable file one more.
    pub fn holds_fewer_than(&self, descriptors: usize) -> bool {
        let handles = self.handles.count();
        let hot = self.hot.lock();
        // The exact count is computed only if the upper bound does not decide.
        handles + hot.len() < descriptors
            || handles + hot.values().filter(|hot| hot.has_descriptor()).count() < descriptors
    }

    /// Returns the I/O mode of a file that is being opened. All handles of an open file share one
    /// mode. Users who may not use passthrough ([`Passthrough::is_for`]) then still go through the
    /// daemon.
    fn io_mode(&self, slot: Slot, flags: OpenFlags, stat: &Stat) -> IoMode {
        let open = {
            self.nodes
                .lock()
                .get(slot)
                .filter(|node| node.handles() > 0)
                .and_then(|node| node.io())
        };
        open.unwrap_or_else(|| match stat.protection {
            // With passthrough, a process that opened the file for appending could store to it
            // through a mapping, or clear `O_APPEND`.
            Protection::AppendOnly => IoMode::Daemon,
            _ => self.first_io_mode(flags, stat.mode),
        })
    }

    /// Returns the I/O mode of a file with this mode that has no open handle. The kernel caches
    /// set-id bits, and a passthrough write would not invalidate them.
    fn first_io_mode(&self, flags: OpenFlags, mode: u32) -> IoMode {
        if mode & SET_ID == 0 && self.passthrough.is_for(flags.asker) {
            IoMode::Passthrough
        } else {
            IoMode::Daemon
        }
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// Those of open(2). ENOSPC or EIO if the capture failed. ETXTBSY for `O_TRUNC` on an
    /// executable file that is opened for reading.
    pub fn open(
        &self,
        change: &ChangeCtx,
        slot: Slot,
        flags: OpenFlags,
    ) -> SysResult<(HandleId, Arc<Handle>)> {
        if flags.write || flags.truncate || self.is_served_by_kernel(slot, flags)? {
            self.copies.own(slot)?;
        } else if let Some(opened) = self.open_inherited(change, slot, flags)? {
            return Ok(opened);
        }
        let (id, handle) = self
            .busy
            .patiently(change, || self.open_now(change, slot, flags))?;
        // No process has the handle yet, and no lock is held during the sync.
        if flags.write && !flags.truncate && self.is_synced_unseen(flags, handle.io) {
            self.durability
                .make_captures_durable(slot)
                .inspect_err(|_| self.not_opened(id))?;
        }
        Ok((id, handle))
    }

    fn open_now(
        &self,
        change: &ChangeCtx,
        slot: Slot,
        flags: OpenFlags,
    ) -> SysResult<(HandleId, Arc<Handle>)> {
        if !flags.write {
            return self.open_to_read(change, slot, flags);
        }
        let _changing = self.locks.enter();
        let _tree = self.locks.tree.read();
        // Before the open: a thread that settles the file holds a lease, and this open never blocks
        // and would fail (EAGAIN).
        let _stripe = self.locks.stripe(slot);
        // The open itself changes nothing; the content is truncated below, after its capture.
        let (file, stat, readable, flags) = self.open_backing(slot, flags)?;
        let io = self.io_mode(slot, flags, &stat);
        self.inodes.check_not_kept(slot, &file)?;
        if io == IoMode::Passthrough || flags.truncate {
            self.busy
                .capture_first(change, slot, !flags.truncate, || Ok(stat))?;
        }
        if flags.truncate {
            self.busy.probe_first(change, slot)?;
        }
        let touches = (io == IoMode::Passthrough || flags.truncate) && !self.nodes.is_dead(slot);
        let found =
            (touches && self.timeline.processes.touch_data(&change.author, slot)).then_some(stat);
        self.prepare_write(change, slot, (&file, readable), flags, io)?;
        if flags.truncate && self.is_synced_unseen(flags, io) {
            self.durability.make_captures_durable(slot)?;
        }
        let (id, handle) = self.opened(change, slot, file, flags, io, (stat.mode, found))?;
        if self.is_synced_unseen(flags, io) {
            self.hot.note_syncs(slot);
        }
        if flags.truncate {
            // Also an empty file: truncation sets its times, which build tools rely on (`: >
            // stamp`).
            let empty = || self.captures.with_room(|| sys::truncate(&*handle.file, 0));
            let emptied = if handle.may_be_set_id() {
                sys::act_for(flags.asker, empty)
            } else {
                empty()
            };
            emptied.inspect_err(|_| self.not_opened(id))?;
        }
        Ok((id, handle))
    }

    fn open_to_read(
        &self,
        change: &ChangeCtx,
        slot: Slot,
        flags: OpenFlags,
    ) -> SysResult<(HandleId, Arc<Handle>)> {
        let mut mode = 0;
        if flags.truncate {
            // `O_RDONLY | O_TRUNC`: Linux truncates the file if the caller may write it, except a
            // running program. The kernel checks this only after this request (handle_truncate in
            // fs/namei.c), when the program would already be empty.
            mode = self.inodes.stat(slot)?.mode;
            if mode & 0o111 != 0 {
                return Err(Errno::ETXTBSY);
            }
            let empty = AttrChange {
                size: Some(0),
                asker: flags.asker,
                ..AttrChange::default()
            };
            self.attrs.set_attr(change, slot, None, &empty)?;
        }
        let _tree = self.locks.tree.read();
        let _stripe = self.locks.stripe(slot);
        let (file, stat, _, flags) = self.open_backing(slot, flags)?;
        let io = self.io_mode(slot, flags, &stat);
        self.opened(change, slot, file, flags, io, (stat.mode | mode, None))
    }

    /// Reverts an open before its reply. The file is settled with the next close.
    fn not_opened(&self, id: HandleId) {
        let Some(handle) = self.handles.remove(id) else {
            return;
        };
        self.nodes
            .lock()
            .closed(handle.slot, handle.flags.read, handle.flags.write);
        self.writers.writer_left(id.0);
    }

    /// Opens the backing file as requested, and also for reading if it must be captured, which
    /// saves another open. Returns whether it can be read, and the effective flags.
    fn open_backing(
        &self,
        slot: Slot,
        flags: OpenFlags,
    ) -> SysResult<(File, Stat, bool, OpenFlags)> {
        let how = flags.backing();
        let readable = how.read
            || ((self.passthrough.is_on() || flags.truncate)
                && self.timeline.epochs.needs(&Key::Data(slot)));
        let open = |read: bool, noatime: bool| {
            let how = Access {
                read,
                noatime,
                ..how
            };
            let opened = flags.open(&self.inodes, slot, how);
            opened.map(|(file, stat, flags)| (file, stat, read, flags))
        };
        match open(readable, how.noatime) {
            // The kernel permits the owner of a file to use `O_NOATIME`, and a write-only open of
            // an unreadable file. A daemon of another user may lack these permissions.
            Err(Errno::EPERM) if how.noatime => open(how.read, false),
            Err(Errno::EACCES) if readable && !how.read => open(false, how.noatime),
            result => result,
        }
    }

    /// Returns whether data written through this handle can be synced without a request: with
    /// O_SYNC, or through a mapping that the kernel serves itself.
    fn is_synced_unseen(&self, flags: OpenFlags, io: IoMode) -> bool {
        self.durability.syncs_overtake()
            && io == IoMode::Passthrough
            && (flags.is_synced() || flags.read)
    }

    fn prepare_write(
        &self,
        change: &ChangeCtx,
        slot: Slot,
        (file, readable): (&File, bool),
        flags: OpenFlags,
        io: IoMode,
    ) -> SysResult<()> {
        let ahead = io == IoMode::Passthrough;
        if !(ahead || flags.truncate)
            || !self.timeline.epochs.needs(&Key::Data(slot))
            || self.nodes.is_dead(slot)
        {
            if flags.truncate {
                self.timeline.epochs.confirm(slot);
            }
            return self.timeline.processes.tell_touches(&change.author);
        }
        self.captures
            .capture_open(change, slot.into(), (file, readable), !flags.truncate)
    }

    /// Creates and opens a regular file, and counts one lookup of it.
    ///
    /// # Errors
    /// As [`Names::make`].
    pub fn create(
        &self,
        change: &ChangeCtx,
        parent: Slot,
        name: &Name,
        make: &NewInode<'_>,
        flags: OpenFlags,
    ) -> SysResult<(CreatedInode, HandleId, Arc<Handle>)> {
        let (made, id, handle) = self.create_now(change, parent, name, make, flags)?;
        // As in `open`. No checkpoint shows a new file, so a mappable one requires no sync (see
        // `durable`).
        if flags.is_synced() && self.is_synced_unseen(flags, handle.io) {
            self.durability
                .make_captures_durable(made.slot)
                .inspect_err(|_| {
                    self.not_opened(id);
                    self.nodes.forget(made.slot, 1);
                })?;
        }
        Ok((made, id, handle))
    }

    fn create_now(
        &self,
        change: &ChangeCtx,
        parent: Slot,
        name: &Name,
        make: &NewInode<'_>,
        flags: OpenFlags,
    ) -> SysResult<(CreatedInode, HandleId, Arc<Handle>)> {
        self.copies.own(parent)?;
        let _changing = self.locks.enter();
        let _tree = self.locks.tree.write();
        let io = self.first_io_mode(flags, make.mode);
        let open = flags.backing();
        let mut made = self.names.make_in(
            change,
            parent.into(),
            name,
            &NewInode {
                open: Some(open),
                ..make.clone()
            },
            1,
        )?;
        let file = made.file.take().ok_or(Errno::EIO)?;
        match self.opened(change, made.slot, file, flags, io, (make.mode, None)) {
            Ok((id, handle)) => {
                if flags.is_synced() && self.is_synced_unseen(flags, io) {
                    self.hot.note_syncs(made.slot);
                }
                Ok((made, id, handle))
            }
            Err(errno) => {
                self.nodes.forget(made.slot, 1);
                let removed = self.removal.remove_in(change, parent.into(), name, false);
                tracing::debug!(?removed, "a file that was made and could not be opened");
                Err(errno)
            }
        }
    }

    /// Adds a new handle to the tables. The caller holds the freeze lock if the handle is writable.
    /// `known` has the mode of the file, and its attributes if the process is a new writer.
    fn opened(
        &self,
        change: &ChangeCtx,
        slot: Slot,
        file: File,
        flags: OpenFlags,
        io: IoMode,
        known: (u32, Option<Stat>),
    ) -> SysResult<(HandleId, Arc<Handle>)> {
        self.opened_as(change, slot, Arc::new(file), flags, io, known, None)
    }

    /// As [`Files::opened`]; `inherited` is the content to read if the base provides the file.
    #[allow(clippy::too_many_arguments)]
    fn opened_as(
        &self,
        change: &ChangeCtx,
        slot: Slot,
        file: Arc<File>,
        flags: OpenFlags,
        io: IoMode,
        (mode, found): (u32, Option<Stat>),
        inherited: Option<OpenContent>,
    ) -> SysResult<(HandleId, Arc<Handle>)> {
        if io == IoMode::Passthrough && flags.write {
            let by = change.author.process().cloned().map(|by| (by, found));
            self.hot.note(slot, &file, flags.read, by)?;
        }
        self.nodes.opened(slot, flags.read, flags.write, io);
        if io == IoMode::Daemon && flags.write {
            self.mapped.touch(slot);
        }
        let by = change.author.process().filter(|_| flags.write).cloned();
        let mut handle = Handle::new(slot, file, flags, io, by, mode);
        handle.inherited = inherited;
        let (id, handle) = self.handles.put(handle);
        self.writers.note_writer(id.0, &handle);
        Ok((id, handle))
    }

    /// Switches a handle to daemon I/O after the kernel rejected passthrough.
    pub fn demote(&self, id: HandleId) {
        let Ok(handle) = self.handles.get(id) else {
            return;
        };
        if let Some(node) = self.nodes.lock().get_mut(handle.slot) {
            node.set_io(IoMode::Daemon);
        }
        let mode = if handle.may_be_set_id() { SET_ID } else { 0 };
        let demoted = Handle::new(
            handle.slot,
            Arc::clone(&handle.file),
            handle.flags,
            IoMode::Daemon,
            handle.by.clone(),
            mode,
        );
        self.handles.replace(id, demoted);
    }

    /// Closes a handle. If it was the last writer, the file is settled.
    pub fn release(&self, id: HandleId) {
        let Some(handle) = self.handles.remove(id) else {
            return;
        };
        let slot = handle.slot;
        let (dead, last_writer) = {
            let mut nodes = self.nodes.lock();
            (
                nodes.get(slot).is_some_and(|node| node.dead),
                nodes.closed(slot, handle.flags.read, handle.flags.write),
            )
        };
        self.nodes.note_closed();
        let passthrough = handle.io == IoMode::Passthrough;
        let writer = handle
            .by
            .clone()
            .filter(|_| passthrough && handle.flags.write);
        self.writers.writer_left(id.0);
        // The lease requires that the descriptor is closed.
        if dead {
            self.nodes.close_apart(handle)
        } else {
            drop(handle)
        }
        self.nodes.drop_orphan(slot);
        if last_writer && passthrough {
            let _changing = self.locks.changing();
            let _tree = self.locks.tree.read();
            self.settling.settle_released(slot);
        }
        if let Some(writer) = writer {
            self.settling.opener_left(slot, &writer);
        }
    }

    /// Returns whether the file of this handle may change without an update of the mount's page
    /// cache.
    pub fn changes_past_cache(&self, handle: &Handle) -> bool {
        handle.io == IoMode::Passthrough
            && self
                .nodes
                .lock()
                .get(handle.slot)
                .is_some_and(|node| node.writers() > 0)
    }

    /// Reads through the daemon.
    ///
    /// # Errors
    /// Those of pread(2).
    pub fn read(&self, id: HandleId, offset: u64, size: u32) -> SysResult<Vec<u8>> {
        let handle = self.handles.get(id)?;
        self.mapped.touch(handle.slot);
        if let Some(read) = self.read_inherited(&handle, offset, size)? {
            return Ok(read);
        }
        self.with_source(&handle, |file| {
            let mut buffer = vec![0_u8; size as usize];
            let filled = match file {
                Some(file) => sys::read_full_at(file, &mut buffer, offset)?,
                None => 0,
            };
            buffer.truncate(filled);
            Ok(buffer)
        })
    }

    /// Captures a file, then changes its content through one of its handles, under the freeze lock.
    /// The change is made with the credentials of `asker` where these decide about set-id bits. The
    /// handle's own descriptor cannot be the source of the capture, because it may be write-only.
    pub fn change_content<T>(
        &self,
        change: &ChangeCtx,
        handle: &Handle,
        asker: Option<RequesterIds>,
        act: impl FnOnce(&File) -> SysResult<T>,
    ) -> SysResult<T> {
        let _changing = self
            .busy
            .patiently(change, || self.keep_content_of(change, handle))?;
        self.timeline.processes.tell_touches(&change.author)?;
        let _sync = if handle.flags.is_synced() {
            let sync = self.durability.begin_sync();
            self.durability.make_captures_durable(handle.slot)?;
            Some(sync)
        } else {
            None
        };
        let uid = asker.map(|asker| asker.uid);
        let act = || self.captures.within_limits(uid, || act(&handle.file));
        if handle.may_be_set_id() {
            sys::act_for(asker, act)
        } else {
            act()
        }
    }

    /// Captures the file that is about to change, and returns the freeze lock.
    fn keep_content_of(
        &self,
        change: &ChangeCtx,
        handle: &Handle,
    ) -> SysResult<RwLockReadGuard<'_, ()>> {
        let changing = self.locks.enter();
        let slot = handle.slot;
        if !self.nodes.is_dead(slot) {
            self.timeline.processes.touch_data(&change.author, slot);
        }
        let needed = self.timeline.epochs.needs(&Key::Data(slot)) && !self.nodes.is_dead(slot);
        if needed || handle.io == IoMode::Passthrough {
            let _tree = self.locks.tree.read();
            let _stripe = self.locks.stripe(slot);
            self.busy.probe_first(change, slot)?;
            if needed && self.timeline.epochs.needs(&Key::Data(slot)) {
                self.busy
                    .capture_first(change, slot, false, || sys::stat_fd(&*handle.file))?;
                let file = (&*handle.file, handle.flags.read);
                self.captures
                    .capture_open(change, NodeRef::from(slot), file, false)?;
            }
        }
        Ok(changing)
    }

    /// Writes through the daemon. Without an `asker` the data is dirty pages of a mapping, which do
    /// not clear set-id bits. Returns the bytes written, and whether the file may have lost set-id
    /// bits.
    ///
    /// # Errors
    /// Those of pwrite(2). ENOSPC or EIO if the capture failed; nothing was written then.
    pub fn write(
        &self,
        change: &ChangeCtx,
        id: HandleId,
        offset: u64,
        data: &[u8],
        asker: Option<RequesterIds>,
    ) -> SysResult<(u32, bool)> {
        let handle = self.handles.get(id)?;
        if asker.is_none() {
            self.writers.touch_by_mappers(handle.slot);
        } else {
            self.mapped.touch(handle.slot);
        }
        self.change_content(change, &handle, asker, |file| {
            handle.flags.check_offset(file, offset)?;
            sys::write_all_at(file, data, offset)
        })?;
        Ok((
            u32::try_from(data.len()).unwrap_or(u32::MAX),
            handle.may_be_set_id(),
        ))
    }
}
