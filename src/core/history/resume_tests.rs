//! Records left by a power cut. The tail states how far the tree on disk goes, so the tests remove
//! parts of it.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::super::attribution::Author;
use super::super::wake::HURRY_EPOCHS;
use super::*;
use ckptfs_api::{CheckpointId, Reason};
use ckptfs_store::ids::Name;
use ckptfs_store::record::Checkpoint;

/// Enough for the index to apply them in many pieces.
const MANY: u64 = 20_000;

fn open(dir: &Path) -> (Timeline, RecoveryState) {
    let (store, _) = Store::open(File::open(dir).unwrap(), true).unwrap();
    Timeline::open(Arc::new(store)).unwrap()
}

fn checkpoint(timeline: &Timeline, number: u64) -> CheckpointId {
    let id = CheckpointId(number);
    let created_ns = 4_000_000_000_000_000_000 + number as i64;
    let checkpoint = Checkpoint {
        id,
        tags: Vec::new(),
        note: String::new(),
        created_ns,
        atomic: true,
        dirty: 0,
        reason: Reason::Asked,
    };
    timeline
        .close_epoch(None, checkpoint, Vec::new(), &[])
        .unwrap();
    id
}

/// Simulates a tree on disk that ends at `at`, with a complete journal.
fn cut(dir: &Path, at: Address) {
    let journal = dir.join(".ckptfs/journal");
    let names = std::fs::read_dir(&journal)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| name.starts_with("tail-"))
        .for_each(|name| std::fs::remove_file(journal.join(name)).unwrap());
    File::create(journal.join(format!("tail-{:08x}-{:08x}", at.segment, at.offset))).unwrap();
}

#[test]
fn what_was_struck_is_not_seen_while_the_index_takes_its_epoch_over() {
    let dir = tempfile::tempdir().unwrap();
    let (slot, first) = (Slot(500), {
        let (timeline, _) = open(dir.path());
        let first = checkpoint(&timeline, 1);
        let reached = timeline.store().journal.position();
        let object = timeline
            .store()
            .layers
            .next_object(Epoch(2), Slot(500), ObjectOrigin::Cloned)
            .unwrap();
        let never = Undo::Data {
            slot: Slot(500),
            before: DataState {
                object: Some(object),
                size: 7,
                provisional: false,
            },
        };
        timeline
            .epochs
            .record(&Author::default(), vec![never], Vec::new())
            .unwrap();
        let entry = |number| Undo::Entry {
            dir: Slot(10_000 + number),
            name: Name::new(b"name"),
            before: None,
        };
        timeline
            .epochs
            .record(
                &Author::default(),
                (0..MANY).map(entry).collect(),
                Vec::new(),
            )
            .unwrap();
        checkpoint(&timeline, 2);
        timeline.store().journal.sync().unwrap();
        drop(timeline);
        cut(dir.path(), reached);
        first
    });
    let (timeline, _) = open(dir.path());
    assert!(
        timeline.epochs.read().struck().contains(&(Epoch(2), slot)),
        "the version that never came to be is struck"
    );
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut looks = 0_u32;
            while !ended.load(Ordering::SeqCst) {
                assert_eq!(
                    timeline.lookup.data_at(slot, first).unwrap(),
                    None,
                    "seen after {looks} looks"
                );
                looks += 1;
            }
        });
        // The reader stops even if this panics.
        let indexed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            timeline.indexer.index_closed()
        }));
        ended.store(true, Ordering::SeqCst);
        reader.join().unwrap();
        indexed.unwrap().unwrap();
    });
    assert_eq!(timeline.lookup.data_at(slot, first).unwrap(), None);
}

#[test]
fn the_daemon_lived_when_a_checkpoint_was_made_that_the_index_has() {
    let dir = tempfile::tempdir().unwrap();
    {
        let (timeline, _) = open(dir.path());
        checkpoint(&timeline, 1);
        checkpoint(&timeline, 2);
        timeline.indexer.index_closed().unwrap();
        timeline.store().index.flush_durable().unwrap();
    }
    let (_, aftermath) = open(dir.path());
    assert_eq!(
        (aftermath.unclean, aftermath.recorded_ns),
        (true, Some(4_000_000_000_000_000_002))
    );
}

/// Each mount ends before the thread would start by itself.
#[test]
fn short_mounts_do_not_pile_up_what_the_index_does_not_have() {
    const OF_EACH: u64 = 20;
    let dir = tempfile::tempdir().unwrap();
    for mount in 0..6 {
        let timeline = Arc::new(open(dir.path()).0);
        timeline.indexer.start().unwrap();
        for number in 1..=OF_EACH {
            checkpoint(&timeline, mount * OF_EACH + number);
        }
        timeline.indexer.stop();
    }
    let waiting = open(dir.path()).0.epochs.read().closed().len();
    assert!(
        waiting < HURRY_EPOCHS + OF_EACH as usize,
        "{waiting} closed epochs are not in the index"
    );
}

/// On btrfs a synced journal can be on disk before the tree: the shutdown was clean, and recovery
/// is still needed.
#[test]
fn an_end_that_the_tree_did_not_reach_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let (timeline, _) = open(dir.path());
    checkpoint(&timeline, 1);
    let reached = timeline.store().journal.position();
    timeline
        .journal
        .append(&[Record::Unmounted { at_ns: 7 }])
        .unwrap();
    timeline.store().journal.sync().unwrap();
    drop(timeline);
    let (timeline, aftermath) = open(dir.path());
    assert_eq!((aftermath.unclean, aftermath.stopped_ns), (false, Some(7)));
    drop(timeline);
    cut(dir.path(), reached);
    let (_, aftermath) = open(dir.path());
    assert_eq!((aftermath.unclean, aftermath.stopped_ns), (true, Some(7)));
}
