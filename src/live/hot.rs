//! Files that the kernel may be writing to at this moment, and the cut through all of them at one instant.
//!
//! With passthrough no request tells of a write. A file is **hot** from its open for writing until it is proven that nobody can write to it: no
//! handle, and no mapping, which outlives its handle (a read lease on the backing file is refused while either lives).
//!
//! **The cut.** Inside the freeze every hot file is captured for the next epoch: stat, clone, stat, and again whatever has changed, until a pass
//! finds that nothing has. Then all clones are of the moment at which the last pass began: each was equal to its file from its own first stat
//! to the last. A store through a mapping moves ctime when it makes a clean page dirty; a clone has cleaned and write-protected all pages; but XFS
//! moves ctime *before* the store waits for a clone to end, so a page that is dirty after the clone counts as change too.

use std::collections::HashSet;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Live;
use super::busy::{Pace, WAIT_MAX};
use super::data::{Handle, SET_ID};
use super::who::{self, Opener};
use crate::history::diff::same_bytes;
use crate::history::who::Numbered;
use crate::store::ids::{Epoch, ObjectId, Slot};
use crate::store::record::{AttrState, DataState, Undo};
use crate::sys::{self, Errno, Open, Stat, SysResult, Time};

/// Passes after which the cut gives up being of one instant.
const PASSES_MAX: u32 = 64;
/// Time after which it does.
const CUT_MAX: Duration = Duration::from_millis(50);
/// A file opened for writing less than this ago has probably been closed since: most are written in one go, and the kernel tells of a close later.
const YOUNG: Duration = Duration::from_millis(2);
/// How often, and how long each time, a checkpoint waits for such a close to be told: less than capturing the file would cost.
const CLOSE_WAITS_MAX: u32 = 8;
const CLOSE_WAIT: Duration = Duration::from_micros(30);
/// How often, and how long after each other, it is asked at the end whether somebody can still write to a file.
const ENDS_TRIED_MAX: u32 = 10;
const END_WAIT: Duration = Duration::from_millis(2);
/// Files of at most so many bytes are compared where extents prove nothing (small ones have none on btrfs).
const COMPARED_MAX: u64 = 64 * 1024;
/// Of so many files that are open for writing at a cut is told who has them open.
pub const OPEN_TOLD_MAX: usize = 64;
/// Files that a release tries to settle besides its own.
const RESETTLED_AT_ONCE: usize = 2;

/// A hot file.
#[derive(Clone, Debug)]
pub(super) struct Hot {
    /// Where it may be mapped, open for reading only: a descriptor open for writing would itself stand in the way of the lease. Else that of a
    /// handle, open for writing only.
    file: Arc<File>,
    /// It was open for reading and writing, so that it may be mapped to be written (mmap(2) wants both).
    mappable: bool,
    /// When it was last opened for writing.
    opened: Instant,
    /// Who has opened it so.
    pub(super) openers: Vec<Opener>,
}

impl Hot {
    /// It holds a descriptor that no handle does.
    pub(super) fn has_descriptor(&self) -> bool {
        self.mappable || Arc::strong_count(&self.file) == 1
    }
}

/// What the cut found.
#[derive(Debug, Default)]
pub struct Cut {
    /// Records for the epoch that is about to open.
    pub ahead: Vec<Undo>,
    /// All captures are of one instant.
    pub atomic: bool,
    /// Number of files captured.
    pub files: u64,
    /// Who had what open for writing, some of it.
    pub open: Vec<(Slot, Arc<Numbered>)>,
    /// How many more there were.
    pub open_more: u64,
    /// What was captured, as it was then.
    pub stats: Vec<(Slot, Stat)>,
}

impl Cut {
    /// What was captured.
    pub fn objects(&self) -> Vec<ObjectId> {
        let object = |undo: &Undo| if let Undo::Data { before, .. } = undo { before.object } else { None };
        self.ahead.iter().filter_map(object).collect()
    }
}

struct Taken {
    slot: Slot,
    hot: Hot,
    stat: Option<Stat>,
    object: Option<ObjectId>,
}

