//! The program itself: its output on stdout and stderr, and its exit status.

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
// Needs the verbs of a release.
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
