//! The table of open handles.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::inodes::Inodes;
use super::nodes::IoMode;
use crate::history::attribution::NumberedProcess;
use crate::history::view::OpenContent;
use ckptfs_store::ids::Slot;
use ckptfs_sys::lock::RwLock;
use ckptfs_sys::{self as sys, Access, Errno, RequesterIds, Stat, SysResult};

/// File handle number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandleId(pub u64);

/// Open flags (open(2)).
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenFlags {
    /// Open for reading.
    pub read: bool,
    /// Open for writing.
    pub write: bool,
    /// `O_TRUNC`.
    pub truncate: bool,
    /// `O_APPEND`.
    pub append: bool,
    /// The file is append-only (chattr(1)), and the backing file is open with `O_APPEND`.
    pub append_only: bool,
    /// `O_SYNC`: data and metadata are on disk when a write returns.
    pub sync: bool,
    /// `O_DSYNC`: as `sync`, for the data alone.
    pub dsync: bool,
    /// `O_NOATIME`: reads do not update the access time.
    pub noatime: bool,
    /// The process that opens the file; `None` for the daemon itself.
    pub asker: Option<RequesterIds>,
}

impl OpenFlags {
    /// Returns whether data is on disk when a write returns.
    pub(super) fn is_synced(self) -> bool {
        self.sync || self.dsync
    }

    /// Returns the flags for the backing file. Writes through the daemon have an explicit offset,
    /// which `O_APPEND` would override; only an append-only file is opened with it. For passthrough
    /// writes the kernel reopens the backing file with the caller's flags.
    pub(super) fn backing(self) -> Access {
        Access {
            read: self.read,
            write: self.write,
            append: self.append_only,
            sync: self.sync,
            dsync: self.dsync,
            noatime: self.noatime,
            ..Access::default()
        }
    }

    /// Opens a regular file for a handle, with `how`. Returns the effective flags: an append-only
    /// file is opened with `O_APPEND` if the caller appends.
    ///
    /// # Errors
    /// As [`Inodes::open_file`]; EPERM for a write to an immutable file, or to an append-only file
    /// without `O_APPEND`.
    pub(super) fn open(
        self,
        inodes: &Inodes,
        slot: Slot,
        how: Access,
    ) -> SysResult<(File, Stat, OpenFlags)> {
        let open = |append_only: bool| {
            let append = how.append || append_only;
            let (file, stat) = inodes.open_file(slot.into(), Access { append, ..how })?;
            let append_only = self.append_only || append_only;
            let flags = OpenFlags {
                append_only,
                ..self
            };
            Ok((file, stat, flags))
        };
        match open(false) {
            Err(Errno::EPERM) if how.write && self.append => open(true),
            opened => opened,
        }
    }

    /// Rejects a write to an append-only file at an offset before its end. Such a write is a store
    /// through a mapping, or from a process that has cleared `O_APPEND` (fcntl(2), `F_SETFL`). The
    /// kernel would append it instead.
    ///
    /// # Errors
    /// EPERM; those of fstat(2).
    pub(super) fn check_offset(self, file: &File, offset: u64) -> SysResult<()> {
        if self.append_only && offset < sys::stat_fd(file)?.size {
            return Err(Errno::EPERM);
        }
        Ok(())
    }
}

/// An open file.
#[derive(Debug)]
pub struct Handle {
    /// The inode.
    pub slot: Slot,
    /// The backing file.
    pub file: Arc<File>,
    /// Flags of the open.
    pub flags: OpenFlags,
    /// I/O mode.
    pub io: IoMode,
    /// The process that opened it, if known.
    pub by: Option<Arc<NumberedProcess>>,
    /// Content to read, if the file was inherited when it was opened.
    pub(super) inherited: Option<OpenContent>,
    /// The file had set-id bits at the open or received them later: I/O through this handle may
    /// clear them.
    set_id: AtomicBool,
}

impl Handle {
    /// Creates a handle that is not yet in the table.
    pub(super) fn new(
        slot: Slot,
        file: Arc<File>,
        flags: OpenFlags,
        io: IoMode,
        by: Option<Arc<NumberedProcess>>,
        mode: u32,
    ) -> Handle {
        Handle {
            slot,
            file,
            flags,
            io,
            by,
            inherited: None,
            set_id: AtomicBool::new(mode & SET_ID != 0),
        }
    }

    /// Returns whether the file may have set-id bits, which the kernel caches until they are
    /// invalidated: see `Files::change_content`.
    pub fn may_be_set_id(&self) -> bool {
        self.set_id.load(Ordering::Relaxed)
    }
}

/// The set-user-ID and set-group-ID bits.
pub(super) const SET_ID: u32 = 0o6000;

/// All open handles.
#[derive(Default)]
pub struct Handles {
    map: RwLock<HashMap<u64, Arc<Handle>>>,
    last: AtomicU64,
}

impl Handles {
    /// Sets the first handle number. It exceeds all numbers of previous workers, because the kernel
    /// may still use those: it sends an unanswered RELEASE again.
    pub fn number_from(&self, first: u64) {
        self.last.fetch_max(first, Ordering::Relaxed);
    }

    pub(super) fn put(&self, handle: Handle) -> (HandleId, Arc<Handle>) {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let handle = Arc::new(handle);
        self.map.write().insert(id, Arc::clone(&handle));
        (HandleId(id), handle)
    }

    /// Adds a handle of the previous worker under its old number. New handles get other numbers.
    pub(super) fn adopt(&self, id: HandleId, handle: Handle) {
        self.last.fetch_max(id.0, Ordering::Relaxed);
        self.replace(id, handle);
    }
}

impl Handles {
    /// Replaces the handle with this number.
    pub(super) fn replace(&self, id: HandleId, handle: Handle) {
        self.map.write().insert(id.0, Arc::new(handle));
    }

    /// Removes a handle from the table.
    pub(super) fn remove(&self, id: HandleId) -> Option<Arc<Handle>> {
        self.map.write().remove(&id.0)
    }

    /// Returns an open handle.
    ///
    /// # Errors
    /// EBADF if the number is unknown.
    pub fn get(&self, id: HandleId) -> SysResult<Arc<Handle>> {
        self.map.read().get(&id.0).cloned().ok_or(Errno::EBADF)
    }

    /// Closes all handles, at the end of the mount.
    pub(super) fn clear(&self) {
        self.map.write().clear();
    }

    /// Returns the number of open handles.
    pub fn count(&self) -> usize {
        self.map.read().len()
    }

    /// Marks the open handles of a file whose new mode has set-id bits.
    pub(super) fn note_mode(&self, slot: Slot, mode: u32) {
        if mode & SET_ID != 0 {
            self.map
                .read()
                .values()
                .filter(|handle| handle.slot == slot)
                .for_each(|handle| handle.set_id.store(true, Ordering::Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel may still release the number 7 on behalf of a dead worker. If another file had
    /// been given that number, its handle would be closed instead, and opens of it would fail with
    /// EIO while a program has it open.
    #[test]
    fn numbers_of_a_worker_before_are_not_given_again() {
        let handles = Handles::default();
        let file = || {
            let file = Arc::new(File::open("/dev/null").expect("opens"));
            Handle::new(Slot(9), file, OpenFlags::default(), IoMode::Daemon, None, 0)
        };
        handles.number_from(1 << 40);
        handles.adopt(HandleId(5), file());
        let (id, _) = handles.put(file());
        assert_eq!(id, HandleId((1 << 40) + 1));
    }
}
