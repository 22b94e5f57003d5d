//! Ctrl-C and other termination signals, during an operation of the daemon: the request is
//! cancelled, and the answer of the daemon reports the result.
//!
//! An operation that has changed nothing yet is abandoned. One that has begun to change the tree is
//! finished, because half of it is useless; `ckptfs undo` reverts it. A second signal ends this
//! program at once; the daemon detects that its client is gone, and does the same.

use std::io;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::error::{ErrorContext, Failure, Outcome};
use crate::output::Out;
use crate::progress::Spinner;
use ckptfs_api::{Client, Code, Request, Verb, VerbResult};
use ckptfs_sys as sys;

/// Added to the number of a signal: the status, in a shell, of a program that it killed.
pub const SIGNAL_STATUS: i32 = 128;
const CANCELLED: &str = "cancelled: nothing was changed";

/// Target of a signal: none at present.
const NOTHING: i32 = -1;
/// Target of a signal: the request to the daemon.
const DAEMON: i32 = 0;

/// The handler of termination signals; see the module.
pub struct Interrupt {
    /// The received signal, or 0.
    came: Arc<AtomicI32>,
    /// Its target: [`NOTHING`], [`DAEMON`], or a process.
    meant_for: Arc<AtomicI32>,
}

impl Interrupt {
    /// Installs the handler: from now on a signal cancels the request to the daemon. Must be called
    /// before a thread is started.
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
                    // It fails if the connection is gone: the answer is there, or the daemon has
                    // ended.
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

    /// Runs a command of the user until it ends. A signal is forwarded to it; an earlier one is
    /// sent to it at once.
    ///
    /// # Errors
    /// Those of starting it.
    pub fn run(&self, command: &mut Command) -> io::Result<ExitStatus> {
        run_to_end(command, &self.meant_for, NOTHING, |_| {
            self.came.load(Ordering::SeqCst)
        })
    }

    /// Abandons the operation if a signal was received.
    ///
    /// # Errors
    /// The status of a program that the signal killed.
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

    /// Sends a request whose answer may take a while. If the daemon cancelled it, the result is a
    /// failure that ends this program.
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

    /// Reports a signal that came too late to cancel the operation, after its result is printed.
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

/// Runs a command of the user until it ends. `running` is set to its process id, to forward
/// signals, and to `nobody` at its end. `came` receives the earlier value of `running` and returns
/// a signal that was received before, or 0.
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
    // From here on its process id may be reused.
    running.store(nobody, Ordering::SeqCst);
    waited.map_err(io::Error::from)?;
    child.wait()
}
