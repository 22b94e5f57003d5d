//! The one facade over the live tree and its history.
//!
//! It has two faces, both in plain types: [`request::Service`], what the kernel asks, and [`verb::Verb`], what people ask. Requests go to the live
//! tree, to a view of the past, or to `.snapshots` itself, by the node's number.

mod absence;
mod announce;
pub mod api;
mod attribution;
mod audit;
pub mod auto;
pub mod check;
mod checkpoint;
mod compare;
mod control;
mod counted;
pub mod counts;
pub mod dedup;
pub mod du;
mod durable;
mod error;
pub mod export;
mod files;
mod find;
pub mod gc;
pub mod hooks;
pub mod import;
mod keeper;
mod listing;
pub mod offline;
mod past;
mod pin;
mod quiesce;
mod quota;
pub mod request;
mod restore;
pub mod retention;
mod service;
pub mod settings;
mod space;
mod status;
mod syncer;
pub mod takeover;
pub mod tiers;
mod tripwire;
mod undo;
pub mod unmount;
mod unserved;
pub mod verb;
mod verbs;
pub mod word;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use api::{VerbError, VerbResult};
use durable::sync_checkpoints;
use request::Caches;

use crate::history::timeline::{Aftermath, Timeline};
use crate::live::Live;
pub use crate::live::{HashMode, Keep};
use crate::store::ids::CheckpointId;
use crate::store::layout::STAGING_NAME;
use crate::store::record::{Comparing, Record};
use crate::store::{Opened, Store, StoreError};
use crate::sys::lock::{Mutex, Rank};
use crate::sys::{self, Errno};

/// Descriptors that are not for open files. Directories and segments have a few hundred of them where there are few, see `live::dirs`.
const DESCRIPTORS_RESERVED: u64 = 512;

/// Who does reads and writes of live files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoChoice {
    /// The kernel where it can (passthrough), else the daemon.
    #[default]
    Auto,
    /// The kernel; mounting fails where it cannot.
    Passthrough,
    /// The daemon.
    Daemon,
}

/// How to serve a tree.
#[derive(Debug)]
pub struct Config {
    /// The backing directory, opened before the mount covers it.
    pub root: OwnedFd,
    /// Its path, for people.
    pub backing: PathBuf,
    /// Where it will be mounted, for people.
    pub mount: PathBuf,
    /// Who does reads and writes.
    pub io: IoChoice,
    /// Where the kernel does them, it does them for every user, and not for those alone whom the tree belongs to ([`Live::passes_through`]).
    pub io_for_all: bool,
    /// Writes pass the daemon and wait while a checkpoint is made (`--writes=daemon`), so that every cut is exact.
    pub strict_writes: bool,
    /// `.snapshots` is listed in the root directory (`--snapdir=visible`).
    pub snapdir_visible: bool,
    /// Who takes over if this process dies, and from whom it takes over itself; `None`: nobody.
    pub succession: Option<takeover::Succession>,
    /// What is done ahead of need, when the machine is idle (`--seal`).
    pub seal: HashMode,
    /// Permission bits of `.snapshots`; those of the root directory if not given.
    pub snapdir_mode: Option<u32>,
    /// Checkpoints that the daemon makes by itself.
    pub auto: auto::AutoConfig,
    /// Commands around checkpoints and restores.
    pub hooks: Option<hooks::HooksConfig>,
}

impl Config {
    /// For a directory that is not mounted, or only to be looked at: whoever opens it does all I/O, and nothing is done by itself.
    pub fn bare(root: OwnedFd, backing: PathBuf) -> Config {
        Config {
            root,
            mount: backing.clone(),
            backing,
            io: IoChoice::Daemon,
            io_for_all: false,
            strict_writes: false,
            snapdir_visible: false,
            succession: None,
            seal: HashMode::Off,
            snapdir_mode: None,
            auto: auto::AutoConfig::default(),
            hooks: None,
        }
    }
}

/// What somebody should know who mounts after that.
const TORN: &str = "the journal's end was torn, as a power cut tears it; what had not been synced may be lost";

