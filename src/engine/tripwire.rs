//! The tripwire: a checkpoint just before a burst of destructive operations
//! (docs/adr/0014-tripwire.md).
//!
//! Nobody knows of the first operation whether a burst will follow. So before the first one of a
//! process, if something has changed since the last checkpoint, the daemon makes a **mark**: an
//! automatic checkpoint that is hidden. If the process or its session then destroys more than the
//! configured number of files within the configured time, that is a burst: the mark is confirmed,
//! and is a visible checkpoint from then on. If the process becomes quiet instead, the mark is
//! freed. A mark that a daemon leaves undecided is decided by the next one.
//!
//! An operation that destroys a file which was edited since the last checkpoint counts for several:
//! what was in it is in no other checkpoint than the mark, and `git checkout .` over a few such
//! files loses as much as `rm -rf` over many that are as they were.
//!
//! Destructive are unlink, rmdir, a rename over something, and emptying a file. A file that no
//! checkpoint can see and that was written just now is somebody's temporary file: to remove it
//! makes no mark.
//!
//! **Cost.** An operation takes a leaf lock twice and looks into small tables. `/proc` is read only
//! when there were more operations in the time than one tree may make, once for each process, to
//! tell whether they are of one. A mark is made at most once in the time, whoever destroys.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::auto::Automatic;
use super::config::TripwireConfig;
use super::request::Caller;
use crate::store::ids::{CheckpointId, Slot};
use crate::store::record::{Reason, Trigger};
use crate::sys;
use crate::sys::SysResult;
use crate::sys::lock::Mutex;

/// Processes that are remembered; when there are more, those are forgotten that have done nothing
/// lately.
const PROCESSES_MAX: usize = 1024;
/// Marks that are not decided upon; the oldest of more is taken back.
const MARKS_MAX: usize = 8;
/// Processes that are known to rely on a mark; of more, the newest counts.
const USERS_MAX: usize = 256;
/// Where several processes made the last operations, whether they are a burst is asked again after
/// this part of as many.
const LOOKS: u32 = 4;
/// An operation that destroys a file that was edited counts for so many.
const EDITED_WEIGHT: u32 = 5;
/// Edited files that are told from others; of more, some count as others do.
const EDITED_MAX: usize = 100_000;
/// Whether a mark can be taken back is asked after this part of the time, and never more often than
/// this.
const DECIDE_MIN: Duration = Duration::from_millis(20);

pub(super) struct Tripwire {
    config: TripwireConfig,
    state: Mutex<State>,
    /// A mark was confirmed: the kernel may have cached the list of checkpoints.
    changed: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The newest operations, one more than makes no burst: when, by which process, and for how
    /// many each counts.
    last: VecDeque<(Instant, u32, u32)>,
    /// Files that were edited before the state was last seen to be kept, and not destroyed since.
    edited: HashSet<Slot>,
    /// When each process last destroyed something.
    processes: HashMap<u32, Instant>,
    /// The session of each process, as far as it was asked for.
    sessions: HashMap<u32, Option<i32>>,
    /// When it was last seen to that the state before is kept: a mark was made, or nothing had
    /// changed.
    marked: Option<Instant>,
    /// Those that are not decided upon, oldest first.
    marks: Vec<Mark>,
    burst: Option<Burst>,
    /// Operations since it was last asked whether there is a burst.
    unlooked: u32,
}

struct Mark {
    id: CheckpointId,
    users: Vec<u32>,
    /// When it was made, or found after a restart of the daemon.
    since: Instant,
}

struct Burst {
    session: Option<i32>,
    last: Instant,
    processes: HashSet<u32>,
}

/// What is to become of the marks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) take_back: Vec<CheckpointId>,
    /// When to ask again.
    pub(super) next: Option<Duration>,
}

