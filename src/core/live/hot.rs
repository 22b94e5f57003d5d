//! Hot files: those that the kernel may write to without a request.
//!
//! With passthrough no request announces a write. A file is **hot** from its open for writing until
//! it is proven that no process can write to it: it has no writable handle and no writable mapping.
//! A mapping outlives its handle. The kernel refuses a read lease on the backing file while either
//! exists.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::attr_timeout::AttrTimeout;
use super::handles::{Handle, SET_ID};
use super::handover::HandoverLog;
use super::nodes::is_same;
use crate::history::attribution::NumberedProcess;
use ckptfs_store::ids::Slot;
use ckptfs_sys::lock::{Mutex, MutexGuard, Rank};
use ckptfs_sys::{self as sys, Access, Stat, SysResult, Time};

/// A file opened for writing within this time has probably been closed: most files are written in
/// one go, and the kernel sends the release later.
const YOUNG: Duration = Duration::from_millis(2);
/// How often, and how long each time, a checkpoint waits for such a release. The total is less than
/// the cost of a capture.
const CLOSE_WAITS_MAX: u32 = 8;
const CLOSE_WAIT: Duration = Duration::from_micros(30);
/// A store whose ctime update is this old has completed: it waits only for a page and a lock.
pub(super) const SETTLED: Duration = Duration::from_secs(2);
/// Maximum number of files examined to prove that none was synced. With more files, one is assumed
/// to have been synced.
const LOOKED_AT_MAX: usize = 64;
/// Maximum number of open files that a checkpoint lists with their writers.
pub const OPEN_TOLD_MAX: usize = 64;

/// A process that has a hot file open, or possibly mapped, for writing.
#[derive(Clone, Debug)]
pub(super) struct WriterEntry {
    pub(super) by: Arc<NumberedProcess>,
    /// Attributes of the file when this process first opened it, or at the newest checkpoint.
    /// `None` if the process created the file or has written to it already.
    pub(super) found: Option<Stat>,
    pub(super) handles: u32,
}

impl WriterEntry {
    /// Returns whether the file is unchanged, so that this process has not written to it.
    pub(super) fn left_alone(&self, now: &Stat) -> bool {
        self.found.is_some_and(|found| is_same(&found, now))
    }
}

/// Counts one more open of a hot file.
fn enter(openers: &mut Vec<WriterEntry>, by: Option<(Arc<NumberedProcess>, Option<Stat>)>) {
    let Some((by, found)) = by else { return };
    match openers
        .iter_mut()
        .find(|known| known.by.number == by.number)
    {
        Some(known) => known.handles += 1,
        None => openers.push(WriterEntry {
            by,
            found,
            handles: 1,
        }),
    }
}

/// A hot file.
#[derive(Clone, Debug)]
pub(super) struct HotFile {
    /// For a mappable file a read-only descriptor, because a writable one would itself prevent the
    /// lease. For other files the write-only descriptor of a handle.
    pub(super) file: Arc<File>,
    /// The file was opened for reading and writing, which mmap(2) requires for a writable shared
    /// mapping.
    pub(super) mappable: bool,
    /// Data can be synced without a request: with O_SYNC, or through a mapping that the kernel
    /// serves itself.
    pub(super) syncs: bool,
    /// The ctime at the start of the last commit of the whole filesystem, if any later change
    /// updates it: see [`HotFiles::before_commit`].
    committed: Option<Time>,
    /// A process may have the file open through the backing directory. Its writes do not invalidate
    /// the attributes that the kernel caches for the mount.
    past_mount: bool,
    /// Attribute timeout, for a mappable file.
    told: AttrTimeout,
    /// Time of the last open for writing.
    opened: Instant,
    /// A stat can prove that the file has not changed since its capture in the open epoch: see
    /// `cut`.
    pub(super) settled: bool,
    /// Processes that have opened it for writing.
    pub(super) openers: Vec<WriterEntry>,
}

impl HotFile {
    /// Returns whether this entry owns a descriptor that no handle shares.
    pub(super) fn has_descriptor(&self) -> bool {
        self.mappable || Arc::strong_count(&self.file) == 1
    }

    fn may_be_synced(&self) -> bool {
        self.committed.is_none()
            || sys::stat_fd(&*self.file).map(|stat| stat.ctime).ok() != self.committed
    }
}

/// The hot files.
pub struct HotFiles {
    hot: Mutex<HashMap<Slot, HotFile>>,
    handover: Arc<HandoverLog>,
}

impl HotFiles {
    /// Creates an empty table.
    pub(super) fn new(handover: Arc<HandoverLog>) -> HotFiles {
        HotFiles {
            hot: Mutex::ranked(Rank::Hot, HashMap::new()),
            handover,
        }
    }

