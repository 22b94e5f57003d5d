//! This program's own verbs, and the system's, as processes of their own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde::Deserialize;

use super::error::{error, failed, hinted};
use crate::engine::api::{VerbError, VerbResult};
use crate::sys;

/// What a verb that failed says on stderr with `--json`.
#[derive(Deserialize)]
struct Line {
    error: VerbError,
}

/// The program whose verbs do the work.
#[derive(Clone, Debug)]
pub struct Own {
    program: PathBuf,
}

impl Own {
    /// The program at this path.
    pub fn new(program: PathBuf) -> Own {
        Own { program }
    }

    /// Runs a verb, and gives what it printed.
    ///
    /// # Errors
    /// The verb's own.
    pub fn verb<S: AsRef<OsStr>>(&self, arguments: &[S]) -> VerbResult<Vec<u8>> {
        let mut command = Command::new(&self.program);
        command.arg("--json").args(arguments);
        let output = run(&mut command).map_err(|cause| failed(&self.program, cause))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let told = said.lines().rev().find_map(|line| serde_json::from_str::<Line>(line).ok());
        Err(told.map_or_else(|| error("internal", format!("{}: {}", output.status, said.trim())), |line| line.error))
    }

    /// As [`Own::verb`], of the tree at `dir`.
    ///
    /// # Errors
    /// The verb's own.
    pub fn verb_in(&self, dir: &Path, arguments: &[&str]) -> VerbResult<Vec<u8>> {
        let all: Vec<&OsStr> = [OsStr::new("-C"), dir.as_os_str()].into_iter().chain(arguments.iter().map(OsStr::new)).collect();
        self.verb(&all)
    }
}

/// Runs a tool of the system.
///
/// # Errors
/// What it said.
pub fn tool(name: &str, arguments: &[&OsStr]) -> VerbResult<()> {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(name);
    command.args(arguments).env("LC_ALL", "C").env("PATH", format!("{path}:/usr/sbin:/sbin"));
    match run(&mut command) {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(error("tool-failed", format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim()))),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
            Err(hinted("tool-missing", format!("{name} is not installed"), "install the packages xfsprogs and util-linux"))
        }
        Err(cause) => Err(failed(Path::new(name), cause)),
    }
}

/// Nothing of ours is handed on: no socket of an engine, no descriptor of the service manager, no blocked signal.
fn run(command: &mut Command) -> std::io::Result<Output> {
    command.stdin(Stdio::null()).current_dir("/");
    for name in ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET"] {
        command.env_remove(name);
    }
    sys::start_unblocked(command);
    command.output()
}
