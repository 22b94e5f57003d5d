//! A command under protection, in the past, and in one checkpoint after the other; the checkpoints that nobody asks for; hooks; a quiet moment.

#[path = "../common/mod.rs"]
mod common;
#[path = "../mounted/support.rs"]
#[allow(dead_code, unused_imports)]
mod support;

mod auto;
mod hooks;
mod past;
mod protected;
mod quiesce;
mod tripwire;
