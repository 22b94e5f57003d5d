//! For whom a request is served, and who has what open for writing.
//!
//! The kernel tells the number of the calling thread, which waits for our answer: so `/proc` can be
//! asked who it is, and it cannot be gone. That is done once for each thread, and again when it was
//! last done a moment ago: a number may have been given to another process since.
//!
//! With passthrough nobody tells of a write, so whoever has a file open for writing counts as
//! writing to it, until the file turns out as it was when that one opened it. Where the daemon
//! writes, it is told by whom; dirty pages of a mapping come from nobody, and count for all who may
//! have it mapped.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::change::Change;
use super::handles::Handle;
use super::tables::{HotFiles, Tables};
use crate::history::attribution::{Author, Numbered};
use crate::history::timeline::Timeline;
use crate::store::ids::Slot;
use crate::store::record::Process;
use crate::sys::lock::Mutex;
use crate::sys::{self, ProcessFacts};

/// So long a number stands for the same process: the kernel gives numbers out in turn, and hardly
/// comes round sooner.
const BELIEVED: Duration = Duration::from_secs(1);
/// Threads that are remembered.
const THREADS_MAX: usize = 4096;

/// Number and user of a thread.
type Thread = (u32, u32);

fn process(facts: ProcessFacts, uid: u32) -> Process {
    let ProcessFacts {
        pid,
        start,
        parent,
        session,
        name,
        cgroup,
    } = facts;
    Process {
        pid,
        start,
        uid,
        parent,
        session,
        name,
        cgroup,
    }
}

/// Bits of a process's number in a word; Linux has at most 22.
const PID_BITS: u32 = 24;

/// Process and start in one word, for the worker that takes over.
pub fn opener_word(by: &Numbered) -> u64 {
    let Process { pid, start, .. } = by.process;
    if u64::from(pid) < 1 << PID_BITS {
        u64::from(pid) | start << PID_BITS
    } else {
        0
    }
}

/// For whom requests are served, and who has what open for writing.
pub struct Writers {
    timeline: Arc<Timeline>,
    hot: Arc<HotFiles>,
    /// Who the threads are that ask for something. A leaf.
    threads: Mutex<HashMap<Thread, (Arc<Numbered>, Instant)>>,
    /// Handles that are open for writing, by number. A leaf.
    open: Mutex<HashMap<u64, (Slot, Arc<Numbered>)>>,
}

impl Writers {
    pub(super) fn new(tables: &Tables) -> Arc<Writers> {
        Arc::new(Writers {
            timeline: Arc::clone(&tables.timeline),
            hot: Arc::clone(&tables.hot),
            threads: Mutex::default(),
            open: Mutex::default(),
        })
    }

    /// The process that an [`opener_word`] names: its name too, if it lives. `None`: it is not
    /// known.
    pub fn opener(&self, word: u64) -> Option<Arc<Numbered>> {
        let pid = u32::try_from(word & ((1 << PID_BITS) - 1))
            .ok()
            .filter(|pid| *pid != 0)?;
        let start = word >> PID_BITS;
        let alive = sys::facts_of(pid)
            .ok()
            .filter(|facts| facts.start << PID_BITS >> PID_BITS == start);
        let uid = alive.as_ref().and_then(|_| sys::process_user(pid).ok());
        let process = process(
            alive.unwrap_or(ProcessFacts {
                pid,
                start,
                ..ProcessFacts::default()
            }),
            uid.unwrap_or(0),
        );
        Some(self.timeline.processes.number(process))
    }

    /// A change that is asked for by the process that a thread of this number belongs to.
    pub fn change_by(&self, thread: u32, uid: u32) -> Change {
        Change::by(Some(self.caller(thread, uid)))
    }

    /// The process of a thread that waits for an answer.
    pub fn caller(&self, thread: u32, uid: u32) -> Arc<Numbered> {
        let now = Instant::now();
        let mut threads = self.threads.lock();
        if let Some((known, at)) = threads.get(&(thread, uid))
            && now.saturating_duration_since(*at) < BELIEVED
        {
            return Arc::clone(known);
        }
        drop(threads);
        // Nobody waits for what comes from the kernel itself, and in another namespace there is no
        // such number.
        let facts = if thread == 0 {
            None
        } else {
            sys::process_facts(thread).ok()
        };
        let parent_of = |pid| sys::facts_of(pid).ok().map(|facts| process(facts, uid));
        let known = self.timeline.processes.number_child(
            process(
                facts.unwrap_or(ProcessFacts {
                    pid: thread,
                    ..ProcessFacts::default()
                }),
                uid,
            ),
            parent_of,
        );
        threads = self.threads.lock();
        if threads.len() >= THREADS_MAX {
            threads.clear();
        }
        threads.insert((thread, uid), (Arc::clone(&known), now));
        known
    }

    /// A handle was opened.
    pub(super) fn note_writer(&self, id: u64, handle: &Handle) {
        if handle.flags.write
            && let Some(by) = &handle.by
        {
            self.open.lock().insert(id, (handle.slot, Arc::clone(by)));
        }
    }

    /// It is closed.
    pub(super) fn writer_left(&self, id: u64) {
        self.open.lock().remove(&id);
    }

    /// At most `limit` files that are open for writing, or may be mapped so, with who has them so,
    /// and how many more there are.
    pub(super) fn open_for_writing(&self, limit: usize) -> (Vec<(Slot, Arc<Numbered>)>, u64) {
        let mut found: Vec<(Slot, Arc<Numbered>)> = Vec::new();
        let mut more = 0;
        let mut add = |slot: Slot, by: &Arc<Numbered>| {
            if found.len() >= limit {
                more += 1;
            } else if !found
                .iter()
                .any(|(known, who)| *known == slot && who.number == by.number)
            {
                found.push((slot, Arc::clone(by)));
            }
        };
        let hot = self.hot.lock();
        hot.iter()
            .for_each(|(slot, hot)| hot.openers.iter().for_each(|opener| add(*slot, &opener.by)));
        let writers = self.open.lock();
        writers
            .values()
            .filter(|(slot, _)| !hot.contains_key(slot))
            .for_each(|(slot, by)| add(*slot, by));
        (found, more)
    }

    /// Dirty pages of a mapping are written: by whom is not told, so everybody counts who has the
    /// file open for writing.
    pub(super) fn touch_by_mappers(&self, slot: Slot) {
        let mut mappers: Vec<Arc<Numbered>> = Vec::new();
        for (of, by) in self.open.lock().values() {
            if *of == slot && !mappers.contains(by) {
                mappers.push(Arc::clone(by));
            }
        }
        for by in mappers {
            let author = Author::new(Some(by));
            self.timeline.processes.touch_data(&author, slot);
            if let Err(errno) = self.timeline.processes.tell_touches(&author) {
                tracing::debug!(%errno, "who changed a file could not be told");
            }
        }
    }
}
