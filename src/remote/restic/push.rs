//! Pushes a checkpoint as a snapshot.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use jiff::Timestamp;
use rustic_core::repofile::SnapshotFile;
use rustic_core::{
    BackupOptions, IndexedIdsStatus, OpenStatus, ParentOptions, ReadSource, ReadSourceEntry,
    ReadSourceOpen, RepairIndexOptions, Repository, RusticResult,
};

use super::backend::CheckedBackend;
use super::node::{self, Unrepresentable};
use super::{PushedSnapshot, Remote, cache_dir, failed, repo_cache, snapshot};
use ckptfs_api::{
    CheckpointId, Code, ExportEntry, Refused, TreePath, VerbError, VerbResult, hinted,
};
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Errno, Kind, SysResult};
use ckptfs_transfer::PartSource;
use ckptfs_transfer::tar::Pieces;
use ckptfs_transfer::verified_stream::{self, BufferedContent};

/// Entries queued for rustic.
const AHEAD: usize = 64;

/// Opens a file of the checkpoint that is pushed, in its past state.
pub type Opener = Arc<dyn Fn(&TreePath) -> SysResult<File> + Send + Sync>;

/// The checkpoint to push.
#[derive(Clone, Debug)]
pub struct PushSource {
    /// The ID of the store.
    pub store: String,
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Its tags.
    pub tags: Vec<String>,
    /// Its note.
    pub note: String,
    /// Its time of creation.
    pub created: Timestamp,
    /// The name of the directory in the snapshot that is the tree's root.
    pub root: String,
}

/// Statistics of a push.
#[derive(Clone, Debug, Default)]
pub struct PushStats {
    /// Entries of the tree.
    pub entries: u64,
    /// Files that were read.
    pub read: u64,
    /// Files that were taken from the parent snapshot.
    pub kept: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Sockets, which the format supports but no tool restores.
    pub sockets: u64,
}

impl Remote {
    /// Pushes a checkpoint, which `feed` sends entirely and in the order of names. `parent`: the
    /// snapshot that files sent as kept refer to. On return the snapshot is complete in the
    /// repository.
    ///
    /// # Errors
    /// `incomplete` if an entry cannot be read or represented, `remote-failed`; no snapshot is
    /// saved then.
    pub fn push(
        self,
        what: &PushSource,
        parent: Option<&PushedSnapshot>,
        feed: impl PartSource,
        opener: Opener,
        progress: &(dyn Fn(u64) + Sync),
    ) -> VerbResult<(Remote, PushedSnapshot, PushStats)> {
        let unfinished = PushMarker::begin(&self.repo);
        // Read again each time, because an earlier index lacks the last push.
        let repo = self.repo.to_indexed_ids().map_err(failed)?;
        let sent = self.watched.sent.load(Ordering::Relaxed);
        let root = parent.map_or(&what.root, |parent| &parent.root);
        self.watched.is_told.store(false, Ordering::Release);
        let (send, receive) = sync_channel(AHEAD);
        let teller = EntrySender {
            root: root.clone().into_bytes(),
            parent: parent.map(|parent| parent.created),
            opener,
            send,
            watched: Arc::clone(&self.watched),
            done: PushStats::default(),
            unfit: Vec::new(),
        };
        let source = EntrySource(Mutex::new(Some(receive)));
        let (told, archived) = std::thread::scope(|scope| {
            let watched = Arc::clone(&self.watched);
            let tells = scope.spawn(move || {
                let told = teller.tell(feed, progress);
                if let Err(error) = &told {
                    watched.fail(error.clone());
                }
                told
            });
            let archived = archive(&repo, what, parent, root, &source);
            // The producer must not wait for a receiver that has ended.
            drop(source.0.lock().take());
            (tells.join(), archived)
        });
        let panicked = || VerbError {
            code: Code::Internal,
            message: "the thread that reads the tree has ended".to_owned(),
            hint: None,
        };
        let told = told.map_err(|_| panicked())?;
        if let Some(error) = self.watched.failure() {
            return Err(error);
        }
        let pushed = PushedSnapshot::of(archived?).ok_or_else(panicked)?;
        let done = PushStats {
            sent: self.watched.sent.load(Ordering::Relaxed) - sent,
            ..told?
        };
        unfinished.end();
        let repo = repo.drop_index();
        let watched = self.watched;
        Ok((Remote { repo, watched }, pushed, done))
    }
}

/// Marks an unfinished push: a non-empty file in the cache directory, locked during a push.
struct PushMarker(Option<File>);

