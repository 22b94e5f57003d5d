//! States by the names that people give them, and what differs between two.

use std::collections::HashMap;
use std::sync::Arc;

use super::api::{Change, ChangeKind, StateName, TreePath, VerbError, VerbResult, Why};
use super::error;
use crate::history::diff::{Comparison, Difference, Differs, ordered};
use crate::history::present::Present;
use crate::history::select::Unselected;
use crate::history::state::State;
use crate::history::touched::Touched;
use crate::history::view::View;
use crate::live::Live;
use crate::store::ids::CheckpointId;
use crate::store::record::Kept;
use crate::sys::lock::Mutex;
use crate::sys::{Errno, Kind, SysResult};

/// Times that a comparison with the live tree is tried again when the tree changes under it.
const COMPARE_TRIES: u32 = 3;

/// States of the tree, and what differs between two.
pub(super) struct States {
    pub(super) live: Arc<Live>,
    /// What was changed while nobody served the tree, by checkpoint, as far as it was asked for. A
    /// leaf.
    pub(super) unserved: Mutex<HashMap<CheckpointId, Arc<Vec<Change>>>>,
}

impl States {
    pub(super) fn new(live: Arc<Live>) -> States {
        States {
            live,
            unserved: Mutex::default(),
        }
    }

    /// What a person calls a checkpoint by.
    pub(super) fn state_names(&self) -> Vec<String> {
        let catalogue = &self.timeline().catalogue;
        let ids = catalogue.checkpoint_ids().into_iter();
        let tags = catalogue.tags().into_iter();
        let mut names: Vec<String> = ids
            .map(|id| id.to_string())
            .chain(tags.map(|(tag, _)| tag))
            .collect();
        if !catalogue.newest(1, |kept| kept.reason.is_auto()).is_empty() {
            names.push("auto".into());
        }
        if catalogue.latest().is_some() {
            names.push("latest".into());
        }
        names
    }

    pub(super) fn state(&self, name: &StateName) -> VerbResult<State> {
        self.timeline()
            .catalogue
            .select(&name.0)
            .map_err(|why| match why {
                Unselected::Unknown => self.no_checkpoint(&name.0),
                why => error::unselected(&name.0, why, &self.state_names()),
            })
    }

    /// The checkpoint that is meant.
    pub(super) fn checkpoint_id(&self, name: &StateName) -> VerbResult<CheckpointId> {
        self.is_checkpoint(name, self.state(name)?)
    }

    /// The checkpoint that is meant, as it is kept.
    pub(super) fn checkpoint(&self, name: &StateName) -> VerbResult<Kept> {
        let kept = self
            .timeline()
            .catalogue
            .checkpoint(self.checkpoint_id(name)?);
        kept.ok_or_else(|| error::unknown_state(&name.0, &self.state_names()))
    }

    /// As [`States::checkpoint_id`], for what changes or deletes something: the beginning of a tag
    /// is not enough.
    pub(super) fn whole_id(&self, name: &StateName) -> VerbResult<CheckpointId> {
        match self.timeline().catalogue.select_whole(&name.0) {
            Ok(state) => self.is_checkpoint(name, state),
            Err(why @ Unselected::Beginning(_)) => Err(error::unselected(&name.0, why, &[])),
            Err(_) => self.checkpoint_id(name),
        }
    }

    fn is_checkpoint(&self, name: &StateName, state: State) -> VerbResult<CheckpointId> {
        match state {
            State::At(id) => Ok(id),
            State::Live => Err(error::unknown_state(&name.0, &self.state_names())),
        }
    }

    /// What differs from `from` to `to`, below `path`.
    pub(super) fn compare(&self, from: State, to: State, path: &[u8]) -> SysResult<Vec<Change>> {
        let (older, newer, _) = ordered(from, to);
        let State::At(after) = older else {
            return Ok(Vec::new());
        };
        if older == newer {
            return Ok(Vec::new());
        }
        self.compare_touched(
            &*self.live.inodes,
            (from, to),
            path,
            &self.touched(after, newer.checkpoint())?,
            true,
        )
    }

    /// As [`States::compare`] of the whole tree, and what cannot be told because it was changed
    /// behind our back.
    pub(super) fn compare_all(&self, from: State, to: State) -> SysResult<Vec<Change>> {
        let mut changes = self.compare(from, to, b"")?;
        changes.extend(self.unseen_between(from, to)?);
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        changes.dedup_by(|a, b| a.path == b.path);
        Ok(changes)
    }

