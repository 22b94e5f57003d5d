//! Coding agents: what their hooks do, what `ckptfs rewind` takes back, and how settings are
//! changed.

mod events;
mod programs;
mod sessions;
mod settings;
mod support;
mod users;
mod worktrees;
