//! The daemon's side of the socket.
//!
//! Every thread waits in accept(2) itself and then serves the connection that it got, so that a request wakes one thread only. Two are kept
//! waiting; the one that takes the last place starts another before it begins.

use std::io::{self, BufReader};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::protocol::{Call, Outcome, PROTOCOL, Reply, Request, Response, encode, receive, send, split};
use crate::engine::api::{VerbError, VerbResult, Verbs};
use crate::sys;
use crate::sys::host;

/// Connections served at once; one more is told so and closed.
pub const CONNECTIONS_MAX: usize = 64;

/// Threads that wait for a connection, once everything is quiet.
const IDLE_THREADS: usize = 2;

/// A client that does not read its answer for so long is given up.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long [`Answers`] pauses between two looks.
const ANSWER_PAUSE: Duration = Duration::from_micros(200);

/// How long to wait after accept(2) failed, for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

struct Server {
    listener: UnixListener,
    verbs: Arc<dyn Verbs>,
    leave: Box<dyn Fn() + Send + Sync>,
    /// Threads in accept(2), or on their way there.
    waiting: AtomicUsize,
    /// Connections being served.
    serving: AtomicUsize,
    /// Requests that were received and not yet answered.
    unanswered: AtomicUsize,
}

/// The answers that are still to be given.
pub struct Answers(Arc<Server>);

impl Answers {
    /// Waits until every request that was received is answered, at most `limit`. A daemon that ends before loses the answer to the very
    /// `unmount` that made it end.
    pub fn wait_given(&self, limit: Duration) {
        let began = Instant::now();
        while self.0.unanswered.load(Ordering::SeqCst) > 0 && began.elapsed() < limit {
            std::thread::sleep(ANSWER_PAUSE);
        }
    }
}

/// Serves `verbs` on `listener`, from threads of its own, until the process ends; returns at once. `leave` is called after the answer to an
/// `unmount` that wants the daemon to end although the mount is in use.
pub fn serve(listener: UnixListener, verbs: Arc<dyn Verbs>, leave: impl Fn() + Send + Sync + 'static) -> io::Result<Answers> {
    let none = || AtomicUsize::new(0);
    let server = Arc::new(Server { listener, verbs, leave: Box::new(leave), waiting: none(), serving: none(), unanswered: none() });
    for _ in 0..IDLE_THREADS {
        server.start_thread()?;
    }
    Ok(Answers(server))
}

impl Server {
    fn start_thread(self: &Arc<Server>) -> io::Result<()> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let server = Arc::clone(self);
        let started = std::thread::Builder::new().name("control".into()).spawn(move || server.accept());
        if started.is_err() {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        started.map(drop)
    }

    /// Takes connections, one after the other. The caller counted this thread as waiting.
    fn accept(self: Arc<Server>) {
        host::raise_priority();
        loop {
            let accepted = self.listener.accept();
            if self.waiting.fetch_sub(1, Ordering::SeqCst) == 1 && self.start_thread().is_err() {
                // Nobody waits while this connection is served; the next one is kept waiting by the kernel.
                tracing::warn!("no thread for further control connections");
            }
            match accepted {
                Ok((stream, _)) => self.connection(&stream),
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
            if self.waiting.fetch_add(1, Ordering::SeqCst) >= IDLE_THREADS {
                self.waiting.fetch_sub(1, Ordering::SeqCst);
                return;
            }
        }
    }

    fn connection(&self, stream: &UnixStream) {
        let serving = self.serving.fetch_add(1, Ordering::SeqCst) + 1;
        let served = self.admit(stream, serving).and_then(|refusal| match refusal {
            None => self.requests(stream),
            Some(error) => reply(stream, Err(error)),
        });
        self.serving.fetch_sub(1, Ordering::SeqCst);
        if let Err(error) = served {
            tracing::debug!(%error, "control connection lost");
        }
    }

    /// Why the one at the other end is not served, if so.
    fn admit(&self, stream: &UnixStream, serving: usize) -> io::Result<Option<VerbError>> {
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let (peer, _, _) = sys::peer_cred(stream)?;
        let (own, _) = sys::ids();
        if peer != own && peer != 0 {
            let message = format!("this mount is controlled by user {own} and by root only");
            return Ok(Some(VerbError { code: "no-permission".into(), message, hint: None }));
        }
        if serving > CONNECTIONS_MAX {
            let message = format!("the daemon serves {CONNECTIONS_MAX} control connections already");
            return Ok(Some(VerbError { code: "too-many-connections".into(), message, hint: Some("close one, or try again".into()) }));
        }
        Ok(None)
    }

    fn requests(&self, stream: &UnixStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        let mut frame = Vec::new();
        while receive(&mut reader, &mut frame)? {
            self.unanswered.fetch_add(1, Ordering::SeqCst);
            let request = Call::decode(&frame);
            let leaving = matches!(request, Ok(Request::Unmount { leave: true, .. }));
            let result = request.and_then(|request| self.call(request));
            let done = result.is_ok();
            let replied = reply(stream, result);
            self.unanswered.fetch_sub(1, Ordering::SeqCst);
            replied?;
            if leaving && done {
                (self.leave)();
            }
        }
        Ok(())
    }

    fn call(&self, request: Request) -> VerbResult<Response> {
        let verbs = &self.verbs;
        let answer = catch_unwind(AssertUnwindSafe(|| match request {
            Request::Checkpoint(options) => verbs.checkpoint(&options).map(Response::Checkpoint),
            Request::Status => verbs.status().map(|status| Response::Status(Box::new(status))),
            Request::Stats => verbs.stats().map(|stats| Response::Stats(Box::new(stats))),
            Request::Log => verbs.log().map(Response::Checkpoints),
            Request::Show { state } => verbs.show(&state).map(Response::Checkpoint),
            Request::Diff { from, to } => verbs.diff(&from, to.as_ref()).map(Response::Changes),
            Request::Restore(options) => verbs.restore(&options).map(Response::Restored),
            Request::Delete { state } => verbs.delete(&state).map(Response::Checkpoint),
            #[cfg(debug_assertions)]
            Request::Fault { plan } => {
                let seen = sys::fault::disarm_process();
                if let Some(plan) = plan {
                    sys::fault::arm_process(plan);
                }
                Ok(Response::Faults { calls: seen.calls, failed: seen.failed })
            }
            Request::Unmount { lazy, leave: _ } => verbs.unmount(lazy).map(|()| Response::Done),
        }));
        answer.unwrap_or_else(|_| {
            let message = "the daemon made a mistake in answering; its log says more".into();
            Err(VerbError { code: "internal".into(), message, hint: Some("see .ckptfs/daemon.log".into()) })
        })
    }
}

/// Sends an answer, in as many frames as it needs.
fn reply(stream: &UnixStream, result: VerbResult<Response>) -> io::Result<()> {
    let mut parts = match result {
        Ok(response) => split(response),
        Err(error) => return send_reply(stream, false, Outcome::Error(error)),
    };
    let last = parts.pop();
    for part in parts {
        send_reply(stream, true, Outcome::Ok(part))?;
    }
    last.map_or(Ok(()), |last| send_reply(stream, false, Outcome::Ok(last)))
}

fn send_reply(stream: &UnixStream, more: bool, result: Outcome) -> io::Result<()> {
    send(stream, &encode(&Reply { version: PROTOCOL, more, result })?)
}
