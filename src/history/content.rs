//! What captured versions hold: which of them hold the same.
//!
//! The sealer's hashes say so (`Sealed` in the journal). The index has those that it has taken over, memory the later ones. They are hints: an object may be
//! gone, or, for whoever can forge a hash, hold something else. Whoever shares two of them has the bytes compared.

use std::collections::HashMap;

use super::timeline::{Inner, Timeline, fault};
use crate::store::ids::{Epoch, ObjectId};
use crate::store::record::Sealed;
use crate::store::{Address, Batch};
use crate::sys::SysResult;

/// Objects with the same content that a look-up gives at most.
const SAME_MAX: usize = 16;

/// Hashes that the index does not have yet.
#[derive(Debug, Default)]
pub(super) struct Contents(HashMap<[u8; 32], Vec<(Address, ObjectId, u64)>>);

impl Contents {
    pub(super) fn note(&mut self, at: Address, objects: &[Sealed]) {
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
    pub(super) fn note_sealed(&mut self, epoch: Epoch, at: Address, objects: &[Sealed], whole: bool) {
        self.seals.entry(epoch).or_default().push((at, whole));
        self.contents.note(at, objects);
    }
}

impl Timeline {
    /// Other objects that may hold the same as this one, oldest first.
    ///
    /// # Errors
    /// EIO if the index cannot be read.
    pub fn same_content(&self, sealed: &Sealed) -> SysResult<Vec<ObjectId>> {
        let mut found = self.store.index.contents(&sealed.hash, SAME_MAX).map_err(fault)?;
        if let Some(later) = self.inner.read().contents.0.get(&sealed.hash) {
            found.extend(later.iter().take(SAME_MAX).map(|(_, object, size)| (*object, *size)));
        }
        found.retain(|(object, size)| *size == sealed.size && *object != sealed.object);
        let mut objects: Vec<ObjectId> = found.into_iter().map(|(object, _)| object).collect();
        objects.sort_unstable();
        objects.dedup();
        Ok(objects)
    }

    /// These objects are gone: no content leads to them any more. Best effort, for who follows finds nothing there.
    pub fn forget_contents(&self, gone: &[Sealed]) {
        {
            let mut inner = self.inner.write();
            for sealed in gone {
                if let Some(known) = inner.contents.0.get_mut(&sealed.hash) {
                    known.retain(|(_, object, _)| *object != sealed.object);
                }
            }
        }
        for mut piece in Batch::forget(gone).pieces(super::indexer::PIECE_KEYS_MAX) {
            if let Err(error) = self.store.index.apply(&mut piece) {
                tracing::debug!(%error, "objects that are gone stay in the index of contents");
                return;
            }
        }
    }
}
