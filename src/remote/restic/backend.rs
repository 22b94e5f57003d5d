//! Access to the files of a repository, with limits, caches and counters.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustic_backend::LocalBackend;
use rustic_core::{
    BytesList, ErrorKind, FileType, Id, ReadBackend, RusticError, RusticResult, WriteBackend,
};

use super::idle_client::RemoteTrouble;
use super::repo_cache::RepoCache;
use super::rest::{Login, Rest};
use super::s3::S3;
use super::seal::{self, RepoKey, Size};
use super::{failed, told};
use crate::limits::{CRYPT_BYTES, Limits, NODE_BYTES, RAISE};
use ckptfs_api::{Code, VerbError, VerbResult, error, hinted};
use ckptfs_sys::lock::Mutex;

/// The kinds of addresses.
const KINDS: &str = "a directory, s3:http(s)://HOST[:PORT]/BUCKET[/PATH], rest:http(s)://HOST[:PORT]/[PATH], \
    or rclone:REMOTE:PATH (sftp and all else that rclone reaches)";

/// Returns whether the repository is a directory on this machine.
pub fn is_local(url: &str) -> bool {
    url.starts_with('/') || url.starts_with("local:")
}

/// Checks the syntax of an address without connecting to it.
///
/// # Errors
/// `bad-remote`.
pub fn check(url: &str) -> VerbResult<()> {
    let bad = |message: String| {
        Err(hinted(
            Code::BadRemote,
            message,
            format!("it is one of: {KINDS}"),
        ))
    };
    let (kind, rest) = url.split_once(':').unwrap_or(("", url));
    let host = rest
        .split_once("://")
        .map(|(_, rest)| rest.split('/').next().unwrap_or_default());
    if host.is_some_and(|host| host.contains('@')) {
        return Err(hinted(
            Code::BadRemote,
            "a user or password in an address would be shown in lists and logs",
            "leave it out; S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; rest: \
             RESTIC_REST_USERNAME and RESTIC_REST_PASSWORD, in the environment",
        ));
    }
    match kind {
        _ if is_local(url) => Ok(()),
        "rclone" if !rest.is_empty() => Ok(()),
        "s3" | "rest" if host.is_some_and(|host| !host.is_empty()) => Ok(()),
        _ => bad(format!("{url} is not the address of a remote")),
    }
}

/// Connects to an address. `quick`: does not wait long for a server that does not answer, where
/// that is under our control.
///
/// # Errors
/// `bad-remote`, `remote-failed`.
pub fn open(url: &str, quick: bool) -> VerbResult<Arc<dyn WriteBackend>> {
    check(url)?;
    let local = url.strip_prefix("local:").unwrap_or(url);
    let no_options = Vec::<(String, String)>::new();
    Ok(match url.split_once(':') {
        _ if is_local(url) => Arc::new(LocalBackend::new(local, no_options).map_err(failed)?),
        Some(("s3", at)) => Arc::new(S3::new(at, quick)?),
        Some(("rest", at)) => Arc::new(Rest::new(at, rest_login(), quick)?),
        Some((_, remote)) => Arc::new(Rest::by_rclone(remote, quick)?),
        None => return Err(error(Code::BadRemote, format!("{url} is no address"))),
    })
}

/// Returns the credentials for a REST server from the variables of restic.
fn rest_login() -> Option<Login> {
    let of = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let password = of("RESTIC_REST_PASSWORD").unwrap_or_default();
    of("RESTIC_REST_USERNAME").map(|user| (user, password))
}

/// Read-ahead in a pack: initial size, limits of the size, and number of cached ranges. Data that
/// is read sequentially is adjacent in a pack.
const AHEAD_BYTES: u32 = 1 << 20;
const AHEAD_RANGE: (u32, u32) = (64 << 10, 4 << 20);
const AHEAD_PIECES: usize = 8;
/// A range that arrived sooner increases the next one; one that took longer reduces it.
const AHEAD_QUICK: Duration = Duration::from_millis(300);
const AHEAD_SLOW: Duration = Duration::from_millis(1500);

