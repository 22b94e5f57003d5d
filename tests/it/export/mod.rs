//! A checkpoint's tree elsewhere: exports, whole and from one state to the next, tar streams,
//! forks, and histories brought in from plain snapshots.

mod import;
mod refused;
pub mod support;
mod tar;
mod trees;
mod whole;
