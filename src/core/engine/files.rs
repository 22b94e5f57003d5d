//! Open files: reads and seeks common to live and past nodes.

use std::fs::File;
use std::sync::Arc;

use super::compare::StateComparer;
use super::listing::ListingCache;
use super::past::PastNodes;
use super::past::{PAST_HANDLE, PastHandle, PastNode};
use super::request::NodeId;
use super::request::{Entry, FOR_EVER, Fh, Listed, LookupResult, Seek};
use crate::history::present::Trail;
use crate::live::Live;
use crate::live::{ChangeCtx, Handle, HandleId};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::Child;
use ckptfs_sys::{self as sys, Errno, RequesterIds, Stat, SysResult};

/// An open file of either kind.
pub(super) enum OpenFileRef {
    Live(Arc<Handle>),
    Past(Arc<PastHandle>),
}

/// Limit of nested view directories that a revival restores.
const DEPTH_MAX: u32 = 1000;
/// Descriptors reserved for other uses. Where few are available, directories and segments use a few
/// hundred, see `live::dirs`.
const DESCRIPTORS_RESERVED: u64 = 512;

/// The nodes and open files of views.
pub(super) struct Views {
    pub(super) live: Arc<Live>,
    pub(super) states: Arc<StateComparer>,
    pub(super) past: PastNodes,
    pub(super) kept_listings: ListingCache,
    /// Limit of descriptors of open files.
    descriptors_max: usize,
}

impl Views {
    pub(super) fn new(live: Arc<Live>, states: Arc<StateComparer>) -> Views {
        let (past, kept_listings) = (PastNodes::default(), ListingCache::default());
        Views {
            live,
            states,
            past,
            kept_listings,
            descriptors_max: descriptors_max(sys::nofile()),
        }
    }

    /// Returns EMFILE if the open files have reached their limit of descriptors.
    pub(super) fn check_descriptors(&self) -> SysResult<()> {
        let left = self
            .descriptors_max
            .saturating_sub(self.past.open_handles());
        if self.live.files.holds_fewer_than(left) {
            Ok(())
        } else {
            Err(Errno::EMFILE)
        }
    }

    pub(super) fn open_file(&self, fh: Fh) -> SysResult<OpenFileRef> {
        if fh.0 & PAST_HANDLE != 0 {
            self.past.handle(fh).map(OpenFileRef::Past)
        } else {
            self.live.handles.get(HandleId(fh.0)).map(OpenFileRef::Live)
        }
    }

    /// Returns the attributes of a past node for the kernel.
    pub(super) fn past_stat(&self, node: &PastNode) -> SysResult<Stat> {
        self.check_kept(node)?;
        let attr = self.states.view(node.state()).attr(&node.trail)?;
        Ok(Stat {
            ino: node.id.0,
            ..attr.stat
        })
    }

    pub(super) fn past_entry(&self, node: &PastNode) -> SysResult<Entry> {
        Ok(Entry {
            node: node.id,
            generation: 0,
            stat: self.past_stat(node)?,
            ttl: FOR_EVER,
        })
    }

    /// Looks up a name in a directory of a view, and counts the lookup.
    pub(super) fn past_lookup(&self, dir: &PastNode, name: &Name) -> SysResult<LookupResult> {
        self.check_kept(dir)?;
        match self.states.view(dir.state()).step(&dir.trail, name)? {
            None => Ok(LookupResult::Absent(FOR_EVER)),
            Some((child, trail)) => self.past_found(dir, child, trail).map(LookupResult::Found),
        }
    }

    /// Returns the entry of a listed name in a view, and counts the lookup. Listings of views never
    /// become stale.
    pub(super) fn past_listed(&self, dir: &PastNode, listed: &Listed) -> SysResult<Entry> {
        self.check_kept(dir)?;
        let child = Child {
            slot: Slot(listed.slot),
            kind: listed.kind,
        };
        let trail = dir.trail.step(&Name::new(&listed.name), child.slot);
        self.past_found(dir, child, trail)
    }

