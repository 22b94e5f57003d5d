//! The real program: what it prints, where, and how it exits.

mod branch_git;
mod browse;
mod config;
mod examples;
mod git_clean;
mod guide;
mod hints;
mod history;
mod log_counts;
mod mistakes;
mod mounted;
mod mounts;
// The verbs of what is released.
#[cfg(feature = "remote")]
mod no_pool;
mod outputs;
mod patches;
mod pins;
mod plain;
mod prompt;
mod run;
mod shells;
pub mod support;
mod terminal;
mod undo;
mod undo_walks;
mod verbs;
