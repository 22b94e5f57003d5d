//! Container volumes without a container engine: the calls as engines send them, what is mounted by
//! them, and what survives kills.

mod support;

mod branches;
mod cli;
mod metrics;
mod names;
mod options;
#[cfg(feature = "remote")]
mod remote;
mod survival;
mod transcript;
mod uses;