impl Live {
    /// A file was opened for the kernel to write to. The caller holds the gate, so that no checkpoint misses it.
    ///
    /// # Errors
    /// EMFILE: the file is not watched, and must not be written to.
    pub(super) fn note_hot(&self, slot: Slot, file: &Arc<File>, mappable: bool, by: Option<(Arc<Numbered>, Option<Stat>)>) -> SysResult<()> {
        let mut hot = self.hot.lock();
        let mut openers = Vec::new();
        if let Some(known) = hot.get_mut(&slot) {
            known.opened = Instant::now();
            who::enter(&mut known.openers, by);
            openers = known.openers.clone();
            if known.mappable || !mappable {
                return Ok(());
            }
        } else {
            who::enter(&mut openers, by);
        }
        let file = if mappable { Arc::new(sys::reopen(file, Open::READ)?) } else { Arc::clone(file) };
        hot.insert(slot, Hot { file, mappable, opened: Instant::now(), openers });
        drop(hot);
        self.leave_hot(slot, mappable);
        Ok(())
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

    /// The attributes of the file may change without the kernel's knowing: stores through a mapping do that, and writes that it has passed on clear
    /// set-id bits. For times and size it asks anew by itself after those (`fuse_write_update_attr` in fs/fuse/file.c).
    pub fn changes_unseen(&self, slot: Slot, mode: u32) -> bool {
        self.hot.lock().get(&slot).is_some_and(|hot| hot.mappable || mode & SET_ID != 0)
    }

    /// The last handle for writing is closed: what that leaves to do. The caller holds the gate and the tree.
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
    /// mapped, or seems so. The caller holds the gate and the tree.
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
        openers.iter().filter(|opener| opener.left_alone(now)).for_each(|opener| self.timeline.touch_left(slot, &opener.by));
    }

