//! The programming interface of ckptfs: a [`Client`] sends requests to the daemon of a mount, as the
//! command line does, over the control socket in the store.
//!
//! ```no_run
//! use ckptfs_api::{CheckpointOptions, Client, RestoreOptions, STORE_NAME, StateName};
//!
//! let store = std::fs::File::open(format!("/srv/project/{STORE_NAME}"))?;
//! let mut client = Client::connect(&store)?;
//! let note = "before the migration".to_owned();
//! let made = client.ask(CheckpointOptions { note, ..CheckpointOptions::default() })?;
//! // ... and if the migration has failed:
//! client.ask(RestoreOptions {
//!     to: StateName(made.id.to_string()),
//!     paths: Vec::new(),
//!     dry_run: false,
//!     times: None,
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The types serialize to the JSON that `--json` prints (docs/cli.md). They are stable within a
//! version of the control protocol.
//!
//! **Wire.** Frames are JSON on one line, terminated by a newline: `{"version":2,"request":{...}}`
//! to the daemon, up to [`protocol::FRAME_BYTES_MAX`] long, and `{"version":2,"result":{"ok":{...}}}`
//! or `{"version":2,"result":{"error":{...}}}` in reply. A connection carries any number of
//! requests, in sequence.
//!
//! **Daemons.** A client connects only to a daemon of its user or root: see [`look`]. A request
//! names its tree, and the daemon of another tree rejects it.
//!
//! **Locking.** None.

mod actor;
mod attribution;
mod audit;
mod branch;
mod change;
mod checkpoint;
mod client;
mod conflicts;
mod dedup;
mod discovery;
pub mod display;
mod du;
mod error;
mod export;
mod gc;
mod ids;
mod import;
mod merge;
mod open_store;
mod prompt;
pub mod protocol;
mod push;
mod request;
mod restore;
mod retention;
mod snapdir;
mod status;
mod tree_path;
mod undo;
mod unmount;
mod verb;
mod verify;
mod versions;

pub use actor::{Actor, Reason, Trigger};
pub use attribution::{
    ByProcess, ChangeBy, CompareByProcess, OnlyBy, OpenAtCut, OpenFile, ProcessInfo,
    REWIND_PROCESS, RestoredOnly, SharedPath, UNDO_PROCESS,
};
pub use audit::{AuditEvent, AuditKind, ListAudit};
pub use branch::{
    BranchInfo, CreateBranch, DiffBranch, DropBranch, DroppedBranch, FreeBranch, ListBranches,
    MountBranch, ReviveBranch,
};
pub use change::{Change, ChangeKind, Compare, Count, Why};
pub use checkpoint::{
    ChangeTags, CheckpointInfo, CheckpointOptions, Delete, DroppedInfo, ListCheckpoints,
    PinCheckpoint, Query, Retag, ShowCheckpoint, SlowFile, StateName, microseconds,
};
pub use client::{Canceller, Client};
pub use conflicts::{Clash, Conflict, ListConflicts, Touch, WatchConflicts, Watched};
pub use dedup::{Content, DedupOptions, DedupReport, DedupStage, ExcludeReason, ExcludedFile};
pub use discovery::{StoreDir, StoreLookup, is_same, look};
pub use du::{DuOne, DuOptions, DuReport};
pub use error::{
    Code, ErrorContext, VerbError, VerbResult, error, hinted, io_error, not_exact, plain,
};
pub use export::{ExportAsk, ExportData, ExportEntry, ExportPart, Refused};
pub use gc::{GcKept, GcOptions, GcReason, GcRemoved, GcReport, GcTier};
pub use ids::{CheckpointId, Epoch};
pub use import::{ImportAsk, ImportPart, STAGED_PREFIX};
pub use merge::{
    ConflictKind, Merge, MergeAnswer, MergeBase, MergeConflict, MergePolicy, MergeSide,
    MergeVersion, MergeVersions, Merged, UpdateBranch,
};
pub use open_store::OpenStore;
pub use prompt::{PromptQuery, PromptStatus};
pub use push::{BEGINS_HERE, NotePush, PUSHED_TO, push_pin};
#[cfg(debug_assertions)]
pub use request::Fault;
pub use request::{Cancel, Request};
pub use restore::{RestoreOptions, Restored, Times};
pub use retention::{Retention, Rule, Tier};
pub use snapdir::{
    SNAPDIR, SNAPDIR_FILE, SNAPDIR_INODE, is_snapdir_inode, is_snapdir_name, noted_snapdir,
};
pub use status::{
    AbsenceInfo, DaemonInfo, GetStats, GetStatus, MeasuredInfo, OriginInfo, PushInfo, SealerInfo,
    Stats, Status, UpkeepInfo,
};
pub use tree_path::{TreePath, host_path, is_among};
pub use undo::{
    ListOperations, OperationInfo, OperationKind, TagsChanged, UndoOptions, UndoWalk, Undone,
    UndoneStep,
};
pub use unmount::{SavePolicy, Unmount};
pub use verb::{Answer, Verb};
pub use verify::{Damage, DamageKind, Verified, VerifyOptions};
pub use versions::{ListVersions, VersionInfo, VersionKind};

/// Name of the socket in the store.
pub const SOCKET_NAME: &str = "control.sock";

/// Name of the store in its directory, and of the link to it in the mount.
pub const STORE_NAME: &str = ".ckptfs";
