//! Automatic checkpoints: at intervals, in quiet phases, and the outcome of the tripwire's marks.
//!
//! The thread runs only if one of them is configured or marks are undecided. It upgrades its weak
//! reference for one round only.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::checkpoint::Checkpoints;
use super::compare::StateComparer;
use super::config::AutoConfig;
use super::quiesce::ActivityStamp;
use super::serving::ServingEnv;
use super::snapdir::Snapdir;
use super::tripwire::MarkDecision;
use super::tripwire::Tripwire;
use super::worker::Worker;
use crate::history::state::TreeState;
use crate::live::Live;
use ckptfs_api::{Actor, CheckpointId, CheckpointOptions, Code, Reason, Trigger};
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, SysResult};

/// Pause while nothing is due; the thread can be woken earlier.
const ASLEEP: Duration = Duration::from_secs(3600);
/// The minimum and the maximum pause between two samples of the activity.
const LOOK_MIN: Duration = Duration::from_millis(20);
const LOOK_MAX: Duration = Duration::from_secs(1);
/// Pause before a failed attempt is repeated.
const RETRY: Duration = Duration::from_secs(5);
/// Observations of the tree.
#[derive(Default)]
struct QuietState {
    stir: ActivityStamp,
    /// Start of the current `stir`.
    since: Option<Instant>,
    /// A checkpoint exists of this state.
    done: bool,
    /// Start of the current interval.
    interval: Option<Instant>,
}

/// Starts the thread, if automatic checkpoints are configured.
pub(super) fn start(automatic: &Arc<Automatic>) -> std::io::Result<()> {
    if let Err(errno) = automatic.resume_marks() {
        tracing::warn!(%errno, "marks of the daemon before stay undecided");
    }
    let nothing = AutoConfig {
        absence: automatic.serving.config.auto.absence,
        ..AutoConfig::default()
    };
    if automatic.serving.config.auto == nothing {
        return Ok(());
    }
    let weak = Arc::downgrade(automatic);
    automatic.worker.start(Duration::ZERO, move |_| {
        weak.upgrade().map(|automatic| automatic.auto_round())
    })
}

/// Returns the daemon as the actor of a record.
pub(super) fn daemon() -> Actor {
    let (uid, gid) = sys::ids();
    Actor {
        uid,
        gid,
        pid: std::process::id(),
        process: "ckptfs".into(),
    }
}

/// Makes automatic checkpoints.
pub(super) struct Automatic {
    pub(super) live: Arc<Live>,
    serving: Arc<ServingEnv>,
    states: Arc<StateComparer>,
    snapdir: Arc<Snapdir>,
    pub(super) checkpoints: Arc<Checkpoints>,
    pub(super) worker: Arc<Worker>,
    seen: Mutex<QuietState>,
    pub(super) tripwire: Option<Tripwire>,
}

impl Automatic {
    pub(super) fn new(checkpoints: Arc<Checkpoints>) -> Automatic {
        Automatic {
            live: Arc::clone(&checkpoints.live),
            serving: Arc::clone(&checkpoints.serving),
            states: Arc::clone(&checkpoints.states),
            snapdir: Arc::clone(&checkpoints.snapdir),
            worker: Arc::default(),
            seen: Mutex::default(),
            tripwire: checkpoints.serving.config.auto.tripwire.map(Tripwire::new),
            checkpoints,
        }
    }

    /// Does all work that is due. Returns the pause until the next round.
    fn auto_round(&self) -> Duration {
        let mut pause = self.decide_marks();
        if let Some(every) = self.serving.config.auto.every {
            pause = pause.min(self.interval_round(every));
        }
        if let Some(quiet) = self.serving.config.auto.quiet {
            pause = pause.min(self.quiet_round(quiet));
        }
        pause
    }

    /// Frees the marks without a burst.
    fn decide_marks(&self) -> Duration {
        let Some(tripwire) = &self.tripwire else {
            return ASLEEP;
        };
        let MarkDecision { take_back, next } = tripwire.decide(Instant::now());
        for id in take_back {
            self.take_back_mark(id);
        }
        if tripwire.take_changed() {
            self.snapdir.snapdir_changed();
        }
        next.unwrap_or(ASLEEP)
    }

