//! Commands under protection, at a checkpoint, and at a series of checkpoints; automatic
//! checkpoints; hooks; quiescence.

mod auto;
mod branch;
mod hooks;
mod past;
mod protected;
mod quiesce;
mod tripwire;

use crate::mounted::support;
