//! A tree whose content is fetched from a repository when it is opened: the base of a tree mounted
//! from a remote (docs/adr/0037-a-remote-as-base.md).
//!
//! Names and attributes were read when the tree was created ([`SnapshotTree`]) and never change. A
//! separate thread fetches each file as a whole into the store ([`ContentCache`]), once for any
//! number of openers. They wait without locks as long as data arrives. After some seconds without
//! data the open fails with EIO, and the process that reads the remote (`reader`) is replaced. The
//! remote then counts as away for a while, and files that are not local fail at once.
//!
//! When no other file is being fetched, the remaining files are, in the order in which they were
//! packed.

mod cache;
mod protocol;
pub mod reader;
pub mod record;
mod source;
mod tree;

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use self::cache::{ContentCache, LocalFiles, Verification};
use self::record::OriginRecord;
pub use self::source::Starter;
use self::source::{FetchError, Source, holds};
use self::tree::SnapshotTree;
use ckptfs_api::OriginInfo;
use ckptfs_core::engine::origin::RemoteLayer;
use ckptfs_core::history::present::{LiveTree, Trail};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{AttrState, Child, Place};
use ckptfs_sys::lock::{Condvar, Mutex};
use ckptfs_sys::{Errno, SysResult, Time, Xattrs, host, wait};

/// Time without data after which waiting for content fails.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time until a remote that does not answer is contacted again; it doubles up to the maximum.
const AWAY: Duration = Duration::from_secs(2);
const AWAY_MAX: Duration = Duration::from_secs(16);
/// Limit of concurrent fetches, without abandoned ones.
const AT_ONCE: usize = 16;
/// Limit of abandoned fetches.
const GIVEN_UP_MAX: usize = 32;
/// Pause of background fetches after a request.
const IDLE: Duration = Duration::from_millis(50);

/// Returns [`PATIENCE`], or its value in tests.
fn patience() -> Duration {
    match host::left_out("patience") {
        true => Duration::from_secs(2),
        false => PATIENCE,
    }
}

/// Options for fetching the content of a tree.
#[derive(Clone, Copy, Debug, Default)]
pub struct FetchOptions {
    /// Limit of bytes stored locally.
    pub limit: Option<u64>,
    /// Fetch files only when they are opened.
    pub on_open_only: bool,
}

/// A file being fetched.
#[derive(Default)]
struct Fetch {
    progress: AtomicU64,
    /// The result.
    ended: OnceLock<SysResult<()>>,
}

/// A remote that does not answer.
struct AwayState {
    why: String,
    until: Instant,
    pause: Duration,
}

#[derive(Default)]
struct FetchState {
    kept: LocalFiles,
    fetches: HashMap<Slot, Arc<Fetch>>,
    /// Threads of abandoned fetches.
    given_up: usize,
    away: Option<AwayState>,
    /// Files that an available remote cannot deliver, and the reason.
    damaged: HashMap<Slot, String>,
    /// The time of the last request for a file.
    asked: Option<Instant>,
    attempts: u64,
    /// Completed fetches, each counted with more than its number of blobs.
    ends: u64,
    ended: bool,
}

impl FetchState {
    /// Returns a number that grows with all received data.
    fn came(&self) -> u64 {
        let fetches = self.fetches.values();
        let blobs = fetches.map(|fetch| fetch.progress.load(Ordering::Relaxed));
        blobs.fold(self.ends, u64::saturating_add)
    }
}

/// The base of a tree mounted from a remote.
pub struct RemoteBase(Arc<Inner>);

struct Inner {
    tree: SnapshotTree,
    files: u64,
    bytes: u64,
    cache: ContentCache,
    source: Source,
    record: OriginRecord,
    wishes: FetchOptions,
    /// Never held during I/O to the disk or the repository.
    state: Mutex<FetchState>,
    changed: Condvar,
}

