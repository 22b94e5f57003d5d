//! Ctrl-C, and whatever else asks this program to end, while the daemon restores something: the
//! daemon is told, and its answer says what became of it.
//!
//! What has changed nothing yet is given up. What has begun to change the tree is finished: half of
//! it is nobody's wish, and `ckptfs undo` takes it back. A second signal ends this program at once;
//! the daemon notices that nobody waits any more, and does the same.

use std::io;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use super::error::{Failure, On, Outcome};
use super::output::Out;
use super::progress::Spinner;
use crate::control::Client;
use crate::engine::api::{Code, VerbResult};
use crate::engine::verb::Verb;
use crate::engine::verbs::Request;
use crate::sys;

/// Added to the number of a signal; the status of a program that died of one, in a shell.
pub const SIGNAL_STATUS: i32 = 128;
const CANCELLED: &str = "cancelled: nothing was changed";

/// What a signal is for: nothing is done now.
const NOTHING: i32 = -1;
/// The daemon is asked.
const DAEMON: i32 = 0;

/// See the module.
pub struct Interrupt {
    /// The signal that came, or 0.
    came: Arc<AtomicI32>,
    /// What it is for: [`NOTHING`], [`DAEMON`], or a process.
    meant_for: Arc<AtomicI32>,
}

impl Interrupt {
    /// From now on a signal gives up what is asked of the daemon. Call it before a thread is
    /// started.
    pub fn gives_up(client: &Client) -> VerbResult<Interrupt> {
        let canceller = client.canceller().on("the connection")?;
        let ours = Interrupt {
            came: Arc::default(),
            meant_for: Arc::new(AtomicI32::new(NOTHING)),
        };
        let (came, meant_for) = (Arc::clone(&ours.came), Arc::clone(&ours.meant_for));
        let tell = move |signal| {
            came.store(signal, Ordering::SeqCst);
            match meant_for.load(Ordering::SeqCst) {
                NOTHING => {}
                DAEMON => {
                    // It is gone: then there is an answer, or nobody to ask.
                    let _ = canceller.cancel();
                }
                process => {
                    // It may have ended just now.
                    let _ = sys::kill(process, signal);
                }
            }
            if let Ok(signal) = sys::wait_terminate() {
                std::process::exit(SIGNAL_STATUS + signal);
            }
        };
        sys::on_terminate(tell)
            .map(drop)
            .on("waiting for signals")?;
        Ok(ours)
    }

    /// Runs a command of the user's to its end. A signal is passed on to it; one that came before
    /// ends it at once.
    ///
    /// # Errors
    /// Those of starting it.
    pub fn run(&self, command: &mut Command) -> io::Result<ExitStatus> {
        run_to_end(command, &self.meant_for, NOTHING, |_| {
            self.came.load(Ordering::SeqCst)
        })
    }

    /// What was to be done is given up, if a signal came.
    ///
    /// # Errors
    /// The status of a program that died of it.
    pub fn check(&self, out: &Out) -> Outcome {
        match self.status() {
            Some(status) => {
                out.talk(CANCELLED);
                Err(Failure::Status(status))
            }
            None => Ok(()),
        }
    }

    fn status(&self) -> Option<u8> {
        let signal = self.came.load(Ordering::SeqCst);
        (signal > 0).then(|| u8::try_from(SIGNAL_STATUS + signal).unwrap_or(u8::MAX))
    }

    /// Asks the daemon, whose answer may take a while; one that says that it gave up ends this
    /// program.
    pub fn ask<V: Verb + Into<Request>>(
        &self,
        client: &mut Client,
        asked: V,
        what: &'static str,
        out: &Out,
    ) -> Result<V::Answer, Failure> {
        self.meant_for.store(DAEMON, Ordering::SeqCst);
        self.check(out)?;
        let spinner = Spinner::start(out, what);
        let answer = client.ask(asked);
        spinner.stop();
        self.meant_for.store(NOTHING, Ordering::SeqCst);
        match (answer, self.status()) {
            (Err(why), Some(status)) if why.code == Code::Cancelled => {
                out.talk(CANCELLED);
                Err(Failure::Status(status))
            }
            (answer, _) => Ok(answer?),
        }
    }

    /// What was done is told; whether that came too late to be given up.
    pub fn end(&self, out: &Out) -> Outcome {
        match self.status() {
            Some(status) => {
                out.talk("the tree was already being changed, so the operation was finished; to take it back: ckptfs undo");
                Err(Failure::Status(status))
            }
            None => Ok(()),
        }
    }
}

/// Runs a command of the user's to its end. Its number is in `running` meanwhile, for whoever passes
/// signals on to it, and then `nobody`. Once it is there, `came` tells of a signal that came before,
/// by what was in its place; 0: none did.
///
/// # Errors
/// Those of starting it and of waiting for it.
pub fn run_to_end(
    command: &mut Command,
    running: &AtomicI32,
    nobody: i32,
    came: impl FnOnce(i32) -> i32,
) -> io::Result<ExitStatus> {
    sys::start_unblocked(command);
    let mut child = command.spawn()?;
    let process = i32::try_from(child.id()).unwrap_or(nobody);
    let signal = came(running.swap(process, Ordering::SeqCst));
    if signal > 0 && process > 0 {
        // It may have ended just now.
        let _ = sys::kill(process, signal);
    }
    let waited = sys::wait_ended(child.id());
    // From here on its number may become another's.
    running.store(nobody, Ordering::SeqCst);
    waited.map_err(io::Error::from)?;
    child.wait()
}