/// A served tree. See the module.
pub struct Engine {
    live: Arc<Live>,
    config: Served,
    store_dir: OwnedFd,
    caches: OnceLock<Arc<dyn Caches>>,
    past: past::Past,
    kept_listings: listing::Kept,
    /// The kernel may have cached a listing of `.snapshots`.
    snapdir_read: AtomicBool,
    links: control::Links,
    announcer: Arc<announce::Announcer>,
    succession: Option<takeover::Succession>,
    /// What the kernel must forget because a restore was finished before this worker served anything.
    stale: Mutex<Option<restore::Stale>>,
    /// Held while a checkpoint or a restore is made: one at a time.
    checkpointing: Mutex<()>,
    /// Held by the one request of the kernel that makes a checkpoint: a second would take the last thread that can serve what the first waits for.
    asked_by_kernel: Mutex<quota::Pace>,
    /// What was changed while nobody served the tree, by checkpoint, as far as it was asked for. A leaf.
    unserved: Mutex<HashMap<CheckpointId, Arc<Vec<api::Change>>>>,
    counted: counted::Counted,
    checks: check::Checks,
    gc_runs: gc::Runs<gc::Run>,
    keeper: Arc<keeper::Keeper>,
    du_runs: gc::Runs<Box<space::Measuring>>,
    dedup_runs: gc::Runs<Box<dedup::Run>>,
    /// By how much the history was larger than it may be, and could not be made smaller, when that was looked at last.
    over_bytes: std::sync::atomic::AtomicU64,
    exports: export::Exports,
    /// Descriptors that open files may have.
    descriptors_max: usize,
    started: String,
    counts: Arc<counts::RequestCounts>,
    syncer: Arc<syncer::Syncer>,
    warnings: Mutex<Vec<String>>,
    /// Somebody may have something of the directory below the mount, as far as was told.
    had_below: AtomicBool,
    auto: auto::Auto,
    /// What was changed while nothing was mounted, before this mount.
    absence: Mutex<Option<api::AbsenceInfo>>,
    /// What was asked to be kept when this daemon ends.
    keep: Mutex<Option<Keep>>,
    tripwire: Option<tripwire::Tripwire>,
    hooks: Option<hooks::Hooks>,
    /// The store's configuration file.
    store_file: settings::StoreFile,
}

/// What [`Config`] said, for as long as the tree is served.
struct Served {
    backing: PathBuf,
    mount: PathBuf,
    filesystem: &'static str,
    wants_passthrough: bool,
    io_for_all: bool,
    strict_writes: bool,
    snapdir_visible: bool,
    seal: HashMode,
    snapdir_mode: Option<u32>,
    auto: auto::AutoConfig,
}

impl Engine {
    /// Opens (or makes) the store of a directory, finishes what a killed daemon left, and is ready to serve. The cost depends on what changed since
    /// the last checkpoint, not on the tree.
    ///
    /// # Errors
    /// In words for a person: the store is in use, of a newer format, damaged; the filesystem is full or read-only; passthrough cannot be had.
    pub fn open(config: Config) -> VerbResult<Arc<Engine>> {
        let engine = Engine::open_unmounted(config)?;
        engine.start_threads().map_err(|error| error::failed("the store cannot be used", error.into()))?;
        Ok(engine)
    }