impl PushMarker {
    /// Marks the beginning of a push. After an unfinished push, adds the packs that it sent to the
    /// index, so that they are not sent again. If that fails, as in an append-only repository,
    /// everything is sent again.
    fn begin(repo: &Repository<OpenStatus>) -> PushMarker {
        let open = || {
            let dir = cache_dir()?;
            repo_cache::make_dir(&dir).ok()?;
            let mut options = File::options();
            options.create(true).read(true).append(true).mode(0o600);
            let id = repo.config().id.to_hex();
            let file = options.open(dir.join(format!("pushing-{}", id.as_str())));
            // Packs of a concurrent push are left alone.
            file.ok()
                .filter(|file| sys::flock_exclusive(file) == Ok(true))
        };
        let Some(mut file) = open() else {
            return PushMarker(None);
        };
        if file.metadata().is_ok_and(|found| found.len() > 0) {
            let options = RepairIndexOptions::default();
            if let Err(cause) = repo.repair_index(&options, false) {
                tracing::debug!(cause = %cause.display_log(), "what had come is sent again");
            }
        } else if let Err(cause) = file.write_all(b"begun") {
            tracing::debug!(%cause, "once interrupted, the push sends all again");
        }
        PushMarker(Some(file))
    }

    fn end(self) {
        if let Some(file) = self.0 {
            let _ = file.set_len(0);
        }
    }
}

/// Archives the tree; returns the saved snapshot.
fn archive(
    repo: &Repository<IndexedIdsStatus>,
    what: &PushSource,
    parent: Option<&PushedSnapshot>,
    root: &str,
    source: &EntrySource,
) -> VerbResult<SnapshotFile> {
    let from = match parent {
        Some(parent) => ParentOptions::default().parents(vec![parent.snapshot.clone()]),
        None => ParentOptions::default().force(true),
    };
    let options = BackupOptions::default().parent_opts(from).no_scan(true);
    let paths = [PathBuf::from(format!("/{root}"))];
    repo.archive(&options, source, snapshot(what)?, &paths)
        .map_err(failed)
}

/// Sends the entries of a tree to rustic.
struct EntrySender {
    root: Vec<u8>,
    /// The creation time of the parent's checkpoint.
    parent: Option<Timestamp>,
    opener: Opener,
    send: SyncSender<ReadSourceEntry<Body>>,
    watched: Arc<CheckedBackend>,
    done: PushStats,
    unfit: Vec<(TreePath, Unrepresentable)>,
}

impl EntrySender {
    fn tell(
        mut self,
        feed: impl PartSource,
        progress: &(dyn Fn(u64) + Sync),
    ) -> VerbResult<PushStats> {
        let refused = verified_stream::hand_on(feed, |entry, content| {
            self.entry(entry, content)?;
            progress(self.done.entries);
            Ok::<_, VerbError>(None)
        })?;
        if let Some((path, unfit)) = self.unfit.first() {
            return Err(incomplete(
                &path.0,
                unfit.reason(),
                self.unfit.len() + refused.len(),
            ));
        }
        match refused.first() {
            Some(Refused { path, errno }) => Err(incomplete(
                &path.0,
                &Errno(*errno).to_string(),
                refused.len(),
            )),
            None => {
                // Must precede the drop of the last sender, which ends the tree for rustic.
                self.watched.is_told.store(true, Ordering::Release);
                Ok(self.done)
            }
        }
    }

    fn entry(&mut self, entry: &ExportEntry, content: BufferedContent<'_>) -> VerbResult<()> {
        let name = entry
            .path
            .0
            .rsplit(|byte| *byte == b'/')
            .next()
            .unwrap_or_default();
        let name = if entry.path.0.is_empty() {
            &self.root
        } else {
            name
        };
        let is_kept = matches!(content, BufferedContent::Kept);
        let changed_after = self.parent.filter(|_| entry.kind == Kind::File && !is_kept);
        let node = match node::of_entry(entry, name, changed_after) {
            Ok(node) => node,
            Err(unfit) => {
                self.unfit.push((entry.path.clone(), unfit));
                return Ok(());
            }
        };
        self.done.entries += 1;
        self.done.sockets += u64::from(entry.kind == Kind::Socket);
        self.done.kept += u64::from(is_kept);
        let open = (entry.kind == Kind::File).then(|| self.body(entry, content));
        let mut path = PathBuf::from("/");
        path.push(os(&self.root));
        if !entry.path.0.is_empty() {
            path.push(os(&entry.path.0));
        }
        self.send
            .send(ReadSourceEntry { path, node, open })
            .map_err(|_| VerbError {
                code: Code::RemoteFailed,
                message: "nothing more was taken of the tree".to_owned(),
                hint: None,
            })
    }

