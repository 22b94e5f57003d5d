//! The announcer: tells whoever watches the mount (inotify(7)) what a restore has changed.
//!
//! A restore changes the backing tree, and the kernel is told to forget; that makes no events but
//! IN_DELETE_SELF (`Caches::delete_entry`). The kernel
//! makes events for operations on the mount, so after a restore a thread of ours, the **event
//! thread**, makes such operations, and the requests that come of them are answered without doing
//! anything (docs/adr/0006-announcing.md).
//!
//! **Dummy inodes.** What the event thread creates, removes and writes to is a node that exists for
//! that one operation, never the inode that was restored, so nothing that the kernel notes of it
//! (link count, size, a dead directory) can be wrong of anything. Names and attributes of dummy
//! inodes expire at once: whoever else meets one asks again, and is told the truth. Only where the
//! inode itself has changed and stayed is it touched, by a request for new times that is answered
//! with the times it has.
//!
//! **Invariants.** No request of the event thread ever changes the tree: those that are expected
//! are answered here, all others of a kind that changes something fail. An event is made only if it
//! is still true when the request comes, while the kernel holds the directory's lock: a name is
//! announced as gone only while it is gone, as come only while it is there.
//!
//! **Threads.** The *planner* finds out who watches what and prepares the steps; it uses
//! descriptors of the daemon. The *event thread* makes requests to our own mount and so has a table
//! of descriptors of its own ([`sys::leave_descriptors`]). Both end when there is nothing to tell.
//! Nobody waits for them but [`Announcer::hush`], for a moment; they wait for session threads, and
//! hold no lock meanwhile.

mod answers;
mod event_thread;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::request::{Caches, NOTE_VOICE, NodeId};
use super::serving::Serving;
use crate::live::{At, Live};
use crate::store::ids::{Name, Slot};
use crate::sys::lock::{Condvar, Mutex};
use crate::sys::{self, Kind, Ledger, Watched};

pub(super) use answers::{attr, is_dummy, opened};

/// Events of one restore that are made one by one. The queue of a watcher has room for 16,384
/// (`max_queued_events`), and one change can be three of them; directories that are left get one
/// for all that happened in them.
const STEPS_MAX: usize = 5_000;

/// How long [`Announcer::hush`] waits for the event thread to let go of the mount.
const HUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// One thing to tell.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// The directory in which it happened.
    pub(super) dir: Slot,
    /// The name to which it happened; `.` for the directory itself.
    pub(super) name: Name,
    /// The inode to which it happened, if it is still the same.
    pub(super) node: Option<Slot>,
    pub(super) what: What,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The name went, from a directory or something else; `now`: what has come in its place.
    Gone { dir: bool, now: Option<Kind> },
    /// The name came.
    Come(Kind),
    /// The file that the name leads to was written to in place.
    Written,
    /// The name leads to another inode, neither of them a directory.
    Replaced,
    /// The inode has other content.
    Content,
    /// The inode has other attributes.
    Attributes,
    /// The inode (`node`) lost its last name, and the kernel was told so but may have forgotten the
    /// name: it is given another, which nobody knows and which is taken away at once.
    Dead,
    /// Nothing: this is how the event thread makes itself known.
    Hello,
}

/// The steps of one directory.
#[derive(Debug)]
struct Told {
    dir: Slot,
    /// Its path from the root of the mount.
    path: Vec<u8>,
    steps: Vec<Step>,
}

/// Where the tree is mounted, once it is.
struct Mounted {
    serving: Arc<Serving>,
    device: u64,
    caches: Arc<dyn Caches>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Vec<Step>>,
    /// There is a planner.
    running: bool,
}

/// See the module.
pub(super) struct Announcer {
    live: Arc<Live>,
    ledger: Option<Arc<Ledger>>,
    /// The event thread of a worker that has died, as a request names its caller: what it asked for
    /// is not for us to do. 0: none.
    dead_voice: u32,
    mounted: OnceLock<Mounted>,
    /// The event thread, as its requests name their caller; or `NOBODY`, or `UNKNOWN`.
    event_thread: AtomicU32,
    /// What the event thread is about to do. A leaf.
    expected: Mutex<Option<answers::Expected>>,
    dummies: AtomicU64,
    /// A name in `.snapshots` that nobody else knows: from there a dummy inode is renamed over a
    /// name ([`What::Replaced`]), and who watches the directory of that name hears of no other.
    alias: Name,
    queue: Mutex<Queue>,
    quiet: Condvar,
    hushed: AtomicBool,
}

