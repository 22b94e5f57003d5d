//! `ckptfs run`: runs a command protected by a checkpoint, or in an earlier state of the tree.
//!
//! The command stays in our process group, so that it has the terminal, and receives its keys;
//! other signals are forwarded. stdout belongs to the command: messages go to stderr, or into a
//! file.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::AtomicI32;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use clap::ValueEnum;
use serde::Serialize;

use super::{diff, run_at};
use ckptfs_api::{
    Change, CheckpointId, CheckpointInfo, CheckpointOptions, Code, Compare, RestoreOptions,
    ShowCheckpoint, StateName, TreePath, VerbResult,
};
use ckptfs_sys as sys;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Failure, Outcome, error, hinted, io_error, plain};
use ckptfs_ui::interrupt::run_to_end;
use ckptfs_ui::locate::ServedTree;
use ckptfs_ui::output::Out;
use ckptfs_ui::progress::Spinner;
use ckptfs_ui::{changes, locate, time};

/// Exit status of a command that cannot be run, and of one that does not exist; as in a shell.
const NOT_RUN_STATUS: u8 = 126;
const NOT_FOUND_STATUS: u8 = 127;
/// Added to the number of the signal that killed a command.
const SIGNAL_STATUS: i32 = 128;
/// Limit of the listed changes; the others are counted.
const LISTED_MAX: usize = 50;
/// Limit of a command in a note, in characters.
const NOTE_COMMAND_CHARS_MAX: usize = 200;

/// Run a command protected by a checkpoint, or in an earlier state of the tree
///
/// Makes a checkpoint, runs the command, lists the changes since then on stderr, and keeps or
/// reverts them. The exit status is the command's, 128 plus the signal's number if it was killed by
/// one, 125 if ckptfs itself failed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// When to restore the checkpoint after the command; the state after the command is also saved
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    rollback: Rollback,
    /// Keep the changes if the command succeeds, even with `--rollback always` or `ask`
    #[arg(long)]
    keep_on_success: bool,
    /// A note for the checkpoint; by default the command
    #[arg(short, long = "message", value_name = "NOTE")]
    message: Option<String>,
    /// Write a report to this file, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Run the command in the tree of this checkpoint; its changes there are discarded
    #[arg(long, value_name = "ID", conflicts_with_all = ["rollback", "keep_on_success", "message"])]
    at: Option<String>,
    /// With --at: save the changes in this new or empty directory (an overlayfs upper directory)
    #[arg(long, value_name = "DIR", requires = "at")]
    keep_changes: Option<PathBuf>,
    /// For `bisect`: any status that is not the test's ends the search
    #[arg(long, hide = true, requires = "at")]
    bisecting: bool,
    /// The command and its arguments
    #[arg(
        value_name = "CMD",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<OsString>,
}

/// `--rollback`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Rollback {
    /// If the command fails
    OnFailure,
    /// In any case
    Always,
    /// Ask on the terminal
    Ask,
    /// Never; print the command that restores it
    #[default]
    Never,
}

/// Result of a command.
pub struct CommandResult {
    status: Result<ExitStatus, io::Error>,
    /// Its duration.
    pub duration_us: u64,
}

/// Output of `--json` and `--report`.
#[derive(Serialize)]
struct RunReport<'a> {
    command: Vec<TreePath>,
    /// Exit status of this process.
    status: u8,
    /// The signal that killed the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    duration_us: u64,
    /// The checkpoint before the command; with `--at` the one that it ran in.
    checkpoint: &'a CheckpointInfo,
    /// The command ran with `--at`.
    in_the_past: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<&'a [Change]>,
    rolled_back: bool,
    /// The checkpoint of the state after the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    guard: Option<CheckpointId>,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let ran = match &args.at {
        Some(at) => in_the_past(&args, at, context),
        None => protected(&args, context),
    };
    match ran {
        Ok(0) => Ok(()),
        Ok(status) => Err(Failure::Status(status)),
        Err(error) if args.bisecting => {
            Failure::Unable(error).report(&context.out);
            Err(Failure::Status(u8::MAX))
        }
        Err(error) => Err(Failure::Unable(error)),
    }
}

