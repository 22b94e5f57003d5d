//! Numbers stored in small files for the next mount.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicI64, Ordering};

use rustix::fs::OFlags;

use super::super::at;
use super::{Layout, STORE_NAME};
use crate::error::{StoreError, StoreResult};
use crate::ids::Address;
use ckptfs_api::Epoch;
use ckptfs_sys::lock::Mutex;

/// The file with the end of the journal at the last orderly shutdown.
const ENDED_NAME: &str = "ended";
/// The file with the time up to which everything was on disk.
const SYNCED_NAME: &str = "synced";
/// See [`Layout::note_held`].
const HELD_NAME: &str = "held";
/// See [`Layout::note_unpacked`].
const UNPACKED_NAME: &str = "unpacked";
/// See [`Layout::note_unkept`].
const UNKEPT_NAME: &str = "unkept";
/// See [`Layout::note_unhashed`].
const UNHASHED_NAME: &str = "unhashed";
/// Size limit: up to two numbers of 20 digits, each followed by a space, 16 digits of their hash,
/// and a line feed.
const NOTED_BYTES: usize = 20 + 1 + 20 + 1 + 16 + 1;

impl Layout {
    /// Returns the last time stored by [`Layout::note_synced`], nanoseconds since 1970: up to then
    /// everything, including the tree, was on disk.
    pub fn synced_ns(&self) -> Option<i64> {
        Some(self.synced.ns.load(Ordering::SeqCst)).filter(|at_ns| *at_ns != i64::MIN)
    }

    /// Stores that everything up to this time is on disk; durable on return. An earlier time than
    /// the stored one is ignored, because syncs may end out of order.
    pub fn note_synced(&self, at_ns: i64) -> StoreResult<()> {
        let _noting = self.synced.noting.lock();
        if at_ns <= self.synced.ns.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.note(SYNCED_NAME, at_ns)?;
        self.synced.ns.fetch_max(at_ns, Ordering::SeqCst);
        Ok(())
    }

    /// Stores the end of the synced journal at an orderly shutdown, and the start of its last
    /// frame; durable on return. The journal never ends before that again.
    pub fn note_end(&self, end: Address, last: Option<Address>) -> StoreResult<()> {
        let numbers = [Some(end), last]
            .into_iter()
            .flatten()
            .map(|at| i64::from(at.segment) << 32 | i64::from(at.offset));
        self.note_all(ENDED_NAME, &numbers.collect::<Vec<_>>())
    }

    /// Returns the addresses last stored by [`Layout::note_end`], if readable.
    pub fn noted_end(&self) -> Option<(Address, Option<Address>)> {
        let address = |packed: i64| {
            Some(Address {
                segment: u32::try_from(packed >> 32).ok()?,
                offset: u32::try_from(packed & i64::from(u32::MAX)).ok()?,
            })
        };
        let noted = read_all_noted(&self.dir, ENDED_NAME)?;
        Some((
            address(*noted.first()?)?,
            noted.get(1).copied().and_then(address),
        ))
    }

    /// Stores that the mount ended in this open epoch while processes could still write to its
    /// files without a request.
    pub fn note_held(&self, epoch: Epoch) -> StoreResult<()> {
        self.note(HELD_NAME, i64::try_from(epoch.0).unwrap_or(i64::MAX))
    }

    /// Returns the epoch last stored by [`Layout::note_held`], if readable.
    pub fn noted_held(&self) -> Option<Epoch> {
        read_noted(&self.dir, HELD_NAME)?.try_into().ok().map(Epoch)
    }

    /// Stores the number of files whose content was not kept at unmount; 0 removes the note.
    pub fn note_unkept(&self, files: u64) -> StoreResult<()> {
        self.note_count(UNKEPT_NAME, files)
    }

    /// Stores the number of versions without a hash at unmount; 0 removes the note.
    pub fn note_unhashed(&self, versions: u64) -> StoreResult<()> {
        self.note_count(UNHASHED_NAME, versions)
    }

