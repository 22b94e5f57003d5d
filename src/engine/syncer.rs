//! The thread that puts the journal on disk once a second, if something was written, and sees to
//! what the store keeps ready.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::durable::Pace;
use crate::history::timeline::Timeline;
use crate::live::Live;
use crate::store::ids::Epoch;
use crate::sys;
use crate::sys::lock::{Condvar, Mutex};

/// Between two rounds.
const PERIOD: Duration = Duration::from_secs(1);
/// The end of a mount waits so long for a round that is under way.
const STOP_MAX: Duration = Duration::from_secs(20);

/// Starts and ends the thread.
#[derive(Default)]
pub(super) struct Syncer {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stop: bool,
    running: bool,
}

impl Syncer {
    pub(super) fn start(self: &Arc<Syncer>, live: &Arc<Live>) -> std::io::Result<()> {
        let (syncer, live) = (Arc::clone(self), Arc::clone(live));
        self.state.lock().running = true;
        let spawned = std::thread::Builder::new()
            .name("syncer".into())
            .spawn(move || {
                syncer.run(&live);
                drop(live);
                syncer.state.lock().running = false;
                syncer.changed.notify_all();
            });
        if spawned.is_err() {
            self.state.lock().running = false;
        }
        spawned.map(drop)
    }

    /// Asks the thread to end and waits until it has, but not for ever: a disk may not answer.
    pub(super) fn stop(&self) {
        let mut state = self.state.lock();
        state.stop = true;
        self.changed.notify_all();
        let until = Instant::now() + STOP_MAX;
        while state.running {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::error!("a sync of the journal does not end");
                return;
            }
            self.changed.wait_for(&mut state, left);
        }
    }

    /// Waits for the next round; `false`: the thread shall end.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        let until = Instant::now() + PERIOD;
        while !state.stop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            self.changed.wait_for(&mut state, left);
        }
        false
    }

    fn run(&self, live: &Live) {
        let (timeline, store) = (live.timeline(), live.timeline().store());
        let (mut synced, mut epoch, mut pace) = (store.journal.position(), None, Pace::default());
        loop {
            make_layer(timeline, &mut epoch);
            store.reserve.refill();
            if !self.wait() {
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
