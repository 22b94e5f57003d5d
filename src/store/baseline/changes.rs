//! Changes since a baseline was written.

use std::collections::BTreeMap;

use super::{BaselineNode, named, put_inode};
use crate::error::StoreResult;
use crate::ids::{Name, Slot};
use crate::index::{Run, RunCursor};
use crate::journal::codec::{decode_uint, encode_before, encode_uint};
use crate::record::Child;

/// Changes since a baseline was written, by key as in the file.
#[derive(Clone, Debug, Default)]
pub struct Changes(pub(super) BTreeMap<Vec<u8>, Vec<u8>>);

pub(super) fn slot_key(kind: u8, slot: Slot) -> Vec<u8> {
    [&[kind][..], &slot.0.to_be_bytes()].concat()
}

pub(super) fn slot_of(key: &[u8]) -> Option<Slot> {
    key.get(1..)
        .and_then(|slot| slot.try_into().ok())
        .map(|slot| Slot(u64::from_be_bytes(slot)))
}

impl Changes {
    pub(super) fn read(run: &Run) -> StoreResult<Changes> {
        let mut cursor = RunCursor::new(run, None);
        let mut changes = BTreeMap::new();
        while cursor.next()? {
            changes.insert(cursor.key.clone(), cursor.value().to_vec());
        }
        Ok(Changes(changes))
    }

    /// Returns the number of changes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Reports whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets the inode that a name of a directory leads to.
    ///
    /// Errors: `Codec`.
    pub fn put_name(&mut self, dir: Slot, name: &Name, child: Option<Child>) -> StoreResult<()> {
        let mut value = Vec::new();
        child.map_or(Ok(()), |child| {
            encode_before(&named(Some(child)), &mut value)
        })?;
        self.0
            .insert([&slot_key(b'N', dir)[..], name.as_bytes()].concat(), value);
        Ok(())
    }

    /// Sets the state of an inode.
    ///
    /// Errors: `Codec`.
    pub fn put_inode(&mut self, node: &BaselineNode) -> StoreResult<()> {
        let mut value = Vec::with_capacity(96);
        put_inode(node, &mut value)?;
        self.0.insert(slot_key(b'A', node.child.slot), value);
        Ok(())
    }

    /// Discards the names of a directory; all of them will be set again.
    pub fn put_whole(&mut self, dir: Slot, generation: u64) {
        let prefix = slot_key(b'N', dir);
        let known: Vec<Vec<u8>> = self
            .0
            .range(prefix.clone()..)
            .map(|(key, _)| key)
            .take_while(|key| key.starts_with(&prefix))
            .cloned()
            .collect();
        known.iter().for_each(|key| drop(self.0.remove(key)));
        let mut value = Vec::new();
        encode_uint(generation, &mut value);
        self.0.insert(slot_key(b'W', dir), value);
    }

    /// Replaces the set of inodes that have lost their last name in the open epoch.
    pub fn set_gone(&mut self, gone: &[Slot]) {
        self.0.retain(|key, _| key.first() != Some(&b'G'));
        self.0
            .extend(gone.iter().map(|slot| (slot_key(b'G', *slot), Vec::new())));
    }

    pub(super) fn whole(&self, dir: Slot) -> Option<u64> {
        self.0
            .get(&slot_key(b'W', dir))
            .and_then(|value| decode_uint(&mut value.as_slice()).ok())
    }
}
