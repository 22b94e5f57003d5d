//! Satellites: programs next to this one that execute some of its verbs. A process of another verb
//! stays small, and the dependencies of a satellite are built only where it is wanted.

use std::path::PathBuf;
use std::process::Command;

use super::launch;
use ckptfs_api::{Code, ErrorContext, VerbResult, error, hinted};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Failure, Outcome};

/// Directory of satellites that are not next to the program, relative to that of the program.
const LIBEXEC: &str = "../libexec/ckptfs";

/// Returns the path of `ckptfs-NAME`: next to this program, or in its libexec directory.
fn find(name: &str) -> Option<PathBuf> {
    let file = format!("ckptfs-{name}");
    let beside = launch::program().parent()?.to_owned();
    [beside.join(&file), beside.join(LIBEXEC).join(&file)]
        .into_iter()
        .find(|path| path.is_file())
}

/// Returns the command of a satellite, with the options of all verbs and the path of this program,
/// which it runs for other verbs.
///
/// # Errors
/// `tool-missing`: it is not installed.
pub fn command(name: &str, context: &Context) -> VerbResult<Command> {
    let program = find(name).ok_or_else(|| {
        hinted(
            Code::ToolMissing,
            format!("ckptfs-{name} is not installed"),
            "in a checkout of ckptfs, as root: make install",
        )
    })?;
    let mut command = Command::new(program);
    command.arg("--program").arg(launch::program());
    if let Some(dir) = context.dir() {
        command.arg("-C").arg(dir);
    }
    if context.out.json {
        command.arg("--json");
    }
    Ok(command)
}

/// Runs a satellite and returns its exit status. This process waits, because a volume may be
/// mounted for the duration of the verb (`--volume`).
///
/// # Errors
/// The exit status, if it is not 0. `tool-failed`: a signal ended it. Those of execve(2).
pub fn run(mut command: Command) -> Outcome {
    let name = command.get_program().to_string_lossy().into_owned();
    let ended = command.status().on(&name)?;
    match ended.code().map(u8::try_from) {
        Some(Ok(0)) => Ok(()),
        Some(Ok(status)) => Err(Failure::Status(status)),
        _ => Err(error(Code::ToolFailed, format!("{name} ended: {ended}")).into()),
    }
}
