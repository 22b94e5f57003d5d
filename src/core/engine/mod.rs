//! The engine: the only facade of the live tree and its history.
//!
//! It has two interfaces in plain types: [`request::Service`] for the kernel and [`verb::Execute`] for
//! clients. The node's number routes a request to the live tree, to a view, or to `.snapshots`
//! itself.
//!
//! **Parts.** [`Engine`] creates them and delegates to them. Each has private state and depends
//! only on those listed before it:
//! - the environment: configuration, settings, kernel caches, warnings (`serving`);
//! - states of the tree and their comparison (`compare`); nodes and open files of views (`files`);
//!   `.snapshots` (`control`);
//! - creation, tags and deletion of checkpoints (`checkpoint`);
//! - users of these: offline changes (`absence`), automatic checkpoints (`auto`, `tripwire`),
//!   retention (`gc`), search (`find`), verification (`check`), deduplication (`dedup`).
//!
//! Code that needs most of them uses the engine: the service of the kernel (`service`), restore,
//! export, import, undo, and the verbs.

mod absence;
mod announce;
mod attribution;
mod audit;
pub mod auto;
mod bases;
pub mod branches;
mod change_stamp;
pub mod check;
pub mod checkpoint;
mod checkpoint_info;
mod compare;
pub mod config;
pub mod counts;
pub mod dedup;
mod diff_counts;
pub mod du;
mod durable;
mod error;
pub mod export;
mod files;
mod find;
mod foreign;
pub mod gc;
mod glance;
mod gmt;
pub mod hooks;
pub mod import;
mod keeper;
mod listing;
pub mod merge;
pub mod metrics;
pub mod offline;
pub mod open_store;
mod opening;
pub mod origin;
mod past;
mod pin;
pub mod place;
mod quiesce;
mod quota;
mod refused;
pub mod request;
pub mod requester;
mod restore;
pub mod retention;
mod room;
mod runs;
mod service;
mod serving;
pub mod settings;
mod snapdir;
mod snapdir_requests;
mod space;
mod status;
pub mod succession;
mod syncer;
pub mod takeover;
pub mod tiers;
mod tripwire;
mod undo;
pub mod unmount;
mod unrecorded;
mod upkeep;
pub mod verb;
pub mod verbs;
mod worker;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::history::base::Base;
use crate::history::present::LiveTree;
use crate::history::timeline::Timeline;
use crate::live::Live;
pub use crate::live::SealerMode;
use absence::OfflineChanges;
use auto::Automatic;
use check::Verifier;
use checkpoint::Checkpoints;
use ckptfs_api::{CheckpointId, SavePolicy};
use ckptfs_sys::Errno;
use ckptfs_sys::lock::Mutex;
use compare::StateComparer;
pub use config::{Config, IoChoice};
use dedup::Dedup;
use files::Views;
use find::Search;
use gc::GarbageCollector;
use serving::ServingEnv;
use snapdir::Snapdir;

/// A served tree. See the module.
pub struct Engine {
    live: Arc<Live>,
    serving: Arc<ServingEnv>,
    states: Arc<StateComparer>,
    views: Arc<Views>,
    snapdir: Arc<Snapdir>,
    checkpoints: Arc<Checkpoints>,
    absences: OfflineChanges,
    automatic: Arc<Automatic>,
    collector: Arc<GarbageCollector>,
    search: Search,
    verifier: Verifier,
    dedup: Dedup,
    branches: branches::Branches,
    announcer: Arc<announce::Announcer>,
    succession: Option<succession::WorkerHandover>,
    /// The source of content not stored locally, if any.
    origin: Option<Arc<dyn origin::RemoteLayer>>,
    /// Pending invalidations of a restore that this worker finished before it served the tree.
    stale: Mutex<
        Option<(
            restore::stale::StaleEntries,
            crate::live::PendingInvalidation,
        )>,
    >,
    /// Serializes kernel requests that make a checkpoint: a second one would occupy the last thread
    /// able to serve the requests that the first waits for.
    asked_by_kernel: Mutex<quota::TokenBuckets>,
    keeper: Arc<worker::Worker>,
    exports: export::Exports,
    started: String,
    syncer: Arc<worker::Worker>,
    /// A process may use the backing directory directly, or this is unknown.
    had_below: AtomicBool,
}

