//! The cut: a consistent snapshot of all hot files, recorded for the epoch that opens at the
//! checkpoint.
//!
//! **Before the freeze** ([`Cuts::prepare_cut`]) each hot file is captured for the next epoch. The
//! cost of a clone depends on the number of extents, and it writes back dirty pages. **In the
//! freeze** ([`Cuts::cut`]) each file is checked with a stat and captured again if it has changed,
//! until a pass finds no change. All captures then represent the instant at which the last pass
//! began: each was equal to its file from its own first stat to the last.
//!
//! A store through a mapping updates ctime when it dirties a clean page, and a clone cleans and
//! write-protects all pages. But XFS updates ctime *before* the store waits for the end of a clone.
//! A page that is dirty after the clone therefore counts as a change.
//!
//! **An idle file** is not captured again: its capture in the open epoch is carried into the next
//! one, whose record refers to the same object. A stat proves that the file has not changed if its
//! ctime was old when it was captured (`SETTLED`): a store in progress at that time, with ctime
//! already updated, has completed. An open but idle file of any size costs one stat and one record
//! per checkpoint.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::calls::{StallWatch, WAIT_MAX};
use super::capture_ctx::{CaptureCtx, Captures, WriterTable};
use super::handles::SET_ID;
use super::hot::{HotFile, OPEN_TOLD_MAX, SETTLED, is_before};
use super::nodes::is_same;
use super::shared_tables::{BlockingCalls, HotFiles, SharedTables};
use crate::history::attribution::NumberedProcess;
use crate::history::timeline::Timeline;
use crate::history::wake::IdleThread;
use ckptfs_api::Epoch;
use ckptfs_store::ids::{ObjectId, Slot};
use ckptfs_store::record::{AttrState, DataState, Undo};
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Access, Errno, Stat, SysResult, Xattrs};

/// Number of passes after which the cut is no longer atomic.
const PASSES_MAX: u32 = 64;
/// Time after which the cut is no longer atomic.
const CUT_MAX: Duration = Duration::from_millis(50);
/// Extended attribute that a write removes.
const CAPABILITY: &[u8] = b"security.capability";

/// Result of a cut.
#[derive(Debug)]
pub struct Cut {
    /// The epoch that is about to open.
    epoch: Epoch,
    /// Undo records for that epoch.
    pub ahead: Vec<Undo>,
    /// All captures represent one instant.
    pub atomic: bool,
    /// Number of hot files.
    pub files: u64,
    /// Files open for writing and their processes, up to `OPEN_TOLD_MAX`.
    pub open: Vec<(Slot, Arc<NumberedProcess>)>,
    /// Number of further entries.
    pub open_more: u64,
    /// The file with the longest capture time, before the freeze or in it.
    pub slowest: Option<(Slot, Duration)>,
    /// Captured files: attributes at the capture, and whether a stat can later prove that the file
    /// has not changed.
    pub stats: Vec<(Slot, Stat, bool)>,
}

impl Cut {
    /// Returns the objects that were captured for this epoch alone.
    pub fn objects(&self) -> Vec<ObjectId> {
        let object = |undo: &Undo| {
            if let Undo::Data { before, .. } = undo {
                before.object
            } else {
                None
            }
        };
        self.ahead
            .iter()
            .filter_map(object)
            .filter(|object| object.epoch == self.epoch)
            .collect()
    }
}

/// A hot file and its capture.
struct HotCapture {
    slot: Slot,
    hot: HotFile,
    /// Attributes at the capture; `None` if there is no valid capture yet.
    stat: Option<Stat>,
    object: Option<ObjectId>,
    /// Extended attributes, if the next write would remove one of them.
    capable: Option<Arc<Xattrs>>,
    /// The object belongs to the open epoch: see the module.
    carried: bool,
    settled: bool,
    /// Total time of its captures.
    took: Duration,
}

impl HotCapture {
    fn new(slot: Slot, hot: HotFile) -> HotCapture {
        HotCapture {
            slot,
            hot,
            stat: None,
            object: None,
            capable: None,
            carried: false,
            settled: false,
            took: Duration::ZERO,
        }
    }

    /// Returns the object, unless the open epoch refers to it.
    fn own_object(&self) -> Option<ObjectId> {
        self.object.filter(|_| !self.carried)
    }
}

/// Captures made before a freeze. Behind a leaf mutex.
#[derive(Default)]
pub(super) struct PreparedCaptures {
    epoch: Option<Epoch>,
    files: HashMap<Slot, HotCapture>,
    /// Unreferenced objects, to be removed outside the freeze.
    unneeded: Vec<ObjectId>,
}