    /// Nobody can write to the file any more: a capture made ahead is needed, or it is not.
    fn judge(&self, slot: Slot, hot: &Hot) {
        let records = self.timeline.data_now(slot).zip(self.timeline.attr_now(slot));
        if records.is_none() && hot.openers.iter().all(|opener| opener.found.is_none()) {
            return;
        }
        let Ok(now) = sys::stat_fd(&*hot.file) else { return };
        let Some((data, attr)) = records else { return self.judge_openers(slot, &now, &hot.openers) };
        let same = |before: &Stat| before.size == now.size && before.mtime == now.mtime && before.ctime == now.ctime;
        if !data.provisional || !same(&attr.stat) || !self.holds(&data, hot) {
            self.timeline.confirm(slot);
            return self.judge_openers(slot, &now, &hot.openers);
        }
        match self.timeline.void(slot) {
            Ok(Some(object)) => self.drop_object(object),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "a capture that was not needed stays"),
        }
    }

    /// The file holds what was captured of it. That its ctime is the same does not prove it where a store may have moved ctime before the capture
    /// and come after it: see the module.
    fn holds(&self, data: &DataState, hot: &Hot) -> bool {
        let Some(object) = data.object.filter(|_| hot.mappable) else { return true };
        let Ok(Some(kept)) = self.timeline.open_object(object) else { return false };
        let same = if data.size > COMPARED_MAX { sys::shares_extents } else { same_bytes };
        same(&kept, &hot.file).unwrap_or(false)
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
        let _gate = self.gate.read();
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

    /// Before the freeze: writes hot files back, all at once, for a clone must do so first and everybody would wait for it.
    pub fn preflush(&self) {
        let files: Vec<Arc<File>> = self.hot.lock().values().map(|hot| Arc::clone(&hot.file)).collect();
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

    /// An epoch was closed by this cut.
    pub fn epoch_closed(&self, stats: &[(Slot, Stat)]) {
        let mut hot = self.hot.lock();
        for (slot, stat) in stats {
            let openers = hot.get_mut(slot).map(|hot| hot.openers.as_mut_slice()).unwrap_or_default();
            openers.iter_mut().for_each(|opener| opener.found = Some(*stat));
        }
        drop(hot);
        self.wake_sealer();
    }

    /// Captures all hot files for `epoch`, the one about to open. The caller holds the gate for writing.
    ///
    /// # Errors
    /// ENOSPC or EIO: nothing was kept, the epoch must not be closed. EBUSY: a process keeps one of the files ([`Live::in_the_way`]).
    pub fn cut(self: &Arc<Live>, epoch: Epoch) -> SysResult<Cut> {
        let files: Vec<Taken> = self.hot.lock().iter().map(|(slot, hot)| Taken { slot: *slot, hot: hot.clone(), stat: None, object: None }).collect();
        let (open, open_more) = self.open_for_writing(OPEN_TOLD_MAX);
        let mut cut = Cut { atomic: true, files: files.len() as u64, open, open_more, ..Cut::default() };
        // Inodes whose place is recorded.
        let mut known = HashSet::new();
        let (files, converged) = self.converge_apart(epoch, files)?;
        cut.atomic = converged != Ok(false);
        let result = converged.and_then(|_| files.iter().try_for_each(|taken| self.keep_ahead(taken, &mut known, &mut cut.ahead)));
        cut.stats = files.iter().filter_map(|taken| taken.stat.map(|stat| (taken.slot, stat))).collect();
        match result {
            Ok(()) => Ok(cut),
            Err(errno) => {
                self.drop_taken(&files);
                Err(errno)
            }
        }
    }

    /// [`Live::converge`] on a thread of its own, which is left alone when it waits for too long.
    fn converge_apart(self: &Arc<Live>, epoch: Epoch, mut files: Vec<Taken>) -> SysResult<(Vec<Taken>, SysResult<bool>)> {
        if files.is_empty() {
            return Ok((files, Ok(true)));
        }
        let pace = Arc::new(Pace::default());
        let (live, late, theirs) = (Arc::clone(self), Arc::clone(self), Arc::clone(&pace));
        let work = move || {
            let converged = live.converge(epoch, &mut files, &theirs);
            (files, converged)
        };
        self.busy.lend(|| pace.is_patient(), work, move |(files, _)| late.drop_taken(&files)).map_err(|_| self.give_up(&pace))
    }

    fn drop_taken(&self, files: &[Taken]) {
        files.iter().filter_map(|taken| taken.object).for_each(|object| self.drop_object(object));
    }

    /// The epoch was not closed: what was captured for the next is needed by nobody.
    pub fn drop_cut(&self, objects: &[ObjectId]) {
        objects.iter().for_each(|object| self.drop_object(*object));
    }

    /// Clones until nothing has changed since it was cloned. When the time is up it looks a last time: on a machine that is slow the first clones may
    /// take all of it, and if nothing changed they are of one instant all the same. `false`: they are not.
    fn converge(&self, epoch: Epoch, files: &mut [Taken], pace: &Pace) -> SysResult<bool> {
        let started = Instant::now();
        for pass in 0_u32.. {
            let last = pass > PASSES_MAX || started.elapsed() > CUT_MAX;
            let mut moved = false;
            for taken in files.iter_mut() {
                if taken.stat.is_none() {
                    moved = true;
                    pace.step(taken.slot, || self.take(epoch, taken))?;
                } else if changed_since(taken)? {
                    moved = true;
                    if last {
                        break;
                    }
                    pace.step(taken.slot, || self.take(epoch, taken))?;
                }
            }
            if !moved {
                return Ok(true);
            }
            if last {
                return files.iter_mut().try_for_each(|taken| self.fit(taken)).map(|()| false);
            }
        }
        Ok(true)
    }

    fn take(&self, epoch: Epoch, taken: &mut Taken) -> SysResult<()> {
        let _claim = self.busy.await_claim(taken.slot, Some(WAIT_MAX))?;
        if let Some(old) = taken.object.take() {
            self.drop_object(old);
        }
        let mut stat = sys::stat_fd(&*taken.hot.file)?;
        // One that is open for writing only cannot be read. It is opened for this moment: all at once would need twice the descriptors that were counted.
        let reopened = if taken.hot.mappable { None } else { Some(sys::reopen(&*taken.hot.file, Open::READ)?) };
        taken.object = self.capture_object_in(epoch, taken.slot, reopened.as_ref().unwrap_or(&taken.hot.file), stat.size)?;
        if stat.mode & SET_ID != 0 {
            // What was written after the first look is in the clone, and has cleared the bits.
            stat.mode &= sys::stat_fd(&*taken.hot.file)?.mode | !SET_ID;
        }
        taken.stat = Some(stat);
        Ok(())
    }

    /// What was cloned while somebody wrote may be longer than the attributes say, which are of a moment before, or shorter: what is kept of one file
    /// must agree.
    fn fit(&self, taken: &mut Taken) -> SysResult<()> {
        let (Some(object), Some(stat)) = (taken.object, &mut taken.stat) else { return Ok(()) };
        let (dir, name) = self.timeline.store().layers.location(object).map_err(|error| error.errno())?;
        let kept = sys::open_file_at(&*dir, name.as_bytes(), Open::READ_WRITE)?;
        let size = sys::stat_fd(&kept)?.size;
        if size > stat.size {
            sys::truncate(&kept, stat.size)?;
        }
        stat.size = stat.size.min(size);
        Ok(())
    }

    fn keep_ahead(&self, taken: &Taken, known: &mut HashSet<Slot>, ahead: &mut Vec<Undo>) -> SysResult<()> {
        let Some(stat) = taken.stat else { return Ok(()) };
        let slot = taken.slot;
        ahead.push(Undo::Data { slot, before: DataState { object: taken.object, size: stat.size, provisional: true } });
        ahead.push(Undo::Attr { slot, before: AttrState { stat, target: None } });
        // A write that makes no request takes the capabilities away, and no other attribute. All of them of all hot files may be more than one append.
        if sys::listxattr(&*taken.hot.file).is_ok_and(|names| names.iter().any(|name| name == b"security.capability")) {
            ahead.push(Undo::Xattrs { slot, before: sys::all_xattrs(&*taken.hot.file)? });
        }
        self.keep_homes_ahead(slot, known, ahead);
        Ok(())
    }
}

/// The file may differ from its clone.
fn changed_since(taken: &Taken) -> SysResult<bool> {
    let Some(before) = taken.stat else { return Ok(true) };
    let dirty = match sys::dirty_pages(&*taken.hot.file) {
        Err(Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::EPERM) => 0,
        dirty => dirty?,
    };
    if taken.hot.mappable && dirty > 0 {
        return Ok(true);
    }
    let now = sys::stat_fd(&*taken.hot.file)?;
    Ok(now.size != before.size || now.mtime != before.mtime || now.ctime != before.ctime)
}
