//! The daemon's side of the socket.
//!
//! Every thread waits in accept(2) itself and then serves the connection that it got, so that a
//! request wakes one thread only. One or two are kept waiting; the one that takes the last place
//! starts another before it begins.
//!
//! **Bounds.** A client that does nothing, or not what a client does, takes nothing from the
//! others: a message that has begun must end within [`MESSAGE_TIMEOUT`], few long messages are read
//! at once, and when all places are taken the connection that was silent for longest goes. There are at
//! most [`THREADS_MAX`] threads, whatever connects.
//!
//! **Locking.** `connections` is a leaf.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::protocol::{Call, FRAME_BYTES_MAX, encode_error, receive_up_to, write_answer};
use crate::engine::api::{Code, Unmount, VerbError, VerbResult};
use crate::engine::requester::Requester;
use crate::engine::verb::Answer;
use crate::engine::verbs::{Answerer, Request};
use crate::store::record::Actor;
use crate::sys;
use crate::sys::host;
use crate::sys::lock::Mutex;

/// Connections served at once; one more takes the place of one that says nothing, or is told so and
/// closed.
pub const CONNECTIONS_MAX: usize = 64;

/// Threads for connections. Those beyond the ones that are served end what they have: they refuse
/// somebody, or were told to give way. With so many of them the next connection waits in the kernel
/// until one has done that.
const THREADS_MAX: usize = 2 * CONNECTIONS_MAX;

/// A message that has begun must have ended after so long. Clients send one with one write.
pub(super) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection on which nothing is asked for so long gives way to another when all places are
/// taken.
pub(super) const IDLE_KEPT: Duration = Duration::from_secs(5);

/// Longer messages are read by few threads at once: their memory is taken before anything is known
/// of what they hold.
pub(super) const LONG_BYTES: usize = 256 << 10;

/// So many.
pub(super) const LONG_MAX: usize = 4;

/// Bytes of what is kept of an error's message: it may repeat what a client sent.
const ERROR_BYTES_MAX: usize = 16 << 10;

/// A client that does not read its answer for so long is given up.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a message that gives something up.
const CANCEL_BYTES_MAX: usize = 64;

/// An answer is sent in parts of so many bytes.
const ANSWER_BUFFER_BYTES: usize = 64 << 10;

/// How long [`Answers`] pauses between two looks.
const ANSWER_PAUSE: Duration = Duration::from_micros(200);

/// How long to wait after accept(2) failed, for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

struct Server {
    listener: UnixListener,
    answerer: Arc<dyn Answerer>,
    /// See [`Call`].
    tree: String,
    leave: Box<dyn Fn() + Send + Sync>,
    /// Threads in accept(2), or on their way there.
    waiting: AtomicUsize,
    /// Threads that there are, at most [`THREADS_MAX`].
    threads: AtomicUsize,
    /// So many wait once everything is quiet.
    idle: usize,
    /// Connections being served, by number.
    connections: Mutex<HashMap<u64, Connection>>,
    /// Connections that there ever were.
    accepted: AtomicU64,
    /// Long messages being read.
    long: AtomicUsize,
    /// Requests that were received and not yet answered.
    unanswered: AtomicUsize,
    /// Nobody is served any more.
    ended: AtomicBool,
}

/// A connection being served.
struct Connection {
    stream: Arc<UnixStream>,
    /// Since when nothing is asked; `None`: something is, or it is to be left alone.
    idle: Option<Instant>,
}

/// The answers that are still to be given.
pub struct Answers(Arc<Server>);

impl Answers {
    /// Waits until every request that was received is answered, at most `limit`. A daemon that ends
    /// before loses the answer to the very `unmount` that made it end.
    pub fn wait_given(&self, limit: Duration) {
        let began = Instant::now();
        while self.0.unanswered.load(Ordering::SeqCst) > 0 && began.elapsed() < limit {
            std::thread::sleep(ANSWER_PAUSE);
        }
    }

