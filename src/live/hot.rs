//! Files that the kernel may be writing to at this moment, and the cut through all of them at one instant.
//!
//! With passthrough no request tells of a write. A file is **hot** from its open for writing until it is proven that nobody can write to it: no
//! handle, and no mapping, which outlives its handle (a read lease on the backing file is refused while either lives).

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Live;
use super::attribution::{self, Opener};
use super::capture::PARTLY_COPIED_MAX;
use super::data::{Handle, SET_ID};
use super::told::Told;
use crate::history::attribution::Numbered;
use crate::store::extents::same_bytes;
use crate::store::ids::Slot;
use crate::store::record::DataState;
use crate::sys::{self, Open, Stat, SysResult, Time};

/// A file opened for writing less than this ago has probably been closed since: most are written in one go, and the kernel tells of a close later.
const YOUNG: Duration = Duration::from_millis(2);
/// How often, and how long each time, a checkpoint waits for such a close to be told: less than capturing the file would cost.
const CLOSE_WAITS_MAX: u32 = 8;
const CLOSE_WAIT: Duration = Duration::from_micros(30);
/// How often, and how long after each other, it is asked at the end whether somebody can still write to a file.
const ENDS_TRIED_MAX: u32 = 10;
const END_WAIT: Duration = Duration::from_millis(2);
/// Files of at most so many bytes are compared at once: extents prove nothing there (small ones have none on btrfs).
const COMPARED_MAX: u64 = 64 * 1024;
/// A checkpoint records who has files open for writing, of at most this many files.
pub const OPEN_TOLD_MAX: usize = 64;
/// Files that a release tries to settle besides its own.
const RESETTLED_AT_ONCE: usize = 2;

/// A hot file.
#[derive(Clone, Debug)]
pub(super) struct Hot {
    /// Where it may be mapped, open for reading only: a descriptor open for writing would itself stand in the way of the lease. Else that of a
    /// handle, open for writing only.
    pub(super) file: Arc<File>,
    /// It was open for reading and writing, so that it may be mapped to be written (mmap(2) wants both).
    pub(super) mappable: bool,
    /// Somebody may have it open past the mount: the kernel knows of no write of theirs.
    past_mount: bool,
    /// What the kernel was told of it, where it may be mapped.
    told: Told,
    /// When it was last opened for writing.
    opened: Instant,
    /// A stat proves that it has not changed since what the open epoch has of it was captured: see `cut`.
    pub(super) settled: bool,
    /// Who has opened it so.
    pub(super) openers: Vec<Opener>,
}

impl Hot {
    /// It holds a descriptor that no handle does.
    pub(super) fn has_descriptor(&self) -> bool {
        self.mappable || Arc::strong_count(&self.file) == 1
    }
}

impl Live {
    /// A file was opened for the kernel to write to. The caller holds the freeze lock, so that no checkpoint misses it.
    ///
    /// # Errors
    /// EMFILE: the file is not watched, and must not be written to.
    pub(super) fn note_hot(&self, slot: Slot, file: &Arc<File>, mappable: bool, by: Option<(Arc<Numbered>, Option<Stat>)>) -> SysResult<()> {
        let (mut hot, opened) = (self.hot.lock(), Instant::now());
        let mut openers = Vec::new();
        if let Some(known) = hot.get_mut(&slot) {
            known.opened = opened;
            attribution::enter(&mut known.openers, by);
            openers = known.openers.clone();
            if known.mappable || !mappable {
                return Ok(());
            }
        } else {
            attribution::enter(&mut openers, by);
        }
        let file = if mappable { Arc::new(sys::reopen(file, Open::READ)?) } else { Arc::clone(file) };
        hot.insert(slot, Hot { file, mappable, past_mount: false, told: Told::nothing(opened), opened, settled: false, openers });
        drop(hot);
        self.leave_hot(slot, mappable, false);
        Ok(())
    }

    /// Somebody may write to the file, which is hot, without the kernel's knowing.
    pub(super) fn note_past_mount(&self, slot: Slot) {
        let known = self.hot.lock().get_mut(&slot).map(|hot| hot.past_mount = true);
        if known.is_some() {
            self.leave_hot(slot, true, true);
        }
    }

    /// The file to be given to the kernel as the backing of a handle: it is open for reading only. The kernel opens it anew as the handle was
    /// opened, and holds what it was given until the last handle of any kind is closed; one open for writing would be in the way of the lease.
    pub fn backing_file(&self, handle: &Handle) -> Arc<File> {
        let hot = self.hot.lock();
        hot.get(&handle.slot).filter(|_| handle.flags.write).map_or_else(|| Arc::clone(&handle.file), |hot| Arc::clone(&hot.file))
    }

