//! Opening a timeline: the checkpoints from the index, and everything after from the journal's tail.

use std::sync::Arc;

use super::absence::Absence;
use super::indexer::{self, Wake};
use super::timeline::{Aftermath, Inner, Timeline, fault};
use crate::store::ids::Epoch;
use crate::store::record::Record;
use crate::store::{Address, Store};
use crate::sys::SysResult;
use crate::sys::lock::{Mutex, Rank, RwLock};

impl Timeline {
    /// Opens the history that is in `store`. Costs what changed since the index last took over, not what there is.
    ///
    /// The caller finishes what [`Aftermath`] tells of before it serves anything.
    ///
    /// # Errors
    /// EIO if the journal is damaged.
    pub fn open(store: Arc<Store>) -> SysResult<(Timeline, Aftermath)> {
        let checkpoints = store.index.checkpoints().map_err(fault)?;
        let next = store.index.last_checkpoint().map_err(fault)?.map_or(Epoch(1), |id| id.epoch().next());
        let applied = store.index.applied().map_err(fault)?;
        // An index that was rebuilt holds records of the open epoch too; they are needed in memory, so the scan begins where that epoch did.
        let from = checkpoints.last().map_or(Address::START, |(_, address)| *address).min(applied);
        let mut inner = Inner::new(next);
        inner.absences = store.index.absences().map_err(fault)?.into_iter().map(|(from_ns, to_ns)| Absence { from_ns, to_ns }).collect();
        for (checkpoint, address) in checkpoints {
            inner.put_checkpoint(checkpoint, address);
        }
        // The record of the last mount may lie before `from`: only the record of an orderly end, which is the very last, says that there was one.
        let mut replay = Replay { inner, aftermath: Aftermath { unclean: store.journal.position() > store.journal.start(), ..Aftermath::default() } };
        for frame in store.journal.scan(from, None) {
            let (address, record) = frame.map_err(fault)?;
            let structural = matches!(record, Record::Checkpoint(_) | Record::Tags { .. } | Record::Deleted { .. });
            if address >= applied || !structural {
                replay.take(address, record);
            }
        }
        let Replay { inner, aftermath } = replay;
        let timeline = Timeline {
            store,
            inner: RwLock::ranked(Rank::Timeline, inner),
            wake: Wake::default(),
            distrusted: Mutex::default(),
            met: Mutex::default(),
        };
        Ok((timeline, aftermath))
    }

    /// Starts the thread that moves closed epochs into the index. It ends with [`Timeline::stop`].
    pub fn start_indexer(self: &Arc<Timeline>) -> std::io::Result<()> {
        indexer::start(self)
    }

    /// Ends the indexer's thread and makes the index durable, so that the next opening is quick.
    pub fn stop(&self) {
        self.wake.stop();
        if let Err(error) = self.store.journal.sync().and_then(|()| self.store.index.flush_durable()) {
            tracing::warn!(%error, "the index was not made durable; the next mount will rebuild what is missing");
        }
    }
}

struct Replay {
    inner: Inner,
    aftermath: Aftermath,
}

impl Replay {
    fn take(&mut self, address: Address, record: Record) {
        match record {
            Record::Undo { epoch, undo } => {
                self.undone();
                if epoch == self.inner.open.epoch {
                    undo.into_iter().for_each(|item| self.inner.open.add(item));
                }
            }
            Record::Void { epoch, slot } => {
                if epoch == self.inner.open.epoch {
                    self.inner.open.void(slot);
                }
            }
            Record::Moved { places } => {
                for (slot, place) in places {
                    let before = self.inner.open.place(slot).cloned();
                    self.inner.open.put_place(slot, place.clone());
                    self.aftermath.moved.insert(slot, (place, before));
                }
            }
            Record::Checkpoint(checkpoint) => {
                self.undone();
                self.inner.seal();
                self.inner.put_checkpoint(checkpoint, address);
            }
            Record::Tags { id, tags } => self.inner.retag(id, tags),
            Record::Deleted { id } => self.inner.drop_checkpoint(id),
            Record::Replacing { slot, place, object } => self.aftermath.replacing = Some((slot, place, object)),
            Record::RestoreBegin { target, guard, paths } => self.aftermath.restoring = Some((target, guard, paths)),
            Record::RestoreEnd => self.aftermath.restoring = None,
            Record::Mounted { at_ns, stopped_ns } => {
                let absence = stopped_ns.map(|from_ns| Absence { from_ns, to_ns: at_ns });
                self.inner.absences.extend(absence.filter(|absence| !self.inner.absences.contains(absence)));
                self.aftermath.unclean = true;
                self.aftermath.stopped_ns = None;
            }
            Record::Unmounted { at_ns } => {
                self.undone();
                self.aftermath.unclean = false;
                self.aftermath.stopped_ns = Some(at_ns);
            }
            Record::Sealed { epoch, whole, .. } => self.inner.seals.entry(epoch).or_default().push((address, whole)),
            Record::By { .. } => {}
        }
    }

    /// A later operation was recorded: whatever may have been half done before is done.
    fn undone(&mut self) {
        self.aftermath.replacing = None;
        self.aftermath.moved.clear();
    }
}
