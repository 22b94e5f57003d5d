//! The index over real journals: first record wins, voids, directories, reopening, setting aside.

use std::fs;

use self::bench::Bench;
use super::*;
use crate::record::{Record, Undo};
use crate::tests::made::{
    closed, data, deleted as delete, entry as entry_of, home as home_of, moved as moved_to,
    place as place_in, undo, void,
};

pub(super) mod bench;

const DIR: Slot = Slot(100);

fn entry(name: &[u8]) -> Undo {
    entry_of(DIR.0, name, 7)
}

fn place(name: &[u8]) -> Place {
    place_in(DIR.0, name)
}

fn home(slot: u64, name: &[u8]) -> Undo {
    home_of(slot, place(name))
}

fn moved(slot: u64, name: &[u8]) -> Record {
    moved_to(slot, place(name))
}

fn after(index: &Index, key: Key, n: u64) -> Option<(u64, Undo)> {
    index
        .first_after(&key, CheckpointId(n))
        .unwrap()
        .map(|(epoch, undo)| (epoch.0, undo))
}

fn data_after(index: &Index, slot: u64, n: u64) -> Option<(u64, u64)> {
    after(index, Key::Data(Slot(slot)), n).map(|(epoch, undo)| match undo {
        Undo::Data { before, .. } => (epoch, before.size),
        other => panic!("{other:?}"),
    })
}

#[test]
fn the_first_record_of_a_key_in_an_epoch_wins_within_and_across_batches() {
    let records = [
        undo(1, vec![entry(b"b"), data(7, 1)]),
        undo(1, vec![data(7, 2)]),
        undo(2, vec![data(7, 3)]),
        undo(2, vec![data(7, 4), data(8, 5)]),
        undo(9, vec![data(7, 6)]),
    ];
    for size in 1..=records.len() {
        let bench = Bench::new();
        let (index, opening) = bench.index();
        assert_eq!(opening, IndexOpening::Rebuild(RebuildReason::Missing));
        bench.put(&index, &records, size);
        for merged in [false, true] {
            assert_eq!(data_after(&index, 7, 0), Some((1, 1)), "{merged}");
            assert_eq!(data_after(&index, 7, 1), Some((2, 3)));
            for n in 2..9 {
                assert_eq!(data_after(&index, 7, n), Some((9, 6)));
            }
            assert_eq!(data_after(&index, 7, 9), None);
            assert_eq!(data_after(&index, 7, u64::MAX), None);
            assert_eq!(data_after(&index, 8, 0), Some((2, 5)));
            assert_eq!(data_after(&index, 6, 0), None);
            assert_eq!(
                after(&index, Key::Attr(Slot(7)), 0),
                None,
                "another kind of key"
            );
            assert_eq!(index.applied().unwrap(), bench.journal.position());
            index.merge(&|| false).unwrap();
        }
    }
}

#[test]
fn a_void_removes_and_a_later_record_counts() {
    let records = [
        undo(1, vec![data(7, 1)]),
        undo(2, vec![data(7, 2)]),
        void(2, 7),
        undo(3, vec![data(7, 3)]),
        void(3, 7),
        undo(3, vec![data(7, 4)]),
        undo(3, vec![data(7, 5)]),
    ];
    for size in 1..=records.len() {
        for each in [false, true] {
            let bench = Bench::new();
            let (index, _) = bench.index();
            for records in records.chunks(size) {
                bench.put(&index, records, size);
                if each {
                    index.merge(&|| false).unwrap();
                }
            }
            for merged in [false, true] {
                assert_eq!(data_after(&index, 7, 0), Some((1, 1)));
                assert_eq!(
                    data_after(&index, 7, 1),
                    Some((3, 4)),
                    "batches of {size}, {merged}"
                );
                index.merge(&|| false).unwrap();
            }
        }
    }
}

