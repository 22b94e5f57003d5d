//! System calls that may wait for another user's process, and how they are kept from blocking
//! others.
//!
//! The kernel locks an inode during write(2), and on XFS also during read(2). The process doing I/O
//! may fault on its buffer, and another process that serves this memory (a mapping of a file on a
//! FUSE filesystem) can delay it without limit. All other calls that need the inode lock then wait:
//! FICLONE, truncate(2), chmod(2), setxattr(2), and every change of a name of the file. With
//! passthrough an ordinary user can delay the daemon in this way, through an open file
//! ([`NodeTable::may_wait`]). No such call is made unchecked under the freeze lock, the tree lock,
//! or a stripe:
//!
//! - **A capture** is made without any lock, under a **claim**. The content of a claimed file does
//!   not change, because a writer must capture it first. The file was not open for writing, so the
//!   capture is still valid when the locks are acquired again. Large files are captured in the same
//!   way, because copying or writeback takes long.
//! - **A change** is preceded by a probe ([`LockWaits::probe`]): a call on another thread that
//!   acquires the inode lock and changes nothing. After [`WAIT_MAX`] the change fails with EBUSY
//!   and has no effect.
//! - **The cut**, in which all files must represent one instant, also runs on another thread. It is
//!   abandoned after it has waited for [`WAIT_MAX`].
//!
//! An abandoned call remains in the kernel and ends eventually. Its thread then removes the result.
//! Until then the file stays claimed, so that each file has at most one such call. Waiting happens
//! on threads that serve no other requests ([`ckptfs_sys::wait`]).

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::calls::{FileClaim, WAIT_MAX};
use super::capture::Captures;
use super::change::{ChangeCtx, PendingWork};
use super::inodes::{Inodes, NodeRef};
use super::locks::Freeze;
use super::shared_tables::{BlockingCalls, Locks, NodeTable, SharedTables};
use crate::history::timeline::Timeline;
use ckptfs_store::ids::{ObjectId, Slot};
use ckptfs_store::record::Key;
use ckptfs_sys::{self as sys, Access, Errno, Stat, SysResult, wait};

/// How long new changes may be blocked by changes in progress, before a freeze admits them and
/// retries.
const FREEZE_LOCK_WAIT: Duration = Duration::from_millis(250);
/// Pause between two attempts.
const FREEZE_LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Attempts of a freeze.
const FREEZE_LOCK_TRIES: u32 = 12;
/// The capture of a file up to this size takes less time than its handoff to another thread.
const CAPTURED_AT_ONCE_MAX: u64 = 1024 * 1024;

/// Ensures that no thread waits for another user's process while it holds a lock. See the module.
pub struct LockWaits {
    timeline: Arc<Timeline>,
    locks: Arc<Locks>,
    nodes: Arc<NodeTable>,
    calls: Arc<BlockingCalls>,
    inodes: Arc<Inodes>,
    captures: Arc<Captures>,
}

impl LockWaits {
    pub(super) fn new(
        tables: &SharedTables,
        inodes: &Arc<Inodes>,
        captures: &Arc<Captures>,
    ) -> Arc<LockWaits> {
        Arc::new(LockWaits {
            timeline: Arc::clone(&tables.timeline),
            locks: Arc::clone(&tables.locks),
            nodes: Arc::clone(&tables.nodes),
            calls: Arc::clone(&tables.calls),
            inodes: Arc::clone(inodes),
            captures: Arc::clone(captures),
        })
    }

    /// Runs `attempt`. When it returns LATER, does the pending work of `change` without any lock,
    /// and retries. A failed attempt must have no effect.
    pub(super) fn patiently<T>(
        &self,
        change: &ChangeCtx,
        mut attempt: impl FnMut() -> SysResult<T>,
    ) -> SysResult<T> {
        change.begin();
        loop {
            match attempt() {
                Err(Errno::LATER) => match change.take_want() {
                    Some(PendingWork::Capture(slot, provisional)) => {
                        wait::aside(|| self.capture_apart(change, slot, provisional))?
                    }
                    Some(PendingWork::Probe(slot, true)) if self.nodes.is_closed_soon(slot) => {}
                    Some(PendingWork::Probe(slot, _)) => {
                        wait::aside(|| self.probe(slot))?;
                        change.note_probed(slot);
                    }
                    None => return Err(Errno::LATER),
                },
                result => return result,
            }
        }
    }

