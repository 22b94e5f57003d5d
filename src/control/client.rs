//! The client's side of the socket.

use std::io::{self, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::engine::verbs::Request;

#[cfg(test)]
use std::path::Path;
use std::time::{Duration, Instant};

use super::SOCKET_NAME;
use super::place::{Store, is_same};
use super::protocol::{ANSWER_BYTES_MAX, Call, PROTOCOL, decode_answer, encode, receive_up_to};
use crate::engine::api::{Cancel, Code, VerbError, VerbResult};
use crate::engine::open_store::OpenStore;
use crate::engine::verb::Verb;
use crate::sys::{self, host};

/// A connection to the daemon of a mount. One request at a time; an error of the connection itself
/// ends it.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<Socket>,
    /// The store, in which the daemon that takes over from one that dies has its socket.
    store: Option<Store>,
}

/// The daemon's end of the connection, and descriptors that came with what was read.
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

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// How long a daemon that died while it was asked may take to be followed by another.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(5);
const TAKEOVER_PAUSE: Duration = Duration::from_millis(10);
/// How many daemons may die over one question.
const TAKEOVERS_MAX: u32 = 5;

impl Client {
    /// Connects to the daemon that serves a store.
    ///
    /// Errors: `ConnectionRefused` or `NotFound` when no daemon runs; `PermissionDenied` when it is
    /// not ours to ask, or runs as another user than the owner of the store.
    pub fn of(store: &Store) -> io::Result<Client> {
        Ok(Client {
            stream: Socket::reader(connect(store)?),
            store: Some(store.try_clone()?),
        })
    }

    /// As [`Client::of`], of a directory that is known to be the store, to somebody who knows whose
    /// it is: whatever tree it is of.
    pub fn connect(store: impl AsFd) -> io::Result<Client> {
        Client::of(&Store::known(store)?)
    }

    /// One more connection to the same daemon, or to the one that took over from it.
    pub fn again(&self) -> Option<Client> {
        Client::of(self.store.as_ref()?).ok()
    }

    /// A descriptor with which files in the store can be changed; the link of the mount, through
    /// which it may have been found, leads to it read-only.
    ///
    /// # Errors
    /// `protocol`: the daemon gave another one. Those of asking.
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

    /// The store.
    pub fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// Connects to the daemon that takes over; whether there is one.
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

    #[cfg(test)]
    /// Connects to the socket at `path`, at most about 100 bytes long (unix(7), `sun_path`).
    pub fn connect_path(path: &Path) -> io::Result<Client> {
        Ok(Client {
            stream: Socket::reader(UnixStream::connect(path)?),
            store: None,
        })
    }

    /// Asks for something. What changes nothing is asked again of the daemon that takes over from
    /// one that dies.
    ///
    /// # Errors
    /// Those of the verb; `daemon-lost`: it died, and whether it was done is not known.
    pub fn ask<V: Verb + Into<Request>>(&mut self, verb: V) -> VerbResult<V::Answer> {
        self.ask_with_files(verb).map(|(answer, _)| answer)
    }

    /// As [`Client::ask`], and the descriptors that come with the answer, in their order.
    ///
    /// # Errors
    /// As of [`Client::ask`].
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

    /// Waits until the daemon has ended, for `timeout` at most; whether it has.
    pub fn wait_ended(&mut self, timeout: Duration) -> bool {
        // The daemon never closes a connection first, so the end of the stream is the end of the
        // process.
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
            // Nothing is asked, so nothing is answered; and if it is, somebody lives there.
            Ok(read) => read == 0,
            Err(error) => !matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
            ),
        }
    }

    /// What says that the request that is waited for is to be given up, from another thread.
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
        let frame = encode(&Call {
            version: PROTOCOL,
            tree,
            request: verb.into(),
        })
        .map_err(|error| VerbError {
            code: Code::TooLarge,
            message: format!("cannot ask the daemon: {error}"),
            hint: None,
        })?;
        // A daemon that refuses us answers and closes without reading: what it said is there
        // although sending fails.
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

/// See [`Client::canceller`].
#[derive(Debug)]
pub struct Canceller(UnixStream);

impl Canceller {
    /// Says so; the daemon's answer tells what became of it.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn cancel(&self) -> io::Result<()> {
        (&self.0).write_all(&encode(&Call {
            version: PROTOCOL,
            tree: None,
            request: Cancel.into(),
        })?)
    }
}

/// Connects to the socket in a store, if it is the store's owner who listens there: the kernel says
/// who called listen(2).
fn connect(store: &Store) -> io::Result<UnixStream> {
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
