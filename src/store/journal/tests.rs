//! The journal on real files: reopening, torn ends, damage, segment changes, latching.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::*;
use crate::error::CodecError;
use crate::ids::{Name, Slot};
use crate::record::Undo;
use ckptfs_api::Epoch;

mod packs;
mod tail;
mod torn;

const SMALL: u32 = 8192;

struct Bench {
    dir: tempfile::TempDir,
    layout: Layout,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open(File::open(dir.path()).unwrap(), true).unwrap();
        Bench { dir, layout }
    }

    fn journal(&self) -> PathBuf {
        self.dir.path().join(".ckptfs/journal")
    }

    fn segment(&self, number: u32) -> PathBuf {
        self.journal().join(segment::file_name(number))
    }

    /// Opens it without the tail, as on a filesystem without extended attributes.
    fn open(&self) -> (Journal, Opening) {
        self.remove_tail();
        self.open_with_tail()
    }

    fn open_with_tail(&self) -> (Journal, Opening) {
        Journal::open_with(&self.layout, SMALL).unwrap()
    }

    fn tail(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.journal())
            .unwrap()
            .map(|entry| entry.unwrap().path());
        files
            .filter(|path| {
                path.file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with("tail-"))
            })
            .collect()
    }

    fn remove_tail(&self) {
        self.tail()
            .iter()
            .for_each(|path| fs::remove_file(path).unwrap());
    }

    fn open_error(&self) -> StoreError {
        self.remove_tail();
        Journal::open_with(&self.layout, SMALL)
            .map(|(_, opening)| opening)
            .unwrap_err()
    }
}

fn record(n: u64) -> Record {
    Record::Unmounted {
        at_ns: n.cast_signed(),
    }
}

/// Returns a record with a payload of about this size, without zeros.
fn large(n: u64, size: usize) -> Record {
    let undo = Undo::Xattrs {
        slot: Slot(n),
        before: vec![(b"user.x".to_vec(), vec![0xaa; size])],
    };
    Record::Undo {
        epoch: Epoch(1),
        undo: vec![undo],
    }
}

fn all(journal: &Journal) -> Vec<Record> {
    journal
        .scan(journal.start(), None)
        .map(|entry| entry.unwrap().1)
        .collect()
}

fn change(path: &Path, at: u64, with: impl FnOnce(&mut [u8]), len: usize) {
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).unwrap();
    with(&mut bytes);
    file.write_all_at(&bytes, at).unwrap();
}

fn flip(path: &Path, at: u64) {
    change(path, at, |bytes| bytes[0] ^= 0x10, 1);
}

fn zero(path: &Path, at: u64, len: usize) {
    change(path, at, |bytes| bytes.fill(0), len);
}

#[test]
fn what_was_appended_is_read_and_scanned_and_is_there_after_reopening() {
    let bench = Bench::new();
    let (journal, opening) = bench.open();
    assert_eq!(
        opening,
        Opening {
            torn: false,
            end: Address::START
        }
    );
    let first = journal.append(&[record(1), record(2)]).unwrap();
    let second = journal.append(&[large(3, 2000)]).unwrap();
    assert_eq!(first[0], Address::START);
    assert_eq!(first[0].after(&record(1)), Ok(first[1]));
    let end = journal.position();
    drop(journal);

    let (journal, opening) = bench.open();
    assert_eq!(opening, Opening { torn: false, end });
    assert_eq!(journal.read(first[1]).unwrap(), record(2));
    assert_eq!(journal.read(second[0]).unwrap(), large(3, 2000));
    assert_eq!(all(&journal), [record(1), record(2), large(3, 2000)]);
    let mut scan = journal.scan(first[1], Some(second[0]));
    assert_eq!(scan.next().unwrap().unwrap(), (first[1], record(2)));
    assert_eq!(scan.position(), second[0]);
    assert!(scan.next().is_none());
    assert!(matches!(
        journal.read(Address {
            segment: 1,
            offset: 65
        }),
        Err(StoreError::JournalDamaged {
            segment: 1,
            offset: 65
        })
    ));
    assert!(matches!(
        journal.read(end),
        Err(StoreError::JournalDamaged { .. })
    ));
    assert_eq!(
        journal
            .read(Address {
                segment: 9,
                offset: 64
            })
            .unwrap_err()
            .errno(),
        ckptfs_sys::Errno::ENOENT
    );
    assert!(journal.append(&[]).unwrap().is_empty());
    assert_eq!(journal.position(), end);
}