    /// Serves nobody any more: every connection ends, which tells who waits for the end of the tree
    /// that it has come, and the threads let go of what answered.
    pub fn end(&self) {
        self.0.ended.store(true, Ordering::SeqCst);
        // It wakes who waits in accept(2).
        sys::shutdown(&self.0.listener);
        for connection in self.0.connections.lock().values() {
            let _ = connection.stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Serves `answerer` on `listener`, from threads of its own, until the process ends; returns at
/// once. `leave` is called after the answer to an `unmount` that wants the daemon to end although
/// the mount is in use. `tree`: which one it is, as the source of the mount names it. `idle`: how many
/// threads wait for a connection once everything is quiet, at least 1.
pub fn serve(
    listener: UnixListener,
    answerer: Arc<dyn Answerer>,
    tree: String,
    idle: usize,
    leave: impl Fn() + Send + Sync + 'static,
) -> io::Result<Answers> {
    let none = || AtomicUsize::new(0);
    let server = Server {
        listener,
        answerer,
        tree,
        leave: Box::new(leave),
        waiting: none(),
        threads: none(),
        idle,
        connections: Mutex::default(),
        accepted: AtomicU64::new(0),
        long: none(),
        unanswered: none(),
        ended: AtomicBool::new(false),
    };
    let server = Arc::new(server);
    for _ in 0..idle {
        server.start_thread()?;
    }
    Ok(Answers(server))
}

impl Server {
    fn start_thread(self: &Arc<Server>) -> io::Result<()> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.threads.fetch_add(1, Ordering::SeqCst);
        let server = Arc::clone(self);
        let started = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                server.accept();
                server.threads.fetch_sub(1, Ordering::SeqCst);
            });
        if started.is_err() {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            self.threads.fetch_sub(1, Ordering::SeqCst);
        }
        started.map(drop)
    }

    /// Takes connections, one after the other. The caller counted this thread as waiting.
    fn accept(self: &Arc<Server>) {
        host::raise_priority();
        loop {
            let accepted = self.listener.accept();
            if self.ended.load(Ordering::SeqCst) {
                return;
            }
            if self.waiting.fetch_sub(1, Ordering::SeqCst) == 1
                && self.threads.load(Ordering::SeqCst) < THREADS_MAX
                && self.start_thread().is_err()
            {
                // Nobody waits while this connection is served; the next one is kept waiting by the
                // kernel.
                tracing::warn!("no thread for further control connections");
            }
            match accepted {
                Ok((stream, _)) => self.connection(Arc::new(stream)),
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
            if self.waiting.fetch_add(1, Ordering::SeqCst) >= self.idle {
                self.waiting.fetch_sub(1, Ordering::SeqCst);
                return;
            }
        }
    }

    fn connection(&self, stream: Arc<UnixStream>) {
        let number = self.accepted.fetch_add(1, Ordering::Relaxed);
        let served = self
            .admit(number, &stream)
            .and_then(|refusal| match refusal {
                None => self.requests_and_end(number, &stream),
                Some(error) => reply(&stream, Err(error), &[]),
            });
        self.connections.lock().remove(&number);
        if let Err(error) = served {
            tracing::debug!(%error, "control connection lost");
        }
    }

    /// Enters a connection into the table, or says why the one at the other end is not served.
    fn admit(&self, number: u64, stream: &Arc<UnixStream>) -> io::Result<Option<VerbError>> {
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let (peer, _, _) = sys::peer_cred(stream)?;
        let (own, _) = sys::ids();
        if peer != own && peer != 0 {
            let message = format!("this mount is controlled by user {own} and by root only");
            return Ok(Some(VerbError {
                code: Code::NoPermission,
                message,
                hint: None,
            }));
        }
        let mut connections = self.connections.lock();
        if connections.len() >= CONNECTIONS_MAX && !make_room(&mut connections) {
            let message = format!("the daemon already has {CONNECTIONS_MAX} control connections");
            return Ok(Some(VerbError {
                code: Code::TooManyConnections,
                message,
                hint: Some("close one, or try again".into()),
            }));
        }
        if self.ended.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        connections.insert(
            number,
            Connection {
                stream: Arc::clone(stream),
                idle: Some(Instant::now()),
            },
        );
        Ok(None)
    }

    /// Notes that nothing is asked on a connection from now on, or that something is.
    fn set_idle(&self, number: u64, idle: bool) {
        if let Some(connection) = self.connections.lock().get_mut(&number) {
            connection.idle = idle.then(Instant::now);
        }
    }

    /// What was begun on a connection ends with it: descriptors are held for whoever asked.
    fn requests_and_end(&self, number: u64, stream: &Arc<UnixStream>) -> io::Result<()> {
        // Who that is was settled when they connected (SO_PEERCRED), and is asked once.
        let (peer, other) = (Arc::clone(stream), Arc::clone(stream));
        let requester = Requester::new(move || actor(&peer), move || is_given_up(&other));
        let ended = self.requests(number, stream, &requester);
        crate::engine::verbs::end(&requester, &*self.answerer);
        ended
    }

    fn requests(&self, number: u64, stream: &UnixStream, requester: &Requester) -> io::Result<()> {
        let mut reader = BufReader::new(InTime {
            stream,
            until: Cell::new(None),
        });
        let mut frame = Vec::new();
        loop {
            match self.next(number, &mut reader, &mut frame) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => return refuse(stream, error),
            }
            self.unanswered.fetch_add(1, Ordering::SeqCst);
            let request = Call::decode(&frame).and_then(|call| call.meant_for(&self.tree));
            // A long message has a long buffer.
            frame = Vec::new();
            let unmount = if let Ok(Request::Unmount(unmount)) = request {
                Some(unmount)
            } else {
                None
            };
            let result = request.and_then(|request| self.call(request, requester));
            let done = result.is_ok();
            let replied = reply(stream, result, &requester.take_files());
            self.unanswered.fetch_sub(1, Ordering::SeqCst);
            replied?;
            if let Some(Unmount { leave: true, .. }) = unmount.filter(|_| done) {
                (self.leave)();
            }
            // Who has asked for an unmount waits for the end of this process, which the end of the
            // connection tells.
            self.set_idle(number, unmount.is_none());
        }
    }

