//! What becomes of a wanted inode: whether it is in the live tree, where it may be taken from, and
//! what is to be done for it.

use std::sync::Arc;

use super::super::api::Times;
use super::planner::Planner;
use crate::history::diff::join;
use crate::history::present::Trail;
use crate::history::same::same_content;
use crate::history::view::Source;
use crate::live::At;
use crate::store::ids::Slot;
use crate::store::record::{Child, Place};
use crate::sys::{Errno, Kind, SysResult};
use crate::tree::has_attrs;
use crate::tree::plan::Content;

impl Planner<'_> {
    /// A place of the live tree is in what stays as it is.
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
                .locate(At::from(at.parent), Kind::Dir)
            {
                Err(Errno::ESTALE) => break,
                up => up?,
            };
        }
        Ok(false)
    }

    /// Where a file has a name that is not to be restored, and that it had at the checkpoint: they
    /// were one file, and will be again. A name that it got since is none: what is written there
    /// would be seen here.
    pub(super) fn name_outside(
        &self,
        child: Child,
        trail: &Arc<Trail>,
    ) -> SysResult<Option<Place>> {
        // What cannot be told of the file stops nothing: it is made anew then.
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
            .locate_all(At::from(trail), child.kind)?
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

    /// The places where the live inode is that are to be restored.
    pub(super) fn names_inside(&self, child: Child, trail: &Arc<Trail>) -> SysResult<Vec<Place>> {
        let mut inside = Vec::new();
        for place in self
            .engine
            .live
            .inodes
            .locate_all(At::from(trail), child.kind)?
        {
            if self.is_below_paths(&place)? {
                inside.push(place);
            }
        }
        Ok(inside)
    }

    /// The live inode has, or may have, names that are not to be restored: what is done to it would
    /// be seen there.
    fn has_names_outside(&self, child: Child, trail: &Arc<Trail>) -> SysResult<bool> {
        if self.paths.is_empty() && self.spared_places.is_empty() {
            return Ok(false);
        }
        let mut inside = 0;
        for place in self
            .engine
            .live
            .inodes
            .locate_all(At::from(trail), child.kind)?
        {
            let restored = self.paths.is_empty() || self.is_below_paths(&place)?;
            inside += u64::from(restored && !self.is_spared(&place)?);
        }
        Ok(u64::from(self.engine.live.inodes.stat(At::from(trail))?.nlink) > inside)
    }

    /// A place of the live tree is at or below one of the paths. What was found out about a
    /// directory is remembered: a deep tree would be climbed for each of its directories.
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
                .locate(At::from(at.parent), Kind::Dir)
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

    /// Everything of an inode can be read, content included.
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
    ) -> SysResult<Content> {
        if !alive {
            return Ok(Content::New);
        }
        if !self.touched.nodes.contains(&child.slot) {
            return Ok(Content::Same);
        }
        self.view.attr(trail)?;
        let other_data = || match self.has_other_data(child, trail) {
            // Its owner may not read what it holds now: it gets what it held.
            Err(Errno::EACCES) => Ok(true),
            other => other,
        };
        if child.kind == Kind::File && other_data()? {
            let in_place = self.view.attr(trail)?.stat.nlink > 1
                && !self.has_names_outside(child, trail)?
                && !self.would_empower(trail)?;
            return Ok(if in_place {
                Content::InPlace
            } else {
                Content::New
            });
        }
        // What it had must be known; what it has may be what its owner may not read.
        self.view.xattrs(trail)?;
        let times = self.plan.times == Times::Kept;
        match has_attrs((&self.view, trail), (&self.now, trail), times) {
            Ok(true) => return Ok(Content::Same),
            Ok(false) | Err(Errno::EACCES) => {}
            Err(errno) => return Err(errno),
        }
        let anew = self.has_names_outside(child, trail)?
            || (child.kind == Kind::File && self.would_empower(trail)?);
        Ok(if anew {
            Content::New
        } else {
            Content::Attributes
        })
    }

    /// The file is to get set-id bits or capabilities back while somebody can write to it, who
    /// could put there what is then run with them.
    fn would_empower(&self, trail: &Arc<Trail>) -> SysResult<bool> {
        let set_id = self.view.attr(trail)?.stat.mode & 0o6000 != 0;
        let powerful = set_id
            || self
                .view
                .xattrs(trail)?
                .iter()
                .any(|(name, _)| name == b"security.capability");
        Ok(powerful && self.engine.live.inodes.may_be_written(At::from(trail)))
    }

    /// The live file has other content than it had. That its content was recorded does not say so:
    /// a file that is open for writing is captured before anything is written to it, and what was
    /// written may have been what was there.
    fn has_other_data(&self, child: Child, trail: &Arc<Trail>) -> SysResult<bool> {
        if !self.touched.data.contains(&child.slot) || self.view.source(child.slot)? == Source::Live
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
