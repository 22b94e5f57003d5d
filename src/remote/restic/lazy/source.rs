//! The repository as the source of content. A separate process, the remote reader, reads it (see
//! `reader`). The daemon starts one for the first fetch, and a new one when it has ended.
//!
//! The daemon does not trust the reader: it verifies each blob by its hash.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustic_core::DataId;

use super::super::pull::{HOLE_BYTES, is_hash};
use super::protocol::{Answer, Ask, receive, send};
use crate::limits::Limits;
use ckptfs_api::{Code, VerbError, error};
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Errno, SysResult};
use ckptfs_transfer::is_zeros;

/// The time that a killed process has to end.
const END: Duration = Duration::from_secs(2);

/// Starts a remote reader with the given standard input.
pub type Starter = Box<dyn Fn(OwnedFd) -> io::Result<Child> + Send + Sync>;

/// The source of content.
pub struct Source {
    starter: Starter,
    /// The time limit of one blob.
    patience: Duration,
    current: Mutex<Current>,
}

#[derive(Default)]
struct Current {
    process: Option<Arc<Process>>,
    ended: bool,
}

/// A remote reader. Dropping it kills the process.
struct Process {
    control: UnixStream,
    child: Mutex<Child>,
}

/// The reason why content cannot be read.
#[derive(Debug)]
pub enum FetchError {
    /// The remote does not deliver anything for now.
    Away(VerbError),
    /// This content is damaged or missing in the remote.
    Damaged(String),
    /// A local error.
    Here(Errno),
}

impl From<Errno> for FetchError {
    fn from(errno: Errno) -> FetchError {
        FetchError::Here(errno)
    }
}

impl Process {
    fn start(starter: &Starter) -> io::Result<Process> {
        let (control, theirs) = UnixStream::pair()?;
        let child = starter(theirs.into())?;
        Ok(Process {
            control,
            child: Mutex::new(child),
        })
    }

    /// Passes one end of a socket to the process, and returns the other end to ask on.
    fn converse(
        &self,
        (ours, theirs): (UnixStream, UnixStream),
        patience: Duration,
    ) -> io::Result<BufReader<UnixStream>> {
        ours.set_read_timeout(Some(patience))?;
        ours.set_write_timeout(Some(patience))?;
        self.control.set_write_timeout(Some(patience))?;
        sys::send_files(&self.control, &[0], &[theirs.as_fd()])?;
        Ok(BufReader::new(ours))
    }