impl RemoteBase {
    /// Opens the base with the state in the store.
    ///
    /// # Errors
    /// `bad-store`: it is damaged; `io`.
    pub fn open(
        stored: record::StoredOrigin,
        starter: Starter,
        wishes: FetchOptions,
    ) -> ckptfs_api::VerbResult<RemoteBase> {
        let (record, tree, cache) = stored.take()?;
        let size = |slot| tree.content(slot).ok().map(|(size, _)| size);
        let kept = cache.kept(size).map_err(record::unusable)?;
        let (files, bytes) = tree.files().fold((0, 0_u64), |(files, bytes), (_, size)| {
            (files + 1, bytes.saturating_add(size))
        });
        let inner = Arc::new(Inner {
            files,
            bytes,
            cache,
            source: Source::new(starter, patience()),
            record,
            wishes,
            state: Mutex::new(FetchState {
                kept,
                ..FetchState::default()
            }),
            changed: Condvar::default(),
            tree,
        });
        // The limit may be lower than before.
        let evicted = inner.evict(&mut inner.state.lock(), Slot::ROOT);
        evicted
            .into_iter()
            .for_each(|slot| inner.cache.remove(slot));
        Ok(RemoteBase(inner))
    }
}

impl LiveTree for RemoteBase {
    fn child(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<Child>> {
        self.0.tree.child(dir, name)
    }

    fn list(&self, dir: &Arc<Trail>) -> SysResult<Vec<(Name, Child)>> {
        self.0.tree.list(dir)
    }

    fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState> {
        self.0.tree.attr(node.slot)
    }

    fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs> {
        self.0.tree.xattrs(node.slot)
    }

    fn open(&self, node: &Arc<Trail>) -> SysResult<File> {
        self.0.tree.content(node.slot)?;
        match self.0.at_hand(node.slot) {
            Some(file) => Ok(file),
            None => wait::aside(|| self.0.open_patiently(node.slot)),
        }
    }

    fn ctime_of(&self, node: &Arc<Trail>, _: &File) -> SysResult<Time> {
        Ok(self.0.tree.attr(node.slot)?.stat.ctime)
    }

    fn place(&self, slot: Slot) -> Option<Place> {
        self.0.tree.place(slot)
    }

    fn renames(&self) -> Option<u64> {
        Some(0)
    }
}

impl RemoteLayer for RemoteBase {
    fn info(&self) -> OriginInfo {
        self.0.info()
    }

    fn begin(&self) {
        if self.0.wishes.on_open_only {
            return;
        }
        let inner = Arc::downgrade(&self.0);
        let started = std::thread::Builder::new()
            .name("fetch-rest".into())
            .spawn(move || fetch_rest(&inner));
        if let Err(error) = started {
            tracing::warn!(%error, "what is not opened is not fetched");
        }
    }

    fn end(&self) {
        self.0.state.lock().ended = true;
        self.0.changed.notify_all();
        self.0.source.end();
    }
}

impl Inner {
    /// Opens a file that is local and verified, without waiting.
    fn at_hand(&self, slot: Slot) -> Option<File> {
        let found = self.state.lock().kept.used(slot)?;
        let (size, _) = self.tree.content(slot).ok()?;
        (found == Verification::Proven).then(|| self.cache.open(slot, size))?
    }

    fn open_patiently(self: &Arc<Inner>, slot: Slot) -> SysResult<File> {
        let (size, blobs) = self.tree.content(slot)?;
        self.state.lock().asked = Some(Instant::now());
        // It may be evicted in between.
        for _ in 0..3 {
            let found = self.state.lock().kept.used(slot);
            if let Some(found) = found {
                let file = self.cache.open(slot, size);
                let is_whole = |file: &File| {
                    found == Verification::Proven
                        || blobs.len() != 1
                        || holds(file, size, &blobs[0])
                };
                if let Some(file) = file.filter(is_whole) {
                    self.state.lock().kept.put(slot, Verification::Proven, size);
                    return Ok(file);
                }
                tracing::warn!(
                    slot = slot.0,
                    "what was fetched of a file is damaged or gone: it is fetched again"
                );
                self.state.lock().kept.remove(slot);
                self.cache.remove(slot);
            }
            let fetched = self.fetch(slot);
            self.state.lock().asked = Some(Instant::now());
            fetched?;
        }
        Err(Errno::EIO)
    }