/// Limits the transfer rate of both directions together. A single transfer, up to a pack, is not
/// limited; the following one waits.
#[derive(Debug)]
pub struct RateLimit {
    bytes_per_second: u64,
    began: Instant,
    /// The earliest time of the next transfer, nanoseconds since `began`. Atomic, because readers
    /// may hold locks.
    next: AtomicU64,
}

impl RateLimit {
    /// Creates a limit of at least one byte.
    pub fn new(bytes_per_second: u64) -> RateLimit {
        RateLimit {
            bytes_per_second: bytes_per_second.max(1),
            began: Instant::now(),
            next: AtomicU64::new(0),
        }
    }

    fn wait_for(&self, bytes: u64) {
        let takes_ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let takes_ns = u64::try_from(takes_ns).unwrap_or(u64::MAX);
        let now_ns = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let after = |next: u64| Some(next.max(now_ns).saturating_add(takes_ns));
        let turn_ns = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, after)
            .unwrap_or(now_ns);
        std::thread::sleep(Duration::from_nanos(turn_ns.saturating_sub(now_ns)));
    }
}

/// A backend that counts sent bytes, and saves no snapshot after an error: rustic logs parts of a
/// tree that it could not read or write, and would save a snapshot without them. Packs of a remote
/// repository are read in large ranges.
///
/// The size of everything read is limited ([`Limits`]), and so is the result in memory: data that
/// the library would decompress without a limit is checked here first.
#[derive(Debug)]
pub struct CheckedBackend {
    inner: Arc<dyn WriteBackend>,
    limits: Limits,
    /// The directory of a local repository.
    local: Option<PathBuf>,
    /// The cache, once the repository is identified.
    kept: OnceLock<RepoCache>,
    /// The key, once it is known.
    seal: OnceLock<RepoKey>,
    /// Decompressed bytes of the index and of snapshots since the last listing.
    unpacked: [AtomicU64; 2],
    failed: Mutex<Option<VerbError>>,
    /// Cached ranges of packs, the most recently used last; `None`: the repository is local.
    ahead: Option<Mutex<VecDeque<PackRange>>>,
    /// The transfer rate limit, if any.
    pub pace: OnceLock<RateLimit>,
    ahead_bytes: AtomicU32,
    /// The whole tree was received. Until then no snapshot is saved, however its producer ends.
    pub is_told: AtomicBool,
    /// A write has failed.
    is_gone: AtomicBool,
    /// Bytes written.
    pub sent: AtomicU64,
    /// Failed reads of packs, except those with damaged data.
    pub unread: AtomicU64,
}

/// A range of a pack: its start and its bytes.
#[derive(Clone, Debug)]
struct PackRange {
    pack: Id,
    from: u32,
    bytes: bytes::Bytes,
}

impl PackRange {
    fn part(&self, offset: u32, length: u32) -> Option<bytes::Bytes> {
        part_of(&self.bytes, offset.checked_sub(self.from)?, length)
    }
}

fn part_of(bytes: &bytes::Bytes, offset: u32, length: u32) -> Option<bytes::Bytes> {
    let from = usize::try_from(offset).ok()?;
    let to = from.checked_add(usize::try_from(length).ok()?)?;
    (to <= bytes.len()).then(|| bytes.slice(from..to))
}

impl CheckedBackend {
    /// A local repository is read without read-ahead.
    pub fn new(inner: Arc<dyn WriteBackend>, url: &str, limits: Limits) -> CheckedBackend {
        let local = is_local(url).then(|| url.strip_prefix("local:").unwrap_or(url));
        CheckedBackend {
            ahead: local.is_none().then(Mutex::default),
            ahead_bytes: AtomicU32::new(AHEAD_BYTES),
            inner,
            limits,
            local: local.map(PathBuf::from),
            kept: OnceLock::new(),
            seal: OnceLock::new(),
            unpacked: [AtomicU64::new(0), AtomicU64::new(0)],
            failed: Mutex::new(None),
            pace: OnceLock::new(),
            is_told: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            unread: AtomicU64::new(0),
        }
    }

    fn wait_for(&self, bytes: usize) {
        if let Some(pace) = self.pace.get() {
            pace.wait_for(bytes as u64);
        }
    }

