//! Files that the kernel may be writing to at this moment, and the cut through all of them at one
//! instant.
//!
//! With passthrough no request tells of a write. A file is **hot** from its open for writing until
//! it is proven that nobody can write to it: no handle, and no mapping, which outlives its handle
//! (a read lease on the backing file is refused while either lives).

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::handles::{Handle, SET_ID};
use super::legacy::Handover;
use super::nodes::is_same;
use super::told::Told;
use crate::history::attribution::Numbered;
use crate::store::ids::Slot;
use crate::sys::lock::{Mutex, MutexGuard, Rank};
use crate::sys::{self, Open, Stat, SysResult, Time};

/// A file opened for writing less than this ago has probably been closed since: most are written in
/// one go, and the kernel tells of a close later.
const YOUNG: Duration = Duration::from_millis(2);
/// How often, and how long each time, a checkpoint waits for such a close to be told: less than
/// capturing the file would cost.
const CLOSE_WAITS_MAX: u32 = 8;
const CLOSE_WAIT: Duration = Duration::from_micros(30);
/// A store whose ctime moved this long ago has been made, too: it waits for a page and a lock at
/// most.
pub(super) const SETTLED: Duration = Duration::from_secs(2);
/// Files that are looked at to find that none was synced: more are taken for synced.
const LOOKED_AT_MAX: usize = 64;
/// A checkpoint records who has files open for writing, of at most this many files.
pub const OPEN_TOLD_MAX: usize = 64;

/// Somebody who has a hot file open, or may have it mapped, for writing.
#[derive(Clone, Debug)]
pub(super) struct Opener {
    pub(super) by: Arc<Numbered>,
    /// The file when that one opened it first, or at the newest checkpoint; `None`: that one has
    /// written to it already, or made it.
    pub(super) found: Option<Stat>,
    pub(super) handles: u32,
}

impl Opener {
    /// The file is what it was, so this one has not written to it.
    pub(super) fn left_alone(&self, now: &Stat) -> bool {
        self.found.is_some_and(|found| is_same(&found, now))
    }
}

/// Enters one more opening of a hot file.
fn enter(openers: &mut Vec<Opener>, by: Option<(Arc<Numbered>, Option<Stat>)>) {
    let Some((by, found)) = by else { return };
    match openers
        .iter_mut()
        .find(|known| known.by.number == by.number)
    {
        Some(known) => known.handles += 1,
        None => openers.push(Opener {
            by,
            found,
            handles: 1,
        }),
    }
}

/// A hot file.
#[derive(Clone, Debug)]
pub(super) struct Hot {
    /// Where it may be mapped, open for reading only: a descriptor open for writing would itself
    /// stand in the way of the lease. Else that of a handle, open for writing only.
    pub(super) file: Arc<File>,
    /// It was open for reading and writing, so that it may be mapped to be written (mmap(2) wants
    /// both).
    pub(super) mappable: bool,
    /// What is written to it can be synced without a request: by O_SYNC, or through a mapping that
    /// the kernel serves by itself.
    pub(super) syncs: bool,
    /// The ctime that the file had when the last commit of the whole filesystem began, if a later
    /// change moves it: see [`HotFiles::before_commit`].
    committed: Option<Time>,
    /// Somebody may have it open past the mount: the kernel knows of no write of theirs.
    past_mount: bool,
    /// What the kernel was told of it, where it may be mapped.
    told: Told,
    /// When it was last opened for writing.
    opened: Instant,
    /// A stat proves that it has not changed since what the open epoch has of it was captured: see
    /// `cut`.
    pub(super) settled: bool,
    /// Who has opened it so.
    pub(super) openers: Vec<Opener>,
}

impl Hot {
    /// It holds a descriptor that no handle does.
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
    hot: Mutex<HashMap<Slot, Hot>>,
    handover: Arc<Handover>,
}

impl HotFiles {
    /// None.
    pub(super) fn new(handover: Arc<Handover>) -> HotFiles {
        HotFiles {
            hot: Mutex::ranked(Rank::Hot, HashMap::new()),
            handover,
        }
    }

    /// The files, for a moment.
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<Slot, Hot>> {
        self.hot.lock()
    }

    /// Nobody can write to a file without being seen.
    pub fn is_empty(&self) -> bool {
        self.hot.lock().is_empty()
    }

    /// Before the freeze: writes hot files back, all at once, for a clone must do so first.
    pub fn preflush(&self) {
        let files: Vec<Arc<File>> = self
            .hot
            .lock()
            .values()
            .map(|hot| Arc::clone(&hot.file))
            .collect();
        let is_dirty = |file: &Arc<File>| sys::dirty_pages(&**file).is_ok_and(|dirty| dirty > 0);
        let dirty: Vec<Arc<File>> = files.into_iter().filter(is_dirty).collect();
        // What fails here fails again, and is told, when the file is cloned.
        for file in &dirty {
            let _ = sys::start_writeback(&**file);
        }
        for file in &dirty {
            let _ = sys::finish_writeback(&**file);
        }
    }

