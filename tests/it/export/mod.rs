//! Export of checkpoints, complete and incremental, tar streams, forks, and imports of plain
//! snapshots.

mod import;
mod refused;
pub(crate) mod support;
mod tar;
mod trees;
mod whole;
