//! A view: the tree at a checkpoint, or the current one.
//!
//! A view resolves each key independently: the first undo record after the checkpoint, otherwise
//! the live tree. **A live answer is valid only if no record was made while it was read.** A record
//! always precedes its change, so a second look-up without a result proves that the answer is still
//! the past state. Views take no lock of the live tree and never block a writer.

use std::collections::BTreeSet;
use std::sync::Arc;

mod content;

pub use self::content::{ContentLocation, OpenContent};
use super::dropped::DROPPED;
use super::present::{LiveTree, Trail, at_rest};
use super::state::TreeState;
use super::table::{Answer, Recorded};
use super::timeline::Timeline;
use super::unserved::UnrecordedCheck;
use ckptfs_api::{CheckpointId, Epoch};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{AttrState, Child};
use ckptfs_sys::is_own_xattr;
use ckptfs_sys::{Errno, Kind, Protection, SysResult, Xattrs};

/// Maximum number of changes of one name examined.
const FORMER_MAX: usize = 1000;

/// Known part of a directory.
#[derive(Debug, Default)]
pub struct KnownListing {
    /// Names with known targets, sorted.
    pub names: Vec<(Name, Child)>,
    /// Names with unknown targets.
    pub unknown: Vec<Name>,
    /// Further names may be missing.
    pub partial: bool,
}

/// A view of one state of the tree.
pub struct View<'a> {
    timeline: &'a Timeline,
    present: &'a dyn LiveTree,
    state: TreeState,
}

/// The target of a name, with its trail.
pub type Step = (Child, Arc<Trail>);

