//! The server of the control socket.
//!
//! Every thread waits in accept(2) and then serves the accepted connection, so a request wakes only
//! one thread. One or two threads are kept waiting; the last waiting thread starts another before
//! it serves.
//!
//! **Bounds.** An idle or misbehaving client takes no resources from the others. A message must be
//! complete within [`MESSAGE_TIMEOUT`] of its first byte, and few long messages are read at a time.
//! When all connections are taken, the one that was idle for longest is closed. There are at most
//! [`THREADS_MAX`] threads, for any number of clients.
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

use ckptfs_api::protocol::{
    FRAME_BYTES_MAX, RequestFrame, encode_error, receive_up_to, write_answer,
};
use ckptfs_api::{Actor, Answer, Code, Request, Unmount, VerbError, VerbResult};
use ckptfs_core::engine::requester::Requester;
use ckptfs_core::engine::verbs::RequestHandler;
use ckptfs_sys as sys;
use ckptfs_sys::host;
use ckptfs_sys::lock::Mutex;

/// Maximum number of connections served. A further one replaces an idle connection, or receives an
/// error and is closed.
pub const CONNECTIONS_MAX: usize = 64;

/// Maximum number of threads. Threads beyond the connections served are finishing: they reject a
/// client, or their connection was replaced. At the maximum, the next connection waits in the
/// kernel until one has finished.
const THREADS_MAX: usize = 2 * CONNECTIONS_MAX;

/// Maximum time from the first byte of a message to its end. Clients send a message with one write.
pub(super) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Idle time after which a connection may be replaced by another when all are taken.
pub(super) const IDLE_KEPT: Duration = Duration::from_secs(5);

/// Size in bytes above which few messages are read at a time, because their memory is allocated
/// before their content is validated.
pub(super) const LONG_BYTES: usize = 256 << 10;

/// Maximum number of such messages read at a time.
pub(super) const LONG_MAX: usize = 4;

/// Maximum length of an error message in bytes: it may repeat data of the client.
const ERROR_BYTES_MAX: usize = 16 << 10;

/// Time after which a client that does not read its answer is dropped.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum length of a cancellation in bytes.
const CANCEL_BYTES_MAX: usize = 64;

/// Size of the buffer for answers in bytes.
const ANSWER_BUFFER_BYTES: usize = 64 << 10;

/// Polling interval of [`ServerHandle`].
const ANSWER_PAUSE: Duration = Duration::from_micros(200);

/// Pause after accept(2) failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

struct ControlServer {
    listener: UnixListener,
    answerer: Arc<dyn RequestHandler>,
    /// See [`RequestFrame`].
    tree: String,
    leave: Box<dyn Fn() + Send + Sync>,
    /// Threads in accept(2), or about to enter it.
    waiting: AtomicUsize,
    /// Number of threads, up to [`THREADS_MAX`].
    threads: AtomicUsize,
    /// Number of threads that stay waiting when idle.
    idle: usize,
    /// Connections being served, by number.
    connections: Mutex<HashMap<u64, Connection>>,
    /// Number of connections accepted so far.
    accepted: AtomicU64,
    /// Long messages being read.
    long: AtomicUsize,
    /// Requests received and not yet answered.
    unanswered: AtomicUsize,
    /// The server has ended.
    ended: AtomicBool,
}

/// A connection being served.
struct Connection {
    stream: Arc<UnixStream>,
    /// Start of the idle time; `None` during a request, or if the connection must not be replaced.
    idle: Option<Instant>,
}

/// A handle to wait for pending answers and to end the server.
pub struct ServerHandle(Arc<ControlServer>);

impl ServerHandle {
    /// Waits up to `limit` until every received request is answered. A daemon that exits before
    /// loses the answer to the `unmount` that ended it.
    pub fn wait_given(&self, limit: Duration) {
        let began = Instant::now();
        while self.0.unanswered.load(Ordering::SeqCst) > 0 && began.elapsed() < limit {
            std::thread::sleep(ANSWER_PAUSE);
        }
    }

