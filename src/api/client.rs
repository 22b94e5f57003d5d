//! The client of the control socket.

use std::io::{self, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::SOCKET_NAME;
use crate::discovery::{StoreDir, is_same};
use crate::error::{Code, VerbError, VerbResult};
use crate::open_store::OpenStore;
use crate::protocol::{
    ANSWER_BYTES_MAX, PROTOCOL, RequestFrame, decode_answer, encode, receive_up_to,
};
use crate::request::{Cancel, Request};
use crate::verb::Verb;
use ckptfs_sys::{self as sys, host};

/// A connection to the daemon of a mount. It carries one request at a time; an error of the
/// connection itself ends it.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<Socket>,
    /// The store, which also contains the socket of a successor if the daemon dies.
    store: Option<StoreDir>,
}

/// The socket, with the descriptors received so far.
#[derive(Debug)]
struct Socket {
    stream: UnixStream,
    files: Vec<OwnedFd>,
}

impl Socket {
    fn reader(stream: UnixStream) -> BufReader<Socket> {
        BufReader::with_capacity(
            READ_BYTES,
            Socket {
                stream,
                files: Vec::new(),
            },
        )
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(sys::receive_files(&self.stream, buffer, &mut self.files)?)
    }
}

/// Size of the read buffer in bytes.
const READ_BYTES: usize = 64 << 10;
/// Maximum wait for a successor after the daemon dies during a request.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(5);
const TAKEOVER_PAUSE: Duration = Duration::from_millis(10);
/// Maximum number of successors per request.
const TAKEOVERS_MAX: u32 = 5;

impl Client {
    /// Connects to the daemon that serves a store.
    ///
    /// Errors: `ConnectionRefused` or `NotFound` if no daemon runs; `PermissionDenied` if the
    /// caller may not connect, or the daemon runs as another user than the owner of the store.
    pub fn of(store: &StoreDir) -> io::Result<Client> {
        Ok(Client {
            stream: Socket::reader(connect(store)?),
            store: Some(store.try_clone()?),
        })
    }

    /// As [`Client::of`], for a directory that the caller has verified to be a store of a trusted
    /// user, of any tree.
    pub fn connect(store: impl AsFd) -> io::Result<Client> {
        Client::of(&StoreDir::known(store)?)
    }

    /// Opens another connection to the same daemon, or to its successor.
    pub fn again(&self) -> Option<Client> {
        Client::of(self.store.as_ref()?).ok()
    }

    /// Returns a descriptor of the store that permits changes; the mount's link leads to a
    /// read-only view of it.
    ///
    /// # Errors
    /// `protocol`: the daemon returned another directory. Those of the request.
    pub fn open_store(&mut self) -> VerbResult<OwnedFd> {
        let (_, mut fds) = self.ask_with_files(OpenStore)?;
        let is_it = |fd: &OwnedFd| {
            let known = self.store.as_ref();
            known.is_some_and(|known| is_same(&known.dir, fd).unwrap_or(false))
        };
        fds.pop().filter(is_it).ok_or_else(|| VerbError {
            code: Code::Protocol,
            message: "the daemon opened another directory than the store that it serves".into(),
            hint: None,
        })
    }

    /// Returns the store.
    pub fn store(&self) -> Option<&StoreDir> {
        self.store.as_ref()
    }

    /// Connects to the successor of the daemon; returns false if none appears in time.
    fn reconnect(&mut self) -> bool {
        let Some(store) = &self.store else {
            return false;
        };
        let started = Instant::now();
        while started.elapsed() < TAKEOVER_TIMEOUT {
            if let Ok(stream) = connect(store) {
                self.stream = Socket::reader(stream);
                return true;
            }
            std::thread::sleep(TAKEOVER_PAUSE);
        }
        false
    }

    /// Sends a request and returns the answer. A request that changes nothing is sent again to the
    /// successor if the daemon dies.
    ///
    /// # Errors
    /// Those of the verb; `daemon-lost`: the daemon died, and may or may not have completed the
    /// request.
    pub fn ask<V: Verb + Into<Request>>(&mut self, verb: V) -> VerbResult<V::Answer> {
        self.ask_with_files(verb).map(|(answer, _)| answer)
    }

