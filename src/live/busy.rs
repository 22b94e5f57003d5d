//! Calls on files that may wait for somebody else's process, and how nobody else comes to wait with
//! them.
//!
//! The kernel locks a file while a process writes to it, and on XFS while one reads it; and a
//! process that is copying from or to its memory meanwhile may wait for as long as another likes
//! that serves the memory (a mapping of a file of a FUSE filesystem). What else wants that lock
//! then waits too: FICLONE, truncate(2), chmod(2), setxattr(2), and whatever changes a name of the
//! file. Where the kernel does the I/O (passthrough) an ordinary user can do that to us, through a
//! file that is open ([`NodeTable::may_wait`]). So nothing of the kind is called under the freeze
//! lock, the tree, or a stripe without a look:
//!
//! - **A capture** is made with no lock at all, under a **claim**: nobody changes the content of a
//!   claimed file, because whoever would must capture it first. The file was open to nobody for
//!   writing, so what was captured is what is recorded when the locks are taken again. The same
//!   goes for any large file, which takes its time to copy or to write back.
//! - **A change** first has the lock of the file taken and given back by a call that changes
//!   nothing ([`Busy::probe`]), on another thread, at most [`WAIT_MAX`] long: then it fails with
//!   EBUSY, and nothing was done.
//! - **The cut**, in which all files must be of one instant, is made on another thread too, and
//!   given up when it has waited for so long.
//!
//! A call that is given up is still there, in the kernel, and ends some day. What it was to make is
//! then removed by whoever made it; until that, its file stays claimed, so that there is one such
//! call for each file. Who waits does so on a thread that others do not depend on
//! ([`crate::sys::wait`]).

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::calls::{Claim, WAIT_MAX};
use super::capture::Captures;
use super::change::{Change, Want};
use super::inodes::{At, Inodes};
use super::locks::Freeze;
use super::tables::{Calls, Locks, NodeTable, Tables};
use crate::history::timeline::Timeline;
use crate::store::ids::{ObjectId, Slot};
use crate::store::record::Key;
use crate::sys::{self, Errno, Open, Stat, SysResult, wait};

/// How long changes that come may wait for those under way, before a freeze lets them pass and
/// tries again.
const FREEZE_LOCK_WAIT: Duration = Duration::from_millis(250);
/// Between two tries.
const FREEZE_LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Tries of a freeze.
const FREEZE_LOCK_TRIES: u32 = 12;
/// A file of at most this many bytes is captured in less time than it takes to hand that to another
/// thread and hear of it.
const CAPTURED_AT_ONCE_MAX: u64 = 1024 * 1024;

/// Has nobody wait, with a lock held, for somebody else's process. See the module.
pub struct Busy {
    timeline: Arc<Timeline>,
    locks: Arc<Locks>,
    nodes: Arc<NodeTable>,
    calls: Arc<Calls>,
    inodes: Arc<Inodes>,
    captures: Arc<Captures>,
}

impl Busy {
    pub(super) fn new(
        tables: &Tables,
        inodes: &Arc<Inodes>,
        captures: &Arc<Captures>,
    ) -> Arc<Busy> {
        Arc::new(Busy {
            timeline: Arc::clone(&tables.timeline),
            locks: Arc::clone(&tables.locks),
            nodes: Arc::clone(&tables.nodes),
            calls: Arc::clone(&tables.calls),
            inodes: Arc::clone(inodes),
            captures: Arc::clone(captures),
        })
    }

    /// Does `attempt`, again whenever something was to be waited for that must be waited for
    /// without a lock. It must not have changed anything then.
    pub(super) fn patiently<T>(
        &self,
        change: &Change,
        mut attempt: impl FnMut() -> SysResult<T>,
    ) -> SysResult<T> {
        change.begin();
        loop {
            match attempt() {
                Err(Errno::LATER) => match change.take_want() {
                    Some(Want::Capture(slot, provisional)) => {
                        wait::aside(|| self.capture_apart(change, slot, provisional))?
                    }
                    Some(Want::Probe(slot, true)) if self.nodes.is_closed_soon(slot) => {}
                    Some(Want::Probe(slot, _)) => {
                        wait::aside(|| self.probe(slot))?;
                        change.note_probed(slot);
                    }
                    None => return Err(Errno::LATER),
                },
                result => return result,
            }
        }
    }

    /// The content of this file is to be changed: LATER, if it must be captured before, and that is
    /// done without any lock. The caller holds the freeze lock and the file's stripe.
    pub(super) fn capture_first(
        &self,
        change: &Change,
        slot: Slot,
        provisional: bool,
        stat: impl FnOnce() -> SysResult<Stat>,
    ) -> SysResult<()> {
        if !self.timeline.epochs.needs(&Key::Data(slot))
            || self.nodes.is_dead(slot)
            || self.locks.is_frozen()
        {
            return Ok(());
        }
        if self.calls.is_claimed(slot) {
            return Err(change.wants(Want::Capture(slot, provisional)));
        }
        let stat = stat()?;
        let apart = self.nodes.may_wait(slot) || stat.size > CAPTURED_AT_ONCE_MAX;
        let place = || self.inodes.likeliest_place(slot);
        if apart && !self.captures.is_unseen(slot, &stat, place) {
            Err(change.wants(Want::Capture(slot, provisional)))
        } else {
            Ok(())
        }
    }

    /// Something is to be called that wants the lock of this file: LATER, if it is to be seen
    /// before that the lock can be had. The caller holds what [`NodeTable::may_wait`] wants.
    pub(super) fn probe_first(&self, change: &Change, slot: Slot) -> SysResult<()> {
        self.probed(change, slot, false)
    }

