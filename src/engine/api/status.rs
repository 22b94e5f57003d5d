//! What a daemon says of itself: `status` and `stats`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Change, Count, host_path};
use crate::store::ids::CheckpointId;

/// What `status` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Where the tree is mounted.
    #[serde(with = "host_path")]
    pub mount: PathBuf,
    /// The directory that is served.
    #[serde(with = "host_path")]
    pub backing: PathBuf,
    /// The store.
    #[serde(with = "host_path")]
    pub store: PathBuf,
    /// Filesystem of the backing directory: `xfs`, `btrfs`, ...
    pub filesystem: String,
    /// How captures are made: `reflink` or `copy`.
    pub capture: String,
    /// Who does reads and writes: `passthrough` or `daemon`.
    pub io: String,
    /// How writes reach the files: `passthrough` or `daemon`.
    pub writes: String,
    /// The daemon.
    pub daemon: DaemonInfo,
    /// Number of the open epoch.
    pub epoch: u64,
    /// The newest checkpoint that somebody asked for, if there is one.
    pub latest: Option<CheckpointId>,
    /// The one that the tree comes from, with which it is compared: after a restore of the whole
    /// tree what was restored.
    #[serde(default)]
    pub base: Option<CheckpointId>,
    /// Number of checkpoints kept.
    pub checkpoints: u64,
    /// Every path that differs from `base`, sorted by path; empty if there is no checkpoint.
    pub dirty: Vec<Change>,
    /// Files that came to share what others with the same content have, since the mount.
    #[serde(default)]
    pub shared: Count,
    /// What was changed while nothing was mounted, before this mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absence: Option<AbsenceInfo>,
    /// Where content is that is not here, if the tree was mounted from a remote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<OriginInfo>,
    /// What somebody should know: damage found, captures refused, changes made while not mounted.
    pub warnings: Vec<String>,
    /// Somebody had something of the directory below the mount when it was mounted, or that is not
    /// known.
    #[serde(default)]
    pub had_below: bool,
}

/// A remote whose checkpoint a tree looks through to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginInfo {
    /// Its name.
    pub remote: String,
    /// The snapshot there.
    pub snapshot: String,
    /// The store that the snapshot is of.
    pub store: String,
    /// The checkpoint there.
    pub checkpoint: CheckpointId,
    /// Files with content.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that were fetched and are still here.
    pub files_here: u64,
    /// Their bytes.
    pub bytes_here: u64,
    /// Bytes of them that are kept here at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// What is not opened is not fetched.
    #[serde(default)]
    pub on_open_only: bool,
    /// Why what is not here cannot be had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// What was changed while nothing was mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbsenceInfo {
    /// The checkpoint of the tree as it was when it was last served.
    pub before: CheckpointId,
    /// The checkpoint of the tree as it was found.
    pub after: CheckpointId,
    /// Number of paths that differ.
    pub paths: u64,
}

/// What `stats` says: numbers of a running daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Where the tree is mounted.
    #[serde(with = "host_path")]
    pub mount: PathBuf,
    /// The daemon.
    pub daemon: DaemonInfo,
    /// Who does reads, as in [`Status`].
    pub io: String,
    /// How writes reach the files, as in [`Status`].
    pub writes: String,
    /// Requests of the kernel since the mount, by kind: every kind, also those never asked for.
    pub requests: BTreeMap<String, u64>,
    /// Memory of the daemon that is in use, in bytes (resident set size).
    pub rss_bytes: u64,
    /// Threads of the daemon.
    pub threads: u64,
    /// Open files, of the tree and of views.
    pub open_files: u64,
    /// Inodes of the tree that the kernel knows, and the directories that lead to them.
    pub inodes: u64,
    /// Inodes of views that the kernel knows.
    pub past_inodes: u64,
    /// Watchers are being told what a restore has changed.
    pub announcing: bool,
    /// What the sealer has done.
    #[serde(default)]
    pub sealer: SealerInfo,
    /// Free space, and the last runs of `gc` and `push`.
    #[serde(default)]
    pub upkeep: UpkeepInfo,
}

/// Free space, and the last runs of `gc` and `push`. Times are RFC 3339, UTC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpkeepInfo {
    /// Size of the filesystem, bytes; 0: not known.
    pub size_bytes: u64,
    /// Free bytes of it, for the user of the daemon.
    pub free_bytes: u64,
    /// When the newest checkpoint was made, automatic ones included, guards excluded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<String>,
    /// The size of the history, as `du` or `gc` has counted it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<MeasuredInfo>,
    /// When the last run of `gc` ended, since the daemon began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gc: Option<String>,
    /// Pushes, by the names of remotes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pushes: BTreeMap<String, PushInfo>,
}

/// The size of the history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredInfo {
    /// Bytes that would be freed if no checkpoint were kept.
    pub bytes: u64,
    /// When that was counted.
    pub at: String,
}

/// Pushes to a remote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushInfo {
    /// When the last push that succeeded ended, also if the remote had everything already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
    /// Pushes that have failed since the daemon began.
    #[serde(default)]
    pub failed: u64,
    /// Why the last push failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What the sealer has done since the mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealerInfo {
    /// `off`, `hash` or `full`.
    pub mode: String,
    /// Everything that closed epochs have captured is hashed.
    pub caught_up: bool,
    /// Objects that were hashed.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that were read for that.
    #[serde(default)]
    pub read: u64,
}

/// The daemon that serves a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct DaemonInfo {
    /// Process id.
    pub pid: u32,
    /// When it started: RFC 3339, UTC.
    pub started: String,
    /// Its version.
    pub version: String,
    /// The process that holds the mount and starts another daemon if this one dies; `None`: nobody
    /// would.
    #[serde(default)]
    pub holder: Option<u32>,
    /// How often a daemon died and another took over since the mount.
    #[serde(default)]
    pub takeovers: u32,
    /// When that was last: RFC 3339, UTC.
    #[serde(default)]
    pub taken_over: Option<String>,
    /// The number of the mount (proc_pid_mountinfo(5)), and its device as `st_dev` encodes it: by
    /// these its users are found when it is in no table any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mounted_as: Option<(u64, u64)>,
}
