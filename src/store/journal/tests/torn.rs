//! Torn ends and damage.

use super::super::frame;
use super::*;

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
        // The next append must be independent of the bytes that were there.
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
    // The first page from the last synced frame on was lost; the second was saved, with complete
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
            // A first frame that states that all earlier ones were on disk is trusted; missing
            // frames before it are detected when they are read.
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
    // The same key but another history, as if the second frame of a backup had replaced ours.
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

/// Unwritten bytes are zeros, but a hash may also end with zeros.
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
