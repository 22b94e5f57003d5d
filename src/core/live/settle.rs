//! Which of the hot files nobody can write to any more, and what that leaves to do.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::capture::PARTLY_COPIED_MAX;
use super::capture_ctx::{CaptureCtx, Captures, Durability};
use super::hot::{HotFile, WriterEntry};
use super::nodes::is_same;
use super::shared_tables::{
    BlockingCalls, Handles, HandoverLog, HotFiles, Locks, NodeTable, SharedTables,
};
use crate::history::attribution::NumberedProcess;
use crate::history::timeline::Timeline;
use ckptfs_store::extents::same_bytes;
use ckptfs_store::ids::Slot;
use ckptfs_store::record::DataState;
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Access, Stat};

/// How often, and how long after each other, it is asked at the end whether somebody can still
/// write to a file.
const ENDS_TRIED_MAX: u32 = 10;
const END_WAIT: Duration = Duration::from_millis(2);
/// Files of at most so many bytes are compared at once: extents prove nothing there (small ones
/// have none on btrfs).
const COMPARED_MAX: u64 = 64 * 1024;
/// Files that a release tries to settle besides its own.
const RESETTLED_AT_ONCE: usize = 2;

/// Finds out which hot files nobody can write to any more.
pub struct Settling {
    timeline: Arc<Timeline>,
    locks: Arc<Locks>,
    nodes: Arc<NodeTable>,
    hot: Arc<HotFiles>,
    handles: Arc<Handles>,
    calls: Arc<BlockingCalls>,
    handover: Arc<HandoverLog>,
    durability: Arc<Durability>,
    captures: Arc<Captures>,
    /// Hot files without a writer that were found in use all the same: to be tried again. A leaf.
    unsettled: Mutex<VecDeque<Slot>>,
}

impl Settling {
    pub(super) fn new(tables: &SharedTables, past: &CaptureCtx) -> Arc<Settling> {
        Arc::new(Settling {
            timeline: Arc::clone(&tables.timeline),
            locks: Arc::clone(&tables.locks),
            nodes: Arc::clone(&tables.nodes),
            hot: Arc::clone(&tables.hot),
            handles: Arc::clone(&tables.handles),
            calls: Arc::clone(&tables.calls),
            handover: Arc::clone(&tables.handover),
            durability: Arc::clone(&past.durability),
            captures: Arc::clone(&past.captures),
            unsettled: Mutex::default(),
        })
    }

