//! Detection of inodes that were changed without a record, so that a checkpoint cannot show them.
//! See [`absence`](super::absence).

use std::sync::Arc;

use super::present::{LiveTree, Trail};
use super::timeline::Timeline;
use ckptfs_api::{CheckpointId, Epoch};
use ckptfs_store::ids::Slot;
use ckptfs_sys::{Errno, Kind, Stat, SysResult, Time};

/// Compares the times of an inode in the history and in the live tree.
#[derive(Clone, Copy)]
pub(super) struct UnrecordedCheck<'a> {
    pub(super) timeline: &'a Timeline,
    pub(super) present: &'a dyn LiveTree,
}

impl UnrecordedCheck<'_> {
    /// Fails with EIO for an inode changed without a record.
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

    /// Whether an inode was changed without a record after checkpoint `id`, until its record in
    /// `epoch`, or until now.
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
        // With a record of an earlier change, the ctime may be ours.
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
        // An unrecorded change may lie between two recorded ones if an absence does.
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

    /// Whether an inode with these attributes and a ctime later than checkpoint `id` differs from
    /// it only in its links: it gained or lost a name outside of the tree, as package managers do
    /// with shared files. `was` has its attributes at the checkpoint if recorded; otherwise the
    /// baseline may have them.
    ///
    /// Without either, an inode with several names counts as unchanged if its mtime is older than
    /// the checkpoint. Writing to it and restoring its mtime takes two calls and does not happen by
    /// accident. `verify` lists such files.
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

    /// Whether the live inode with this number is a different one than at checkpoint `id`. The
    /// number of an inode removed during an absence can be reused, and its former state is
    /// recorded.
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

    /// Whether the inode with a name recorded in `epoch` is a different one than at checkpoint
    /// `id`, as for [`UnrecordedCheck::is_another`]. If so, returns the epoch in which that was
    /// found; all names of the removed inode were recorded then. An epoch with a name of a
    /// directory also has its attributes.
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

    /// Whether an inode was changed past the mount, judging by its ctime in the first record after
    /// checkpoint `id`, or in the live tree.
    pub(super) fn changed_unseen(
        &self,
        slot: Slot,
        ctime: Time,
        recorded: bool,
        id: CheckpointId,
    ) -> SysResult<bool> {
        // A concurrent record belongs to a change that the live answer may include.
        Ok(self.timeline.absences.changed_unseen(ctime, id)
            && (recorded || self.timeline.lookup.attr_at(slot, id)?.is_none()))
    }
}

/// Whether an inode has the same content, judging by its attributes: only other attributes and
/// links changed.
pub fn has_same_content(was: &Stat, now: &Stat) -> bool {
    let of = |stat: &Stat| (stat.kind, stat.btime, stat.mtime, stat.size);
    of(was) == of(now)
}

fn differs_in_links_only(was: &Stat, now: &Stat) -> bool {
    let rights = |stat: &Stat| (stat.mode, stat.uid, stat.gid, stat.rdev);
    has_same_content(was, now) && rights(was) == rights(now)
}
