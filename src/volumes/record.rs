//! What is known of a volume: one file, written whole.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::asker::Asker;
use super::error::{On, error, io_error};
use super::files::write_whole;
use super::options::Options;
use crate::engine::api::{Code, VerbResult};

/// Version of the file.
const VERSION: u32 = 1;
/// A file of more bytes is none of ours.
const RECORD_BYTES_MAX: u64 = 4 << 20;

/// Where a volume's tree comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// The volume.
    pub volume: String,
    /// The number of its checkpoint.
    pub checkpoint: u64,
    /// The branch of that volume which this one is; `None`: it is a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The remote that it was fetched from; `None`: the volume is, or was, in this pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
}

impl Parent {
    /// As it is told: `VOLUME@CHECKPOINT`, or `REMOTE:VOLUME@CHECKPOINT`.
    pub fn told(&self) -> String {
        let remote = self.remote.iter().map(|remote| format!("{remote}:"));
        let remote: String = remote.collect();
        format!("{remote}{}@{}", self.volume, self.checkpoint)
    }
}

/// A mount that an engine, or a program, has asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountId {
    /// As it was given.
    pub id: String,
    /// When: seconds since 1970.
    pub since: i64,
    /// In which run of the machine.
    pub boot: String,
    /// Who asked, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Asker>,
    /// The number of the checkpoint that it looks at, if it is a past state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<u64>,
}

/// What an orchestrator asked for when it had a volume made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Its name for it.
    pub name: String,
    /// The bytes that it was promised; 0: nobody said any.
    pub bytes: u64,
    /// As they were given.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// What it begins with: a volume, or a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// When, in nanoseconds since 1970.
    pub made_ns: i64,
}

/// A checkpoint that an orchestrator knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its name for it.
    pub name: String,
    /// The number of the checkpoint.
    pub checkpoint: u64,
    /// When it was made: RFC 3339, nanoseconds.
    pub created: String,
    /// What a volume made of it must have room for; 0: not known.
    pub bytes: u64,
    /// The orchestrator has deleted it; it is there for the volumes that are branches of it, and
    /// goes with the last of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    /// Where it is to be as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<Sent>,
}

/// Where a checkpoint was sent, or is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// The name of the remote.
    pub remote: String,
    /// The number of the volume's store, by which it is known there.
    pub store: String,
    /// The remote has it whole.
    pub whole: bool,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Of this file.
    pub version: u32,
    /// Its name.
    pub name: String,
    /// When it was made: RFC 3339. An engine drops a volume whose time it cannot read.
    pub created: String,
    /// Its options, as they were given.
    pub options: BTreeMap<String, String>,
    /// What it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The mounts that were asked for and not given back.
    #[serde(default)]
    pub mounts: Vec<MountId>,
    /// It was mounted by us, and so is unmounted by us.
    #[serde(default)]
    pub mounted: bool,
    /// The rules of `keep` are in its configuration.
    #[serde(default)]
    pub configured: bool,
    /// Who asked for it, if an orchestrator did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    /// Checkpoints that an orchestrator knows as snapshots, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<Snapshot>,
    /// The orchestrator has deleted it; it is there for its snapshots, and for the volumes that are
    /// branches of it, and goes with the last of them.
    #[serde(default)]
    pub retired: bool,
    /// What there is of it is to go: its removal has begun, or its making has not ended.
    #[serde(default)]
    pub removing: bool,
    /// Its making has not ended: it goes for good.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub making: bool,
}

impl MountId {
    /// Whether whoever asked for it runs no more. An engine that was killed gives nothing back;
    /// Podman ends when its container runs, so this alone does not say that the use has ended.
    pub(super) fn is_orphan(&self) -> bool {
        self.boot != boot() || self.by.is_some_and(|by| !by.lives())
    }
}

