//! The one facade over the live tree and its history.

pub mod api;
pub mod request;

use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Who does reads and writes of live files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoChoice {
    /// The kernel where it can (passthrough), else the daemon.
    #[default]
    Auto,
    /// The kernel; mounting fails where it cannot.
    Passthrough,
    /// The daemon.
    Daemon,
}

/// How to serve a tree.
#[derive(Debug)]
pub struct Config {
    /// The backing directory, opened before the mount covers it.
    pub root: OwnedFd,
    /// Its path, for people.
    pub backing: PathBuf,
    /// Where it will be mounted, for people.
    pub mount: PathBuf,
    /// Who does reads and writes.
    pub io: IoChoice,
    /// Writes pass the daemon and wait while a checkpoint is made (`--writes=daemon`), so that every cut is exact. Reads may still pass through
    /// where no writer has the file open.
    pub strict_writes: bool,
    /// `.snapshots` is listed in the root directory (`--snapdir=visible`).
    pub snapdir_visible: bool,
}
