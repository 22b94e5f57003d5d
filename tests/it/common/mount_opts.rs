//! Mount options.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::command::{run_limited, tool, try_run_limited};
use super::process;
use super::run_dir::RunDir;

/// The I/O path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// The kernel reads and writes the backing file.
    Passthrough,
    /// The daemon reads and writes it.
    Daemon,
}

impl Io {
    /// Returns the value of `--io` and of `status --json`.
    pub fn name(self) -> &'static str {
        match self {
            Io::Passthrough => "passthrough",
            Io::Daemon => "daemon",
        }
    }
}

/// Mount options; `MountOpts::new(io)` returns the defaults.
#[derive(Clone, Debug)]
pub struct MountOpts {
    /// The requested I/O path.
    pub io: Io,
    /// Additional arguments of `ckptfs mount`.
    pub extra: Vec<String>,
    /// Variables for the commands and the daemon, such as `CKPTFS_LOG`.
    pub env: Vec<(String, String)>,
    /// The mount point; the directory itself if `None`.
    pub mountpoint: Option<PathBuf>,
    /// The user and group ID of every command.
    pub user: Option<u32>,
    /// The lifetime after which the mount is aborted.
    pub limit: Duration,
    /// Use a branch of the mounted tree as the live tree: it begins with equal content, all of it
    /// inherited.
    pub branch: bool,
}

thread_local! {
    static ON_BRANCHES: Cell<bool> = const { Cell::new(false) };
}

/// While this exists, the default mounts of this thread are branches.
pub struct OnBranches(());

impl OnBranches {
    pub fn start() -> OnBranches {
        ON_BRANCHES.set(true);
        OnBranches(())
    }
}

impl Drop for OnBranches {
    fn drop(&mut self) {
        ON_BRANCHES.set(false);
    }
}

impl MountOpts {
    /// Returns the defaults: an in-place mount.
    pub fn new(io: Io) -> MountOpts {
        MountOpts {
            io,
            extra: Vec::new(),
            env: Vec::new(),
            mountpoint: None,
            user: None,
            limit: limit(),
            branch: ON_BRANCHES.get() || std::env::var_os("CKPTFS_TEST_BRANCH").is_some(),
        }
    }

    /// Packs the journal in idle time at any size, instead of from some hundred kilobytes on.
    pub fn packing(self) -> MountOpts {
        self.leaving_out("pack-size")
    }

    /// Records the tree ahead at every opportunity, and compares the changes that an unmount writes
    /// with a walk; see [`Mount::compared_baseline`].
    pub fn comparing(self) -> MountOpts {
        self.leaving_out("calm,baseline-trust")
    }

    /// Folds even few changes into a small baseline.
    pub fn folding(self) -> MountOpts {
        self.leaving_out("fold-min")
    }

    /// Records the tree ahead at every opportunity.
    pub fn hasty(self) -> MountOpts {
        self.leaving_out("calm")
    }

    /// Syncs a new branch at its first change instead of at its creation.
    pub fn unsettled(self) -> MountOpts {
        self.leaving_out("settle")
    }

    /// Skips steps that a debug build can skip, to show their purpose.
    pub fn leaving_out(mut self, steps: &str) -> MountOpts {
        const NAME: &str = "CKPTFS_UNSAFE_FOR_TESTS";
        match self.env.iter_mut().find(|(name, _)| name == NAME) {
            Some((_, known)) => *known = format!("{known},{steps}"),
            None => self.env.push((NAME.into(), steps.into())),
        }
        self
    }

    /// Adds an argument of `ckptfs mount`.
    pub fn arg(mut self, argument: &str) -> MountOpts {
        self.extra.push(argument.to_owned());
        self
    }
}

pub fn mount_command(dir: &Path, opts: &MountOpts) -> Command {
    let mut command = binary(opts);
    command
        .arg("mount")
        .arg(dir)
        .args(&opts.mountpoint)
        .args(["--io", opts.io.name()])
        .args(&opts.extra);
    command
}

pub(super) fn binary(opts: &MountOpts) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ckptfs"));
    // A test counts its own checkpoints; a test of automatic ones enables them (`--tripwire`).
    // CKPTFS_TEST_TRIPWIRE=2/100ms makes marks appear and disappear in every test, which leaves
    // gaps in the IDs. CKPTFS_TEST_ABSENCE=on records changes to an unmounted tree as an epoch.
    let tripwire = std::env::var("CKPTFS_TEST_TRIPWIRE").unwrap_or_else(|_| "off".to_owned());
    let absence = std::env::var("CKPTFS_TEST_ABSENCE").unwrap_or_else(|_| "off".to_owned());
    command
        .env("CKPTFS_TRIPWIRE", tripwire)
        .env("CKPTFS_AUTO_ABSENCE", absence)
        .envs(opts.env.iter().map(|(name, value)| (name, value)))
        .env("NO_COLOR", "1")
        .current_dir("/");
    if let Some(user) = opts.user {
        use std::os::unix::process::CommandExt;
        command.uid(user).gid(user);
    }
    command
}

/// Returns the lifetime of a mount, extended by the duration of a test with a set duration
/// (`CKPTFS_SECONDS`).
fn limit() -> Duration {
    let told = std::env::var("CKPTFS_SECONDS")
        .ok()
        .and_then(|seconds| seconds.parse().ok());
    MOUNT_LIMIT + Duration::from_secs(told.unwrap_or(0))
}

/// The lifetime after which a mount is aborted, so that a test that is stuck in it fails instead of
/// hanging.
const MOUNT_LIMIT: Duration = Duration::from_secs(600);
