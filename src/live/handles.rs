//! The table of open handles.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::inodes::Inodes;
use super::nodes::IoMode;
use crate::history::attribution::Numbered;
use crate::history::view::OpenContent;
use crate::store::ids::Slot;
use crate::sys::lock::RwLock;
use crate::sys::{self, Asker, Errno, Open, Stat, SysResult};

/// Number of an open handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandleId(pub u64);

/// How a file is opened (open(2)).
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenFlags {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// The content is dropped.
    pub truncate: bool,
    /// Writes go to the end.
    pub append: bool,
    /// Its file takes nothing else (chattr(1)), and the backing file is open with `O_APPEND`.
    pub append_only: bool,
    /// Writes are on disk when they return.
    pub sync: bool,
    /// As `sync`, for the data alone.
    pub dsync: bool,
    /// Reads leave the access time alone.
    pub noatime: bool,
    /// Who opens it; `None`: we do.
    pub asker: Option<Asker>,
}

impl OpenFlags {
    /// A write is on the disk when it returns.
    pub(super) fn is_synced(self) -> bool {
        self.sync || self.dsync
    }

    /// How the backing file is opened. Writes that pass the daemon come with their offset, and an
    /// append flag would send them elsewhere, except in an append-only file; for those that do not,
    /// the kernel opens the backing file anew, as the caller asked.
    pub(super) fn backing(self) -> Open {
        Open {
            read: self.read,
            write: self.write,
            append: self.append_only,
            sync: self.sync,
            dsync: self.dsync,
            noatime: self.noatime,
            ..Open::default()
        }
    }

    /// Opens a regular file for a handle, as these flags or as `how` says. Says how it is open: of an
    /// append-only file whoever writes at the end has `O_APPEND`.
    ///
    /// # Errors
    /// As [`Inodes::open_file`]; EPERM to write elsewhere in an append-only file, or to an immutable
    /// one.
    pub(super) fn open(
        self,
        inodes: &Inodes,
        slot: Slot,
        how: Open,
    ) -> SysResult<(File, Stat, OpenFlags)> {
        let open = |append_only: bool| {
            let append = how.append || append_only;
            let (file, stat) = inodes.open_file(slot.into(), Open { append, ..how })?;
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

    /// Refuses a write to an append-only file that is not at its end: a store through a mapping, or
    /// of somebody who no longer appends (fcntl(2), `F_SETFL`). It would go to the end instead.
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
    /// Whose.
    pub slot: Slot,
    /// The backing file.
    pub file: Arc<File>,
    /// How it was opened.
    pub flags: OpenFlags,
    /// Who does its I/O.
    pub io: IoMode,
    /// The process that opened it, if that is known.
    pub by: Option<Arc<Numbered>>,
    /// What it reads, if it was of the base of a branch when it was opened.
    pub(super) inherited: Option<OpenContent>,
    /// The file had set-id bits when it was opened, or got some since: what is done through this
    /// handle may clear them.
    set_id: AtomicBool,
}

impl Handle {
    /// One that is about to be entered.
    pub(super) fn new(
        slot: Slot,
        file: Arc<File>,
        flags: OpenFlags,
        io: IoMode,
        by: Option<Arc<Numbered>>,
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

    /// The file may have set-id bits, which the kernel keeps in its cache until it is told: see
    /// `Files::change_content`.
    pub fn may_be_set_id(&self) -> bool {
        self.set_id.load(Ordering::Relaxed)
    }
}

/// The set-user-id and the set-group-id bit.
pub(super) const SET_ID: u32 = 0o6000;

/// All open handles.
#[derive(Default)]
pub struct Handles {
    map: RwLock<HashMap<u64, Arc<Handle>>>,
    last: AtomicU64,
}

impl Handles {
    /// From here on numbers are given: none that a worker before this one gave. The kernel may name
    /// those still, as a close that was not answered is given out again.
    pub fn number_from(&self, first: u64) {
        self.last.fetch_max(first, Ordering::Relaxed);
    }

    pub(super) fn put(&self, handle: Handle) -> (HandleId, Arc<Handle>) {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let handle = Arc::new(handle);
        self.map.write().insert(id, Arc::clone(&handle));
        (HandleId(id), handle)
    }

    /// Enters a handle of the worker before, under the number that the kernel knows; new ones get
    /// other numbers.
    pub(super) fn adopt(&self, id: HandleId, handle: Handle) {
        self.last.fetch_max(id.0, Ordering::Relaxed);
        self.replace(id, handle);
    }
}

impl Handles {
    /// Enters a handle in place of the one that has this number.
    pub(super) fn replace(&self, id: HandleId, handle: Handle) {
        self.map.write().insert(id.0, Arc::new(handle));
    }

    /// Takes a handle out of the table.
    pub(super) fn remove(&self, id: HandleId) -> Option<Arc<Handle>> {
        self.map.write().remove(&id.0)
    }

    /// An open handle.
    ///
    /// # Errors
    /// EBADF if it is not open.
    pub fn get(&self, id: HandleId) -> SysResult<Arc<Handle>> {
        self.map.read().get(&id.0).cloned().ok_or(Errno::EBADF)
    }

    /// Closes all that is open: nothing is served any more.
    pub(super) fn clear(&self) {
        self.map.write().clear();
    }

    /// Number of open handles.
    pub fn count(&self) -> usize {
        self.map.read().len()
    }

    /// The file has got this mode: set-id bits are news to whoever has it open.
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

    /// The kernel may still close, on behalf of a worker that died, what had the number 7: if that
    /// was given to another file meanwhile, it was closed instead, and could not be opened again
    /// (EIO) for as long as a program had it open.
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
