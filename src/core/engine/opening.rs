//! Start and end of service.

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::Engine;
use super::absence::OfflineChanges;
use super::auto::Automatic;
use super::branches::Branches;
use super::check::Verifier;
use super::checkpoint::Checkpoints;
use super::compare::StateComparer;
use super::config::Config;
use super::config::{EffectiveConfig, probe_reflink, probe_times};
use super::dedup::Dedup;
use super::durable::sync_checkpoints;
use super::error::{self, Code};
use super::files::Views;
use super::find::Search;
use super::gc::GarbageCollector;
use super::keeper::{self, RetentionRunner};
use super::origin::RemoteLayer;
use super::place::ServedPaths;
use super::request::Caches;
use super::serving::ServingEnv;
use super::snapdir::Snapdir;
use super::syncer::{self, Syncer};
use super::takeover::Takeover;
use crate::history::base::Base;
use crate::history::present::LiveTree;
use crate::history::timeline::{RecoveryState, Timeline};
use crate::live::Live;
use crate::live::SealerMode;
use ckptfs_api::{VerbError, VerbResult};
use ckptfs_store::layout::branches::{BranchEntry, branch_mark};
use ckptfs_store::layout::{STAGING_NAME, STORE_NAME, has_origin};
use ckptfs_store::record::Record;
use ckptfs_store::{Opened, Store, StoreError, UntrustedReason};
use ckptfs_sys::lock::{Mutex, Rank};
use ckptfs_sys::{self as sys, Errno};

/// Warning of the next mount.
const TORN: &str =
    "the journal's end was torn, as a power cut tears it; what had not been synced may be lost";

impl Engine {
    /// Opens or creates the store of a directory, and completes the work of a killed daemon. The
    /// cost depends on the changes since the last checkpoint, not on the size of the tree.
    ///
    /// # Errors
    /// Messages for the user: the store is in use, damaged or of a newer format; the filesystem is
    /// full or read-only; passthrough is not available.
    pub fn open(config: Config) -> VerbResult<Arc<Engine>> {
        let engine = Engine::open_unmounted(config)?;
        engine.serving.open_store_view();
        engine
            .start_threads()
            .map_err(error::failed("the store cannot be used"))?;
        Ok(engine)
    }