    /// Waits for the next message and reads it into `frame`. `false`: there is none, the connection
    /// was closed.
    fn next(
        &self,
        number: u64,
        reader: &mut BufReader<InTime<'_>>,
        frame: &mut Vec<u8>,
    ) -> io::Result<bool> {
        if reader.fill_buf()?.is_empty() {
            return Ok(false);
        }
        self.set_idle(number, false);
        if reader.buffer().contains(&b'\n') {
            return receive_up_to(reader, frame, FRAME_BYTES_MAX);
        }
        reader
            .get_ref()
            .until
            .set(Some(Instant::now() + MESSAGE_TIMEOUT));
        let received = match receive_up_to(&mut *reader, frame, LONG_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => self.rest(reader, frame),
            received => received,
        };
        reader.get_ref().until.set(None);
        reader.get_ref().stream.set_read_timeout(None)?;
        received
    }

    /// Reads the rest of a long message.
    fn rest(&self, reader: &mut BufReader<InTime<'_>>, frame: &mut Vec<u8>) -> io::Result<bool> {
        let others = self.long.fetch_add(1, Ordering::SeqCst);
        let begin = std::mem::take(frame);
        let received = if others < LONG_MAX {
            receive_up_to(begin.as_slice().chain(&mut *reader), frame, FRAME_BYTES_MAX)
        } else {
            Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "too many long messages at once",
            ))
        };
        self.long.fetch_sub(1, Ordering::SeqCst);
        received
    }

    fn call(&self, request: Request, requester: &Requester) -> VerbResult<Answer> {
        let answer = catch_unwind(AssertUnwindSafe(|| {
            self.answerer.answer(request, requester)
        }));
        answer.unwrap_or_else(|_| {
            let message = "the daemon failed internally while answering".into();
            Err(VerbError {
                code: Code::Internal,
                message,
                hint: Some("see .ckptfs/daemon.log".into()),
            })
        })
    }
}

