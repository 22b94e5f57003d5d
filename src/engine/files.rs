//! Open files: what both kinds of nodes, live and past, have in common for reads and seeks.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::past::{PAST_HANDLE, PastHandle, PastNode};
use super::request::{Entry, Fh, Listed, Looked, Seek};
use super::service::FOR_EVER;
use crate::history::view::{State, View};
use crate::live::{Handle, HandleId};
use crate::store::ids::{Name, Slot};
use crate::store::record::Child;
use crate::sys::{self, Asker, Errno, Stat, SysResult};

/// An open file of either kind.
pub(super) enum Open {
    Live(Arc<Handle>),
    Past(Arc<PastHandle>),
}

impl Engine {
    /// The view of a state.
    pub(super) fn view(&self, state: State) -> View<'_> {
        View::new(self.timeline(), &*self.live.inodes, state)
    }

    /// Refuses one more open file (EMFILE) where those that are open have all the descriptors that they may have.
    pub(super) fn check_descriptors(&self) -> SysResult<()> {
        let left = self.descriptors_max.saturating_sub(self.past.open_handles());
        if self.live.files.holds_fewer_than(left) { Ok(()) } else { Err(Errno::EMFILE) }
    }

    pub(super) fn open_file(&self, fh: Fh) -> SysResult<Open> {
        if fh.0 & PAST_HANDLE != 0 { self.past.handle(fh).map(Open::Past) } else { self.live.handles.get(HandleId(fh.0)).map(Open::Live) }
    }

    /// Attributes of a past node as the kernel sees them.
    pub(super) fn past_stat(&self, node: &PastNode) -> SysResult<Stat> {
        self.check_kept(node)?;
        let attr = self.view(node.state()).attr(&node.trail)?;
        Ok(Stat { ino: node.id.0, ..attr.stat })
    }

    pub(super) fn past_entry(&self, node: &PastNode) -> SysResult<Entry> {
        Ok(Entry { node: node.id, generation: 0, stat: self.past_stat(node)?, ttl: FOR_EVER })
    }

    /// Looks a name up in a directory of a view and counts one look-up.
    pub(super) fn past_lookup(&self, dir: &PastNode, name: &Name) -> SysResult<Looked> {
        self.check_kept(dir)?;
        match self.view(dir.state()).step(&dir.trail, name)? {
            None => Ok(Looked::Absent(FOR_EVER)),
            Some((child, trail)) => self.past_found(dir, child, trail).map(Looked::Found),
        }
    }

    /// The entry of a name that the directory of a view listed, and one look-up: a listing of the past stays right for as long as anybody reads it.
    pub(super) fn past_listed(&self, dir: &PastNode, listed: &Listed) -> SysResult<Entry> {
        self.check_kept(dir)?;
        let child = Child { slot: Slot(listed.slot), kind: listed.kind };
        let trail = dir.trail.step(&Name::new(&listed.name), child.slot);
        self.past_found(dir, child, trail)
    }

    pub(super) fn past_found(&self, dir: &PastNode, child: Child, trail: Arc<crate::history::present::Trail>) -> SysResult<Entry> {
        let node = self.past.learn(dir.checkpoint, dir.named, child, trail, 1)?;
        self.past_entry(&node).inspect_err(|_| self.past.forget(node.id, 1))
    }

    /// lseek(2) for data and holes.
    pub(super) fn seek(&self, fh: Fh, offset: u64, seek: Seek) -> SysResult<u64> {
        let find = |file: Option<&File>| match (file, seek) {
            (None, _) => Err(Errno::ENXIO),
            (Some(file), Seek::Data) => sys::seek_data(file, offset),
            (Some(file), Seek::Hole) => sys::seek_hole(file, offset),
        };
        match self.open_file(fh)? {
            Open::Live(handle) => find(Some(&handle.file)),
            Open::Past(handle) => handle.with(&self.view(handle.state()), find),
        }
    }

    /// copy_file_range(2) between two open files; on filesystems with reflink the extents are shared.
    pub(super) fn copy_range(&self, asker: Asker, from: (Fh, u64), (target, to): (&Handle, u64), length: u64) -> SysResult<u64> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let source = self.open_file(from.0)?;
        // Extents are shared with the source locked.
        self.live.busy.await_free(match &source {
            Open::Live(source) => source.slot,
            Open::Past(source) => source.slot(),
        })?;
        let copy = |source: Option<&File>| {
            let Some(source) = source else { return Ok(0) };
            self.live.files.change_content(target, Some(asker), |file| {
                let (mut read, mut written) = (from.1, to);
                sys::copy_file_range(source, &mut read, file, &mut written, length)
            })
        };
        let copied = match source {
            Open::Live(source) => copy(Some(&source.file))?,
            Open::Past(source) => source.with(&self.view(source.state()), copy)?,
        };
        Ok(copied as u64)
    }

    /// How long the kernel may remember these attributes of a live node: for ever, unless it may change without the kernel's knowing.
    pub(super) fn live_ttl(&self, slot: Slot, stat: &Stat) -> Duration {
        self.live.hot.lifetime(slot, stat).unwrap_or(FOR_EVER)
    }
}
