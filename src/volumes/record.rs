//! The record of a volume: a JSON file, written atomically.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::files::write_whole;
use super::options::Options;
use super::process_ident::ProcessIdent;
use ckptfs_api::{Code, ErrorContext, VerbResult, error, io_error};

/// Format version of the file.
const VERSION: u32 = 1;
/// Maximum size of a record file in bytes; a larger file is rejected.
const RECORD_BYTES_MAX: u64 = 4 << 20;

/// Origin of a volume's tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeOrigin {
    /// The source volume.
    pub volume: String,
    /// Id of its checkpoint.
    pub checkpoint: u64,
    /// The branch of that volume which is this volume; `None` for a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The remote from which it was fetched; `None` if the source is, or was, in this pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
}

impl VolumeOrigin {
    /// Formats it as `VOLUME@CHECKPOINT`, or `REMOTE:VOLUME@CHECKPOINT`.
    pub fn told(&self) -> String {
        let remote = self.remote.iter().map(|remote| format!("{remote}:"));
        let remote: String = remote.collect();
        format!("{remote}{}@{}", self.volume, self.checkpoint)
    }
}

/// A recorded use of a volume by an engine or a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeUse {
    /// Id given by the engine.
    pub id: String,
    /// Start, in seconds since 1970.
    pub since: i64,
    /// Boot id of the machine.
    pub boot: String,
    /// The requesting process, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<ProcessIdent>,
    /// Id of the checkpoint in use, for a past state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<u64>,
}

/// Request of an orchestrator for a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Name given by the orchestrator.
    pub name: String,
    /// Requested capacity in bytes; 0 if unspecified.
    pub bytes: u64,
    /// Parameters, unchanged.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// Source of the content: a volume or a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Time of creation, in nanoseconds since 1970.
    pub made_ns: i64,
}

/// A checkpoint exposed to an orchestrator as a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Name given by the orchestrator.
    pub name: String,
    /// Id of the checkpoint.
    pub checkpoint: u64,
    /// Time of creation: RFC 3339, with nanoseconds.
    pub created: String,
    /// Capacity in bytes required for a volume created from it; 0 if unknown.
    pub bytes: u64,
    /// Deleted by the orchestrator. It exists until the last volume that is a branch of it is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    /// Where it is to be sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<RemoteDestination>,
}

/// Destination of a checkpoint at a remote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteDestination {
    /// Name of the remote.
    pub remote: String,
    /// Id of the volume's store, which identifies the volume there.
    pub store: String,
    /// The transfer is complete.
    pub whole: bool,
}

/// The record of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// Format version of the file.
    pub version: u32,
    /// Its name.
    pub name: String,
    /// Time of creation: RFC 3339. An engine drops a volume whose time it cannot parse.
    pub created: String,
    /// Options, as given by the user.
    pub options: BTreeMap<String, String>,
    /// Origin of its tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<VolumeOrigin>,
    /// Uses that have not ended.
    #[serde(default)]
    pub mounts: Vec<VolumeUse>,
    /// It was mounted by us, and must be unmounted by us.
    #[serde(default)]
    pub mounted: bool,
    /// The rules of `keep` are in its configuration.
    #[serde(default)]
    pub configured: bool,
    /// The request of an orchestrator, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    /// Snapshots of an orchestrator, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<Snapshot>,
    /// Deleted by the orchestrator. It exists until its snapshots and the volumes that are branches
    /// of it are gone.
    #[serde(default)]
    pub retired: bool,
    /// Its remains must be removed: its removal has begun, or its creation has not completed.
    #[serde(default)]
    pub removing: bool,
    /// Its creation has not completed; its remains are deleted and not moved to the trash.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub making: bool,
}

impl VolumeUse {
    /// Whether the requesting process has ended. A killed engine does not end its uses. Podman
    /// exits while its container runs, so this alone does not prove that the use has ended.
    pub(super) fn is_orphan(&self) -> bool {
        self.boot != boot() || self.by.is_some_and(|by| !by.lives())
    }
}

impl VolumeRecord {
    /// Creates the record of a new volume.
    pub fn new(name: &str, options: BTreeMap<String, String>) -> VolumeRecord {
        let (created, mounts) = (now_text(), Vec::new());
        let name = name.to_owned();
        VolumeRecord {
            version: VERSION,
            name,
            created,
            options,
            parent: None,
            mounts,
            mounted: false,
            configured: false,
            claim: None,
            snapshots: Vec::new(),
            retired: false,
            removing: false,
            making: false,
        }
    }

    /// Returns the source volume and the name of the branch, if this volume is a branch.
    pub fn branch(&self) -> Option<(&str, &str)> {
        let parent = self.parent.as_ref()?;
        Some((&parent.volume, parent.branch.as_deref()?))
    }

    /// Iterates over the snapshots not deleted by the orchestrator, oldest first.
    pub fn snapshots_told(&self) -> impl Iterator<Item = &Snapshot> {
        self.snapshots.iter().filter(|one| !one.deleted)
    }

