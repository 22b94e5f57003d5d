//! State names, and the comparison of two states.

use std::collections::HashMap;
use std::sync::Arc;

use super::error;
use crate::history::diff::{Comparison, Difference, PathDiff, ordered};
use crate::history::present::LiveTree;
use crate::history::select::SelectError;
use crate::history::state::TreeState;
use crate::history::touched::Touched;
use crate::history::view::View;
use crate::live::Live;
use ckptfs_api::{
    Change, ChangeKind, CheckpointId, StateName, TreePath, VerbError, VerbResult, Why,
};
use ckptfs_store::record::CheckpointState;
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{Errno, Kind, SysResult};

/// Retries of a comparison with the live tree when the tree changes during it.
const COMPARE_TRIES: u32 = 3;

/// Resolves state names and compares states.
pub(super) struct StateComparer {
    pub(super) live: Arc<Live>,
    /// Cached offline changes by checkpoint. A leaf lock.
    pub(super) unserved: Mutex<HashMap<CheckpointId, Arc<Vec<Change>>>>,
}

impl StateComparer {
    pub(super) fn new(live: Arc<Live>) -> StateComparer {
        StateComparer {
            live,
            unserved: Mutex::default(),
        }
    }

    /// Returns all names of checkpoints.
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

    pub(super) fn state(&self, name: &StateName) -> VerbResult<TreeState> {
        self.timeline()
            .catalogue
            .select(&name.0)
            .map_err(|why| match why {
                SelectError::Unknown => self.no_checkpoint(&name.0),
                why => error::unselected(&name.0, why, &self.state_names()),
            })
    }

    /// Returns the named checkpoint's id.
    pub(super) fn checkpoint_id(&self, name: &StateName) -> VerbResult<CheckpointId> {
        self.is_checkpoint(name, self.state(name)?)
    }

    /// Returns the named checkpoint.
    pub(super) fn checkpoint(&self, name: &StateName) -> VerbResult<CheckpointState> {
        let kept = self
            .timeline()
            .catalogue
            .checkpoint(self.checkpoint_id(name)?);
        kept.ok_or_else(|| error::unknown_state(&name.0, &self.state_names()))
    }

    /// As [`StateComparer::checkpoint_id`], for verbs that change or delete: rejects a prefix of a
    /// tag.
    pub(super) fn whole_id(&self, name: &StateName) -> VerbResult<CheckpointId> {
        match self.timeline().catalogue.select_whole(&name.0) {
            Ok(state) => self.is_checkpoint(name, state),
            Err(why @ SelectError::Beginning(_)) => Err(error::unselected(&name.0, why, &[])),
            Err(_) => self.checkpoint_id(name),
        }
    }

    fn is_checkpoint(&self, name: &StateName, state: TreeState) -> VerbResult<CheckpointId> {
        match state {
            TreeState::At(id) => Ok(id),
            TreeState::Live => Err(error::unknown_state(&name.0, &self.state_names())),
        }
    }

    /// Returns the differences from `from` to `to` below `path`.
    pub(super) fn compare(
        &self,
        from: TreeState,
        to: TreeState,
        path: &[u8],
    ) -> SysResult<Vec<Change>> {
        let (older, newer, _) = ordered(from, to);
        let TreeState::At(after) = older else {
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

    /// As [`StateComparer::compare`] of the whole tree, with files changed directly in the backing
    /// directory as unknown.
    pub(super) fn compare_all(&self, from: TreeState, to: TreeState) -> SysResult<Vec<Change>> {
        let mut changes = self.compare(from, to, b"")?;
        changes.extend(self.unseen_between(from, to)?);
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        changes.dedup_by(|a, b| a.path == b.path);
        Ok(changes)
    }

    /// Returns the keys recorded after a checkpoint, with every name of the inodes among them.
    pub(super) fn touched(
        &self,
        after: CheckpointId,
        upto: Option<CheckpointId>,
    ) -> SysResult<Touched> {
        let mut touched = self.timeline().touched(after, upto)?;
        touched.add_unseen_links(self.timeline(), &self.view(TreeState::At(after)))?;
        Ok(touched)
    }

    /// As [`StateComparer::compare`] with known records between the states. `present` reads the
    /// live tree; `times`: a different mtime counts as a difference.
    pub(super) fn compare_touched(
        &self,
        present: &dyn LiveTree,
        (from, to): (TreeState, TreeState),
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
        present: &dyn LiveTree,
        (older, newer): (TreeState, TreeState),
        path: &[u8],
        touched: &Touched,
        times: bool,
    ) -> SysResult<Vec<PathDiff>> {
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

    /// Returns the differences from a checkpoint to the live tree with the inodes of both, sorted
    /// by path. Changes made directly in the backing directory are not included
    /// ([`StateComparer::unseen_between`]).
    pub(super) fn differs_since(&self, since: CheckpointId) -> SysResult<Vec<PathDiff>> {
        let touched = self.touched(since, None)?;
        let states = (TreeState::At(since), TreeState::Live);
        self.differs(&*self.live.inodes, states, b"", &touched, true)
    }

    /// Returns the view of a state.
    pub(super) fn view(&self, state: TreeState) -> View<'_> {
        View::new(self.timeline(), &*self.live.inodes, state)
    }

    /// Returns the error for a checkpoint that is hidden or does not exist.
    pub(super) fn no_checkpoint(&self, name: &str) -> VerbError {
        let catalogue = &self.timeline().catalogue;
        let id = name.parse().ok().map(CheckpointId);
        match id.filter(|id| catalogue.hidden_checkpoint(*id).is_some()) {
            Some(id) => error::hidden(id),
            None => error::unknown_state(name, &self.state_names()),
        }
    }

    /// Returns the size of a regular file in that state, if known.
    pub(super) fn size_of(&self, state: TreeState, path: &TreePath) -> Option<u64> {
        let view = self.view(state);
        let (child, trail) = view.walk(&path.0).ok()??;
        (child.kind == Kind::File)
            .then(|| view.attr(&trail).ok())
            .flatten()
            .map(|attr| attr.stat.size)
    }
}

pub(super) fn change(differs: PathDiff, backwards: bool) -> Change {
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
