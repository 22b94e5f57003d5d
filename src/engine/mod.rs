//! The one facade over the live tree and its history.
//!
//! It has two faces, both in plain types: [`request::Service`], what the kernel asks, and
//! [`verb::Verb`], what people ask. Requests go to the live tree, to a view of the past, or to
//! `.snapshots` itself, by the node's number.
//!
//! **Parts.** [`Engine`] makes them and answers with them. Each has its state to itself, and knows
//! only those before it:
//! - what it is served with: the configuration, the settings, the kernel's caches, warnings
//!   (`serving`);
//! - states of the tree, and what differs between two (`compare`); nodes and open files of views
//!   (`files`); `.snapshots` (`control`);
//! - checkpoints: made, named, deleted (`checkpoint`);
//! - what relies on these: absences (`absence`), checkpoints that nobody asks for (`auto`,
//!   `tripwire`), thinning out (`gc`), searching (`find`), verifying (`check`), sharing (`dedup`).
//!
//! What needs most of them takes the engine: the service of the kernel (`service`), restores,
//! exports, imports, undoing, and the verbs.

mod absence;
mod announce;
pub mod api;
mod attribution;
mod audit;
pub mod auto;
mod bases;
pub mod branches;
pub mod check;
pub mod checkpoint;
mod compare;
pub mod config;
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
mod seen;
mod service;
mod serving;
pub mod settings;
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
mod unserved;
mod upkeep;
pub mod verb;
pub mod verbs;
pub mod word;
mod worker;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::history::base::Base;
use crate::history::present::Present;
use crate::history::timeline::Timeline;
use crate::live::Live;
pub use crate::live::{HashMode, Keep};
use absence::Absences;
use auto::Automatic;
use check::Verifier;
use checkpoint::Checkpoints;
use compare::States;
pub use config::{Config, IoChoice};
use control::Snapdir;
use dedup::Dedup;
use files::Views;
use find::Search;
use gc::Collector;
use serving::Serving;

use crate::store::ids::CheckpointId;
use crate::sys::Errno;
use crate::sys::lock::Mutex;

/// A served tree. See the module.
pub struct Engine {
    live: Arc<Live>,
    serving: Arc<Serving>,
    states: Arc<States>,
    views: Arc<Views>,
    snapdir: Arc<Snapdir>,
    checkpoints: Arc<Checkpoints>,
    absences: Absences,
    automatic: Arc<Automatic>,
    collector: Arc<Collector>,
    search: Search,
    verifier: Verifier,
    dedup: Dedup,
    branches: branches::Branches,
    announcer: Arc<announce::Announcer>,
    succession: Option<succession::Succession>,
    /// Where content is that this tree has not, if there is such.
    origin: Option<Arc<dyn origin::Origin>>,
    /// What the kernel must forget because a restore was finished before this worker served
    /// anything.
    stale: Mutex<Option<(restore::stale::Stale, crate::live::Forgetting)>>,
    /// Held by the one request of the kernel that makes a checkpoint: a second would take the last
    /// thread that can serve what the first waits for.
    asked_by_kernel: Mutex<quota::Pace>,
    keeper: Arc<worker::Worker>,
    exports: export::Exports,
    started: String,
    syncer: Arc<worker::Worker>,
    /// Somebody may have something of the directory below the mount, as far as was told.
    had_below: AtomicBool,
}

impl Engine {
    /// Lets go of the mount, which is about to be unmounted: what is being announced to watchers is
    /// cut short.
    pub fn hush(&self) {
        self.announcer.hush();
        if let Some(let_go) = self.serving.config.before_unmount {
            let_go();
        }
    }

    /// How much content is to be kept when this daemon ends; `None`: as was said before, or as the
    /// settings say.
    pub fn keep_at_end(&self, keep: Option<Keep>) {
        if keep.is_some() {
            *self.absences.keep.lock() = keep;
        }
    }

    /// Whether the session should ask the kernel for passthrough.
    pub fn wants_passthrough(&self) -> bool {
        self.serving.config.wants_passthrough
    }

    /// Does something in the store that a mount needs, with what room there is in reserve.
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

    /// Something that somebody should know.
    pub fn warn(&self, warning: String) {
        self.serving.warn(warning);
    }

    /// What was changed before this mount, while nothing was mounted, as long as both checkpoints
    /// around it are there.
    pub fn absence(&self) -> Option<api::AbsenceInfo> {
        self.absences.absence()
    }

    /// There is so little free space that anything may fail for want of it.
    pub fn is_full(&self) -> bool {
        self.timeline().store().reserve.is_full()
    }

    /// The store's directory.
    pub fn store_fd(&self) -> BorrowedFd<'_> {
        self.serving.store_dir.as_fd()
    }

    /// A checkpoint of this tree, for a branch to begin as. It must be held for as long as there is
    /// such a branch.
    pub fn as_base(&self, at: CheckpointId) -> Arc<Base> {
        let present = Arc::clone(&self.live.inodes) as Arc<dyn Present>;
        let depth = self.live.inodes.level();
        Arc::new(Base::of_parent(
            Arc::clone(self.live.timeline()),
            present,
            at,
            depth,
        ))
    }

    /// Where it is, and where it is mounted.
    pub fn place(&self) -> &place::Place {
        &self.serving.place
    }

    /// The backing directory, which has the store.
    pub fn root_fd(&self) -> BorrowedFd<'_> {
        self.serving.root.as_fd()
    }
}

/// The history, for parts that have the live tree.
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
    States: live;
    Checkpoints: live;
    Collector: live;
    Search: checkpoints.live;
    Verifier: live;
    Dedup: live;
    Views: live;
    Snapdir: live;
    Automatic: live;
    Absences: live;
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
