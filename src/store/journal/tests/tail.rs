//! The tail: recovery of lost frames, and the witness.

use super::super::tail;
use super::*;

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
        // A sector, then everything after it.
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
    // The metadata of the second append did not reach the disk, its data did.
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
    // Exceeds the limit of a tail: the append is synced immediately, and the tail is obsolete.
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