    /// Locks the table. Held only briefly.
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<Slot, HotFile>> {
        self.hot.lock()
    }

    /// Returns whether no file is hot: every write is then announced by a request.
    pub fn is_empty(&self) -> bool {
        self.hot.lock().is_empty()
    }

    /// Before the freeze: writes back all hot files in parallel. A clone would have to do this
    /// first.
    pub fn preflush(&self) {
        let files: Vec<Arc<File>> = self
            .hot
            .lock()
            .values()
            .map(|hot| Arc::clone(&hot.file))
            .collect();
        let is_dirty = |file: &Arc<File>| sys::dirty_pages(&**file).is_ok_and(|dirty| dirty > 0);
        let dirty: Vec<Arc<File>> = files.into_iter().filter(is_dirty).collect();
        // A clone of the file meets and reports the same error.
        for file in &dirty {
            let _ = sys::start_writeback(&**file);
        }
        for file in &dirty {
            let _ = sys::finish_writeback(&**file);
        }
    }

    /// Adds a file opened for passthrough writing. The caller holds the freeze lock, so that no
    /// checkpoint misses the file.
    ///
    /// # Errors
    /// EMFILE: the file is not tracked, and must not be written to.
    pub(super) fn note(
        &self,
        slot: Slot,
        file: &Arc<File>,
        mappable: bool,
        by: Option<(Arc<NumberedProcess>, Option<Stat>)>,
    ) -> SysResult<()> {
        let (mut hot, opened) = (self.hot.lock(), Instant::now());
        let (mut openers, mut syncs) = (Vec::new(), false);
        if let Some(known) = hot.get_mut(&slot) {
            known.opened = opened;
            enter(&mut known.openers, by);
            (openers, syncs) = (known.openers.clone(), known.syncs);
            if known.mappable || !mappable {
                return Ok(());
            }
        } else {
            enter(&mut openers, by);
        }
        let file = if mappable {
            Arc::new(sys::reopen(file, Access::READ)?)
        } else {
            Arc::clone(file)
        };
        hot.insert(
            slot,
            HotFile {
                file,
                mappable,
                syncs,
                committed: None,
                past_mount: false,
                told: AttrTimeout::nothing(opened),
                opened,
                settled: false,
                openers,
            },
        );
        drop(hot);
        self.handover.leave_hot(slot, mappable, false);
        Ok(())
    }

    /// Marks a hot file that a process may write to through the backing directory.
    pub(super) fn note_past_mount(&self, slot: Slot) {
        let known = self
            .hot
            .lock()
            .get_mut(&slot)
            .map(|hot| hot.past_mount = true);
        if known.is_some() {
            self.handover.leave_hot(slot, true, true);
        }
    }

    /// Returns the descriptor to register with the kernel as the backing file of a handle. It is
    /// read-only for a mappable hot file. The kernel reopens it with the flags of the handle, and
    /// holds it until the last handle of any kind is closed; a writable one would prevent the
    /// lease.
    pub fn backing_file(&self, handle: &Handle) -> Arc<File> {
        let hot = self.hot.lock();
        hot.get(&handle.slot)
            .filter(|_| handle.flags.write)
            .map_or_else(|| Arc::clone(&handle.file), |hot| Arc::clone(&hot.file))
    }

    /// Returns the descriptor of a hot file.
    pub(super) fn file(&self, slot: Slot) -> Option<Arc<File>> {
        self.hot.lock().get(&slot).map(|hot| Arc::clone(&hot.file))
    }

    /// Returns whether the file may be written to without a request.
    pub(super) fn has(&self, slot: Slot) -> bool {
        self.hot.lock().contains_key(&slot)
    }

    /// Returns whether the file may be mapped for writing. Stores then change its times without a
    /// request, and the kernel does not invalidate its cached attributes.
    pub fn changes_unseen(&self, slot: Slot) -> bool {
        self.hot.lock().get(&slot).is_some_and(|hot| hot.mappable)
    }

    /// Returns how long the kernel may cache these attributes; `None` means without limit.
    ///
    /// The kernel marks times and size stale after each write that it passes through
    /// (`fuse_write_update_attr` in fs/fuse/file.c), but not the set-id bits that such a write
    /// clears.
    pub fn lifetime(&self, slot: Slot, stat: &Stat) -> Option<Duration> {
        let mut hot = self.hot.lock();
        let hot = hot.get_mut(&slot)?;
        if hot.past_mount || stat.mode & SET_ID != 0 {
            return Some(Duration::ZERO);
        }
        hot.mappable
            .then(|| hot.told.tell(Instant::now(), (stat.mtime, stat.ctime)))
    }