    /// As [`Engine::open`], to change the history without serving the tree or starting background
    /// threads.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open_unmounted(config: Config) -> VerbResult<Arc<Engine>> {
        let mark =
            branch_mark(&config.root).map_err(|error| store_error(&error, &config.backing))?;
        if let (Some(mark), None) = (&mark, &config.base) {
            return Err(super::branches::served_by_parent(mark));
        }
        if has_origin(&config.root) && config.origin.is_none() {
            return Err(error::hinted(
                Code::NotMounted,
                "the content of this tree is in a remote: that can be done, or told, only while it is mounted",
                "ckptfs mount DIR mounts it, if ckptfs was built with remotes (crate feature `remote`)",
            ));
        }
        let opened = match &config.base {
            Some(base) => Store::open_branch(&config.root, base.reserve()),
            None => Store::open(&config.root, true),
        };
        let (store, opened) = opened.map_err(|error| store_error(&error, &config.backing))?;
        let (store, root) = (Arc::new(store), config.root.try_clone());
        let engine = Engine::open_store(config, &store, opened, mark);
        if let (Err(_), Ok(root)) = (&engine, root) {
            store.layout.unmake(&root);
        }
        engine
    }

    /// Removes the store after a failed first mount, while it is empty.
    pub fn unmake(&self) {
        self.timeline().store().layout.unmake(self.root_fd());
    }

    fn open_store(
        mut config: Config,
        store: &Arc<Store>,
        opened: Opened,
        mark: Option<BranchEntry>,
    ) -> VerbResult<Arc<Engine>> {
        let succession = config.succession.take();
        let failed = super::error::unusable;
        let (timeline, aftermath) = Timeline::open(Arc::clone(store))
            .map_err(|error| store_error(&error, &config.backing))?;
        let timeline = Arc::new(timeline);
        let (reflink, exact_times) = (
            probe_reflink(store).map_err(failed)?,
            probe_times(store).map_err(failed)?,
        );
        let served = EffectiveConfig::new(&config, store, (reflink, exact_times))?;
        let origin = config.origin.map(|origin| origin.0);
        let root = match config.base.is_some() || origin.is_some() {
            true => (store.layout.tree()).map_err(|error| store_error(&error, &config.backing))?,
            false => (config.root.try_clone()).map_err(|error| failed(error.into()))?,
        };
        let (root, staging) = (Arc::new(root), staging(store).map_err(failed)?);
        let base = config.base.or_else(|| {
            let present = Arc::clone(origin.as_ref()?) as Arc<dyn LiveTree>;
            Some(Arc::new(Base::unchanging(Arc::clone(&timeline), present)))
        });
        let live = Live::new(root, staging, timeline, reflink, base).map_err(failed)?;
        let store_dir = store.layout.dir().try_clone_to_owned();
        let place =
            ServedPaths::new(&served.mount, &served.backing, &config.root).map_err(failed)?;
        let serving = ServingEnv {
            config: served,
            place,
            root: config.root,
            store_dir: store_dir.map_err(|error| failed(error.into()))?,
            store_view: OnceLock::new(),
            caches: OnceLock::new(),
            counts: Arc::default(),
            store_file: super::settings::StoreFile::default(),
            upkeep: super::upkeep::Upkeep::default(),
            inherits: config.inherits.map(|parent| parent.0),
            warnings: Mutex::new(opened.torn.then(|| TORN.to_owned()).into_iter().collect()),
        };
        let hooks = config.hooks.map(super::hooks::Hooks::new);
        let branches = Branches::new(mark);
        let engine = Engine::of_parts(
            Arc::new(live),
            Arc::new(serving),
            hooks,
            (succession, origin),
            branches,
        );
        Takeover::new(&engine).hand_over();
        engine.take_up(&aftermath).map_err(failed)?;
        Ok(engine)
    }

    /// Creates the parts, in order of dependency.
    fn of_parts(
        live: Arc<Live>,
        serving: Arc<ServingEnv>,
        hooks: Option<super::hooks::Hooks>,
        (succession, origin): (
            Option<super::succession::WorkerHandover>,
            Option<Arc<dyn RemoteLayer>>,
        ),
        branches: Branches,
    ) -> Arc<Engine> {
        let ledger = succession.as_ref().map(|after| Arc::clone(&after.ledger));
        let took_over = succession
            .as_ref()
            .is_some_and(|succession| succession.orphans.is_some());
        let states = Arc::new(StateComparer::new(Arc::clone(&live)));
        let views = Arc::new(Views::new(Arc::clone(&live), Arc::clone(&states)));
        let snapdir = Arc::new(Snapdir::new(
            Arc::clone(&live),
            Arc::clone(&serving),
            Arc::clone(&views),
        ));
        let checkpoints = Arc::new(Checkpoints::new(
            Arc::clone(&live),
            Arc::clone(&serving),
            Arc::clone(&states),
            Arc::clone(&snapdir),
            hooks,
        ));
        Arc::new(Engine {
            absences: OfflineChanges::new(Arc::clone(&checkpoints), took_over),
            automatic: Arc::new(Automatic::new(Arc::clone(&checkpoints))),
            collector: Arc::new(GarbageCollector::new(Arc::clone(&checkpoints))),
            search: Search::new(Arc::clone(&checkpoints)),
            verifier: Verifier::new(Arc::clone(&live), Arc::clone(&states)),
            dedup: Dedup::new(Arc::clone(&checkpoints)),
            branches,
            announcer: Arc::new(super::announce::Announcer::new(Arc::clone(&live), ledger)),
            live,
            serving,
            states,
            views,
            snapdir,
            checkpoints,
            succession,
            origin,
            stale: Mutex::default(),
            asked_by_kernel: Mutex::ranked(Rank::Asked, super::quota::TokenBuckets::default()),
            keeper: Arc::default(),
            exports: super::export::Exports::default(),
            started: jiff::Timestamp::now().to_string(),
            syncer: Arc::default(),
            had_below: AtomicBool::new(true),
        })
    }

    /// Recovers from a killed daemon, and records offline changes. In this order: renames are
    /// verified, because recovery needs correct places; the start of service is recorded before any
    /// change; the tree is recovered, and compared with the baseline; an interrupted restore is
    /// finished; the kernel's inodes are adopted.
    fn take_up(&self, aftermath: &RecoveryState) -> ckptfs_sys::SysResult<()> {
        if aftermath.unclean {
            self.live.recovery.verify_moved(&aftermath.moved)?;
        }
        let comparison = self.absences.comparison(aftermath);
        self.absences.begin_service(
            aftermath,
            comparison.as_ref().map(|(_, comparing)| *comparing),
        )?;
        self.checkpoints.name_incomplete()?;
        if aftermath.unclean {
            self.live.recovery.recover(aftermath)?;
        }
        let held =
            self.timeline().store().layout.noted_held() == Some(self.timeline().epochs.epoch());
        let watch = || {
            if aftermath.unclean || held {
                self.live
                    .recovery
                    .watch_mapped(aftermath.unclean && self.took_over())
            } else {
                Ok(())
            }
        };
        match comparison {
            Some((baseline, comparing)) => self
                .absences
                .take_in_absence(&baseline, comparing, held, watch)?,
            None => {
                watch()?;
                self.absences.keep_untold(aftermath, held);
            }
        }
        match super::restore::Restorer::new(self).finish_restore(aftermath) {
            Ok(stale) => {
                let begin = |stale| (stale, self.live.locks.stale_names.begin());
                *self.stale.lock() = stale.filter(|_| self.took_over()).map(begin);
            }
            Err(errno) => {
                tracing::error!(%errno, "a restore that was interrupted cannot be finished; its guard checkpoint has what was there before");
            }
        }
        Takeover::new(self).adopt_tree()
    }

    /// Starts the background threads.
    fn start_threads(self: &Arc<Engine>) -> std::io::Result<()> {
        self.timeline().indexer.start()?;
        let (mut syncer, mut begun) = (Syncer::new(&self.live), false);
        self.syncer.start(Duration::ZERO, move |_| {
            if std::mem::replace(&mut begun, true) {
                syncer.round();
            }
            syncer.make_ready();
            Some(syncer::PERIOD)
        })?;
        if let Some(origin) = &self.origin {
            origin.begin();
        }
        self.live.sealer.start(self.serving.config.seal)?;
        super::auto::start(&self.automatic)?;
        let mut keeper = RetentionRunner::new(Arc::downgrade(&self.collector));
        self.keeper
            .start(keeper::PERIOD, move |worker| keeper.round(worker))
    }

    /// Sets the interface to the kernel's caches, once mounted. No invalidation is possible before.
    pub fn set_caches(&self, caches: Arc<dyn Caches>) {
        let ledger = self.succession.as_ref().map(|after| &*after.ledger);
        self.serving.place.find_mount(ledger);
        let name = &self.serving.config.snapdir_name;
        if let Err(error) = self.timeline().store().layout.note_snapdir(name) {
            self.serving.warn(format!(
                "{name} may not be found by other commands: {error}"
            ));
        }
        self.announcer.mounted(&self.serving, Arc::clone(&caches));
        let _ = self.serving.caches.set(caches);
        let stale = self.stale.lock().take();
        if let Some((stale, _forgetting)) = stale {
            super::restore::Restorer::new(self).forget_stale(&stale);
        }
    }

    /// Ends the service cleanly, after the last request. On return the journal and the index are on
    /// disk.
    pub fn close(&self) {
        if let Some(origin) = &self.origin {
            origin.end();
        }
        self.branches.close();
        self.automatic.worker.stop("an automatic checkpoint");
        self.keeper.stop("a part of gc");
        self.syncer.stop("a sync of the journal");
        self.live.sealer.stop();
        finish_hashing(self);
        self.live.cuts.drop_prepared();
        if let Err(errno) = self.live.locks.first_change.pass() {
            tracing::warn!(%errno, "a branch that was made is not on the disk: the next mount sees to that");
        }
        self.live.locks.first_change.forget();
        let end = sys::now();
        if let Err(errno) = self.timeline().journal.append(&[Record::Unmounted {
            at_ns: end.nanoseconds(),
        }]) {
            tracing::warn!(%errno, "the end of service was not recorded");
        }
        if self.live.settling.outlived() {
            tracing::info!("the mount ends, and somebody can still write to files of it");
            if let Err(error) = self
                .timeline()
                .store()
                .layout
                .note_held(self.timeline().epochs.epoch())
            {
                tracing::warn!(%error, "that could not be noted: checkpoints after the next mount may show later content");
            }
        }
        if self.timeline().catalogue.unsynced().next().is_some()
            && let Err(errno) = sync_checkpoints(&self.live)
        {
            tracing::warn!(%errno, "the tree was not synced; if the power is cut now, the newest checkpoints will not be whole");
        }
        self.timeline().indexer.stop();
        match self.live.baselines.write(
            self.absences.keeps_content(),
            super::unrecorded::is_alone(self),
            self.serving.config.auto.absence,
        ) {
            Ok(files) => {
                if files > 0 {
                    tracing::info!(
                        files,
                        "the content of files is not kept: what is changed while nothing is mounted is lost to older checkpoints"
                    );
                }
                if let Err(error) = self.timeline().store().layout.note_unkept(files) {
                    tracing::debug!(%error, "that is not told to who unmounts");
                }
            }
            Err(errno) => {
                tracing::warn!(%errno, "there is no baseline: of what is changed while nothing is mounted, names and attributes will not be known");
            }
        }
        // Later changes by other processes must have a later time.
        sys::wait_for_tick(end);
    }
}

