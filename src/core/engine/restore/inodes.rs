//! Plans the inodes of a restore: whether one is in the live tree, the place that it can be moved
//! from, and the change of its content.

use std::sync::Arc;

use super::planner::Planner;
use crate::history::diff::join;
use crate::history::present::Trail;
use crate::history::same::same_content;
use crate::history::view::ContentLocation;
use crate::live::NodeRef;
use crate::tree::has_attrs;
use crate::tree::plan::InodeAction;
use ckptfs_api::Times;
use ckptfs_store::ids::Slot;
use ckptfs_store::record::{Child, Place};
use ckptfs_sys::{Errno, Kind, SysResult};

impl Planner<'_> {
    /// Returns whether a place of the live tree is at or below an excluded path.
    pub(super) fn is_spared(&self, place: &Place) -> SysResult<bool> {
        let mut at = place.clone();
        while !self.spared_places.is_empty() {
            if self.spared_places.contains(&at) {
                return Ok(true);
            }
            if matches!(at.parent, Slot::ROOT | Slot::STAGING) {
                break;
            }
            at = match self
                .engine
                .live
                .inodes
                .locate(NodeRef::from(at.parent), Kind::Dir)
            {
                Err(Errno::ESTALE) => break,
                up => up?,
            };
        }
        Ok(false)
    }

    /// Returns a place of the file outside the restored paths that it also had at the checkpoint:
    /// the restored name becomes a hard link to it again. Later names do not count, because writes
    /// to them would be visible at the restored name.
    pub(super) fn name_outside(
        &self,
        child: Child,
        trail: &Arc<Trail>,
    ) -> SysResult<Option<Place>> {
        // If the attributes are unknown, the file is created again.
        if self
            .view
            .attr(trail)
            .map_or(true, |attr| attr.stat.nlink < 2)
        {
            return Ok(None);
        }
        for place in self
            .engine
            .live
            .inodes
            .locate_all(NodeRef::from(trail), child.kind)?
        {
            let Some(dir) = self.engine.live.inodes.path_of(place.parent) else {
                continue;
            };
            let then = self.view.walk(&join(&dir, &place.name)).unwrap_or(None);
            if then.is_some_and(|(then, _)| then.slot == child.slot) {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Returns the places of the live inode that are to be restored.
    pub(super) fn names_inside(&self, child: Child, trail: &Arc<Trail>) -> SysResult<Vec<Place>> {
        let mut inside = Vec::new();
        for place in self
            .engine
            .live
            .inodes
            .locate_all(NodeRef::from(trail), child.kind)?
        {
            if self.is_below_paths(&place)? {
                inside.push(place);
            }
        }
        Ok(inside)
    }

    /// Returns whether the live inode has, or may have, names that are not to be restored. Changes
    /// to it would be visible there.
    fn has_names_outside(&self, child: Child, trail: &Arc<Trail>) -> SysResult<bool> {
        if self.paths.is_empty() && self.spared_places.is_empty() {
            return Ok(false);
        }
        let mut inside = 0;
        for place in self
            .engine
            .live
            .inodes
            .locate_all(NodeRef::from(trail), child.kind)?
        {
            let restored = self.paths.is_empty() || self.is_below_paths(&place)?;
            inside += u64::from(restored && !self.is_spared(&place)?);
        }
        Ok(u64::from(self.engine.live.inodes.stat(NodeRef::from(trail))?.nlink) > inside)
    }

    /// Returns whether a place of the live tree is at or below one of the paths. The results for
    /// directories are cached; otherwise each directory of a deep tree would repeat the walk to the
    /// root.
    fn is_below_paths(&self, place: &Place) -> SysResult<bool> {
        if self.exact {
            return Ok(self.roots.contains(place));
        }
        let (mut at, mut climbed) = (place.clone(), Vec::new());
        let below = loop {
            if self.roots.contains(&at) {
                break true;
            }
            if at.parent == Slot::ROOT {
                break false;
            }
            if let Some(known) = self.inside.borrow().get(&at.parent) {
                break *known;
            }
            climbed.push(at.parent);
            at = match self
                .engine
                .live
                .inodes
                .locate(NodeRef::from(at.parent), Kind::Dir)
            {
                Err(Errno::ESTALE) => break false,
                up => up?,
            };
        };
        self.inside
            .borrow_mut()
            .extend(climbed.into_iter().map(|slot| (slot, below)));
        Ok(below)
    }

    /// Checks that the whole inode can be read, including its content.
    pub(super) fn can_be_told(&self, child: Child, trail: &Arc<Trail>) -> SysResult<()> {
        self.view.attr(trail)?;
        if child.kind == Kind::File {
            self.view.check_open(trail)?;
        }
        self.view.xattrs(trail).map(drop)
    }

    pub(super) fn content_known(
        &self,
        child: Child,
        trail: &Arc<Trail>,
        alive: bool,
    ) -> SysResult<InodeAction> {
        if !alive {
            return Ok(InodeAction::New);
        }
        if !self.touched.nodes.contains(&child.slot) {
            return Ok(InodeAction::Same);
        }
        self.view.attr(trail)?;
        let other_data = || match self.has_other_data(child, trail) {
            // Its owner may not read the current content: the past content is restored.
            Err(Errno::EACCES) => Ok(true),
            other => other,
        };
        if child.kind == Kind::File && other_data()? {
            let in_place = self.view.attr(trail)?.stat.nlink > 1
                && !self.has_names_outside(child, trail)?
                && !self.would_empower(trail)?;
            return Ok(if in_place {
                InodeAction::InPlace
            } else {
                InodeAction::New
            });
        }
        // The past state must be known. The current one may be unreadable for its owner.
        self.view.xattrs(trail)?;
        let times = self.plan.times == Times::Kept;
        match has_attrs((&self.view, trail), (&self.now, trail), times) {
            Ok(true) => return Ok(InodeAction::Same),
            Ok(false) | Err(Errno::EACCES) => {}
            Err(errno) => return Err(errno),
        }
        let anew = self.has_names_outside(child, trail)?
            || (child.kind == Kind::File && self.would_empower(trail)?);
        Ok(if anew {
            InodeAction::New
        } else {
            InodeAction::Attributes
        })
    }

    /// Returns whether the file would regain set-id bits or capabilities while a process can write
    /// to it. That process could insert code that runs with these privileges.
    fn would_empower(&self, trail: &Arc<Trail>) -> SysResult<bool> {
        let set_id = self.view.attr(trail)?.stat.mode & 0o6000 != 0;
        let powerful = set_id
            || self
                .view
                .xattrs(trail)?
                .iter()
                .any(|(name, _)| name == b"security.capability");
        Ok(powerful && self.engine.live.inodes.may_be_written(NodeRef::from(trail)))
    }

    /// Returns whether the content of the live file differs. A record of its content does not imply
    /// that: a file is captured when it is opened for writing, and the same bytes may have been
    /// written.
    fn has_other_data(&self, child: Child, trail: &Arc<Trail>) -> SysResult<bool> {
        if !self.touched.data.contains(&child.slot)
            || self.view.source(child.slot)? == ContentLocation::Live
        {
            return Ok(false);
        }
        let (then, now) = (self.view.attr(trail)?, self.now.attr(trail)?);
        let times_differ = self.plan.times == Times::Kept && then.stat.mtime != now.stat.mtime;
        if then.stat.size != now.stat.size || times_differ {
            return Ok(true);
        }
        Ok(!same_content((&self.view, trail), (&self.now, trail))?)
    }
}