    fn note_count(&self, name: &'static str, count: u64) -> StoreResult<()> {
        if count == 0 {
            return at::remove_tree(&self.dir, name.as_bytes())
                .map_err(StoreError::io("remove", name));
        }
        self.note(name, i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// Stores that index and journal contain remains of a deletion; durable on return.
    pub fn note_unpacked(&self) -> StoreResult<()> {
        self.note(UNPACKED_NAME, 1)
    }

    /// Removes the note of remains.
    pub fn note_packed(&self) -> StoreResult<()> {
        at::remove_tree(&self.dir, UNPACKED_NAME.as_bytes())
            .map_err(StoreError::io("remove", UNPACKED_NAME))
    }

    /// Reports whether index and journal contain remains of a deletion.
    pub fn noted_unpacked(&self) -> bool {
        read_noted(&self.dir, UNPACKED_NAME).is_some()
    }

    fn note(&self, name: &'static str, value: i64) -> StoreResult<()> {
        self.note_all(name, &[value])
    }

    fn note_all(&self, name: &'static str, values: &[i64]) -> StoreResult<()> {
        let note = || -> io::Result<()> {
            let file = at::open_file(&self.dir, name, OFlags::WRONLY | OFlags::CREATE)?;
            // In place and less than a sector, so the write is atomic on disk. A partial text fails
            // its hash.
            let text = noted_text(values);
            file.write_all_at(text.as_bytes(), 0)?;
            file.set_len(text.len() as u64)?;
            file.sync_all()
        };
        note().map_err(StoreError::io("write", name))
    }
}

/// The time up to which everything was on disk.
#[derive(Debug)]
pub(super) struct SyncedTime {
    /// The latest time of [`Layout::note_synced`]; `i64::MIN`: none.
    ns: AtomicI64,
    /// Held during a write of the note.
    noting: Mutex<()>,
}

impl SyncedTime {
    /// Reads the time from the store in `dir`.
    pub fn noted(dir: &OwnedFd) -> SyncedTime {
        let ns = read_noted(dir, SYNCED_NAME).unwrap_or(i64::MIN);
        SyncedTime {
            ns: AtomicI64::new(ns),
            noting: Mutex::default(),
        }
    }
}

fn noted_text(values: &[i64]) -> String {
    let numbers = values
        .iter()
        .map(|value| format!("{value:020}"))
        .collect::<Vec<_>>()
        .join(" ");
    let hash = blake3::hash(numbers.as_bytes()).to_hex();
    format!("{numbers} {}\n", hash.get(..16).unwrap_or_default())
}

/// Returns the number last stored by [`Layout::note_unkept`] in the store of `root`, if readable.
pub fn noted_unkept(root: impl AsFd) -> Option<u64> {
    noted_count(root, UNKEPT_NAME)
}

/// Returns the number last stored by [`Layout::note_unhashed`] in the store of `root`, if readable.
pub fn noted_unhashed(root: impl AsFd) -> Option<u64> {
    noted_count(root, UNHASHED_NAME)
}

fn noted_count(root: impl AsFd, name: &str) -> Option<u64> {
    let dir = at::open_dir(root, STORE_NAME).ok()?;
    read_noted(&dir, name)?.try_into().ok()
}

fn read_noted(dir: &OwnedFd, name: &str) -> Option<i64> {
    read_all_noted(dir, name)?.first().copied()
}

fn read_all_noted(dir: &OwnedFd, name: &str) -> Option<Vec<i64>> {
    let bytes = at::read_small(dir, name, NOTED_BYTES as u64).ok()?;
    let text = std::str::from_utf8(&bytes).ok()?;
    let values: Vec<i64> = text
        .rsplit_once(' ')?
        .0
        .split(' ')
        .map(|number| number.parse().ok())
        .collect::<Option<_>>()?;
    (text == noted_text(&values)).then_some(values)
}
