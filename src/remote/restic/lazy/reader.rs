//! The remote reader: the process that reads a repository for the daemon of a tree mounted from it
//! (docs/adr/0042-remote-reader.md).
//!
//! It opens the repository for the first blob, and again after a failed read. It ends when the
//! daemon closes its standard input.

use std::io::{self, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustic_core::{DataId, IndexedFullStatus, Repository};

use super::super::backend::CheckedBackend;
use super::super::pull::{self, blob_length};
use super::super::{Remote, failed};
use super::protocol::{Answer, Ask, receive, send};
use ckptfs_api::{Code, VerbError, VerbResult, hinted};
use ckptfs_sys as sys;
use ckptfs_sys::lock::{Condvar, Mutex};

/// Time limit of waiting for another thread that opens the repository.
const OPENING: Duration = Duration::from_secs(10);

/// Opens the repository.
pub type Opener = Box<dyn Fn() -> VerbResult<Remote> + Send + Sync>;

struct OpenRepository {
    repo: Repository<IndexedFullStatus>,
    watched: Arc<CheckedBackend>,
}

#[derive(Default)]
struct State {
    open: Option<Arc<OpenRepository>>,
    opening: Option<Instant>,
}

/// The repository. No lock is held while it is read.
struct BlobServer {
    opener: Opener,
    /// The ID of the repository.
    id: String,
    state: Mutex<State>,
    changed: Condvar,
}

/// Answers the daemon at the other end of `control` until that end is closed. A repository with
/// another ID than `id` is rejected.
///
/// # Errors
/// Errors of the socket.
pub fn serve(control: &OwnedFd, opener: Opener, id: String) -> io::Result<()> {
    let reader = Arc::new(BlobServer {
        opener,
        id,
        state: Mutex::default(),
        changed: Condvar::default(),
    });
    let (mut byte, mut sockets) = ([0], Vec::new());
    while sys::receive_files(control, &mut byte, &mut sockets)? > 0 {
        for socket in sockets.drain(..) {
            let reader = Arc::clone(&reader);
            // If no thread can be started, the socket is closed and the daemon tries again later.
            let _ = std::thread::Builder::new()
                .name("fetch".into())
                .spawn(move || reader.converse(UnixStream::from(socket)));
        }
    }
    Ok(())
}

impl BlobServer {
    /// Answers the requests for one file, until the daemon closes the socket.
    fn converse(&self, socket: UnixStream) -> io::Result<()> {
        let mut socket = BufReader::new(socket);
        while let Some(Ask { blob, most }) = receive(&mut socket)? {
            // rustic panics on some kinds of damage.
            let read = catch_unwind(AssertUnwindSafe(|| self.blob(&blob, most)));
            let damaged = |_| Err(Answer::Damaged("reading it failed unexpectedly".to_owned()));
            match read.unwrap_or_else(damaged) {
                Ok(bytes) => {
                    send(socket.get_ref(), &Answer::Bytes(bytes.len() as u64))?;
                    socket.get_ref().write_all(&bytes)?;
                }
                Err(answer) => send(socket.get_ref(), &answer)?,
            }
        }
        Ok(())
    }

    fn blob(&self, hash: &str, most: u64) -> Result<Bytes, Answer> {
        let damaged = |why: &str| Answer::Damaged(why.to_owned());
        let id: DataId = hash.parse().map_err(|_| damaged("it has no hash"))?;
        let mut again = true;
        loop {
            let open = self.open().map_err(Answer::Away)?;
            if blob_length(&open.repo, &id).is_some_and(|length| length > most) {
                return Err(damaged("it is longer than the file"));
            }
            let before = open.watched.unread.load(Ordering::Relaxed);
            match pull::blob(&open.repo, &open.watched, &id) {
                Ok(blob) => return Ok(blob),
                // Either the repository is away or one of its files; opening it again shows which.
                Err(_) if again && open.watched.unread.load(Ordering::Relaxed) != before => {
                    self.forget(&open);
                    again = false;
                }
                Err(cause) => return Err(Answer::Damaged(failed(cause).message)),
            }
        }
    }

    fn open(&self) -> VerbResult<Arc<OpenRepository>> {
        let mut state = self.state.lock();
        loop {
            if let Some(open) = &state.open {
                return Ok(Arc::clone(open));
            }
            let since = state.opening.map(|since| since.elapsed());
            match since.and_then(|since| OPENING.checked_sub(since)) {
                Some(left) if !left.is_zero() => self.changed.wait_for(&mut state, left),
                _ => break,
            }
        }
        let began = Instant::now();
        state.opening = Some(began);
        drop(state);
        let opened = self.open_now();
        let mut state = self.state.lock();
        if state.opening == Some(began) {
            state.opening = None;
        }
        if let Ok(open) = &opened {
            state.open = Some(Arc::clone(open));
        }
        self.changed.notify_all();
        opened
    }

    fn open_now(&self) -> VerbResult<Arc<OpenRepository>> {
        let remote = (self.opener)()?;
        if remote.id() != self.id {
            return Err(another_repository());
        }
        let Remote { repo, watched } = remote;
        let repo = repo.to_indexed().map_err(failed)?;
        Ok(Arc::new(OpenRepository { repo, watched }))
    }

    fn forget(&self, open: &Arc<OpenRepository>) {
        let mut state = self.state.lock();
        let is_it = |now: &Arc<OpenRepository>| Arc::ptr_eq(now, open);
        if state.open.as_ref().is_some_and(is_it) {
            state.open = None;
        }
    }
}

fn another_repository() -> VerbError {
    hinted(
        Code::BadRemote,
        "at the address is another repository than the one that the tree was mounted from",
        "name the right one: ckptfs remote add NAME URL --force",
    )
}
