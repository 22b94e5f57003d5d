//! Attribution of changes to processes, and the processes that have files open for writing.
//!
//! The kernel reports the ID of the calling thread, which waits for the reply and so cannot exit.
//! `/proc` identifies its process. The result is cached for each thread for a short time, because
//! the ID may be reused later.
//!
//! With passthrough no request announces a write. A process that has a file open for writing
//! therefore counts as a writer of it, unless the file turns out to be unchanged since the process
//! opened it. With daemon I/O each write names its process. Writeback of mapped pages does not, so
//! it counts for all processes that may have the file mapped.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::change::ChangeCtx;
use super::handles::Handle;
use super::shared_tables::{HotFiles, SharedTables};
use crate::history::attribution::{Author, NumberedProcess};
use crate::history::timeline::Timeline;
use ckptfs_store::ids::Slot;
use ckptfs_store::record::Process;
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, ProcessFacts};

/// How long a thread ID is assumed to belong to the same process. The kernel allocates IDs
/// sequentially, and rarely wraps around sooner.
const BELIEVED: Duration = Duration::from_secs(1);
/// Maximum number of cached threads.
const THREADS_MAX: usize = 4096;

/// Thread ID and user.
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

/// Bits of a process ID in a word; Linux uses up to 22.
const PID_BITS: u32 = 24;

/// Packs process ID and start time into one word, for the worker that takes over. Returns 0 if they
/// do not fit.
pub fn opener_word(by: &NumberedProcess) -> u64 {
    let Process { pid, start, .. } = by.process;
    if u64::from(pid) < 1 << PID_BITS {
        u64::from(pid) | start << PID_BITS
    } else {
        0
    }
}

/// Attributes requests to processes, and tracks the processes that have files open for writing.
pub struct WriterTable {
    timeline: Arc<Timeline>,
    hot: Arc<HotFiles>,
    /// Processes of recently seen threads. A leaf.
    threads: Mutex<HashMap<Thread, (Arc<NumberedProcess>, Instant)>>,
    /// Handles open for writing, by number. A leaf.
    open: Mutex<HashMap<u64, (Slot, Arc<NumberedProcess>)>>,
}

impl WriterTable {
    pub(super) fn new(tables: &SharedTables) -> Arc<WriterTable> {
        Arc::new(WriterTable {
            timeline: Arc::clone(&tables.timeline),
            hot: Arc::clone(&tables.hot),
            threads: Mutex::default(),
            open: Mutex::default(),
        })
    }

    /// Returns the process that an [`opener_word`] identifies, with its name if it is running.
    /// Returns `None` if the word contains no process ID.
    pub fn opener(&self, word: u64) -> Option<Arc<NumberedProcess>> {
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

    /// Creates a change on behalf of the process of this thread.
    pub fn change_by(&self, thread: u32, uid: u32) -> ChangeCtx {
        ChangeCtx::by(Some(self.caller(thread, uid)))
    }

    /// Returns the process of a thread that waits for a reply.
    pub fn caller(&self, thread: u32, uid: u32) -> Arc<NumberedProcess> {
        let now = Instant::now();
        let mut threads = self.threads.lock();
        if let Some((known, at)) = threads.get(&(thread, uid))
            && now.saturating_duration_since(*at) < BELIEVED
        {
            return Arc::clone(known);
        }
        drop(threads);
        // Requests of the kernel itself have no thread, and the thread ID is not valid in another
        // PID namespace.
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

    /// Records a handle that was opened for writing.
    pub(super) fn note_writer(&self, id: u64, handle: &Handle) {
        if handle.flags.write
            && let Some(by) = &handle.by
        {
            self.open.lock().insert(id, (handle.slot, Arc::clone(by)));
        }
    }

    /// Removes a closed handle.
    pub(super) fn writer_left(&self, id: u64) {
        self.open.lock().remove(&id);
    }

    /// Returns up to `limit` pairs of a file open or mapped for writing and its process, and the
    /// number of further ones.
    pub(super) fn open_for_writing(
        &self,
        limit: usize,
    ) -> (Vec<(Slot, Arc<NumberedProcess>)>, u64) {
        let mut found: Vec<(Slot, Arc<NumberedProcess>)> = Vec::new();
        let mut more = 0;
        let mut add = |slot: Slot, by: &Arc<NumberedProcess>| {
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

    /// Attributes the writeback of mapped pages. The process is unknown, so all that have the file
    /// open for writing count.
    pub(super) fn touch_by_mappers(&self, slot: Slot) {
        let mut mappers: Vec<Arc<NumberedProcess>> = Vec::new();
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
