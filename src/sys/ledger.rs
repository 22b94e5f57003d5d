//! A table in shared memory that outlives its process: the state that a worker of a mount leaves to
//! its successor.
//!
//! The memory is an unnamed file, mapped shared; any descriptor of it keeps it alive. A killed
//! process leaves a prefix of its stores, in program order. A **row** exists if its kind is not 0.
//! The kind is stored last when a row is added and cleared first when it is removed, so no reader
//! sees a half-written row.
//!
//! ```text
//!   words of 64 bits, little-endian
//!   0       magic "ckptfsL1"         1   words in a row, rows
//!   2       rows ever used           3.. notes, one word each
//!   16..    rows: kind (0: free), seven words
//! ```
//!
//! Locking: a mutex with the last rank protects the list of free rows; the words are atomic.

use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use super::lock::{Mutex, Rank};
use super::os::SharedWords;
use super::types::{Errno, SysResult};

const MAGIC: u64 = u64::from_le_bytes(*b"ckptfsL1");
/// Words before the rows.
const HEAD: usize = 16;
/// Words of a row, including its kind.
const ROW: usize = 8;
/// Words of a row available to its owner.
pub const ROW_WORDS: usize = ROW - 1;
/// Maximum number of rows. Only rows that were ever used occupy memory.
const ROWS_MAX: usize = 1 << 20;

/// The number of a row, counted from 1 so that an `Option` of it needs no more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowId(NonZeroU32);

impl RowId {
    fn of(row: usize) -> Option<RowId> {
        u32::try_from(row)
            .ok()?
            .checked_add(1)
            .and_then(NonZeroU32::new)
            .map(RowId)
    }

    /// Index of its first word.
    fn at(self) -> usize {
        HEAD + (self.0.get() as usize - 1) * ROW
    }
}

/// A row as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its number.
    pub id: RowId,
    /// The kind of its content; not 0.
    pub kind: u64,
    /// Its content.
    pub words: [u64; ROW_WORDS],
}

/// A table in shared memory; see the module.
pub struct Ledger {
    words: SharedWords,
    free: Mutex<Vec<usize>>,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger")
            .field("rows", &self.rows().len())
            .finish()
    }
}

impl Ledger {
    /// Creates an empty ledger.
    ///
    /// # Errors
    /// Those of memfd_create(2) and mmap(2); ENOSYS if the system lacks them.
    pub fn create() -> SysResult<Ledger> {
        Ledger::create_for(ROWS_MAX)
    }

    fn create_for(rows: usize) -> SysResult<Ledger> {
        let words = SharedWords::create(HEAD + rows * ROW)?;
        let head = [MAGIC, shape(rows)];
        for (at, value) in words.get().iter().zip(head) {
            at.store(value, Ordering::Release);
        }
        Ok(Ledger {
            words,
            free: Mutex::ranked(Rank::Ledger, Vec::new()),
        })
    }

    /// Opens a ledger that another process created.
    ///
    /// # Errors
    /// EINVAL if it is no ledger, or has the format of another version; those of mmap(2).
    pub fn open(fd: OwnedFd) -> SysResult<Ledger> {
        let words = SharedWords::open(fd)?;
        let ledger = Ledger {
            words,
            free: Mutex::ranked(Rank::Ledger, Vec::new()),
        };
        let rows = ledger.words.get().len().saturating_sub(HEAD) / ROW;
        if ledger.load(0) != MAGIC || ledger.load(1) != shape(rows) || ledger.used() > rows {
            return Err(Errno::EINVAL);
        }
        let free = (0..ledger.used())
            .filter(|row| ledger.load(HEAD + row * ROW) == 0)
            .collect();
        *ledger.free.lock() = free;
        Ok(ledger)
    }