    /// Received bytes count against the rate before the next request.
    fn come(&self, read: RusticResult<bytes::Bytes>) -> RusticResult<bytes::Bytes> {
        if let Ok(bytes) = &read {
            self.wait_for(bytes.len());
        }
        read
    }

    /// Records an error: no snapshot is saved from now on. The first error is stored.
    pub fn fail(&self, error: VerbError) {
        self.failed.lock().get_or_insert(error);
    }

    /// Returns the first error.
    pub fn failure(&self) -> Option<VerbError> {
        self.failed.lock().clone()
    }

    /// Sets the key of the repository.
    pub fn unseal(&self, seal: Option<RepoKey>) {
        seal.map(|seal| self.seal.set(seal));
    }

    /// Sets the directory of the cache.
    pub fn keep(&self, cache: &Path, repository: &str) {
        match RepoCache::new(cache, repository) {
            Ok(kept) => drop(self.kept.set(kept)),
            Err(cause) => tracing::debug!(%cause, "nothing is kept of the repository"),
        }
    }

    fn kept_of(&self, tpe: FileType, cacheable: bool) -> Option<&RepoCache> {
        let is_kept = cacheable || matches!(tpe, FileType::Index | FileType::Snapshot);
        self.kept.get().filter(|_| is_kept)
    }

    /// Reads a whole object from the repository.
    fn whole(&self, tpe: FileType, id: &Id) -> RusticResult<bytes::Bytes> {
        let most = self.limits.stored(tpe);
        if let Some(dir) = &self.local {
            let hex = id.to_hex();
            let path = match tpe {
                FileType::Config => dir.join(tpe.dirname()),
                FileType::Pack => {
                    let first = hex.get(..2).unwrap_or_default();
                    dir.join(tpe.dirname()).join(first).join(&*hex)
                }
                _ => dir.join(tpe.dirname()).join(&*hex),
            };
            // The library reports a missing file.
            let found = std::fs::metadata(path).ok();
            if found.is_some_and(|found| !found.is_file() || found.len() > most) {
                return Err(exceeded(tpe, format_args!("has more than {most} bytes")));
            }
        }
        let bytes = self.come(self.inner.read_full(tpe, id))?;
        match bytes.len() as u64 <= most {
            true => Ok(bytes),
            false => Err(exceeded(tpe, format_args!("has more than {most} bytes"))),
        }
    }

    /// Checks that the library may decompress a whole object.
    fn check_whole(&self, tpe: FileType, sealed: &[u8]) -> RusticResult<()> {
        // The library reports objects that cannot be decrypted.
        let opened = self.seal.get().and_then(|seal| seal.open(sealed));
        let (Some(opened), false) = (opened, matches!(tpe, FileType::Key | FileType::Pack)) else {
            return Ok(());
        };
        let most = self.limits.unpacked(tpe);
        let size = seal::size_of_object(&opened, most).ok_or_else(|| {
            exceeded(
                tpe,
                format_args!("has more than {most} bytes, decompressed"),
            )
        })?;
        let Some(all) = self.unpacked_of(tpe) else {
            return Ok(());
        };
        let most = self.limits.unpacked_all(tpe);
        let before = all.fetch_add(size.bytes, Ordering::Relaxed);
        match before.saturating_add(size.bytes) <= most {
            true => Ok(()),
            false => Err(exceeded(
                tpe,
                format_args!("and those before it have more than {most} bytes, decompressed"),
            )),
        }
    }

    fn unpacked_of(&self, tpe: FileType) -> Option<&AtomicU64> {
        let [index, snapshots] = &self.unpacked;
        match tpe {
            FileType::Index => Some(index),
            FileType::Snapshot => Some(snapshots),
            FileType::Config | FileType::Key | FileType::Pack => None,
        }
    }

    /// Checks that the library may decompress and parse a tree.
    fn check_tree(&self, tpe: FileType, sealed: &[u8]) -> RusticResult<()> {
        let opened = self.seal.get().and_then(|seal| seal.open(sealed));
        let Some(opened) = opened else { return Ok(()) };
        let most = self.limits.tree();
        let takes = |size: Size| {
            size.bytes
                .saturating_add(size.braces.saturating_mul(NODE_BYTES))
        };
        let size = seal::size_of_tree(&opened, most);
        match size.is_some_and(|size| takes(size) <= most) {
            true => Ok(()),
            false => Err(exceeded(
                tpe,
                format_args!("has a directory that takes more than {most} bytes of memory"),
            )),
        }
    }

