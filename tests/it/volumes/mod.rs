//! Container volumes without a container engine: the calls that engines send, the resulting mounts,
//! and their survival of kills.

mod support;

mod branches;
mod cli;
mod metrics;
mod mount_records;
mod names;
mod options;
#[cfg(feature = "remote")]
mod remote;
mod survival;
mod transcript;