    /// As [`Client::ask`], and also returns the descriptors passed with the answer, in order.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn ask_with_files<V: Verb + Into<Request>>(
        &mut self,
        verb: V,
    ) -> VerbResult<(V::Answer, Vec<OwnedFd>)> {
        for _ in 0..TAKEOVERS_MAX {
            match self.ask_once(verb.clone()) {
                Err(error)
                    if error.code == Code::DaemonLost && verb.only_asks() && self.reconnect() => {}
                answer => return answer,
            }
        }
        self.ask_once(verb)
    }

    /// Waits up to `timeout` for the daemon to stop serving this tree; returns whether it did.
    pub fn wait_ended(&mut self, timeout: Duration) -> bool {
        // After an `unmount` the daemon closes the connection only when it stops serving the tree
        // or exits.
        if self
            .stream
            .get_ref()
            .stream
            .set_read_timeout(Some(timeout))
            .is_err()
        {
            return false;
        }
        match self.stream.read(&mut [0]) {
            // No request is pending, so no answer is expected; data proves that a server is alive.
            Ok(read) => read == 0,
            Err(error) => !matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
            ),
        }
    }

    /// Returns a handle that cancels the pending request from another thread.
    ///
    /// # Errors
    /// Those of dup(2).
    pub fn canceller(&self) -> io::Result<Canceller> {
        self.stream.get_ref().stream.try_clone().map(Canceller)
    }

    fn ask_once<V: Verb + Into<Request>>(
        &mut self,
        verb: V,
    ) -> VerbResult<(V::Answer, Vec<OwnedFd>)> {
        let tree = self.store.as_ref().and_then(|store| store.tree.clone());
        let frame = encode(&RequestFrame {
            version: PROTOCOL,
            tree,
            request: verb.into(),
        })
        .map_err(|error| VerbError {
            code: Code::TooLarge,
            message: format!("cannot ask the daemon: {error}"),
            hint: None,
        })?;
        // A daemon that rejects the client answers and closes without reading: its answer can be
        // read although sending fails.
        self.stream.get_mut().files.clear();
        let sent = self.stream.get_mut().stream.write_all(&frame);
        let mut frame = Vec::new();
        match receive_up_to(&mut self.stream, &mut frame, ANSWER_BYTES_MAX) {
            Ok(true) => Ok((
                decode_answer(&frame)?,
                std::mem::take(&mut self.stream.get_mut().files),
            )),
            Ok(false) => Err(lost(
                &sent
                    .err()
                    .unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()),
            )),
            Err(error) => Err(lost(&sent.err().unwrap_or(error))),
        }
    }
}

/// Cancels a request; see [`Client::canceller`].
#[derive(Debug)]
pub struct Canceller(UnixStream);

impl Canceller {
    /// Sends the cancellation; the daemon's answer to the request reports the outcome.
    ///
    /// # Errors
    /// The daemon has closed the connection.
    pub fn cancel(&self) -> io::Result<()> {
        (&self.0).write_all(&encode(&RequestFrame {
            version: PROTOCOL,
            tree: None,
            request: Cancel.into(),
        })?)
    }
}

/// Connects to the socket in a store, and verifies that its owner listens there: the kernel reports
/// the caller of listen(2).
fn connect(store: &StoreDir) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(host::path_in(store.dir.as_fd(), SOCKET_NAME)?)?;
    let (peer, _, _) = sys::peer_cred(&stream)?;
    if peer == store.owner {
        Ok(stream)
    } else {
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("user {peer} is listening there"),
        ))
    }
}

fn lost(error: &io::Error) -> VerbError {
    VerbError {
        code: Code::DaemonLost,
        message: format!("the daemon ended before it answered ({error})"),
        hint: Some("to see whether it was done: ckptfs log. What was acknowledged is safe. If the mount is dead, mount again: ckptfs mount DIR".into()),
    }
}
