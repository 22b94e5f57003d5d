//! Idle-time preparation for an absence, done by the sealer when it has no objects to hash and the
//! tree is quiet. It walks the tree to write a first baseline, and updates it when an unmount would
//! otherwise have much to do. After the first clean end it also saves content ahead.
//!
//! The tree is served during this work, which may take long; concurrent changes are left to the
//! next update. The result becomes a valid baseline only when the daemon ends cleanly and updates
//! it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::baseline::{BaselineUpdate, WalkParams};
use super::saved_content::{SPACE_KEPT_BYTES, SavedContent};
use super::shared_tables::SharedTables;
use crate::history::timeline::Timeline;
use crate::history::wake::IdleThread;
use ckptfs_store::baseline::Baseline;
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, SysResult};

/// The tree counts as quiet after this time without a change.
const CALM: Duration = Duration::from_secs(10);
/// Time after which the work is done even if the tree is not quiet.
const CALM_MAX: Duration = Duration::from_secs(60);
/// Number of changed keys above which the baseline is updated ahead of an unmount.
const KEYS_MAX: usize = 20_000;
/// Number of changes stored with the baseline above which it is rewritten.
const CHANGES_MAX: usize = 50_000;
/// Minimum interval between two complete passes that save content, after all saved content was
/// discarded.
const KEEP_EVERY: Duration = Duration::from_secs(3600);
/// Number of clones removed between two pauses.
const DROP_MAX: usize = 1000;
/// Maximum length of a pause; otherwise it is as long as the work before it.
const PAUSE_MAX: Duration = Duration::from_millis(50);

enum AbsenceWork {
    Walk { keep: bool },
    Advance,
}

/// Prepares for an absence in idle time.
pub struct AbsencePrep {
    timeline: Arc<Timeline>,
    reflink: bool,
    baselines: Arc<BaselineUpdate>,
    kept: Arc<SavedContent>,
    /// Content is saved ahead.
    keeps: AtomicBool,
    /// No process can change the backing directory directly.
    alone: AtomicBool,
    /// Time since which work is due, and time of the last complete pass that saved content.
    times: Mutex<(Option<Instant>, Option<Instant>)>,
}

impl AbsencePrep {
    pub(super) fn new(
        tables: &SharedTables,
        baselines: &Arc<BaselineUpdate>,
        kept: &Arc<SavedContent>,
    ) -> Arc<AbsencePrep> {
        Arc::new(AbsencePrep {
            timeline: Arc::clone(&tables.timeline),
            reflink: tables.reflink,
            baselines: Arc::clone(baselines),
            kept: Arc::clone(kept),
            keeps: AtomicBool::new(false),
            alone: AtomicBool::new(false),
            times: Mutex::default(),
        })
    }

    /// Enables saving content ahead. Called if the last daemon ended cleanly, which makes a clean
    /// end of this one likely.
    pub fn clone_ahead(&self) {
        self.keeps.store(true, Ordering::Relaxed);
    }

    /// States that no process can change the backing directory directly: a record of attributes
    /// hides no such change.
    pub fn set_alone(&self) {
        self.alone.store(true, Ordering::Relaxed);
    }

    fn due(&self) -> Option<AbsenceWork> {
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
        // After a kill, existing clones show that an earlier daemon ended cleanly.
        let keep = self.reflink && (self.keeps.load(Ordering::Relaxed) || self.kept.has_kept());
        match self.timeline.baseline.baseline_changes() {
            Some(changes)
                if changes < CHANGES_MAX && (!keep || lately || self.kept.is_kept_whole()) =>
            {
                (self.timeline.baseline.changed_keys() > KEYS_MAX).then_some(AbsenceWork::Advance)
            }
            _ => Some(AbsenceWork::Walk { keep }),
        }
    }

    /// Does the work that is due once the tree is quiet. Returns early if objects are to be hashed
    /// or the thread is to end.
    pub(super) fn prepare_absence(&self, wake: &IdleThread) {
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
            AbsenceWork::Advance => self.advance_ahead(),
            AbsenceWork::Walk { keep } => self.walk_ahead(keep, &mut pace),
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
        // If saved content is incomplete, the next walk completes it.
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
        self.baselines.walk_baseline(WalkParams {
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
