//! The tripwire: a checkpoint before a burst of destructive operations (docs/adr/0014-tripwire.md).
//!
//! At the first operation it is unknown whether a burst follows. Before the first one of a process,
//! if the tree has changed since the last checkpoint, the daemon therefore makes a **mark**: a
//! hidden automatic checkpoint. If the process or its session then destroys more than the
//! configured number of files within the configured time, that is a burst, and the mark is
//! confirmed: it becomes visible. If the process becomes quiet, the mark is freed. The next daemon
//! decides undecided marks of the previous one.
//!
//! The destruction of a file edited since the last checkpoint counts several times. Its content
//! exists in the mark only, and `git checkout .` over a few such files loses as much as `rm -rf`
//! over many unedited ones.
//!
//! Destructive operations are unlink, rmdir, a replacing rename, and truncation to zero. A file
//! written recently that no checkpoint shows is a temporary file; its removal makes no mark.
//!
//! **Cost.** An operation takes a leaf lock twice and looks up small tables. `/proc` is read only
//! if the time window has more operations than one process tree may make, once per process, to
//! determine their sessions. At most one mark is made per window, for all processes together.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::auto::Automatic;
use super::config::TripwireConfig;
use super::request::Caller;
use ckptfs_api::{CheckpointId, Reason, Trigger};
use ckptfs_store::ids::Slot;
use ckptfs_sys as sys;
use ckptfs_sys::SysResult;
use ckptfs_sys::lock::Mutex;

/// Number of processes above which those idle for longer than the window are evicted.
const PROCESSES_MAX: usize = 1024;
/// Limit of undecided marks; beyond it the oldest is confirmed.
const MARKS_MAX: usize = 8;
/// Limit of processes recorded as relying on a mark; beyond it the newest replaces the last.
const USERS_MAX: usize = 256;
/// If several processes made the last operations, a burst is checked for again after this fraction
/// of the limit.
const LOOKS: u32 = 4;
/// Weight of an operation that destroys an edited file.
const EDITED_WEIGHT: u32 = 5;
/// Limit of edited files recorded; the others have weight 1.
const EDITED_MAX: usize = 100_000;
/// Minimum interval between decisions about marks; otherwise half of the time window.
const DECIDE_MIN: Duration = Duration::from_millis(20);

pub(super) struct Tripwire {
    config: TripwireConfig,
    state: Mutex<TripwireState>,
    /// A mark was confirmed: the kernel's cached listing of checkpoints is stale.
    changed: AtomicBool,
}

#[derive(Default)]
struct TripwireState {
    /// The last operations, one more than the limit: time, process, weight.
    last: VecDeque<(Instant, u32, u32)>,
    /// Files edited before the last mark (or its equivalent) and not destroyed since.
    edited: HashSet<Slot>,
    /// Time of the last destructive operation of each process.
    processes: HashMap<u32, Instant>,
    /// Known sessions of processes.
    sessions: HashMap<u32, Option<i32>>,
    /// Time at which the previous state was last ensured to be kept: a mark was made, or nothing
    /// had changed.
    marked: Option<Instant>,
    /// Undecided marks, oldest first.
    marks: Vec<Mark>,
    burst: Option<Burst>,
    /// Weight of operations since the last check for a burst.
    unlooked: u32,
}

struct Mark {
    id: CheckpointId,
    users: Vec<u32>,
    /// Time of its creation, or of the daemon's restart.
    since: Instant,
}

struct Burst {
    session: Option<i32>,
    last: Instant,
    processes: HashSet<u32>,
}

/// The outcome for marks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MarkDecision {
    pub(super) take_back: Vec<CheckpointId>,
    /// Time until the next decision.
    pub(super) next: Option<Duration>,
}

/// Action before an operation.
#[derive(Debug, PartialEq, Eq)]
enum BeforeAction {
    Nothing,
    /// Make a mark, unless the process belongs to the session of the current burst, which the
    /// caller checks.
    Mark {
        in_burst: Option<Option<i32>>,
    },
}

