//! The tree as it was at a checkpoint, or as it is.
//!
//! A view resolves each key by itself: the first undo record after the checkpoint, else the live
//! tree. **A live answer counts only if no record came while it was read**: a record is always made
//! before its change, so a second look that finds none proves that the answer is still of the past.
//! Views take no lock of the live tree and never make a writer wait.

use std::collections::BTreeSet;
use std::sync::Arc;

mod content;

pub use self::content::{OpenContent, Source};
use super::dropped::DROPPED;
use super::present::{Present, Trail, at_rest};
use super::state::State;
use super::table::{Answer, Recorded};
use super::timeline::Timeline;
use super::unserved::Unserved;
use crate::store::ids::{CheckpointId, Epoch, Name, Slot};
use crate::store::layout::is_own_xattr;
use crate::store::record::{AttrState, Child};
use crate::sys::{Errno, Kind, Protection, SysResult, Xattrs};

/// Changes of one name that are looked through.
const FORMER_MAX: usize = 1000;

/// What can be told of a directory.
#[derive(Debug, Default)]
pub struct Known {
    /// Names that led to this, sorted.
    pub names: Vec<(Name, Child)>,
    /// Names of which it is not known what they led to.
    pub unknown: Vec<Name>,
    /// There may have been others.
    pub partial: bool,
}

/// One state of the tree.
pub struct View<'a> {
    timeline: &'a Timeline,
    present: &'a dyn Present,
    state: State,
}

/// The inode that a name led to, with its trail.
pub type Step = (Child, Arc<Trail>);

