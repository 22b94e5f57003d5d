//! Takeover of a branch.
//!
//! Own inodes are found by a walk, as for any tree. The inherited tree may be large and shared by
//! many branches, so an inherited inode is found only when the kernel refers to it. Its place in
//! the base is recorded, or known from the parent's node table. Each step of that path is verified
//! by the inode number. If this fails, one walk over the whole visible tree follows. An inode that
//! is not found has been removed: ESTALE.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::branch_state::OriginMark;
use super::super::inodes::at_place;
use super::Adoption;
use crate::history::present::LiveTree;
use crate::history::view::OpenContent;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::Place;
use ckptfs_sys::{self as sys, Errno, Kind, Stat, SysResult};

/// Limit of path depth, above that of any real path.
const DEPTH_MAX: usize = 1 << 16;

impl Adoption {
    /// Adopts every own inode of a branch, and returns their number.
    pub(super) fn adopt_own(&self, is_ours: impl Fn(&[u8]) -> bool) -> SysResult<usize> {
        let (mut open, mut found) = (vec![Slot::ROOT], 0);
        while let Some(dir) = open.pop() {
            let names = match self.inodes.base().own_names(dir.into()) {
                Err(errno) if dir == Slot::ROOT => return Err(errno),
                names => names.unwrap_or_default(),
            };
            let mut nodes = self.nodes.lock();
            for (name, child) in names {
                let Some(child) = child.filter(|_| dir != Slot::ROOT || !is_ours(&name)) else {
                    continue;
                };
                let (parent, name) = (dir, Name::new(&name));
                nodes.adopt(child.slot, child.kind, &Place { parent, name });
                found += 1;
                open.extend((child.kind == Kind::Dir).then_some(child.slot));
            }
        }
        self.asks_base.store(true, Ordering::Release);
        Ok(found)
    }

    /// Adopts an inherited inode that the kernel refers to because of a previous worker. The caller
    /// holds no lock. Failures are left to the operation that follows.
    pub fn meet(&self, slot: Slot) {
        if !self.asks_base.load(Ordering::Acquire) {
            return;
        }
        let Some(through) = self.inodes.base().through() else {
            return;
        };
        if through.is_born(slot) || self.nodes.lock().get(slot).is_some() {
            return;
        }
        // During a concurrent rename the name is not at either place.
        let _tree = self.locks.tree.read();
        if self.adopt_by_place(slot) != Ok(true) && self.asks_base.load(Ordering::Acquire) {
            let found = self.adopt_all();
            tracing::info!(slot = slot.0, found, "all that a branch shows was walked");
            self.asks_base.store(false, Ordering::Release);
        }
    }

    /// Adopts an inode and each directory above it by their places in the base. Returns `false` if
    /// one is not there.
    fn adopt_by_place(&self, slot: Slot) -> SysResult<bool> {
        let base = self.inodes.base();
        let Some(through) = base.through() else {
            return Ok(false);
        };
        let (mut steps, mut at) = (Vec::new(), slot);
        while at != Slot::ROOT && self.nodes.lock().get(at).is_none() {
            let place = through.base.place(at);
            let Some(place) = place.filter(|_| steps.len() < DEPTH_MAX) else {
                return Ok(false);
            };
            steps.push((at, place.clone()));
            at = place.parent;
        }
        for (slot, place) in steps.into_iter().rev() {
            match base.child_through(place.parent.into(), &place.name)? {
                Some(child) if child.slot == slot => {
                    self.nodes.lock().adopt(slot, child.kind, &place);
                }
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Adopts all visible inodes of the branch, and returns their number.
    fn adopt_all(&self) -> usize {
        let (mut open, mut found) = (vec![Slot::ROOT], 0);
        while let Some(parent) = open.pop() {
            // The kernel cannot look up names in a directory that cannot be listed.
            for (name, child) in self.inodes.list(&at_place(parent)).unwrap_or_default() {
                let place = Place { parent, name };
                self.nodes.lock().adopt(child.slot, child.kind, &place);
                found += 1;
                open.extend((child.kind == Kind::Dir).then_some(child.slot));
            }
        }
        found
    }

    /// Records an adopted inode without names as own, if it has a mark.
    pub(super) fn note_dead(&self, slot: Slot, held: &OwnedFd, stat: &Stat) -> SysResult<()> {
        let Some(through) = self.inodes.base().through() else {
            return Ok(());
        };
        if let Some(mark) = OriginMark::of(&sys::all_xattrs(held)?).filter(|mark| mark.slot == slot)
        {
            through.note_dead(stat.ino, stat.kind, mark);
        }
        Ok(())
    }

    /// Opens the content of an inherited file for a handle of a previous worker.
    pub(super) fn open_inherited(&self, slot: Slot) -> SysResult<(Arc<File>, OpenContent)> {
        let base = self.inodes.base();
        let (content, _) = base.open_content(slot.into())?.ok_or(Errno::ESTALE)?;
        let file = match content.file() {
            Some(file) => file,
            None => Arc::new(base.empty_file()?),
        };
        Ok((file, content))
    }
}