/// Captures hot files for a checkpoint. See the module.
pub struct Cuts {
    timeline: Arc<Timeline>,
    hot: Arc<HotFiles>,
    calls: Arc<BlockingCalls>,
    wake: Arc<IdleThread>,
    writers: Arc<WriterTable>,
    captures: Arc<Captures>,
    prepared: Mutex<PreparedCaptures>,
}

impl Cuts {
    pub(super) fn new(tables: &SharedTables, past: &CaptureCtx) -> Arc<Cuts> {
        Arc::new(Cuts {
            timeline: Arc::clone(&tables.timeline),
            hot: Arc::clone(&tables.hot),
            calls: Arc::clone(&tables.calls),
            wake: Arc::clone(&tables.wake),
            writers: Arc::clone(&past.writers),
            captures: Arc::clone(&past.captures),
            prepared: Mutex::default(),
        })
    }

    /// Before the freeze: captures all hot files for `epoch`, the next one. The cut retries
    /// failures and reports them.
    pub fn prepare_cut(self: &Arc<Cuts>, epoch: Epoch) {
        self.drop_prepared();
        let files = self.hot_files(&mut HashMap::new());
        let prepare = move |cuts: &Cuts, files: &mut [HotCapture], pace: &StallWatch| {
            for taken in files {
                if cuts.carry(taken) {
                    continue;
                }
                let _ = pace.step(taken.slot, || cuts.take(epoch, taken));
            }
            Ok(true)
        };
        let Ok((files, _)) = self.apart(files, prepare) else {
            return;
        };
        let mut prepared = self.prepared.lock();
        prepared.epoch = Some(epoch);
        prepared.files = files
            .into_iter()
            .filter(|taken| taken.stat.is_some())
            .map(|taken| (taken.slot, taken))
            .collect();
    }

    /// Removes objects that the last cut did not use. To be called where no request waits for the
    /// caller.
    pub fn drop_unneeded(&self) {
        let unneeded = std::mem::take(&mut self.prepared.lock().unneeded);
        unneeded
            .into_iter()
            .for_each(|object| self.captures.drop_object(object));
    }

    /// Removes the captures prepared for a cut that did not happen. To be called where no request
    /// waits for the caller.
    pub fn drop_prepared(&self) {
        let files = std::mem::take(&mut self.prepared.lock().files);
        self.leave_unneeded(files.into_values());
        self.drop_unneeded();
    }

    fn leave_unneeded(&self, files: impl Iterator<Item = HotCapture>) {
        self.prepared
            .lock()
            .unneeded
            .extend(files.filter_map(|taken| taken.own_object()));
    }

    /// Returns all hot files, with the captures prepared for them.
    fn hot_files(&self, prepared: &mut HashMap<Slot, HotCapture>) -> Vec<HotCapture> {
        let hot = self.hot.lock();
        let file = |(slot, hot): (&Slot, &HotFile)| match prepared.remove(slot) {
            Some(taken) => HotCapture {
                hot: hot.clone(),
                ..taken
            },
            None => HotCapture::new(*slot, hot.clone()),
        };
        hot.iter().map(file).collect()
    }

    /// Captures all hot files for `epoch`, which is about to open. The caller holds the freeze lock
    /// for writing.
    ///
    /// # Errors
    /// ENOSPC or EIO: nothing was captured, and the epoch must not be closed. EBUSY: a process
    /// keeps one of the files locked ([`BlockingCalls::in_the_way`]).
    pub fn cut(self: &Arc<Cuts>, epoch: Epoch) -> SysResult<Cut> {
        let mut prepared = {
            let mut prepared = self.prepared.lock();
            if prepared.epoch == Some(epoch) {
                std::mem::take(&mut prepared.files)
            } else {
                HashMap::new()
            }
        };
        let files = self.hot_files(&mut prepared);
        // Captures of files that are no longer hot.
        self.leave_unneeded(prepared.into_values());
        let (open, open_more) = self.writers.open_for_writing(OPEN_TOLD_MAX);
        let mut cut = Cut {
            epoch,
            ahead: Vec::new(),
            atomic: true,
            files: files.len() as u64,
            open,
            open_more,
            slowest: None,
            stats: Vec::new(),
        };
        let (files, converged) = if files
            .iter()
            .any(|taken| self.has_changed(taken) != Ok(false))
        {
            self.apart(files, move |cuts, files, pace| {
                cuts.converge(epoch, files, pace)
            })?
        } else {
            (files, Ok(true))
        };
        cut.atomic = converged != Ok(false);
        // Inodes whose place is recorded.
        let mut known = HashSet::new();
        if let Err(errno) = converged {
            self.leave_unneeded(files.into_iter());
            return Err(errno);
        }
        let slowest = files
            .iter()
            .filter(|taken| !taken.took.is_zero())
            .max_by_key(|taken| taken.took);
        cut.slowest = slowest.map(|taken| (taken.slot, taken.took));
        files
            .iter()
            .for_each(|taken| self.keep_ahead(taken, &mut known, &mut cut.ahead));
        cut.stats = files
            .iter()
            .filter_map(|taken| taken.stat.map(|stat| (taken.slot, stat, taken.settled)))
            .collect();
        Ok(cut)
    }

