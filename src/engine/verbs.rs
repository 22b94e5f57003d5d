//! The list of verbs, and the smaller ones. Larger verbs have modules of their own.

use serde::{Deserialize, Serialize};

use super::Engine;
use super::api::attribution::{ByProcess, OnlyBy, RestoredOnly};
use super::api::{
    AuditEvent, Change, CheckpointInfo, CheckpointOptions, DuOptions, DuReport, GcOptions,
    GcReport, OperationInfo, Query, RestoreOptions, Restored, Retag, StateName, Stats, Status,
    TreePath, UndoOptions, Undone, VerbResult, Verified, VerifyOptions, VersionInfo,
};
use super::branches::radar::{ListConflicts, WatchConflicts};
use super::branches::verbs::{
    CreateBranch, DiffBranch, DropBranch, FreeBranch, ListBranches, MountBranch, ReviveBranch,
};
use super::dedup::{DedupOptions, DedupReport};
use super::error;
use super::export::parts::{ExportAsk, ExportPart};
use super::glance::PromptQuery;
use super::import::{ImportAsk, ImportPart};
use super::merge::{Merge, MergeVersions, UpdateBranch};
use super::offline::Offline;
use super::open_store::OpenStore;
use super::requester::Requester;
use super::restore::Restorer;
use super::room::NotePush;
use super::undo::Undoer;
use super::unmount::Unmount;

use super::verb::Answer;
use super::verb::Verb;
use crate::history::state::TreeState;
use crate::store::record::Reason;

