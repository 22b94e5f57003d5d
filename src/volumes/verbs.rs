//! Functions that the layer above provides to a pool.

use std::fmt::Debug;
use std::path::Path;

use serde::Deserialize;

use super::mount_facts::VolumePlace;
use super::options::Options;
use ckptfs_api::{CheckpointId, VerbResult};

/// A checkpoint at a remote. Any writer of the remote can forge one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RemoteCheckpoint {
    /// Id of its snapshot at the remote.
    pub snapshot: String,
    /// Id of the store with the checkpoint.
    pub store: String,
    /// Id of the checkpoint in that store.
    pub checkpoint: u64,
    /// Name of the tree's directory.
    pub tree: String,
    /// Its tags.
    pub tags: Vec<String>,
    /// Its note.
    pub note: String,
    /// Time of creation: RFC 3339.
    pub created: String,
}

/// The verbs that serve and copy volumes, as functions, so that a volume is served like any
/// directory.
pub trait VerbRunner: Debug + Send + Sync {
    /// Starts a daemon for a volume; it serves on return.
    ///
    /// # Errors
    /// Those of `mount`.
    fn mount(&self, place: &VolumePlace, options: &Options) -> VerbResult<()>;

    /// Unmounts.
    ///
    /// # Errors
    /// Those of `umount`.
    fn unmount(&self, point: &Path) -> VerbResult<()>;

    /// Copies a checkpoint of the tree mounted at `point` to an empty directory. Files share their
    /// data where the filesystem supports reflink.
    ///
    /// # Errors
    /// Those of `fork`; `incomplete`.
    fn fork(&self, point: &Path, checkpoint: CheckpointId, dir: &Path) -> VerbResult<()>;

    /// Rejects the name of a remote that is not configured. Contacts no server.
    ///
    /// # Errors
    /// `unknown-remote`, with the configured names; `bad-config`; `usage` in a build without
    /// remotes.
    fn check_remote(&self, remote: &str) -> VerbResult<()>;

    /// Returns the checkpoints at a remote, oldest first. Waits up to a minute for a server.
    ///
    /// # Errors
    /// As [`VerbRunner::check_remote`]; `bad-password`, `remote-failed`.
    fn pushed(&self, remote: &str) -> VerbResult<Vec<RemoteCheckpoint>>;

    /// Sends a checkpoint of the tree mounted at `point`, unless the remote already has it. On
    /// return the transfer is complete.
    ///
    /// # Errors
    /// As [`VerbRunner::pushed`]; `unknown-checkpoint`, `incomplete`.
    fn push(&self, point: &Path, remote: &str, checkpoint: CheckpointId) -> VerbResult<()>;

    /// Fetches a snapshot, given by its id, into a directory that is empty or has data of an
    /// interrupted call. On return the tree is complete and on disk.
    ///
    /// # Errors
    /// As [`VerbRunner::pushed`]; `not-empty`, `incomplete`, `no-space`.
    fn pull(&self, remote: &str, snapshot: &str, dir: &Path) -> VerbResult<()>;

    /// Removes a snapshot, given by its id, from a remote; a missing one is not an error. Its data
    /// stays until the remote is pruned.
    ///
    /// # Errors
    /// As [`VerbRunner::pushed`].
    fn forget(&self, remote: &str, snapshot: &str) -> VerbResult<()>;
}
