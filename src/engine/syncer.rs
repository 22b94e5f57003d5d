//! What puts the journal on disk once a second, if something was written, and sees to what the store
//! keeps ready.

use std::sync::Arc;
use std::time::Duration;

use super::durable::Pace;
use crate::history::timeline::Timeline;
use crate::live::Live;
use crate::store::Address;
use crate::store::ids::Epoch;
use crate::sys;

/// Between two rounds.
pub(super) const PERIOD: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Syncer {
    live: Arc<Live>,
    /// Up to where the journal is on disk.
    synced: Address,
    /// The epoch whose layer there is.
    epoch: Option<Epoch>,
    pace: Pace,
}

impl Syncer {
    pub(super) fn new(live: &Arc<Live>) -> Syncer {
        Syncer {
            live: Arc::clone(live),
            synced: live.timeline().store().journal.position(),
            epoch: None,
            pace: Pace::default(),
        }
    }

    /// What is done first, at once, and after each round.
    pub(super) fn make_ready(&mut self) {
        let timeline = self.live.timeline();
        make_layer(timeline, &mut self.epoch);
        // That of a branch is its parent's, who fills it.
        let store = timeline.store();
        if !store.layout.is_branch() {
            store.reserve.refill();
        }
    }

    /// What is done once in a period.
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

/// The layer of the open epoch is there before it is needed: on a full filesystem inodes can be
/// moved into it, but not a directory be made. That of a closed epoch goes if nothing is in it.
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