/// Names that are prefixes of each other, and names with the bytes that keys use as separators.
fn awkward_names() -> [Vec<u8>; 13] {
    let short: [&[u8]; 12] = [
        b"\x01",
        b"\x01\x01",
        b"\x01\xff",
        b"a",
        b"a\x01",
        b"a\xff",
        b"aa",
        b"ab",
        b"b",
        b"\xc3\xa9",
        b"\xff",
        b"\xff\xff",
    ];
    let mut names = [(); 13].map(|()| vec![b'n'; 255]);
    names
        .iter_mut()
        .zip(short)
        .for_each(|(name, short)| *name = short.to_vec());
    names
}

#[test]
fn entries_of_a_directory_come_once_each_and_in_order() {
    let names = awkward_names();
    let names = names.each_ref().map(Vec::as_slice);
    let mut sorted = names.map(Name::new).to_vec();
    sorted.sort();
    let bench = Bench::new();
    let (index, _) = bench.index();
    // Directories with neighbouring numbers.
    let others = [
        entry_of(99, b"zz", 7),
        entry_of(101, b"a", 7),
        entry_of(100 << 8, b"a", 7),
    ];
    let (mut records, mut later) = (vec![], vec![undo(3, others.to_vec())]);
    for (n, name) in names.iter().enumerate() {
        records.push(undo(1, vec![data(1, 0), entry(name)]));
        later.extend([
            undo(3 + n as u64 % 2, vec![entry(name)]),
            undo(8, vec![entry(name)]),
        ]);
    }
    later.sort_by_key(|record| matches!(record, Record::Undo { epoch, .. } if epoch.0 == 8));
    records.extend(later);
    bench.put(&index, &records, 5);
    let list = |n| index.entries_after(DIR, CheckpointId(n)).unwrap();
    for n in [0, 1, 2, 3, 4, 7] {
        let found = list(n);
        assert_eq!(
            found.keys().cloned().collect::<Vec<_>>(),
            sorted,
            "after {n}"
        );
        for (name, (epoch, undo)) in found {
            let i = names
                .iter()
                .position(|other| *other == name.as_bytes())
                .unwrap() as u64;
            assert_eq!(
                Some((epoch.0, undo)),
                after(&index, Key::Entry(DIR, name), n)
            );
            let epochs = [1, 3 + i % 2, 8];
            assert_eq!(epochs.into_iter().find(|epoch| *epoch > n), Some(epoch.0));
        }
    }
    assert!(list(8).is_empty() && list(u64::MAX).is_empty());
    let count = |dir| {
        index
            .entries_after(Slot(dir), CheckpointId(0))
            .unwrap()
            .len()
    };
    assert_eq!((count(99), count(102)), (1, 0));
    // The kernel never passes such a name, but it must do no harm.
    let key = keys::undo_prefix(&Key::Entry(DIR, Name::new(b"a\0\0b")));
    assert_eq!(keys::entry_name(&key), Some(Name::new(b"a\0\0b")));
}

#[test]
fn names_with_many_epochs_are_passed_over() {
    let bench = Bench::new();
    let (index, _) = bench.index();
    let records: Vec<_> = (1..=100)
        .map(|epoch| undo(epoch, vec![entry(b"a"), entry(b"ab"), entry(b"b")]))
        .collect();
    bench.put(&index, &records, 100);
    for n in [0, 1, 15, 16, 17, 18, 50, 82, 83, 84, 98, 99] {
        let found = index.entries_after(DIR, CheckpointId(n)).unwrap();
        assert_eq!(
            found
                .iter()
                .map(|(name, (epoch, _))| (name.as_bytes(), epoch.0))
                .collect::<Vec<_>>(),
            [(&b"a"[..], n + 1), (b"ab", n + 1), (b"b", n + 1)]
        );
    }
    assert!(
        index
            .entries_after(DIR, CheckpointId(100))
            .unwrap()
            .is_empty()
    );
}