/// Runs the command after a checkpoint; returns the exit status.
fn protected(args: &Args, context: &Context) -> VerbResult<u8> {
    if args.rollback == Rollback::Ask && !(io::stdin().is_terminal() && io::stderr().is_terminal())
    {
        return Err(hinted(
            Code::NoTerminal,
            "cannot ask: stdin or stderr is not a terminal",
            "use --rollback on-failure or never",
        ));
    }
    let mut report_file = args.report.as_deref().map(create).transpose()?;
    let mut served = locate::served(context.dir())?;
    let note = args
        .message
        .clone()
        .unwrap_or_else(|| format!("before: {}", shown(&args.command)));
    let made = served.client.ask(CheckpointOptions {
        note,
        ..CheckpointOptions::default()
    })?;
    let ended = execute(&args.command, &served.cwd, |_| {})?;
    let status = ended.tell(&args.command, context);
    let found = served.client.ask(Compare {
        from: StateName(made.id.to_string()),
        to: None,
        sizes: true,
    })?;
    let text = report_file.is_none() && !context.out.json;
    if text {
        list(&found, &made, context);
    }
    let wanted = !found.is_empty() && args.wants_rollback(status, made.id, context);
    let mut guard = None;
    if wanted {
        guard = roll_back(&mut served, made.id, &context.out)?;
    } else if text && !found.is_empty() {
        context.out.talk(&format!(
            "kept; to take it back: ckptfs restore {}",
            made.id
        ));
    }
    let report = RunReport {
        changes: Some(&found),
        rolled_back: wanted,
        guard,
        ..ended.report(args, status, &made)
    };
    give(&report, report_file.as_mut(), args, context)?;
    Ok(status)
}

/// Restores the checkpoint and prints the result; returns the guard.
fn roll_back(
    served: &mut ServedTree,
    id: CheckpointId,
    out: &Out,
) -> VerbResult<Option<CheckpointId>> {
    out.warn(&format!(
        "everything changed since checkpoint {id} is taken back, no matter who changed it"
    ));
    let spinner = Spinner::start(out, "rolling back");
    let answer = served.client.ask(RestoreOptions {
        to: StateName(id.to_string()),
        paths: Vec::new(),
        dry_run: false,
        times: None,
    });
    spinner.stop();
    let restored = answer?;
    super::restore::warn_of_holders(&served.root, &restored, out);
    let count = changes::count(restored.changes.len() as u64);
    let kept = restored.guard.map_or_else(String::new, |guard| {
        format!("; the previous state is checkpoint {guard}")
    });
    let duration = time::duration(restored.duration_us);
    out.talk(&format!(
        "rolled back to checkpoint {id}: {count} in {duration}{kept}"
    ));
    Ok(restored.guard)
}

/// Runs the command with `--at`; returns the exit status.
fn in_the_past(args: &Args, at: &str, context: &Context) -> VerbResult<u8> {
    let mut report_file = args.report.as_deref().map(create).transpose()?;
    let mut served = locate::served(context.dir())?;
    let checkpoint = served.client.ask(ShowCheckpoint {
        state: StateName(at.to_owned()),
    })?;
    let past = run_at::enter(&mut served, &checkpoint, args.keep_changes.as_deref())?;
    let ended = execute(&args.command, &served.cwd, |_| {})?;
    let status = ended.tell(&args.command, context);
    drop(past);
    let report = RunReport {
        in_the_past: true,
        ..ended.report(args, status, &checkpoint)
    };
    give(&report, report_file.as_mut(), args, context)?;
    Ok(status)
}

impl Args {
    fn wants_rollback(&self, status: u8, id: CheckpointId, context: &Context) -> bool {
        let failed = status != 0;
        match self.rollback {
            Rollback::Never => false,
            Rollback::OnFailure => failed,
            _ if self.keep_on_success && !failed => false,
            Rollback::Always => true,
            Rollback::Ask => {
                let how = if failed {
                    format!("the command failed ({status})")
                } else {
                    "the command succeeded".into()
                };
                asked(
                    &format!("{how}; go back to checkpoint {id}? [y/N] "),
                    context,
                )
            }
        }
    }
}

/// Asks the user on the terminal; without an answer, no.
fn asked(question: &str, context: &Context) -> bool {
    let mut stderr = io::stderr();
    let asked = write!(stderr, "{}", context.out.talk_text(question)).and_then(|()| stderr.flush());
    let mut answer = String::new();
    asked
        .and_then(|()| io::stdin().lock().read_line(&mut answer))
        .is_ok()
        && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// Runs a command in `cwd` until it ends, after a call of `prepare`. From the first call on,
/// signals for this process are forwarded to the command.
pub fn execute(
    command: &[OsString],
    cwd: &Path,
    prepare: impl FnOnce(&mut Command),
) -> VerbResult<CommandResult> {
    static RUNNING: OnceLock<Arc<AtomicI32>> = OnceLock::new();
    let running = match RUNNING.get() {
        Some(running) => running,
        None => {
            let running = Arc::new(AtomicI32::new(0));
            sys::pass_signals_on(Arc::clone(&running)).on("waiting for signals")?;
            RUNNING.get_or_init(|| running)
        }
    };
    let started = Instant::now();
    let status = spawn_and_wait(command, cwd, prepare, running);
    Ok(CommandResult {
        status,
        duration_us: ckptfs_api::microseconds(started.elapsed()),
    })
}

fn spawn_and_wait(
    command: &[OsString],
    cwd: &Path,
    prepare: impl FnOnce(&mut Command),
    running: &AtomicI32,
) -> io::Result<ExitStatus> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(cwd);
    prepare(&mut command);
    // A signal that came while no command ran is stored as a negative number.
    run_to_end(&mut command, running, 0, |before| -before)
}