impl Announcer {
    pub(super) fn new(live: Arc<Live>, ledger: Option<Arc<Ledger>>) -> Announcer {
        let dead_voice = ledger.as_ref().map_or(0, |ledger| ledger.noted(NOTE_VOICE));
        Announcer {
            live,
            ledger,
            dead_voice: u32::try_from(dead_voice).unwrap_or(0),
            mounted: OnceLock::new(),
            event_thread: AtomicU32::new(answers::NOBODY),
            expected: Mutex::new(None),
            dummies: AtomicU64::new(0),
            alias: secret_name(),
            queue: Mutex::default(),
            quiet: Condvar::default(),
            hushed: AtomicBool::new(false),
        }
    }

    /// The tree is mounted. Makes no request.
    pub(super) fn mounted(&self, serving: &Arc<Serving>, caches: Arc<dyn Caches>) {
        let Some((_, device)) = serving.place.mounted_as() else {
            tracing::debug!("the mount is in no table; restores are not announced");
            return;
        };
        let serving = Arc::clone(serving);
        drop(self.mounted.set(Mounted {
            serving,
            device,
            caches,
        }));
    }

    /// Tells of what happened, in the background.
    pub(super) fn tell(self: &Arc<Self>, steps: Vec<Step>) {
        if steps.is_empty() || self.mounted.get().is_none() {
            return;
        }
        let mut queue = self.queue.lock();
        queue.jobs.push_back(steps);
        if queue.running {
            return;
        }
        self.hushed.store(false, Ordering::Relaxed);
        let announcer = Arc::clone(self);
        match std::thread::Builder::new()
            .name("announcer".into())
            .spawn(move || announcer.plan())
        {
            Ok(_) => queue.running = true,
            Err(error) => {
                tracing::warn!(%error, "a restore is not announced");
                queue.jobs.clear();
            }
        }
    }

    /// Drops what there is to tell, and waits a moment until the mount is no longer in use by the
    /// event thread.
    pub(super) fn hush(&self) {
        let mut queue = self.queue.lock();
        queue.jobs.clear();
        self.hushed.store(queue.running, Ordering::Relaxed);
        let end = Instant::now() + HUSH_TIMEOUT;
        while queue.running && Instant::now() < end {
            self.quiet
                .wait_for(&mut queue, end.saturating_duration_since(Instant::now()));
        }
    }

    /// Something is being told, or about to be.
    pub(super) fn is_at_work(&self) -> bool {
        self.queue.lock().running
    }

    fn is_hushed(&self) -> bool {
        self.hushed.load(Ordering::Relaxed)
    }

    /// The planner.
    fn plan(&self) {
        while let Some(steps) = self.next_job() {
            if let (Some(mounted), false) = (self.mounted.get(), self.is_hushed()) {
                self.announce(mounted, steps);
            }
        }
    }

    fn next_job(&self) -> Option<Vec<Step>> {
        let mut queue = self.queue.lock();
        let next = queue.jobs.pop_front();
        if next.is_none() {
            queue.running = false;
            self.quiet.notify_all();
        }
        next
    }

    fn announce(&self, mounted: &Mounted, steps: Vec<Step>) {
        let watched = match sys::watched(mounted.device) {
            Ok(watched) if watched.is_empty() => return,
            Ok(watched) => watched,
            Err(errno) => {
                tracing::debug!(%errno, "who watches is not known; a restore is not announced");
                return;
            }
        };
        let steps: Vec<Step> = steps
            .into_iter()
            .filter(|step| self.is_heard(step, &watched))
            .collect();
        tracing::debug!(steps = steps.len(), "announcing a restore");
        let todo = self.by_dir(shortened(steps));
        if todo.is_empty() {
            return;
        }
        event_thread::speak(self, mounted, &todo);
        for step in todo
            .iter()
            .flat_map(|told| &told.steps)
            .filter(|step| step.what == What::Dead)
        {
            if let Some(dead) = step.node {
                mounted.caches.delete_entry(
                    NodeId(step.dir.0),
                    NodeId(dead.0),
                    step.name.as_bytes(),
                );
            }
        }
    }

