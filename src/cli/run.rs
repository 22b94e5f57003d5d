//! `ckptfs run`: a command under the protection of a checkpoint, or in the tree as it was.
//!
//! The command is of our process group, so that it has the terminal, and keys of the terminal reach
//! it; other signals are passed on. stdout is the command's alone: what there is to say goes to
//! stderr, or into a file.

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

use super::context::Context;
use super::error::{Failure, On, Outcome, error, hinted, io_error, plain};
use super::interrupt::run_to_end;
use super::locate::Served;
use super::output::Out;
use super::progress::Spinner;
use super::{changes, diff, locate, run_at, time};
use crate::engine::api::{
    Change, CheckpointInfo, CheckpointOptions, Code, Compare, RestoreOptions, ShowCheckpoint,
    StateName, TreePath, VerbResult,
};
use crate::store::ids::CheckpointId;
use crate::sys;

/// Exit status when the command cannot be run, and when there is none of this name; as a shell's.
const NOT_RUN_STATUS: u8 = 126;
const NOT_FOUND_STATUS: u8 = 127;
/// Added to the number of the signal that a command died of.
const SIGNAL_STATUS: i32 = 128;
/// So many changes are listed; more are counted.
const LISTED_MAX: usize = 50;
/// Bytes of a command in a note.
const NOTE_COMMAND_CHARS_MAX: usize = 200;

/// Run a command under the protection of a checkpoint, or in the tree as it was
///
/// Makes a checkpoint, runs the command, shows on stderr what changed meanwhile, and keeps that or
/// takes it back. The exit status is the command's, 128 plus the signal's number if it was killed
/// by one, 125 if ckptfs itself failed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// When to restore the checkpoint afterwards; the state after the command is saved too
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    rollback: Rollback,
    /// Keep what the command did if it succeeds, even with `--rollback always` or `ask`
    #[arg(long)]
    keep_on_success: bool,
    /// A note for the checkpoint; by default the command
    #[arg(short, long = "message", value_name = "NOTE")]
    message: Option<String>,
    /// Write a report to this file, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Run it in the tree as it was at this checkpoint; whatever it changes there is discarded
    #[arg(long, value_name = "ID", conflicts_with_all = ["rollback", "keep_on_success", "message"])]
    at: Option<String>,
    /// With --at: save what it changes in this new or empty directory (an overlayfs upper
    /// directory)
    #[arg(long, value_name = "DIR", requires = "at")]
    keep_changes: Option<PathBuf>,
    /// For `bisect`: what is not the test's own status ends the search
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
    /// Whatever comes
    Always,
    /// Ask on the terminal
    Ask,
    /// Not at all: it is told how
    #[default]
    Never,
}

/// How a command ended.
pub struct Ended {
    status: Result<ExitStatus, io::Error>,
    /// How long it took.
    pub duration_us: u64,
}

/// What `--json` and `--report` give.
#[derive(Serialize)]
struct Report<'a> {
    command: Vec<TreePath>,
    /// The exit status that this process gives.
    status: u8,
    /// The signal that the command died of.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    duration_us: u64,
    /// The checkpoint before it; with `--at` the one that it ran in.
    checkpoint: &'a CheckpointInfo,
    /// The command ran in the past.
    in_the_past: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<&'a [Change]>,
    rolled_back: bool,
    /// The checkpoint of what the command had made.
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

/// Runs it under protection; the exit status.
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
    let report = Report {
        changes: Some(&found),
        rolled_back: wanted,
        guard,
        ..ended.report(args, status, &made)
    };
    give(&report, report_file.as_mut(), args, context)?;
    Ok(status)
}

/// Restores the checkpoint, and says what became of that; the checkpoint of what was there.
fn roll_back(served: &mut Served, id: CheckpointId, out: &Out) -> VerbResult<Option<CheckpointId>> {
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

/// Runs it in the tree as it was; the exit status.
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
    let report = Report {
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

/// Asks the person at the terminal; without an answer, no.
fn asked(question: &str, context: &Context) -> bool {
    let mut stderr = io::stderr();
    let asked = write!(stderr, "{}", context.out.talk_text(question)).and_then(|()| stderr.flush());
    let mut answer = String::new();
    asked
        .and_then(|()| io::stdin().lock().read_line(&mut answer))
        .is_ok()
        && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// Runs a command to its end, in `cwd`, `prepare`d as its caller likes. What is meant for us is
/// passed on to it, from now on.
pub fn execute(
    command: &[OsString],
    cwd: &Path,
    prepare: impl FnOnce(&mut Command),
) -> VerbResult<Ended> {
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
    Ok(Ended {
        status,
        duration_us: crate::engine::api::microseconds(started.elapsed()),
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
    // A signal that came while nobody ran is there as a negative number.
    run_to_end(&mut command, running, 0, |before| -before)
}

impl Ended {
    /// The exit status that stands for it.
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

    /// The signal that it died of.
    pub fn signal(&self) -> Option<i32> {
        self.status.as_ref().ok().and_then(ExitStatusExt::signal)
    }

    /// Says why there was nothing to wait for, if so; the exit status.
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

    fn report<'a>(&self, args: &Args, status: u8, checkpoint: &'a CheckpointInfo) -> Report<'a> {
        use std::os::unix::ffi::OsStrExt;
        let signal = self.signal();
        let command = args
            .command
            .iter()
            .map(|word| TreePath(word.as_bytes().to_vec()))
            .collect();
        let duration_us = self.duration_us;
        Report {
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

/// Lists what the command changed, as `diff --stat` does.
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

/// The report, for programs.
fn give(
    report: &Report<'_>,
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
            // Whoever closed stderr does not want to be told.
            let _ = io::stderr().write_all(&line);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The file of a report, made before anything is run.
fn create(path: &Path) -> VerbResult<File> {
    File::create(path).on(path.display())
}

/// A command on one line, for people.
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
