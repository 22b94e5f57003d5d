//! The list of requests.

use serde::{Deserialize, Serialize};

use crate::attribution::{CompareByProcess, OnlyBy};
use crate::audit::ListAudit;
use crate::branch::{
    CreateBranch, DiffBranch, DropBranch, FreeBranch, ListBranches, MountBranch, ReviveBranch,
};
use crate::change::Compare;
use crate::checkpoint::{
    ChangeTags, CheckpointOptions, Delete, ListCheckpoints, PinCheckpoint, Query, ShowCheckpoint,
};
use crate::conflicts::{ListConflicts, WatchConflicts};
use crate::dedup::DedupOptions;
use crate::du::DuOptions;
use crate::export::ExportAsk;
use crate::gc::GcOptions;
use crate::import::ImportAsk;
use crate::merge::{Merge, MergeVersions, UpdateBranch};
use crate::open_store::OpenStore;
use crate::prompt::PromptQuery;
use crate::push::NotePush;
use crate::restore::RestoreOptions;
use crate::status::{GetStats, GetStatus};
use crate::undo::{ListOperations, UndoOptions};
use crate::unmount::Unmount;
use crate::verb::Verb;
use crate::verify::VerifyOptions;
use crate::versions::ListVersions;
/// Lists the verbs by their names on the socket.
macro_rules! verbs {
    ($($(#[$condition:meta])? $name:ident($request:ty),)*) => {
        /// A request: one variant for each verb.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Request {
            $($(#[$condition])? #[doc = concat!("See [`", stringify!($request), "`].")] $name($request),)*
        }

        $($(#[$condition])? impl From<$request> for Request {
            fn from(request: $request) -> Request {
                Request::$name(request)
            }
        })*

        /// Passes the names of all variants of [`Request`] to a macro.
        #[doc(hidden)]
        #[macro_export]
        macro_rules! with_requests {
            ($callback:ident) => {
                $callback! { $($(#[$condition])? $name,)* }
            };
        }
    };
}

verbs! {
    Checkpoint(CheckpointOptions),
    Status(GetStatus),
    PromptQuery(PromptQuery),
    Stats(GetStats),
    Log(ListCheckpoints),
    Show(ShowCheckpoint),
    Find(Query),
    Retag(ChangeTags),
    Pin(PinCheckpoint),
    NotePush(NotePush),
    Versions(ListVersions),
    Diff(Compare),
    ByProcess(CompareByProcess),
    RestoreOnlyBy(OnlyBy),
    Restore(RestoreOptions),
    Merge(Merge),
    MergeVersions(MergeVersions),
    Delete(Delete),
    Operations(ListOperations),
    Undo(UndoOptions),
    Verify(VerifyOptions),
    Du(DuOptions),
    Gc(GcOptions),
    Dedup(DedupOptions),
    Audit(ListAudit),
    Export(ExportAsk),
    Import(ImportAsk),
    OpenStore(OpenStore),
    Cancel(Cancel),
    CreateBranch(CreateBranch),
    Branches(ListBranches),
    MountBranch(MountBranch),
    DropBranch(DropBranch),
    ReviveBranch(ReviveBranch),
    FreeBranch(FreeBranch),
    Conflicts(ListConflicts),
    WatchConflicts(WatchConflicts),
    DiffBranch(DiffBranch),
    UpdateBranch(UpdateBranch),
    Unmount(Unmount),
    #[cfg(debug_assertions)]
    Fault(Fault),
}

/// Cancels the current request of this connection, unless it has changed something: sent during a
/// `restore` or `undo`, which sends its own reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancel;

impl Verb for Cancel {
    type Answer = ();
    const ONLY_ASKS: bool = true;
}

/// Injects failures of system calls, for tests; absent: disarms them. Replies with the calls
/// counted and failed by the previous plan.
#[cfg(debug_assertions)]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The plan.
    pub plan: Option<ckptfs_sys::fault::FaultPlan>,
}

#[cfg(debug_assertions)]
impl Verb for Fault {
    type Answer = (u64, u64);
}