    /// As [`Engine::open`], to change the history and serve nothing: nothing is done unasked.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open_unmounted(config: Config) -> VerbResult<Arc<Engine>> {
        let (store, opened) = Store::open(&config.root, true).map_err(|error| store_error(&error, &config.backing))?;
        let (store, root) = (Arc::new(store), config.root.try_clone());
        let engine = Engine::open_store(config, &store, opened);
        if let (Err(_), Ok(root)) = (&engine, root) {
            store.layout.unmake(&root);
        }
        engine
    }

    /// What was mounted for the first time could not be: its store goes, for nothing is in it.
    pub fn unmake(&self) {
        self.timeline().store().layout.unmake(self.live.root());
    }

    fn open_store(mut config: Config, store: &Arc<Store>, opened: Opened) -> VerbResult<Arc<Engine>> {
        let succession = config.succession.take();
        let failed = error::unusable;
        let (timeline, aftermath) = Timeline::open(Arc::clone(store)).map_err(|error| store_error(&error, &config.backing))?;
        let timeline = Arc::new(timeline);
        let (reflink, exact_times) = (probe_reflink(store).map_err(failed)?, probe_times(store).map_err(failed)?);
        let served = Served::new(&config, reflink, exact_times)?;
        let staging = staging(store).map_err(failed)?;
        let live = Arc::new(Live::new(Arc::new(config.root), staging, Arc::clone(&timeline), reflink).map_err(failed)?);
        let warnings = if opened.torn { vec![TORN.to_owned()] } else { Vec::new() };
        let store_dir = store.layout.dir().try_clone_to_owned().map_err(|error| failed(error.into()))?;
        let announcer = Arc::new(announce::Announcer::new(Arc::clone(&live), succession.as_ref().map(|after| Arc::clone(&after.ledger))));
        let engine = Arc::new(Engine {
            live,
            config: served,
            store_dir,
            caches: OnceLock::new(),
            past: past::Past::default(),
            kept_listings: listing::Kept::default(),
            snapdir_read: AtomicBool::new(false),
            links: control::Links::default(),
            announcer,
            succession,
            stale: Mutex::default(),
            checkpointing: Mutex::ranked(Rank::Checkpointing, ()),
            asked_by_kernel: Mutex::ranked(Rank::Asked, quota::Pace::default()),
            unserved: Mutex::default(),
            counted: counted::Counted::default(),
            checks: check::Checks::default(),
            gc_runs: gc::Runs::default(),
            keeper: Arc::default(),
            du_runs: gc::Runs::default(),
            dedup_runs: gc::Runs::default(),
            over_bytes: std::sync::atomic::AtomicU64::new(0),
            exports: export::Exports::default(),
            descriptors_max: descriptors_max(sys::nofile()),
            started: jiff::Timestamp::now().to_string(),
            counts: Arc::default(),
            syncer: Arc::default(),
            warnings: Mutex::new(warnings),
            had_below: AtomicBool::new(true),
            auto: auto::Auto::default(),
            absence: Mutex::default(),
            keep: Mutex::default(),
            tripwire: config.auto.tripwire.map(tripwire::Tripwire::new),
            hooks: config.hooks.map(hooks::Hooks::new),
            store_file: settings::StoreFile::default(),
        });
        engine.hand_over();
        engine.take_up(&aftermath).map_err(failed)?;
        Ok(engine)
    }

    /// Finishes what a daemon that was killed has left, and takes note of what was changed while there was none.
    fn take_up(&self, aftermath: &Aftermath) -> crate::sys::SysResult<()> {
        if aftermath.unclean {
            self.live.verify_moved(&aftermath.moved)?;
        }
        let comparison = self.comparison(aftermath);
        self.begin_service(aftermath, comparison.as_ref().map(|(_, comparing)| *comparing))?;
        self.name_incomplete()?;
        if aftermath.unclean {
            self.live.recover(aftermath)?;
        }
        let held = self.timeline().store().layout.noted_held() == Some(self.timeline().epoch());
        let watch = || if aftermath.unclean || held { self.live.watch_mapped(aftermath.unclean && self.took_over()) } else { Ok(()) };
        match comparison {
            Some((baseline, comparing)) => self.take_in_absence(&baseline, comparing, held, watch)?,
            None => {
                watch()?;
                self.record_unseen(Ok(()))?;
                self.keep_untold(aftermath, held);
            }
        }
        match restore::Restorer::new(self).finish_restore(aftermath) {
            Ok(stale) => *self.stale.lock() = stale,
            Err(errno) => {
                tracing::error!(%errno, "a restore that was interrupted cannot be finished; its guard checkpoint has what was there before");
            }
        }
        self.adopt_tree()
    }

    /// Starts the threads that see to the store while it is served.
    fn start_threads(self: &Arc<Engine>) -> std::io::Result<()> {
        self.timeline().start_indexer()?;
        self.syncer.start(&self.live)?;
        self.live.start_hasher(self.config.seal)?;
        auto::Auto::start(self)?;
        self.keeper.start(self)
    }

    /// Tells the engine that it is mounted, and how to make the kernel forget. Before this it cannot.
    pub fn set_caches(&self, caches: Arc<dyn Caches>) {
        self.announcer.mounted(&self.config.mount, Arc::clone(&caches));
        let _ = self.caches.set(caches);
        let stale = self.stale.lock().take();
        if let (Some(stale), true) = (stale, self.took_over()) {
            restore::Restorer::new(self).forget_stale(&stale);
        }
    }

    /// Lets go of the mount, which is about to be unmounted: what is being announced to watchers is cut short.
    pub fn hush(&self) {
        self.announcer.hush();
    }

    /// How much content is to be kept when this daemon ends; `None`: as was said before, or as the settings say.
    pub fn keep_at_end(&self, keep: Option<Keep>) {
        if keep.is_some() {
            *self.keep.lock() = keep;
        }
    }

    /// Whether the session should ask the kernel for passthrough.
    pub fn wants_passthrough(&self) -> bool {
        self.config.wants_passthrough
    }

    /// Does something in the store that a mount needs, with what room there is in reserve.
    ///
    /// # Errors
    /// Those of the call.
    pub fn with_last_room<T>(&self, mut call: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
        let errno = |error: &std::io::Error| Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
        let store = self.timeline().store();
        let done = store.reserve.with_last_room(&mut call, errno);
        match done {
            Err(error) if errno(&error).is_no_room() && store.index.give_up() => call(),
            done => done,
        }
    }

    /// Something that somebody should know.
    pub fn warn(&self, warning: String) {
        tracing::warn!(warning);
        self.warnings.lock().push(warning);
    }

    /// There is so little free space that anything may fail for want of it.
    pub fn is_full(&self) -> bool {
        self.timeline().store().reserve.is_full()
    }

    /// The store's directory.
    pub fn store_fd(&self) -> BorrowedFd<'_> {
        self.store_dir.as_fd()
    }

    /// What the store's configuration file says now.
    pub fn settings(&self) -> settings::Settings {
        self.store_file.look(&self.store_dir).0
    }

    /// The backing directory.
    pub fn root_fd(&self) -> BorrowedFd<'_> {
        self.live.root().as_fd()
    }

    /// Ends in an orderly way: nothing is asked any more. The journal and the index are on disk when it returns.
    pub fn close(&self) {
        self.auto.stop();
        self.keeper.stop();
        self.syncer.stop();
        self.live.stop_hasher();
        self.live.drop_prepared();
        let end = sys::now();
        if let Err(errno) = self.timeline().append(&[Record::Unmounted { at_ns: end.nanoseconds() }]) {
            tracing::warn!(%errno, "the end of service was not recorded");
        }
        if self.live.outlived() {
            tracing::info!("the mount ends, and somebody can still write to files of it");
            if let Err(error) = self.timeline().store().layout.note_held(self.timeline().epoch()) {
                tracing::warn!(%error, "that could not be noted: checkpoints after the next mount may show later content");
            }
        }
        if self.timeline().unsynced().next().is_some()
            && let Err(errno) = sync_checkpoints(&self.live)
        {
            tracing::warn!(%errno, "the tree was not synced; if the power is cut now, the newest checkpoints will not be whole");
        }
        self.timeline().stop();
        // Over the directory itself a mount leaves nobody a way there who was not there before.
        let alone = self.config.mount == self.config.backing && !self.had_below.load(Ordering::Relaxed);
        match self.live.write_baseline(self.keeps_content(), alone, self.config.auto.absence) {
            Ok(files) => {
                if files > 0 {
                    tracing::info!(files, "the content of files is not kept: what is changed while nothing is mounted is lost to older checkpoints");
                }
                if let Err(error) = self.timeline().store().layout.note_unkept(files) {
                    tracing::debug!(%error, "that is not told to who unmounts");
                }
            }
            Err(errno) => {
                tracing::warn!(%errno, "there is no baseline: of what is changed while nothing is mounted, names and attributes will not be known");
            }
        }
        // Whoever changes the tree once we are gone shall be seen to have done so after us.
        sys::wait_for_tick(end);
    }

    fn keeps_content(&self) -> Keep {
        let asked = *self.keep.lock();
        asked.or_else(|| Keep::named(self.settings().text("umount.keep")?)).unwrap_or_default()
    }

    fn timeline(&self) -> &Arc<Timeline> {
        self.live.timeline()
    }

    /// Records that the tree is served from now on, since when it was not, and that it is being compared. Whatever is changed after is changed by us.
    fn begin_service(&self, aftermath: &Aftermath, comparing: Option<Comparing>) -> crate::sys::SysResult<()> {
        let stopped_ns = match (aftermath.stopped_ns, aftermath.unclean) {
            (Some(at_ns), _) => Some(at_ns),
            // The mount was there all the time, and whoever wanted to change something waited.
            (None, true) if self.took_over() => None,
            // A killed daemon lived at least until it last wrote to the journal (of which a power cut may have left more than of the note when), and until
            // the last change of what has a record: most changes need no new one.
            (None, true) => {
                let changed_ns = self.live.last_recorded_change().map(sys::Time::nanoseconds);
                Some(self.journal_written_ns()?).max(changed_ns).max(aftermath.recorded_ns)
            }
            (None, false) => None,
        };
        let begin = sys::now();
        if stopped_ns.is_some() {
            // What we change from now on (a recovery does so at once) must not bear an earlier time.
            sys::wait_for_tick(begin);
        }
        let at_ns = begin.nanoseconds();
        // In this order: after a power cut the second may be missing.
        let compares = comparing.is_some() || aftermath.comparing.is_some();
        let records: Vec<Record> =
            compares.then_some(Record::Comparing(comparing)).into_iter().chain([Record::Mounted { at_ns, stopped_ns }]).collect();
        match self.timeline().append(&records) {
            // Nothing that needs a record can be done either, until these are there; but what frees space can.
            Err(errno) if errno.is_no_room() => records.into_iter().for_each(|record| self.timeline().tell(record)),
            done => done?,
        }
        self.timeline().begin_service(at_ns, stopped_ns);
        Ok(())
    }

    /// When the last daemon last wrote to the journal.
    fn journal_written_ns(&self) -> crate::sys::SysResult<i64> {
        let store = self.timeline().store();
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
}