/// Lists the verbs by their names on the socket.
macro_rules! verbs {
    ($($(#[$condition:meta])? $name:ident($request:ty),)*) => {
        /// A request: one variant for each verb.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Request {
            $($(#[$condition])? $name($request),)*
        }

        $($(#[$condition])? impl From<$request> for Request {
            fn from(request: $request) -> Request {
                Request::$name(request)
            }
        })*

        impl Request {
            /// Executes the request and returns the reply.
            ///
            /// # Errors
            /// As [`Verb::run`].
            pub fn answer(self, engine: &Engine, requester: &Requester) -> VerbResult<Answer> {
                match self {
                    $($(#[$condition])? Request::$name(request) => request.run(engine, requester).map(Answer::of),)*
                }
            }
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
    Fault(super::api::Fault),
}

/// Executes requests; implemented by the engine.
pub trait RequestHandler: Send + Sync {
    /// # Errors
    /// As [`Verb::run`].
    fn answer(&self, request: Request, requester: &Requester) -> VerbResult<Answer>;
}

impl RequestHandler for Engine {
    fn answer(&self, request: Request, requester: &Requester) -> VerbResult<Answer> {
        self.live.inodes.refused.take();
        let answer = request.answer(self, requester);
        answer.map_err(|error| super::refused::named(self, error))
    }
}

/// Ends the exports of a client that has disconnected.
pub fn end(requester: &Requester, answers: &(impl RequestHandler + ?Sized)) {
    for run in requester.take_exports() {
        // It may have been abandoned already.
        let _ = answers.answer(ExportAsk::End { run }.into(), requester);
    }
}

impl Verb for CheckpointOptions {
    type Answer = CheckpointInfo;

    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<CheckpointInfo> {
        if self.if_changed
            && let Some(newest) = engine.timeline().base()
            && let Some(checkpoint) = engine.timeline().catalogue.checkpoint(newest)
        {
            engine.checkpoints.settle();
            let same = engine
                .states
                .compare_all(TreeState::At(newest), TreeState::Live)
                .map(|changes| changes.is_empty());
            if same.map_err(error::tree_not_compared)? {
                return Ok(CheckpointInfo {
                    unchanged: true,
                    ..CheckpointInfo::new(&checkpoint)
                });
            }
        }
        let reason = self
            .of_ns
            .map_or(Reason::Asked, |of_ns| Reason::Imported { of_ns });
        let made = engine
            .checkpoints
            .checkpoint_with_hooks(requester.by(), &self, reason)?;
        engine.snapdir.snapdir_changed();
        Ok(made)
    }
}

/// Requests the state of the mount and the differences from the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetStatus;

impl Verb for GetStatus {
    type Answer = Status;
    const ONLY_ASKS: bool = true;

    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Status> {
        super::status::status(engine)
    }
}

/// Requests the counters of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetStats;

impl Verb for GetStats {
    type Answer = Stats;
    const ONLY_ASKS: bool = true;

    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Stats> {
        super::status::stats(engine)
    }
}

/// Lists all checkpoints, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListCheckpoints;

impl Verb for ListCheckpoints {
    type Answer = Vec<CheckpointInfo>;
    const ONLY_ASKS: bool = true;

    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Vec<CheckpointInfo>> {
        Ok(engine
            .timeline()
            .catalogue
            .checkpoints()
            .iter()
            .rev()
            .map(CheckpointInfo::new)
            .collect())
    }

    fn read(self, store: &Offline) -> VerbResult<Vec<CheckpointInfo>> {
        Ok(store
            .checkpoints()
            .iter()
            .rev()
            .map(CheckpointInfo::new)
            .collect())
    }
}

/// Requests one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShowCheckpoint {
    /// The checkpoint.
    pub state: StateName,
}

impl Verb for ShowCheckpoint {
    type Answer = CheckpointInfo;
    const ONLY_ASKS: bool = true;

    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<CheckpointInfo> {
        let checkpoint = engine.states.checkpoint(&self.state)?;
        Ok(CheckpointInfo {
            open_at_cut: engine.checkpoints.open_at(checkpoint.id)?,
            dropped: Restorer::new(engine).dropped_info(checkpoint.id)?,
            ..CheckpointInfo::new(&checkpoint)
        })
    }

    fn read(self, store: &Offline) -> VerbResult<CheckpointInfo> {
        store.show(&self.state)
    }
}

impl Verb for Query {
    type Answer = Vec<CheckpointInfo>;
    const ONLY_ASKS: bool = true;

    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Vec<CheckpointInfo>> {
        engine.search.find_checkpoints(&self)
    }

    fn read(self, store: &Offline) -> VerbResult<Vec<CheckpointInfo>> {
        super::find::find_offline(store.checkpoints(), &self)
    }
}

/// Changes the tags of a checkpoint. On reply they survive `kill -9` of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeTags {
    /// The checkpoint.
    pub state: StateName,
    /// Tags to add and remove.
    pub retag: Retag,
}

impl Verb for ChangeTags {
    type Answer = CheckpointInfo;

    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<CheckpointInfo> {
        let tagged =
            engine
                .checkpoints
                .retag_checkpoint(requester.by(), &self.state, &self.retag)?;
        engine.snapdir.snapdir_changed();
        Ok(tagged)
    }
}

/// Pins or unpins a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinCheckpoint {
    /// The checkpoint.
    pub state: StateName,
    /// The reason, which may be empty; `None`: unpin.
    pub reason: Option<String>,
}

impl Verb for PinCheckpoint {
    type Answer = CheckpointInfo;

    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<CheckpointInfo> {
        engine
            .checkpoints
            .pin_checkpoint(requester.by(), &self.state, self.reason.as_deref())
    }
}

/// Lists all versions of a path in checkpoints and the live tree, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListVersions {
    /// The path.
    pub path: TreePath,
}

impl Verb for ListVersions {
    type Answer = Vec<VersionInfo>;
    const ONLY_ASKS: bool = true;

    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Vec<VersionInfo>> {
        engine.search.version_infos(&self.path)
    }
}

/// Compares two states; the differences are sorted by path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compare {
    /// The older state.
    pub from: StateName,
    /// The newer state; defaults to the live tree.
    pub to: Option<StateName>,
    /// Include file sizes.
    #[serde(default)]
    pub sizes: bool,
}

impl Verb for Compare {
    type Answer = Vec<Change>;
    const ONLY_ASKS: bool = true;

    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Vec<Change>> {
        let from = engine.states.state(&self.from)?;
        let to = self
            .to
            .as_ref()
            .map_or(Ok(TreeState::Live), |to| engine.states.state(to))?;
        if from == TreeState::Live || to == TreeState::Live {
            engine.checkpoints.settle();
        }
        let mut changes = engine
            .states
            .compare_all(from, to)
            .map_err(error::not_compared)?;
        for change in changes.iter_mut().filter(|_| self.sizes) {
            let before = change.from.as_ref().unwrap_or(&change.path);
            (change.old_size, change.size) = (
                engine.states.size_of(from, before),
                engine.states.size_of(to, &change.path),
            );
        }
        Ok(changes)
    }
}

/// Compares two states, with the processes that made the changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompareByProcess {
    /// The older state; defaults to the base.
    pub from: Option<StateName>,
    /// The newer state; defaults to the live tree.
    pub to: Option<StateName>,
}

impl Verb for CompareByProcess {
    type Answer = ByProcess;
    const ONLY_ASKS: bool = true;

    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<ByProcess> {
        engine.changes_by(self.from.as_ref(), self.to.as_ref())
    }
}

impl Verb for OnlyBy {
    type Answer = RestoredOnly;

    fn only_asks(&self) -> bool {
        self.dry_run
    }

    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<RestoredOnly> {
        Restorer::new(engine).restore_only(requester, &self)
    }
}

impl Verb for RestoreOptions {
    type Answer = Restored;

    fn only_asks(&self) -> bool {
        self.dry_run
    }

    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<Restored> {
        Restorer::new(engine).restore_with_hooks(requester, &self)
    }
}

/// Deletes a checkpoint reversibly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delete {
    /// The checkpoint.
    pub state: StateName,
    /// Delete permanently, even if already deleted, and free the data that only it needs.
    #[serde(default)]
    pub now: bool,
}

