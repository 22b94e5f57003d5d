//! What was: undo records by epoch, checkpoints, views of the past, and what differs between two of them.

pub mod absence;
pub mod attribution;
mod closing;
mod collect;
pub mod content;
pub mod diff;
pub mod dropped;
pub mod eager;
pub mod indexer;
pub mod lookup;
pub mod needed;
pub mod operations;
pub mod present;
mod resume;
pub mod select;
pub mod since;
mod slow;
pub mod table;
pub mod tags;
pub mod timeline;
pub mod touched;
pub mod versions;
pub mod view;
pub mod writers;

#[cfg(test)]
mod forget_tests;
