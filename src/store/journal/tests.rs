//! The journal over real files: reopening, torn ends, damage, roll-over, latching.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::frame::Gap;
use super::pack::Packer;
use super::*;
use crate::store::ids::{CheckpointId, Epoch, Name, Slot};
use crate::store::record::{Checkpoint, Reason, Undo};

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

    /// Opens it as if the filesystem had no extended attributes: without what the tail would mend.
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

/// A record with a payload of about this size, without zeros.
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
        crate::sys::Errno::ENOENT
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
    // From the end of what is in the first segment: what an index says that was brought up to
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
fn every_torn_end_opens_with_what_was_whole() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    journal.append(&[record(1), record(2)]).unwrap();
    let last = journal.append(&[large(3, 700)]).unwrap()[0];
    let end = journal.position();
    drop(journal);
    let whole = fs::read(bench.segment(1)).unwrap();
    for kept in (last.offset..end.offset).step_by(13) {
        fs::write(bench.segment(1), &whole).unwrap();
        zero(
            &bench.segment(1),
            u64::from(kept),
            (end.offset - kept) as usize,
        );
        let (journal, opening) = bench.open();
        assert_eq!(
            opening,
            Opening {
                torn: kept > last.offset,
                end: last
            },
            "kept up to {kept}"
        );
        assert_eq!(all(&journal), [record(1), record(2)]);
        // What is written next must stand alone, whatever was behind it.
        journal.append(&[record(4)]).unwrap();
        drop(journal);
        let (journal, opening) = bench.open();
        assert!(!opening.torn);
        assert_eq!(all(&journal), [record(1), record(2), record(4)]);
    }
}

#[test]
fn a_file_cut_short_opens_with_what_was_whole() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    let last = journal.append(&[record(1), record(2)]).unwrap()[1];
    drop(journal);
    for len in [last.offset, last.offset + 20, last.offset + 60] {
        fs::OpenOptions::new()
            .write(true)
            .open(bench.segment(1))
            .unwrap()
            .set_len(u64::from(len))
            .unwrap();
        let (journal, opening) = bench.open();
        assert_eq!(opening.end, last);
        journal.append(&[record(2)]).unwrap();
    }
    assert_eq!(all(&bench.open().0), [record(1), record(2)]);
}

#[test]
fn a_flipped_byte_before_other_frames_is_damage_and_says_where() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    let places = journal
        .append(&[record(1), large(2, 600), record(3)])
        .unwrap();
    drop(journal);
    let whole = fs::read(bench.segment(1)).unwrap();
    for at in (places[1].offset..places[2].offset).step_by(11) {
        fs::write(bench.segment(1), &whole).unwrap();
        flip(&bench.segment(1), u64::from(at));
        let found = bench.open_error();
        assert!(
            matches!(found, StoreError::JournalDamaged { segment: 1, offset } if offset == places[1].offset),
            "{at}: {found:?}"
        );
        let mut with = fs::read(bench.segment(1)).unwrap();
        with[at as usize] ^= 0x10;
        assert_eq!(with, whole, "damage is left as it was found");
    }
}

#[test]
fn pages_lost_before_pages_saved_are_a_tear_when_nothing_was_promised() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    journal.append(&[record(1)]).unwrap();
    journal.sync().unwrap();
    let places = journal
        .append(&[large(2, 3000), large(3, 3000), record(4)])
        .unwrap();
    drop(journal);
    // The first page from the last synced frame on was lost, the second was saved, with whole
    // frames in it.
    zero(
        &bench.segment(1),
        u64::from(places[0].offset),
        4096 - places[0].offset as usize,
    );
    let (journal, opening) = bench.open();
    assert_eq!(
        opening,
        Opening {
            torn: true,
            end: places[0]
        }
    );
    assert_eq!(all(&journal), [record(1)]);
    let saved = bench
        .journal()
        .join(format!("torn-00000001-{}", places[0].offset));
    assert!(
        fs::metadata(saved).unwrap().len() > 2000,
        "what followed is kept for people"
    );
    journal.append(&[record(5)]).unwrap();
    drop(journal);
    assert_eq!(
        all(&bench.open().0),
        [record(1), record(5)],
        "the frames that were saved do not come back"
    );
}

