//! Packed segments.

use super::super::PackDecision;
use super::super::frame::{Gap, Link};
use super::super::pack::{self, Packer};
use super::*;
use crate::tests::made::{closed, deleted, undo};

/// Closes the current segment and packs all closed ones; `verdict` decides by the number in each
/// record.
fn pack_all(journal: &Journal, verdict: impl Fn(u64) -> PackDecision) {
    journal.close_segment(0).unwrap();
    for (number, _) in journal.closed().unwrap() {
        let packed = journal
            .pack(number, &mut |_, record| {
                Ok(number_of(&record).map_or(PackDecision::Keep, &verdict))
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
    pack_all(&journal, |_| PackDecision::Keep);
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
    // Files that a crash left next to a pack are removed.
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
            PackDecision::LeaveOut
        } else {
            PackDecision::Keep
        }
    });
    let left: Vec<u64> = (1..=60).filter(|n| n % 3 != 0).collect();
    assert_eq!(numbers(&journal), left);
    assert_eq!(journal.read_if_needed(places[2]).unwrap(), None);
    assert!(matches!(
        journal.read(places[2]),
        Err(StoreError::JournalDamaged { .. })
    ));
    // A second pass with fewer records: gaps are merged, and changed records stay changed.
    let shorter = |n: u64| {
        if n.is_multiple_of(2) {
            PackDecision::Less(large(n, 5))
        } else {
            PackDecision::LeaveOut
        }
    };
    pack_all(&journal, |n| {
        if n < 50 {
            shorter(n)
        } else {
            PackDecision::Keep
        }
    });
    pack_all(&journal, |_| PackDecision::Keep);
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
    // Each of several frames left out together is missing.
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

/// A forged journal cannot skip arbitrary checkpoints behind missing frames: each was at most one
/// checkpoint.
#[test]
fn checkpoints_count_up_by_as_many_as_frames_are_gone_at_most() {
    let nothing = || Record::Moved { places: Vec::new() };
    let undo = |epoch| undo(epoch, Vec::new());
    for (number, (records, fits)) in [
        (
            vec![closed(1), closed(2), closed(3), deleted(2), closed(4)],
            true,
        ),
        (vec![closed(1), nothing(), nothing(), closed(4)], true),
        (vec![closed(1), nothing(), closed(4)], false),
        (
            vec![closed(1), nothing(), nothing(), undo(4), closed(4)],
            true,
        ),
        (vec![closed(1), nothing(), nothing(), undo(5)], false),
        (
            vec![closed(1), nothing(), nothing(), undo(3), closed(4)],
            false,
        ),
        (
            vec![closed(1), nothing(), nothing(), deleted(3), closed(2)],
            true,
        ),
        (vec![closed(1), nothing(), deleted(3)], false),
        (
            vec![closed(1), closed(2), nothing(), nothing(), closed(2)],
            false,
        ),
        (vec![closed(1), closed(3)], false),
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
                PackDecision::LeaveOut
            } else {
                PackDecision::Keep
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

/// The number of missing frames in a pack is bounded by their space.
#[test]
fn a_pack_has_no_more_frames_gone_than_there_was_room_for() {
    let identity = JournalKey::new(Bench::new().layout.id());
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
            PackDecision::LeaveOut
        } else {
            PackDecision::Keep
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
    // The pack of another segment is rejected.
    fs::copy(
        bench.journal().join("packs/00000001"),
        bench.journal().join("packs/00000002"),
    )
    .unwrap();
    assert!(Journal::open_to_check(&bench.layout).unwrap().2.is_some());
}
