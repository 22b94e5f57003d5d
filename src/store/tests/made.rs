//! Records for tests.

use crate::ids::{Name, Slot};
use crate::record::{Checkpoint, Child, DataState, Place, Record, Undo};
use ckptfs_api::{CheckpointId, Epoch, Reason};
use ckptfs_sys::Kind;

/// A requested checkpoint without note and tags.
pub fn checkpoint(id: u64) -> Checkpoint {
    Checkpoint {
        id: CheckpointId(id),
        tags: Vec::new(),
        note: String::new(),
        created_ns: 1,
        atomic: true,
        dirty: 0,
        reason: Reason::Asked,
    }
}

pub fn closed(id: u64) -> Record {
    Record::Checkpoint(checkpoint(id))
}

pub fn deleted(id: u64) -> Record {
    Record::Deleted {
        id: CheckpointId(id),
    }
}

pub fn undo(epoch: u64, undo: Vec<Undo>) -> Record {
    Record::Undo {
        epoch: Epoch(epoch),
        undo,
    }
}

pub fn void(epoch: u64, slot: u64) -> Record {
    Record::Void {
        epoch: Epoch(epoch),
        slot: Slot(slot),
    }
}

/// A name that led to a file.
pub fn entry(dir: u64, name: &[u8], to: u64) -> Undo {
    Undo::Entry {
        dir: Slot(dir),
        name: Name::new(name),
        before: Some(Child {
            slot: Slot(to),
            kind: Kind::File,
        }),
    }
}

/// The content of a file. The size identifies the record.
pub fn data(slot: u64, size: u64) -> Undo {
    Undo::Data {
        slot: Slot(slot),
        before: DataState {
            object: None,
            size,
            provisional: true,
        },
    }
}

pub fn place(parent: u64, name: &[u8]) -> Place {
    Place {
        parent: Slot(parent),
        name: Name::new(name),
    }
}

pub fn home(slot: u64, before: Place) -> Undo {
    Undo::Home {
        slot: Slot(slot),
        before,
    }
}

pub fn moved(slot: u64, to: Place) -> Record {
    Record::Moved {
        places: vec![(Slot(slot), to)],
    }
}