#[test]
fn the_place_seen_last_counts() {
    let bench = Bench::new();
    let (index, _) = bench.index();
    assert_eq!(index.place(Slot(1)).unwrap(), None);
    bench.put(
        &index,
        &[undo(1, vec![home(7, b"first")]), moved(7, b"second")],
        2,
    );
    assert_eq!(index.place(Slot(7)).unwrap(), Some(place(b"second")));
    bench.put(&index, &[undo(2, vec![home(7, b"third")])], 1);
    assert_eq!(index.place(Slot(7)).unwrap(), Some(place(b"third")));
    assert!(
        after(&index, Key::Home(Slot(7)), 1).is_some(),
        "a home is an undo record too"
    );
}

fn story() -> Vec<Record> {
    let mut records = Vec::new();
    for epoch in 1..=30u64 {
        for n in 0..20u64 {
            let name = format!("name-{}", n * epoch % 17);
            records.push(undo(
                epoch,
                vec![
                    entry(name.as_bytes()),
                    data(n % 7, n),
                    home(2 + n % 5, name.as_bytes()),
                ],
            ));
            if n % 6 == 0 {
                records.push(void(epoch, n % 7));
            }
            if n % 9 == 0 {
                records.push(moved(2 + n % 5, b"elsewhere"));
            }
        }
        records.push(closed(epoch));
        if epoch % 4 == 0 {
            records.push(delete(epoch - 1));
        }
    }
    records
}

#[test]
fn a_rebuilt_index_is_equal_to_the_one_that_grew() {
    for size in [1, 7, 10_000] {
        let bench = Bench::new();
        let (index, _) = bench.index();
        bench.put(&index, &story(), size);
        let grown = index.dump().unwrap();
        index.rebuild(&bench.journal, None).unwrap();
        assert!(grown == index.dump().unwrap(), "batches of {size}");
        assert_eq!(bench.asides(), 1);
        assert!(grown.len() > 500);
    }
}

/// On a full filesystem: the index on disk stays unchanged and falls behind.
#[test]
fn one_in_memory_is_equal_to_one_on_disk() {
    let story = story();
    let half = story.len() / 2;
    for size in [1, 7, 10_000] {
        let bench = Bench::new();
        let (index, _) = bench.index();
        bench.put(&index, &story[..half], size);
        index.flush_durable().unwrap();
        let before = index.dump().unwrap();
        index.rebuild_in_memory(&bench.journal, None).unwrap();
        assert!(
            index.is_in_memory() && before == index.dump().unwrap(),
            "batches of {size}"
        );
        bench.put(&index, &story[half..], size);
        let (after, applied) = (index.dump().unwrap(), index.applied().unwrap());
        assert_eq!(applied, bench.journal.position());
        index.distrust();
        index.flush_durable().unwrap();
        drop(index);
        let (index, opening) = bench.index();
        assert_eq!((opening, bench.asides()), (IndexOpening::Ready, 0));
        assert!(before == index.dump().unwrap());
        index.rebuild(&bench.journal, None).unwrap();
        assert!(after == index.dump().unwrap() && !index.is_in_memory());
    }
}

#[test]
fn it_is_there_after_reopening() {
    let bench = Bench::new();
    let (index, _) = bench.index();
    bench.put(&index, &story(), 50);
    index.flush_durable().unwrap();
    let before = index.dump().unwrap();
    drop(index);
    let (index, opening) = bench.index();
    assert_eq!(opening, IndexOpening::Ready);
    assert!(before == index.dump().unwrap());
    assert_eq!(index.applied().unwrap(), bench.journal.position());
}

#[test]
fn one_that_cannot_be_read_is_set_aside_and_deleted_later() {
    let bench = Bench::new();
    let (index, _) = bench.index();
    bench.put(&index, &story(), 50);
    index.flush_durable().unwrap();
    let before = index.dump().unwrap();
    drop(index);
    for file in fs::read_dir(bench.files())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
    {
        let mut bytes = fs::read(&file).unwrap();
        bytes
            .iter_mut()
            .skip(3)
            .step_by(40)
            .for_each(|b| *b ^= 0x55);
        fs::write(&file, bytes).unwrap();
    }
    let (index, opening) = bench.index();
    assert!(
        matches!(
            opening,
            IndexOpening::Rebuild(
                RebuildReason::Unreadable | RebuildReason::Foreign | RebuildReason::Damaged
            )
        ),
        "{opening:?}"
    );
    assert_eq!(bench.asides(), 1);
    assert_eq!(index.applied().unwrap(), Address::START);
    index.rebuild(&bench.journal, None).unwrap();
    assert!(before == index.dump().unwrap());
    drop(index);
    assert_eq!(bench.index().1, IndexOpening::Ready);
    assert_eq!(bench.asides(), 0);
}

