//! The repository that content comes from. It is opened when something is first to be fetched, and
//! again when it has failed.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustic_core::{DataId, IndexedFullStatus, Repository};

use super::super::backend::Watched;
use super::super::pull::{self, HOLE_BYTES, blob_length, is_hash};
use super::super::{Remote, failed};
use crate::engine::api::{Code, VerbError, VerbResult, hinted};
use crate::sys::lock::{Condvar, Mutex};
use crate::sys::{self, Errno};
use crate::transfer::is_zeros;

/// So long who needs a repository waits for another who opens it.
const OPENING: Duration = Duration::from_secs(10);

/// A repository that is open.
struct Open {
    repo: Repository<IndexedFullStatus>,
    watched: Arc<Watched>,
}

#[derive(Default)]
struct State {
    open: Option<Arc<Open>>,
    opening: Option<Instant>,
}

/// Opens the repository; its name, address and password are those of whoever mounts.
pub type Opener = Box<dyn Fn() -> VerbResult<Remote> + Send + Sync>;

/// See the module. No lock is held while anything is asked of the repository.
pub struct Source {
    opener: Opener,
    /// The repository's number.
    id: String,
    state: Mutex<State>,
    changed: Condvar,
}

/// Why content cannot be had.
#[derive(Debug)]
pub enum Unread {
    /// Nothing can, for now.
    Away(VerbError),
    /// This cannot: it is damaged there, or not there.
    Damaged(String),
    /// It cannot be written here.
    Here(Errno),
}

impl From<Errno> for Unread {
    fn from(errno: Errno) -> Unread {
        Unread::Here(errno)
    }
}

impl Source {
    pub fn new(opener: Opener, id: String) -> Source {
        Source {
            opener,
            id,
            state: Mutex::default(),
            changed: Condvar::default(),
        }
    }

    fn open(&self) -> VerbResult<Arc<Open>> {
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

    fn open_now(&self) -> VerbResult<Arc<Open>> {
        let remote = (self.opener)()?;
        if remote.id() != self.id {
            return Err(hinted(
                Code::BadRemote,
                "at the address is another repository than the one that the tree was mounted from",
                "name the right one: ckptfs remote add NAME URL --force",
            ));
        }
        let Remote { repo, watched } = remote;
        let repo = repo.to_indexed().map_err(failed)?;
        Ok(Arc::new(Open { repo, watched }))
    }

    /// What is open is not asked any more: it does not answer.
    pub fn forget(&self) {
        self.state.lock().open = None;
    }

    fn forget_this(&self, open: &Arc<Open>) {
        let mut state = self.state.lock();
        if state
            .open
            .as_ref()
            .is_some_and(|now| Arc::ptr_eq(now, open))
        {
            state.open = None;
        }
    }

    /// Writes blobs to a file, each compared with its hash; `progress` is counted up with each.
    ///
    /// # Errors
    /// See [`Unread`].
    pub fn fetch(
        &self,
        blobs: &[DataId],
        size: u64,
        out: &File,
        progress: &AtomicU64,
    ) -> Result<(), Unread> {
        let (mut at, mut last) = (0, None);
        for id in blobs {
            // A long hole is the same blob over and over.
            let blob = match last.take() {
                Some((known, blob)) if known == *id => blob,
                _ => self.blob(id, size.saturating_sub(at))?,
            };
            for piece in blob.chunks(HOLE_BYTES) {
                if !is_zeros(piece) {
                    sys::write_all_at(out, piece, at)?;
                }
                at += piece.len() as u64;
            }
            progress.fetch_add(1, Ordering::Relaxed);
            last = Some((*id, blob));
        }
        if at != size {
            return Err(Unread::Damaged(format!(
                "{at} bytes are there, and not {size}"
            )));
        }
        Ok(sys::truncate(out, size)?)
    }

    /// `most`: bytes that it can have.
    fn blob(&self, id: &DataId, most: u64) -> Result<bytes::Bytes, Unread> {
        let mut again = true;
        loop {
            let open = self.open().map_err(Unread::Away)?;
            if blob_length(&open.repo, id).is_some_and(|length| length > most) {
                return Err(Unread::Damaged("it is longer than the file".to_owned()));
            }
            let before = open.watched.unread.load(Ordering::Relaxed);
            match pull::blob(&open.repo, &open.watched, id) {
                Ok(blob) if is_hash(id, &blob) => return Ok(blob),
                Ok(_) => return Err(Unread::Damaged("it does not have its hash".to_owned())),
                // The repository may be away, or one file of it. That it can be opened again tells.
                Err(_) if again && open.watched.unread.load(Ordering::Relaxed) != before => {
                    self.forget_this(&open);
                    again = false;
                }
                Err(cause) => return Err(Unread::Damaged(failed(cause).message)),
            }
        }
    }
}

/// Whether a file of this size holds one blob, by its hash.
pub fn holds(file: &File, size: u64, blob: &DataId) -> bool {
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
    let read = sys::read_full_at(file, &mut bytes, 0);
    read == Ok(bytes.len()) && is_hash(blob, &bytes)
}