impl Record {
    /// A volume made now.
    pub fn new(name: &str, options: BTreeMap<String, String>) -> Record {
        let (created, mounts) = (now_text(), Vec::new());
        let name = name.to_owned();
        Record {
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

    /// The volume that this one is a branch of, and the name of the branch, if it is one.
    pub fn branch(&self) -> Option<(&str, &str)> {
        let parent = self.parent.as_ref()?;
        Some((&parent.volume, parent.branch.as_deref()?))
    }

    /// The snapshots that the orchestrator knows, oldest first.
    pub fn snapshots_told(&self) -> impl Iterator<Item = &Snapshot> {
        self.snapshots.iter().filter(|one| !one.deleted)
    }

    /// The snapshot that was sent so, or is to be, if the orchestrator knows it.
    pub fn sent(&self, checkpoint: u64, to: &Sent) -> Option<&Snapshot> {
        let same = |known: &Sent| known.remote == to.remote && known.store == to.store;
        self.snapshots_told()
            .find(|one| one.checkpoint == checkpoint && one.sent.as_ref().is_some_and(same))
    }

    /// When it was made, in nanoseconds since 1970: exact if it was claimed.
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

    /// Its options, understood.
    ///
    /// # Errors
    /// The file was written by somebody else.
    pub fn parsed(&self) -> VerbResult<Options> {
        Options::parse(&self.options)
    }

    /// Adds a mount; whether it was not there before. The same one may be asked for again: after a
    /// crash of the engine nobody gives it back.
    pub fn add(&mut self, id: &str, boot: &str, by: Option<Asker>) -> bool {
        if let Some(known) = self.mounts.iter_mut().find(|mount| mount.id == id) {
            known.by = by;
            return false;
        }
        self.mounts.push(MountId {
            id: id.to_owned(),
            since: now_seconds(),
            boot: boot.to_owned(),
            by,
            checkpoint: None,
        });
        true
    }

    /// Takes a mount out; whether it was there.
    pub fn take(&mut self, id: &str) -> bool {
        let before = self.mounts.len();
        self.mounts.retain(|mount| mount.id != id);
        self.mounts.len() != before
    }

    /// Reads a file; `None` without one.
    ///
    /// # Errors
    /// It cannot be read, or is none of ours.
    pub fn load(path: &Path) -> VerbResult<Option<Record>> {
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
        let record: Record =
            serde_json::from_slice(&text).map_err(|cause| damaged(cause.to_string()))?;
        match record.version {
            VERSION => Ok(Some(record)),
            other => Err(damaged(format!(
                "it has version {other}, and this ckptfs supports {VERSION}"
            ))),
        }
    }

    /// Writes it, in place of what was there; it is on disk when this returns.
    ///
    /// # Errors
    /// The old one is there then.
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

/// Now, in whole seconds.
pub fn now_text() -> String {
    jiff::Timestamp::from_second(now_seconds())
        .map(|now| now.to_string())
        .unwrap_or_default()
}

/// The age of a mount in seconds; 0 if the clock was set back.
pub fn age(mount: &MountId) -> u64 {
    u64::try_from(now_seconds() - mount.since).unwrap_or(0)
}

/// This run of the machine.
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
        assert_eq!(Record::load(&path).unwrap(), None);
        let mut record = Record::new(
            "v",
            BTreeMap::from([("readonly".to_owned(), String::new())]),
        );
        record.parent = Some(Parent {
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
        assert_eq!(Record::load(&path).unwrap(), Some(record.clone()));
        assert!(record.take("a") && !record.take("a"));
        record.save(&path).unwrap();
        assert_eq!(Record::load(&path).unwrap().unwrap().mounts.len(), 1);
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
                Record::load(&path).unwrap_err().code,
                Code::BadVolume,
                "{text}"
            );
        }
        let mut record = Record::new("v", BTreeMap::new());
        record.version = 2;
        record.save(&path).unwrap();
        assert!(
            Record::load(&path)
                .unwrap_err()
                .message
                .contains("version 2")
        );
    }
}