    fn is_heard(&self, step: &Step, watched: &Watched) -> bool {
        if step.what == What::Dead {
            return step.node.is_some_and(|dead| {
                watched.has(dead.0) && self.live.nodes.is_dead_and_closed(dead)
            });
        }
        let above = || {
            if step.name.as_bytes() == b"." {
                self.live.nodes.parent(step.dir)
            } else {
                None
            }
        };
        let has = |slot: Option<Slot>| slot.is_some_and(|slot| watched.has(slot.0));
        has(Some(step.dir)) || has(step.node) || has(above())
    }

    /// Steps by directory, in the order in which the directories first come; without those of
    /// directories that are gone again.
    fn by_dir(&self, steps: Vec<Step>) -> Vec<Told> {
        let mut told: Vec<Told> = Vec::new();
        let mut places: HashMap<Slot, Option<usize>> = HashMap::new();
        for step in steps {
            let place = places.entry(step.dir).or_insert_with(|| {
                let path = self.path(step.dir)?;
                told.push(Told {
                    dir: step.dir,
                    path,
                    steps: Vec::new(),
                });
                Some(told.len() - 1)
            });
            if let Some(told) = place.and_then(|place| told.get_mut(place)) {
                told.steps.push(step);
            }
        }
        told
    }

    /// Where a directory is now.
    fn path(&self, dir: Slot) -> Option<Vec<u8>> {
        let _tree = self.live.locks.tree.read();
        let mut names = Vec::new();
        let mut at = dir;
        while at != Slot::ROOT {
            let place = self.live.inodes.locate(At::from(at), Kind::Dir).ok()?;
            names.push(place.name);
            at = place.parent;
        }
        Some(
            names
                .iter()
                .rev()
                .map(Name::as_bytes)
                .collect::<Vec<_>>()
                .join(&b'/'),
        )
    }
}

/// A name that nobody else will ask for.
pub(super) fn secret_name() -> Name {
    Name::new(
        format!(
            ".ckptfs-{:016x}",
            RandomState::new().build_hasher().finish()
        )
        .as_bytes(),
    )
}

/// The first [`STEPS_MAX`], and one for each directory of the rest. Inodes that died are as many as
/// are watched, and no events of a directory.
fn shortened(steps: Vec<Step>) -> Vec<Step> {
    let (mut steps, dead): (Vec<Step>, Vec<Step>) =
        steps.into_iter().partition(|step| step.what != What::Dead);
    if steps.len() > STEPS_MAX {
        let rest = steps.split_off(STEPS_MAX);
        let mut seen = std::collections::HashSet::new();
        let dirs = rest
            .into_iter()
            .map(|step| step.dir)
            .filter(|dir| seen.insert(*dir));
        steps.extend(
            dirs.map(|dir| Step {
                dir,
                name: Name::new(b"."),
                node: Some(dir),
                what: What::Attributes,
            })
            .take(STEPS_MAX),
        );
    }
    steps.extend(dead);
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(dir: u64, name: usize) -> Step {
        Step {
            dir: Slot(dir),
            name: Name::new(name.to_string().as_bytes()),
            node: None,
            what: What::Written,
        }
    }

    #[test]
    fn what_does_not_fit_becomes_one_change_per_directory() {
        let exactly: Vec<Step> = (0..STEPS_MAX).map(|name| step(7, name)).collect();
        assert_eq!(shortened(exactly.clone()).len(), STEPS_MAX);
        let more = [exactly, vec![step(8, 0), step(9, 0), step(8, 1)]].concat();
        let short = shortened(more);
        assert_eq!(short.len(), STEPS_MAX + 2);
        let last: Vec<_> = short[STEPS_MAX..]
            .iter()
            .map(|step| (step.dir, step.name.as_bytes(), step.what))
            .collect();
        assert_eq!(
            last,
            [
                (Slot(8), b".".as_slice(), What::Attributes),
                (Slot(9), b".".as_slice(), What::Attributes)
            ]
        );
    }
}
