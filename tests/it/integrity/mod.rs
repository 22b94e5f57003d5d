//! Integrity: the sealer, `verify`, `fsck` and `audit`. Every flipped bit in a store is found and
//! named, and the index follows from the journal.

mod absence;
mod apart;
mod audit;
mod baseline;
mod behind;
mod clock;
mod flips;
mod fsck;
mod left;
mod links;
mod numbers;
mod reads;
mod released;
mod sealer;
pub mod story;
mod untold;
