//! Ctrl-C, and whatever else asks this program to end, while the daemon restores something: the
//! daemon is told, and its answer says what became of it.
//!
//! What has changed nothing yet is given up. What has begun to change the tree is finished: half of
//! it is nobody's wish, and `ckptfs undo` takes it back. A second signal ends this program at once;
//! the daemon notices that nobody waits any more, and does the same.

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
const SIGNAL_STATUS: i32 = 128;

/// See the module.
pub struct Interrupt(Arc<AtomicI32>);

impl Interrupt {
    /// From now on a signal gives up what is asked of the daemon. Call it before a thread is
    /// started.
    pub fn gives_up(client: &Client) -> VerbResult<Interrupt> {
        let canceller = client.canceller().on("the connection")?;
        let came = Arc::new(AtomicI32::new(0));
        let ours = Interrupt(Arc::clone(&came));
        let tell = move |signal| {
            came.store(signal, Ordering::SeqCst);
            // It is gone: then there is an answer, or nobody to ask.
            let _ = canceller.cancel();
            if let Ok(signal) = sys::wait_terminate() {
                std::process::exit(SIGNAL_STATUS + signal);
            }
        };
        sys::on_terminate(tell)
            .map(drop)
            .on("waiting for signals")?;
        Ok(ours)
    }

    fn status(&self) -> Option<u8> {
        let signal = self.0.load(Ordering::SeqCst);
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
        let spinner = Spinner::start(out, what);
        let answer = client.ask(asked);
        spinner.stop();
        match (answer, self.status()) {
            (Err(why), Some(status)) if why.code == Code::Cancelled => {
                out.talk("cancelled: nothing was changed");
                Err(Failure::Status(status))
            }
            (answer, _) => Ok(answer?),
        }
    }

    /// What was done is told; whether that came too late to be given up.
    pub fn end(&self, out: &Out) -> Outcome {
        match self.status() {
            Some(status) => {
                out.talk("it had begun to change the tree when it was to be cancelled, and was finished; to take it back: ckptfs undo");
                Err(Failure::Status(status))
            }
            None => Ok(()),
        }
    }
}