    /// As [`Busy::probe_first`], for a change of names: whoever changes attributes has the file
    /// open most of the time, whoever changes names has closed it.
    pub(super) fn probe_first_for_name(&self, change: &Change, slot: Slot) -> SysResult<()> {
        self.probed(change, slot, true)
    }

    fn probed(&self, change: &Change, slot: Slot, closes: bool) -> SysResult<()> {
        if self.locks.is_frozen() {
            return self.probe_frozen(slot);
        }
        if !self.nodes.may_wait_for_reader(slot) || change.has_probed(slot) {
            Ok(())
        } else {
            Err(change.wants(Want::Probe(slot, closes)))
        }
    }

    /// Before a call outside of all locks that wants the lock of a file: waits until it can be had,
    /// at most `WAIT_MAX`.
    ///
    /// # Errors
    /// EBUSY.
    pub fn await_free(&self, slot: Slot) -> SysResult<()> {
        let change = &Change::default();
        self.patiently(change, || {
            let _tree = self.locks.tree.read();
            let _stripe = self.locks.stripe(slot);
            self.probe_first(change, slot)
        })
    }

    /// Waits until the lock of a file can be had, at most `WAIT_MAX`.
    fn probe(&self, slot: Slot) -> SysResult<()> {
        let claim = self.calls.await_claim(slot, Some(WAIT_MAX))?;
        // Whoever cannot name it any more fails by itself.
        let Ok(fd) = self.inodes.fd(At::from(slot)) else {
            return Ok(());
        };
        self.probe_fd(claim, &fd)
            .map_err(|_| self.calls.blame(slot))
    }

    /// Removing an attribute that nobody has takes the lock of the file, and changes nothing.
    fn probe_fd(&self, claim: Claim, fd: &Arc<OwnedFd>) -> SysResult<()> {
        let (fd, began, call) = (Arc::clone(fd), Instant::now(), claim.call());
        let take_lock = move || {
            let _ = sys::removexattr(&fd, b"user.ckptfs.none");
            drop(claim);
        };
        self.calls
            .lend(|| began.elapsed() < WAIT_MAX, take_lock, drop)
            .inspect_err(|_| call.give_up())
    }

    /// Makes sure that the content of a file is kept, as [`Captures::capture`] does, but with no
    /// lock held while that takes its time.
    fn capture_apart(&self, change: &Change, slot: Slot, provisional: bool) -> SysResult<()> {
        loop {
            let claim = self.calls.await_claim(slot, None)?;
            let file = {
                let _changing = self.locks.changing();
                let _tree = self.locks.tree.read();
                let _stripe = self.locks.stripe(slot);
                if !self.timeline.epochs.needs(&Key::Data(slot)) || self.nodes.is_dead(slot) {
                    return Ok(());
                }
                self.inodes.open_file(slot.into(), Open::READ)?.0
            };
            let epoch = self.timeline.epochs.epoch();
            let kept =
                self.captures
                    .capture_object_in(epoch, slot, &file, sys::stat_fd(&file)?.size);
            let _changing = self.locks.changing();
            let _tree = self.locks.tree.read();
            let _stripe = self.locks.stripe(slot);
            let object = match kept {
                // The layer of an epoch that was closed meanwhile may be gone.
                Err(_) if self.timeline.epochs.epoch() != epoch => continue,
                kept => kept?,
            };
            let stands = !claim.is_void()
                && self.timeline.epochs.needs(&Key::Data(slot))
                && !self.nodes.is_dead(slot);
            let recorded = if stands {
                self.record_apart(change, slot, &file, object, provisional)
            } else {
                Err(Errno::ESTALE)
            };
            if recorded.is_err() {
                object
                    .into_iter()
                    .for_each(|object| self.captures.drop_object(object));
            }
            if stands {
                return recorded;
            }
        }
    }

    /// Records what was captured apart, in the epoch that is open now. The caller holds the locks
    /// and the claim.
    fn record_apart(
        &self,
        change: &Change,
        slot: Slot,
        file: &File,
        object: Option<ObjectId>,
        provisional: bool,
    ) -> SysResult<()> {
        let (now, before) = (self.timeline.epochs.epoch(), object);
        let object = match object {
            Some(object) if object.epoch != now => Some(self.captures.move_object(object, now)?),
            object => object,
        };
        let recorded = self.captures.record_capture(
            change,
            slot.into(),
            file,
            object,
            &sys::stat_fd(file)?,
            provisional,
        );
        if let (Err(_), Some(moved)) = (&recorded, object.filter(|_| object != before)) {
            self.captures.drop_object(moved);
        }
        recorded
    }

    /// As [`Busy::await_free`], by who is alone in the tree.
    ///
    /// # Errors
    /// EBUSY.
    pub fn probe_frozen(&self, slot: Slot) -> SysResult<()> {
        if self.nodes.may_wait(slot) {
            self.probe(slot)
        } else {
            Ok(())
        }
    }

    /// Takes the freeze lock for writing: every change waits. Changes that come wait a moment at
    /// most for those under way that take long.
    ///
    /// # Errors
    /// EBUSY: one did not end. Those of what comes before the first change.
    pub fn freeze(&self) -> SysResult<Freeze<'_>> {
        self.locks.first_change.pass()?;
        self.calls.forget_way();
        for _ in 0..FREEZE_LOCK_TRIES {
            if let Some(freeze) = self.locks.freeze_within(FREEZE_LOCK_WAIT) {
                return Ok(freeze);
            }
            thread::sleep(FREEZE_LOCK_PAUSE);
        }
        Err(Errno::EBUSY)
    }
}
