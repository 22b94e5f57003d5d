//! Whether an inode is, or was, what a checkpoint shows: it is not if it was changed behind our
//! back. See [`absence`](super::absence).

use std::sync::Arc;

use super::present::{Present, Trail};
use super::timeline::Timeline;
use crate::store::ids::{CheckpointId, Epoch, Slot};
use crate::sys::{Errno, Kind, Stat, SysResult, Time};

/// Looks at what history and the live tree say of an inode's times.
#[derive(Clone, Copy)]
pub(super) struct Unserved<'a> {
    pub(super) timeline: &'a Timeline,
    pub(super) present: &'a dyn Present,
}

impl Unserved<'_> {
    /// Refuses what was changed behind our back.
    pub(super) fn check_served(
        &self,
        owner: &Arc<Trail>,
        kind: Kind,
        id: CheckpointId,
        epoch: Option<Epoch>,
    ) -> SysResult<()> {
        if self.changed_unserved(owner, id, epoch)? {
            self.timeline.losses.meet_unseen(owner.path(), kind, id);
            return Err(Errno::EIO);
        }
        Ok(())
    }

    /// Whether an inode was changed behind our back, after checkpoint `id`: as it was when it was
    /// recorded in `epoch`, or as it is.
    pub(super) fn changed_unserved(
        &self,
        owner: &Arc<Trail>,
        id: CheckpointId,
        epoch: Option<Epoch>,
    ) -> SysResult<bool> {
        let first = self.timeline.lookup.attr_at(owner.slot, id)?;
        if epoch.is_none() && self.is_another(owner, id)? {
            return Ok(false);
        }
        // With a record of an earlier change it may be ours.
        let last = match (&first, epoch) {
            (None, None) => self.present.attr(owner).ok().map(|attr| attr.stat),
            (Some(attr), Some(epoch)) if attr.epoch == epoch => Some(attr.before.stat),
            _ => None,
        };
        if let Some(stat) = last
            && self.changed_unseen(owner.slot, stat.ctime, first.is_some(), id)?
            && !self.only_links_changed(owner, (None, &stat), id)
        {
            return Ok(true);
        }
        if !self.timeline.absences.was_absent_after(id) {
            return Ok(false);
        }
        // Between two changes of ours may lie one that nobody recorded, if there was a time in
        // which it could.
        let was = first.as_ref().map(|attr| attr.before.stat);
        let mut changed = first.filter(|_| self.timeline.absences.may_have_unseen(id));
        while let Some(attr) = changed.filter(|attr| epoch.is_none_or(|epoch| attr.epoch <= epoch))
        {
            if self
                .timeline
                .absences
                .changed_untold(attr.before.stat.ctime, id)
            {
                return Ok(true);
            }
            changed = self
                .timeline
                .lookup
                .attr_since(owner.slot, attr.epoch.next())?;
        }
        let recorded = match epoch {
            Some(epoch) => self.timeline.lookup.attr_since(owner.slot, epoch)?,
            None => None,
        };
        let stat = match recorded {
            Some(attr) => attr.before.stat,
            None => match self.present.attr(owner) {
                Ok(attr) => attr.stat,
                Err(Errno::ESTALE | Errno::ENOENT) => return Ok(false),
                Err(errno) => return Err(errno),
            },
        };
        Ok(self.timeline.absences.changed_in_absence(stat.ctime, id)
            && !self.only_links_changed(owner, (was.as_ref(), &stat), id))
    }

    /// Whether an inode with these attributes, whose time of change is later than checkpoint `id`,
    /// is as the checkpoint has it but for its links: it got or lost a name outside of the tree, as
    /// package managers do with files that projects share. `was`: its attributes at the checkpoint,
    /// if they are on record; else the baseline may have them.
    ///
    /// Where neither has them, an inode with several names counts as unchanged if it was not
    /// modified since: to give content of then another time of modification, and the old one back,
    /// takes two calls and is nothing that happens by itself. `verify` names what was accepted so.
    pub(super) fn only_links_changed(
        &self,
        owner: &Arc<Trail>,
        (was, now): (Option<&Stat>, &Stat),
        id: CheckpointId,
    ) -> bool {
        let Some(created_ns) = self.timeline.catalogue.created_ns(id) else {
            return false;
        };
        if now.kind == Kind::Dir || now.mtime.nanoseconds() >= created_ns {
            return false;
        }
        let accepted = match was {
            Some(was) => has_same_content(was, now),
            None => self.only_links_differ(owner, now, created_ns),
        };
        if accepted {
            self.timeline.losses.accept(owner.path(), id);
        }
        accepted
    }

    fn only_links_differ(&self, owner: &Arc<Trail>, now: &Stat, created_ns: i64) -> bool {
        let written = owner.up.as_ref().and_then(|up| {
            let node = self.timeline.written.at(up.slot, &owner.name)?;
            let stat = node.attr.stat;
            let is_it = node.child.slot == owner.slot && stat.btime == now.btime;
            (is_it && stat.mtime == now.mtime && stat.ctime.nanoseconds() <= created_ns)
                .then_some(stat)
        });
        written.map_or(now.nlink > 1, |was| differs_in_links_only(&was, now))
    }

    /// The live inode with this number is another than it was at checkpoint `id`: what is removed
    /// while nothing is mounted gives its number away, and what it held is on record.
    pub(super) fn is_another(&self, owner: &Arc<Trail>, id: CheckpointId) -> SysResult<bool> {
        if !self.timeline.absences.was_absent_after(id) {
            return Ok(false);
        }
        let Some(then) = self.timeline.lookup.attr_at(owner.slot, id)? else {
            return Ok(false);
        };
        let now = self.present.attr(owner).ok().and_then(|now| now.stat.btime);
        Ok(then
            .before
            .stat
            .btime
            .zip(now)
            .is_some_and(|(then, now)| then != now))
    }

    /// The inode of which a name was recorded in this epoch is another than it was at checkpoint
    /// `id`, as for [`Unserved::is_another`]: all names of the one that is gone were recorded when
    /// that was found. In which epoch that was. An epoch that has a name of a directory has its
    /// attributes.
    pub(super) fn of_another(
        &self,
        dir: Slot,
        id: CheckpointId,
        epoch: Epoch,
    ) -> SysResult<Option<Epoch>> {
        if !self.timeline.absences.was_absent_after(id) {
            return Ok(None);
        }
        let (first, then) = (
            self.timeline.lookup.attr_at(dir, id)?,
            self.timeline.lookup.attr_since(dir, epoch)?,
        );
        let (Some(first), Some(then)) = (first, then) else {
            return Ok(None);
        };
        let differ = first
            .before
            .stat
            .btime
            .zip(then.before.stat.btime)
            .is_some_and(|(first, then)| first != then);
        Ok(differ.then_some(first.epoch))
    }

    /// Whether it was changed past the mount before it had this ctime, which is of its first record
    /// after checkpoint `id`, or of the live tree.
    pub(super) fn changed_unseen(
        &self,
        slot: Slot,
        ctime: Time,
        recorded: bool,
        id: CheckpointId,
    ) -> SysResult<bool> {
        // A record that came meanwhile is of a change that the answer may show.
        Ok(self.timeline.absences.changed_unseen(ctime, id)
            && (recorded || self.timeline.lookup.attr_at(slot, id)?.is_none()))
    }
}

/// Whether an inode has the same content, as far as its attributes show: only other attributes and
/// links have changed.
pub fn has_same_content(was: &Stat, now: &Stat) -> bool {
    let of = |stat: &Stat| (stat.kind, stat.btime, stat.mtime, stat.size);
    of(was) == of(now)
}

fn differs_in_links_only(was: &Stat, now: &Stat) -> bool {
    let rights = |stat: &Stat| (stat.mode, stat.uid, stat.gid, stat.rdev);
    has_same_content(was, now) && rights(was) == rights(now)
}
