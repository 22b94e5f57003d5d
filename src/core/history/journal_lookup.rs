//! Look-ups in the journal, for when the index has failed. They take time proportional to the
//! records since.

use std::collections::BTreeMap;

use super::append::fault;
use super::table::{Answer, Recorded};
use ckptfs_api::CheckpointId;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{Key, Place, Record, Undo};
use ckptfs_store::{Address, Store};
use ckptfs_sys::SysResult;

/// Returns the first undo record of a key after a checkpoint; the journal continues at `from` after
/// it.
pub(super) fn first_after(
    store: &Store,
    from: Address,
    key: &Key,
    after: CheckpointId,
) -> Answer<Undo> {
    let mut found: Option<Recorded<Undo>> = None;
    for frame in store.journal.scan(from, None) {
        match frame.map_err(fault)?.1 {
            Record::Undo { epoch, .. }
                if found.as_ref().is_some_and(|found| epoch > found.epoch) =>
            {
                break;
            }
            Record::Undo { epoch, undo } if epoch > after.epoch() && found.is_none() => {
                found = undo
                    .into_iter()
                    .find(|item| item.key() == *key)
                    .map(|before| Recorded { epoch, before });
            }
            Record::Void { epoch, slot }
                if *key == Key::Data(slot)
                    && found.as_ref().is_some_and(|found| found.epoch == epoch) =>
            {
                found = None
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Returns the first undo record of each name in a directory after a checkpoint.
pub(super) fn entries_after(
    store: &Store,
    from: Address,
    dir: Slot,
    after: CheckpointId,
) -> SysResult<BTreeMap<Name, Recorded<Undo>>> {
    let mut found = BTreeMap::new();
    for frame in store.journal.scan(from, None) {
        let Record::Undo { epoch, undo } = frame.map_err(fault)?.1 else {
            continue;
        };
        for before in undo.into_iter().filter(|_| epoch > after.epoch()) {
            if let Key::Entry(parent, name) = before.key()
                && parent == dir
            {
                found.entry(name).or_insert(Recorded { epoch, before });
            }
        }
    }
    Ok(found)
}

/// Returns the last recorded place of an inode with a past.
pub(super) fn last_place(store: &Store, slot: Slot) -> SysResult<Option<Place>> {
    let mut last = None;
    for frame in store.journal.scan(store.journal.start(), None) {
        match frame.map_err(fault)?.1 {
            Record::Undo { undo, .. } => {
                let home = |item| {
                    if let Undo::Home { slot: of, before } = item {
                        (of == slot).then_some(before)
                    } else {
                        None
                    }
                };
                last = undo.into_iter().filter_map(home).next_back().or(last);
            }
            Record::Moved { places } => {
                last = places
                    .into_iter()
                    .rfind(|(of, _)| *of == slot)
                    .map(|(_, place)| place)
                    .or(last)
            }
            _ => {}
        }
    }
    Ok(last)
}