    /// Records that a process can sync this hot file without a request.
    pub(super) fn note_syncs(&self, slot: Slot) {
        if let Some(hot) = self.hot.lock().get_mut(&slot) {
            hot.syncs = true;
        }
    }

    /// Returns whether a process can sync the file without a request.
    pub(super) fn syncs_unseen(&self, slot: Slot) -> bool {
        self.hot.lock().get(&slot).is_some_and(|hot| hot.syncs)
    }

    /// Returns whether a process can sync any hot file without a request.
    pub(super) fn any_syncs_unseen(&self) -> bool {
        self.hot.lock().values().any(|hot| hot.syncs)
    }

    /// Returns whether a process may have synced a hot file without a request since the last commit
    /// of the whole filesystem. A sync of a file that has not changed since then writes nothing.
    pub(super) fn may_be_synced_unseen(&self) -> bool {
        let hot = self.hot.lock();
        let mut files = hot.values().filter(|hot| hot.syncs);
        (&mut files).take(LOOKED_AT_MAX).any(HotFile::may_be_synced) || files.next().is_some()
    }

    /// As [`HotFiles::may_be_synced_unseen`], for one file.
    pub(super) fn may_this_be_synced_unseen(&self, slot: Slot) -> bool {
        let hot = self.hot.lock();
        hot.get(&slot)
            .is_some_and(|hot| hot.syncs && hot.may_be_synced())
    }

    /// Before a commit of the whole filesystem: returns the ctimes of files that can be synced
    /// without a request. A recent ctime proves nothing and is `None`: the store that updated it
    /// may complete after the commit. On kernels before 6.13 another store may leave ctime
    /// unchanged.
    pub(super) fn before_commit(&self) -> Vec<(Slot, Option<Time>)> {
        // Opens wait for this lock, so the stats are made without it.
        let files: Vec<(Slot, Arc<File>)> = self
            .hot
            .lock()
            .iter()
            .filter(|(_, hot)| hot.syncs)
            .map(|(slot, hot)| (*slot, Arc::clone(&hot.file)))
            .collect();
        let now = sys::now();
        let settled = |file: Arc<File>| {
            let ctime = sys::stat_fd(&*file).ok()?.ctime;
            is_before(ctime, now, SETTLED).then_some(ctime)
        };
        files
            .into_iter()
            .map(|(slot, file)| (slot, settled(file)))
            .collect()
    }

    /// Records the success of the commit for which `ctimes` were collected.
    pub(super) fn note_committed(&self, ctimes: &[(Slot, Option<Time>)]) {
        let mut hot = self.hot.lock();
        for (slot, ctime) in ctimes {
            if let Some(hot) = hot.get_mut(slot) {
                hot.committed = *ctime;
            }
        }
    }

    /// Before the freeze: waits briefly for the release of files that were just written.
    pub fn await_closes(&self) {
        for _ in 0..CLOSE_WAITS_MAX {
            if !self
                .hot
                .lock()
                .values()
                .any(|hot| hot.opened.elapsed() < YOUNG)
            {
                return;
            }
            std::thread::sleep(CLOSE_WAIT);
        }
    }

    /// Returns the hot files that may be mapped for writing.
    pub fn mapped(&self) -> Vec<Slot> {
        self.hot
            .lock()
            .iter()
            .filter(|(_, hot)| hot.mappable)
            .map(|(slot, _)| *slot)
            .collect()
    }

    /// Returns the state of all hot files, sorted by slot; two equal results mean that none was
    /// written to. After [`HotFiles::preflush`] this includes stores through mappings, because they
    /// hit clean pages and update the times.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn state(&self) -> SysResult<Vec<(Slot, u64, Time, Time)>> {
        let files: Vec<(Slot, Arc<File>)> = self
            .hot
            .lock()
            .iter()
            .map(|(slot, hot)| (*slot, Arc::clone(&hot.file)))
            .collect();
        let state = |(slot, file): (Slot, Arc<File>)| {
            sys::stat_fd(&*file).map(|stat| (slot, stat.size, stat.mtime, stat.ctime))
        };
        let mut states: Vec<_> = files.into_iter().map(state).collect::<SysResult<_>>()?;
        states.sort_by_key(|(slot, ..)| *slot);
        Ok(states)
    }
}

/// Returns whether `time` precedes `now` by at least `by`.
pub(super) fn is_before(time: Time, now: Time, by: Duration) -> bool {
    let nanoseconds = |time: Time| i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
    nanoseconds(now) - nanoseconds(time) >= i128::try_from(by.as_nanos()).unwrap_or(i128::MAX)
}
