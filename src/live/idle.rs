//! What the sealer does about an absence to come, when it has nothing to hash and the tree is left
//! alone: the tree is written down the first time, and again when so much has changed that an
//! unmount would have much to do; from the first orderly end on, content is kept ahead.
//!
//! It may take long, and is done while the tree is served: what changes meanwhile counts for the
//! next time. What there is of it is no baseline until the daemon ends in an orderly way and has
//! brought it up to date.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::baseline::{Baselines, Walk};
use super::kept::{Kept, SPACE_KEPT_BYTES};
use super::tables::Tables;
use crate::history::timeline::Timeline;
use crate::history::wake::Wake;
use crate::store::baseline::Baseline;
use crate::sys::lock::Mutex;
use crate::sys::{self, SysResult};

/// Without a change for so long the tree counts as left alone.
const CALM: Duration = Duration::from_secs(10);
/// After so long it is done although it is not.
const CALM_MAX: Duration = Duration::from_secs(60);
/// Keys that have changed since, of which an unmount is spared the look.
const KEYS_MAX: usize = 20_000;
/// Changes beside the baseline with which it is written anew.
const CHANGES_MAX: usize = 50_000;
/// Between two times that all content is kept ahead because all of it went.
const KEEP_EVERY: Duration = Duration::from_secs(3600);
/// Clones that are removed between two pauses.
const DROP_MAX: usize = 1000;
/// A pause is as long as the work before it, but not longer.
const PAUSE_MAX: Duration = Duration::from_millis(50);

enum Due {
    Walk { keep: bool },
    Advance,
}

/// What is done in idle time about an absence to come.
pub struct Idle {
    timeline: Arc<Timeline>,
    reflink: bool,
    baselines: Arc<Baselines>,
    kept: Arc<Kept>,
    /// Content is kept ahead.
    keeps: AtomicBool,
    /// Nobody can change the tree past the mount.
    alone: AtomicBool,
    /// Since when something is to be done, and when all content was kept ahead last.
    times: Mutex<(Option<Instant>, Option<Instant>)>,
}

impl Idle {
    pub(super) fn new(tables: &Tables, baselines: &Arc<Baselines>, kept: &Arc<Kept>) -> Arc<Idle> {
        Arc::new(Idle {
            timeline: Arc::clone(&tables.timeline),
            reflink: tables.reflink,
            baselines: Arc::clone(baselines),
            kept: Arc::clone(kept),
            keeps: AtomicBool::new(false),
            alone: AtomicBool::new(false),
            times: Mutex::default(),
        })
    }

    /// The last daemon has ended in an orderly way: this one may, too, and content is kept ahead.
    pub fn clone_ahead(&self) {
        self.keeps.store(true, Ordering::Relaxed);
    }

    /// Nobody can change the tree past the mount: a record of attributes hides no such change.
    pub fn set_alone(&self) {
        self.alone.store(true, Ordering::Relaxed);
    }

    fn due(&self) -> Option<Due> {
        if self.timeline.catalogue.stored_ids().is_empty()
            || self.baselines.is_of_branch()
            || !self
                .timeline
                .store()
                .layers
                .free_bytes()
                .is_ok_and(|free| free > SPACE_KEPT_BYTES)
        {
            return None;
        }
        let lately = self
            .times
            .lock()
            .1
            .is_some_and(|last| last.elapsed() < KEEP_EVERY);
        // After a kill clones tell of an orderly end before.
        let keep = self.reflink && (self.keeps.load(Ordering::Relaxed) || self.kept.has_kept());
        match self.timeline.baseline.baseline_changes() {
            Some(changes)
                if changes < CHANGES_MAX && (!keep || lately || self.kept.is_kept_whole()) =>
            {
                (self.timeline.baseline.changed_keys() > KEYS_MAX).then_some(Due::Advance)
            }
            _ => Some(Due::Walk { keep }),
        }
    }

    /// Does what is due, once the tree is left alone. Ends early if there is something to hash, or
    /// the thread is to end.
    pub(super) fn prepare_absence(&self, wake: &Wake) {
        while matches!(self.kept.drop_rest(DROP_MAX), Ok(true)) {
            if !wake.pause(PAUSE_MAX) {
                return;
            }
        }
        let Some(due) = self.due() else { return };
        let since = *self.times.lock().0.get_or_insert_with(Instant::now);
        let hasty = sys::host::left_out("calm");
        while !hasty && since.elapsed() < CALM_MAX {
            let known = self.timeline.epochs.recordings();
            if !wake.rest(CALM) {
                return;
            }
            if self.timeline.epochs.recordings() == known {
                break;
            }
        }
        self.times.lock().0 = None;
        let (mut worked, mut go_on) = (Instant::now(), true);
        let mut pace = || {
            go_on = go_on && wake.pause(worked.elapsed().min(PAUSE_MAX)) && !wake.stopping();
            worked = Instant::now();
            go_on
        };
        let began = Instant::now();
        let done = match due {
            Due::Advance => self.advance_ahead(),
            Due::Walk { keep } => self.walk_ahead(keep, &mut pace),
        };
        match done {
            Ok(()) => tracing::debug!(
                ms = began.elapsed().as_millis(),
                "the tree was written down ahead"
            ),
            Err(errno) => {
                tracing::debug!(%errno, "the tree was not written down ahead");
                let _ = Baseline::discard(&self.timeline.store().layout);
            }
        }
    }

    fn advance_ahead(&self) -> SysResult<()> {
        // Where something is missing that is not looked for now, but at the next walk.
        let keeper = self
            .kept
            .is_kept_whole()
            .then(|| self.kept.keeper_ahead())
            .transpose()?;
        match (
            self.baselines.advance_baseline(None, keeper.as_ref())?,
            keeper,
        ) {
            (Some(files), Some(keeper)) => keeper.catch_up(files).map(drop),
            _ => Ok(()),
        }
    }

    fn walk_ahead(&self, keep: bool, go_on: &mut dyn FnMut() -> bool) -> SysResult<()> {
        let keeper = keep.then(|| self.kept.keeper_ahead()).transpose()?;
        self.baselines.walk_baseline(Walk {
            end: None,
            keeper: keeper.as_ref(),
            settles: self.alone.load(Ordering::Relaxed),
            go_on,
        })?;
        if let Some(keeper) = keeper {
            self.times.lock().1 = Some(Instant::now());
            keeper.finish()?;
        }
        Ok(())
    }
}