    /// The file while it is hot: it need not be found.
    pub(super) fn hot_file(&self, slot: Slot) -> Option<Arc<File>> {
        self.hot.lock().get(&slot).map(|hot| Arc::clone(&hot.file))
    }

    /// The file may be written to without a request.
    pub(super) fn is_hot_now(&self, slot: Slot) -> bool {
        self.hot.lock().contains_key(&slot)
    }

    /// The file may be mapped: stores change its times without a request, and without the kernel's knowing.
    pub fn changes_unseen(&self, slot: Slot) -> bool {
        self.hot.lock().get(&slot).is_some_and(|hot| hot.mappable)
    }

    /// For how long the kernel, which is told these attributes of the file now, may believe them; `None`: until it is told otherwise.
    ///
    /// For times and size it asks anew by itself after each write that it passes on (`fuse_write_update_attr` in fs/fuse/file.c), but not for set-id bits,
    /// which such writes clear.
    pub fn lifetime(&self, slot: Slot, stat: &Stat) -> Option<Duration> {
        let mut hot = self.hot.lock();
        let hot = hot.get_mut(&slot)?;
        if hot.past_mount || stat.mode & SET_ID != 0 {
            return Some(Duration::ZERO);
        }
        hot.mappable.then(|| hot.told.tell(Instant::now(), (stat.mtime, stat.ctime)))
    }

    /// The last handle for writing is closed: what that leaves to do. The caller holds the freeze lock and the tree.
    ///
    /// The kernel sends RELEASE before the closing task lets go of the backing file (its fput is deferred to the way back from close(2)), so the
    /// lease of a file that nobody has mapped is often refused at first. Those wait in `unsettled`, and each release works off a few of them:
    /// a checkpoint must not find them in heaps.
    pub(super) fn settle_released(&self, slot: Slot) {
        let earlier: Vec<Slot> = {
            let mut unsettled = self.unsettled.lock();
            let count = unsettled.len().min(RESETTLED_AT_ONCE);
            unsettled.drain(..count).collect()
        };
        let refused: Vec<Slot> = earlier.into_iter().chain([slot]).filter(|slot| !self.settle(*slot)).collect();
        if !refused.is_empty() {
            let mut unsettled = self.unsettled.lock();
            for slot in refused {
                // A file that stays mapped may be opened and closed any number of times.
                if !unsettled.contains(&slot) {
                    unsettled.push_back(slot);
                }
            }
        }
    }

    /// Unless the file is open for writing or mapped it is hot no longer, and a capture made ahead is taken back if nothing changed; `false`: it is
    /// mapped, or seems so. The caller holds the freeze lock and the tree.
    fn settle(&self, slot: Slot) -> bool {
        let _stripe = self.stripe(slot);
        let Some(hot) = self.hot.lock().get(&slot).cloned() else { return true };
        // To compare it with what was captured would wait for the call that is under way.
        if self.is_claimed(slot) {
            return false;
        }
        if self.nodes.lock().get(slot).is_some_and(|node| node.writers() > 0) {
            return true;
        }
        // What cannot be mapped is written to by its handles alone: with the last of them closed, nobody does.
        if hot.mappable && !sys::lease_free(&*hot.file).unwrap_or(false) {
            return false;
        }
        self.hot.lock().remove(&slot);
        self.leave_cold(slot);
        self.judge(slot, &hot);
        true
    }

    /// A handle for writing was closed by its opener, or inherited from it: if that was the last and the file cannot be mapped, or is hot no longer, it
    /// tells whether that one has written.
    pub(super) fn opener_left(&self, slot: Slot, by: &Numbered) {
        let mut hot = self.hot.lock();
        let Some(known) = hot.get_mut(&slot) else { return };
        let mappable = known.mappable;
        let Some(at) = known.openers.iter().position(|opener| opener.by.number == by.number) else { return };
        let Some(opener) = known.openers.get_mut(at) else { return };
        opener.handles = opener.handles.saturating_sub(1);
        if mappable || opener.handles > 0 {
            return;
        }
        let (opener, file) = (known.openers.swap_remove(at), Arc::clone(&known.file));
        drop(hot);
        if opener.found.is_some()
            && let Ok(now) = sys::stat_fd(&*file)
        {
            self.judge_openers(slot, &now, &[opener]);
        }
    }

    /// These can write to the file no longer: those since whose opening it has not changed have not written to it.
    fn judge_openers(&self, slot: Slot, now: &Stat, openers: &[Opener]) {
        openers.iter().filter(|opener| opener.left_alone(now)).for_each(|opener| self.timeline.processes.touch_left(slot, &opener.by));
    }

