//! Detection of offline changes: changes made while nothing was mounted, recorded at the next mount
//! (docs/adr/0023-absence.md).
//!
//! The tree is compared with the baseline of the last daemon. The differences form an epoch of
//! their own. Before the first difference is recorded, the open epoch is closed by a checkpoint of
//! the tree as last served. After the last one, a checkpoint of the tree as found closes the new
//! epoch. No request is served before.
//!
//! **Kills and power cuts.** The journal first records that the comparison runs, and its baseline
//! ([`Comparing`]). After an interruption the next mount repeats the comparison with the same
//! baseline: keys with a record keep it, and later changes belong to the same absence. The
//! checkpoint that closes the epoch ends the comparison. Without differences, or without an epoch
//! of its own, another record ends it.

use std::sync::Arc;

use super::auto::daemon;
use super::checkpoint::Checkpoints;
use super::compare::StateComparer;
use super::serving::ServingEnv;
use crate::history::state::TreeState;
use crate::history::timeline::RecoveryState;
use crate::live::Live;
use ckptfs_api::{AbsenceInfo, Change, ChangeKind, CheckpointId, Reason, SavePolicy, Trigger};
use ckptfs_store::Store;
use ckptfs_store::baseline::Baseline;
use ckptfs_store::record::{AbsenceEpoch, Checkpoint, Comparing, Record};
use ckptfs_sys as sys;
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{Errno, Kind, SysResult};

/// Note of the checkpoint that closes the epoch of an absence.
const NOTE: &str = "changed while not mounted";
/// Warning of a mount that could not record all offline changes.
const UNSEEN: &str =
    "the filesystem is full: some changes made while nothing was mounted are not shown";

/// Detects and records offline changes.
pub(super) struct OfflineChanges {
    pub(super) live: Arc<Live>,
    serving: Arc<ServingEnv>,
    states: Arc<StateComparer>,
    checkpoints: Arc<Checkpoints>,
    /// This worker took over from a dead one: there was no absence.
    took_over: bool,
    /// Changes found by this mount.
    absence: Mutex<Option<AbsenceInfo>>,
    /// Requested at runtime: the content to preserve at unmount.
    pub(super) keep: Mutex<Option<SavePolicy>>,
}

impl OfflineChanges {
    pub(super) fn new(checkpoints: Arc<Checkpoints>, took_over: bool) -> OfflineChanges {
        OfflineChanges {
            live: Arc::clone(&checkpoints.live),
            serving: Arc::clone(&checkpoints.serving),
            states: Arc::clone(&checkpoints.states),
            checkpoints,
            took_over,
            absence: Mutex::default(),
            keep: Mutex::default(),
        }
    }

    /// Returns the absence before this mount, while both checkpoints around it exist.
    pub(super) fn absence(&self) -> Option<AbsenceInfo> {
        let absence = self.absence.lock().clone()?;
        let known = |id| self.timeline().catalogue.has_checkpoint(id);
        (known(absence.before) && known(absence.after)).then_some(absence)
    }

    pub(super) fn keeps_content(&self) -> SavePolicy {
        let asked = *self.keep.lock();
        asked
            .or_else(|| SavePolicy::named(self.serving.settings().text("umount.keep")?))
            .unwrap_or_default()
    }

    /// Returns the number of the newest checkpoint ever made.
    fn newest_made(&self) -> CheckpointId {
        CheckpointId(self.timeline().epochs.epoch().0.saturating_sub(1))
    }

    /// Records the start of service, the end of the previous service, and the comparison. Every
    /// later change is made through this mount.
    pub(super) fn begin_service(
        &self,
        aftermath: &RecoveryState,
        comparing: Option<Comparing>,
    ) -> ckptfs_sys::SysResult<()> {
        let stopped_ns = match (aftermath.stopped_ns, aftermath.unclean) {
            (Some(at_ns), _) => Some(at_ns),
            // The mount stayed up, and requests waited for this worker.
            (None, true) if self.took_over => None,
            // The killed daemon lived at least until its last journal write and the last change of
            // an inode with a record, since most changes need no new record. After a power cut the
            // journal may reach further than its own timestamp.
            (None, true) => {
                let changed_ns = self
                    .live
                    .recovery
                    .last_recorded_change()
                    .map(sys::Time::nanoseconds);
                Some(journal_written_ns(self.timeline().store())?)
                    .max(changed_ns)
                    .max(aftermath.recorded_ns)
            }
            (None, false) => None,
        };
        let begin = sys::now();
        if stopped_ns.is_some() {
            // Later changes, the first of them by recovery, must have a later time.
            sys::wait_for_tick(begin);
        }
        let at_ns = begin.nanoseconds();
        // In this order: a power cut may lose the second record.
        let compares = comparing.is_some() || aftermath.comparing.is_some();
        let records: Vec<Record> = compares
            .then_some(Record::Comparing(comparing))
            .into_iter()
            .chain([Record::Mounted { at_ns, stopped_ns }])
            .collect();
        match self.timeline().journal.append(&records) {
            // Until these are written nothing that needs a record succeeds, but freeing space does.
            Err(errno) if errno.is_no_room() => records
                .into_iter()
                .for_each(|record| self.timeline().journal.tell(record)),
            done => done?,
        }
        self.timeline().absences.begin_service(at_ns, stopped_ns);
        Ok(())
    }