    pub(super) fn past_found(
        &self,
        dir: &PastNode,
        child: Child,
        trail: Arc<crate::history::present::Trail>,
    ) -> SysResult<Entry> {
        let node = self.past.learn(dir.checkpoint, dir.door, child, trail, 1)?;
        self.past_entry(&node)
            .inspect_err(|_| self.past.forget(node.id, 1))
    }

    /// Returns a node of a view that the kernel has cached, possibly from an earlier worker.
    pub(super) fn past_node(&self, id: NodeId) -> SysResult<PastNode> {
        match self.past.get(id) {
            Err(Errno::ESTALE) => self.revive(id, 0),
            found => found,
        }
    }

    /// Restores a view node of an earlier worker: its directory first, then its name in that.
    fn revive(&self, id: NodeId, depth: u32) -> SysResult<PastNode> {
        let left = self
            .past
            .left(id)
            .filter(|_| depth < DEPTH_MAX)
            .ok_or(Errno::ESTALE)?;
        let trail = if left.child.slot == Slot::ROOT {
            Trail::root()
        } else {
            let up = match self.past.get(left.up) {
                Err(Errno::ESTALE) => self.revive(left.up, depth + 1)?,
                found => found?,
            };
            let names = self.states.view(up.state()).list(&up.trail)?;
            let (name, _) = names
                .into_iter()
                .find(|(_, child)| *child == left.child)
                .ok_or(Errno::ESTALE)?;
            up.trail.step(&name, left.child.slot)
        };
        let node = self
            .past
            .learn(left.checkpoint, left.door, left.child, trail, 0)?;
        self.past.no_longer_left(id);
        Ok(node)
    }

    /// lseek(2) for data and holes.
    pub(super) fn seek(&self, fh: Fh, offset: u64, seek: Seek) -> SysResult<u64> {
        let find = |file: Option<&File>| match (file, seek) {
            (None, _) => Err(Errno::ENXIO),
            (Some(file), Seek::Data) => sys::seek_data(file, offset),
            (Some(file), Seek::Hole) => sys::seek_hole(file, offset),
        };
        match self.open_file(fh)? {
            OpenFileRef::Live(handle) => self.live.files.with_source(&handle, find),
            OpenFileRef::Past(handle) => {
                let view = self.states.view(handle.state());
                handle.content.with(&view, find)
            }
        }
    }

    /// copy_file_range(2) between two open files; shares extents on filesystems with reflink.
    pub(super) fn copy_range(
        &self,
        change: &ChangeCtx,
        asker: RequesterIds,
        from: (Fh, u64),
        (target, to): (&Handle, u64),
        length: u64,
    ) -> SysResult<u64> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let source = self.open_file(from.0)?;
        // Sharing extents locks the source.
        self.live.busy.await_free(match &source {
            OpenFileRef::Live(source) => source.slot,
            OpenFileRef::Past(source) => source.slot(),
        })?;
        let copy = |source: Option<&File>| {
            let Some(source) = source else { return Ok(0) };
            self.live
                .files
                .change_content(change, target, Some(asker), |file| {
                    let (mut read, mut written) = (from.1, to);
                    sys::copy_file_range(source, &mut read, file, &mut written, length)
                })
        };
        let copied = match source {
            OpenFileRef::Live(source) => self.live.files.with_source(&source, copy)?,
            OpenFileRef::Past(source) => {
                let view = self.states.view(source.state());
                source.content.with(&view, copy)?
            }
        };
        Ok(copied as u64)
    }
}

/// Returns the share of the descriptor limit for open files. The rest is for captures and the
/// cached directories and segments: a client that opens files up to the limit must not cause the
/// changes of others, or a checkpoint, to fail.
fn descriptors_max(all: u64) -> usize {
    usize::try_from(all.saturating_sub(DESCRIPTORS_RESERVED).max(all / 4)).unwrap_or(usize::MAX)
}