impl Tripwire {
    pub(super) fn new(config: TripwireConfig) -> Tripwire {
        Tripwire {
            config,
            state: Mutex::default(),
            changed: AtomicBool::new(false),
        }
    }

    /// Returns whether a mark was confirmed since the last call.
    pub(super) fn take_changed(&self) -> bool {
        self.changed.swap(false, Ordering::SeqCst)
    }

    fn before(&self, pid: u32, now: Instant) -> BeforeAction {
        let (mut state, within) = (self.state.lock(), self.config.within);
        let lately = |then: &Instant| now.duration_since(*then) < within;
        if state.processes.get(&pid).is_some_and(lately) {
            return BeforeAction::Nothing;
        }
        if state
            .burst
            .as_ref()
            .is_some_and(|burst| lately(&burst.last) && burst.processes.contains(&pid))
        {
            return BeforeAction::Nothing;
        }
        if state.marked.as_ref().is_some_and(lately) {
            if let Some(mark) = state.marks.last_mut() {
                let full = mark.users.len() >= USERS_MAX;
                match mark.users.last_mut().filter(|_| full) {
                    Some(last) => *last = pid,
                    None => mark.users.push(pid),
                }
            }
            return BeforeAction::Nothing;
        }
        BeforeAction::Mark {
            in_burst: state
                .burst
                .as_ref()
                .filter(|burst| lately(&burst.last))
                .map(|burst| burst.session),
        }
    }

    /// Adds a process to the current burst.
    fn joins(&self, pid: u32) {
        if let Some(burst) = &mut self.state.lock().burst {
            burst.processes.insert(pid);
        }
    }

    /// Records that the previous state is kept: in a mark, or without changes in the checkpoint
    /// before. `edited`: files whose content no earlier checkpoint has. Returns the oldest mark if
    /// there are too many.
    fn marked(
        &self,
        pid: u32,
        mark: Option<CheckpointId>,
        edited: HashSet<Slot>,
        now: Instant,
    ) -> Option<CheckpointId> {
        let mut state = self.state.lock();
        state.edited = edited;
        state.marked = Some(now);
        state.processes.insert(pid, now);
        let (id, users) = (mark?, vec![pid]);
        state.marks.push(Mark {
            id,
            users,
            since: now,
        });
        (state.marks.len() > MARKS_MAX).then(|| state.marks.remove(0).id)
    }

    /// Takes over undecided marks of the previous daemon: active processes may rely on them.
    pub(super) fn resume(&self, marks: Vec<CheckpointId>, now: Instant) {
        let mut state = self.state.lock();
        state.marked = Some(now);
        state.marks.extend(marks.into_iter().map(|id| Mark {
            id,
            users: Vec::new(),
            since: now,
        }));
    }

    /// Counts an operation on an inode. If the last operations may be a burst, returns their
    /// processes and weights.
    fn after(&self, pid: u32, destroyed: Slot, now: Instant) -> Option<Vec<(u32, u32)>> {
        let (mut state, within) = (self.state.lock(), self.config.within);
        let lately = |then: &Instant| now.duration_since(*then) < within;
        if state.processes.len() >= PROCESSES_MAX {
            state.processes.retain(|_, then| lately(then));
            state.sessions.clear();
        }
        state.processes.insert(pid, now);
        let weight = if state.edited.remove(&destroyed) {
            EDITED_WEIGHT
        } else {
            1
        };
        state.last.push_back((now, pid, weight));
        let count = self.config.count;
        while state.last.len() > (count as usize).saturating_add(1)
            || state.last.front().is_some_and(|(then, ..)| !lately(then))
        {
            state.last.pop_front();
        }
        if let Some(burst) = state
            .burst
            .as_mut()
            .filter(|burst| lately(&burst.last) && burst.processes.contains(&pid))
        {
            burst.last = now;
            return None;
        }
        let many = state.last.iter().map(|(.., weight)| *weight).sum::<u32>() > count;
        state.unlooked = state.unlooked.saturating_add(weight);
        let alone = state.last.iter().all(|(_, other, _)| *other == pid);
        if !many || !(alone || state.unlooked >= (count / LOOKS).max(1)) {
            return None;
        }
        state.unlooked = 0;
        Some(
            state
                .last
                .iter()
                .map(|(_, pid, weight)| (*pid, *weight))
                .collect(),
        )
    }