    /// Returns the descriptor of the shared memory.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.words.as_fd()
    }

    fn load(&self, at: usize) -> u64 {
        self.words
            .get()
            .get(at)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn store(&self, at: usize, value: u64) {
        if let Some(word) = self.words.get().get(at) {
            word.store(value, Ordering::Release);
        }
    }

    fn used(&self) -> usize {
        usize::try_from(self.load(2)).unwrap_or(usize::MAX)
    }

    /// Stores a note; `note` is below [`NOTES_MAX`].
    pub fn note(&self, note: usize, value: u64) {
        debug_assert!(note < NOTES_MAX, "there are so many notes");
        if note < NOTES_MAX {
            self.store(3 + note, value);
        }
    }

    /// Returns a note, or 0 if it was never stored.
    pub fn noted(&self, note: usize) -> u64 {
        if note < NOTES_MAX {
            self.load(3 + note)
        } else {
            0
        }
    }

    /// Adds a row; `kind` is not 0. Returns `None` if the table is full; the successor then lacks
    /// the entry.
    pub fn put(&self, kind: u64, words: [u64; ROW_WORDS]) -> Option<RowId> {
        let row = {
            let mut free = self.free.lock();
            match free.pop() {
                Some(row) => row,
                None => {
                    let row = self.used();
                    if HEAD + (row + 1) * ROW > self.words.get().len() {
                        return None;
                    }
                    self.store(2, row as u64 + 1);
                    row
                }
            }
        };
        for (at, value) in words.into_iter().enumerate() {
            self.store(HEAD + row * ROW + 1 + at, value);
        }
        self.store(HEAD + row * ROW, kind);
        RowId::of(row)
    }

    /// Changes one word of an existing row.
    pub fn set(&self, row: RowId, word: usize, value: u64) {
        debug_assert!(word < ROW_WORDS, "a row has so many words");
        if word < ROW_WORDS {
            self.store(row.at() + 1 + word, value);
        }
    }

    /// Removes a row.
    pub fn remove(&self, row: RowId) {
        let at = row.at();
        if self.load(at) != 0 {
            self.store(at, 0);
            self.free.lock().push((at - HEAD) / ROW);
        }
    }

    /// Returns all rows.
    pub fn rows(&self) -> Vec<Row> {
        let rows = (0..self.used()).filter_map(RowId::of).map(|id| {
            let at = id.at();
            Row {
                id,
                kind: self.load(at),
                words: std::array::from_fn(|word| self.load(at + 1 + word)),
            }
        });
        rows.filter(|row| row.kind != 0).collect()
    }
}

/// Number of notes.
pub const NOTES_MAX: usize = HEAD - 3;

fn shape(rows: usize) -> u64 {
    (ROW as u64) << 48 | rows as u64
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn row(seed: u64) -> [u64; ROW_WORDS] {
        std::array::from_fn(|at| seed * 100 + at as u64)
    }

    #[test]
    fn what_one_wrote_another_reads() {
        let first = Ledger::create_for(3).expect("memory");
        first.note(1, 77);
        let ids: Vec<RowId> = (1..=3)
            .map(|seed| first.put(seed, row(seed)).expect("room"))
            .collect();
        assert_eq!(
            first.put(9, row(9)),
            None,
            "one more than there is room for"
        );
        first.remove(ids[1]);
        first.remove(ids[1]);
        let fd = first.fd().try_clone_to_owned().expect("descriptor");
        drop(first);
        let second = Ledger::open(fd).expect("opens");
        let found: Vec<(u64, [u64; ROW_WORDS])> = second
            .rows()
            .into_iter()
            .map(|row| (row.kind, row.words))
            .collect();
        assert_eq!(found, [(1, row(1)), (3, row(3))]);
        assert_eq!((second.noted(1), second.noted(2)), (77, 0));
        assert_eq!(
            second.put(4, row(4)),
            Some(ids[1]),
            "a free row is found again"
        );
        assert_eq!(second.put(5, row(5)), None);
    }

    #[test]
    fn what_is_no_ledger_is_refused() {
        let file = std::fs::File::open("/proc/self/stat").expect("opens");
        assert!(Ledger::open(file.into()).is_err());
        let words = SharedWords::create(HEAD + ROW).expect("memory");
        let fd = words.as_fd().try_clone_to_owned().expect("descriptor");
        assert_eq!(Ledger::open(fd).err(), Some(Errno::EINVAL));
        let other = Ledger::create_for(2).expect("memory");
        other.store(1, shape(3));
        assert_eq!(
            Ledger::open(other.fd().try_clone_to_owned().expect("descriptor")).err(),
            Some(Errno::EINVAL)
        );
        other.store(1, shape(2));
        other.store(2, u64::MAX);
        assert_eq!(
            Ledger::open(other.fd().try_clone_to_owned().expect("descriptor")).err(),
            Some(Errno::EINVAL)
        );
    }
}
