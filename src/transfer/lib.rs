//! Trees outside any mount: created from an [export](ckptfs_core::engine::export), compared with one,
//! marked, or written as a tar stream.
//!
//! Nothing here contacts a daemon: the parts come from a [`PartSource`]. All work runs with the
//! caller's rights, below descriptors of the destination, and follows no symbolic link. A path that
//! fails is reported at the end and does not stop the rest.
//!
//! **Order.** An inode gets its attributes after its content, a directory after everything below
//! it, deepest first. The [`mark`] records that the copy is complete after all that.
//!
//! **Locking.** Several threads work on one destination. All locks are leaves.

pub mod check;
pub mod dedup;
pub mod dirs;
pub mod import;
pub mod inode;
pub mod mark;
pub mod snapshots;
pub mod tar;
pub mod verified_stream;
pub mod walk;
pub mod write;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ckptfs_api::{ExportData, ExportEntry, ExportPart, Refused, TreePath, VerbError, VerbResult};
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Errno, Kind, Stat, SysResult};

/// Pause of an idle thread while another thread is still listing a directory.
const IDLE_PAUSE: Duration = Duration::from_micros(300);

/// A source of export parts.
pub trait PartSource: Send {
    /// Returns the next part; `done` lists the parts that were copied.
    ///
    /// # Errors
    /// A message for the user.
    fn next(&mut self, done: Vec<u64>) -> VerbResult<(ExportPart, Vec<OwnedFd>)>;
}

/// A consumer of exported entries. Paths arrive in any order; with one thread, a directory precedes
/// its entries.
pub trait Sink: Sync {
    /// Per-thread state kept between entries.
    type Hand: Default;

    /// Removes a path and everything below it.
    ///
    /// # Errors
    /// Those of the removal.
    fn remove(&self, path: &[u8]) -> SysResult<()>;

    /// Consumes one entry with its content.
    ///
    /// # Errors
    /// The failure of this entry.
    fn entry(&self, hand: &mut Self::Hand, entry: ExportEntry, file: Option<File>)
    -> SysResult<()>;
}

/// Totals and failures of all threads.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    told: AtomicU64,
    failed: Mutex<Option<VerbError>>,
    refused: Mutex<Vec<Refused>>,
}

/// Passes all parts of the feeds to a sink, with one thread per feed. Returns the paths that
/// failed, sorted.
///
/// # Errors
/// Those of the feeds; completed work is not undone.
pub fn hand_over<S: Sink>(
    mut feeds: Vec<Box<dyn PartSource>>,
    sink: &S,
    progress: &(dyn Fn(u64, Option<u64>) + Sync),
) -> VerbResult<Vec<Refused>> {
    let shared = Shared::default();
    std::thread::scope(|scope| {
        // No feed is dropped before the last has ended: dropping one may end the export for all.
        let mut feeds = feeds.iter_mut();
        let own = feeds.next();
        for feed in feeds {
            let work = || work(&mut **feed, sink, &shared, progress);
            // If no thread can be created, this one does all the work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        if let Some(own) = own {
            work(&mut **own, sink, &shared, progress);
        }
    });
    if let Some(error) = shared.failed.lock().take() {
        return Err(error);
    }
    let mut refused = std::mem::take(&mut *shared.refused.lock());
    refused.sort_by(|a, b| a.path.cmp(&b.path));
    refused.dedup_by(|a, b| a.path == b.path);
    Ok(refused)
}

fn work<S: Sink>(
    feed: &mut dyn PartSource,
    sink: &S,
    shared: &Shared,
    progress: &(dyn Fn(u64, Option<u64>) + Sync),
) {
    let mut hand = S::Hand::default();
    let mut done = Vec::new();
    while !shared.stop.load(Ordering::Relaxed) {
        let (part, files) = match feed.next(std::mem::take(&mut done)) {
            Ok(next) => next,
            Err(error) => {
                shared.stop.store(true, Ordering::Relaxed);
                shared.failed.lock().get_or_insert(error);
                return;
            }
        };
        if part.finished {
            return shared.refused.lock().extend(part.refused);
        }
        let (number, total) = (part.part, part.total);
        if number == 0 {
            std::thread::sleep(IDLE_PAUSE);
        } else {
            done.push(number);
        }
        let count = part.entries.len() as u64;
        let refused = one_part(part, files, sink, &mut hand);
        if !refused.is_empty() {
            shared.refused.lock().extend(refused);
        }
        progress(
            shared.told.fetch_add(count, Ordering::Relaxed) + count,
            total,
        );
    }
}

/// Processes one part and returns the paths that failed.
fn one_part<S: Sink>(
    part: ExportPart,
    files: Vec<OwnedFd>,
    sink: &S,
    hand: &mut S::Hand,
) -> Vec<Refused> {
    let mut refused = part.refused;
    let mut refuse = |path: TreePath, errno: Errno| {
        refused.push(Refused {
            path,
            errno: errno.0,
        })
    };
    for path in part.removed {
        if let Err(errno) = sink.remove(&path.0) {
            refuse(path, errno);
        }
    }
    let mut files = files.into_iter().map(File::from);
    for entry in part.entries {
        let path = entry.path.clone();
        let made = match &entry.data {
            // The kernel drops received descriptors beyond this process's RLIMIT_NOFILE.
            ExportData::File => files
                .next()
                .ok_or(Errno::EMFILE)
                .and_then(|file| sink.entry(hand, entry, Some(file))),
            _ => sink.entry(hand, entry, None),
        };
        if let Err(errno) = made {
            refuse(path, errno);
        }
    }
    refused
}

/// Returns the attributes of a file that another process opened. Reading anything except a regular
/// file could block or never end.
///
/// # Errors
/// EINVAL: it is not a regular file.
fn regular(file: &File) -> SysResult<Stat> {
    let stat = sys::stat_fd(file)?;
    if stat.kind == Kind::File {
        Ok(stat)
    } else {
        Err(Errno::EINVAL)
    }
}

/// Reports whether all bytes are zero, so that a hole can replace them.
pub fn is_zeros(bytes: &[u8]) -> bool {
    // Compares each byte with its predecessor: memcmp(3) is fast even in unoptimized builds.
    match bytes.split_first() {
        Some((first, rest)) => *first == 0 && bytes.get(..rest.len()) == Some(rest),
        None => true,
    }
}

/// A sink that only counts.
#[derive(Debug, Default)]
pub struct CountingSink {
    /// Number of entries.
    pub entries: AtomicU64,
    /// Bytes of file content.
    pub bytes: AtomicU64,
    /// Number of paths to remove.
    pub removed: AtomicU64,
}

impl Sink for CountingSink {
    type Hand = ();

    fn remove(&self, _path: &[u8]) -> SysResult<()> {
        self.removed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn entry(&self, _hand: &mut (), entry: ExportEntry, file: Option<File>) -> SysResult<()> {
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(
            if file.is_some() { entry.size } else { 0 },
            Ordering::Relaxed,
        );
        Ok(())
    }
}
