//! Integrity: the sealer, `verify`, `fsck` and `audit`. Every flipped bit in a store is found and
//! named, and the index follows from the journal.

mod absence;
mod absence_checkpoints;
mod audit;
mod baseline;
mod behind_the_mount;
mod clock;
mod flips;
mod fsck;
mod inode_reuse;
mod links;
mod reads;
mod released;
mod restore_skips;
mod sealer;
pub mod story;
mod unknown_past;
