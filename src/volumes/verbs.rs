//! What the layer above does for a pool.

use std::fmt::Debug;
use std::path::Path;

use serde::Deserialize;

use super::facts::Place;
use super::options::Options;
use crate::engine::api::VerbResult;
use crate::store::ids::CheckpointId;

/// A checkpoint that a remote has. Whoever may write there could have made it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Pushed {
    /// The number of its snapshot there.
    pub snapshot: String,
    /// The store that it was made in.
    pub store: String,
    /// Its number in that store.
    pub checkpoint: u64,
    /// The name of the tree's directory.
    pub tree: String,
    /// Its tags.
    pub tags: Vec<String>,
    /// Its note.
    pub note: String,
    /// When it was made: RFC 3339.
    pub created: String,
}

/// The verbs that serve a volume and copy it, as functions: so a volume is served as any directory
/// is.
pub trait Verbs: Debug + Send + Sync {
    /// Has a daemon serve a volume; it serves when this returns.
    ///
    /// # Errors
    /// Those of `mount`.
    fn mount(&self, place: &Place, options: &Options) -> VerbResult<()>;

    /// Unmounts.
    ///
    /// # Errors
    /// Those of `umount`.
    fn unmount(&self, point: &Path) -> VerbResult<()>;

    /// Copies a checkpoint of what is mounted at `point` to an empty directory. Files share their
    /// data where the filesystem can do that.
    ///
    /// # Errors
    /// Those of `fork`; `incomplete`.
    fn fork(&self, point: &Path, checkpoint: CheckpointId, dir: &Path) -> VerbResult<()>;

    /// Refuses the name of a remote that nobody has configured. Asks no server.
    ///
    /// # Errors
    /// `unknown-remote`, with the names that there are; `bad-config`; `usage` in a build without
    /// remotes.
    fn check_remote(&self, remote: &str) -> VerbResult<()>;

    /// What a remote has, the oldest first. A server that does not answer is waited for a minute.
    ///
    /// # Errors
    /// As of [`Verbs::check_remote`]; `bad-password`, `remote-failed`.
    fn pushed(&self, remote: &str) -> VerbResult<Vec<Pushed>>;

    /// Sends a checkpoint of what is mounted at `point`; one that is there already is not sent
    /// again. When it returns the remote has it whole.
    ///
    /// # Errors
    /// As of [`Verbs::pushed`]; `unknown-checkpoint`, `incomplete`.
    fn push(&self, point: &Path, remote: &str, checkpoint: CheckpointId) -> VerbResult<()>;

    /// Fetches a snapshot, named by its number, into a directory that is empty, or holds what an
    /// earlier call that was cut short has fetched. When it returns all is there, as it was, and on
    /// disk.
    ///
    /// # Errors
    /// As of [`Verbs::pushed`]; `not-empty`, `incomplete`, `no-space`.
    fn pull(&self, remote: &str, snapshot: &str, dir: &Path) -> VerbResult<()>;

    /// Forgets a snapshot, named by its number; one that is not there is as good. What only it
    /// needs stays until the remote is pruned.
    ///
    /// # Errors
    /// As of [`Verbs::pushed`].
    fn forget(&self, remote: &str, snapshot: &str) -> VerbResult<()>;
}