    /// The last handle for writing is closed: what that leaves to do. The caller holds the freeze
    /// lock and the tree.
    ///
    /// The kernel sends RELEASE before the closing task lets go of the backing file (its fput is
    /// deferred to the way back from close(2)), so the lease of a file that nobody has mapped is
    /// often refused at first. Those wait in `unsettled`, and each release works off a few of them:
    /// a checkpoint must not find them in heaps.
    pub(super) fn settle_released(&self, slot: Slot) {
        let earlier: Vec<Slot> = {
            let mut unsettled = self.unsettled.lock();
            let count = unsettled.len().min(RESETTLED_AT_ONCE);
            unsettled.drain(..count).collect()
        };
        let refused: Vec<Slot> = earlier
            .into_iter()
            .chain([slot])
            .filter(|slot| !self.settle(*slot))
            .collect();
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

    /// Unless the file is open for writing or mapped it is hot no longer, and a capture made ahead
    /// is taken back if nothing changed; `false`: it is mapped, or seems so. The caller holds the
    /// freeze lock and the tree.
    fn settle(&self, slot: Slot) -> bool {
        let _stripe = self.locks.stripe(slot);
        let Some(hot) = self.hot.lock().get(&slot).cloned() else {
            return true;
        };
        // To compare it with what was captured would wait for the call that is under way.
        if self.calls.is_claimed(slot) {
            return false;
        }
        if self
            .nodes
            .lock()
            .get(slot)
            .is_some_and(|node| node.writers() > 0)
        {
            return true;
        }
        // What cannot be mapped is written to by its handles alone: with the last of them closed,
        // nobody does.
        if hot.mappable && !sys::lease_free(&*hot.file).unwrap_or(false) {
            return false;
        }
        self.durability.note_cold(slot);
        self.hot.lock().remove(&slot);
        self.handover.leave_cold(slot);
        self.judge(slot, &hot);
        true
    }

    /// A handle for writing was closed by its opener, or inherited from it: if that was the last
    /// and the file cannot be mapped, or is hot no longer, it tells whether that one has written.
    pub(super) fn opener_left(&self, slot: Slot, by: &NumberedProcess) {
        let mut hot = self.hot.lock();
        let Some(known) = hot.get_mut(&slot) else {
            return;
        };
        let mappable = known.mappable;
        let Some(at) = known
            .openers
            .iter()
            .position(|opener| opener.by.number == by.number)
        else {
            return;
        };
        let Some(opener) = known.openers.get_mut(at) else {
            return;
        };
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

    /// These can write to the file no longer: those since whose opening it has not changed have not
    /// written to it.
    fn judge_openers(&self, slot: Slot, now: &Stat, openers: &[WriterEntry]) {
        openers
            .iter()
            .filter(|opener| opener.left_alone(now))
            .for_each(|opener| self.timeline.processes.touch_left(slot, &opener.by));
    }

    /// Nobody can write to the file any more: a capture made ahead is needed, or it is not.
    fn judge(&self, slot: Slot, hot: &HotFile) {
        let known = self.timeline.epochs.node_now(slot);
        let records = known.data.zip(known.attr);
        if records.is_none() && hot.openers.iter().all(|opener| opener.found.is_none()) {
            return;
        }
        let Ok(now) = sys::stat_fd(&*hot.file) else {
            return;
        };
        let Some((data, attr)) = records else {
            return self.judge_openers(slot, &now, &hot.openers);
        };
        if !data.provisional || !is_same(&attr.stat, &now) || !self.holds(&data, hot) {
            self.timeline.epochs.confirm(slot);
            return self.judge_openers(slot, &now, &hot.openers);
        }
        match self.timeline.epochs.void(slot) {
            // What was carried over from an earlier epoch is that one's.
            Ok(Some(object)) if object.epoch == self.timeline.epochs.epoch() => {
                self.captures.drop_object(object)
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "a capture that was not needed stays"),
        }
    }

    /// The file holds what was captured of it. That its ctime is the same does not prove it where a
    /// store may have moved ctime before the capture and come after it: see the module.
    fn holds(&self, data: &DataState, hot: &HotFile) -> bool {
        let Some(object) = data.object.filter(|_| hot.mappable) else {
            return true;
        };
        let Ok(Some(kept)) = self.timeline.open_object(object) else {
            return false;
        };
        // Where something is dirty its end was copied (`cloned_part`), and to ask for extents would
        // wait for the disk.
        let by_extents = || data.size > PARTLY_COPIED_MAX || sys::dirty_pages(&*hot.file) == Ok(0);
        let shared = data.size > COMPARED_MAX
            && by_extents()
            && sys::shares_extents(&kept, &hot.file).unwrap_or(false);
        shared || data.size <= PARTLY_COPIED_MAX && same_bytes(&kept, &hot.file).unwrap_or(false)
    }

    /// Settles files that were mapped and may be so no longer.
    pub fn settle_mapped(&self) {
        let idle: Vec<Slot> = {
            let nodes = self.nodes.lock();
            self.hot
                .lock()
                .keys()
                .copied()
                .filter(|slot| nodes.get(*slot).is_none_or(|node| node.writers() == 0))
                .collect()
        };
        if idle.is_empty() {
            return;
        }
        let _changing = self.locks.changing();
        let _tree = self.locks.tree.read();
        for slot in idle {
            self.settle(slot);
        }
    }

    /// Nothing is served any more: somebody has a file open or mapped to be written all the same,
    /// and the kernel does the I/O. Every handle is given up.
    pub fn outlived(&self) -> bool {
        self.handles.clear();
        let hot = std::mem::take(&mut *self.hot.lock());
        hot.into_values().any(|HotFile { file, mappable, .. }| {
            let reader = if mappable {
                Ok(Arc::clone(&file))
            } else {
                sys::reopen(&file, Access::READ).map(Arc::new)
            };
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
}
