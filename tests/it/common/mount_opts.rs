//! How a directory is mounted.

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

/// Which way reads and writes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// The kernel reads and writes the backing file.
    Passthrough,
    /// The daemon does.
    Daemon,
}

impl Io {
    /// The value of `--io`, and what `status --json` says.
    pub fn name(self) -> &'static str {
        match self {
            Io::Passthrough => "passthrough",
            Io::Daemon => "daemon",
        }
    }
}

/// How to mount; `MountOpts::new(io)` is the usual way.
#[derive(Clone, Debug)]
pub struct MountOpts {
    /// The I/O path to ask for.
    pub io: Io,
    /// Further arguments of `ckptfs mount`.
    pub extra: Vec<String>,
    /// Variables for the commands and the daemon, such as `CKPTFS_LOG`.
    pub env: Vec<(String, String)>,
    /// Where to mount; in place if not given.
    pub mountpoint: Option<PathBuf>,
    /// The user (and group) id that every command runs with.
    pub user: Option<u32>,
    /// After this the mount is aborted.
    pub limit: Duration,
    /// What is given is a branch of what is mounted: it begins as that, and everything in it is
    /// inherited.
    pub branch: bool,
}

thread_local! {
    static ON_BRANCHES: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, what this thread mounts in the usual way are branches.
pub struct OnBranches(());

impl OnBranches {
    /// From now on.
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
    /// In place, nothing special.
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

    /// With a journal that is packed in idle time whatever its size, and not from some hundred
    /// kilobytes on.
    pub fn packing(self) -> MountOpts {
        self.leaving_out("pack-size")
    }

    /// The tree is written down ahead whenever there is a moment; and what an unmount writes of
    /// what changed is compared with a walk, see [`Mount::compared_baseline`].
    pub fn comparing(self) -> MountOpts {
        self.leaving_out("calm,baseline-trust")
    }

    /// Few changes already become a part of a small baseline.
    pub fn folding(self) -> MountOpts {
        self.leaving_out("fold-min")
    }

    /// The tree is written down ahead whenever there is a moment.
    pub fn hasty(self) -> MountOpts {
        self.leaving_out("calm")
    }

    /// A branch is brought to the disk by its first change, and not at once.
    pub fn unsettled(self) -> MountOpts {
        self.leaving_out("settle")
    }

    /// With steps left out that a debug build can leave out, to show what they are for.
    pub fn leaving_out(mut self, steps: &str) -> MountOpts {
        const NAME: &str = "CKPTFS_UNSAFE_FOR_TESTS";
        match self.env.iter_mut().find(|(name, _)| name == NAME) {
            Some((_, known)) => *known = format!("{known},{steps}"),
            None => self.env.push((NAME.into(), steps.into())),
        }
        self
    }

    /// With one more argument of `ckptfs mount`.
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
    // A test counts the checkpoints that it makes itself; one that is about others asks for them
    // (`--tripwire`). CKPTFS_TEST_TRIPWIRE=2/100ms has marks come and go in all of them, where
    // numbers may have gaps, and CKPTFS_TEST_ABSENCE=on has what is changed while nothing is
    // mounted be an epoch.
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

/// The limit of a mount: longer by the time that a bounded test was told to run (`CKPTFS_SECONDS`).
fn limit() -> Duration {
    let told = std::env::var("CKPTFS_SECONDS")
        .ok()
        .and_then(|seconds| seconds.parse().ok());
    MOUNT_LIMIT + Duration::from_secs(told.unwrap_or(0))
}

/// How long a mount may live before it is aborted, so that a test stuck inside it fails instead of
/// hanging.
const MOUNT_LIMIT: Duration = Duration::from_secs(600);
