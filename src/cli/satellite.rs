//! Satellites: programs next to this one that have some of its verbs, so that most processes are
//! small and a verb's dependencies are built only where it is installed.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use super::launch;
use ckptfs_api::{Code, ErrorContext, VerbResult, hinted};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;

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

/// Returns the command of a satellite with the options of all verbs.
///
/// # Errors
/// `tool-missing`: it is not installed.
pub fn command(name: &str, context: &Context) -> VerbResult<Command> {
    let program = find(name).ok_or_else(|| {
        hinted(
            Code::ToolMissing,
            format!("ckptfs-{name} is not installed"),
            format!("to build and install it: cargo install --path src/{name}; releases have it next to ckptfs"),
        )
    })?;
    let mut command = Command::new(program);
    if let Some(dir) = context.dir() {
        command.arg("-C").arg(dir);
    }
    if context.out.json {
        command.arg("--json");
    }
    Ok(command)
}

/// Replaces this process by a satellite.
///
/// # Errors
/// Those of execve(2).
pub fn run(mut command: Command) -> Outcome {
    let cause = command.exec();
    Err(cause).on(command.get_program().to_string_lossy())?;
    Ok(())
}
