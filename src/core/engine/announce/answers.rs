//! Replies to the requests of the event thread.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Announcement, Announcer, EventKind};
use crate::engine::request::{Attr, Caller, Entry, Fh, LookupResult, NOTE_VOICE, NodeId, Opened};
use crate::engine::snapdir::{CONTROL, SNAPDIR};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_sys::{self as sys, Errno, Kind, Protection, Stat, SysResult, Time};

/// No event thread exists.
pub(super) const NOBODY: u32 = 0;
/// An event thread exists but has not identified itself yet.
pub(super) const UNKNOWN: u32 = u32::MAX;

/// Set in every dummy inode number. All of these have the bit of control nodes; no control node of
/// another kind has both bits.
const DUMMY: u64 = CONTROL | 1 << 59;
/// Set in the number of a dummy directory.
const DIR: u64 = 1;

/// The handle of every open dummy inode; no other handle has this bit.
const DUMMY_HANDLE: Fh = Fh(1 << 61);

/// The next operation of the event thread.
#[derive(Debug)]
pub(super) struct Expected {
    dir: Slot,
    name: Name,
    node: Option<Slot>,
    what: EventKind,
    /// The kernel has looked up the name.
    asked: bool,
}

/// Returns whether a node is a dummy inode.
pub(in super::super) fn is_dummy(node: NodeId) -> bool {
    node.0 & DUMMY == DUMMY
}

impl Announcer {
    /// Sets the step to which the next requests of the event thread belong.
    pub(super) fn expect(&self, step: &Announcement) {
        *self.expected.lock() = Some(Expected {
            dir: step.dir,
            name: step.name.clone(),
            node: step.node,
            what: step.what,
            asked: false,
        });
    }

    /// Ends the expectation. Returns whether the kernel has looked up the name since
    /// [`Announcer::expect`].
    pub(super) fn expect_nothing(&self) -> bool {
        self.expected
            .lock()
            .take()
            .is_some_and(|expected| expected.asked)
    }

    /// Returns whether a request comes from the event thread, or from that of a dead worker: the
    /// kernel resends its requests, and they must not be executed.
    fn is_event_thread(&self, caller: Caller) -> bool {
        let event_thread = self.event_thread.load(Ordering::Acquire);
        (event_thread != NOBODY && event_thread != UNKNOWN && event_thread == caller.pid)
            || self.is_dead_event_thread(caller)
    }

    fn is_dead_event_thread(&self, caller: Caller) -> bool {
        caller.again && self.dead_voice != NOBODY && self.dead_voice == caller.pid
    }

    /// Returns the expected operation on a name.
    fn expected(&self, dir: NodeId, name: &[u8]) -> Option<(EventKind, Option<Slot>)> {
        let mut expected = self.expected.lock();
        let expected = expected
            .as_mut()
            .filter(|expected| expected.dir.0 == dir.0 && expected.name.as_bytes() == name)?;
        expected.asked = true;
        Some((expected.what, expected.node))
    }

    /// Replies to a LOOKUP that belongs to a step of the event thread.
    pub(in super::super) fn lookup(
        &self,
        caller: Caller,
        dir: NodeId,
        name: &[u8],
    ) -> Option<SysResult<LookupResult>> {
        let event_thread = self.event_thread.load(Ordering::Acquire);
        if event_thread == NOBODY || (event_thread != UNKNOWN && event_thread != caller.pid) {
            return None;
        }
        if self.is_alias(dir, name) {
            return Some(Ok(if self.is_replaced() {
                LookupResult::Found(self.dummy(false))
            } else {
                LookupResult::Absent(Duration::ZERO)
            }));
        }
        let (what, node) = self.expected(dir, name)?;
        if event_thread == UNKNOWN {
            // Only the event thread uses this name. A caller that the kernel does not identify
            // stays unknown.
            if let Some(ledger) = &self.ledger {
                ledger.note(NOTE_VOICE, caller.pid.into());
            }
            self.event_thread.store(
                if caller.pid == 0 { UNKNOWN } else { caller.pid },
                Ordering::Release,
            );
            return Some(Ok(LookupResult::Absent(Duration::ZERO)));
        }
        let there = self.live.inodes.kind_at(Slot(dir.0), &Name::new(name));
        let dummy = match what {
            EventKind::Gone { dir, now } => (there == now.ok_or(Errno::ENOENT)).then_some(dir),
            EventKind::Written => (there == Ok(Kind::File)).then_some(false),
            // The target of the rename of a dummy inode must not exist: the kernel would decrement
            // its link count.
            EventKind::Come(_) | EventKind::Replaced | EventKind::Hello => None,
            EventKind::Dead => {
                return Some(Ok(node
                    .and_then(|node| self.dead(node))
                    .map_or(LookupResult::Absent(Duration::ZERO), LookupResult::Found)));
            }
            EventKind::Content | EventKind::Attributes => return None,
        };
        Some(Ok(dummy
            .map_or(LookupResult::Absent(Duration::ZERO), |dir| {
                LookupResult::Found(self.dummy(dir))
            })))
    }

    /// Replies to UNLINK or RMDIR of the event thread.
    pub(in super::super) fn remove(
        &self,
        caller: Caller,
        dir: NodeId,
        name: &[u8],
    ) -> Option<SysResult<()>> {
        if !self.is_event_thread(caller) {
            return None;
        }
        let is_so = match self.expected(dir, name) {
            Some((EventKind::Gone { now, .. }, _)) => {
                self.live.inodes.kind_at(Slot(dir.0), &Name::new(name)) == now.ok_or(Errno::ENOENT)
            }
            _ => false,
        };
        Some(if is_so { Ok(()) } else { Err(Errno::ENOENT) })
    }