impl<'a> View<'a> {
    /// Creates the view of a state.
    pub fn new(timeline: &'a Timeline, present: &'a dyn LiveTree, state: TreeState) -> View<'a> {
        View {
            timeline,
            present,
            state,
        }
    }

    /// Returns the state.
    pub fn state(&self) -> TreeState {
        self.state
    }

    /// Whether both views belong to the same history, so that equal ids denote equal objects.
    pub(super) fn is_beside(&self, other: &View<'_>) -> bool {
        std::ptr::eq(self.timeline, other.timeline)
    }

    fn unserved(&self) -> UnrecordedCheck<'a> {
        UnrecordedCheck {
            timeline: self.timeline,
            present: self.present,
        }
    }

    /// Looks up the history, then the live tree, then the history again unless nothing was recorded
    /// in between. Returns the epoch of the record; `None` for an answer from the live tree.
    ///
    /// A rename of a directory is recorded, then performed, then entered in the tables. In between,
    /// nothing below it can be located.
    fn look<T>(
        &self,
        past: impl Fn() -> Answer<T>,
        live: impl Fn() -> SysResult<T>,
    ) -> SysResult<(Option<Epoch>, T)> {
        let recordings = self.timeline.epochs.recordings();
        if let Some(found) = past()? {
            return Ok((Some(found.epoch), found.before));
        }
        let answer = at_rest(self.present, live);
        if self.timeline.epochs.recordings() == recordings {
            return answer.map(|answer| (None, answer));
        }
        match past()? {
            Some(found) => Ok((Some(found.epoch), found.before)),
            None => answer.map(|answer| (None, answer)),
        }
    }

    /// Whether EIO may mean an unrecorded change or an incomplete checkpoint after a power cut.
    /// Otherwise EIO means a read failure.
    pub fn may_be_unserved(&self) -> bool {
        match self.state {
            TreeState::At(id) => {
                self.timeline.absences.was_absent_after(id)
                    || self.timeline.losses.has_met_unseen(id)
                    || self.timeline.catalogue.is_incomplete(id)
            }
            TreeState::Live => false,
        }
    }

    /// As [`Lookup::entry_at`](super::lookup::Lookup::entry_at), for the directory inode of the
    /// checkpoint.
    fn entry_at(&self, dir: Slot, name: &Name, id: CheckpointId) -> Answer<Option<Child>> {
        let Some(found) = self.timeline.lookup.entry_at(dir, name, id)? else {
            return Ok(None);
        };
        Ok(Some(
            match self.unserved().of_another(dir, id, found.epoch)? {
                Some(epoch) => Recorded {
                    epoch,
                    before: None,
                },
                None => found,
            },
        ))
    }

    /// Converts an unreadable result to `None`: changed without a record, not on disk before a
    /// power cut, dropped by a tier, or damaged. The rest of the view stays readable.
    pub(super) fn told<T>(&self, result: SysResult<T>) -> SysResult<Option<T>> {
        match result {
            Err(Errno::ESTALE) if self.may_be_unserved() => Ok(None),
            Err(Errno::EIO | DROPPED) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Returns the target of a name in a directory.
    ///
    /// # Errors
    /// ESTALE if the directory cannot be located. EIO if the record is damaged. EIO also if the
    /// directory was changed without a record and the target is unknown: it is gone, or was itself
    /// changed then. (A rename changes the ctime of the renamed inode.)
    pub fn child(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<Child>> {
        let (epoch, child) = self.look_up(dir, name)?;
        let TreeState::At(id) = self.state else {
            return Ok(child);
        };
        if self.unserved().changed_unserved(dir, id, epoch)? {
            match child {
                Some(child) => self.unserved().check_served(
                    &dir.step(name, child.slot),
                    child.kind,
                    id,
                    epoch,
                )?,
                None => {
                    self.timeline.losses.meet_unseen(dir.path(), Kind::Dir, id);
                    return Err(Errno::EIO);
                }
            }
        }
        child.map_or(Ok(()), |child| self.check_no_loop(dir, child))?;
        Ok(child)
    }

    /// As [`View::child`], without a check for unrecorded changes of the directory; with the epoch
    /// of the record.
    fn look_up(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<(Option<Epoch>, Option<Child>)> {
        let TreeState::At(id) = self.state else {
            return Ok((
                None,
                at_rest(self.present, || self.present.child(dir, name))?,
            ));
        };
        let live = || match self.present.child(dir, name) {
            // The directory is gone. Its names were removed before, each with a record.
            Err(Errno::ESTALE | Errno::ENOTDIR)
                if self.timeline.lookup.attr_at(dir.slot, id)?.is_some() =>
            {
                Ok(None)
            }
            Ok(Some(_)) if self.unserved().is_another(dir, id)? => Ok(None),
            live => live,
        };
        self.look(|| self.entry_at(dir.slot, name, id), live)
    }

    /// Rejects a past directory that contains itself, in which a walk would not end. Only a forged
    /// one can exist. The live tree cannot have one, and may be queried with trails of the past.
    fn check_no_loop(&self, dir: &Arc<Trail>, child: Child) -> SysResult<()> {
        let TreeState::At(id) = self.state else {
            return Ok(());
        };
        if child.kind != Kind::Dir || !dir.goes_through(child.slot) {
            return Ok(());
        }
        tracing::error!(%id, dir = dir.slot.0, "a directory of the past leads to itself");
        Err(Errno::EIO)
    }

    /// Returns the former targets of a name since a checkpoint, newest first, without the target in
    /// this state. Only the first change between two checkpoints is known. Stops at a deleted
    /// checkpoint.
    ///
    /// # Errors
    /// EIO if a record is damaged.
    pub fn former(&self, dir: Slot, name: &Name, since: CheckpointId) -> SysResult<Vec<Child>> {
        let (mut found, mut at) = (Vec::new(), since);
        while found.len() < FORMER_MAX {
            let recorded = match self.timeline.lookup.entry_at(dir, name, at) {
                Err(Errno::ESTALE) => break,
                recorded => recorded?,
            };
            let Some(recorded) = recorded else { break };
            at = recorded.epoch.checkpoint();
            if matches!(self.state, TreeState::At(id) if at > id) {
                break;
            }
            found.extend(recorded.before);
        }
        found.reverse();
        Ok(found)
    }

    /// Returns the target of a name, with its trail.
    ///
    /// # Errors
    /// As [`View::child`].
    pub fn step(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<Step>> {
        Ok(self
            .child(dir, name)?
            .map(|child| (child, dir.step(name, child.slot))))
    }

    /// As [`View::step`] for several names, with a single check for unrecorded changes of the
    /// directory.
    pub fn steps(&self, dir: &Arc<Trail>, names: &BTreeSet<Name>) -> Vec<SysResult<Option<Step>>> {
        self.steps_told(dir, names)
            .into_iter()
            .map(|(_, step)| step)
            .collect()
    }

    /// As [`View::steps`], with whether the answer came from the live tree, where the name is the
    /// same.
    pub fn steps_told(
        &self,
        dir: &Arc<Trail>,
        names: &BTreeSet<Name>,
    ) -> Vec<(bool, SysResult<Option<Step>>)> {
        let found: Vec<_> = names.iter().map(|name| self.look_up(dir, name)).collect();
        let epochs: BTreeSet<Option<Epoch>> =
            found.iter().flatten().map(|(epoch, _)| *epoch).collect();
        let served = match self.state {
            TreeState::At(id) => epochs
                .into_iter()
                .all(|epoch| self.unserved().changed_unserved(dir, id, epoch) == Ok(false)),
            TreeState::Live => true,
        };
        if !served {
            return names
                .iter()
                .map(|name| (false, self.step(dir, name)))
                .collect();
        }
        let step = |name: &Name, child: Option<Child>| {
            let Some(child) = child else { return Ok(None) };
            self.check_no_loop(dir, child)?;
            Ok(Some((child, dir.step(name, child.slot))))
        };
        let told = names.iter().zip(found);
        told.map(|(name, found)| match found {
            Ok((epoch, child)) => (epoch.is_none() && child.is_some(), step(name, child)),
            Err(errno) => (false, Err(errno)),
        })
        .collect()
    }

    /// Returns all names of a directory, sorted.
    ///
    /// # Errors
    /// As [`View::child`].
    pub fn list(&self, dir: &Arc<Trail>) -> SysResult<Vec<(Name, Child)>> {
        let names = self.list_all(dir)?;
        names
            .iter()
            .try_for_each(|(_, child)| self.check_no_loop(dir, *child))?;
        Ok(names)
    }

    /// As [`View::list`], or the known part of a directory with unrecorded changes of names.
    ///
    /// # Errors
    /// As [`View::child`], except EIO.
    pub fn list_known(&self, dir: &Arc<Trail>) -> SysResult<KnownListing> {
        let whole = self.list(dir);
        let (Err(Errno::EIO), TreeState::At(id)) = (&whole, self.state) else {
            return Ok(KnownListing {
                names: whole?,
                ..KnownListing::default()
            });
        };
        let mut known = KnownListing {
            partial: true,
            ..KnownListing::default()
        };
        let live = at_rest(self.present, || self.present.list(dir))
            .unwrap_or_default()
            .into_iter()
            .map(|(name, _)| name);
        let recorded = self
            .timeline
            .lookup
            .entries_at(dir.slot, id)
            .unwrap_or_default()
            .into_keys();
        let names: BTreeSet<Name> = live.chain(recorded).collect();
        for name in names {
            match self.child(dir, &name) {
                Ok(child) => known.names.extend(child.map(|child| (name, child))),
                Err(Errno::EIO) => known.unknown.push(name),
                Err(Errno::ENOENT | Errno::ESTALE) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(known)
    }

    fn list_all(&self, dir: &Arc<Trail>) -> SysResult<Vec<(Name, Child)>> {
        let TreeState::At(id) = self.state else {
            let mut names = at_rest(self.present, || self.present.list(dir))?;
            names.sort_by(|a, b| a.0.cmp(&b.0));
            return Ok(names);
        };
        // A directory missing from the live tree is listed from records alone: every name was
        // removed, with a record, before the directory.
        let live = at_rest(self.present, || self.present.list(dir));
        let mut recorded = self.timeline.lookup.entries_at(dir.slot, id)?;
        let mut epochs: BTreeSet<Epoch> =
            recorded.values().map(|recorded| recorded.epoch).collect();
        for epoch in epochs.clone() {
            if self.unserved().of_another(dir.slot, id, epoch)?.is_some() {
                epochs.remove(&epoch);
                recorded.retain(|_, recorded| recorded.epoch != epoch);
            }
        }
        let mut names: std::collections::BTreeMap<Name, Child> = match live {
            Ok(_) if self.unserved().is_another(dir, id)? => std::collections::BTreeMap::new(),
            Ok(names) => names.into_iter().collect(),
            Err(Errno::ESTALE | Errno::ENOTDIR)
                if self.timeline.lookup.attr_at(dir.slot, id)?.is_some() =>
            {
                std::collections::BTreeMap::new()
            }
            Err(errno) => return Err(errno),
        };
        for epoch in epochs.into_iter().map(Some).chain(std::iter::once(None)) {
            self.unserved().check_served(dir, Kind::Dir, id, epoch)?;
        }
        for (name, recorded) in recorded {
            match recorded.before {
                Some(child) => names.insert(name, child),
                None => names.remove(&name),
            };
        }
        Ok(names.into_iter().collect())
    }

    /// Returns the attributes, without the flags of chattr(1). For a directory with unrecorded
    /// changes, returns its current attributes.
    ///
    /// # Errors
    /// As [`View::child`].
    pub fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState> {
        let TreeState::At(id) = self.state else {
            return at_rest(self.present, || self.present.attr(node));
        };
        let (epoch, mut attr) = self.look(
            || Ok(self.timeline.lookup.attr_at(node.slot, id)?.map(owned)),
            || self.present.attr(node),
        )?;
        // A directory stays traversable, so that unchanged inodes below it can be reached.
        let (kind, ctime) = (attr.stat.kind, attr.stat.ctime);
        if kind != Kind::Dir
            && (self
                .unserved()
                .changed_unseen(node.slot, ctime, epoch.is_some(), id)?
                || self.timeline.absences.changed_in_absence(ctime, id))
            && !self
                .unserved()
                .only_links_changed(node, (None, &attr.stat), id)
        {
            self.timeline.losses.meet_unseen(node.path(), kind, id);
            return Err(Errno::EIO);
        }
        attr.stat.protection = Protection::None;
        Ok(attr)
    }

    /// Returns the extended attributes, sorted by name, without those of ckptfs. Attributes set
    /// past the mount with such a name do not belong to the tree.
    ///
    /// # Errors
    /// As [`View::child`].
    pub fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs> {
        let mut xattrs = match self.state {
            TreeState::At(id) => {
                let (epoch, xattrs) = self.look(
                    || Ok(self.timeline.lookup.xattrs_at(node.slot, id)?.map(owned)),
                    || self.present.xattrs(node),
                )?;
                self.unserved().check_served(node, Kind::File, id, epoch)?;
                xattrs
            }
            TreeState::Live => at_rest(self.present, || self.present.xattrs(node))?,
        };
        xattrs.retain(|(name, _)| !is_own_xattr(name));
        Ok(xattrs)
    }

    /// Resolves a path; `None` if it does not exist in this state.
    ///
    /// # Errors
    /// As [`View::child`].
    pub fn walk(&self, path: &[u8]) -> SysResult<Option<(Child, Arc<Trail>)>> {
        let mut at = (
            Child {
                slot: Slot::ROOT,
                kind: Kind::Dir,
            },
            Trail::root(),
        );
        for name in path
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
        {
            if at.0.kind != Kind::Dir {
                return Ok(None);
            }
            match self.step(&at.1, &Name::new(name))? {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }
}

fn owned<T: Clone>(recorded: Recorded<Arc<T>>) -> Recorded<T> {
    Recorded {
        epoch: recorded.epoch,
        before: (*recorded.before).clone(),
    }
}