    /// Passes the undecided marks of the previous daemon to the tripwire, or frees them without
    /// one. A hidden mark with a deletion among the operations is decided.
    fn resume_marks(&self) -> SysResult<()> {
        let mut left = self.timeline().catalogue.hidden();
        left.retain(|kept| kept.reason.is_mark());
        let Some(oldest_ns) = left.iter().map(|kept| kept.created_ns).min() else {
            return Ok(());
        };
        let deleted = self.timeline().operations.deleted_since(oldest_ns)?;
        let left = left.into_iter().map(|kept| kept.id);
        let left: Vec<_> = left.filter(|id| !deleted.contains(id)).collect();
        match &self.tripwire {
            Some(tripwire) => tripwire.resume(left, Instant::now()),
            None => left.into_iter().for_each(|id| self.take_back_mark(id)),
        }
        Ok(())
    }

    /// Frees a mark without a burst.
    fn take_back_mark(&self, id: CheckpointId) {
        match self.checkpoints.free_checkpoint(&daemon(), id) {
            Ok(_) => tracing::debug!(%id, "no burst followed: the mark is taken back"),
            // Deleted concurrently.
            Err(error) if error.code == Code::UnknownCheckpoint => {}
            Err(error) => {
                tracing::warn!(%error.message, %id, "a mark that no burst followed stays")
            }
        }
    }

    /// Returns whether nothing has changed since the newest checkpoint, and that one is visible.
    pub(super) fn is_kept(&self) -> bool {
        let (epochs, catalogue) = (&self.timeline().epochs, &self.timeline().catalogue);
        let newest = catalogue.last();
        epochs.dirty() == 0 && newest.is_some() && newest == catalogue.newest_stored()
    }

    fn interval_round(&self, every: Duration) -> Duration {
        let began = *self.seen.lock().interval.get_or_insert_with(Instant::now);
        let left = (began + every).saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return left;
        }
        let made = self.make_automatic(Trigger::Interval);
        self.seen.lock().interval = Some(Instant::now());
        if made {
            every
        } else {
            every.min(RETRY.max(LOOK_MIN))
        }
    }

    fn quiet_round(&self, quiet: Duration) -> Duration {
        let look = (quiet / 4).clamp(LOOK_MIN, LOOK_MAX);
        let Ok(stir) = self.checkpoints.stir() else {
            return look;
        };
        let now = Instant::now();
        let due = {
            let mut seen = self.seen.lock();
            if seen.stir != stir || seen.since.is_none() {
                (seen.stir, seen.since, seen.done) = (stir, Some(now), false);
            }
            !seen.done
                && seen
                    .since
                    .is_some_and(|since| now.duration_since(since) >= quiet)
        };
        if due {
            let made = self.make_automatic(Trigger::Quiet);
            // Effects of the checkpoint itself do not count as changes.
            let stir = self.checkpoints.stir().unwrap_or_default();
            let mut seen = self.seen.lock();
            (seen.stir, seen.done) = (stir, made);
            if !made {
                seen.since = Some(now);
            }
        }
        look
    }

    /// Makes a checkpoint if the tree differs from the last one. Returns `false` on failure, for a
    /// retry.
    fn make_automatic(&self, trigger: Trigger) -> bool {
        if self.is_kept() {
            return true;
        }
        if let Some(last) = self.timeline().catalogue.last() {
            self.checkpoints.settle();
            match self
                .states
                .compare_all(TreeState::At(last), TreeState::Live)
            {
                Ok(changes) if changes.is_empty() => return true,
                Ok(_) => {}
                Err(errno) => {
                    tracing::warn!(%errno, "whether an automatic checkpoint is needed cannot be told");
                    return false;
                }
            }
        }
        let made = self.checkpoints.checkpoint_with_hooks(
            &daemon(),
            &CheckpointOptions::default(),
            Reason::Auto { trigger },
        );
        self.snapdir.snapdir_changed();
        made.inspect_err(
            |error| tracing::warn!(%error.message, "an automatic checkpoint was not made"),
        )
        .is_ok()
    }
}
