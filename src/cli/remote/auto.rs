//! `ckptfs push --auto`, which pushes each checkpoint after it is made; and `ckptfs mount --push`,
//! by which the daemon of a mount runs it.
//!
//! It is a separate process, so that a repository that hangs, or is damaged in an unexpected way,
//! cannot block a daemon. It is ended before an unmount, because it reads views in the mount. An
//! interrupted push is repeated later, except for the data that the repository has by then.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::push::{self, Args};
use ckptfs_api::{CheckpointId, Code, ShowCheckpoint, StateName, VerbError, VerbResult};
use ckptfs_core::engine::Engine;
use ckptfs_sys as sys;
use ckptfs_sys::lock::Mutex;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Failure, Outcome};
use ckptfs_ui::locate::{self, ServedTree};

/// Period of the check for a new checkpoint.
const LOOK: Duration = Duration::from_secs(2);
/// Delay after a failure; it doubles each time, up to the second value.
const RETRY_MIN: Duration = Duration::from_secs(30);
const RETRY_MAX: Duration = Duration::from_secs(600);
/// Limit of the wait for the successor of a daemon.
const GONE: Duration = Duration::from_secs(5);
/// Limit of the end of a child's stderr, which is reported.
const SAID_BYTES_MAX: usize = 2048;
/// Set for the child of a daemon: it exits when its stdin is closed.
const CHILD: &str = "CKPTFS_PUSH_OF_DAEMON";
const SIGTERM: i32 = 15;

/// The child of this process, until it is reaped.
static CHILD_PID: Mutex<Option<i32>> = Mutex::new(None);

/// Pushes the checkpoints that the remote lacks, and each new one, until the tree is unmounted.
/// `every`: only the newest one, at this interval.
pub fn follow(args: &Args, every: Duration, context: &mut Context) -> Outcome {
    if std::env::var_os(CHILD).is_some() {
        end_with_stdin();
    }
    let mut served = locate::served(context.dir())?;
    // A working directory in the mount would keep it busy.
    std::env::set_current_dir("/").on("/")?;
    context.dir = Some(served.root.clone());
    let (mut sent, mut retry, mut due) = (None, RETRY_MIN, Instant::now());
    loop {
        let Ok(newest) = newest(&mut served) else {
            match again(context) {
                Some(found) => served = found,
                None => return Ok(()),
            }
            continue;
        };
        if newest.is_some() && newest != sent && Instant::now() >= due {
            let ids: Vec<String> = newest
                .iter()
                .filter(|_| !every.is_zero())
                .map(CheckpointId::to_string)
                .collect();
            match push::push_noted(args, &ids, context) {
                Ok(()) => (sent, retry, due) = (newest, RETRY_MIN, Instant::now() + every),
                Err(Failure::Verb(error)) if may_pass(&error) => {
                    context.out.warn(&error.message);
                    due = Instant::now() + retry;
                    retry = (retry * 2).min(RETRY_MAX);
                }
                Err(failure) => return Err(failure),
            }
        }
        std::thread::sleep(LOOK);
    }
}

/// Reports whether an error may disappear without an action of the user.
fn may_pass(error: &VerbError) -> bool {
    !matches!(
        error.code,
        Code::UnknownRemote
            | Code::BadRemote
            | Code::BadPassword
            | Code::NoTerminal
            | Code::BadConfig
            | Code::Usage
    )
}

fn newest(served: &mut ServedTree) -> VerbResult<Option<CheckpointId>> {
    let latest = served.client.ask(ShowCheckpoint {
        state: StateName("latest".to_owned()),
    });
    match latest {
        Ok(latest) => Ok(Some(latest.id)),
        Err(error) if error.code == Code::DaemonLost => Err(error),
        Err(_) => Ok(None),
    }
}

/// Returns the successor of a daemon that is gone.
fn again(context: &Context) -> Option<ServedTree> {
    let until = Instant::now() + GONE;
    while Instant::now() < until {
        std::thread::sleep(GONE / 10);
        if let Ok(served) = locate::served(context.dir()) {
            return Some(served);
        }
    }
    None
}

fn end_with_stdin() {
    let wait = || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    };
    let _ = std::thread::Builder::new().name("stdin".into()).spawn(wait);
}

/// Starts a child that follows the tree of a daemon, and restarts it when it ends. `to`: the value
/// of `--push`, a remote with an optional interval.
pub fn start(to: &str, at: &Path, engine: &Arc<Engine>) -> std::io::Result<()> {
    let (remote, every) = match to.split_once('/') {
        Some((remote, every)) => (remote, format!("--auto={every}")),
        None => (to, "--auto".to_owned()),
    };
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("-C")
        .arg(at)
        .args(["push", remote, &every])
        .env(CHILD, "1")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    sys::start_unblocked(&mut command);
    let engine = Arc::downgrade(engine);
    std::thread::Builder::new()
        .name("push".into())
        .spawn(move || supervise(command, &engine))
        .map(drop)
}

/// Ends the child of this daemon, if it has one; it is restarted if the tree is served then.
pub fn end() {
    if let Some(child) = *CHILD_PID.lock() {
        let _ = sys::kill(child, SIGTERM);
    }
}

fn supervise(mut command: Command, engine: &Weak<Engine>) {
    let mut told = None;
    loop {
        let ended = command.spawn().map(|mut child| {
            *CHILD_PID.lock() = i32::try_from(child.id()).ok();
            let said = said(&mut child);
            // The lock keeps its process id from being reused while it is signalled.
            let mut pid = CHILD_PID.lock();
            *pid = None;
            (child.wait(), said)
        });
        let failure = match ended {
            Ok((Ok(status), said)) if !status.success() && !said.is_empty() => Some(said),
            Ok(_) => None,
            Err(cause) => Some(cause.to_string()),
        };
        let Some(engine) = engine.upgrade() else {
            return;
        };
        // A repeated failure is reported once.
        if let Some(failure) = failure.filter(|failure| told.as_ref() != Some(failure)) {
            engine.warn(format!("checkpoints are not pushed: {failure}"));
            told = Some(failure);
        }
        drop(engine);
        std::thread::sleep(RETRY_MIN);
    }
}

/// Reads a child's stderr until it ends, and returns the last part.
fn said(child: &mut Child) -> String {
    let mut end = Vec::new();
    if let Some(mut stderr) = child.stderr.take() {
        let mut part = [0; SAID_BYTES_MAX];
        while let Ok(count @ 1..) = stderr.read(&mut part) {
            let part = part.get(..count).unwrap_or_default();
            tracing::warn!(said = %String::from_utf8_lossy(part).trim(), "push");
            end.extend_from_slice(part);
            let more = end.len().saturating_sub(SAID_BYTES_MAX);
            end.drain(..more);
        }
    }
    String::from_utf8_lossy(&end).trim().to_owned()
}
