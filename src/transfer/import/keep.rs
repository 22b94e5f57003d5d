//! Where the [record](super::record) of an import is kept: two files in the store of the tree.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use super::record::{CHECKPOINT_NAME, DAEMON_NAME, RECORD_NAME, Record};
use crate::store::ids::CheckpointId;
use crate::store::layout::{Layout, STORE_NAME};
use crate::sys::{self, Errno, Open, RenameMode, SysResult};

/// A record larger than this is none of ours.
const RECORD_BYTES_MAX: u64 = 8 << 30;

/// What is kept.
#[derive(Debug, Default)]
pub struct Kept {
    /// The record; `None`: there is none that can be believed.
    pub record: Option<Record>,
    /// The checkpoint that shows what it tells of.
    pub checkpoint: Option<CheckpointId>,
    /// The bytes of the record.
    bytes: Vec<u8>,
    /// What is said of the daemon.
    daemon: Vec<u8>,
}

impl Kept {
    /// Reads it from a store. What is damaged is not there.
    pub fn read(store: impl AsFd) -> Kept {
        let Ok(bytes) = read_file(&store, RECORD_NAME) else {
            return Kept::default();
        };
        let checkpoint = read_file(&store, CHECKPOINT_NAME)
            .ok()
            .and_then(|text| Record::checkpoint_of(&bytes, &text));
        let record = Record::decode(&bytes);
        if record.is_none() {
            tracing::warn!("the record of the last import is damaged: everything is compared");
        }
        let daemon = read_file(&store, DAEMON_NAME).unwrap_or_default();
        Kept {
            checkpoint: checkpoint.map(CheckpointId).filter(|_| record.is_some()),
            record,
            bytes,
            daemon,
        }
    }

    /// This daemon has served the tree ever since it was compared with the record: what was done to
    /// it since, it knows.
    pub fn is_known_to(&self, daemon: &str) -> bool {
        self.checkpoint.is_some_and(|id| {
            Record::daemon_text(&self.bytes, id.0, daemon).as_bytes() == self.daemon
        })
    }

    /// Notes that a daemon served the tree before it was compared with the record, and does.
    ///
    /// # Errors
    /// Those of writing.
    pub fn write_daemon(&self, store: impl AsFd, daemon: &str) -> SysResult<()> {
        match self.checkpoint {
            Some(id) if !self.is_known_to(daemon) => write_whole(
                store,
                DAEMON_NAME,
                Record::daemon_text(&self.bytes, id.0, daemon).as_bytes(),
            ),
            _ => Ok(()),
        }
    }
}

fn read_file(store: impl AsFd, name: &[u8]) -> SysResult<Vec<u8>> {
    let file = sys::open_file_at(store, name, Open::READ)?;
    let size = sys::stat_fd(&file)?.size;
    if size > RECORD_BYTES_MAX {
        return Err(Errno::EFBIG);
    }
    let mut bytes = vec![0; usize::try_from(size).map_err(|_| Errno::EFBIG)?];
    let read = sys::read_full_at(&file, &mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Writes a record, durable on return; gives the bytes for [`write_checkpoint`].
///
/// # Errors
/// Those of writing; then the record before is still there.
pub fn write(store: impl AsFd, record: &Record) -> SysResult<Vec<u8>> {
    let bytes = record.encode();
    write_whole(store, RECORD_NAME, &bytes)?;
    Ok(bytes)
}

/// Notes which checkpoint shows what the record of these bytes tells of.
///
/// # Errors
/// Those of writing.
pub fn write_checkpoint(store: impl AsFd, bytes: &[u8], checkpoint: CheckpointId) -> SysResult<()> {
    write_whole(
        store,
        CHECKPOINT_NAME,
        Record::checkpoint_text(bytes, checkpoint.0).as_bytes(),
    )
}

fn write_whole(store: impl AsFd, name: &[u8], bytes: &[u8]) -> SysResult<()> {
    let new = [name, b".new"].concat();
    match sys::unlink_at(&store, &new) {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(errno),
    }
    let file = sys::create_file_at(&store, &new, Open::WRITE, 0o600)?;
    sys::write_all_at(&file, bytes, 0)?;
    sys::fdatasync(&file)?;
    sys::rename_at(&store, &new, &store, name, RenameMode::Replace)
}

/// In a store: what is in the directory is not the whole of what is imported. It holds the path of
/// that, for people.
const UNFINISHED_NAME: &[u8] = b"importing";

/// Notes in the store of a directory, which is made if it is not there, that it is about to be made
/// by an import; durable on return. Who may write to the directory may not write there.
///
/// # Errors
/// EPERM: the store is somebody else's. Those of making it.
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

/// Whether an import has begun and not come to its end, as the store notes it.
pub fn is_unfinished(store: impl AsFd) -> bool {
    sys::stat_at(store, UNFINISHED_NAME).is_ok()
}

/// Everything is there.
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

/// Makes the store of a directory that is to be a tree, if there is none.
///
/// # Errors
/// Those of making it.
pub fn make_store(root: &OwnedFd) -> Result<(), crate::store::StoreError> {
    Layout::open(root, true).map(drop)
}

/// Takes the lock of whoever imports into a tree, for as long as it lives; `None`: somebody else
/// has it.
///
/// # Errors
/// Those of opening it.
pub fn lock(store: impl AsFd) -> SysResult<Option<File>> {
    const NAME: &[u8] = b"import.lock";
    let file = match sys::create_file_at(&store, NAME, Open::WRITE, 0o600) {
        Err(Errno::EEXIST) => sys::open_file_at(&store, NAME, Open::WRITE)?,
        file => file?,
    };
    match sys::flock_exclusive(&file) {
        Ok(false) => Ok(None),
        // A filesystem without locks has none to offer.
        _ => Ok(Some(file)),
    }
}