#[test]
fn pages_lost_that_a_later_frame_knew_on_disk_are_damage() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    journal.append(&[record(1)]).unwrap();
    let lost = journal.append(&[large(2, 3000)]).unwrap()[0];
    journal.sync().unwrap();
    journal.append(&[record(3)]).unwrap();
    drop(journal);
    zero(&bench.segment(1), u64::from(lost.offset), 1000);
    assert!(
        matches!(bench.open_error(), StoreError::JournalDamaged { segment: 1, offset } if offset == lost.offset)
    );
}

#[test]
fn the_end_of_a_segment_lost_with_the_next_one_saved_is_a_tear_or_damage_by_the_same_rule() {
    for synced in [false, true] {
        let bench = Bench::new();
        let (journal, _) = bench.open();
        journal.append(&[large(1, 3000)]).unwrap();
        journal.sync().unwrap();
        let lost = journal.append(&[large(2, 3000)]).unwrap()[0];
        if synced {
            journal.sync().unwrap();
        }
        journal.append(&[large(3, 5000)]).unwrap();
        assert_eq!(journal.position().segment, 2);
        drop(journal);
        zero(&bench.segment(1), 4096, 4096);
        if synced {
            // A first frame that knew all before it on disk is believed, and what is missing before
            // it is found when it is read.
            let (journal, opening) = bench.open();
            assert!(!opening.torn);
            let results: Vec<_> = journal.scan(journal.start(), None).collect();
            assert!(
                matches!(results[1], Err(StoreError::JournalDamaged { segment: 1, offset }) if offset == lost.offset)
            );
            assert_eq!(results.len(), 2, "a scan ends with its error");
        } else {
            let (journal, opening) = bench.open();
            assert_eq!(
                opening,
                Opening {
                    torn: true,
                    end: lost
                }
            );
            assert!(!bench.segment(2).exists() && bench.journal().join("torn-00000002-0").exists());
            journal.append(&[large(4, 5000)]).unwrap();
            assert_eq!(all(&journal), [large(1, 3000), large(4, 5000)]);
        }
    }
}

#[test]
fn a_flipped_last_frame_of_a_segment_with_frames_in_the_next_is_damage() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    let at = journal.append(&[record(1), large(2, 3000)]).unwrap()[1];
    journal.append(&[large(3, 6000)]).unwrap();
    drop(journal);
    flip(&bench.segment(1), u64::from(at.offset) + 500);
    assert!(
        matches!(bench.open_error(), StoreError::JournalDamaged { segment: 1, offset } if offset == at.offset)
    );
}

#[test]
fn a_missing_segment_or_a_header_of_another_store_is_damage() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    for n in 0..12 {
        journal.append(&[large(n, 3000)]).unwrap();
    }
    drop(journal);
    let (two, aside) = (bench.segment(2), bench.journal().join("aside"));
    fs::rename(&two, &aside).unwrap();
    assert!(matches!(
        bench.open_error(),
        StoreError::JournalDamaged {
            segment: 2,
            offset: 0
        }
    ));
    fs::rename(&aside, &two).unwrap();
    flip(&bench.segment(1), 20);
    assert!(matches!(
        bench.open_error(),
        StoreError::JournalDamaged {
            segment: 1,
            offset: 0
        }
    ));
}

#[test]
fn frames_of_another_store_are_no_frames() {
    let (one, two) = (Bench::new(), Bench::new());
    one.open()
        .0
        .append(&[record(1), record(2), record(3)])
        .unwrap();
    let (journal, _) = two.open();
    journal.append(&[record(9)]).unwrap();
    let end = journal.position();
    drop(journal);
    let foreign = fs::read(one.segment(1)).unwrap();
    let rest = &foreign[end.offset as usize..2000];
    change(
        &two.segment(1),
        u64::from(end.offset),
        |bytes| bytes.copy_from_slice(rest),
        rest.len(),
    );
    let (journal, opening) = two.open();
    assert_eq!(opening, Opening { torn: true, end });
    assert_eq!(all(&journal), [record(9)]);
}