    /// Returns the snapshot of a checkpoint with this destination, unless deleted by the
    /// orchestrator.
    pub fn sent(&self, checkpoint: u64, to: &RemoteDestination) -> Option<&Snapshot> {
        let same = |known: &RemoteDestination| known.remote == to.remote && known.store == to.store;
        self.snapshots_told()
            .find(|one| one.checkpoint == checkpoint && one.sent.as_ref().is_some_and(same))
    }

    /// Returns the time of creation in nanoseconds since 1970, exact for a claimed volume.
    pub fn made_ns(&self) -> i64 {
        let told = || {
            self.created
                .parse::<jiff::Timestamp>()
                .ok()
                .and_then(|time| i64::try_from(time.as_nanosecond()).ok())
        };
        self.claim
            .as_ref()
            .map(|claim| claim.made_ns)
            .or_else(told)
            .unwrap_or(0)
    }

    /// Parses the options.
    ///
    /// # Errors
    /// The record has invalid options.
    pub fn parsed(&self) -> VerbResult<Options> {
        Options::parse(&self.options)
    }

    /// Adds a use; returns whether it is new. The same use may be requested again, because an
    /// engine that crashed does not end it.
    pub fn add(&mut self, id: &str, boot: &str, by: Option<ProcessIdent>) -> bool {
        if let Some(known) = self.mounts.iter_mut().find(|mount| mount.id == id) {
            known.by = by;
            return false;
        }
        self.mounts.push(VolumeUse {
            id: id.to_owned(),
            since: now_seconds(),
            boot: boot.to_owned(),
            by,
            checkpoint: None,
        });
        true
    }

    /// Removes a use; returns whether it existed.
    pub fn take(&mut self, id: &str) -> bool {
        let before = self.mounts.len();
        self.mounts.retain(|mount| mount.id != id);
        self.mounts.len() != before
    }

    /// Reads a record file; `None` if it does not exist.
    ///
    /// # Errors
    /// It cannot be read, or is not a valid record.
    pub fn load(path: &Path) -> VerbResult<Option<VolumeRecord>> {
        let size = match fs::symlink_metadata(path) {
            Ok(found) => found.len(),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(io_error(path.display(), cause)),
        };
        let damaged = |why: String| error(Code::BadVolume, format!("{}: {why}", path.display()));
        if size > RECORD_BYTES_MAX {
            return Err(damaged(format!("it has {size} bytes")));
        }
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(io_error(path.display(), cause)),
        };
        let record: VolumeRecord =
            serde_json::from_slice(&text).map_err(|cause| damaged(cause.to_string()))?;
        match record.version {
            VERSION => Ok(Some(record)),
            other => Err(damaged(format!(
                "it has version {other}, and this ckptfs supports {VERSION}"
            ))),
        }
    }

    /// Writes the record file atomically. On return it is on disk.
    ///
    /// # Errors
    /// The old file is unchanged then.
    pub fn save(&self, path: &Path) -> VerbResult<()> {
        let mut text = serde_json::to_vec_pretty(self)
            .map_err(|cause| error(Code::Internal, cause.to_string()))?;
        text.push(b'\n');
        write_whole(path, &text).on(path.display())
    }
}

fn now_seconds() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// Returns the current time in whole seconds.
pub fn now_text() -> String {
    jiff::Timestamp::from_second(now_seconds())
        .map(|now| now.to_string())
        .unwrap_or_default()
}

/// Returns the age of a use in seconds; 0 if the clock was set back.
pub fn age(mount: &VolumeUse) -> u64 {
    u64::try_from(now_seconds() - mount.since).unwrap_or(0)
}

/// Returns the boot id.
pub fn boot() -> String {
    let read = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    read.map(|boot| boot.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("v.json");
        assert_eq!(VolumeRecord::load(&path).unwrap(), None);
        let mut record = VolumeRecord::new(
            "v",
            BTreeMap::from([("readonly".to_owned(), String::new())]),
        );
        record.parent = Some(VolumeOrigin {
            volume: "w".into(),
            checkpoint: 3,
            branch: Some("volume.v".into()),
            remote: None,
        });
        assert!(
            record.add("a", "boot", None)
                && !record.add("a", "boot", None)
                && record.add("b", "boot", None)
        );
        record.save(&path).unwrap();
        assert_eq!(VolumeRecord::load(&path).unwrap(), Some(record.clone()));
        assert!(record.take("a") && !record.take("a"));
        record.save(&path).unwrap();
        assert_eq!(VolumeRecord::load(&path).unwrap().unwrap().mounts.len(), 1);
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "nothing is left beside it"
        );
        assert!(record.created.parse::<jiff::Timestamp>().is_ok() && !record.created.contains('.'));
    }

    #[test]
    fn what_is_none_is_told() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("v.json");
        for text in ["", "{", "[]", "{\"version\":1}"] {
            fs::write(&path, text).unwrap();
            assert_eq!(
                VolumeRecord::load(&path).unwrap_err().code,
                Code::BadVolume,
                "{text}"
            );
        }
        let mut record = VolumeRecord::new("v", BTreeMap::new());
        record.version = 2;
        record.save(&path).unwrap();
        assert!(
            VolumeRecord::load(&path)
                .unwrap_err()
                .message
                .contains("version 2")
        );
    }
}