    /// Kills the process unless it has ended, and returns its status.
    ///
    /// # Errors
    /// `TimedOut`: it has not ended in two seconds, because a disk does not answer.
    fn end(&self) -> io::Result<ExitStatus> {
        let mut child = self.child.lock();
        let killed = Instant::now();
        child.kill()?;
        loop {
            match child.try_wait()? {
                Some(status) => return Ok(status),
                None if killed.elapsed() > END => return Err(io::ErrorKind::TimedOut.into()),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl Source {
    pub fn new(starter: Starter, patience: Duration) -> Source {
        Source {
            starter,
            patience,
            current: Mutex::default(),
        }
    }

    /// Returns the running process, or starts one; `true`: it was started.
    fn process(&self) -> io::Result<(Arc<Process>, bool)> {
        let mut current = self.current.lock();
        if let Some(process) = &current.process {
            return Ok((Arc::clone(process), false));
        }
        if current.ended {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let started = Arc::new(Process::start(&self.starter)?);
        current.process = Some(Arc::clone(&started));
        Ok((started, true))
    }

    /// Stops using the process, which does not answer or has nothing left to fetch. It is killed
    /// when the last fetch from it has ended.
    pub fn forget(&self) {
        let process = self.current.lock().process.take();
        drop(process);
    }

    fn forget_this(&self, process: &Arc<Process>) {
        let is_it = |now: &mut Arc<Process>| Arc::ptr_eq(now, process);
        let forgotten = self.current.lock().process.take_if(is_it);
        drop(forgotten);
    }

    /// Kills the process. Later fetches fail.
    pub fn end(&self) {
        let mut current = self.current.lock();
        current.ended = true;
        let process = current.process.take();
        drop(current);
        let _ = process.map(|process| process.end());
    }

    /// Writes blobs to a file, each verified by its hash, and increments `progress` for each.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub fn fetch(
        &self,
        blobs: &[DataId],
        size: u64,
        out: &File,
        progress: &AtomicU64,
    ) -> Result<(), FetchError> {
        let mut last_try = false;
        loop {
            let (process, is_new) = self.process().map_err(|cause| {
                away(format!(
                    "the process that reads it cannot be started: {cause}"
                ))
            })?;
            last_try |= is_new;
            match self.fetch_from(&process, blobs, (size, out), progress) {
                Ok(done) => return done,
                Err(cause) => {
                    self.forget_this(&process);
                    if is_timeout(&cause) || last_try {
                        return Err(self.lost(&process, &cause));
                    }
                    // Another fetch may have ended it.
                    last_try = true;
                }
            }
        }
    }

    /// Fetches from one process.
    ///
    /// # Errors
    /// The outer error: the process has ended or violates the protocol. The inner error: as
    /// [`Source::fetch`].
    fn fetch_from(
        &self,
        process: &Process,
        blobs: &[DataId],
        (size, out): (u64, &File),
        progress: &AtomicU64,
    ) -> io::Result<Result<(), FetchError>> {
        // A lack of descriptors in the daemon is not the fault of the process.
        let pair = match UnixStream::pair() {
            Ok(pair) => pair,
            Err(cause) => return Ok(Err(FetchError::Here(cause.into()))),
        };
        let mut socket = process.converse(pair, self.patience)?;
        let (mut at, mut last) = (0, None);
        for id in blobs {
            // A long hole repeats the same blob.
            let blob = match last.take() {
                Some((known, blob)) if known == *id => blob,
                _ => match ask(&mut socket, id, size.saturating_sub(at))? {
                    Ok(blob) => blob,
                    unread => return Ok(unread.map(drop)),
                },
            };
            if let Err(errno) = write(out, &blob, at) {
                return Ok(Err(errno.into()));
            }
            at += blob.len() as u64;
            progress.fetch_add(1, Ordering::Relaxed);
            last = Some((*id, blob));
        }
        Ok(match at == size {
            true => sys::truncate(out, size).map_err(FetchError::Here),
            false => Err(FetchError::Damaged(format!(
                "{at} bytes are there, and not {size}"
            ))),
        })
    }

    /// The error for a process that has ended or does not answer.
    fn lost(&self, process: &Process, cause: &io::Error) -> FetchError {
        away(match (!is_timeout(cause)).then(|| process.end()) {
            None => format!("nothing has come for {} s", self.patience.as_secs()),
            Some(Ok(status)) => format!("the process that reads it has ended ({status})"),
            Some(Err(_)) => format!("the process that reads it is lost: {cause}"),
        })
    }
}

fn away(message: String) -> FetchError {
    FetchError::Away(error(Code::RemoteFailed, message))
}

fn is_timeout(cause: &io::Error) -> bool {
    matches!(
        cause.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// Writes a blob, with holes for zeros.
fn write(out: &File, blob: &[u8], mut at: u64) -> SysResult<()> {
    for piece in blob.chunks(HOLE_BYTES) {
        if !is_zeros(piece) {
            sys::write_all_at(out, piece, at)?;
        }
        at += piece.len() as u64;
    }
    Ok(())
}

/// Requests a blob of at most `most` bytes and verifies its hash.
///
/// # Errors
/// The outer error: the process has ended, does not answer, or violates the protocol. The inner
/// error: the blob cannot be read.
fn ask(
    socket: &mut BufReader<UnixStream>,
    id: &DataId,
    most: u64,
) -> io::Result<Result<Vec<u8>, FetchError>> {
    let blob = id.to_hex().to_string();
    send(socket.get_ref(), &Ask { blob, most })?;
    let length = match receive(&mut *socket)?.ok_or(io::ErrorKind::UnexpectedEof)? {
        Answer::Bytes(length) => length,
        Answer::Away(error) => return Ok(Err(FetchError::Away(error))),
        Answer::Damaged(why) => return Ok(Err(FetchError::Damaged(why))),
    };
    if length > most {
        return Ok(Err(FetchError::Damaged(
            "it is longer than the file".to_owned(),
        )));
    }
    if length > Limits::new().blob() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    socket.read_exact(&mut bytes)?;
    Ok(match is_hash(id, &bytes) {
        true => Ok(bytes),
        false => Err(FetchError::Damaged("it does not have its hash".to_owned())),
    })
}

/// Returns whether a file of this size contains one blob, verified by its hash.
pub fn holds(file: &File, size: u64, blob: &DataId) -> bool {
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
    let read = sys::read_full_at(file, &mut bytes, 0);
    read == Ok(bytes.len()) && is_hash(blob, &bytes)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::restic::pull::hash;

    /// Fetches `content` from a process that answers like this.
    fn fetched(content: &[u8], answer: &'static [u8]) -> Result<Vec<u8>, FetchError> {
        let starter = move |control: OwnedFd| {
            std::thread::spawn(move || {
                let (mut byte, mut sockets) = ([0], Vec::new());
                while sys::receive_files(&control, &mut byte, &mut sockets) == Ok(1) {
                    for socket in sockets.drain(..).map(UnixStream::from) {
                        let _: Option<Ask> = receive(BufReader::new(&socket)).expect("an ask");
                        io::Write::write_all(&mut &socket, answer).expect("sent");
                    }
                }
            });
            Command::new("sleep").arg("60").spawn()
        };
        let source = Source::new(Box::new(starter), Duration::from_secs(60));
        let out = tempfile::tempfile().expect("a file");
        let blobs = [hash(content).parse().expect("a hash")];
        let progress = AtomicU64::new(0);
        source.fetch(&blobs, content.len() as u64, &out, &progress)?;
        let mut read = vec![0; content.len()];
        sys::read_full_at(&out, &mut read, 0)?;
        Ok(read)
    }

    #[test]
    fn what_a_reader_sends_is_not_believed() {
        assert_eq!(
            fetched(b"abc", b"{\"bytes\":3}\nabc").expect("read"),
            b"abc"
        );
        let cases: [(&'static [u8], &str); 6] = [
            (
                b"{\"bytes\":3}\nabd",
                "Damaged(\"it does not have its hash\")",
            ),
            (
                b"{\"bytes\":4}\nabcd",
                "Damaged(\"it is longer than the file\")",
            ),
            (
                b"{\"bytes\":2}\nab",
                "Damaged(\"it does not have its hash\")",
            ),
            (b"{\"bytes\":3}\nab", "has ended (signal: 9 (SIGKILL))"),
            (b"nonsense\n", "has ended (signal: 9 (SIGKILL))"),
            (b"", "has ended (signal: 9 (SIGKILL))"),
        ];
        for (answer, expected) in cases {
            let unread = fetched(b"abc", answer).expect_err("it is not what was asked for");
            assert!(format!("{unread:?}").contains(expected), "{unread:?}");
        }
    }
}
