//! The announcer: notifies watchers of the mount (inotify(7)) of the changes made by a restore.
//!
//! A restore changes the backing tree and invalidates the kernel's caches, which generates no event
//! but IN_DELETE_SELF (`Caches::delete_entry`). The kernel generates events for operations on the
//! mount. A thread of the daemon, the **event thread**, therefore makes such operations after a
//! restore, and the resulting requests are answered without any effect
//! (docs/adr/0006-announcing.md).
//!
//! **Dummy inodes.** The event thread creates, removes and writes to nodes that exist for one
//! operation, never to the restored inode. A wrong link count, size or dead directory in the kernel
//! then concerns a dummy only. Names and attributes of dummies expire at once: another process that
//! meets one sends a new LOOKUP and gets the real inode. Only an inode that was modified in place
//! is itself touched, by a SETATTR of times whose reply has the current times.
//!
//! **Invariants.** No request of the event thread changes the tree: expected requests are answered
//! here, and all other modifying ones fail. An event is generated only if it is still true when the
//! request arrives, while the kernel holds the directory's lock: a name is announced as removed
//! only while it is missing, as created only while it exists.
//!
//! **Threads.** The *planner* finds the watched inodes and prepares the steps; it uses descriptors
//! of the daemon. The *event thread* sends requests to our own mount, so it has a descriptor table
//! of its own ([`sys::leave_descriptors`]). Both end when the queue is empty. Only
//! [`Announcer::hush`] waits for them, with a timeout; they wait for session threads while holding
//! no lock.

mod answers;
mod event_thread;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::request::{Caches, NOTE_VOICE, NodeId};
use super::serving::ServingEnv;
use crate::live::{Live, NodeRef};
pub(super) use answers::{attr, is_dummy, opened};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_sys::lock::{Condvar, Mutex};
use ckptfs_sys::{self as sys, Kind, Ledger, Watched};

/// Limit of individual events per restore. A watcher's queue has room for 16,384
/// (`max_queued_events`), and one change can generate three. Each remaining directory gets one
/// event for all of its changes.
const STEPS_MAX: usize = 5_000;

/// Time that [`Announcer::hush`] waits for the event thread to release the mount.
const HUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// One change to announce.
#[derive(Clone, Debug)]
pub(super) struct Announcement {
    /// The directory of the change.
    pub(super) dir: Slot,
    /// The changed name; `.` for the directory itself.
    pub(super) name: Name,
    /// The changed inode, if it is still the same.
    pub(super) node: Option<Slot>,
    pub(super) what: EventKind,
}

/// The kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    /// The name of a directory or other inode was removed; `now`: the kind of its replacement.
    Gone { dir: bool, now: Option<Kind> },
    /// The name was created.
    Come(Kind),
    /// The file was written in place.
    Written,
    /// The name leads to another inode; no directory is involved.
    Replaced,
    /// The inode's content changed.
    Content,
    /// The inode's attributes changed.
    Attributes,
    /// The inode (`node`) lost its last name. The kernel was notified, but may have evicted the
    /// dentry: the inode gets a secret name, which is removed at once.
    Dead,
    /// No change: the event thread identifies itself.
    Hello,
}

/// The steps of one directory.
#[derive(Debug)]
struct DirAnnouncements {
    dir: Slot,
    /// Path relative to the root of the mount.
    path: Vec<u8>,
    steps: Vec<Announcement>,
}

/// The mount, once it exists.
struct Mounted {
    serving: Arc<ServingEnv>,
    device: u64,
    caches: Arc<dyn Caches>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Vec<Announcement>>,
    /// A planner thread runs.
    running: bool,
}

/// See the module.
pub(super) struct Announcer {
    live: Arc<Live>,
    ledger: Option<Arc<Ledger>>,
    /// Pid of the event thread of a dead worker, as in its requests, which must not be executed. 0:
    /// none.
    dead_voice: u32,
    mounted: OnceLock<Mounted>,
    /// Pid of the event thread as in its requests, or `NOBODY`, or `UNKNOWN`.
    event_thread: AtomicU32,
    /// The next operation of the event thread. A leaf lock.
    expected: Mutex<Option<answers::Expected>>,
    dummies: AtomicU64,
    /// A secret name in `.snapshots`, from which a dummy inode is renamed over a name
    /// ([`EventKind::Replaced`]). Watchers of that name's directory get no other event.
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

