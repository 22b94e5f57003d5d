//! What was changed while nothing was mounted, taken in at the next mount
//! (docs/adr/0023-absence.md).
//!
//! The tree is compared with the baseline that the last daemon has left, and what differs becomes
//! an epoch of its own: the epoch that was open is closed before the first difference is recorded,
//! by a checkpoint of the tree as it was when it was last served, and the next one is closed after
//! the last, by a checkpoint of the tree as it was found. Nothing is served before.
//!
//! **Kills and power cuts.** The journal says that the comparison is under way, and with which
//! baseline ([`Comparing`]), before anything else is recorded. The next mount then begins the
//! comparison anew with the same baseline: keys that have a record keep it, and what was changed
//! since is a part of the same absence. The checkpoint that ends the epoch ends the comparison;
//! where nothing differs, or it is no epoch of its own, another record does.

use std::sync::Arc;

use super::api::{AbsenceInfo, Change, ChangeKind};
use super::auto::daemon;
use super::checkpoint::Checkpoints;
use super::compare::States;
use super::serving::Serving;
use crate::history::state::State;
use crate::history::timeline::Aftermath;
use crate::live::{Keep, Live};
use crate::store::Store;
use crate::store::baseline::Baseline;
use crate::store::ids::CheckpointId;
use crate::store::record::{Apart, Checkpoint, Comparing, Reason, Record, Trigger};
use crate::sys;
use crate::sys::lock::Mutex;
use crate::sys::{Errno, Kind, SysResult};

/// The note of the checkpoint that closes the epoch of an absence.
const NOTE: &str = "changed while not mounted";
/// What somebody should know who mounts then.
const UNSEEN: &str =
    "the filesystem is full: some changes made while nothing was mounted are not shown";

/// Takes in what was changed while nothing was mounted.
pub(super) struct Absences {
    pub(super) live: Arc<Live>,
    serving: Arc<Serving>,
    states: Arc<States>,
    checkpoints: Arc<Checkpoints>,
    /// This worker goes on where another died: there was no absence.
    took_over: bool,
    /// What was changed before this mount.
    absence: Mutex<Option<AbsenceInfo>>,
    /// What was asked to be kept when this daemon ends.
    pub(super) keep: Mutex<Option<Keep>>,
}

impl Absences {
    pub(super) fn new(checkpoints: Arc<Checkpoints>, took_over: bool) -> Absences {
        Absences {
            live: Arc::clone(&checkpoints.live),
            serving: Arc::clone(&checkpoints.serving),
            states: Arc::clone(&checkpoints.states),
            checkpoints,
            took_over,
            absence: Mutex::default(),
            keep: Mutex::default(),
        }
    }

    /// What was changed before this mount, while nothing was mounted, as long as both checkpoints
    /// around it are there.
    pub(super) fn absence(&self) -> Option<AbsenceInfo> {
        let absence = self.absence.lock().clone()?;
        let known = |id| self.timeline().catalogue.has_checkpoint(id);
        (known(absence.before) && known(absence.after)).then_some(absence)
    }

    pub(super) fn keeps_content(&self) -> Keep {
        let asked = *self.keep.lock();
        asked
            .or_else(|| Keep::named(self.serving.settings().text("umount.keep")?))
            .unwrap_or_default()
    }

    /// The number of the newest checkpoint that was ever made.
    fn newest_made(&self) -> CheckpointId {
        CheckpointId(self.timeline().epochs.epoch().0.saturating_sub(1))
    }

    /// Records that the tree is served from now on, since when it was not, and that it is being
    /// compared. Whatever is changed after is changed by us.
    pub(super) fn begin_service(
        &self,
        aftermath: &Aftermath,
        comparing: Option<Comparing>,
    ) -> crate::sys::SysResult<()> {
        let stopped_ns = match (aftermath.stopped_ns, aftermath.unclean) {
            (Some(at_ns), _) => Some(at_ns),
            // The mount was there all the time, and whoever wanted to change something waited.
            (None, true) if self.took_over => None,
            // A killed daemon lived at least until it last wrote to the journal (of which a power
            // cut may have left more than of the note when), and until the last change of what has
            // a record: most changes need no new one.
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
            // What we change from now on (a recovery does so at once) must not bear an earlier
            // time.
            sys::wait_for_tick(begin);
        }
        let at_ns = begin.nanoseconds();
        // In this order: after a power cut the second may be missing.
        let compares = comparing.is_some() || aftermath.comparing.is_some();
        let records: Vec<Record> = compares
            .then_some(Record::Comparing(comparing))
            .into_iter()
            .chain([Record::Mounted { at_ns, stopped_ns }])
            .collect();
        match self.timeline().journal.append(&records) {
            // Nothing that needs a record can be done either, until these are there; but what frees
            // space can.
            Err(errno) if errno.is_no_room() => records
                .into_iter()
                .for_each(|record| self.timeline().journal.tell(record)),
            done => done?,
        }
        self.timeline().absences.begin_service(at_ns, stopped_ns);
        Ok(())
    }

