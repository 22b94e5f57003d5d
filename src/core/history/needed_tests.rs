//! Inodes that no checkpoint shows.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use super::*;
use crate::history::attribution::Author;
use ckptfs_api::{Actor, Reason};
use ckptfs_store::Store;
use ckptfs_store::ids::Name;
use ckptfs_store::record::{Checkpoint, Child};
use ckptfs_sys::Kind;

const OLD_DIR: Slot = Slot(500);
const OLD_FILE: Slot = Slot(501);
const NEW_DIR: Slot = Slot(600);
const NEW_FILE: Slot = Slot(601);
const OLD: Time = Time { sec: 50, nsec: 0 };
const NEW: Time = Time { sec: 150, nsec: 0 };

fn place(parent: Slot, name: &str) -> Place {
    let name = Name::new(name.as_bytes());
    Place { parent, name }
}

fn close(timeline: &Timeline, id: u64, sec: i64) {
    let (tags, note) = (Vec::new(), String::new());
    let checkpoint = Checkpoint {
        id: CheckpointId(id),
        tags,
        note,
        created_ns: Time { sec, nsec: 0 }.nanoseconds(),
        atomic: true,
        dirty: 0,
        reason: Reason::Asked,
    };
    let closed = timeline.close_epoch(None, checkpoint, Vec::new(), &[]);
    closed.unwrap();
}

fn record(timeline: &Timeline, undo: Vec<Undo>) {
    let recorded = timeline.epochs.record(&Author::default(), undo, Vec::new());
    recorded.unwrap();
}

/// Record of a name and its previous target.
fn entry(place: Place, before: Option<Slot>) -> Undo {
    let kind = Kind::File;
    Undo::Entry {
        dir: place.parent,
        name: place.name,
        before: before.map(|slot| Child { slot, kind }),
    }
}

/// Places and times of birth of inodes.
type Live = HashMap<Slot, (Place, Time)>;

/// A checkpoint shows the old directory with the old file; the new file is in the new directory.
fn tree(dir: &std::path::Path) -> (Timeline, Live) {
    let (store, _) = Store::open(File::open(dir).unwrap(), true).unwrap();
    let (timeline, _) = Timeline::open(Arc::new(store)).unwrap();
    close(&timeline, 1, 100);
    record(&timeline, vec![entry(place(Slot::ROOT, "new"), None)]);
    let live = [
        (OLD_DIR, (place(Slot::ROOT, "old"), OLD)),
        (OLD_FILE, (place(OLD_DIR, "file"), OLD)),
        (NEW_DIR, (place(Slot::ROOT, "new"), NEW)),
        (NEW_FILE, (place(NEW_DIR, "file"), NEW)),
    ];
    (timeline, live.into())
}

fn is_unseen(timeline: &Timeline, live: &Live, slot: Slot) -> bool {
    let now = |slot: Slot| live.get(&slot).cloned();
    timeline.is_unseen(slot, live[&slot].1, &now).unwrap()
}

#[test]
fn what_was_made_after_the_checkpoint_is_unseen() {
    let dir = tempfile::tempdir().unwrap();
    let (timeline, mut live) = tree(dir.path());
    assert!(is_unseen(&timeline, &live, NEW_FILE));
    assert!(!is_unseen(&timeline, &live, OLD_FILE));
    // In a directory that the checkpoint shows: by the record of its name.
    live.insert(NEW_FILE, (place(OLD_DIR, "other"), NEW));
    assert!(!is_unseen(&timeline, &live, NEW_FILE));
    record(&timeline, vec![entry(place(OLD_DIR, "other"), None)]);
    assert!(is_unseen(&timeline, &live, NEW_FILE));
    // The name led to another inode.
    live.insert(NEW_FILE, (place(OLD_DIR, "file"), NEW));
    let before = entry(place(OLD_DIR, "file"), Some(OLD_FILE));
    record(&timeline, vec![before]);
    assert!(is_unseen(&timeline, &live, NEW_FILE));
}

/// One condition alone is not sufficient: a clock can be set back, and the file may have acquired
/// the name later, without a record if changed past the mount.
#[test]
fn both_its_birth_and_its_name_must_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let (timeline, mut live) = tree(dir.path());
    live.insert(OLD_FILE, (place(NEW_DIR, "moved"), OLD));
    assert!(!is_unseen(&timeline, &live, OLD_FILE));
    live.insert(OLD_DIR, (place(Slot::ROOT, "old"), NEW));
    live.insert(OLD_FILE, (place(OLD_DIR, "file"), NEW));
    assert!(!is_unseen(&timeline, &live, OLD_FILE));
    let (before, home) = (place(OLD_DIR, "file"), OLD_FILE);
    record(
        &timeline,
        vec![
            entry(before.clone(), Some(OLD_FILE)),
            Undo::Home { slot: home, before },
        ],
    );
    live.insert(OLD_FILE, (place(NEW_DIR, "moved"), NEW));
    assert!(!is_unseen(&timeline, &live, OLD_FILE));
}

#[test]
fn what_cannot_be_told_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let (timeline, mut live) = tree(dir.path());
    let future = Time {
        sec: ckptfs_sys::now().sec + 100,
        nsec: 0,
    };
    live.insert(NEW_FILE, (place(NEW_DIR, "file"), future));
    assert!(!is_unseen(&timeline, &live, NEW_FILE));
    live.insert(NEW_FILE, (place(Slot(602), "file"), NEW));
    assert!(
        !is_unseen(&timeline, &live, NEW_FILE),
        "it is in no directory"
    );
    live.insert(Slot(602), (place(Slot(603), "a"), NEW));
    live.insert(Slot(603), (place(Slot(602), "b"), NEW));
    assert!(
        !is_unseen(&timeline, &live, NEW_FILE),
        "the places are a circle"
    );
}

/// A checkpoint made after the clock was set back is later than its time states; a freed one shows
/// nothing.
#[test]
fn the_newest_stored_checkpoint_counts() {
    let dir = tempfile::tempdir().unwrap();
    let (timeline, live) = tree(dir.path());
    close(&timeline, 2, 90);
    record(&timeline, vec![entry(place(Slot::ROOT, "new"), None)]);
    assert!(!is_unseen(&timeline, &live, NEW_FILE));
    let id = CheckpointId(2);
    timeline
        .catalogue
        .write()
        .apply(Record::Hidden { id, hidden: true });
    assert!(!is_unseen(&timeline, &live, NEW_FILE), "it can come back");
    let by = Actor {
        uid: 0,
        gid: 0,
        pid: 0,
        process: String::new(),
    };
    timeline.operations.free(&by, id).unwrap();
    assert!(
        !is_unseen(&timeline, &live, NEW_FILE),
        "a power cut would bring it back"
    );
    timeline.store().journal.sync().unwrap();
    assert!(is_unseen(&timeline, &live, NEW_FILE));
}