#[test]
fn it_rolls_over_and_reads_across() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    let mut expected = Vec::new();
    let mut places = Vec::new();
    for n in 0..40 {
        let record = large(n, 1000);
        places.push(journal.append(std::slice::from_ref(&record)).unwrap()[0]);
        expected.push(record);
        if n % 7 == 0 {
            journal.sync().unwrap();
        }
    }
    assert!(journal.position().segment >= 6);
    assert!(places.is_sorted());
    assert_eq!(all(&journal), expected);
    let (end, half) = (journal.position(), places[20]);
    drop(journal);
    let (journal, opening) = bench.open();
    assert_eq!(opening, Opening { torn: false, end });
    assert_eq!(all(&journal), expected);
    assert_eq!(journal.scan(half, None).count(), 20);
    assert_eq!(journal.read(places[3]).unwrap(), expected[3]);
    journal.append(&[record(1)]).unwrap();
    assert_eq!(all(&journal).len(), 41);
}

#[test]
fn sync_makes_the_next_segment_ahead_and_an_empty_one_is_no_tear() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    journal.append(&[record(1)]).unwrap();
    journal.sync().unwrap();
    assert!(
        !bench.segment(2).exists(),
        "not before half of the first is used"
    );
    journal.append(&[large(2, 5000)]).unwrap();
    journal.sync().unwrap();
    assert!(bench.segment(2).exists());
    let end = journal.position();
    drop(journal);
    let (journal, opening) = bench.open();
    assert_eq!(opening, Opening { torn: false, end });
    journal.append(&[large(3, 5000)]).unwrap();
    assert_eq!(journal.position().segment, 2);
    assert_eq!(all(&journal).len(), 3);
}

#[test]
fn a_segment_that_is_left_with_its_end_unused_is_followed_by_the_next() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    journal.append(&[large(1, 5000)]).unwrap();
    journal.append(&[large(2, 5000)]).unwrap();
    let from = Address {
        segment: 1,
        offset: journal
            .read(Address::START)
            .map(|r| Address::START.after(&r).unwrap().offset)
            .unwrap(),
    };
    // From the end of the first segment: the position stored in an index that was updated up to
    // there.
    assert_eq!(
        journal
            .scan(from, None)
            .map(|entry| entry.unwrap().1)
            .collect::<Vec<_>>(),
        [large(2, 5000)]
    );
}

#[test]
fn a_failed_write_latches() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    journal.append(&[record(1)]).unwrap();
    let end = journal.position();
    journal.writer.lock().file = Some(Arc::new(File::open(bench.segment(1)).unwrap()));
    assert_eq!(
        journal.append(&[record(2)]).unwrap_err().errno(),
        ckptfs_sys::Errno::EBADF
    );
    assert!(journal.is_latched());
    assert!(matches!(
        journal.append(&[record(2)]),
        Err(StoreError::Latched)
    ));
    assert!(matches!(journal.sync(), Err(StoreError::Latched)));
    assert_eq!(journal.position(), end);
    assert_eq!(all(&journal), [record(1)], "what was there can be read");
}

#[test]
fn a_failed_sync_latches() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    journal.append(&[record(1)]).unwrap();
    let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
    journal.writer.lock().file = Some(Arc::new(File::from(OwnedFd::from(socket))));
    assert!(journal.sync().is_err(), "a socket cannot be synced");
    assert!(matches!(
        journal.append(&[record(2)]),
        Err(StoreError::Latched)
    ));
}

/// A segment closed during a sync may have frames appended after the sync began.
#[test]
fn what_is_closed_during_a_sync_is_in_the_next() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    journal.append(&[record(1)]).unwrap();
    let syncing = journal.appended().unwrap().unwrap();
    let first = syncing.file.clone().unwrap();
    while journal.position().segment == 1 {
        journal.append(&[large(2, 500)]).unwrap();
    }
    journal.synced(syncing);
    let next = journal.appended().unwrap().unwrap();
    assert!(
        next.closed.iter().any(|file| Arc::ptr_eq(file, &first)),
        "the second sync is not of the first segment"
    );
    journal.synced(next);
    assert!(journal.appended().unwrap().is_none() && journal.writer.lock().unsynced.is_empty());
}

#[test]
fn a_segment_that_cannot_be_made_fails_that_append_only() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    journal.append(&[large(1, 5000)]).unwrap();
    fs::create_dir(bench.segment(2)).unwrap();
    assert!(journal.append(&[large(2, 5000)]).is_err());
    assert!(!journal.is_latched());
    journal.append(&[record(3)]).unwrap();
    fs::remove_dir(bench.segment(2)).unwrap();
    journal.append(&[large(4, 5000)]).unwrap();
    assert_eq!(all(&journal), [large(1, 5000), record(3), large(4, 5000)]);
}