#[test]
fn a_file_or_link_in_its_place_is_set_aside() {
    let bench = Bench::new();
    fs::write(bench.files(), "not a directory").unwrap();
    assert!(matches!(
        bench.index().1,
        IndexOpening::Rebuild(RebuildReason::Unreadable)
    ));
    fs::remove_dir_all(bench.files()).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), bench.files()).unwrap();
    assert!(matches!(
        bench.index().1,
        IndexOpening::Rebuild(RebuildReason::Unreadable)
    ));
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    assert_eq!(bench.asides(), 2);
}

#[test]
fn the_index_of_another_store_is_foreign() {
    let (one, two) = (Bench::new(), Bench::new());
    let (index, _) = one.index();
    one.put(&index, &story(), 100);
    drop(index);
    fs::rename(one.files(), two.files()).unwrap();
    assert_eq!(two.index().1, IndexOpening::Rebuild(RebuildReason::Foreign));
}

#[test]
fn a_changed_value_is_found() {
    let bench = Bench::new();
    let (index, _) = bench.index();
    let records = [
        undo(1, vec![data(7, 0), entry(b"a"), home(7, b"a")]),
        closed(1),
    ];
    bench.put(&index, &records, 9);
    let keys = [
        keys::checkpoint_key(CheckpointId(1)),
        keys::META_APPLIED.to_vec(),
    ];
    for key in &keys {
        let db = index.db.read();
        let db = db.as_ref().unwrap().db.disk().unwrap();
        let mut value = db.get(key).unwrap().unwrap().to_vec();
        value[0] ^= 1;
        db.insert(key.as_slice(), value).unwrap();
    }
    let damaged = |result: StoreResult<()>| matches!(result, Err(StoreError::IndexDamaged));
    assert!(damaged(index.catalogue().checkpoints().map(drop)));
    assert!(damaged(index.catalogue().last_checkpoint().map(drop)));
    assert!(damaged(index.applied().map(drop)));
    drop(index);
    assert_eq!(
        bench.index().1,
        IndexOpening::Rebuild(RebuildReason::Damaged)
    );
}

#[test]
fn a_panic_is_an_error() {
    let failed = guarded("look up", || -> StoreResult<()> { panic!("as sled does") });
    assert!(matches!(
        failed,
        Err(StoreError::IndexPanic { what: "look up" })
    ));
}

#[test]
fn a_rebuild_from_a_damaged_journal_closes_the_index_until_one_succeeds() {
    let bench = Bench::new();
    let (index, _) = bench.index();
    let at = bench.put(
        &index,
        &[
            undo(1, vec![data(7, 1)]),
            closed(1),
            undo(2, vec![data(7, 2)]),
        ],
        3,
    );
    let segment = bench.dir.path().join(".ckptfs/journal/00000001");
    let whole = fs::read(&segment).unwrap();
    let mut bytes = whole.clone();
    bytes[at[2].offset as usize + 60] ^= 1;
    fs::write(&segment, &bytes).unwrap();
    assert!(matches!(
        index.rebuild(&bench.journal, None),
        Err(StoreError::JournalDamaged { .. })
    ));
    assert!(matches!(index.applied(), Err(StoreError::IndexClosed)));
    fs::write(&segment, &whole).unwrap();
    index.rebuild(&bench.journal, None).unwrap();
    assert_eq!(data_after(&index, 7, 1), Some((2, 2)));
}