impl CommandResult {
    /// Returns the exit status for the result.
    pub fn code(&self) -> u8 {
        let code = match &self.status {
            Ok(status) => status
                .code()
                .or_else(|| status.signal().map(|signal| SIGNAL_STATUS + signal)),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return NOT_FOUND_STATUS,
            Err(_) => return NOT_RUN_STATUS,
        };
        code.and_then(|code| u8::try_from(code).ok())
            .unwrap_or(u8::MAX)
    }

    /// Returns the signal that killed the command.
    pub fn signal(&self) -> Option<i32> {
        self.status.as_ref().ok().and_then(ExitStatusExt::signal)
    }

    /// Warns if the command could not be run; returns the exit status.
    pub fn tell(&self, command: &[OsString], context: &Context) -> u8 {
        if let Err(cause) = &self.status {
            let program = command
                .first()
                .map(|program| program.to_string_lossy().into_owned())
                .unwrap_or_default();
            context
                .out
                .warn(&format!("{program} could not be run: {}", plain(cause)));
        }
        self.code()
    }

    fn report<'a>(&self, args: &Args, status: u8, checkpoint: &'a CheckpointInfo) -> RunReport<'a> {
        use std::os::unix::ffi::OsStrExt;
        let signal = self.signal();
        let command = args
            .command
            .iter()
            .map(|word| TreePath(word.as_bytes().to_vec()))
            .collect();
        let duration_us = self.duration_us;
        RunReport {
            command,
            status,
            signal,
            duration_us,
            checkpoint,
            in_the_past: false,
            changes: None,
            rolled_back: false,
            guard: None,
        }
    }
}

/// Lists the changes, as `diff --stat` does.
fn list(found: &[Change], made: &CheckpointInfo, context: &Context) {
    let out = &context.out;
    if found.is_empty() {
        out.talk(&format!("nothing has changed since checkpoint {}", made.id));
        return;
    }
    let listed = found.get(..LISTED_MAX).unwrap_or(found);
    let sizes: Vec<String> = listed.iter().map(diff::sizes).collect();
    let width = sizes.iter().map(String::len).max().unwrap_or(0);
    for (change, sizes) in listed.iter().zip(&sizes) {
        let text = |path: &TreePath| String::from_utf8_lossy(&path.0).into_owned();
        let from = change
            .from
            .as_ref()
            .map_or_else(String::new, |from| format!("{} -> ", text(from)));
        out.talk(&format!(
            "{sizes:>width$}  {} {from}{}",
            change.change.letter(),
            text(&change.path)
        ));
    }
    if listed.len() < found.len() {
        out.talk(&format!(
            "... and {} more: ckptfs diff --stat {}",
            found.len() - listed.len(),
            made.id
        ));
    }
    out.talk(&diff::sum(found));
}

/// Writes the report.
fn give(
    report: &RunReport<'_>,
    file: Option<&mut File>,
    args: &Args,
    context: &Context,
) -> VerbResult<()> {
    let mut line =
        serde_json::to_vec(report).map_err(|cause| error(Code::Internal, cause.to_string()))?;
    line.push(b'\n');
    let cannot = |what: &Path, cause: io::Error| io_error(what.display(), cause);
    match (file, &args.report) {
        (Some(file), Some(path)) => file.write_all(&line).map_err(|cause| cannot(path, cause)),
        _ if context.out.json => {
            // stderr may be closed.
            let _ = io::stderr().write_all(&line);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Creates the file of a report, before anything is run.
fn create(path: &Path) -> VerbResult<File> {
    File::create(path).on(path.display())
}

/// Formats a command on one line.
pub fn shown(command: &[OsString]) -> String {
    let words: Vec<String> = command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let line = words.join(" ").replace(|c: char| c.is_control(), " ");
    match line.char_indices().nth(NOTE_COMMAND_CHARS_MAX) {
        Some((end, _)) => format!("{}...", line.get(..end).unwrap_or_default()),
        None => line,
    }
}