#[test]
fn a_write_without_space_is_cut_off_and_latches_nothing() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    journal.append(&[record(1)]).unwrap();
    let writer = journal.writer.lock();
    let error = journal.write_failed(&writer, Errno::ENOSPC);
    drop(writer);
    assert_eq!(error.errno(), ckptfs_sys::Errno::ENOSPC);
    assert!(!journal.is_latched());
    journal.append(&[record(2)]).unwrap();
    drop(journal);
    assert_eq!(all(&bench.open().0), [record(1), record(2)]);
}

#[test]
fn too_much_for_one_append_is_refused_and_changes_nothing() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    let most = (SMALL - SEGMENT_HEADER) as usize;
    let other = Address::START.after(&large(1, 7000)).unwrap().offset as usize
        - SEGMENT_HEADER as usize
        - 7000;
    assert!(matches!(
        journal.append(&[large(1, most - other + 1)]),
        Err(StoreError::TooBig { .. })
    ));
    let bad = Record::Undo {
        epoch: Epoch(1),
        undo: vec![Undo::Entry {
            dir: Slot(1),
            name: Name::new(b"a/b"),
            before: None,
        }],
    };
    assert!(matches!(
        journal.append(&[record(1), bad]),
        Err(StoreError::Encode(CodecError::Name))
    ));
    assert_eq!(journal.position(), Address::START);
    journal.append(&[large(1, most - other)]).unwrap();
    assert_eq!(
        journal.position().offset,
        SMALL,
        "one that fills a segment fits"
    );
    drop(journal);
    assert_eq!(
        bench.open().1,
        Opening {
            torn: false,
            end: Address {
                segment: 1,
                offset: SMALL
            }
        }
    );
}

#[test]
fn read_only_repairs_nothing_and_takes_nothing() {
    let bench = Bench::new();
    let view = Layout::open_existing_readonly(File::open(bench.dir.path()).unwrap()).unwrap();
    let (empty, _) = Journal::open_with(&view, SMALL).unwrap();
    assert_eq!(all(&empty), []);
    assert!(!bench.segment(1).exists());
    let (journal, _) = bench.open();
    let at = journal.append(&[record(1), record(2)]).unwrap()[1];
    zero(&bench.segment(1), u64::from(at.offset) + 70, 8);
    let before = fs::read(bench.segment(1)).unwrap();
    let (seen, opening) = Journal::open_with(&view, SMALL).unwrap();
    assert_eq!(
        opening,
        Opening {
            torn: true,
            end: at
        }
    );
    assert_eq!(all(&seen), [record(1)]);
    assert!(matches!(
        seen.append(&[record(3)]),
        Err(StoreError::ReadOnly)
    ));
    assert_eq!(fs::read(bench.segment(1)).unwrap(), before);
}

#[test]
fn many_threads_append_and_sync() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let journal = &journal;
            scope.spawn(move || {
                for n in 0..100 {
                    let records = [record(thread * 1000 + n), large(n, 100)];
                    let places = journal.append(&records).unwrap();
                    assert_eq!(journal.read(places[0]).unwrap(), records[0]);
                    if n % 10 == 0 {
                        journal.sync().unwrap();
                    }
                }
            });
        }
    });
    let records = all(&journal);
    assert_eq!(records.len(), 800);
    assert!(
        records
            .chunks(2)
            .all(|pair| matches!(pair, [Record::Unmounted { .. }, Record::Undo { .. }])),
        "one append stays together"
    );
    let end = journal.position();
    drop(journal);
    assert_eq!(bench.open().1, Opening { torn: false, end });
}

/// A measurement; run with `--release -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost_of_a_small_append() {
    let bench = Bench::new();
    let (journal, _) = Journal::open(&bench.layout).unwrap();
    let undo = vec![Undo::Entry {
        dir: Slot(1),
        name: Name::new(b"some-file-name.rs"),
        before: None,
    }];
    let records = [Record::Undo {
        epoch: Epoch(1),
        undo,
    }];
    let count = 100_000;
    let begin = std::time::Instant::now();
    for _ in 0..count {
        journal.append(&records).unwrap();
    }
    let each_ns = begin.elapsed().as_nanos() / count;
    let begin = std::time::Instant::now();
    let scanned = journal
        .scan(journal.start(), None)
        .filter(|entry| entry.is_ok())
        .count();
    println!(
        "append {each_ns} ns each; scan of {scanned} took {:?}; {}",
        begin.elapsed(),
        journal.position()
    );
}