    /// Replies to RENAME of the event thread.
    pub(in super::super) fn rename(
        &self,
        caller: Caller,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
    ) -> Option<SysResult<()>> {
        if !self.is_event_thread(caller) {
            return None;
        }
        let is_so = self.is_alias(from.0, from.1)
            && self.expected(to.0, to.1).is_some()
            && self.is_replaced();
        Some(if is_so { Ok(()) } else { Err(Errno::ENOENT) })
    }

    fn is_alias(&self, dir: NodeId, name: &[u8]) -> bool {
        dir == SNAPDIR && name == self.alias.as_bytes()
    }

    /// Returns whether a replaced name is being announced and does not lead to a directory now.
    fn is_replaced(&self) -> bool {
        let replaced = |expected: &Expected| {
            (expected.what == EventKind::Replaced).then(|| (expected.dir, expected.name.clone()))
        };
        let expected = self.expected.lock().as_ref().and_then(replaced);
        expected.is_some_and(|(dir, name)| {
            self.live
                .inodes
                .kind_at(dir, &name)
                .is_ok_and(|kind| kind != Kind::Dir)
        })
    }

    /// Replies to the creation of a name by the event thread.
    pub(in super::super) fn make(
        &self,
        caller: Caller,
        dir: NodeId,
        name: &[u8],
    ) -> Option<SysResult<Entry>> {
        if !self.is_event_thread(caller) {
            return None;
        }
        let Some((EventKind::Come(kind), _)) = self.expected(dir, name) else {
            return Some(Err(Errno::EEXIST));
        };
        let is_so = self.live.inodes.kind_at(Slot(dir.0), &Name::new(name)) == Ok(kind);
        Some(if is_so {
            Ok(self.dummy(kind == Kind::Dir))
        } else {
            Err(Errno::EEXIST)
        })
    }

    /// Replies to OPEN of a dummy inode or by the event thread. ESTALE makes the kernel repeat the
    /// LOOKUP, which leads the event thread to its dummy inode when the real file is cached.
    pub(in super::super) fn open(&self, caller: Caller, node: NodeId) -> Option<SysResult<Opened>> {
        if self.is_dead_event_thread(caller) {
            // ESTALE would cause a retry.
            return Some(Err(Errno::EIO));
        }
        match (is_dummy(node), self.is_event_thread(caller)) {
            (true, true) => Some(Ok(opened())),
            (true, false) | (false, true) => Some(Err(Errno::ESTALE)),
            (false, false) => None,
        }
    }

    /// Returns whether a SETATTR comes from the event thread; the reply then has the current
    /// attributes.
    pub(in super::super) fn sets_nothing(&self, caller: Caller, node: NodeId) -> bool {
        is_dummy(node) || self.is_event_thread(caller)
    }

    /// Returns an inode without a name that the kernel has cached.
    fn dead(&self, slot: Slot) -> Option<Entry> {
        let (generation, stat) = self.live.nodes.look_up_dead(slot)?;
        Some(Entry {
            node: NodeId(slot.0),
            generation,
            stat: Stat {
                ino: slot.0,
                ..stat
            },
            ttl: Duration::ZERO,
        })
    }

    /// Returns a new dummy inode, with a timeout of zero.
    fn dummy(&self, dir: bool) -> Entry {
        let number = self.dummies.fetch_add(1, Ordering::Relaxed) % (1 << 58);
        let node = NodeId(DUMMY | number << 1 | if dir { DIR } else { 0 });
        Entry {
            node,
            generation: 0,
            stat: stat(node),
            ttl: Duration::ZERO,
        }
    }
}

/// Returns the attributes of a dummy inode.
pub(in super::super) fn attr(node: NodeId) -> Attr {
    Attr {
        stat: stat(node),
        ttl: Duration::ZERO,
    }
}

/// Returns the handle of an open dummy inode: without passthrough or page cache.
pub(in super::super) fn opened() -> Opened {
    Opened {
        fh: DUMMY_HANDLE,
        keep_cache: false,
        direct_io: true,
        no_flush: true,
        passthrough: None,
        by: 0,
    }
}

fn stat(node: NodeId) -> Stat {
    let (uid, gid) = sys::ids();
    let dir = node.0 & DIR != 0;
    let zero = Time::default();
    Stat {
        dev: 0,
        ino: node.0,
        kind: if dir { Kind::Dir } else { Kind::File },
        mode: if dir { 0o700 } else { 0o600 },
        nlink: if dir { 2 } else { 1 },
        uid,
        gid,
        rdev: 0,
        size: 0,
        blocks: 0,
        blksize: 4096,
        atime: zero,
        mtime: zero,
        ctime: zero,
        btime: None,
        protection: Protection::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::past::PAST;
    use crate::engine::snapdir::{SNAPDIR, store_link};

    #[test]
    fn dummies_are_told_from_all_other_nodes() {
        for node in [
            1,
            2,
            (1 << 59) | 131,
            PAST,
            PAST | DUMMY & !CONTROL,
            SNAPDIR.0,
            store_link().0,
            CONTROL | 1 << 60 | 0xff_ffff_ffff_ffff,
        ] {
            assert!(!is_dummy(NodeId(node)), "{node:x}");
        }
        assert!(is_dummy(NodeId(DUMMY)) && is_dummy(NodeId(DUMMY | 7)));
        assert_eq!(stat(NodeId(DUMMY | 6)).kind, Kind::File);
        assert_eq!(stat(NodeId(DUMMY | 7)).kind, Kind::Dir);
    }
}
