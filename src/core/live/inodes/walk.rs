//! Traversal of the live tree, directory by directory.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{Inodes, is_elsewhere, target_of};
use crate::history::present::Trail;
use ckptfs_store::baseline::{self, BaselineNode, ROOT};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::layout::STORE_NAME;
use ckptfs_store::record::{AttrState, Child};
use ckptfs_sys::{self as sys, Errno, Kind, SysResult};

impl Inodes {
    /// Calls `call` for each file of the tree until it returns `false`. Returns whether the walk
    /// was completed.
    pub(in crate::live) fn each_file(
        &self,
        mut call: impl FnMut(&OwnedFd, &Name, &BaselineNode) -> bool,
    ) -> SysResult<bool> {
        let (mut open, mut above) = (VecDeque::from([Trail::root()]), None);
        while let Some(trail) = open.pop_front() {
            let Some(fd) = self.listed_dir(&trail, &mut above)? else {
                continue;
            };
            for name in names_of(trail.slot, &fd)? {
                let Ok(stat) = sys::stat_at(&fd, name.as_bytes()) else {
                    continue;
                };
                let Ok(slot) = self.slot_of(&stat) else {
                    continue;
                };
                let node = BaselineNode {
                    child: Child {
                        slot,
                        kind: stat.kind,
                    },
                    attr: AttrState { stat, target: None },
                    xattrs: Vec::new(),
                    number: 0,
                };
                if stat.kind == Kind::Dir {
                    open.push_back(trail.step(&name, slot));
                } else if !call(&fd, &name, &node) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Opens a directory for listing; returns `None` if it was moved or removed. `above` caches the
    /// parent directory of the last call. While the tree is served, the calling thread has low
    /// priority and may be preempted; it therefore avoids acquiring the global locks for each
    /// directory.
    pub(in crate::live) fn listed_dir(
        &self,
        trail: &Arc<Trail>,
        above: &mut Option<(Slot, Arc<OwnedFd>)>,
    ) -> SysResult<Option<Arc<OwnedFd>>> {
        let Some(up) = &trail.up else {
            return Ok(Some(Arc::clone(&self.root)));
        };
        if above.as_ref().is_none_or(|(slot, _)| *slot != up.slot) {
            *above = self.dir(up).ok().map(|fd| (up.slot, fd));
        }
        if let Some((_, above)) = above
            && let Ok(fd) = sys::open_dir_at(above, trail.name.as_bytes())
            && self.slot_of(&sys::stat_fd(&fd)?) == Ok(trail.slot)
        {
            return Ok(Some(Arc::new(fd)));
        }
        match self.dir(trail) {
            Err(errno) if is_elsewhere(errno) => {
                self.timeline.baseline.note_missed(up.slot, &trail.name);
                Ok(None)
            }
            fd => fd.map(Some),
        }
    }

    /// Returns the node at a name.
    pub(in crate::live) fn node_at(&self, dir: &OwnedFd, name: &Name) -> SysResult<BaselineNode> {
        let stat = sys::stat_at(dir, name.as_bytes())?;
        let child = Child {
            slot: self.slot_of(&stat)?,
            kind: stat.kind,
        };
        let target = target_of(&stat, dir, name)?;
        let xattrs = sys::all_xattrs_at(dir, name.as_bytes())?;
        if !baseline::fits(&xattrs) {
            return Err(Errno::E2BIG);
        }
        Ok(BaselineNode {
            child,
            attr: AttrState { stat, target },
            xattrs,
            number: 0,
        })
    }

    pub(in crate::live) fn root_node(&self) -> SysResult<BaselineNode> {
        Ok(BaselineNode {
            child: Child {
                slot: Slot::ROOT,
                kind: Kind::Dir,
            },
            attr: AttrState {
                stat: sys::stat_fd(&self.root)?,
                target: None,
            },
            xattrs: sys::all_xattrs(&self.root)?,
            number: ROOT,
        })
    }

    /// Marks a directory that is about to be listed if its changes make no records. The tree lock
    /// is acquired briefly, so that a concurrent mkdir has recorded the directory as born.
    pub(in crate::live) fn note_born(&self, dir: Slot) {
        drop(self.locks.tree.read());
        if self.timeline.epochs.is_born(dir) {
            self.timeline.baseline.note_unsure(dir);
        }
    }
}

/// Returns the names of a directory that are part of the tree, sorted.
pub(in crate::live) fn names_of(slot: Slot, fd: &OwnedFd) -> SysResult<Vec<Name>> {
    let names = sys::list_dir(fd)?.into_iter().map(|entry| entry.name);
    let mut names: Vec<Name> = names
        .filter(|name| slot != Slot::ROOT || name != STORE_NAME.as_bytes())
        .map(|name| Name::new(&name))
        .collect();
    names.sort_unstable();
    Ok(names)
}
