//! `ckptfs push --auto`: checkpoints are sent as they are made; and `ckptfs mount --push`, which has
//! the daemon of a mount run it.
//!
//! It is a process of its own: a repository that hangs, or is damaged in a way that nobody expected,
//! keeps no daemon busy. Before an unmount it is ended, for it reads the past in the mount; what it
//! was sending is sent again later, but for what the repository has by then.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::super::context::Context;
use super::super::error::{Failure, On, Outcome};
use super::super::locate::{self, Served};
use super::push::{self, Args};
use crate::engine::Engine;
use crate::engine::api::{Code, ShowCheckpoint, StateName, VerbError, VerbResult};
use crate::store::ids::CheckpointId;
use crate::sys;
use crate::sys::lock::Mutex;

/// Between two looks at whether there is a new checkpoint.
const LOOK: Duration = Duration::from_secs(2);
/// What has failed is tried again after so long, which doubles each time up to the second.
const RETRY_MIN: Duration = Duration::from_secs(30);
const RETRY_MAX: Duration = Duration::from_secs(600);
/// A daemon that is gone may be followed by another within this time.
const GONE: Duration = Duration::from_secs(5);
/// Of what a child says on stderr, the end is told.
const SAID_BYTES_MAX: usize = 2048;
/// Set for the child of a daemon: it ends when its stdin does.
const CHILD: &str = "CKPTFS_PUSH_OF_DAEMON";
const SIGTERM: i32 = 15;

/// The child of this process, as long as nobody has waited for it.
static CHILD_PID: Mutex<Option<i32>> = Mutex::new(None);

/// Sends what the remote has not, and each checkpoint that is made, until the tree is unmounted.
/// `every`: the newest one, so often.
pub fn follow(args: &Args, every: Duration, context: &mut Context) -> Outcome {
    if std::env::var_os(CHILD).is_some() {
        end_with_stdin();
    }
    let mut served = locate::served(context.dir())?;
    // A working directory in the mount would keep it from being unmounted.
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

/// What is wrong may be right later without anybody's doing.
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

fn newest(served: &mut Served) -> VerbResult<Option<CheckpointId>> {
    let latest = served.client.ask(ShowCheckpoint {
        state: StateName("latest".to_owned()),
    });
    match latest {
        Ok(latest) => Ok(Some(latest.id)),
        Err(error) if error.code == Code::DaemonLost => Err(error),
        Err(_) => Ok(None),
    }
}

/// The daemon that follows one that is gone.
fn again(context: &Context) -> Option<Served> {
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

/// Has a child follow the tree of a daemon, and another when that has ended. `to`: what `--push` was
/// given, a remote and perhaps how often.
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

/// Ends the child of this daemon, if it has one: another follows, if the tree is served then.
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
            // The lock keeps its number from being given to another while it is signalled.
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
        // The same once is enough.
        if let Some(failure) = failure.filter(|failure| told.as_ref() != Some(failure)) {
            engine.warn(format!("checkpoints are not pushed: {failure}"));
            told = Some(failure);
        }
        drop(engine);
        std::thread::sleep(RETRY_MIN);
    }
}

/// What a child says on stderr until it ends: the end of it.
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
