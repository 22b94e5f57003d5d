//! The sealer: a thread that hashes what closed epochs have captured, when the machine has nothing
//! else to do.
//!
//! It has the scheduling class that runs only when nothing else wants to (`SCHED_IDLE`, which makes
//! its I/O idle too where the I/O scheduler knows classes), reads at most [`HASH_BYTES_PER_S`],
//! some hundred kilobytes at once, and leaves nothing in the page cache. Of a large file it reads
//! what is not where the version before has it ([`BlockHashCache`]). What it found is in the
//! journal (`Sealed`), a few hundred objects at a time, so that a killed daemon goes on where it
//! was; an object that was half read is read again.
//!
//! Only objects of closed epochs are hashed: those of the open one can still be taken back. One
//! whose content another has shares it then (module `share`).
//!
//! Then it sees to what an unmount would have to do (module `idle`).
//!
//! Locking: none but the timeline's, for a moment.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::dedup::OnlineDedup;
use super::idle::AbsencePrep;
use super::shared_tables::{BlockingCalls, SharedTables};
use crate::history::timeline::Timeline;
use crate::history::wake::IdleThread;
use ckptfs_api::Epoch;
use ckptfs_store::blocks::{BlockHashCache, HashResult};
use ckptfs_store::ids::ObjectId;
use ckptfs_store::record::ObjectHash;
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{Errno, Kind, SysResult};

/// Maximum read rate, in bytes per second.
const HASH_BYTES_PER_S: u64 = 128 << 20;
/// Maximum number of objects in one record of hashes.
const RECORD_OBJECTS_MAX: usize = 512;
/// Maximum number of bytes hashed before they are recorded; a kill loses that work.
const RECORD_BYTES_MAX: u64 = 1 << 30;
/// With less free space the sealer writes no records; the space is reserved for captures.
const SPACE_KEPT_BYTES: u64 = 64 << 20;

/// Time limit for hashing at an unmount.
const FINISH_TIME: Duration = Duration::from_millis(300);

/// Work of the sealer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SealerMode {
    /// No sealer.
    Off,
    /// Hash captures.
    #[default]
    Hash,
}

/// Work of the sealer since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SealerStats {
    /// No work is left.
    pub caught_up: bool,
    /// Objects hashed.
    pub objects: u64,
    /// Size of these objects.
    pub bytes: u64,
    /// Bytes read for the hashes.
    pub read: u64,
}

/// Limits the read rate.
struct ReadRate {
    started: Instant,
    bytes: u64,
}

impl ReadRate {
    /// Returns the time to wait before reading `bytes` more.
    fn ahead(&mut self, bytes: u64) -> Duration {
        self.bytes += bytes;
        let due = Duration::from_micros(self.bytes.saturating_mul(1_000_000) / HASH_BYTES_PER_S);
        due.saturating_sub(self.started.elapsed())
    }
}

/// The sealer of a tree.
pub struct Sealer {
    timeline: Arc<Timeline>,
    calls: Arc<BlockingCalls>,
    wake: Arc<IdleThread>,
    idle: Arc<AbsencePrep>,
    sharing: Arc<OnlineDedup>,
    /// State of its thread while it is not running.
    known: Mutex<BlockHashCache>,
    /// All closed epochs below this one are hashed, as far as possible.
    done_below: Mutex<Option<Epoch>>,
    objects: AtomicU64,
    bytes: AtomicU64,
    read: AtomicU64,
}

impl Sealer {
    pub(super) fn new(
        tables: &SharedTables,
        idle: &Arc<AbsencePrep>,
        sharing: &Arc<OnlineDedup>,
    ) -> Arc<Sealer> {
        Arc::new(Sealer {
            timeline: Arc::clone(&tables.timeline),
            calls: Arc::clone(&tables.calls),
            wake: Arc::clone(&tables.wake),
            idle: Arc::clone(idle),
            sharing: Arc::clone(sharing),
            known: Mutex::default(),
            done_below: Mutex::default(),
            objects: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            read: AtomicU64::new(0),
        })
    }

    /// Starts the sealer; it ends with [`Sealer::stop`].
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn start(self: &std::sync::Arc<Sealer>, mode: SealerMode) -> std::io::Result<()> {
        if mode == SealerMode::Off {
            return Ok(());
        }
        IdleThread::start(
            "sealer",
            self,
            |sealer| &sealer.wake,
            Sealer::hash_until_stopped,
        )
    }

    /// Stops the sealer and waits for its end.
    pub fn stop(&self) {
        self.wake.stop();
    }

    /// Hashes the remaining objects within a short time limit, including those of the open epoch:
    /// at the end of the mount, captures are no longer voided. Returns the number of versions
    /// without a hash.
    ///
    /// # Errors
    /// Those of reading the layers and writing the journal.
    pub fn finish(&self) -> SysResult<u64> {
        let (began, mut left) = (Instant::now(), 0);
        let store = self.timeline.store();
        for epoch in store.layers.epochs()? {
            if self.timeline.contents.is_hashed(epoch)? {
                continue;
            }
            let mut hashed = Vec::new();
            for object in self.unhashed(epoch)? {
                let hash = || store.layers.hash(object, |_| began.elapsed() < FINISH_TIME);
                match store.layers.stat(object) {
                    Ok(Some(stat)) if stat.kind == Kind::File => match hash() {
                        Ok(Some((size, hash))) => hashed.push(ObjectHash { object, size, hash }),
                        // The object was moved with a mode that denies access: it never gets a
                        // hash.
                        Err(error) if error.errno() == Errno::EACCES => {}
                        _ => left += 1,
                    },
                    _ => {}
                }
            }
            if !hashed.is_empty() && store.layers.free_bytes()? >= SPACE_KEPT_BYTES {
                self.timeline.contents.add_hashes(epoch, &hashed, false)?;
            }
        }
        Ok(left)
    }

