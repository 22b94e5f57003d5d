//! The cut: what hot files hold at one instant, kept for the epoch that opens then.
//!
//! **Before the freeze** ([`Cuts::prepare_cut`]) each hot file is captured for the next epoch: a
//! clone takes time for each extent of its file, and writes back what is dirty. **In the freeze**
//! ([`Cuts::cut`]) each is looked at with a stat, and captured again if it has changed, until a
//! pass finds that nothing has. Then all captures are of the moment at which the last pass began:
//! each was equal to its file from its own first stat to the last.
//!
//! A store through a mapping moves ctime when it makes a clean page dirty; a clone has cleaned and
//! write-protected all pages; but XFS moves ctime *before* the store waits for a clone to end, so a
//! page that is dirty after the clone counts as change too.
//!
//! **A file that is idle** is not captured again: what the open epoch has of it is carried into the
//! next one, whose record leads to the same object. A stat proves that the file has not changed if
//! its ctime was old when it was captured (`SETTLED`): a store that was under way then, with ctime
//! already moved, is long over. So a file that is open and left alone costs a stat and a record for
//! each checkpoint, whatever its size.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::calls::{Pace, WAIT_MAX};
use super::handles::SET_ID;
use super::hot::{Hot, OPEN_TOLD_MAX, SETTLED, is_before};
use super::nodes::is_same;
use super::past::{Captures, Past, Writers};
use super::tables::{Calls, HotFiles, Tables};
use crate::history::attribution::Numbered;
use crate::history::timeline::Timeline;
use crate::history::wake::Wake;
use crate::store::ids::{Epoch, ObjectId, Slot};
use crate::store::record::{AttrState, DataState, Undo};
use crate::sys::lock::Mutex;
use crate::sys::{self, Errno, Open, Stat, SysResult, Xattrs};

/// Passes after which the cut gives up being of one instant.
const PASSES_MAX: u32 = 64;
/// Time after which it does.
const CUT_MAX: Duration = Duration::from_millis(50);
/// What a write takes away.
const CAPABILITY: &[u8] = b"security.capability";

/// What the cut found.
#[derive(Debug)]
pub struct Cut {
    /// The epoch that is about to open.
    epoch: Epoch,
    /// Records for it.
    pub ahead: Vec<Undo>,
    /// All captures are of one instant.
    pub atomic: bool,
    /// Number of files captured.
    pub files: u64,
    /// Who had what open for writing, some of it.
    pub open: Vec<(Slot, Arc<Numbered>)>,
    /// How many more there were.
    pub open_more: u64,
    /// The file that took longest to capture, before the freeze or in it.
    pub slowest: Option<(Slot, Duration)>,
    /// What was captured, as it was then, and whether a stat will prove that it has not changed.
    pub stats: Vec<(Slot, Stat, bool)>,
}

