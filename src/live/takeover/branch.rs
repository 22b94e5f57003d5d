//! What a worker that takes over finds again of a branch.
//!
//! Its own inodes are found by a walk, as those of any tree. What is inherited may be a large tree,
//! of which there are many: an inherited inode is found when the kernel asks for it. Where it was in
//! the base is on record, or the parent's kernel was told; each step of the way is verified, by the
//! name there that must lead to this number. Where that does not tell, one walk over all that the
//! branch shows does. What is not there either was taken away: ESTALE.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::inodes::at_place;
use super::super::through::Mark;
use super::Adoption;
use crate::history::present::Present;
use crate::history::view::OpenContent;
use crate::store::ids::{Name, Slot};
use crate::store::record::Place;
use crate::sys::{self, Errno, Kind, Stat, SysResult};

/// Directories above an inode: more than any path has.
const DEPTH_MAX: usize = 1 << 16;

impl Adoption {
    /// Finds every inode that a branch has of its own.
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

    /// The kernel asks for an inode: one that a worker before us told it of, and that is inherited,
    /// is found now. The caller holds no lock. Whatever cannot be found is so for whoever goes on.
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
        // A name that is moved meanwhile would be at neither place.
        let _tree = self.locks.tree.read();
        if self.adopt_by_place(slot) != Ok(true) && self.asks_base.load(Ordering::Acquire) {
            let found = self.adopt_all();
            tracing::info!(slot = slot.0, found, "all that a branch shows was walked");
            self.asks_base.store(false, Ordering::Release);
        }
    }

    /// Finds an inode, and each directory above it, by where it was in the base. `false`: it is not
    /// there.
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

    /// Finds all that the branch shows.
    fn adopt_all(&self) -> usize {
        let (mut open, mut found) = (vec![Slot::ROOT], 0);
        while let Some(parent) = open.pop() {
            // What cannot be listed cannot be asked for either.
            for (name, child) in self.inodes.list(&at_place(parent)).unwrap_or_default() {
                let place = Place { parent, name };
                self.nodes.lock().adopt(child.slot, child.kind, &place);
                found += 1;
                open.extend((child.kind == Kind::Dir).then_some(child.slot));
            }
        }
        found
    }

    /// An inode without a name that a worker before us had is own, if it was in the base.
    pub(super) fn note_dead(&self, slot: Slot, held: &OwnedFd, stat: &Stat) -> SysResult<()> {
        let Some(through) = self.inodes.base().through() else {
            return Ok(());
        };
        if let Some(mark) = Mark::of(&sys::all_xattrs(held)?).filter(|mark| mark.slot == slot) {
            through.note_dead(stat.ino, stat.kind, mark);
        }
        Ok(())
    }

    /// Opens what a handle reads that a worker before us opened.
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
