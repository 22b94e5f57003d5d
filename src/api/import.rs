//! Requests of `import`: the client's access to the backing directory.

use serde::{Deserialize, Serialize};

use crate::export::Refused;
use crate::tree_path::TreePath;
use crate::verb::Verb;
/// Prefix of the names of staged inodes.
pub const STAGED_PREFIX: &str = ".ckptfs-export-";

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImportAsk {
    /// Return descriptors of the backing directory and of the staging directory. Inodes left there
    /// by a killed import are removed.
    Begin,
    /// Return a descriptor of the backing directory for reading.
    Look,
    /// Move staged inodes into the tree.
    Put {
        /// Name in the staging directory and path in the tree, whose directory must exist.
        staged: Vec<(String, TreePath)>,
    },
}

/// The reply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportPart {
    /// Inodes that could not be moved, and were removed from the staging directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
}

impl Verb for ImportAsk {
    type Answer = ImportPart;
    fn only_asks(&self) -> bool {
        matches!(self, ImportAsk::Begin | ImportAsk::Look)
    }
}