#[test]
fn a_frame_that_does_not_continue_the_chain_is_damage() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    let from = journal.append(&[record(1), record(2)]).unwrap()[1].offset;
    drop(journal);
    let bytes = fs::read(bench.segment(1)).unwrap();
    fs::remove_file(bench.segment(1)).unwrap();
    let (journal, _) = bench.open();
    journal.append(&[record(3), record(2)]).unwrap();
    drop(journal);
    // The same key, another history: as if somebody had put the second frame of a backup in the
    // place of ours.
    change(
        &bench.segment(1),
        u64::from(from),
        |b| b.copy_from_slice(&bytes[from as usize..400]),
        400 - from as usize,
    );
    assert!(
        matches!(bench.open_error(), StoreError::JournalDamaged { segment: 1, offset } if offset == from)
    );
}

/// What was never written is zeros; a hash may end with some too.
#[test]
fn a_frame_of_another_history_that_ends_with_a_zero_is_damage() {
    let bench = Bench::new();
    let write = |records: &[Record]| {
        let _ = fs::remove_file(bench.segment(1));
        let at = bench.open().0.append(records).unwrap();
        (at[1].offset as usize, fs::read(bench.segment(1)).unwrap())
    };
    let ends_with_zero = |n: &u64| {
        let (from, bytes) = write(&[record(1), record(*n)]);
        let end = from
            + frame::Header::parse(&bytes[from..])
                .unwrap()
                .total()
                .unwrap();
        bytes[end - 1] == 0
    };
    let n = (2..50_000).find(ends_with_zero).expect("one of 256 does");
    let (from, bytes) = write(&[record(1), record(n)]);
    write(&[record(3), record(n)]);
    change(
        &bench.segment(1),
        from as u64,
        |b| b.copy_from_slice(&bytes[from..400]),
        400 - from,
    );
    assert!(
        matches!(bench.open_error(), StoreError::JournalDamaged { segment: 1, offset } if offset as usize == from)
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
        crate::sys::Errno::EBADF
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

/// Its last frames came after the sync had begun.
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
    assert_eq!(error.errno(), crate::sys::Errno::ENOSPC);
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

/// Not a test of truth but of a promise: run with `--release -- --ignored --nocapture`.
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

#[test]
fn what_the_segment_lost_the_tail_brings_back() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    journal.append(&[record(1)]).unwrap();
    journal.sync().unwrap();
    let from = journal.append(&[record(2), large(3, 2500)]).unwrap()[0];
    journal.append(&[record(4)]).unwrap();
    let (end, records) = (journal.position(), all(&journal));
    drop(journal);
    let whole = fs::read(bench.segment(1)).unwrap();
    for lost in (from.offset..end.offset).step_by(97) {
        fs::write(bench.segment(1), &whole).unwrap();
        // A sector, and all that came after it.
        for len in [64.min(end.offset - lost), end.offset - lost] {
            zero(&bench.segment(1), u64::from(lost), len as usize);
            let (journal, opening) = bench.open_with_tail();
            assert_eq!(
                (opening, journal.witness()),
                (Opening { torn: false, end }, end),
                "lost from {lost} on"
            );
            assert_eq!(all(&journal), records);
        }
    }
}

#[test]
fn the_tail_is_the_witness_of_how_far_the_tree_goes() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    journal.append(&[record(1)]).unwrap();
    let before = journal.position();
    let name = tail::file_name(Address::START);
    assert_eq!(bench.tail(), [bench.journal().join(&name)]);
    journal.append(&[record(2)]).unwrap();
    drop(journal);
    // The metadata of the second append did not come to the disk, its data did.
    let attribute = String::from_utf8(tail::chunk_name(before)).unwrap();
    rustix::fs::removexattr(bench.journal().join(&name), attribute).unwrap();
    let (journal, opening) = bench.open_with_tail();
    assert_eq!(
        (journal.witness(), all(&journal)),
        (before, vec![record(1), record(2)])
    );
    assert!(!opening.torn);
    journal.append(&[record(3)]).unwrap();
    journal.sync().unwrap();
    let end = journal.position();
    assert_eq!(
        bench.tail(),
        [bench.journal().join(tail::file_name(end))],
        "a sync leaves an empty one that says where it was"
    );
    drop(journal);
    assert_eq!(bench.open_with_tail().0.witness(), end);
}

