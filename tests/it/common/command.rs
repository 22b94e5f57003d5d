//! Commands with a time limit: a hung mount must fail a test, never block it.

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::wait::WAIT;

/// Time limit of a helper such as `mkfs` or `rsync`, in seconds.
pub const TOOL_SECONDS: u64 = 120;

/// Runs `command` without input and returns its output.
///
/// Panics when it cannot be started, when it runs longer than `seconds` (it is killed then), or
/// when its output remains open after its exit: a daemon that keeps the stdout of its caller makes
/// `cmd | tail` hang.
pub fn run_limited(command: &mut Command, seconds: u64) -> Output {
    try_run_limited(command, seconds).unwrap_or_else(|problem| panic!("{problem}"))
}

/// As [`run_limited`], with the problem returned as text.
pub fn try_run_limited(command: &mut Command, seconds: u64) -> Result<Output, String> {
    try_run_closing(command, seconds, WAIT)
}

/// As [`try_run_limited`], with a limit for the pipes after the command's exit: a process that it
/// left behind has them open if they exceed it.
pub fn try_run_closing(
    command: &mut Command,
    seconds: u64,
    pipes: Duration,
) -> Result<Output, String> {
    let line = format!("{command:?}");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| format!("cannot start {line}: {error}"))?;
    let stdout = collect(child.stdout.take().expect("stdout is piped"));
    let stderr = collect(child.stderr.take().expect("stderr is piped"));
    let Some(status) = wait_limited(&mut child, Duration::from_secs(seconds)) else {
        // Not waited for: a child in an uninterruptible request would not die.
        let _ = child.kill();
        let said = stderr
            .recv_timeout(Duration::from_millis(500))
            .unwrap_or_default();
        return Err(format!(
            "{line} did not end within {seconds} s; stderr: {}",
            String::from_utf8_lossy(&said)
        ));
    };
    let held = |what: &str| {
        format!("{line} ended ({status}), but a process that it started keeps its {what} open")
    };
    let stdout = stdout.recv_timeout(pipes).map_err(|_| held("stdout"))?;
    let stderr = stderr.recv_timeout(pipes).map_err(|_| held("stderr"))?;
    Ok(Output {
        status,
        stdout,
        stderr,
    })
}

/// Reads `pipe` to its end in a thread, so that a full pipe cannot block the child.
fn collect(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    receiver
}

pub fn wait_limited(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let started = Instant::now();
    let mut pause = Duration::from_micros(500);
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return Some(status);
        }
        if started.elapsed() > limit {
            return None;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Returns a command for the helper `name`; its PATH includes the system directories.
pub fn tool<S: AsRef<OsStr>>(name: &str, arguments: &[S]) -> Command {
    let path = format!(
        "{}:/usr/sbin:/sbin",
        std::env::var("PATH").unwrap_or_default()
    );
    // With a relative name and a PATH, std uses fork(2) instead of posix_spawn(3), which copies the
    // page tables of this large process for each command.
    let program = std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|program| program.is_file());
    let mut command = Command::new(program.unwrap_or_else(|| name.into()));
    command
        .args(arguments)
        .env("PATH", path)
        .env("LC_ALL", "C")
        .env("CKPTFS_TRIPWIRE", "off")
        .env("CKPTFS_AUTO_ABSENCE", "off");
    command
}

/// Runs `command`, and panics with its output unless it exits with 0.
pub fn succeeds(command: &mut Command, seconds: u64) -> Output {
    let output = run_limited(command, seconds);
    assert!(
        output.status.success(),
        "{command:?} failed ({}):\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Runs `command`, panics if it exits with 0, and returns its stderr.
pub fn fails(command: &mut Command, seconds: u64) -> String {
    let output = run_limited(command, seconds);
    assert!(
        !output.status.success(),
        "{command:?} succeeded:\n{}",
        String::from_utf8_lossy(&output.stdout)
    );
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs `command`, which must succeed, and returns its stdout as text.
pub fn stdout_of(command: &mut Command, seconds: u64) -> String {
    String::from_utf8(succeeds(command, seconds).stdout).expect("the output is UTF-8")
}

/// Runs a shell script in a directory and returns its output; panics with the output unless it
/// exits with 0.
#[track_caller]
pub fn sh(dir: &Path, script: &str) -> String {
    let mut command = tool("bash", &["-euc", script]);
    let output = try_run_limited(command.current_dir(dir), TOOL_SECONDS)
        .unwrap_or_else(|problem| panic!("{problem}"));
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.status.success(),
        "{script}\n{}: {text}",
        output.status
    );
    text
}

/// Copies a program that will be executed. `cp` opens it for writing instead of this process: a
/// child of another thread would inherit that descriptor until its exec, and an execution would
/// fail with ETXTBSY.
pub fn copy_program(from: &Path, to: &Path) {
    succeeds(&mut tool("cp", &[from, to]), TOOL_SECONDS);
}

/// Writes a script that will be executed, in another process for the same reason.
pub fn write_script(path: &Path, text: &str) {
    let mut shell = tool(
        "sh",
        &["-euc", "printf %s \"$2\" > \"$1\"; chmod 755 \"$1\"", "sh"],
    );
    succeeds(shell.arg(path).arg(text), TOOL_SECONDS);
}

/// Returns whether a program is in the PATH of [`tool`].
pub fn has(program: &str) -> bool {
    let script = format!("command -v {program}");
    try_run_limited(&mut tool("sh", &["-c", &script]), TOOL_SECONDS)
        .is_ok_and(|output| output.status.success())
}

/// Runs a verb on a possibly unmounted directory, and returns its exit status and its JSON answer.
pub fn check(dir: &Path, arguments: &[&str]) -> (i32, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ckptfs"));
    command
        .arg("-C")
        .arg(dir)
        .args(arguments)
        .arg("--json")
        .env("NO_COLOR", "1")
        .current_dir("/");
    let output = run_limited(&mut command, TOOL_SECONDS);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let value = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!(
            "{arguments:?}: {error}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        )
    });
    (
        output.status.code().expect("it was not killed by a signal"),
        value,
    )
}