    /// A file was opened for the kernel to write to. The caller holds the freeze lock, so that no
    /// checkpoint misses it.
    ///
    /// # Errors
    /// EMFILE: the file is not watched, and must not be written to.
    pub(super) fn note(
        &self,
        slot: Slot,
        file: &Arc<File>,
        mappable: bool,
        by: Option<(Arc<Numbered>, Option<Stat>)>,
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
            Arc::new(sys::reopen(file, Open::READ)?)
        } else {
            Arc::clone(file)
        };
        hot.insert(
            slot,
            Hot {
                file,
                mappable,
                syncs,
                committed: None,
                past_mount: false,
                told: Told::nothing(opened),
                opened,
                settled: false,
                openers,
            },
        );
        drop(hot);
        self.handover.leave_hot(slot, mappable, false);
        Ok(())
    }

    /// Somebody may write to the file, which is hot, without the kernel's knowing.
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

    /// The file to be given to the kernel as the backing of a handle: it is open for reading only.
    /// The kernel opens it anew as the handle was opened, and holds what it was given until the
    /// last handle of any kind is closed; one open for writing would be in the way of the lease.
    pub fn backing_file(&self, handle: &Handle) -> Arc<File> {
        let hot = self.hot.lock();
        hot.get(&handle.slot)
            .filter(|_| handle.flags.write)
            .map_or_else(|| Arc::clone(&handle.file), |hot| Arc::clone(&hot.file))
    }

    /// The file while it is hot: it need not be found.
    pub(super) fn file(&self, slot: Slot) -> Option<Arc<File>> {
        self.hot.lock().get(&slot).map(|hot| Arc::clone(&hot.file))
    }

    /// The file may be written to without a request.
    pub(super) fn has(&self, slot: Slot) -> bool {
        self.hot.lock().contains_key(&slot)
    }

    /// The file may be mapped: stores change its times without a request, and without the kernel's
    /// knowing.
    pub fn changes_unseen(&self, slot: Slot) -> bool {
        self.hot.lock().get(&slot).is_some_and(|hot| hot.mappable)
    }

    /// For how long the kernel, which is told these attributes of the file now, may believe them;
    /// `None`: until it is told otherwise.
    ///
    /// For times and size it asks anew by itself after each write that it passes on
    /// (`fuse_write_update_attr` in fs/fuse/file.c), but not for set-id bits, which such writes
    /// clear.
    pub fn lifetime(&self, slot: Slot, stat: &Stat) -> Option<Duration> {
        let mut hot = self.hot.lock();
        let hot = hot.get_mut(&slot)?;
        if hot.past_mount || stat.mode & SET_ID != 0 {
            return Some(Duration::ZERO);
        }
        hot.mappable
            .then(|| hot.told.tell(Instant::now(), (stat.mtime, stat.ctime)))
    }

    /// From now on a process can sync the file, which is hot, without a request.
    pub(super) fn note_syncs(&self, slot: Slot) {
        if let Some(hot) = self.hot.lock().get_mut(&slot) {
            hot.syncs = true;
        }
    }

    /// A process can sync the file without a request.
    pub(super) fn syncs_unseen(&self, slot: Slot) -> bool {
        self.hot.lock().get(&slot).is_some_and(|hot| hot.syncs)
    }

    /// A process can sync one of the files without a request.
    pub(super) fn any_syncs_unseen(&self) -> bool {
        self.hot.lock().values().any(|hot| hot.syncs)
    }

    /// A process may have synced one of the files without a request since the last commit of the
    /// whole filesystem. Of a file that has not changed since, a sync brings nothing to the disk.
    pub(super) fn may_be_synced_unseen(&self) -> bool {
        let hot = self.hot.lock();
        let mut files = hot.values().filter(|hot| hot.syncs);
        (&mut files).take(LOOKED_AT_MAX).any(Hot::may_be_synced) || files.next().is_some()
    }

    /// As [`HotFiles::may_be_synced_unseen`], of one file.
    pub(super) fn may_this_be_synced_unseen(&self, slot: Slot) -> bool {
        let hot = self.hot.lock();
        hot.get(&slot)
            .is_some_and(|hot| hot.syncs && hot.may_be_synced())
    }

    /// Before a commit of the whole filesystem: the ctimes of files that can be synced without a
    /// request. A ctime that was moved a moment ago proves nothing: the store that moved it may come
    /// after the commit, and on kernels before 6.13 another one may leave it as it is.
    pub(super) fn before_commit(&self) -> Vec<(Slot, Option<Time>)> {
        // Opens wait for the lock: the files are looked at without it.
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

    /// That commit has succeeded.
    pub(super) fn note_committed(&self, ctimes: &[(Slot, Option<Time>)]) {
        let mut hot = self.hot.lock();
        for (slot, ctime) in ctimes {
            if let Some(hot) = hot.get_mut(slot) {
                hot.committed = *ctime;
            }
        }
    }

    /// Before the freeze: waits a moment for the kernel to tell that files just written are closed.
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

    /// Hot files that may be mapped to be written.
    pub fn mapped(&self) -> Vec<Slot> {
        self.hot
            .lock()
            .iter()
            .filter(|(_, hot)| hot.mappable)
            .map(|(slot, _)| *slot)
            .collect()
    }

    /// What shows whether a hot file was written to since: with [`HotFiles::preflush`] before,
    /// stores through mappings too, for they find clean pages.
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

/// At least so long before.
pub(super) fn is_before(time: Time, now: Time, by: Duration) -> bool {
    let nanoseconds = |time: Time| i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
    nanoseconds(now) - nanoseconds(time) >= i128::try_from(by.as_nanos()).unwrap_or(i128::MAX)
}
