//! A command under protection, in the past, and in one checkpoint after the other; the checkpoints
//! that nobody asks for; hooks; a quiet moment.

mod auto;
mod branch;
mod hooks;
mod past;
mod protected;
mod quiesce;
mod tripwire;

use crate::mounted::support;