#[test]
fn a_tail_of_more_than_one_file_can_hold_goes_on_in_the_next() {
    let bench = Bench::new();
    let (journal, _) = Journal::open(&bench.layout).unwrap();
    for n in 0..2500 {
        journal.append(&[record(n)]).unwrap();
    }
    // More than one tail takes: it is synced at once, and what is in the tail is of no more use.
    let end = journal.position();
    drop(journal);
    assert!(bench.tail().len() >= 3);
    zero(
        &bench.segment(1),
        u64::from(SEGMENT_HEADER),
        (end.offset - SEGMENT_HEADER) as usize,
    );
    let (journal, opening) = Journal::open(&bench.layout).unwrap();
    assert_eq!(
        (opening, journal.witness()),
        (Opening { torn: false, end }, end)
    );
    journal.append(&[large(1, 300_000)]).unwrap();
    assert_eq!(bench.tail(), Vec::<PathBuf>::new());
    drop(journal);
    assert_eq!(all(&Journal::open(&bench.layout).unwrap().0).len(), 2501);
}

#[test]
fn rubbish_in_the_tail_changes_nothing_that_is_whole() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    journal.append(&[record(1), record(2)]).unwrap();
    drop(journal);
    let file = bench.tail().pop().unwrap();
    for (name, value) in [
        ("user.ckptfs.0000000100000040", vec![7; 100]),
        ("user.ckptfs.00000001ffffffff", vec![7; 100]),
        ("user.ckptfs.00000009000000ff", vec![7; 100]),
        ("user.ckptfs.0000000100000000", vec![7; 100]),
        ("user.ckptfs.zzz", vec![7; 100]),
    ] {
        rustix::fs::setxattr(&file, name, &value, rustix::fs::XattrFlags::empty()).unwrap();
    }
    fs::write(bench.journal().join("tail-rubbish"), "").unwrap();
    let (journal, _) = bench.open_with_tail();
    assert_eq!(all(&journal), [record(1), record(2)]);
}

/// Closes the open segment and packs all that are closed, by what `verdict` says of the number in
/// each record.
fn pack_all(journal: &Journal, verdict: impl Fn(u64) -> Verdict) {
    journal.close_segment(0).unwrap();
    for (number, _) in journal.closed().unwrap() {
        let packed = journal
            .pack(number, &mut |_, record| {
                Ok(number_of(&record).map_or(Verdict::Keep, &verdict))
            })
            .unwrap();
        if let Some(packed) = packed {
            journal.put_packed(&packed).unwrap();
        }
    }
}

fn number_of(record: &Record) -> Option<u64> {
    match record {
        Record::Undo { undo, .. } => match undo.first() {
            Some(Undo::Xattrs { slot, .. }) => Some(slot.0),
            _ => None,
        },
        _ => None,
    }
}

fn numbers(journal: &Journal) -> Vec<u64> {
    all(journal).iter().filter_map(number_of).collect()
}

