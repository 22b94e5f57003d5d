//! What is on disk in `.ckptfs/`: the journal, the layers, and the index over them.

pub mod ids;
pub mod record;