impl Served {
    fn new(config: &Config, reflink: bool, exact_times: bool) -> VerbResult<Served> {
        let filesystem = sys::statfs_fd(&config.root).map(|info| sys::fs_name(info.fs_type)).unwrap_or("unknown");
        let possible = reflink && exact_times && sys::has_sys_admin() && !config.strict_writes;
        if config.io == IoChoice::Passthrough && !possible {
            let why = if !reflink {
                format!("{filesystem} has no reflink, and a plain copy of a file that the kernel writes to is of no one instant")
            } else if config.strict_writes {
                "--writes=daemon says the opposite".to_owned()
            } else if !exact_times {
                "the times of files are too coarse to show every change (Linux 6.13 has finer ones on xfs and btrfs)".to_owned()
            } else {
                "it needs CAP_SYS_ADMIN".to_owned()
            };
            return Err(VerbError {
                code: "no-passthrough".into(),
                message: format!("passthrough cannot be had here: {why}"),
                hint: Some("use --io auto or --io daemon".into()),
            });
        }
        Ok(Served {
            backing: config.backing.clone(),
            mount: config.mount.clone(),
            filesystem,
            wants_passthrough: possible && config.io != IoChoice::Daemon,
            io_for_all: config.io_for_all,
            strict_writes: config.strict_writes,
            snapdir_visible: config.snapdir_visible,
            seal: config.seal,
            snapdir_mode: config.snapdir_mode,
            auto: config.auto,
        })
    }
}