    /// Returns the marks to confirm if one process tree made more of these operations than the
    /// limit. Operations of exited processes count for the tree of the last one, as with tools that
    /// start a process for each file.
    fn judge(
        &self,
        done: &[(u32, u32)],
        now: Instant,
        session_of: impl Fn(u32) -> Option<i32>,
    ) -> Vec<CheckpointId> {
        let mut sessions: HashMap<u32, Option<i32>> = {
            let known = &self.state.lock().sessions;
            done.iter()
                .filter_map(|(pid, _)| Some((*pid, *known.get(pid)?)))
                .collect()
        };
        for (pid, _) in done {
            sessions.entry(*pid).or_insert_with(|| session_of(*pid));
        }
        let last = done
            .last()
            .and_then(|(pid, _)| sessions.get(pid))
            .copied()
            .flatten();
        let is_its = |(pid, _): &&(u32, u32)| {
            sessions
                .get(pid)
                .copied()
                .flatten()
                .is_none_or(|session| Some(session) == last)
        };
        let its: HashSet<u32> = done.iter().filter(is_its).map(|(pid, _)| *pid).collect();
        let count: u32 = done.iter().filter(is_its).map(|(_, weight)| *weight).sum();
        let mut state = self.state.lock();
        state.sessions.extend(sessions);
        if count <= self.config.count {
            return Vec::new();
        }
        let (kept, open) = std::mem::take(&mut state.marks)
            .into_iter()
            .partition(|mark| mark.users.iter().any(|user| its.contains(user)));
        state.marks = open;
        let kept: Vec<Mark> = kept;
        state.burst = Some(Burst {
            session: last,
            last: now,
            processes: its,
        });
        kept.into_iter().map(|mark| mark.id).collect()
    }

    /// Returns the marks to free: those whose processes have all become quiet.
    pub(super) fn decide(&self, now: Instant) -> MarkDecision {
        let (mut state, within) = (self.state.lock(), self.config.within);
        let TripwireState {
            processes, marks, ..
        } = &mut *state;
        let active = |pid: &u32| {
            processes
                .get(pid)
                .is_some_and(|then| now.duration_since(*then) < within)
        };
        let mut take_back = Vec::new();
        marks.retain_mut(|mark| {
            mark.users.retain(active);
            let stays = !mark.users.is_empty() || now.duration_since(mark.since) < within;
            if !stays {
                take_back.push(mark.id);
            }
            stays
        });
        let next = (!marks.is_empty()).then(|| (within / 2).max(DECIDE_MIN));
        MarkDecision { take_back, next }
    }
}

impl Automatic {
    /// Executes a potentially destructive operation, after making a mark if it may begin a burst.
    /// `destroys` is called only then; `destroyed` returns the destroyed inode, if any.
    pub(super) fn destroying<T>(
        &self,
        caller: Caller,
        destroys: impl FnOnce() -> bool,
        act: impl FnOnce() -> SysResult<T>,
        destroyed: impl FnOnce(&T) -> Option<Slot>,
    ) -> SysResult<T> {
        let Some(tripwire) = &self.tripwire else {
            return act();
        };
        let before = tripwire.before(caller.pid, Instant::now());
        if let BeforeAction::Mark { in_burst } = before
            && destroys()
        {
            if sys::runs_our_program(caller.pid) {
                return act();
            }
            if in_burst.is_some_and(|session| session == sys::process_session(caller.pid).ok()) {
                tripwire.joins(caller.pid);
            } else {
                self.make_mark(tripwire, caller);
            }
        }
        let done = act()?;
        if let Some(gone) = destroyed(&done)
            && let Some(lately) = tripwire.after(caller.pid, gone, Instant::now())
        {
            for id in tripwire.judge(&lately, Instant::now(), |pid| {
                sys::process_session(pid).ok()
            }) {
                tracing::info!(%id, pid = caller.pid, "a burst of destructive operations: the checkpoint before it is kept");
                self.confirm(tripwire, id);
            }
        }
        Ok(done)
    }

