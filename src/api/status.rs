//! Replies of `status` and `stats`.

use crate::change::{Change, Count};
use crate::ids::CheckpointId;
use crate::tree_path::host_path;
use crate::verb::Verb;
use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The reply to `status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Mount point.
    #[serde(with = "host_path")]
    pub mount: PathBuf,
    /// Backing directory.
    #[serde(with = "host_path")]
    pub backing: PathBuf,
    /// Store directory.
    #[serde(with = "host_path")]
    pub store: PathBuf,
    /// Filesystem of the backing directory: `xfs`, `btrfs`, ...
    pub filesystem: String,
    /// Capture method: `reflink` or `copy`.
    pub capture: String,
    /// I/O path of reads and writes: `passthrough` or `daemon`.
    pub io: String,
    /// I/O path of writes: `passthrough` or `daemon`.
    pub writes: String,
    /// The daemon.
    pub daemon: DaemonInfo,
    /// Number of the open epoch.
    pub epoch: u64,
    /// The newest requested checkpoint, if any.
    pub latest: Option<CheckpointId>,
    /// The checkpoint that the tree descends from and is compared with; after a restore of the
    /// whole tree the restored one.
    #[serde(default)]
    pub base: Option<CheckpointId>,
    /// Number of checkpoints.
    pub checkpoints: u64,
    /// All paths that differ from `base`, sorted; empty without a checkpoint.
    pub dirty: Vec<Change>,
    /// Files deduplicated since the mount.
    #[serde(default)]
    pub shared: Count,
    /// Offline changes before this mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absence: Option<AbsenceInfo>,
    /// The remote with the missing content, if the tree was mounted from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<OriginInfo>,
    /// Warnings: damage, refused captures, offline changes.
    pub warnings: Vec<String>,
    /// At mount a process used the backing directory directly, or this is unknown.
    #[serde(default)]
    pub had_below: bool,
}

/// A remote with the checkpoint that a tree looks through to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginInfo {
    /// Name of the remote.
    pub remote: String,
    /// Snapshot in the remote.
    pub snapshot: String,
    /// Store that the snapshot was made from.
    pub store: String,
    /// Checkpoint in that store.
    pub checkpoint: CheckpointId,
    /// Number of files with content.
    pub files: u64,
    /// Their size in bytes.
    pub bytes: u64,
    /// Number of fetched files in the local cache.
    pub files_here: u64,
    /// Their size in bytes.
    pub bytes_here: u64,
    /// Limit of the local cache in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Content is fetched on open only, not in the background.
    #[serde(default)]
    pub on_open_only: bool,
    /// Reason why missing content is unavailable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// Changes made while nothing was mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbsenceInfo {
    /// Checkpoint of the tree as last served.
    pub before: CheckpointId,
    /// Checkpoint of the tree as found.
    pub after: CheckpointId,
    /// Number of paths that differ.
    pub paths: u64,
}

/// The reply to `stats`: counters of a running daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Mount point.
    #[serde(with = "host_path")]
    pub mount: PathBuf,
    /// The daemon.
    pub daemon: DaemonInfo,
    /// I/O path of reads, as in [`Status`].
    pub io: String,
    /// I/O path of writes, as in [`Status`].
    pub writes: String,
    /// Number of kernel requests since the mount by kind, zeros included.
    pub requests: BTreeMap<String, u64>,
    /// Resident set size of the daemon in bytes.
    pub rss_bytes: u64,
    /// Number of threads of the daemon.
    pub threads: u64,
    /// Number of open files of the tree and of views.
    pub open_files: u64,
    /// Number of inodes of the tree in the kernel's cache, and directories above them.
    pub inodes: u64,
    /// Number of inodes of views in the kernel's cache.
    pub past_inodes: u64,
    /// Changes of a restore are being announced to watchers.
    pub announcing: bool,
    /// Progress of the sealer.
    #[serde(default)]
    pub sealer: SealerInfo,
    /// Free space, and the last runs of `gc` and `push`.
    #[serde(default)]
    pub upkeep: UpkeepInfo,
}

/// Free space, and the last runs of `gc` and `push`. Times are RFC 3339, UTC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpkeepInfo {
    /// Size of the filesystem in bytes; 0 if unknown.
    pub size_bytes: u64,
    /// Free space for the daemon's user in bytes.
    pub free_bytes: u64,
    /// Time of the newest checkpoint, including automatic ones, excluding guards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<String>,
    /// Size of the history as last measured by `du` or `gc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<MeasuredInfo>,
    /// End of the last `gc` run since the daemon started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gc: Option<String>,
    /// Pushes by name of the remote.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pushes: BTreeMap<String, PushInfo>,
}

/// Size of the history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredInfo {
    /// Bytes that deleting all checkpoints would free.
    pub bytes: u64,
    /// Time of the measurement.
    pub at: String,
}

/// Pushes to a remote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushInfo {
    /// End of the last successful push, including those that had nothing to upload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
    /// Number of failed pushes since the daemon started.
    #[serde(default)]
    pub failed: u64,
    /// Error of the last push, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Progress of the sealer since the mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealerInfo {
    /// `off`, `hash` or `full`.
    pub mode: String,
    /// All captures of closed epochs are hashed.
    pub caught_up: bool,
    /// Number of hashed objects.
    pub objects: u64,
    /// Their size in bytes.
    pub bytes: u64,
    /// Bytes read to hash them.
    #[serde(default)]
    pub read: u64,
}

/// The daemon that serves a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct DaemonInfo {
    /// Process id.
    pub pid: u32,
    /// Start time: RFC 3339, UTC.
    pub started: String,
    /// Its version.
    pub version: String,
    /// The process that holds the mount and restarts a dead daemon; `None`: no process does.
    #[serde(default)]
    pub holder: Option<u32>,
    /// Number of takeovers since the mount.
    #[serde(default)]
    pub takeovers: u32,
    /// Time of the last takeover: RFC 3339, UTC.
    #[serde(default)]
    pub taken_over: Option<String>,
    /// Mount id (proc_pid_mountinfo(5)) and device as encoded in `st_dev`. They identify users of a
    /// mount that is no longer in the mount table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mounted_as: Option<(u64, u64)>,
}

/// Requests the state of the mount and the differences from the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetStatus;

impl Verb for GetStatus {
    type Answer = Status;
    const ONLY_ASKS: bool = true;
}

/// Requests the counters of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetStats;

impl Verb for GetStats {
    type Answer = Stats;
    const ONLY_ASKS: bool = true;
}
