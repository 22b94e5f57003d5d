//! History of one tree: undo records by epoch, checkpoints, views of the past, and differences
//! between states.

pub mod absence;
pub mod append;
pub mod attribution;
pub mod base;
pub mod catalogue;
mod checkpoints;
mod closing;
mod collect;
pub mod content;
pub mod diff;
pub mod dropped;
pub mod epochs;
pub mod indexer;
mod journal_lookup;
pub mod lookup;
pub mod losses;
pub mod operations;
pub mod present;
pub mod processes;
mod resume;
pub mod same;
pub mod select;
pub mod since;
pub mod snapshots;
pub mod state;
pub mod table;
mod tags;
pub mod timeline;
pub mod touched;
pub mod unserved;
pub mod version_census;
pub mod versions;
pub mod view;
pub mod wake;
pub mod writers;
mod written;

#[cfg(test)]
mod forget_tests;