    fn body(&mut self, entry: &ExportEntry, content: BufferedContent<'_>) -> Body {
        let from = match content {
            BufferedContent::Held { bytes, pieces } => {
                self.done.read += 1;
                BodySource::Held(Bytes {
                    bytes: bytes.to_vec(),
                    pieces: pieces.cloned(),
                    size: entry.size,
                    at: 0,
                    taken: 0,
                })
            }
            BufferedContent::None => BodySource::Held(Bytes::default()),
            BufferedContent::Kept => BodySource::View(Arc::clone(&self.opener)),
            BufferedContent::Large => {
                self.done.read += 1;
                BodySource::View(Arc::clone(&self.opener))
            }
        };
        Body {
            from,
            size: entry.size,
            path: entry.path.clone(),
            watched: Arc::clone(&self.watched),
        }
    }
}

/// Converts bytes to a path.
fn os(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn incomplete(path: &[u8], why: &str, all: usize) -> VerbError {
    let path = if path.is_empty() { b"." } else { path };
    let more = if all > 1 {
        format!(" (and {} more)", all - 1)
    } else {
        String::new()
    };
    hinted(
        Code::Incomplete,
        format!(
            "{}: {why}{more}; nothing was saved under this checkpoint's name",
            String::from_utf8_lossy(path)
        ),
        "ckptfs status and ckptfs verify show what cannot be read",
    )
}

/// The entries of the tree, which can be taken once.
struct EntrySource(Mutex<Option<Receiver<ReadSourceEntry<Body>>>>);

impl ReadSource for EntrySource {
    type Open = Body;
    type Iter = Entries;

    fn size(&self) -> RusticResult<Option<u64>> {
        Ok(None)
    }

    fn entries(&self) -> Entries {
        Entries(self.0.lock().take())
    }
}

struct Entries(Option<Receiver<ReadSourceEntry<Body>>>);

impl Iterator for Entries {
    type Item = RusticResult<ReadSourceEntry<Body>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.as_ref()?.recv().ok().map(Ok)
    }
}

/// The content of a file, read only if rustic does not find it in the parent.
struct Body {
    from: BodySource,
    size: u64,
    path: TreePath,
    watched: Arc<CheckedBackend>,
}

enum BodySource {
    Held(Bytes),
    View(Opener),
}

impl ReadSourceOpen for Body {
    type Reader = BodyReader;

    fn open(self) -> RusticResult<BodyReader> {
        let reader: Box<dyn Read + Send> = match self.from {
            BodySource::Held(bytes) => Box::new(bytes),
            BodySource::View(opener) => match opener(&self.path) {
                Ok(file) => Box::new(file.take(self.size)),
                Err(errno) => Box::new(Broken(errno)),
            },
        };
        Ok(BodyReader {
            reader,
            left: self.size,
            path: self.path,
            watched: self.watched,
        })
    }
}

/// Reads a file, and prevents a snapshot with incomplete content.
struct BodyReader {
    reader: Box<dyn Read + Send>,
    left: u64,
    path: TreePath,
    watched: Arc<CheckedBackend>,
}

impl Read for BodyReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match self.reader.read(buffer) {
            Ok(0) if self.left > 0 && !buffer.is_empty() => {
                Err(io::ErrorKind::UnexpectedEof.into())
            }
            read => read,
        };
        match &read {
            Ok(count) => self.left = self.left.saturating_sub(*count as u64),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => self
                .watched
                .fail(incomplete(&self.path.0, &cause.to_string(), 1)),
        }
        read
    }
}

/// A file that cannot be opened.
struct Broken(Errno);

impl Read for Broken {
    fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
        Err(self.0.into())
    }
}

/// The content of a file, with zeros for holes.
#[derive(Default)]
struct Bytes {
    bytes: Vec<u8>,
    pieces: Option<Pieces>,
    size: u64,
    /// The offset in the file.
    at: u64,
    /// Bytes of `bytes` already returned.
    taken: usize,
}

impl Bytes {
    /// Returns whether the offset is in data, and the distance to the end of the data or hole.
    fn ahead(&self) -> (bool, u64) {
        let Some(pieces) = &self.pieces else {
            return (true, self.size - self.at);
        };
        for (offset, length) in pieces {
            if self.at < *offset {
                return (false, offset - self.at);
            }
            if self.at < offset + length {
                return (true, offset + length - self.at);
            }
        }
        (false, self.size - self.at)
    }
}

impl Read for Bytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (is_data, ahead) = self.ahead();
        let count = usize::try_from(ahead)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let to = buffer.get_mut(..count).unwrap_or_default();
        if is_data {
            let from = self.bytes.get(self.taken..self.taken + count);
            to.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
            self.taken += count;
        } else {
            to.fill(0);
        }
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_zeros() {
        let mut bytes = Bytes {
            bytes: b"abcd".to_vec(),
            pieces: Some(vec![(2, 2), (6, 2), (9, 0)]),
            size: 9,
            ..Bytes::default()
        };
        let mut read = Vec::new();
        bytes.read_to_end(&mut read).expect("read");
        assert_eq!(read, b"\0\0ab\0\0cd\0");
    }
}
