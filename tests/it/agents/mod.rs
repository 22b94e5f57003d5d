//! Coding agents: their hooks, `ckptfs rewind`, and changes of their settings.

mod events;
mod programs;
mod sessions;
mod settings;
mod support;
mod users;
mod worktrees;