    /// Returns the baseline to compare with: that of the last daemon, provided that the journal
    /// contains nothing newer except an interrupted comparison with it.
    pub(super) fn comparison(&self, aftermath: &RecoveryState) -> Option<(Baseline, Comparing)> {
        let (timeline, store) = (self.timeline(), self.timeline().store());
        if self.took_over {
            return None;
        }
        let comparing = aftermath.comparing.unwrap_or_else(|| Comparing {
            baseline: store.journal.position(),
            left_ns: aftermath.stopped_ns.unwrap_or(0),
            apart: if !self.serving.config.auto.absence || aftermath.stopped_ns.is_none() {
                AbsenceEpoch::No
            } else if timeline.epochs.is_unchanged()
                && timeline.catalogue.has_checkpoint(self.newest_made())
            {
                AbsenceEpoch::Closed
            } else {
                AbsenceEpoch::Unclosed
            },
        });
        // After a power cut the tree may be older than its baseline.
        if store.journal.witness() < comparing.baseline {
            return None;
        }
        let baseline =
            Baseline::open(&store.layout, comparing.baseline).unwrap_or_else(|error| {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the baseline cannot be read"
                );
                None
            })?;
        timeline
            .baseline
            .trust_baseline(baseline.changes.len(), baseline.gone());
        if self.keeps_content() != SavePolicy::None {
            self.live.idle.clone_ahead();
        }
        Some((baseline, comparing))
    }

    /// Compares the tree with `baseline` and records the differences. `held`: a process could write
    /// to files of the tree when it was last served; `watch` starts the monitoring of such files.
    pub(super) fn take_in_absence(
        &self,
        baseline: &Baseline,
        comparing: Comparing,
        held: bool,
        watch: impl Fn() -> SysResult<()>,
    ) -> SysResult<()> {
        let mut unclosed = comparing.apart == AbsenceEpoch::Unclosed;
        let mut begin = || {
            if unclosed {
                // A mount that resumes after a kill starts behind this checkpoint.
                let goes_on = Record::Comparing(Some(Comparing {
                    apart: AbsenceEpoch::Closed,
                    ..comparing
                }));
                self.close_left(comparing.left_ns, held, Some(goes_on))?;
                unclosed = false;
            }
            Ok(())
        };
        let told = self.live.baselines.record_absence(baseline, &mut begin);
        let is_told = told == Ok(());
        if let Err(errno) = told {
            tracing::error!(%errno, "not all that was changed while nothing was mounted could be recorded");
            self.timeline().baseline.distrust_baseline();
        }
        // From here on, an inode without a record is captured in its current state.
        watch()?;
        if told.is_err_and(|errno| errno.is_no_room()) {
            self.serving.warn(UNSEEN.to_owned());
        }
        // Before the checkpoint that ends the comparison: a mount killed between the two would not
        // repeat it.
        if is_told {
            self.timeline().absences.tell_absence(comparing.left_ns);
        }
        let apart = comparing.apart != AbsenceEpoch::No
            && !unclosed
            && !self.timeline().epochs.is_unchanged();
        let closed = if apart {
            self.close_absence()
        } else {
            Ok(false)
        };
        let is_over =
            closed.inspect_err(|errno| tracing::error!(%errno, "what was changed while nothing was mounted is no epoch of its own")) == Ok(true);
        if !is_over {
            self.timeline().journal.tell(Record::Comparing(None));
        }
        if is_over {
            return Ok(());
        }
        if apart && closed.is_ok() {
            self.take_back_left();
        }
        Ok(())
    }

    /// Closes the epoch that was open when the tree was last served. The checkpoint has the time of
    /// that moment, so that later changes appear as later.
    fn close_left(&self, left_ns: i64, held: bool, goes_on: Option<Record>) -> SysResult<()> {
        let timeline = self.timeline();
        if !timeline.indexer.takes_checkpoints() {
            return Err(Errno::EIO);
        }
        let checkpoint = Checkpoint {
            id: timeline.epochs.epoch().checkpoint(),
            tags: Vec::new(),
            note: String::new(),
            created_ns: left_ns,
            atomic: !held,
            dirty: timeline.epochs.dirty(),
            reason: Reason::Auto {
                trigger: Trigger::Unmount,
            },
        };
        timeline.close_epoch_and(Some(&daemon()), checkpoint, Vec::new(), &[], goes_on)
    }

    /// Handles an absence without a baseline. Offline changes are then recognized by their ctime
    /// only, until the next change through the mount stores that ctime in its record. A key with a
    /// record in the open epoch gets no second one, so the epoch is closed if such an inode was
    /// changed.
    pub(super) fn keep_untold(&self, aftermath: &RecoveryState, held: bool) {
        // The end of a killed daemon is unknown.
        let Some(left_ns) = aftermath.stopped_ns.filter(|_| !aftermath.unclean) else {
            return;
        };
        if self.timeline().catalogue.newest_stored().is_none()
            || self
                .live
                .recovery
                .last_recorded_change()
                .is_none_or(|changed| changed.nanoseconds() <= left_ns)
        {
            return;
        }
        if let Err(errno) = self.close_left(left_ns, held, None) {
            tracing::error!(%errno, "what was changed while nothing was mounted may come to look as if it had been so before");
        } else if !self.serving.config.auto.absence {
            // Only the end of the epoch is needed, and it outlives its checkpoint.
            self.take_back_left();
        }
    }

    /// Closes the epoch of the offline changes. Returns `false` if only times of directories
    /// differ, as after a file was created and deleted.
    fn close_absence(&self) -> SysResult<bool> {
        let before = self.newest_made();
        let (from, to) = (TreeState::At(before), TreeState::Live);
        let changes = self.states.compare(from, to, b"")?;
        let is_of_dir =
            |change: &Change| change.kind == Kind::Dir && change.change == ChangeKind::Modified;
        if changes.iter().all(is_of_dir)
            && self
                .states
                .compare_touched(
                    &*self.live.inodes,
                    (from, to),
                    b"",
                    &self.states.touched(before, None)?,
                    false,
                )?
                .is_empty()
        {
            return Ok(false);
        }
        let paths = changes.len() as u64;
        // A power cut that preserves this checkpoint but not the captures before it would end the
        // comparison and make the clones useless.
        self.live.durability.make_captured_durable()?;
        let (freeze, flushed) = self.checkpoints.freeze()?;
        let (made, _) = self.checkpoints.close_epoch(
            Some(&daemon()),
            NOTE,
            Vec::new(),
            Reason::Auto {
                trigger: Trigger::Absence,
            },
            flushed,
        )?;
        drop(freeze);
        tracing::info!(paths, %before, after = %made.id, "changed while nothing was mounted");
        *self.absence.lock() = Some(AbsenceInfo {
            before,
            after: made.id,
            paths,
        });
        Ok(true)
    }

    /// Frees the checkpoint made before the comparison if no relevant difference was found.
    fn take_back_left(&self) {
        let left = self.timeline().catalogue.checkpoint(self.newest_made());
        let Some(left) = left.filter(|left| {
            left.reason
                == Reason::Auto {
                    trigger: Trigger::Unmount,
                }
        }) else {
            return;
        };
        if let Err(error) = self.checkpoints.free_checkpoint(&daemon(), left.id) {
            tracing::warn!(%error.message, id = %left.id, "a checkpoint that is not needed stays");
        }
    }
}

/// Returns the time of the last journal write of the previous daemon.
fn journal_written_ns(store: &Store) -> ckptfs_sys::SysResult<i64> {
    if let Some(written_ns) = store.journal.tail_written_ns() {
        return Ok(written_ns);
    }
    let (journal, mut last) = (store.layout.journal_dir(), i64::MIN);
    for entry in sys::list_dir(journal)? {
        let stat = sys::stat_at(journal, &entry.name)?;
        // The time of packing is irrelevant: an offline `gc` packs too.
        if stat.kind != sys::Kind::Dir {
            last = last.max(stat.mtime.nanoseconds());
        }
    }
    Ok(last)
}