#[test]
fn a_packed_segment_is_read_as_it_was() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    let places: Vec<Address> = (1..=60)
        .map(|n| journal.append(&[large(n, 600)]).unwrap()[0])
        .collect();
    pack_all(&journal, |_| Verdict::Keep);
    assert!(!bench.segment(1).exists() && bench.journal().join("packs/00000001").exists());
    let look = |journal: &Journal| {
        let found: Vec<(Address, u64)> = journal
            .scan(journal.start(), None)
            .map(Result::unwrap)
            .filter_map(|(at, record)| Some((at, number_of(&record)?)))
            .collect();
        assert_eq!(found, places.iter().copied().zip(1..).collect::<Vec<_>>());
        places
            .iter()
            .zip(1..)
            .for_each(|(at, n)| assert_eq!(journal.read(*at).unwrap(), large(n, 600)));
    };
    look(&journal);
    assert!(matches!(
        journal.read(Address {
            segment: 1,
            offset: SEGMENT_HEADER + 1
        }),
        Err(StoreError::JournalDamaged { .. })
    ));
    drop(journal);
    // What a crash leaves beside a pack goes.
    fs::write(bench.segment(1), "old").unwrap();
    fs::write(bench.journal().join("packs/00000002.new"), "half").unwrap();
    let (journal, opening) = bench.open();
    assert!(!opening.torn && !bench.segment(1).exists());
    look(&journal);
    journal.append(&[large(61, 10)]).unwrap();
    drop(journal);
    let (journal, _, damage) = Journal::open_to_check(&bench.layout).unwrap();
    assert!(damage.is_none());
    assert_eq!(numbers(&journal).last(), Some(&61));
}

#[test]
fn what_is_not_needed_goes_from_a_pack_and_the_chain_holds() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    let places: Vec<Address> = (1..=60)
        .map(|n| journal.append(&[large(n, 600)]).unwrap()[0])
        .collect();
    pack_all(&journal, |n| {
        if n.is_multiple_of(3) {
            Verdict::LeaveOut
        } else {
            Verdict::Keep
        }
    });
    let left: Vec<u64> = (1..=60).filter(|n| n % 3 != 0).collect();
    assert_eq!(numbers(&journal), left);
    assert_eq!(journal.read_if_needed(places[2]).unwrap(), None);
    assert!(matches!(
        journal.read(places[2]),
        Err(StoreError::JournalDamaged { .. })
    ));
    // Again, with less: gaps become one, and what was made less stays so.
    let shorter = |n: u64| {
        if n.is_multiple_of(2) {
            Verdict::Less(large(n, 5))
        } else {
            Verdict::LeaveOut
        }
    };
    pack_all(
        &journal,
        |n| if n < 50 { shorter(n) } else { Verdict::Keep },
    );
    pack_all(&journal, |_| Verdict::Keep);
    drop(journal);
    let (journal, _) = bench.open();
    assert_eq!(
        numbers(&journal),
        left.iter()
            .copied()
            .filter(|n| *n >= 50 || n % 2 == 0)
            .collect::<Vec<_>>()
    );
    assert_eq!(journal.read(places[1]).unwrap(), large(2, 5));
    // Of several that went together each is gone.
    [2, 4, 6]
        .into_iter()
        .for_each(|nth| assert_eq!(journal.read_if_needed(places[nth]).unwrap(), None, "{nth}"));
    drop(journal);
    assert!(Journal::open_to_check(&bench.layout).unwrap().2.is_none());
    let packs = fs::read_dir(bench.journal().join("packs"))
        .unwrap()
        .map(Result::unwrap);
    assert!(
        packs
            .map(|entry| entry.metadata().unwrap().len())
            .sum::<u64>()
            < 4000
    );
}

fn made(id: u64) -> Record {
    let id = CheckpointId(id);
    Record::Checkpoint(Checkpoint {
        id,
        tags: vec![],
        note: String::new(),
        created_ns: 1,
        atomic: true,
        dirty: 0,
        reason: Reason::Asked,
    })
}

