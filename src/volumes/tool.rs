//! External programs.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use ckptfs_api::{Code, VerbResult, error, hinted, io_error};
use ckptfs_sys as sys;

/// Runs a system tool.
///
/// # Errors
/// Its stderr.
pub(super) fn tool(name: &str, arguments: &[&OsStr]) -> VerbResult<()> {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(name);
    command
        .args(arguments)
        .env("LC_ALL", "C")
        .env("PATH", format!("{path}:/usr/sbin:/sbin"));
    clean(&mut command);
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(error(
            Code::ToolFailed,
            format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim()),
        )),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Err(hinted(
            Code::ToolMissing,
            format!("{name} is not installed"),
            "install the packages xfsprogs and util-linux",
        )),
        Err(cause) => Err(io_error(name, cause)),
    }
}

/// Clears the inherited environment of a child: no socket of an engine, no descriptor of the
/// service manager, no blocked signal.
pub fn clean(command: &mut Command) {
    command.stdin(Stdio::null()).current_dir("/");
    for name in [
        "LISTEN_FDS",
        "LISTEN_PID",
        "LISTEN_FDNAMES",
        "NOTIFY_SOCKET",
    ] {
        command.env_remove(name);
    }
    sys::start_unblocked(command);
}
