//! What captured versions hold: which of them hold the same.
//!
//! The sealer's hashes say so (`Sealed` in the journal). The index has those that it has taken over, memory the later ones. They are hints: an object may be
//! gone, or, for whoever can forge a hash, hold something else. Whoever shares two of them has the bytes compared.

use std::collections::HashMap;

use super::timeline::{Inner, Timeline, fault};
use crate::store::Address;
use crate::store::ids::{Epoch, ObjectId};
use crate::store::record::ObjectHash;
use crate::sys::SysResult;

/// Objects with the same content that a look-up gives at most, ...
const SAME_MAX: usize = 16;
/// ... and of how many it looks whether they are there.
const LOOKED_MAX: usize = 256;

/// Hashes that the index does not have yet.
#[derive(Debug, Default)]
pub(super) struct Contents(HashMap<[u8; 32], Vec<(Address, ObjectId, u64)>>);

impl Contents {
    pub(super) fn note(&mut self, at: Address, objects: &[ObjectHash]) {
        for sealed in objects.iter().filter(|sealed| sealed.size > 0) {
            self.0.entry(sealed.hash).or_default().push((at, sealed.object, sealed.size));
        }
    }

    /// The index has all records up to this one.
    pub(super) fn indexed(&mut self, upto: Address) {
        self.0.retain(|_, known| {
            known.retain(|(at, _, _)| *at > upto);
            !known.is_empty()
        });
    }
}

impl Inner {
    /// A record of hashes is at this place.
    pub(super) fn note_hashes(&mut self, epoch: Epoch, at: Address, objects: &[ObjectHash], whole: bool) {
        self.seals.entry(epoch).or_default().push((at, whole));
        self.contents.note(at, objects);
    }
}

impl Timeline {
    /// Other objects that are there and may hold the same as this one, oldest first.
    ///
    /// # Errors
    /// EIO if the index cannot be read.
    pub fn same_content(&self, sealed: &ObjectHash) -> SysResult<Vec<ObjectId>> {
        let (mut objects, mut looked) = (Vec::new(), 0);
        let mut take = |object: ObjectId, size: u64| {
            let is_there = || matches!(self.store.layers.stat(object), Ok(Some(_)));
            if size == sealed.size && object != sealed.object && is_there() {
                objects.push(object);
            }
            looked += 1;
            objects.len() < SAME_MAX && looked < LOOKED_MAX
        };
        let later = self.inner.read().contents.0.get(&sealed.hash).cloned().unwrap_or_default();
        if later.into_iter().all(|(_, object, size)| take(object, size)) {
            self.store.index.each_content(&sealed.hash, take).map_err(fault)?;
        }
        objects.sort_unstable();
        objects.dedup();
        Ok(objects)
    }
}