    /// What the tree is to be compared with: the baseline that the last daemon has left, if nothing
    /// was recorded since but such a comparison.
    pub(super) fn comparison(&self, aftermath: &Aftermath) -> Option<(Baseline, Comparing)> {
        let (timeline, store) = (self.timeline(), self.timeline().store());
        if self.took_over {
            return None;
        }
        let comparing = aftermath.comparing.unwrap_or_else(|| Comparing {
            baseline: store.journal.position(),
            left_ns: aftermath.stopped_ns.unwrap_or(0),
            apart: if !self.serving.config.auto.absence || aftermath.stopped_ns.is_none() {
                Apart::No
            } else if timeline.epochs.is_unchanged()
                && timeline.catalogue.has_checkpoint(self.newest_made())
            {
                Apart::Closed
            } else {
                Apart::Unclosed
            },
        });
        // After a power cut the tree may be older than what was written of it.
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
        if self.keeps_content() != Keep::None {
            self.live.idle.clone_ahead();
        }
        Some((baseline, comparing))
    }

    /// Compares, and records what differs. `held`: somebody could write to files of the tree when
    /// it was last served; `watch` has such files watched.
    pub(super) fn take_in_absence(
        &self,
        baseline: &Baseline,
        comparing: Comparing,
        held: bool,
        watch: impl Fn() -> SysResult<()>,
    ) -> SysResult<()> {
        let mut unclosed = comparing.apart == Apart::Unclosed;
        let mut begin = || {
            if unclosed {
                // A mount that goes on after a kill reads from the checkpoint on.
                let goes_on = Record::Comparing(Some(Comparing {
                    apart: Apart::Closed,
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
        // What had no record before is captured from here on, and as it is now.
        watch()?;
        if told.is_err_and(|errno| errno.is_no_room()) {
            self.serving.warn(UNSEEN.to_owned());
        }
        // Before the checkpoint that ends the comparison: a mount that was killed between the two
        // would not compare again.
        if is_told {
            self.timeline().absences.tell_absence(comparing.left_ns);
        }
        let apart =
            comparing.apart != Apart::No && !unclosed && !self.timeline().epochs.is_unchanged();
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

    /// Closes the epoch that was open when the tree was last served: with the time of that, for
    /// what was changed later must seem so.
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

    /// There is no baseline: what was changed while nothing was mounted is known by its ctime,
    /// until the next change of ours, which keeps that in its record. What has a record in the open
    /// epoch gets no other, so that epoch is closed if such a thing was changed.
    pub(super) fn keep_untold(&self, aftermath: &Aftermath, held: bool) {
        // When a daemon that was killed has ended nobody knows.
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
            // Only the end of the epoch is needed, which stays when the checkpoint is freed.
            self.take_back_left();
        }
    }

    /// Closes the epoch that has what was changed; `false`: nothing differs but times of
    /// directories, as where a file came and went.
    fn close_absence(&self) -> SysResult<bool> {
        let before = self.newest_made();
        let (from, to) = (State::At(before), State::Live);
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
        // A power cut that left this checkpoint and not what was captured before would end the
        // comparison, and with it what the clones are good for.
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

    /// Nothing differs that anybody would look for: the checkpoint that was made before that is not
    /// needed.
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

/// When the last daemon last wrote to the journal.
fn journal_written_ns(store: &Store) -> crate::sys::SysResult<i64> {
    if let Some(written_ns) = store.journal.tail_written_ns() {
        return Ok(written_ns);
    }
    let (journal, mut last) = (store.layout.journal_dir(), i64::MIN);
    for entry in sys::list_dir(journal)? {
        let stat = sys::stat_at(journal, &entry.name)?;
        // When something was packed says nothing: an offline `gc` does it too.
        if stat.kind != sys::Kind::Dir {
            last = last.max(stat.mtime.nanoseconds());
        }
    }
    Ok(last)
}