    /// Fetches a file, which is local on return.
    fn fetch(self: &Arc<Inner>, slot: Slot) -> SysResult<()> {
        let mut state = self.state.lock();
        let (mut came, mut since) = (0, Instant::now());
        let fetch = loop {
            let now = state.came();
            if now != came {
                (came, since) = (now, Instant::now());
            }
            if state.ended || since.elapsed() > patience() {
                return Err(Errno::EIO);
            }
            if state.kept.has(slot) {
                return Ok(());
            }
            if let Some(fetch) = state.fetches.get(&slot) {
                break Arc::clone(fetch);
            }
            let is_away = |away: &AwayState| Instant::now() < away.until;
            if state.away.as_ref().is_some_and(is_away) || state.given_up >= GIVEN_UP_MAX {
                return Err(Errno::EIO);
            }
            if state.fetches.len() < AT_ONCE {
                break self.start(&mut state, slot)?;
            }
            self.changed.wait_for(&mut state, Duration::from_secs(1));
        };
        let (mut came, mut since) = (0, Instant::now());
        loop {
            if let Some(ended) = fetch.ended.get() {
                return *ended;
            }
            if state.ended {
                return Err(Errno::EIO);
            }
            let now = fetch.progress.load(Ordering::Relaxed);
            if now != came {
                (came, since) = (now, Instant::now());
            }
            let Some(left) = patience().checked_sub(since.elapsed()) else {
                self.give_up(&mut state, slot, &fetch);
                drop(state);
                self.source.forget();
                return Err(Errno::EIO);
            };
            let step = left.min(Duration::from_secs(1)) + Duration::from_millis(1);
            self.changed.wait_for(&mut state, step);
        }
    }

    fn start(self: &Arc<Inner>, state: &mut FetchState, slot: Slot) -> SysResult<Arc<Fetch>> {
        let fetch = Arc::new(Fetch::default());
        state.attempts += 1;
        let (inner, doing, attempt) = (Arc::clone(self), Arc::clone(&fetch), state.attempts);
        let work = move || {
            let done = inner.fetch_now(slot, attempt, &doing);
            inner.note_end(slot, &doing, done);
        };
        let started = std::thread::Builder::new().name("fetch".into()).spawn(work);
        started.map_err(|_| Errno::EAGAIN)?;
        state.fetches.insert(slot, Arc::clone(&fetch));
        Ok(fetch)
    }

    fn fetch_now(&self, slot: Slot, attempt: u64, fetch: &Fetch) -> Result<(), FetchError> {
        let (size, blobs) = self.tree.content(slot)?;
        let (file, name) = self.cache.begin(slot, attempt, size)?;
        let fetched = self
            .source
            .fetch(blobs, size, &file, &fetch.progress)
            .and_then(|()| Ok(self.cache.finish(&file, &name, slot, blobs.len() > 1)?));
        if fetched.is_err() {
            self.cache.drop_new(&name);
        }
        fetched
    }

    fn note_end(&self, slot: Slot, fetch: &Arc<Fetch>, done: Result<(), FetchError>) {
        let size = self.tree.content(slot).map_or(0, |(size, _)| size);
        let mut state = self.state.lock();
        let is_it = |own: &Arc<Fetch>| Arc::ptr_eq(own, fetch);
        state.ends = state.ends.saturating_add(1 << 32);
        let was_given_up = !state.fetches.get(&slot).is_some_and(is_it);
        match was_given_up {
            false => drop(state.fetches.remove(&slot)),
            true => state.given_up = state.given_up.saturating_sub(1),
        }
        let ended = match done {
            // An abandoned fetch does not show the current state.
            Err(_) if was_given_up => Err(Errno::EIO),
            Ok(()) => {
                state.kept.put(slot, Verification::Proven, size);
                state.damaged.remove(&slot);
                if state.away.take().is_some() {
                    tracing::info!(remote = self.record.remote, "the remote answers again");
                }
                Ok(())
            }
            // The unmount has killed the reader.
            Err(FetchError::Away(_)) if state.ended => Err(Errno::EIO),
            Err(FetchError::Away(error)) => {
                self.note_away(&mut state, error.message);
                Err(Errno::EIO)
            }
            Err(FetchError::Damaged(why)) => {
                if state.damaged.insert(slot, why.clone()).is_none() {
                    let path = String::from_utf8_lossy(&self.tree.path(slot)).into_owned();
                    tracing::error!(path = ?path, why = ?why, "a file cannot be had of the remote");
                }
                state.away = None;
                Err(Errno::EIO)
            }
            Err(FetchError::Here(errno)) => Err(errno),
        };
        let _ = fetch.ended.set(ended);
        let evicted = self.evict(&mut state, slot);
        drop(state);
        self.changed.notify_all();
        evicted.into_iter().for_each(|slot| self.cache.remove(slot));
    }