    /// Reads a blob at `offset` in a pack, with `length` bytes, or `unpacked` bytes after
    /// decompression.
    ///
    /// # Errors
    /// Errors of the repository; the blob exceeds the limit, or is damaged.
    pub fn blob(
        &self,
        pack: &Id,
        (offset, length): (u32, u32),
        unpacked: Option<u32>,
    ) -> RusticResult<bytes::Bytes> {
        let most = self.limits.blob();
        let stored = u64::from(length).saturating_sub(CRYPT_BYTES);
        if stored.max(unpacked.unwrap_or(0).into()) > most {
            return Err(exceeded(
                FileType::Pack,
                format_args!("has a piece of more than {most} bytes"),
            ));
        }
        let sealed = self.read_partial(FileType::Pack, pack, false, offset, length)?;
        let opened = self.seal.get().and_then(|seal| seal.open(&sealed));
        let blob = opened.and_then(|opened| match unpacked {
            None => Some(opened),
            Some(length) => seal::unpack(&opened, usize::try_from(length).ok()?),
        });
        let damaged =
            "a piece of content cannot be decrypted, or has another length than the index says";
        Ok(blob
            .ok_or_else(|| RusticError::new(ErrorKind::Cryptography, damaged))?
            .into())
    }

    /// Reads a range of a pack from the repository.
    fn part(
        &self,
        tpe: FileType,
        id: &Id,
        cacheable: bool,
        (offset, length): (u32, u32),
    ) -> RusticResult<bytes::Bytes> {
        let read = |length| {
            let read = self.inner.read_partial(tpe, id, cacheable, offset, length);
            self.come(read).inspect_err(|_| {
                self.unread.fetch_add(1, Ordering::Relaxed);
            })
        };
        let Some(ahead) = self.ahead.as_ref().filter(|_| tpe == FileType::Pack) else {
            return read(length);
        };
        let known = {
            let mut pieces = ahead.lock();
            let at = pieces
                .iter()
                .position(|piece| piece.pack == *id && piece.part(offset, length).is_some());
            at.and_then(|at| pieces.remove(at)).inspect(|piece| {
                pieces.push_back(piece.clone());
            })
        };
        if let Some(part) = known.and_then(|piece| piece.part(offset, length)) {
            return Ok(part);
        }
        // A range beyond the end of the pack returns fewer bytes.
        let (ahead_bytes, began) = (self.ahead_bytes.load(Ordering::Relaxed), Instant::now());
        let bytes = read(length.max(ahead_bytes))?;
        let (least, most) = AHEAD_RANGE;
        let next = match began.elapsed() {
            took if took < AHEAD_QUICK => most.min(ahead_bytes * 2),
            took if took > AHEAD_SLOW => least.max(ahead_bytes / 2),
            _ => ahead_bytes,
        };
        self.ahead_bytes.store(next, Ordering::Relaxed);
        let piece = PackRange {
            pack: *id,
            from: offset,
            bytes,
        };
        let Some(part) = piece.part(offset, length) else {
            return read(length);
        };
        let mut pieces = ahead.lock();
        pieces.push_back(piece);
        while pieces.len() > AHEAD_PIECES {
            pieces.pop_front();
        }
        Ok(part)
    }
}

/// Returns the error for an exceeded limit.
fn exceeded(tpe: FileType, what: std::fmt::Arguments<'_>) -> Box<RusticError> {
    let trouble = RemoteTrouble {
        what: format!("{} {what}", name_of(tpe)),
        advice: Some(RAISE),
    };
    RusticError::with_source(ErrorKind::Backend, trouble.what.clone(), trouble)
}

/// Returns the display name of an object.
fn name_of(tpe: FileType) -> &'static str {
    match tpe {
        FileType::Config => "the configuration of the repository",
        FileType::Index => "a file of the index",
        FileType::Key => "a key file",
        FileType::Snapshot => "a snapshot",
        FileType::Pack => "a pack",
    }
}