    /// Records the mount; sends no request to it.
    pub(super) fn mounted(&self, serving: &Arc<ServingEnv>, caches: Arc<dyn Caches>) {
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

    /// Announces changes in the background.
    pub(super) fn tell(self: &Arc<Self>, steps: Vec<Announcement>) {
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

    /// Discards the queue, and waits with a timeout until the event thread no longer uses the
    /// mount.
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

    /// Returns whether an announcement runs or is queued.
    pub(super) fn is_at_work(&self) -> bool {
        self.queue.lock().running
    }

    fn is_hushed(&self) -> bool {
        self.hushed.load(Ordering::Relaxed)
    }

    /// Runs the planner.
    fn plan(&self) {
        while let Some(steps) = self.next_job() {
            if let (Some(mounted), false) = (self.mounted.get(), self.is_hushed()) {
                self.announce(mounted, steps);
            }
        }
    }

    fn next_job(&self) -> Option<Vec<Announcement>> {
        let mut queue = self.queue.lock();
        let next = queue.jobs.pop_front();
        if next.is_none() {
            queue.running = false;
            self.quiet.notify_all();
        }
        next
    }

    fn announce(&self, mounted: &Mounted, steps: Vec<Announcement>) {
        let watched = match sys::watched(mounted.device) {
            Ok(watched) if watched.is_empty() => return,
            Ok(watched) => watched,
            Err(errno) => {
                tracing::debug!(%errno, "who watches is not known; a restore is not announced");
                return;
            }
        };
        let steps: Vec<Announcement> = steps
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
            .filter(|step| step.what == EventKind::Dead)
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

    fn is_heard(&self, step: &Announcement, watched: &Watched) -> bool {
        if step.what == EventKind::Dead {
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

    /// Groups the steps by directory, in order of first occurrence, without removed directories.
    fn by_dir(&self, steps: Vec<Announcement>) -> Vec<DirAnnouncements> {
        let mut told: Vec<DirAnnouncements> = Vec::new();
        let mut places: HashMap<Slot, Option<usize>> = HashMap::new();
        for step in steps {
            let place = places.entry(step.dir).or_insert_with(|| {
                let path = self.path(step.dir)?;
                told.push(DirAnnouncements {
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

    /// Returns the current path of a directory.
    fn path(&self, dir: Slot) -> Option<Vec<u8>> {
        let _tree = self.live.locks.tree.read();
        let mut names = Vec::new();
        let mut at = dir;
        while at != Slot::ROOT {
            let place = self.live.inodes.locate(NodeRef::from(at), Kind::Dir).ok()?;
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

/// Returns a name that no other process looks up.
pub(super) fn secret_name() -> Name {
    Name::new(
        format!(
            ".ckptfs-{:016x}",
            RandomState::new().build_hasher().finish()
        )
        .as_bytes(),
    )
}

/// Returns the first [`STEPS_MAX`] steps, and one for each directory of the rest. Dead inodes are
/// exempt: only watched ones remain, and they generate no directory event.
fn shortened(steps: Vec<Announcement>) -> Vec<Announcement> {
    let (mut steps, dead): (Vec<Announcement>, Vec<Announcement>) = steps
        .into_iter()
        .partition(|step| step.what != EventKind::Dead);
    if steps.len() > STEPS_MAX {
        let rest = steps.split_off(STEPS_MAX);
        let mut seen = std::collections::HashSet::new();
        let dirs = rest
            .into_iter()
            .map(|step| step.dir)
            .filter(|dir| seen.insert(*dir));
        steps.extend(
            dirs.map(|dir| Announcement {
                dir,
                name: Name::new(b"."),
                node: Some(dir),
                what: EventKind::Attributes,
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

    fn step(dir: u64, name: usize) -> Announcement {
        Announcement {
            dir: Slot(dir),
            name: Name::new(name.to_string().as_bytes()),
            node: None,
            what: EventKind::Written,
        }
    }

    #[test]
    fn what_does_not_fit_becomes_one_change_per_directory() {
        let exactly: Vec<Announcement> = (0..STEPS_MAX).map(|name| step(7, name)).collect();
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
                (Slot(8), b".".as_slice(), EventKind::Attributes),
                (Slot(9), b".".as_slice(), EventKind::Attributes)
            ]
        );
    }
}
