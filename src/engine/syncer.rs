//! The thread that puts the journal on disk once a second, if something was written, and sees to
//! what the store keeps ready.

use std::time::Duration;

use super::durable::Pace;
use super::worker::Worker;
use crate::history::timeline::Timeline;
use crate::live::Live;
use crate::store::ids::Epoch;
use crate::sys;

/// Between two rounds.
const PERIOD: Duration = Duration::from_secs(1);
/// Does so until the mount ends.
pub(super) fn run(syncer: &Worker, live: &Live) {
    let (timeline, store) = (live.timeline(), live.timeline().store());
    let (mut synced, mut epoch, mut pace) = (store.journal.position(), None, Pace::default());
    loop {
        make_layer(timeline, &mut epoch);
        // That of a branch is its parent's, who fills it.
        if !store.layout.is_branch() {
            store.reserve.refill();
        }
        if !syncer.wait(PERIOD) {
            return;
        }
        if live.nodes.take_shrunk() {
            sys::release_memory();
        }
        pace.sync_if_due(live);
        let position = store.journal.position();
        if position == synced || store.journal.is_latched() {
            continue;
        }
        match store.journal.sync() {
            Ok(()) => synced = position,
            Err(error) => {
                tracing::error!(%error, "the journal cannot be synced: the past can no longer be kept, changes to it will fail")
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