/// What is to be done before an operation.
#[derive(Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    /// A mark, unless the process is of the tree that makes the burst: its session is to be asked
    /// for.
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

    /// Whether a mark was confirmed since this was last asked.
    pub(super) fn take_changed(&self) -> bool {
        self.changed.swap(false, Ordering::SeqCst)
    }

    fn before(&self, pid: u32, now: Instant) -> Before {
        let (mut state, within) = (self.state.lock(), self.config.within);
        let lately = |then: &Instant| now.duration_since(*then) < within;
        if state.processes.get(&pid).is_some_and(lately) {
            return Before::Nothing;
        }
        if state
            .burst
            .as_ref()
            .is_some_and(|burst| lately(&burst.last) && burst.processes.contains(&pid))
        {
            return Before::Nothing;
        }
        if state.marked.as_ref().is_some_and(lately) {
            if let Some(mark) = state.marks.last_mut() {
                let full = mark.users.len() >= USERS_MAX;
                match mark.users.last_mut().filter(|_| full) {
                    Some(last) => *last = pid,
                    None => mark.users.push(pid),
                }
            }
            return Before::Nothing;
        }
        Before::Mark {
            in_burst: state
                .burst
                .as_ref()
                .filter(|burst| lately(&burst.last))
                .map(|burst| burst.session),
        }
    }

    /// The process is of the tree that makes the burst.
    fn joins(&self, pid: u32) {
        if let Some(burst) = &mut self.state.lock().burst {
            burst.processes.insert(pid);
        }
    }

    /// The state before is kept: in a mark, or, where nothing had changed, in the checkpoint
    /// before. The oldest of too many marks is given back. `edited`: the files whose content no
    /// checkpoint before it had.
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

    /// Takes over marks that the daemon before did not decide on: a process that destroys something
    /// now may be one that relies on them.
    pub(super) fn resume(&self, marks: Vec<CheckpointId>, now: Instant) {
        let mut state = self.state.lock();
        state.marked = Some(now);
        state.marks.extend(marks.into_iter().map(|id| Mark {
            id,
            users: Vec::new(),
            since: now,
        }));
    }

    /// Counts an operation that was done to an inode. The processes that made the last ones, and
    /// for how many each counts, if these may be a burst.
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

    /// Whether one tree of processes made more of these than it may without it being a burst. Those
    /// whose process is gone count for the tree of the last one: tools that start another process
    /// for each file are like that. Then the marks that they rely on stay.
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

    /// Which marks are to be taken back: those whose processes have all become quiet.
    pub(super) fn decide(&self, now: Instant) -> Decision {
        let (mut state, within) = (self.state.lock(), self.config.within);
        let State {
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
        Decision { take_back, next }
    }
}

impl Automatic {
    /// Does something that may destroy: the state before is kept if this may be the beginning of a
    /// burst. `destroys` is asked only then; `destroyed` says what was, if something was.
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
        if let Before::Mark { in_burst } = before
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

    /// Makes a mark a visible checkpoint.
    fn confirm(&self, tripwire: &Tripwire, id: CheckpointId) {
        if let Err(errno) = self.timeline().catalogue.set_hidden(id, false) {
            tracing::warn!(%errno, %id, "the checkpoint before a burst stays hidden");
            return;
        }
        tripwire.changed.store(true, Ordering::SeqCst);
        self.worker.wake();
    }

    /// A mark would be made, if this process destroyed something now.
    pub(super) fn suspects(&self, caller: Caller) -> bool {
        self.tripwire
            .as_ref()
            .is_some_and(|tripwire| tripwire.before(caller.pid, Instant::now()) != Before::Nothing)
    }

    /// A file that no checkpoint can see, and that was changed just now.
    pub(super) fn is_temporary(
        &self,
        parent: crate::store::ids::Slot,
        name: &crate::store::ids::Name,
    ) -> bool {
        self.tripwire.as_ref().is_some_and(|tripwire| {
            self.live
                .removal
                .is_young(parent, name, tripwire.config.within)
        })
    }

    /// Keeps the state of the tree. This is a thread that serves a request, of a process that holds
    /// a lock of the kernel: nothing is waited for that may need another request. So stores through
    /// mappings that the daemon serves and that are still in the kernel's cache are left out, and
    /// it says so.
    fn make_mark(&self, tripwire: &Tripwire, caller: Caller) {
        // Where space is short, what is removed is to be free.
        let unwanted = self.is_kept() || self.timeline().store().reserve.is_short();
        let (mut made, mut edited) = (None, HashSet::new());
        if !unwanted {
            if !self.timeline().indexer.takes_checkpoints() {
                return;
            }
            // Another checkpoint or a restore is being made: with the next operation it is tried
            // again.
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
                    // The operation itself may well go on: removing needs no room.
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