impl Verb for Delete {
    type Answer = CheckpointInfo;

    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<CheckpointInfo> {
        let Delete { state, now } = self;
        let deleted = match now {
            true => engine
                .checkpoints
                .free_checkpoint(requester.by(), Undoer::new(engine).stored_id(&state)?)?,
            false => engine
                .checkpoints
                .delete_checkpoint(requester.by(), engine.states.whole_id(&state)?)?,
        };
        engine.snapdir.snapdir_changed();
        Ok(deleted)
    }
}

/// Lists operations, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListOperations {
    /// Only operations before this one; defaults to all.
    #[serde(default)]
    pub before: Option<u64>,
    /// Limit of operations.
    pub limit: usize,
}

impl Verb for ListOperations {
    type Answer = Vec<OperationInfo>;
    const ONLY_ASKS: bool = true;

    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Vec<OperationInfo>> {
        Undoer::new(engine).operation_infos(self.before, self.limit)
    }
}

impl Verb for UndoOptions {
    type Answer = Undone;

    fn only_asks(&self) -> bool {
        self.dry_run
    }

    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<Undone> {
        Undoer::new(engine).undo_operations(requester, &self)
    }
}

impl Verb for VerifyOptions {
    type Answer = Verified;
    const ONLY_ASKS: bool = true;

    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Verified> {
        let elsewhere = engine.origin.as_ref().and_then(|origin| origin.elsewhere());
        Ok(Verified {
            elsewhere,
            ..engine.verifier.verify_for_a_while(&self)?
        })
    }
}

// A run of `du`, `gc` or `dedup` cannot continue in the next daemon.

impl Verb for DuOptions {
    type Answer = DuReport;

    fn only_asks(&self) -> bool {
        self.run.is_none()
    }

    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<DuReport> {
        engine.collector.du_for_a_while(&self)
    }
}

impl Verb for GcOptions {
    type Answer = GcReport;

    fn only_asks(&self) -> bool {
        self.dry_run && self.run.is_none()
    }

    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<GcReport> {
        engine.collector.gc_for_a_while(requester.by(), &self)
    }
}

impl Verb for DedupOptions {
    type Answer = DedupReport;

    fn only_asks(&self) -> bool {
        self.run.is_none()
    }

    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<DedupReport> {
        let mut files = Vec::new();
        let report = engine.dedup.dedup_for_a_while(&self, &mut files)?;
        requester.give(files);
        Ok(report)
    }
}

/// Lists audit events, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListAudit;

impl Verb for ListAudit {
    type Answer = Vec<AuditEvent>;
    const ONLY_ASKS: bool = true;

    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<Vec<AuditEvent>> {
        super::audit::events(&engine.timeline().store().journal)
    }

    fn read(self, store: &Offline) -> VerbResult<Vec<AuditEvent>> {
        super::audit::events(&store.journal()?)
    }
}

impl Verb for ExportAsk {
    type Answer = ExportPart;
    const ONLY_ASKS: bool = true;

    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<ExportPart> {
        let mut files = Vec::new();
        let part = super::export::Exporter::new(engine).part(&self, &mut files)?;
        if let ExportAsk::Begin { .. } | ExportAsk::Whole { .. } = self {
            requester.begins_export(part.run);
        }
        requester.give(files);
        Ok(part)
    }
}

impl Verb for ImportAsk {
    type Answer = ImportPart;

    fn only_asks(&self) -> bool {
        matches!(self, ImportAsk::Begin | ImportAsk::Look)
    }

    fn run(self, engine: &Engine, requester: &Requester) -> VerbResult<ImportPart> {
        let mut files = Vec::new();
        let part = super::import::Importer::new(engine).part(requester.by(), &self, &mut files)?;
        requester.give(files);
        Ok(part)
    }
}

/// Cancels the current request of this connection, unless it has changed something: sent during a
/// `restore` or `undo`, which sends its own reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancel;

impl Verb for Cancel {
    type Answer = ();
    const ONLY_ASKS: bool = true;

    fn run(self, _: &Engine, _: &Requester) -> VerbResult<()> {
        Ok(())
    }
}

/// Injects failures of system calls, for tests; absent: disarms them. Replies with the calls
/// counted and failed by the previous plan.
#[cfg(debug_assertions)]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The plan.
    pub plan: Option<crate::sys::fault::FaultPlan>,
}

#[cfg(debug_assertions)]
impl Verb for Fault {
    type Answer = (u64, u64);

    fn run(self, _: &Engine, _: &Requester) -> VerbResult<(u64, u64)> {
        let seen = crate::sys::fault::disarm_process();
        if let Some(plan) = self.plan {
            crate::sys::fault::arm_process(plan);
        }
        Ok((seen.calls, seen.failed))
    }
}