    /// Ends the server: closes every connection, which notifies clients that wait for the end of
    /// the tree, and lets the threads release the answerer.
    pub fn end(&self) {
        self.0.ended.store(true, Ordering::SeqCst);
        // Wakes threads in accept(2).
        sys::shutdown(&self.0.listener);
        for connection in self.0.connections.lock().values() {
            let _ = connection.stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Serves `answerer` on `listener` from new threads until [`ServerHandle::end`], and returns at
/// once. `leave` is called after the answer to an `unmount` that ends the daemon although the mount
/// is in use. `tree` is the source of the mount. `idle` threads, at least 1, stay waiting for
/// connections.
pub fn serve(
    listener: UnixListener,
    answerer: Arc<dyn RequestHandler>,
    tree: String,
    idle: usize,
    leave: impl Fn() + Send + Sync + 'static,
) -> io::Result<ServerHandle> {
    let none = || AtomicUsize::new(0);
    let server = ControlServer {
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
    Ok(ServerHandle(server))
}

impl ControlServer {
    fn start_thread(self: &Arc<ControlServer>) -> io::Result<()> {
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

    /// Accepts and serves connections, in sequence. The caller has counted this thread as waiting.
    fn accept(self: &Arc<ControlServer>) {
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
                // While this connection is served no thread waits; the next connection waits in the
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

    /// Adds a connection to the table, or returns the reason to reject it.
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

    /// Marks a connection as idle or busy.
    fn set_idle(&self, number: u64, idle: bool) {
        if let Some(connection) = self.connections.lock().get_mut(&number) {
            connection.idle = idle.then(Instant::now);
        }
    }

    /// Serves a connection. Unfinished work of the client ends with it, such as descriptors held
    /// for it.
    fn requests_and_end(&self, number: u64, stream: &Arc<UnixStream>) -> io::Result<()> {
        // The peer was fixed at connect(2) (SO_PEERCRED), and is read once.
        let (peer, other) = (Arc::clone(stream), Arc::clone(stream));
        let requester = Requester::new(move || actor(&peer), move || is_given_up(&other));
        let ended = self.requests(number, stream, &requester);
        ckptfs_core::engine::verbs::end(&requester, &*self.answerer);
        ended
    }

    fn requests(&self, number: u64, stream: &UnixStream, requester: &Requester) -> io::Result<()> {
        let mut reader = BufReader::new(DeadlineReader {
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
            let request = RequestFrame::decode(&frame).and_then(|call| call.meant_for(&self.tree));
            // Releases the buffer of a long message.
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
            // After an `unmount` the client waits for the end of the connection, so it must not
            // count as idle.
            self.set_idle(number, unmount.is_none());
        }
    }

    /// Waits for the next message and reads it into `frame`. `false`: the client closed the
    /// connection.
    fn next(
        &self,
        number: u64,
        reader: &mut BufReader<DeadlineReader<'_>>,
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
    fn rest(
        &self,
        reader: &mut BufReader<DeadlineReader<'_>>,
        frame: &mut Vec<u8>,
    ) -> io::Result<bool> {
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

/// Returns whether the client has closed the connection or cancelled its request. A client that has
/// only shut down its sending direction still waits for an answer.
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
        RequestFrame::decode(line),
        Ok(RequestFrame {
            request: Request::Cancel(_),
            ..
        })
    ) || sys::is_peer_gone(stream)
}

/// The client, for the operation record. It was admitted, so the kernel has reported it before.
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

/// Closes the connection that was idle for longest, if it was for [`IDLE_KEPT`]. Its thread then
/// ends.
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
    // It fails only if the client has closed, which the thread detects.
    let _ = connection.stream.shutdown(std::net::Shutdown::Both);
    true
}

/// Reports to a client that its message cannot be read, if it still reads, and ends the connection.
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

/// Reads from a connection, up to a deadline if set.
struct DeadlineReader<'a> {
    stream: &'a UnixStream,
    until: Cell<Option<Instant>>,
}

impl Read for DeadlineReader<'_> {
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

/// Sends an answer with descriptors.
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
    let mut out = BufWriter::with_capacity(ANSWER_BUFFER_BYTES, DescriptorWriter { stream, files });
    let written = write_answer(&mut out, answer);
    // Drops the buffer without another attempt to write to a client that does not read.
    let _ = out.into_parts();
    written
}

/// Writes to a connection, passing descriptors with the first bytes.
struct DescriptorWriter<'a> {
    stream: &'a UnixStream,
    files: &'a [Arc<File>],
}

impl Write for DescriptorWriter<'_> {
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