    /// Nobody can write to the file any more: a capture made ahead is needed, or it is not.
    fn judge(&self, slot: Slot, hot: &Hot) {
        let known = self.timeline.epochs.node_now(slot);
        let records = known.data.zip(known.attr);
        if records.is_none() && hot.openers.iter().all(|opener| opener.found.is_none()) {
            return;
        }
        let Ok(now) = sys::stat_fd(&*hot.file) else { return };
        let Some((data, attr)) = records else { return self.judge_openers(slot, &now, &hot.openers) };
        let same = |before: &Stat| before.size == now.size && before.mtime == now.mtime && before.ctime == now.ctime;
        if !data.provisional || !same(&attr.stat) || !self.holds(&data, hot) {
            self.timeline.epochs.confirm(slot);
            return self.judge_openers(slot, &now, &hot.openers);
        }
        match self.timeline.epochs.void(slot) {
            // What was carried over from an earlier epoch is that one's.
            Ok(Some(object)) if object.epoch == self.timeline.epochs.epoch() => self.drop_object(object),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "a capture that was not needed stays"),
        }
    }

    /// The file holds what was captured of it. That its ctime is the same does not prove it where a store may have moved ctime before the capture
    /// and come after it: see the module.
    fn holds(&self, data: &DataState, hot: &Hot) -> bool {
        let Some(object) = data.object.filter(|_| hot.mappable) else { return true };
        let Ok(Some(kept)) = self.timeline.open_object(object) else { return false };
        // Where something is dirty its end was copied (`cloned_part`), and to ask for extents would wait for the disk.
        let by_extents = || data.size > PARTLY_COPIED_MAX || sys::dirty_pages(&*hot.file) == Ok(0);
        let shared = data.size > COMPARED_MAX && by_extents() && sys::shares_extents(&kept, &hot.file).unwrap_or(false);
        shared || data.size <= PARTLY_COPIED_MAX && same_bytes(&kept, &hot.file).unwrap_or(false)
    }

    /// Settles files that were mapped and may be so no longer.
    pub fn settle_mapped(&self) {
        let idle: Vec<Slot> = {
            let nodes = self.nodes.lock();
            self.hot.lock().keys().copied().filter(|slot| nodes.get(*slot).is_none_or(|node| node.writers() == 0)).collect()
        };
        if idle.is_empty() {
            return;
        }
        let _changing = self.freeze_lock.read();
        let _tree = self.tree.read();
        for slot in idle {
            self.settle(slot);
        }
    }

    /// Nothing is served any more: somebody has a file open or mapped to be written all the same, and the kernel does the I/O. Every handle is given up.
    pub fn outlived(&self) -> bool {
        self.drop_handles();
        let hot = std::mem::take(&mut *self.hot.lock());
        hot.into_values().any(|Hot { file, mappable, .. }| {
            let reader = if mappable { Ok(Arc::clone(&file)) } else { sys::reopen(&file, Open::READ).map(Arc::new) };
            // One that is open to be written would itself be in the way.
            drop(file);
            // The kernel lets go of what was closed a moment ago a little later.
            reader.is_ok_and(|reader| {
                (0..ENDS_TRIED_MAX).all(|tried| {
                    std::thread::sleep(END_WAIT * tried.min(1));
                    sys::lease_free(&*reader) == Ok(false)
                })
            })
        })
    }

    /// Before the freeze: waits a moment for the kernel to tell that files just written are closed.
    pub fn await_closes(&self) {
        for _ in 0..CLOSE_WAITS_MAX {
            if !self.hot.lock().values().any(|hot| hot.opened.elapsed() < YOUNG) {
                return;
            }
            std::thread::sleep(CLOSE_WAIT);
        }
    }

    /// Hot files that may be mapped to be written.
    pub fn mapped_hot(&self) -> Vec<Slot> {
        self.hot.lock().iter().filter(|(_, hot)| hot.mappable).map(|(slot, _)| *slot).collect()
    }

    /// What shows whether a hot file was written to since: with [`Live::preflush`] before, stores through mappings too, for they find clean pages.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn hot_state(&self) -> SysResult<Vec<(Slot, u64, Time, Time)>> {
        let files: Vec<(Slot, Arc<File>)> = self.hot.lock().iter().map(|(slot, hot)| (*slot, Arc::clone(&hot.file))).collect();
        let state = |(slot, file): (Slot, Arc<File>)| sys::stat_fd(&*file).map(|stat| (slot, stat.size, stat.mtime, stat.ctime));
        let mut states: Vec<_> = files.into_iter().map(state).collect::<SysResult<_>>()?;
        states.sort_by_key(|(slot, ..)| *slot);
        Ok(states)
    }
}