impl Engine {
    /// Releases the mount before an unmount; cancels pending announcements.
    pub fn hush(&self) {
        self.announcer.hush();
        if let Some(let_go) = self.serving.config.before_unmount {
            let_go();
        }
    }

    /// Sets the content to preserve at unmount; `None`: unchanged, or as configured.
    pub fn keep_at_end(&self, keep: Option<SavePolicy>) {
        if keep.is_some() {
            *self.absences.keep.lock() = keep;
        }
    }

    /// Returns whether the session should request passthrough.
    pub fn wants_passthrough(&self) -> bool {
        self.serving.config.wants_passthrough
    }

    /// Executes a call that a mount needs in the store, with access to reserved space.
    ///
    /// # Errors
    /// Those of the call.
    pub fn with_last_room<T>(
        &self,
        mut call: impl FnMut() -> std::io::Result<T>,
    ) -> std::io::Result<T> {
        let errno = |error: &std::io::Error| Errno(error.raw_os_error().unwrap_or(Errno::EIO.0));
        let store = self.timeline().store();
        let done = store.reserve.with_last_room(&mut call, errno);
        match done {
            Err(error) if errno(&error).is_no_room() && store.index.give_up() => call(),
            done => done,
        }
    }

    /// Adds a warning for the user.
    pub fn warn(&self, warning: String) {
        self.serving.warn(warning);
    }

    /// Returns the absence before this mount, while both checkpoints around it exist.
    pub fn absence(&self) -> Option<ckptfs_api::AbsenceInfo> {
        self.absences.absence()
    }

    /// Returns whether free space is low enough for any operation to fail with ENOSPC.
    pub fn is_full(&self) -> bool {
        self.timeline().store().reserve.is_full()
    }

    /// Returns the store's directory.
    pub fn store_fd(&self) -> BorrowedFd<'_> {
        self.serving.store_dir.as_fd()
    }

    /// Returns a checkpoint as the base of a branch. The caller must hold the checkpoint for the
    /// lifetime of the branch.
    pub fn as_base(&self, at: CheckpointId) -> Arc<Base> {
        let present = Arc::clone(&self.live.inodes) as Arc<dyn LiveTree>;
        let depth = self.live.inodes.level();
        Arc::new(Base::of_parent(
            Arc::clone(self.live.timeline()),
            present,
            at,
            depth,
        ))
    }

    /// Returns the paths of the tree and its mount.
    pub fn place(&self) -> &place::ServedPaths {
        &self.serving.place
    }

    /// Returns the backing directory, which contains the store.
    pub fn root_fd(&self) -> BorrowedFd<'_> {
        self.serving.root.as_fd()
    }
}

/// Gives parts that have the live tree access to the history.
macro_rules! reaches_timeline {
    ($($part:ty: $($field:ident).+;)*) => {
        $(impl $part {
            fn timeline(&self) -> &Timeline {
                self.$($field).+.timeline()
            }
        })*
    };
}

reaches_timeline! {
    Engine: live;
    StateComparer: live;
    Checkpoints: live;
    GarbageCollector: live;
    Search: checkpoints.live;
    Verifier: live;
    Dedup: live;
    Views: live;
    Snapdir: live;
    Automatic: live;
    OfflineChanges: live;
    restore::Restorer<'_>: engine.live;
    undo::Undoer<'_>: engine.live;
    export::Exporter<'_>: engine.live;
    import::Importer<'_>: engine.live;
}

#[cfg(test)]
mod branch_tests;
#[cfg(test)]
#[path = "forged_tests.rs"]
mod forged;