impl Cut {
    /// What was captured for this epoch alone.
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

/// A hot file, and what is to be kept of it.
struct Taken {
    slot: Slot,
    hot: Hot,
    /// As it was when that was captured; `None`: it is not yet.
    stat: Option<Stat>,
    object: Option<ObjectId>,
    /// Its extended attributes, where the next write takes one of them away.
    capable: Option<Arc<Xattrs>>,
    /// The open epoch has it: see the module.
    carried: bool,
    settled: bool,
    /// How long it took to capture it, each time together.
    took: Duration,
}

impl Taken {
    fn new(slot: Slot, hot: Hot) -> Taken {
        Taken {
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

    /// What nobody else refers to.
    fn own_object(&self) -> Option<ObjectId> {
        self.object.filter(|_| !self.carried)
    }
}

/// What was captured before a freeze. A leaf.
#[derive(Default)]
pub(super) struct Prepared {
    epoch: Option<Epoch>,
    files: HashMap<Slot, Taken>,
    /// Objects that nothing refers to, to be removed when nobody waits.
    unneeded: Vec<ObjectId>,
}

/// Makes the cut. See the module.
pub struct Cuts {
    timeline: Arc<Timeline>,
    hot: Arc<HotFiles>,
    calls: Arc<Calls>,
    wake: Arc<Wake>,
    writers: Arc<Writers>,
    captures: Arc<Captures>,
    prepared: Mutex<Prepared>,
}

impl Cuts {
    pub(super) fn new(tables: &Tables, past: &Past) -> Arc<Cuts> {
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

    /// Before the freeze: captures all hot files for `epoch`, the next one. What fails here is
    /// tried again in the cut, and told there.
    pub fn prepare_cut(self: &Arc<Cuts>, epoch: Epoch) {
        self.drop_prepared();
        let files = self.hot_files(&mut HashMap::new());
        let prepare = move |cuts: &Cuts, files: &mut [Taken], pace: &Pace| {
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

    /// Removes what the last cut did not need. Nobody should wait for the caller.
    pub fn drop_unneeded(&self) {
        let unneeded = std::mem::take(&mut self.prepared.lock().unneeded);
        unneeded
            .into_iter()
            .for_each(|object| self.captures.drop_object(object));
    }

    /// Removes what was captured for a cut that did not come. Nobody should wait for the caller.
    pub fn drop_prepared(&self) {
        let files = std::mem::take(&mut self.prepared.lock().files);
        self.leave_unneeded(files.into_values());
        self.drop_unneeded();
    }

    fn leave_unneeded(&self, files: impl Iterator<Item = Taken>) {
        self.prepared
            .lock()
            .unneeded
            .extend(files.filter_map(|taken| taken.own_object()));
    }

    /// All hot files, with what was prepared of them.
    fn hot_files(&self, prepared: &mut HashMap<Slot, Taken>) -> Vec<Taken> {
        let hot = self.hot.lock();
        let file = |(slot, hot): (&Slot, &Hot)| match prepared.remove(slot) {
            Some(taken) => Taken {
                hot: hot.clone(),
                ..taken
            },
            None => Taken::new(*slot, hot.clone()),
        };
        hot.iter().map(file).collect()
    }

    /// Captures all hot files for `epoch`, the one about to open. The caller holds the freeze lock
    /// for writing.
    ///
    /// # Errors
    /// ENOSPC or EIO: nothing was kept, the epoch must not be closed. EBUSY: a process keeps one of
    /// the files ([`Calls::in_the_way`]).
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
        // What is not hot any more.
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

    /// Does `work` on a thread of its own, which is left alone when it waits for too long.
    fn apart(
        self: &Arc<Cuts>,
        mut files: Vec<Taken>,
        work: impl FnOnce(&Cuts, &mut [Taken], &Pace) -> SysResult<bool> + Send + 'static,
    ) -> SysResult<(Vec<Taken>, SysResult<bool>)> {
        if files.is_empty() {
            return Ok((files, Ok(true)));
        }
        let pace = Arc::new(Pace::default());
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

    /// The epoch was not closed: what was captured for the next is needed by nobody.
    pub fn drop_cut(&self, objects: &[ObjectId]) {
        objects
            .iter()
            .for_each(|object| self.captures.drop_object(*object));
    }

    /// An epoch was closed by this cut.
    pub fn epoch_closed(&self, stats: &[(Slot, Stat, bool)]) {
        let mut hot = self.hot.lock();
        for (slot, stat, settled) in stats {
            if let Some(hot) = hot.get_mut(slot) {
                // The file has a past now, also if it was created in the epoch that closed.
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

    /// Captures until nothing has changed since it was captured. When the time is up it looks a
    /// last time: on a machine that is slow the first clones may take all of it, and if nothing
    /// changed they are of one instant all the same. `false`: they are not.
    fn converge(&self, epoch: Epoch, files: &mut [Taken], pace: &Pace) -> SysResult<bool> {
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
            // All at once, for each clone waits for the disk.
            for taken in &changed {
                let _ = pace.step(taken.slot, || sys::start_writeback(&*taken.hot.file));
            }
            changed
                .into_iter()
                .try_for_each(|taken| pace.step(taken.slot, || self.take(epoch, taken)))?;
        }
        Ok(true)
    }

    /// Carries the capture of the open epoch into the next one if the file still holds the same;
    /// returns whether it did.
    fn carry(&self, taken: &mut Taken) -> bool {
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
        // A store that an older program damaged may lack the object: then the file is cloned again.
        let layers = &self.timeline.store().layers;
        if !data
            .object
            .is_none_or(|object| layers.exists(object).unwrap_or(false))
        {
            return false;
        }
        (taken.stat, taken.object, taken.carried, taken.settled) =
            (Some(now), data.object, true, taken.hot.settled);
        // To change them moves ctime too.
        taken.capable = known
            .xattrs
            .filter(|xattrs| xattrs.iter().any(|(name, _)| name == CAPABILITY));
        true
    }

    /// The file may differ from what was captured of it, or that is no more.
    fn has_changed(&self, taken: &Taken) -> SysResult<bool> {
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

    fn take(&self, epoch: Epoch, taken: &mut Taken) -> SysResult<()> {
        let started = Instant::now();
        let done = self.take_now(epoch, taken);
        taken.took += started.elapsed();
        done
    }

    fn take_now(&self, epoch: Epoch, taken: &mut Taken) -> SysResult<()> {
        let _claim = self.calls.await_claim(taken.slot, Some(WAIT_MAX))?.paced();
        self.prepared.lock().unneeded.extend(taken.own_object());
        (taken.stat, taken.object, taken.capable, taken.carried) = (None, None, None, false);
        let mut stat = sys::stat_fd(&*taken.hot.file)?;
        taken.settled = is_before(stat.ctime, sys::now(), SETTLED);
        // One that is open for writing only cannot be read. It is opened for this moment: all at
        // once would need twice the descriptors that were counted.
        let reopened = if taken.hot.mappable {
            None
        } else {
            Some(sys::reopen(&*taken.hot.file, Open::READ)?)
        };
        taken.object = self.captures.capture_object_in(
            epoch,
            taken.slot,
            reopened.as_ref().unwrap_or(&taken.hot.file),
            stat.size,
        )?;
        if stat.mode & SET_ID != 0 {
            // What was written after the first look is in the clone, and has cleared the bits.
            stat.mode &= sys::stat_fd(&*taken.hot.file)?.mode | !SET_ID;
        }
        // A write that makes no request takes the capabilities away, and no other attribute. All of
        // them of all hot files may be more than one append.
        if sys::listxattr(&*taken.hot.file)
            .is_ok_and(|names| names.iter().any(|name| name == CAPABILITY))
        {
            taken.capable = Some(Arc::new(sys::all_xattrs(&*taken.hot.file)?));
        }
        taken.stat = Some(stat);
        Ok(())
    }

    /// What was cloned while somebody wrote may be longer than the attributes say, which are of a
    /// moment before, or shorter: what is kept of one file must agree.
    fn fit(&self, taken: &mut Taken) -> SysResult<()> {
        let (Some(object), Some(stat)) = (taken.own_object(), &mut taken.stat) else {
            return Ok(());
        };
        let (dir, name) = self.timeline.store().layers.location(object)?;
        let kept = sys::open_file_at(&*dir, name.as_bytes(), Open::READ_WRITE)?;
        let size = sys::stat_fd(&kept)?.size;
        if size > stat.size {
            sys::truncate(&kept, stat.size)?;
        }
        stat.size = stat.size.min(size);
        Ok(())
    }

    fn keep_ahead(&self, taken: &Taken, known: &mut HashSet<Slot>, ahead: &mut Vec<Undo>) {
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
