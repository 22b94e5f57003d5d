//! The store as a whole: opening, and an index that does not match.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use super::ids::{Name, Slot};
use super::record::{Checkpoint, Key, Undo};
use super::*;
use ckptfs_api::{CheckpointId, Epoch, Reason};

pub mod made;

fn open(dir: &tempfile::TempDir) -> (Store, Opened) {
    Store::open(File::open(dir.path()).unwrap(), true).unwrap()
}

fn undo(epoch: u64, name: &[u8]) -> Record {
    Record::Undo {
        epoch: Epoch(epoch),
        undo: vec![Undo::Entry {
            dir: Slot(1),
            name: Name::new(name),
            before: None,
        }],
    }
}

fn made(id: u64) -> Record {
    let id = CheckpointId(id);
    Record::Checkpoint(Checkpoint {
        id,
        tags: vec![],
        note: "n".into(),
        created_ns: 1,
        atomic: true,
        dirty: 1,
        reason: Reason::Asked,
    })
}

fn put(store: &Store, records: &[Record], apply: bool) -> Vec<Address> {
    let places = store.journal.append(records).unwrap();
    let mut batch = Batch::new();
    for (record, at) in records.iter().zip(&places) {
        batch.add(*at, record).unwrap();
    }
    if apply {
        store.index.apply(&mut batch).unwrap();
    }
    places
}

#[test]
fn a_store_is_made_used_and_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let (store, opened) = open(&dir);
    assert_eq!(
        opened,
        Opened {
            created: true,
            torn: false,
            rebuilt: None
        }
    );
    put(&store, &[undo(1, b"a"), made(1)], true);
    let tail = put(&store, &[undo(2, b"b")], false);
    let found = store
        .index
        .first_after(&Key::Entry(Slot(1), Name::new(b"a")), CheckpointId(0))
        .unwrap()
        .unwrap();
    assert_eq!(
        found,
        (
            Epoch(1),
            Undo::Entry {
                dir: Slot(1),
                name: Name::new(b"a"),
                before: None
            }
        )
    );
    drop(store);
    let (store, opened) = open(&dir);
    assert_eq!(
        opened,
        Opened {
            created: false,
            torn: false,
            rebuilt: None
        }
    );
    let rest: Vec<_> = store
        .journal
        .scan(store.index.applied().unwrap(), None)
        .map(Result::unwrap)
        .collect();
    assert_eq!(
        rest,
        [(tail[0], undo(2, b"b"))],
        "the tail is left to the caller"
    );
    let next = Store::open(File::open(dir.path()).unwrap(), true).map(|(_, opened)| opened);
    assert!(matches!(next, Err(StoreError::Locked)));
}

#[test]
fn an_index_that_is_gone_or_ahead_or_does_not_fit_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir);
    let at = put(
        &store,
        &[undo(1, b"a"), made(1), undo(2, b"b"), made(2)],
        true,
    );
    drop(store);
    let (index, segment) = (
        dir.path().join(".ckptfs/index"),
        dir.path().join(".ckptfs/journal/00000001"),
    );
    fs::remove_dir_all(&index).unwrap();
    let (store, opened) = open(&dir);
    assert_eq!(opened.rebuilt, Some(RebuildReason::Missing));
    let known = store.index.dump().unwrap();
    drop(store);

    // The journal lost its last frame in a power cut that the index's pages survived.
    let file = fs::OpenOptions::new().write(true).open(&segment).unwrap();
    file.write_all_at(&[0; 300], u64::from(at[3].offset))
        .unwrap();
    let journal = fs::read_dir(segment.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().path());
    journal
        .filter(|path| path.to_string_lossy().contains("/tail-"))
        .for_each(|path| fs::remove_file(path).unwrap());
    let (store, opened) = open(&dir);
    assert_eq!(opened.rebuilt, Some(RebuildReason::Ahead));
    assert_ne!(store.index.dump().unwrap(), known);
    assert_eq!(
        store.index.applied().unwrap(),
        at[2],
        "the epoch that is open again is left to the caller"
    );
    let mut batch = Batch::new();
    batch.add(at[2], &undo(2, b"b")).unwrap();
    store.index.apply(&mut batch).unwrap();
    put(&store, &[made(2)], true);
    assert_eq!(store.index.dump().unwrap(), known);

    // An index of this store that was applied from another history.
    let mut batch = Batch::new();
    batch
        .add(
            Address {
                offset: at[2].offset - 1,
                ..at[2]
            },
            &undo(2, b"x"),
        )
        .unwrap();
    store.index.apply(&mut batch).unwrap();
    drop(store);
    let (store, opened) = open(&dir);
    assert_eq!(opened.rebuilt, Some(RebuildReason::Unfit));
    assert_eq!(store.index.dump().unwrap(), known);
}

#[test]
fn sled_needs_no_path_through_the_tree() {
    let dir = tempfile::tempdir().unwrap();
    let root = File::open(dir.path()).unwrap();
    // As under a mount: the path leads elsewhere while the descriptor stays.
    let away = tempfile::tempdir().unwrap();
    let (hidden, path) = (away.path().join("hidden"), dir.path().to_owned());
    fs::rename(&path, &hidden).unwrap();
    fs::create_dir(&path).unwrap();
    let (store, _) = Store::open(&root, true).unwrap();
    put(&store, &[undo(1, b"a"), made(1)], true);
    store.index.flush_durable().unwrap();
    store.journal.sync().unwrap();
    drop(store);
    assert_eq!(
        Store::open(&root, false).unwrap().1,
        Opened {
            created: false,
            torn: false,
            rebuilt: None
        }
    );
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    assert!(hidden.join(".ckptfs/index/db").exists());
}

#[test]
fn the_index_may_be_elsewhere() {
    let (dir, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let open = || {
        Store::open_with(
            File::open(dir.path()).unwrap(),
            true,
            Some(home.path().to_owned()),
        )
        .unwrap()
    };
    let (store, _) = open();
    put(&store, &[undo(1, b"a")], true);
    drop(store);
    assert_eq!(open().1.rebuilt, None);
    assert!(home.path().join("index/db").exists() && !dir.path().join(".ckptfs/index").exists());
}

#[test]
fn checkpoints_are_read_without_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir);
    let tags = Record::Tags {
        id: CheckpointId(2),
        tags: vec!["t".into()],
    };
    put(
        &store,
        &[
            made(1),
            undo(2, b"a"),
            made(2),
            made(3),
            tags,
            Record::Deleted {
                id: CheckpointId(3),
            },
        ],
        false,
    );
    let found = read_checkpoints(File::open(dir.path()).unwrap()).unwrap();
    assert_eq!(
        found
            .iter()
            .map(|c| (c.id.0, c.tags.len()))
            .collect::<Vec<_>>(),
        [(1, 0), (2, 1)]
    );
}

/// A store that lost its journal silently started a new one: all checkpoints were lost, and their
/// versions stayed.
#[test]
fn a_journal_that_is_gone_is_damage_unless_nothing_was_kept() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir));
    let (store, segment) = (
        || Store::open(File::open(dir.path()).unwrap(), true),
        dir.path().join(".ckptfs/journal/00000001"),
    );
    fs::remove_file(&segment).unwrap();
    drop(store().unwrap().0.layers.dir(Epoch(1)).unwrap());
    assert!(segment.exists());
    fs::remove_file(&segment).unwrap();
    assert!(matches!(
        store(),
        Err(StoreError::JournalDamaged {
            segment: 1,
            offset: 0
        })
    ));
    assert!(!segment.exists(), "nothing was changed");
}