/// Whoever is at the other end has gone, or says that what was asked for is to be given up. One who
/// only says no more still waits for an answer.
fn is_given_up(stream: &UnixStream) -> bool {
    let mut said = [0; CANCEL_BYTES_MAX];
    let said = match sys::peek(stream, &mut said) {
        Ok(length) => said.get(..length).unwrap_or_default(),
        Err(_) => &[],
    };
    let line = said
        .split_inclusive(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    matches!(
        Call::decode(line),
        Ok(Call {
            request: Request::Cancel(_),
            ..
        })
    ) || sys::is_peer_gone(stream)
}

/// Who is at the other end, for the record. It was let in, so the kernel told once already.
fn actor(stream: &UnixStream) -> Actor {
    let (uid, gid, pid) = sys::peer_cred(stream).unwrap_or((u32::MAX, u32::MAX, 0));
    let pid = u32::try_from(pid).unwrap_or(0);
    Actor {
        uid,
        gid,
        pid,
        process: sys::process_name(pid).unwrap_or_default(),
    }
}

/// Takes away the connection that was silent for longest, if that is long enough. Its thread
/// notices, and ends it.
fn make_room(connections: &mut HashMap<u64, Connection>) -> bool {
    let silent = connections
        .iter()
        .filter_map(|(number, connection)| Some((connection.idle?, *number)));
    let Some((_, number)) = silent
        .min()
        .filter(|(since, _)| since.elapsed() >= IDLE_KEPT)
    else {
        return false;
    };
    let Some(connection) = connections.remove(&number) else {
        return false;
    };
    // It fails only if the other end is gone, and then the thread notices that.
    let _ = connection.stream.shutdown(std::net::Shutdown::Both);
    true
}

/// Tells a client that its message cannot be read, as far as it listens, and ends the connection
/// with that.
fn refuse(stream: &UnixStream, error: io::Error) -> io::Result<()> {
    let (code, message) = match error.kind() {
        io::ErrorKind::InvalidData => (
            Code::TooLarge,
            format!("a message can have at most {FRAME_BYTES_MAX} bytes"),
        ),
        io::ErrorKind::ResourceBusy => (
            Code::TooManyConnections,
            "the daemon is reading too many long messages at once".into(),
        ),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => (
            Code::Protocol,
            format!(
                "the message was still incomplete after {} s",
                MESSAGE_TIMEOUT.as_secs()
            ),
        ),
        _ => return Err(error),
    };
    reply(
        stream,
        Err(VerbError {
            code,
            message,
            hint: None,
        }),
        &[],
    )
}

/// Reads from a connection, until a given moment if there is one.
struct InTime<'a> {
    stream: &'a UnixStream,
    until: Cell<Option<Instant>>,
}

impl Read for InTime<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(until) = self.until.get() {
            let left = until
                .checked_duration_since(Instant::now())
                .filter(|left| !left.is_zero())
                .ok_or(io::ErrorKind::TimedOut)?;
            self.stream.set_read_timeout(Some(left))?;
        }
        let mut stream = self.stream;
        stream.read(buffer)
    }
}

/// Sends an answer, and with it descriptors.
fn reply(
    mut stream: &UnixStream,
    result: VerbResult<Answer>,
    files: &[Arc<File>],
) -> io::Result<()> {
    let answer = match result {
        Ok(answer) => answer,
        Err(mut error) => {
            let end = (0..=ERROR_BYTES_MAX)
                .rev()
                .find(|end| error.message.is_char_boundary(*end))
                .unwrap_or(0);
            error.message.truncate(end);
            return stream.write_all(&encode_error(error)?);
        }
    };
    let mut out = BufWriter::with_capacity(ANSWER_BUFFER_BYTES, WithFiles { stream, files });
    let written = write_answer(&mut out, answer);
    // One who does not read is not waited for once more.
    let _ = out.into_parts();
    written
}

/// Writes to a connection; descriptors go with what is written first.
struct WithFiles<'a> {
    stream: &'a UnixStream,
    files: &'a [Arc<File>],
}

impl Write for WithFiles<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let files: Vec<BorrowedFd<'_>> = std::mem::take(&mut self.files)
            .iter()
            .map(|file| file.as_fd())
            .collect();
        if files.is_empty() {
            self.stream.write(bytes)
        } else {
            Ok(sys::send_files(self.stream, bytes, &files)?)
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