impl ReadBackend for CheckedBackend {
    fn location(&self) -> String {
        self.inner.location()
    }

    fn list_with_size(&self, tpe: FileType) -> RusticResult<Vec<(Id, u32)>> {
        let listed = self.inner.list_with_size(tpe)?;
        let most = self.limits.objects(tpe);
        if listed.len() > most {
            return Err(exceeded(tpe, format_args!("is one of more than {most}")));
        }
        if let Some(all) = self.unpacked_of(tpe) {
            all.store(0, Ordering::Relaxed);
        }
        if let Some(kept) = self.kept_of(tpe, false) {
            kept.retain(tpe, &listed);
        }
        Ok(listed)
    }

    fn read_full(&self, tpe: FileType, id: &Id) -> RusticResult<bytes::Bytes> {
        let kept = self.kept_of(tpe, false);
        let known = kept.and_then(|kept| kept.read(tpe, id, None, self.limits.stored(tpe)));
        let bytes = match known {
            Some(known) => known,
            None => {
                let whole = self.whole(tpe, id)?;
                if let Some(kept) = kept {
                    kept.write(tpe, id, std::slice::from_ref(&whole));
                }
                whole
            }
        };
        self.check_whole(tpe, &bytes)?;
        Ok(bytes)
    }

    fn read_partial(
        &self,
        tpe: FileType,
        id: &Id,
        cacheable: bool,
        offset: u32,
        length: u32,
    ) -> RusticResult<bytes::Bytes> {
        if u64::from(length) > self.limits.part() {
            let most = self.limits.part();
            return Err(exceeded(
                tpe,
                format_args!("has a part of more than {most} bytes"),
            ));
        }
        let part = match self.kept_of(tpe, cacheable) {
            None => self.part(tpe, id, cacheable, (offset, length))?,
            Some(kept) => {
                let most = self.limits.stored(tpe);
                match kept.read(tpe, id, Some((offset, length)), most) {
                    Some(part) => part,
                    None => {
                        let whole = self.whole(tpe, id)?;
                        kept.write(tpe, id, std::slice::from_ref(&whole));
                        part_of(&whole, offset, length).ok_or_else(|| {
                            RusticError::new(
                                ErrorKind::Backend,
                                "a pack is shorter than the index says",
                            )
                        })?
                    }
                }
            }
        };
        if cacheable {
            self.check_tree(tpe, &part)?;
        }
        Ok(part)
    }

    fn warmup_path(&self, tpe: FileType, id: &Id) -> String {
        self.inner.warmup_path(tpe, id)
    }
}

impl WriteBackend for CheckedBackend {
    fn create(&self) -> RusticResult<()> {
        self.inner.create()
    }

    fn write_bytes(
        &self,
        tpe: FileType,
        id: &Id,
        cacheable: bool,
        content: BytesList,
    ) -> RusticResult<()> {
        let is_whole = || self.is_told.load(Ordering::Acquire) && self.failure().is_none();
        if tpe == FileType::Snapshot && !is_whole() {
            return Err(RusticError::new(
                ErrorKind::Backend,
                "no snapshot is saved: not everything of it was sent",
            ));
        }
        // Otherwise each waiting pack would be retried as long as this one.
        if self.is_gone.load(Ordering::Relaxed) {
            return Err(RusticError::new(
                ErrorKind::Backend,
                "nothing more is sent: the remote has failed",
            ));
        }
        let size = content.size() as u64;
        self.wait_for(content.size());
        if let Some(kept) = self.kept_of(tpe, cacheable) {
            kept.write(tpe, id, &content.clone().into_vec());
        }
        let written = self.inner.write_bytes(tpe, id, cacheable, content);
        match &written {
            Ok(()) => {
                self.sent.fetch_add(size, Ordering::Relaxed);
            }
            Err(cause) => {
                self.is_gone.store(true, Ordering::Relaxed);
                self.fail(told(cause));
            }
        }
        written
    }

    fn remove(&self, tpe: FileType, id: &Id, cacheable: bool) -> RusticResult<()> {
        if let Some(kept) = self.kept_of(tpe, cacheable) {
            kept.remove(tpe, id);
        }
        self.inner.remove(tpe, id, cacheable)
    }
}
