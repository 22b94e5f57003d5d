//! The verbs for volumes, in this process or in a child; their output is discarded.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::launch::{self, DaemonParent};
use super::remotes::REMOTES_VARIABLE;
use super::{fork, mount, umount};
use ckptfs_api::{CheckpointId, Code, VerbError, VerbResult};
use ckptfs_sys as sys;
use ckptfs_ui::error::{ErrorContext, Failure, error, hinted};
use ckptfs_ui::locate;
use ckptfs_ui::output::{Color, Out};
use ckptfs_volumes::options::Options;
use ckptfs_volumes::{RemoteCheckpoint, VerbRunner, VolumePlace, tool};

/// Time limit of a request that only lists the snapshots of a remote, or removes one.
const LOOK_SECONDS: u32 = 60;
/// Time limit of a transfer of a tree: a day. A repeated transfer skips the data already there.
const TREE_SECONDS: u32 = 24 * 60 * 60;
/// The number is the same on every system.
const SIGKILL: i32 = 9;

/// The verbs, for a pool.
#[derive(Debug)]
pub struct CliVerbRunner {
    /// The file of the remotes; `None`: the user's.
    pub remotes: Option<PathBuf>,
}

impl VerbRunner for CliVerbRunner {
    fn mount(&self, place: &VolumePlace, options: &Options) -> VerbResult<()> {
        let prepared = mount::prepare(mount::Args::of_volume(place, options)?, Path::new("/"))?;
        mount::start(&prepared, DaemonParent::Driver, || ()).map(drop)
    }

    fn unmount(&self, point: &Path) -> VerbResult<()> {
        umount::unmount(point)
    }

    fn fork(&self, point: &Path, checkpoint: CheckpointId, dir: &Path) -> VerbResult<()> {
        let quiet = Out::new(true, Color::Never);
        let (_, copied) = fork::fork(
            locate::served(Some(point))?,
            &checkpoint.to_string(),
            dir,
            false,
            &quiet,
        )?;
        match copied.report(&quiet, "try again once the cause is fixed") {
            Err(Failure::Verb(error)) => Err(error),
            _ => Ok(()),
        }
    }

    #[cfg(feature = "remote")]
    fn check_remote(&self, remote: &str) -> VerbResult<()> {
        let names = match &self.remotes {
            Some(file) => ckptfs_remote::restic::config::RemoteConfigs::read(file),
            None => super::remotes::names(),
        };
        names?.get(remote).map(drop)
    }

    #[cfg(not(feature = "remote"))]
    fn check_remote(&self, _remote: &str) -> VerbResult<()> {
        Err(hinted(
            Code::Usage,
            "this ckptfs was built without remotes",
            "the released programs have them; cargo build --features remote makes one that has",
        ))
    }

    fn pushed(&self, remote: &str) -> VerbResult<Vec<RemoteCheckpoint>> {
        self.check_remote(remote)?;
        let log = command(["remote", "log", "--all", "--", remote]);
        // The list has the newest first.
        let mut all: Vec<RemoteCheckpoint> = self.answer(log, LOOK_SECONDS)?;
        all.reverse();
        Ok(all)
    }

    fn push(&self, point: &Path, remote: &str, checkpoint: CheckpointId) -> VerbResult<()> {
        self.check_remote(remote)?;
        let mut push = command(["push"]);
        push.arg("-C").arg(point).arg("--").arg(remote);
        push.arg(checkpoint.to_string());
        self.done(push, TREE_SECONDS)
    }

    fn pull(&self, remote: &str, snapshot: &str, dir: &Path) -> VerbResult<()> {
        self.check_remote(remote)?;
        let mut pull = command(["pull", "--into"]);
        pull.arg(dir).arg("--").args([remote, snapshot]);
        self.done(pull, TREE_SECONDS)
    }

    fn forget(&self, remote: &str, snapshot: &str) -> VerbResult<()> {
        self.check_remote(remote)?;
        let forget = command(["remote", "forget", "--yes", "--", remote, snapshot]);
        self.done(forget, LOOK_SECONDS)
    }
}

/// Returns a command that runs a verb of this program.
fn command<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(launch::program());
    command.arg("--json").args(arguments);
    command
}

/// The output of a failed verb with `--json`.
#[derive(Deserialize)]
struct VerbErrorLine {
    error: VerbError,
}

impl CliVerbRunner {
    fn done(&self, command: Command, seconds: u32) -> VerbResult<()> {
        self.answer::<serde::de::IgnoredAny>(command, seconds)
            .map(drop)
    }

    /// Runs a verb in a child process, and returns its answer. A verb that hangs or fails
    /// unexpectedly does not affect this process: it is killed after `seconds`, and ends with this
    /// process.
    fn answer<T: DeserializeOwned>(&self, mut command: Command, seconds: u32) -> VerbResult<T> {
        // Files, not pipes: processes that the verb started may outlive it and keep a pipe open.
        let answers = || sys::unnamed_file(None).on("memory");
        let (mut out, mut err) = (answers()?, answers()?);
        tool::clean(&mut command);
        command
            .stdout(Stdio::from(out.try_clone().on("memory")?))
            .stderr(Stdio::from(err.try_clone().on("memory")?))
            .process_group(0)
            .envs(self.remotes.iter().map(|file| (REMOTES_VARIABLE, file)));
        sys::end_with_us(&mut command, seconds);
        let mut child = command.spawn().on("starting a verb")?;
        let ended = child.wait().on("waiting for a verb")?;
        let group = i32::try_from(child.id()).unwrap_or_default();
        // Usually the group is empty.
        let _ = sys::kill_group(group, SIGKILL);
        if ended.success() {
            return serde_json::from_str(&text(&mut out)?)
                .map_err(|cause| error(Code::Protocol, format!("the answer of a verb: {cause}")));
        }
        let said = text(&mut err)?;
        let told = said
            .lines()
            .rev()
            .find_map(|line| serde_json::from_str::<VerbErrorLine>(line).ok());
        Err(told.map_or_else(
            || {
                tracing::warn!(said, %ended, "a verb has not ended as it should");
                hinted(
                    Code::RemoteFailed,
                    format!("the remote did not answer in time, or what asks it failed ({ended})"),
                    "try again later",
                )
            },
            |told| told.error,
        ))
    }
}

fn text(file: &mut File) -> VerbResult<String> {
    let mut bytes = Vec::new();
    file.rewind()
        .and_then(|()| file.read_to_end(&mut bytes))
        .on("memory")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