    /// Runs `work` on another thread, and abandons that thread when it waits for too long.
    fn apart(
        self: &Arc<Cuts>,
        mut files: Vec<HotCapture>,
        work: impl FnOnce(&Cuts, &mut [HotCapture], &StallWatch) -> SysResult<bool> + Send + 'static,
    ) -> SysResult<(Vec<HotCapture>, SysResult<bool>)> {
        if files.is_empty() {
            return Ok((files, Ok(true)));
        }
        let pace = Arc::new(StallWatch::default());
        let (cuts, late, theirs) = (Arc::clone(self), Arc::clone(self), Arc::clone(&pace));
        let work = move || {
            let done = work(&cuts, &mut files, &theirs);
            (files, done)
        };
        self.calls
            .lend(
                || pace.is_patient(),
                work,
                move |(files, _)| late.leave_unneeded(files.into_iter()),
            )
            .map_err(|_| self.calls.give_up(&pace))
    }

    /// Removes the objects of a cut whose epoch was not closed.
    pub fn drop_cut(&self, objects: &[ObjectId]) {
        objects
            .iter()
            .for_each(|object| self.captures.drop_object(*object));
    }

    /// Updates the hot files after an epoch was closed with this cut.
    pub fn epoch_closed(&self, stats: &[(Slot, Stat, bool)]) {
        let mut hot = self.hot.lock();
        for (slot, stat, settled) in stats {
            if let Some(hot) = hot.get_mut(slot) {
                // A checkpoint now shows the file, even if it was created in the closed epoch.
                hot.syncs |= hot.mappable;
                hot.settled = *settled;
                hot.openers
                    .iter_mut()
                    .for_each(|opener| opener.found = Some(*stat));
            }
        }
        drop(hot);
        self.wake.epoch_closed();
    }

    /// Captures until no file has changed since its capture, and returns whether the captures are
    /// atomic. After the time limit one last check is made: on a slow machine the first clones may
    /// take all of the time, but without changes they still represent one instant.
    fn converge(
        &self,
        epoch: Epoch,
        files: &mut [HotCapture],
        pace: &StallWatch,
    ) -> SysResult<bool> {
        let started = Instant::now();
        for pass in 0_u32.. {
            let last = pass > PASSES_MAX || started.elapsed() > CUT_MAX;
            let mut changed = Vec::new();
            for taken in files.iter_mut() {
                if self.has_changed(taken)? {
                    changed.push(taken);
                }
            }
            if changed.is_empty() {
                return Ok(true);
            }
            if last && changed.iter().all(|taken| taken.stat.is_some()) {
                return files
                    .iter_mut()
                    .try_for_each(|taken| self.fit(taken))
                    .map(|()| false);
            }
            // All writebacks are started first, because each clone waits for the disk.
            for taken in &changed {
                let _ = pace.step(taken.slot, || sys::start_writeback(&*taken.hot.file));
            }
            changed
                .into_iter()
                .try_for_each(|taken| pace.step(taken.slot, || self.take(epoch, taken)))?;
        }
        Ok(true)
    }

    /// Carries the capture of the open epoch into the next one if the file has not changed since.
    /// Returns whether it did.
    fn carry(&self, taken: &mut HotCapture) -> bool {
        let known = self.timeline.epochs.node_now(taken.slot);
        let Some((data, attr)) = known
            .data
            .zip(known.attr)
            .filter(|(data, _)| data.provisional && (!taken.hot.mappable || taken.hot.settled))
        else {
            return false;
        };
        let Some(now) = sys::stat_fd(&*taken.hot.file)
            .ok()
            .filter(|now| is_same(&attr.stat, now))
        else {
            return false;
        };
        // A store damaged by an older version may lack the object. The file is then cloned again.
        let layers = &self.timeline.store().layers;
        if !data
            .object
            .is_none_or(|object| layers.exists(object).unwrap_or(false))
        {
            return false;
        }
        (taken.stat, taken.object, taken.carried, taken.settled) =
            (Some(now), data.object, true, taken.hot.settled);
        // A change of extended attributes also updates ctime, so these are current.
        taken.capable = known
            .xattrs
            .filter(|xattrs| xattrs.iter().any(|(name, _)| name == CAPABILITY));
        true
    }

