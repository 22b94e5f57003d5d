//! The syncer: syncs the journal once a second if it has changed, and prepares resources of the
//! store.

use std::sync::Arc;
use std::time::Duration;

use super::durable::SyncPace;
use crate::history::timeline::Timeline;
use crate::live::Live;
use ckptfs_api::Epoch;
use ckptfs_store::Address;
use ckptfs_sys as sys;

/// Interval between rounds.
pub(super) const PERIOD: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Syncer {
    live: Arc<Live>,
    /// End of the synced part of the journal.
    synced: Address,
    /// The epoch whose layer exists.
    epoch: Option<Epoch>,
    pace: SyncPace,
}

impl Syncer {
    pub(super) fn new(live: &Arc<Live>) -> Syncer {
        Syncer {
            live: Arc::clone(live),
            synced: live.timeline().store().journal.position(),
            epoch: None,
            pace: SyncPace::default(),
        }
    }

    /// Prepares resources: at the start, and after each round.
    pub(super) fn make_ready(&mut self) {
        let timeline = self.live.timeline();
        make_layer(timeline, &mut self.epoch);
        // A branch uses the reserve of its parent, which refills it.
        let store = timeline.store();
        if !store.layout.is_branch() {
            store.reserve.refill();
        }
    }

    /// Runs once per period.
    pub(super) fn round(&mut self) {
        if self.live.nodes.take_shrunk() {
            sys::release_memory();
        }
        self.pace.sync_if_due(&self.live);
        let journal = &self.live.timeline().store().journal;
        let position = journal.position();
        if position != self.synced && !journal.is_latched() {
            match journal.sync() {
                Ok(()) => self.synced = position,
                Err(error) => {
                    tracing::error!(%error, "the journal cannot be synced: the past can no longer be kept, changes to it will fail")
                }
            }
        }
    }
}

/// Creates the layer of the open epoch before it is needed: on a full filesystem inodes can be
/// moved into it, but mkdir(2) fails. Removes the layer of a closed epoch if empty.
fn make_layer(timeline: &Timeline, made: &mut Option<Epoch>) {
    let (open, layers) = (timeline.epochs.epoch(), &timeline.store().layers);
    if *made == Some(open) {
        return;
    }
    if let Some(Err(error)) = made.map(|closed| layers.remove_epoch_if_empty(closed)) {
        tracing::debug!(%error, "an empty layer was not removed");
    }
    *made = layers.dir(open).is_ok().then_some(open);
}