/// A stranger's journal may not say what it likes behind frames that are gone: each was one
/// checkpoint at most.
#[test]
fn checkpoints_count_up_by_as_many_as_frames_are_gone_at_most() {
    let nothing = || Record::Moved { places: Vec::new() };
    let deleted = |id| Record::Deleted {
        id: CheckpointId(id),
    };
    let undo = |epoch| Record::Undo {
        epoch: Epoch(epoch),
        undo: Vec::new(),
    };
    for (number, (records, fits)) in [
        (vec![made(1), made(2), made(3), deleted(2), made(4)], true),
        (vec![made(1), nothing(), nothing(), made(4)], true),
        (vec![made(1), nothing(), made(4)], false),
        (vec![made(1), nothing(), nothing(), undo(4), made(4)], true),
        (vec![made(1), nothing(), nothing(), undo(5)], false),
        (vec![made(1), nothing(), nothing(), undo(3), made(4)], false),
        (
            vec![made(1), nothing(), nothing(), deleted(3), made(2)],
            true,
        ),
        (vec![made(1), nothing(), deleted(3)], false),
        (vec![made(1), made(2), nothing(), nothing(), made(2)], false),
        (vec![made(1), made(3)], false),
    ]
    .into_iter()
    .enumerate()
    {
        let bench = Bench::new();
        let (journal, _) = bench.open();
        journal.append(&records).unwrap();
        journal.close_segment(0).unwrap();
        let goes = |record: &Record| {
            *record == nothing()
                || number == 0 && matches!(record, Record::Checkpoint(made) if made.id.0 < 4)
        };
        let judge = &mut |_, record: Record| {
            Ok(if goes(&record) {
                Verdict::LeaveOut
            } else {
                Verdict::Keep
            })
        };
        if let Some(packed) = journal.pack(1, judge).unwrap() {
            journal.put_packed(&packed).unwrap();
        }
        let last = journal.scan(journal.start(), None).last().unwrap();
        assert_eq!(last.is_ok(), fits, "{number}: {last:?}");
        assert!(
            fits || matches!(
                last,
                Err(StoreError::BadRecord {
                    source: CodecError::OutOfTime,
                    ..
                })
            ),
            "{number}: {last:?}"
        );
    }
}

/// What a pack says is gone had room where it was.
#[test]
fn a_pack_has_no_more_frames_gone_than_there_was_room_for() {
    let identity = Identity::new(Bench::new().layout.id());
    let link = |seq| Link {
        seq,
        hash: identity.genesis().hash,
    };
    for (count, fits) in [(1, true), (5, true), (6, false), (u64::MAX, false)] {
        let mut packer = Packer::new(link(0));
        packer.pass_gap(
            SEGMENT_HEADER,
            &Gap {
                before: link(0),
                after: link(count),
                end: SEGMENT_HEADER + 5 * 88 + 87,
            },
        );
        assert_eq!(
            pack::is_whole(&packer.finish(&identity, 1).unwrap(), &identity, 1),
            fits,
            "{count}"
        );
    }
}

#[test]
fn a_damaged_or_missing_pack_is_told() {
    let bench = Bench::new();
    let (journal, _) = bench.open();
    (1..=60).for_each(|n| drop(journal.append(&[large(n, 600)]).unwrap()));
    pack_all(&journal, |n| {
        if n.is_multiple_of(2) {
            Verdict::LeaveOut
        } else {
            Verdict::Keep
        }
    });
    let last = journal.closed().unwrap().len() as u32;
    drop(journal);
    for number in 1..=last {
        let path = bench.journal().join(format!("packs/{number:08}"));
        let whole = fs::read(&path).unwrap();
        let found = || Journal::open_to_check(&bench.layout).unwrap().2;
        for at in (0..whole.len() as u64).step_by(1 + whole.len() / 40) {
            flip(&path, at);
            assert!(
                matches!(found(), Some(StoreError::JournalDamaged { segment, .. }) if segment + 1 >= number),
                "{number} at {at}: {:?}",
                found()
            );
            flip(&path, at);
        }
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert!(found().is_some());
        fs::remove_file(&path).unwrap();
        assert!(matches!(found(), Some(StoreError::JournalDamaged { .. })));
        fs::write(&path, &whole).unwrap();
        assert!(found().is_none());
    }
    // That of another segment is not this one's.
    fs::copy(
        bench.journal().join("packs/00000001"),
        bench.journal().join("packs/00000002"),
    )
    .unwrap();
    assert!(Journal::open_to_check(&bench.layout).unwrap().2.is_some());
}
