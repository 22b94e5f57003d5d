//! Storage of the [record](super::record) of an import: files in the store of the tree.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use super::record::{CHECKPOINT_NAME, DAEMON_NAME, ImportRecord, RECORD_NAME};
use ckptfs_api::CheckpointId;
use ckptfs_store::layout::{Layout, STORE_NAME};
use ckptfs_sys::{self as sys, Access, Errno, RenameMode, SysResult};

/// Size limit of a record, in bytes; a larger file is rejected.
const RECORD_BYTES_MAX: u64 = 8 << 30;

/// The stored record of the last import.
#[derive(Debug, Default)]
pub struct StoredRecord {
    /// The record; `None` if it is missing or damaged.
    pub record: Option<ImportRecord>,
    /// The checkpoint that shows the imported state.
    pub checkpoint: Option<CheckpointId>,
    /// The encoded record.
    bytes: Vec<u8>,
    /// Content of the daemon file.
    daemon: Vec<u8>,
}

impl StoredRecord {
    /// Reads the record from a store. A damaged file counts as missing.
    pub fn read(store: impl AsFd) -> StoredRecord {
        let Ok(bytes) = read_file(&store, RECORD_NAME) else {
            return StoredRecord::default();
        };
        let checkpoint = read_file(&store, CHECKPOINT_NAME)
            .ok()
            .and_then(|text| ImportRecord::checkpoint_of(&bytes, &text));
        let record = ImportRecord::decode(&bytes);
        if record.is_none() {
            tracing::warn!("the record of the last import is damaged: everything is compared");
        }
        let daemon = read_file(&store, DAEMON_NAME).unwrap_or_default();
        StoredRecord {
            checkpoint: checkpoint.map(CheckpointId).filter(|_| record.is_some()),
            record,
            bytes,
            daemon,
        }
    }

    /// Reports whether this daemon has served the tree since it was compared with the record, and
    /// so has records of all changes to it.
    pub fn is_known_to(&self, daemon: &str) -> bool {
        self.checkpoint.is_some_and(|id| {
            ImportRecord::daemon_text(&self.bytes, id.0, daemon).as_bytes() == self.daemon
        })
    }

    /// Stores the id of a daemon that serves the tree, and served it before the comparison with the
    /// record.
    ///
    /// # Errors
    /// Those of writing.
    pub fn write_daemon(&self, store: impl AsFd, daemon: &str) -> SysResult<()> {
        match self.checkpoint {
            Some(id) if !self.is_known_to(daemon) => write_whole(
                store,
                DAEMON_NAME,
                ImportRecord::daemon_text(&self.bytes, id.0, daemon).as_bytes(),
            ),
            _ => Ok(()),
        }
    }
}

fn read_file(store: impl AsFd, name: &[u8]) -> SysResult<Vec<u8>> {
    let file = sys::open_file_at(store, name, Access::READ)?;
    let size = sys::stat_fd(&file)?.size;
    if size > RECORD_BYTES_MAX {
        return Err(Errno::EFBIG);
    }
    let mut bytes = vec![0; usize::try_from(size).map_err(|_| Errno::EFBIG)?];
    let read = sys::read_full_at(&file, &mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Writes a record atomically, its bytes synced before the rename. Returns them for
/// [`write_checkpoint`].
///
/// # Errors
/// Those of writing; the previous record is unchanged then.
pub fn write(store: impl AsFd, record: &ImportRecord) -> SysResult<Vec<u8>> {
    let bytes = record.encode();
    write_whole(store, RECORD_NAME, &bytes)?;
    Ok(bytes)
}

/// Stores the checkpoint that shows the state of the record with these bytes.
///
/// # Errors
/// Those of writing.
pub fn write_checkpoint(store: impl AsFd, bytes: &[u8], checkpoint: CheckpointId) -> SysResult<()> {
    write_whole(
        store,
        CHECKPOINT_NAME,
        ImportRecord::checkpoint_text(bytes, checkpoint.0).as_bytes(),
    )
}

fn write_whole(store: impl AsFd, name: &[u8], bytes: &[u8]) -> SysResult<()> {
    let new = [name, b".new"].concat();
    match sys::unlink_at(&store, &new) {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(errno),
    }
    let file = sys::create_file_at(&store, &new, Access::WRITE, 0o600)?;
    sys::write_all_at(&file, bytes, 0)?;
    sys::fdatasync(&file)?;
    sys::rename_at(&store, &new, &store, name, RenameMode::Replace)
}

/// A file in the store: marks an incomplete import. It contains the path of the source, for people.
const UNFINISHED_NAME: &[u8] = b"importing";

/// Marks a directory as an incomplete import, creating its store if missing; the mark is synced
/// before its rename. The store is private to its owner: write access to the directory does not
/// extend to it.
///
/// # Errors
/// EPERM: the store belongs to another user. Those of creating it.
pub fn begin(root: &OwnedFd, source: &[u8]) -> SysResult<()> {
    let name = STORE_NAME.as_bytes();
    match sys::mkdir_at(root, name, 0o700) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno),
    }
    let store = sys::open_dir_at(root, name)?;
    if sys::stat_fd(&store)?.uid != sys::ids().0 {
        return Err(Errno::EPERM);
    }
    write_whole(&store, UNFINISHED_NAME, source)
}

/// Reports whether the store marks an import that began and did not finish.
pub fn is_unfinished(store: impl AsFd) -> bool {
    sys::stat_at(store, UNFINISHED_NAME).is_ok()
}

/// Removes the mark of an incomplete import.
///
/// # Errors
/// Those of unlinkat(2).
pub fn end(root: &OwnedFd) -> SysResult<()> {
    match sys::unlink_at(
        sys::open_dir_at(root, STORE_NAME.as_bytes())?,
        UNFINISHED_NAME,
    ) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Creates the store of a future tree if it does not exist.
///
/// # Errors
/// Those of creating it.
pub fn make_store(root: &OwnedFd) -> Result<(), ckptfs_store::StoreError> {
    Layout::open(root, true).map(drop)
}

/// Acquires the import lock of a tree, released when the file is closed; `None` if another process
/// holds it.
///
/// # Errors
/// Those of opening the file.
pub fn lock(store: impl AsFd) -> SysResult<Option<File>> {
    const NAME: &[u8] = b"import.lock";
    let file = match sys::create_file_at(&store, NAME, Access::WRITE, 0o600) {
        Err(Errno::EEXIST) => sys::open_file_at(&store, NAME, Access::WRITE)?,
        file => file?,
    };
    match sys::flock_exclusive(&file) {
        Ok(false) => Ok(None),
        // The filesystem does not support locks.
        _ => Ok(Some(file)),
    }
}