impl<'a> View<'a> {
    /// The view of a state.
    pub fn new(timeline: &'a Timeline, present: &'a dyn Present, state: State) -> View<'a> {
        View {
            timeline,
            present,
            state,
        }
    }

    /// Which state it shows.
    pub fn state(&self) -> State {
        self.state
    }

    /// Both are of one history: what has one name in both is one thing.
    pub(super) fn is_beside(&self, other: &View<'_>) -> bool {
        std::ptr::eq(self.timeline, other.timeline)
    }

    fn unserved(&self) -> Unserved<'a> {
        Unserved {
            timeline: self.timeline,
            present: self.present,
        }
    }

    /// Asks history, then the live tree, then history again: unless nothing at all was recorded
    /// meanwhile. Says in which epoch the answer was recorded; `None`: it is of the live tree.
    ///
    /// A rename of a directory above is recorded, then done, then told to the tables: in between
    /// nobody finds what is below it.
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

    /// An answer of EIO may mean that something was changed behind our back, or that the power was
    /// cut before it was on the disk; if not, reading it failed.
    pub fn may_be_unserved(&self) -> bool {
        match self.state {
            State::At(id) => {
                self.timeline.absences.was_absent_after(id)
                    || self.timeline.losses.has_met_unseen(id)
                    || self.timeline.catalogue.is_incomplete(id)
            }
            State::Live => false,
        }
    }

    /// As [`Lookup::entry_at`](super::lookup::Lookup::entry_at), of the directory that it was.
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

    /// What cannot be read cannot be told: `None`. It was changed while nobody served the tree, did
    /// not come to the disk before the power was cut, was dropped by a tier, or is damaged. The
    /// rest can be told all the same.
    pub(super) fn told<T>(&self, result: SysResult<T>) -> SysResult<Option<T>> {
        match result {
            Err(Errno::ESTALE) if self.may_be_unserved() => Ok(None),
            Err(Errno::EIO | DROPPED) => Ok(None),
            other => other.map(Some),
        }
    }

    /// What a name in a directory led to.
    ///
    /// # Errors
    /// ESTALE if the directory cannot be found; EIO if the record is damaged, or if the directory
    /// was changed while nobody served it and what the name led to cannot be told: it is gone, or
    /// was itself changed then. (A rename changes the ctime of what it moves.)
    pub fn child(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<Child>> {
        let (epoch, child) = self.look_up(dir, name)?;
        let State::At(id) = self.state else {
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

    /// As [`View::child`], if the directory was not changed behind our back, and in which epoch
    /// that was recorded.
    fn look_up(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<(Option<Epoch>, Option<Child>)> {
        let State::At(id) = self.state else {
            return Ok((
                None,
                at_rest(self.present, || self.present.child(dir, name))?,
            ));
        };
        let live = || match self.present.child(dir, name) {
            // The directory is gone, and a name that it had was removed with a record before.
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

    /// Refuses a directory of the past that leads to itself, for a walk would never end: there is
    /// none unless somebody forged it. The live tree cannot have one, and may be asked by trails of
    /// the past.
    fn check_no_loop(&self, dir: &Arc<Trail>, child: Child) -> SysResult<()> {
        let State::At(id) = self.state else {
            return Ok(());
        };
        if child.kind != Kind::Dir || !dir.goes_through(child.slot) {
            return Ok(());
        }
        tracing::error!(%id, dir = dir.slot.0, "a directory of the past leads to itself");
        Err(Errno::EIO)
    }

    /// What a name has led to since a checkpoint, before what it leads to in this state, the last
    /// first; of what changed between two checkpoints the first is known. Where one of them is gone
    /// it ends there.
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
            if matches!(self.state, State::At(id) if at > id) {
                break;
            }
            found.extend(recorded.before);
        }
        found.reverse();
        Ok(found)
    }

    /// The inode that a name led to, with its trail.
    ///
    /// # Errors
    /// As [`View::child`].
    pub fn step(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<Step>> {
        Ok(self
            .child(dir, name)?
            .map(|child| (child, dir.step(name, child.slot))))
    }

    /// As [`View::step`] for each of these names. That nobody changed the directory behind our back
    /// is looked at once for all of them.
    pub fn steps(&self, dir: &Arc<Trail>, names: &BTreeSet<Name>) -> Vec<SysResult<Option<Step>>> {
        self.steps_told(dir, names)
            .into_iter()
            .map(|(_, step)| step)
            .collect()
    }

    /// As [`View::steps`], and whether the live tree was asked: what is there now is the same then.
    pub fn steps_told(
        &self,
        dir: &Arc<Trail>,
        names: &BTreeSet<Name>,
    ) -> Vec<(bool, SysResult<Option<Step>>)> {
        let found: Vec<_> = names.iter().map(|name| self.look_up(dir, name)).collect();
        let epochs: BTreeSet<Option<Epoch>> =
            found.iter().flatten().map(|(epoch, _)| *epoch).collect();
        let served = match self.state {
            State::At(id) => epochs
                .into_iter()
                .all(|epoch| self.unserved().changed_unserved(dir, id, epoch) == Ok(false)),
            State::Live => true,
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

    /// Every name of a directory, sorted.
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

    /// As [`View::list`], and as much as can be told where that cannot be told whole: a directory
    /// in which names came or went behind our back.
    ///
    /// # Errors
    /// As [`View::child`], but EIO.
    pub fn list_known(&self, dir: &Arc<Trail>) -> SysResult<Known> {
        let whole = self.list(dir);
        let (Err(Errno::EIO), State::At(id)) = (&whole, self.state) else {
            return Ok(Known {
                names: whole?,
                ..Known::default()
            });
        };
        let mut known = Known {
            partial: true,
            ..Known::default()
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
        let State::At(id) = self.state else {
            let mut names = at_rest(self.present, || self.present.list(dir))?;
            names.sort_by(|a, b| a.0.cmp(&b.0));
            return Ok(names);
        };
        // A directory that is gone from the live tree is listed from records alone: every name was
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

    /// Attributes, without what chattr(1) sets. Those of a directory that was changed while nobody
    /// served it are as they are now.
    ///
    /// # Errors
    /// As [`View::child`].
    pub fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState> {
        let State::At(id) = self.state else {
            return at_rest(self.present, || self.present.attr(node));
        };
        let (epoch, mut attr) = self.look(
            || Ok(self.timeline.lookup.attr_at(node.slot, id)?.map(owned)),
            || self.present.attr(node),
        )?;
        // A directory can be passed through, so that what is below and was not changed can be
        // reached.
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

    /// Extended attributes, sorted by name, without those that are ckptfs's own: whatever somebody
    /// set beside the mount is no part of the tree.
    ///
    /// # Errors
    /// As [`View::child`].
    pub fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs> {
        let mut xattrs = match self.state {
            State::At(id) => {
                let (epoch, xattrs) = self.look(
                    || Ok(self.timeline.lookup.xattrs_at(node.slot, id)?.map(owned)),
                    || self.present.xattrs(node),
                )?;
                self.unserved().check_served(node, Kind::File, id, epoch)?;
                xattrs
            }
            State::Live => at_rest(self.present, || self.present.xattrs(node))?,
        };
        xattrs.retain(|(name, _)| !is_own_xattr(name));
        Ok(xattrs)
    }

    /// Walks a path; `None` if it does not exist in this state.
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