/// Of the descriptors that the process may have, how many are for open files. The others are needed to keep the past, and for the directories and
/// segments that are kept open: a client that opens files until it is refused must not make changes of others fail, nor a checkpoint.
fn descriptors_max(all: u64) -> usize {
    usize::try_from(all.saturating_sub(DESCRIPTORS_RESERVED).max(all / 4)).unwrap_or(usize::MAX)
}

/// Whether the filesystem clones: tried, not guessed from its name. EXDEV if files are on other devices than their directories.
fn probe_reflink(store: &Store) -> crate::sys::SysResult<bool> {
    match probe_reflink_in_tmp(store) {
        Err(errno) if errno.is_no_room() => {}
        probed => return probed,
    }
    // Nothing can be made.
    Ok(sys::can_share(store.layout.lock_file().map_err(|error| error.errno())?))
}

fn probe_reflink_in_tmp(store: &Store) -> crate::sys::SysResult<bool> {
    let tmp = store.layout.tmp_dir().map_err(|error| error.errno())?;
    for name in [b"probe-a".as_slice(), b"probe-b"] {
        let _ = sys::unlink_at(tmp, name);
    }
    let source = sys::create_file_at(tmp, b"probe-a", sys::Open::READ_WRITE, 0o600)?;
    if sys::stat_fd(&source)?.dev != sys::stat_fd(tmp)?.dev {
        let _ = sys::unlink_at(tmp, b"probe-a");
        return Err(Errno::EXDEV);
    }
    sys::write_all_at(&source, &[1; 4096], 0)?;
    let cloned = sys::clone_to(&source, tmp, b"probe-b");
    let _ = sys::unlink_at(tmp, b"probe-a");
    let _ = sys::unlink_at(tmp, b"probe-b");
    match cloned {
        Err(errno) if errno.is_no_room() => Err(errno),
        cloned => Ok(cloned.is_ok()),
    }
}