    /// What was recorded after a checkpoint, with every name of the inodes in it.
    pub(super) fn touched(
        &self,
        after: CheckpointId,
        upto: Option<CheckpointId>,
    ) -> SysResult<Touched> {
        let mut touched = self.timeline().touched(after, upto)?;
        touched.add_unseen_links(self.timeline(), &self.view(State::At(after)))?;
        Ok(touched)
    }

    /// As [`States::compare`], where it is known what was recorded between the two. `present`: how
    /// the live tree is looked at; `times`: a file of another time differs.
    pub(super) fn compare_touched(
        &self,
        present: &dyn Present,
        (from, to): (State, State),
        path: &[u8],
        touched: &Touched,
        times: bool,
    ) -> SysResult<Vec<Change>> {
        let (older, newer, backwards) = ordered(from, to);
        let found = self.differs(present, (older, newer), path, touched, times)?;
        let mut changes: Vec<Change> = found
            .into_iter()
            .map(|differs| change(differs, backwards))
            .collect();
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(changes)
    }

    fn differs(
        &self,
        present: &dyn Present,
        (older, newer): (State, State),
        path: &[u8],
        touched: &Touched,
        times: bool,
    ) -> SysResult<Vec<Differs>> {
        let view = |state| View::new(self.timeline(), present, state);
        let comparison = Comparison {
            from: view(older),
            to: view(newer),
            touched,
            times,
        };
        let mut tries = 0;
        loop {
            match comparison.below(path) {
                Err(Errno::ESTALE | Errno::ENOENT) if tries < COMPARE_TRIES => tries += 1,
                other => return other,
            }
        }
    }

    /// What differs from a checkpoint to the live tree, with the inodes of both, sorted by path. What
    /// was changed behind our back is not in it ([`States::unseen_between`]).
    pub(super) fn differs_since(&self, since: CheckpointId) -> SysResult<Vec<Differs>> {
        let touched = self.touched(since, None)?;
        let states = (State::At(since), State::Live);
        self.differs(&*self.live.inodes, states, b"", &touched, true)
    }

    /// The view of a state.
    pub(super) fn view(&self, state: State) -> View<'_> {
        View::new(self.timeline(), &*self.live.inodes, state)
    }

    /// What to say of a checkpoint that nobody sees.
    pub(super) fn no_checkpoint(&self, name: &str) -> VerbError {
        let catalogue = &self.timeline().catalogue;
        let id = name.parse().ok().map(CheckpointId);
        match id.filter(|id| catalogue.hidden_checkpoint(*id).is_some()) {
            Some(id) => error::hidden(id),
            None => error::unknown_state(name, &self.state_names()),
        }
    }

    /// The size of a path, if it is a file in that state and known.
    pub(super) fn size_of(&self, state: State, path: &TreePath) -> Option<u64> {
        let view = self.view(state);
        let (child, trail) = view.walk(&path.0).ok()??;
        (child.kind == Kind::File)
            .then(|| view.attr(&trail).ok())
            .flatten()
            .map(|attr| attr.stat.size)
    }
}

pub(super) fn change(differs: Differs, backwards: bool) -> Change {
    let kind = differs.kind;
    let (path, change, from) = match (differs.how, backwards) {
        (Difference::Added, false) | (Difference::Deleted, true) => {
            (differs.path, ChangeKind::Added, None)
        }
        (Difference::Deleted, false) | (Difference::Added, true) => {
            (differs.path, ChangeKind::Deleted, None)
        }
        (Difference::Modified, _) => (differs.path, ChangeKind::Modified, None),
        (Difference::TypeChanged, _) => (differs.path, ChangeKind::TypeChanged, None),
        (Difference::Renamed(from), false) => {
            (differs.path, ChangeKind::Renamed, Some(TreePath(from)))
        }
        (Difference::Renamed(from), true) => {
            (from, ChangeKind::Renamed, Some(TreePath(differs.path)))
        }
        (Difference::Unknown, _) => return Change::unknown(differs.path, kind, Why::Unreadable),
    };
    Change {
        from,
        ..Change::new(path, change, kind)
    }
}