    /// Returns whether the file may differ from its capture, or the carried capture is no longer
    /// valid.
    fn has_changed(&self, taken: &HotCapture) -> SysResult<bool> {
        let Some(before) = taken.stat else {
            return Ok(true);
        };
        if taken.carried
            && !self
                .timeline
                .epochs
                .data_now(taken.slot)
                .is_some_and(|data| data.provisional && data.object == taken.object)
        {
            return Ok(true);
        }
        if taken.hot.mappable && !taken.settled {
            let dirty = match sys::dirty_pages(&*taken.hot.file) {
                Err(Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::EPERM) => 0,
                dirty => dirty?,
            };
            if dirty > 0 {
                return Ok(true);
            }
        }
        Ok(!is_same(&before, &sys::stat_fd(&*taken.hot.file)?))
    }

    fn take(&self, epoch: Epoch, taken: &mut HotCapture) -> SysResult<()> {
        let started = Instant::now();
        let done = self.take_now(epoch, taken);
        taken.took += started.elapsed();
        done
    }

    fn take_now(&self, epoch: Epoch, taken: &mut HotCapture) -> SysResult<()> {
        let _claim = self.calls.await_claim(taken.slot, Some(WAIT_MAX))?.paced();
        self.prepared.lock().unneeded.extend(taken.own_object());
        (taken.stat, taken.object, taken.capable, taken.carried) = (None, None, None, false);
        let mut stat = sys::stat_fd(&*taken.hot.file)?;
        taken.settled = is_before(stat.ctime, sys::now(), SETTLED);
        // A write-only descriptor cannot be read. The file is reopened only for this capture:
        // reopening all files at once would need twice the descriptors that were counted.
        let reopened = if taken.hot.mappable {
            None
        } else {
            Some(sys::reopen(&*taken.hot.file, Access::READ)?)
        };
        taken.object = self.captures.capture_object_in(
            epoch,
            taken.slot,
            reopened.as_ref().unwrap_or(&taken.hot.file),
            stat.size,
        )?;
        if stat.mode & SET_ID != 0 {
            // A write after the first stat is in the clone, and has cleared the bits.
            stat.mode &= sys::stat_fd(&*taken.hot.file)?.mode | !SET_ID;
        }
        // A passthrough write removes the capabilities and no other attribute. All attributes of
        // all hot files may exceed one journal append.
        if sys::listxattr(&*taken.hot.file)
            .is_ok_and(|names| names.iter().any(|name| name == CAPABILITY))
        {
            taken.capable = Some(Arc::new(sys::all_xattrs(&*taken.hot.file)?));
        }
        taken.stat = Some(stat);
        Ok(())
    }

    /// Makes size and content agree. A file cloned during a write may be longer than its
    /// attributes, which were read earlier, or shorter.
    fn fit(&self, taken: &mut HotCapture) -> SysResult<()> {
        let (Some(object), Some(stat)) = (taken.own_object(), &mut taken.stat) else {
            return Ok(());
        };
        let (dir, name) = self.timeline.store().layers.location(object)?;
        let kept = sys::open_file_at(&*dir, name.as_bytes(), Access::READ_WRITE)?;
        let size = sys::stat_fd(&kept)?.size;
        if size > stat.size {
            sys::truncate(&kept, stat.size)?;
        }
        stat.size = stat.size.min(size);
        Ok(())
    }

    fn keep_ahead(&self, taken: &HotCapture, known: &mut HashSet<Slot>, ahead: &mut Vec<Undo>) {
        let Some(stat) = taken.stat else { return };
        let slot = taken.slot;
        ahead.push(Undo::Data {
            slot,
            before: DataState {
                object: taken.object,
                size: stat.size,
                provisional: true,
            },
        });
        ahead.push(Undo::Attr {
            slot,
            before: AttrState {
                stat: self.captures.shown(slot, stat),
                target: None,
            },
        });
        if let Some(xattrs) = &taken.capable {
            ahead.push(Undo::Xattrs {
                slot,
                before: (**xattrs).clone(),
            });
        }
        self.captures.keep_homes_ahead(slot, known, ahead);
    }
}