/// Hashes the remaining versions, and records the number still left.
fn finish_hashing(engine: &Engine) {
    if engine.serving.config.seal == SealerMode::Off {
        return;
    }
    let noted = engine.live.sealer.finish().and_then(|left| {
        let layout = &engine.timeline().store().layout;
        layout.note_unhashed(left).map_err(|error| error.errno())
    });
    if let Err(errno) = noted {
        tracing::warn!(%errno, "versions that have no hash yet are not hashed");
    }
}

/// Opens the directory in which a restore stages inodes.
fn staging(store: &Store) -> ckptfs_sys::SysResult<OwnedFd> {
    let tmp = store.layout.tmp_dir().map_err(|error| error.errno())?;
    match store
        .reserve
        .with_last_room(|| sys::mkdir_at(tmp, STAGING_NAME, 0o700), |errno| *errno)
    {
        Ok(()) | Err(Errno::EEXIST) => sys::open_dir_at(tmp, STAGING_NAME),
        Err(errno) => Err(errno),
    }
}

fn store_error(error: &StoreError, backing: &std::path::Path) -> VerbError {
    let (code, hint) = match error {
        StoreError::Locked => (
            Code::InUse,
            "another daemon serves this directory, perhaps in a mount that is not visible from here: `ckptfs status` shows it, `ckptfs umount` ends it",
        ),
        // `mount` found a directory; the regular file is shown by a mount over it.
        StoreError::Untrusted {
            on,
            why: UntrustedReason::NotADirectory,
        } if on == STORE_NAME => (
            Code::InUse,
            "another process has mounted the directory meanwhile: `ckptfs status` shows it, `ckptfs umount` ends it",
        ),
        StoreError::NewerFormat { .. } | StoreError::UnknownFeature { .. } => (
            Code::NewerFormat,
            "use the newer ckptfs that made this store",
        ),
        StoreError::Forgeable => (
            Code::BadBranch,
            "merge or push what was changed in it with the ckptfs that made it, or copy that from the directory itself; then make it again",
        ),
        StoreError::NotAStore => (
            Code::NotAStore,
            "move .ckptfs out of the way: it was not made by ckptfs, and nothing in it was touched",
        ),
        _ => match error.errno() {
            Errno::ENOSPC => (Code::NoSpace, "free some space on the filesystem"),
            Errno::EROFS | Errno::EACCES | Errno::EPERM => (
                Code::NoPermission,
                "the directory must be writable by the user who mounts it",
            ),
            Errno::EXDEV => (
                Code::OtherFilesystem,
                "the store must be on the same filesystem as the directory: unmount what is mounted on .ckptfs",
            ),
            _ => (Code::Io, "the store may be damaged: nothing was changed"),
        },
    };
    let mut message = format!(
        "the store of {} cannot be opened: {error}",
        backing.display()
    );
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        message.push_str(&format!(": {error}"));
        cause = error.source();
    }
    error::hinted(code, message, hint)
}