    /// Called before a change of a file's content. Returns LATER if the file must first be captured
    /// without locks. The caller holds the freeze lock and the file's stripe.
    pub(super) fn capture_first(
        &self,
        change: &ChangeCtx,
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
            return Err(change.wants(PendingWork::Capture(slot, provisional)));
        }
        let stat = stat()?;
        let apart = self.nodes.may_wait(slot) || stat.size > CAPTURED_AT_ONCE_MAX;
        let place = || self.inodes.likeliest_place(slot);
        if apart && !self.captures.is_unseen(slot, &stat, place) {
            Err(change.wants(PendingWork::Capture(slot, provisional)))
        } else {
            Ok(())
        }
    }

    /// Called before a system call that needs the inode lock. Returns LATER if the lock must first
    /// be probed. The caller holds the locks that [`NodeTable::may_wait`] requires.
    pub(super) fn probe_first(&self, change: &ChangeCtx, slot: Slot) -> SysResult<()> {
        self.probed(change, slot, false)
    }

    /// As [`LockWaits::probe_first`], for a change of names, which usually follows the close of the
    /// file. A change of attributes usually happens while the file is open.
    pub(super) fn probe_first_for_name(&self, change: &ChangeCtx, slot: Slot) -> SysResult<()> {
        self.probed(change, slot, true)
    }

    fn probed(&self, change: &ChangeCtx, slot: Slot, closes: bool) -> SysResult<()> {
        if self.locks.is_frozen() {
            return self.probe_frozen(slot);
        }
        if !self.nodes.may_wait_for_reader(slot) || change.has_probed(slot) {
            Ok(())
        } else {
            Err(change.wants(PendingWork::Probe(slot, closes)))
        }
    }

    /// Waits until the inode lock of a file is free, up to `WAIT_MAX`. To be called without locks,
    /// before a system call that needs the inode lock.
    ///
    /// # Errors
    /// EBUSY.
    pub fn await_free(&self, slot: Slot) -> SysResult<()> {
        let change = &ChangeCtx::default();
        self.patiently(change, || {
            let _tree = self.locks.tree.read();
            let _stripe = self.locks.stripe(slot);
            self.probe_first(change, slot)
        })
    }

    /// Waits until the inode lock of a file is free, up to `WAIT_MAX`.
    fn probe(&self, slot: Slot) -> SysResult<()> {
        let claim = self.calls.await_claim(slot, Some(WAIT_MAX))?;
        // If the inode is gone, the change itself fails.
        let Ok(fd) = self.inodes.fd(NodeRef::from(slot)) else {
            return Ok(());
        };
        self.probe_fd(claim, &fd)
            .map_err(|_| self.calls.blame(slot))
    }

    /// Removing a nonexistent extended attribute acquires the inode lock and changes nothing.
    fn probe_fd(&self, claim: FileClaim, fd: &Arc<OwnedFd>) -> SysResult<()> {
        let (fd, began, call) = (Arc::clone(fd), Instant::now(), claim.call());
        let take_lock = move || {
            let _ = sys::removexattr(&fd, b"user.ckptfs.none");
            drop(claim);
        };
        self.calls
            .lend(|| began.elapsed() < WAIT_MAX, take_lock, drop)
            .inspect_err(|_| call.give_up())
    }

    /// Captures the content of a file as [`Captures::capture`] does, but without a lock during the
    /// copy.
    fn capture_apart(&self, change: &ChangeCtx, slot: Slot, provisional: bool) -> SysResult<()> {
        loop {
            let claim = self.calls.await_claim(slot, None)?;
            let file = {
                let _changing = self.locks.changing();
                let _tree = self.locks.tree.read();
                let _stripe = self.locks.stripe(slot);
                if !self.timeline.epochs.needs(&Key::Data(slot)) || self.nodes.is_dead(slot) {
                    return Ok(());
                }
                self.inodes.open_file(slot.into(), Access::READ)?.0
            };
            let epoch = self.timeline.epochs.epoch();
            let kept =
                self.captures
                    .capture_object_in(epoch, slot, &file, sys::stat_fd(&file)?.size);
            let _changing = self.locks.changing();
            let _tree = self.locks.tree.read();
            let _stripe = self.locks.stripe(slot);
            let object = match kept {
                // If the epoch was closed since, its layer may be gone.
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

    /// Records a capture made without locks, in the epoch that is open now. The caller holds the
    /// locks and the claim.
    fn record_apart(
        &self,
        change: &ChangeCtx,
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

    /// As [`LockWaits::await_free`], for a caller that holds the freeze lock for writing.
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

    /// Acquires the freeze lock for writing, which blocks all changes. While long changes are still
    /// in progress, new ones are blocked only briefly.
    ///
    /// # Errors
    /// EBUSY if a change did not end in time; those of the work that precedes the first change.
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
