//! The live tree as history reads it.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Live;
use super::find::At;
use crate::history::present::{Present, Trail};
use crate::store::ids::{Name, Slot};
use crate::store::record::{AttrState, Child};
use crate::sys::{self, Errno, Stat, SysResult, Xattrs};

/// Name of the store in the root directory: no part of the tree.
pub const STORE_NAME: &[u8] = b".ckptfs";

impl Present for Live {
    fn child(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<Child>> {
        Ok(self.stat_child(dir.into(), name)?.map(|(child, _)| child))
    }

    fn list(&self, dir: &Arc<Trail>) -> SysResult<Vec<(Name, Child)>> {
        let (entries, _) = self.read_dir(dir.into(), 0, usize::MAX)?;
        let ours = |name: &[u8]| matches!(name, b"." | b"..") || (dir.slot == Slot::ROOT && name == STORE_NAME);
        let names = entries.into_iter().filter(|(entry, _)| !ours(&entry.name));
        Ok(names.map(|(entry, child)| (Name::new(&entry.name), child)).collect())
    }

    fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState> {
        let stat = self.stat(node)?;
        let target = if stat.kind == sys::Kind::Symlink { Some(self.read_link(node)?) } else { None };
        Ok(AttrState { stat, target })
    }

    fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs> {
        sys::all_xattrs(self.fd(node)?)
    }

    fn open(&self, node: &Arc<Trail>) -> SysResult<File> {
        self.open_file(At::from(node), sys::Open::READ).map(|(file, _)| file)
    }

    fn renames(&self) -> Option<u64> {
        let steps = self.rename_steps.load(Ordering::SeqCst);
        steps.is_multiple_of(2).then_some(steps)
    }
}

/// A rename is under way, from its record until all tables know of it.
pub(super) struct Renaming<'a>(&'a AtomicU64);

impl Live {
    /// The caller holds the tree for writing: there is one at a time.
    pub(super) fn begin_rename(&self) -> Renaming<'_> {
        self.rename_steps.fetch_add(1, Ordering::SeqCst);
        Renaming(&self.rename_steps)
    }
}

impl Drop for Renaming<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Live {
    /// As [`Present::child`], with the attributes of what is there.
    ///
    /// # Errors
    /// Those of stat(2), but ENOENT; EXDEV.
    pub fn stat_child(&self, dir: At<'_>, name: &Name) -> SysResult<Option<(Child, Stat)>> {
        if dir.slot == Slot::ROOT && name.as_bytes() == STORE_NAME {
            return Ok(None);
        }
        let fd = self.dir(dir)?;
        match sys::stat_at(&fd, name.as_bytes()) {
            Ok(stat) => Ok(Some((Child { slot: self.slot_of(&stat)?, kind: stat.kind }, stat))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Opens a regular file for reading, where that can be so that its time of access stays.
    ///
    /// # Errors
    /// As [`Present::open`].
    pub fn open_quietly(&self, node: &Arc<Trail>) -> SysResult<File> {
        let quietly = sys::Open { noatime: true, ..sys::Open::READ };
        match self.open_file(At::from(node), quietly) {
            Err(Errno::EPERM) => self.open_file(At::from(node), sys::Open::READ),
            opened => opened,
        }
        .map(|(file, _)| file)
    }

    /// The space that a file takes; `None` if it is not there, is no regular file, or the filesystem cannot tell.
    pub fn allocation(&self, slot: Slot) -> Option<sys::Allocation> {
        let (file, _) = self.open_file(At::from(slot), sys::Open::READ).ok()?;
        sys::allocation(&file).ok()
    }
}