    fn note_away(&self, state: &mut FetchState, why: String) {
        let pause = state
            .away
            .as_ref()
            .map_or(AWAY, |away| (away.pause * 2).min(AWAY_MAX));
        // Keeps the log short when a remote is away for days.
        if state.away.as_ref().is_none_or(|away| away.why != why) {
            tracing::warn!(remote = self.record.remote, why = ?why, "the remote does not answer");
        }
        let until = Instant::now() + pause;
        state.away = Some(AwayState { why, until, pause });
    }

    /// Abandons a fetch without data: the next request starts a new one.
    fn give_up(&self, state: &mut FetchState, slot: Slot, fetch: &Arc<Fetch>) {
        let is_it = |known: &Arc<Fetch>| Arc::ptr_eq(known, fetch);
        if state.fetches.get(&slot).is_some_and(is_it) {
            state.fetches.remove(&slot);
            state.given_up += 1;
            let seconds = patience().as_secs();
            self.note_away(state, format!("nothing has come for {seconds} s"));
            self.changed.notify_all();
        }
    }

    /// Returns the files to remove to make space for a fetched one.
    fn evict(&self, state: &mut FetchState, but: Slot) -> Vec<Slot> {
        let mut evicted = Vec::new();
        while self
            .wishes
            .limit
            .is_some_and(|limit| state.kept.bytes > limit)
            && let Some(oldest) = state.kept.oldest().filter(|oldest| *oldest != but)
        {
            state.kept.remove(oldest);
            evicted.push(oldest);
        }
        evicted
    }

    /// Returns the time that a background fetch has to wait; `None`: it would exceed the limit, or
    /// the mount ends.
    fn waits(&self, slot: Slot, size: u64) -> Option<Duration> {
        let (state, now) = (self.state.lock(), Instant::now());
        let after = state.kept.bytes.saturating_add(size);
        let is_full = self.wishes.limit.is_some_and(|limit| after > limit);
        if state.ended || is_full && !state.kept.has(slot) {
            return None;
        }
        let away = state.away.as_ref().map_or(now, |away| away.until);
        let asked = state.asked.map_or(now, |asked| asked + IDLE);
        Some(away.max(asked).saturating_duration_since(now))
    }

    fn info(&self) -> OriginInfo {
        let state = self.state.lock();
        let remote = &self.record.remote;
        let escaped = |text: &str| text.escape_debug().to_string();
        let trouble = match (&state.away, state.damaged.iter().next()) {
            (Some(away), _) => Some(format!(
                "the remote {remote} does not answer: what is not here cannot be read ({})",
                escaped(&away.why)
            )),
            (None, Some((slot, why))) => Some(format!(
                "{} of the remote {remote} cannot be read, {} the first: {}",
                ckptfs_api::display::count(state.damaged.len(), "file"),
                escaped(&String::from_utf8_lossy(&self.tree.path(*slot))),
                escaped(why)
            )),
            (None, None) => None,
        };
        OriginInfo {
            remote: remote.clone(),
            snapshot: self.record.snapshot.clone(),
            store: self.record.store.clone(),
            checkpoint: self.record.checkpoint,
            files: self.files,
            bytes: self.bytes,
            files_here: state.kept.files(),
            bytes_here: state.kept.bytes,
            limit: self.wishes.limit,
            on_open_only: self.wishes.on_open_only,
            trouble,
        }
    }
}

/// Fetches the remaining files in the background, until all are local or the limit is reached.
fn fetch_rest(inner: &Weak<Inner>) {
    let Some(files) = inner.upgrade().map(|inner| {
        // A file larger than the limit never fits.
        let has_room = |size| inner.wishes.limit.is_none_or(|limit| size <= limit);
        let files = inner.tree.files().filter(|(_, size)| has_room(*size));
        files.collect::<Vec<_>>()
    }) else {
        return;
    };
    for (slot, size) in files {
        loop {
            let Some(inner) = inner.upgrade() else { return };
            match inner.waits(slot, size) {
                None => return,
                Some(wait) if !wait.is_zero() => {
                    let mut state = inner.state.lock();
                    inner
                        .changed
                        .wait_for(&mut state, wait.min(Duration::from_secs(1)));
                }
                // Damaged files are skipped; while the remote is away they are retried.
                Some(_) if inner.fetch(slot).is_ok() || inner.state.lock().away.is_none() => break,
                Some(_) => {}
            }
        }
    }
    // A later fetch of an evicted or damaged file starts a new reader.
    if let Some(inner) = inner.upgrade() {
        inner.source.forget();
    }
}
