//! What the layer above does for a pool.

use std::fmt::Debug;
use std::path::Path;

use super::facts::Place;
use super::options::Options;
use crate::engine::api::VerbResult;
use crate::store::ids::CheckpointId;

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
}