    /// Returns the objects of an epoch without a recorded hash.
    fn unhashed(&self, epoch: Epoch) -> SysResult<Vec<ObjectId>> {
        let mut objects = self.timeline.store().layers.list(epoch)?;
        if !objects.is_empty() {
            let known = self.timeline.contents.sealed(epoch)?.0;
            let known: HashSet<ObjectId> = known.into_iter().map(|sealed| sealed.object).collect();
            objects.retain(|object| !known.contains(object));
        }
        Ok(objects)
    }

    /// Returns the work done.
    pub fn stats(&self) -> SealerStats {
        let open = self.timeline.epochs.epoch();
        let caught_up = self.done_below.lock().is_some_and(|done| done >= open);
        let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
        SealerStats {
            caught_up,
            objects: count(&self.objects),
            bytes: count(&self.bytes),
            read: count(&self.read),
        }
    }

    fn hash_until_stopped(&self) -> bool {
        let mut known = std::mem::take(&mut *self.known.lock());
        while self.wake.wait() {
            match self.hash_closed(&mut known) {
                Ok(()) => self.idle.prepare_absence(&self.wake),
                Err(errno) => {
                    tracing::warn!(%errno, "the sealer cannot go on; it tries again after the next checkpoint")
                }
            }
        }
        *self.known.lock() = known;
        true
    }

    /// Hashes the objects of closed epochs that have no hash yet.
    fn hash_closed(&self, known: &mut BlockHashCache) -> SysResult<()> {
        let open = self.timeline.epochs.epoch();
        let from = *self.done_below.lock();
        let epochs = match from {
            Some(from) => (from.0..open.0).map(Epoch).collect(),
            None => self.timeline.store().layers.epochs()?,
        };
        for epoch in epochs.into_iter().filter(|epoch| *epoch < open) {
            if !self.timeline.contents.is_hashed(epoch)? {
                self.hash_epoch(epoch, known)?;
            }
            if self.wake.stopping() {
                return Ok(());
            }
        }
        *self.done_below.lock() = Some(open);
        Ok(())
    }

    fn hash_epoch(&self, epoch: Epoch, blocks: &mut BlockHashCache) -> SysResult<()> {
        let objects = self.unhashed(epoch)?;
        if objects.is_empty() {
            return Ok(());
        }
        let mut pace = ReadRate {
            started: Instant::now(),
            bytes: 0,
        };
        let (mut hashed, mut bytes) = (Vec::new(), 0);
        // A claimed file may have an object that is incomplete.
        for object in objects
            .into_iter()
            .filter(|object| !self.calls.is_claimed(object.slot))
        {
            let sealed = self.hash_object(object, blocks, &mut pace);
            if self.wake.stopping() {
                break;
            }
            if let Some(sealed) = sealed {
                bytes += sealed.size;
                hashed.push(sealed);
            }
            if hashed.len() >= RECORD_OBJECTS_MAX || bytes >= RECORD_BYTES_MAX {
                self.record_hashes(epoch, std::mem::take(&mut hashed), false, &mut pace)?;
                bytes = 0;
            }
        }
        let whole = !self.wake.stopping();
        if whole || !hashed.is_empty() {
            self.record_hashes(epoch, hashed, whole, &mut pace)?;
        }
        Ok(())
    }

    fn record_hashes(
        &self,
        epoch: Epoch,
        hashed: Vec<ObjectHash>,
        whole: bool,
        pace: &mut ReadRate,
    ) -> SysResult<()> {
        if self.timeline.store().layers.free_bytes()? < SPACE_KEPT_BYTES {
            return Err(Errno::ENOSPC);
        }
        let (objects, bytes) = (
            hashed.len() as u64,
            hashed.iter().map(|sealed| sealed.size).sum::<u64>(),
        );
        self.timeline.contents.add_hashes(epoch, &hashed, whole)?;
        self.sharing
            .share_known(&hashed, |bytes| self.may_read(bytes, pace));
        self.objects.fetch_add(objects, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until `bytes` more may be read. Returns `false` if the sealer is to end.
    fn may_read(&self, bytes: u64, pace: &mut ReadRate) -> bool {
        let ahead = pace.ahead(bytes);
        if !ahead.is_zero() {
            self.wake.pause(ahead);
        }
        !self.wake.stopping()
    }

    /// Hashes an object. Returns `None` if it has no content (a directory or link), was removed
    /// with its checkpoint, or cannot be read, or if the sealer is to end.
    fn hash_object(
        &self,
        object: ObjectId,
        known: &mut BlockHashCache,
        pace: &mut ReadRate,
    ) -> Option<ObjectHash> {
        match known.hash(&self.timeline.store().layers, object, |bytes| {
            self.may_read(bytes, pace)
        }) {
            Ok(Some(HashResult { size, hash, read })) => {
                self.read.fetch_add(read, Ordering::Relaxed);
                Some(ObjectHash { object, size, hash })
            }
            Ok(None) => None,
            Err(error)
                if matches!(error.errno(), Errno::ENOENT | Errno::EINVAL | Errno::EACCES) =>
            {
                None
            }
            Err(error) => {
                tracing::error!(%error, ?object, "a version cannot be read to be hashed");
                None
            }
        }
    }
}