    /// Makes a mark visible.
    fn confirm(&self, tripwire: &Tripwire, id: CheckpointId) {
        if let Err(errno) = self.timeline().catalogue.set_hidden(id, false) {
            tracing::warn!(%errno, %id, "the checkpoint before a burst stays hidden");
            return;
        }
        tripwire.changed.store(true, Ordering::SeqCst);
        self.worker.wake();
    }

    /// Returns whether a destructive operation of this process would make a mark now.
    pub(super) fn suspects(&self, caller: Caller) -> bool {
        self.tripwire.as_ref().is_some_and(|tripwire| {
            tripwire.before(caller.pid, Instant::now()) != BeforeAction::Nothing
        })
    }

    /// Returns whether a file is temporary: recently changed, and shown by no checkpoint.
    pub(super) fn is_temporary(
        &self,
        parent: ckptfs_store::ids::Slot,
        name: &ckptfs_store::ids::Name,
    ) -> bool {
        self.tripwire.as_ref().is_some_and(|tripwire| {
            self.live
                .removal
                .is_young(parent, name, tripwire.config.within)
        })
    }

    /// Makes a mark. The thread serves a request of a process that holds a lock of the kernel, so
    /// it must not wait for another request. Stores through mappings served by the daemon that are
    /// still in the kernel's cache are therefore missing; the checkpoint is then not `atomic`.
    fn make_mark(&self, tripwire: &Tripwire, caller: Caller) {
        // If space is short, removals must free it.
        let unwanted = self.is_kept() || self.timeline().store().reserve.is_short();
        let (mut made, mut edited) = (None, HashSet::new());
        if !unwanted {
            if !self.timeline().indexer.takes_checkpoints() {
                return;
            }
            // Another checkpoint or a restore runs; the next operation retries.
            let Some(_one_at_a_time) = self.checkpoints.checkpointing.try_lock() else {
                return;
            };
            self.live.hot.await_closes();
            self.live.settling.settle_mapped();
            self.live.hot.preflush();
            let actor = caller.actor();
            let note = format!(
                "before {} (pid {}) began to remove or empty files",
                actor.process, actor.pid
            );
            let closed = self.live.busy.freeze().and_then(|_freeze| {
                let flushed = self.live.nodes.mapped_through_daemon().is_empty();
                edited = self
                    .timeline()
                    .epochs
                    .data_records()
                    .into_iter()
                    .take(EDITED_MAX)
                    .map(|(slot, _)| slot)
                    .collect();
                self.checkpoints.close_epoch(
                    Some(&actor),
                    &note,
                    Vec::new(),
                    Reason::Auto {
                        trigger: Trigger::Tripwire,
                    },
                    flushed,
                )
            });
            match closed {
                Ok((checkpoint, _)) => made = Some(checkpoint.id),
                Err(errno) => {
                    // The operation itself continues: a removal needs no space.
                    tracing::warn!(%errno, "the state before a removal was not marked");
                    return;
                }
            }
        }
        if let Some(too_many) = tripwire.marked(caller.pid, made, edited, Instant::now()) {
            tracing::debug!(id = %too_many, "too many marks: the oldest is kept");
            self.confirm(tripwire, too_many);
        }
        if made.is_some() {
            self.worker.wake();
        }
    }
}

#[cfg(test)]
mod tests;
