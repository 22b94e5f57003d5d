//! Trees outside of any mount: made from what an [export](crate::engine::export) tells, compared
//! with it, marked, or told as a tar stream.
//!
//! Nothing here asks a daemon: where the parts come from is a [`Feed`]. Everything is done with the
//! rights of whoever asked, below descriptors of the destination; no link in it is followed. What
//! cannot be done for one path is told at the end, and the rest is done.
//!
//! **Order.** An inode gets its attributes when it has its content, a directory when everything
//! below it is done, the deepest first; the [`mark`] says that the copy is whole after all that.
//!
//! **Locking.** Several threads work on one destination. All locks are leaves.

pub mod check;
pub mod dedup;
pub mod held;
pub mod import;
pub mod inode;
pub mod mark;
pub mod place;
pub mod snapshots;
pub mod tar;
pub mod walk;
pub mod write;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::api::{TreePath, VerbError, VerbResult};
use crate::engine::export::parts::{ExportData, ExportEntry, ExportPart, Refused};
use crate::sys::lock::Mutex;
use crate::sys::{self, Errno, Kind, Stat, SysResult};

/// How long a thread pauses that has nothing to do while another still lists a directory.
const IDLE_PAUSE: Duration = Duration::from_micros(300);

/// Where the parts of an export come from.
pub trait Feed: Send {
    /// The next part; `done`: parts that were copied.
    ///
    /// # Errors
    /// In words for a person.
    fn next(&mut self, done: Vec<u64>) -> VerbResult<(ExportPart, Vec<OwnedFd>)>;
}

/// What becomes of them. Paths come in any order, but a directory before what is in it when there
/// is one thread.
pub trait Sink: Sync {
    /// What one thread keeps from one entry to the next.
    type Hand: Default;

    /// A path goes, with everything below.
    ///
    /// # Errors
    /// Those of removing it.
    fn remove(&self, path: &[u8]) -> SysResult<()>;

    /// One entry, with its content.
    ///
    /// # Errors
    /// What could not be done for this one.
    fn entry(&self, hand: &mut Self::Hand, entry: ExportEntry, file: Option<File>)
    -> SysResult<()>;
}

/// What was handed over, from several threads.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    told: AtomicU64,
    failed: Mutex<Option<VerbError>>,
    refused: Mutex<Vec<Refused>>,
}

/// Hands everything that the feeds give to a sink, with one thread for each. Says what could not be
/// done, sorted by path.
///
/// # Errors
/// Those of the feeds; what was done before stays done.
pub fn hand_over<S: Sink>(
    mut feeds: Vec<Box<dyn Feed>>,
    sink: &S,
    progress: &(dyn Fn(u64, Option<u64>) + Sync),
) -> VerbResult<Vec<Refused>> {
    let shared = Shared::default();
    std::thread::scope(|scope| {
        // All stay until the last has ended: what they tell may end with the first that goes.
        let mut feeds = feeds.iter_mut();
        let own = feeds.next();
        for feed in feeds {
            let work = || work(&mut **feed, sink, &shared, progress);
            // Without another thread this one does it all.
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
    feed: &mut dyn Feed,
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

/// One part; what could not be done of it.
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
            // The kernel drops descriptors for which this process has no room.
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

/// The attributes of a file that somebody else has opened. Anything else than a file could keep
/// whoever reads it, or have no end.
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

/// Nothing but zeros: what may be a hole.
pub fn is_zeros(bytes: &[u8]) -> bool {
    // Each is as the one before it: memcmp(3) is quick, also where nothing is optimised.
    match bytes.split_first() {
        Some((first, rest)) => *first == 0 && bytes.get(..rest.len()) == Some(rest),
        None => true,
    }
}

/// A sink that counts.
#[derive(Debug, Default)]
pub struct Counted {
    /// Entries.
    pub entries: AtomicU64,
    /// Bytes of files.
    pub bytes: AtomicU64,
    /// Paths to be removed.
    pub removed: AtomicU64,
}

impl Sink for Counted {
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