/// Whether every change of a file whose attributes were asked for shows in its ctime: what the cut, and whoever asks whether a file was changed
/// without a request, rely on. Tried: with coarse times, as before Linux 6.13, several writes fall into one tick.
fn probe_times(store: &Store) -> crate::sys::SysResult<bool> {
    let tmp = store.layout.tmp_dir().map_err(|error| error.errno())?;
    let _ = sys::unlink_at(tmp, b"probe-times");
    let file = sys::create_file_at(tmp, b"probe-times", sys::Open::READ_WRITE, 0o600);
    let _ = sys::unlink_at(tmp, b"probe-times");
    match file.and_then(|file| shows_every(&file, || sys::write_all_at(&file, &[1], 0))) {
        Err(errno) if errno.is_no_room() => {}
        probed => return probed,
    }
    let lock = store.layout.lock_file().map_err(|error| error.errno())?;
    let probe = || shows_every(lock, || sys::set_file_mode(lock, 0o600));
    store.reserve.with_last_room(probe, |errno| *errno)
}

fn shows_every(file: &std::fs::File, change: impl Fn() -> crate::sys::SysResult<()>) -> crate::sys::SysResult<bool> {
    const CHANGES: u64 = 16;
    for _ in 0..CHANGES {
        let before = sys::stat_fd(file)?;
        change()?;
        if sys::stat_fd(file)?.ctime == before.ctime {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The directory in which a restore prepares what it puts into the tree.
fn staging(store: &Store) -> crate::sys::SysResult<OwnedFd> {
    let tmp = store.layout.tmp_dir().map_err(|error| error.errno())?;
    match store.reserve.with_last_room(|| sys::mkdir_at(tmp, STAGING_NAME, 0o700), |errno| *errno) {
        Ok(()) | Err(Errno::EEXIST) => sys::open_dir_at(tmp, STAGING_NAME),
        Err(errno) => Err(errno),
    }
}

fn store_error(error: &StoreError, backing: &std::path::Path) -> VerbError {
    let (code, hint) = match error {
        StoreError::Locked => (
            "in-use",
            "another daemon serves this directory, maybe where this process does not see the mount: `ckptfs status` tells of it, `ckptfs umount` ends it",
        ),
        StoreError::NewerFormat { .. } | StoreError::UnknownFeature { .. } => ("newer-format", "use the newer ckptfs that made this store"),
        StoreError::NotAStore => ("not-a-store", "move .ckptfs away: it is not one of ours, and nothing in it was touched"),
        _ => match error.errno() {
            Errno::ENOSPC => ("no-space", "free some space on the filesystem"),
            Errno::EROFS | Errno::EACCES | Errno::EPERM => ("no-permission", "the directory must be writable by whoever mounts it"),
            Errno::EXDEV => ("other-filesystem", "the store must be on the filesystem of the directory: remove what is mounted on .ckptfs"),
            _ => ("io", "the store may be damaged: nothing was changed"),
        },
    };
    let mut message = format!("the store of {} cannot be opened: {error}", backing.display());
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        message.push_str(&format!(": {error}"));
        cause = error.source();
    }
    VerbError { code: code.into(), message, hint: Some(hint.into()) }
}

#[cfg(test)]
#[path = "forged_tests.rs"]
mod forged;
