//! The plan of a restore: the changes of names and inodes ([`tree::plan`]), and the paths whose
//! past is unknown. `planner` makes it, `apply` carries it out.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::super::Engine;
use crate::history::diff::join;
use crate::history::present::Trail;
use crate::history::state::TreeState;
use crate::history::view::View;
use crate::tree::plan::InodeAction;
use crate::tree::{self, has_attrs};
use ckptfs_api::{Change, CheckpointId, Times, TreePath};
use ckptfs_store::ids::Slot;
use ckptfs_store::record::Child;
use ckptfs_sys::{Kind, SysResult};

/// The scope of a plan.
#[derive(Clone, Copy, Debug)]
pub(super) enum PlanScope<'a> {
    /// These paths and everything below them; empty: the whole tree.
    Below(&'a [Vec<u8>]),
    /// Exactly these paths. The list includes every other path that appears or disappears with
    /// them.
    Only(&'a [Vec<u8>]),
}

/// The plan of a restore.
pub(in crate::engine) struct RestorePlan {
    pub(in crate::engine) target: CheckpointId,
    /// The whole tree is restored, without exceptions.
    pub(in crate::engine) whole: bool,
    /// The changes of names and inodes.
    pub(in crate::engine) tree: tree::plan::TreePlan,
    /// Whether files get their original times; otherwise changed files get the time of the restore.
    pub(in crate::engine) times: Times,
    /// Paths whose past is unknown. They are left unchanged.
    pub(in crate::engine) unknown: BTreeSet<Vec<u8>>,
    /// Inodes of such paths that no longer exist and cannot be recreated.
    pub(in crate::engine) lost: HashSet<Slot>,
}

impl RestorePlan {
    /// Returns whether the live tree already matches in the properties that a list of changes does
    /// not show: hard links and the times of directories.
    pub(super) fn is_so(&self, engine: &Engine) -> SysResult<bool> {
        let (then, now) = (
            engine.states.view(TreeState::At(self.target)),
            engine.states.view(TreeState::Live),
        );
        let (mut stands_for, mut stood_for) = (HashMap::new(), HashMap::new());
        for dir in &self.tree.dirs {
            let Some((_, here)) = now
                .walk(&dir.want.path())?
                .filter(|(child, _)| child.kind == Kind::Dir)
            else {
                return Ok(false);
            };
            if dir.with_attrs
                && !has_attrs((&then, &dir.want), (&now, &here), self.times == Times::Kept)?
            {
                return Ok(false);
            }
            for name in &dir.names {
                let Some((want, _)) = name
                    .want
                    .as_ref()
                    .filter(|(want, _)| want.kind != Kind::Dir)
                else {
                    continue;
                };
                let Some(have) = now.child(&here, &name.name)? else {
                    return Ok(false);
                };
                let one = *stands_for.entry(want.slot).or_insert(have.slot) == have.slot
                    && *stood_for.entry(have.slot).or_insert(want.slot) == want.slot;
                if !one {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Removes files from the plan that would be recreated although they have not changed: an
    /// earlier restore created them, so their inodes differ from those of the checkpoint. `changes`
    /// are the differences by path.
    ///
    /// All planned names of such a file lead to one live inode, and no other planned file has that
    /// inode. Returns these live inodes: the plan is valid until one of them changes.
    ///
    /// # Errors
    /// Errors of reading the live tree.
    pub(super) fn leave_equal(
        &mut self,
        changes: &[Change],
        now: &View<'_>,
    ) -> SysResult<Vec<Slot>> {
        let changed: HashSet<&[u8]> = changes
            .iter()
            .flat_map(|change| [Some(&change.path), change.from.as_ref()])
            .flatten()
            .map(|path| path.0.as_slice())
            .collect();
        // `None`: names of one file lead to different inodes, or one inode has names of different
        // files.
        let mut stands_in: HashMap<Slot, Option<Slot>> = HashMap::new();
        let mut stands_for: HashMap<Slot, Option<Slot>> = HashMap::new();
        for (dir, name, want, _, have) in self.tree.wanted() {
            if self.tree.contents.get(&want.slot) != Some(&InodeAction::New) {
                continue;
            }
            let path = join(&dir.want.path(), name);
            let is_equal = |have: &Child| -> SysResult<bool> {
                Ok(have.kind == want.kind
                    && !self.tree.contents.contains_key(&have.slot)
                    && !changed.contains(&path[..])
                    && now.walk(&path)?.is_some_and(|(found, _)| found == *have))
            };
            let equal = match have {
                Some(have) if is_equal(&have)? => Some(have.slot),
                _ => None,
            };
            let one = stands_in.entry(want.slot).or_insert(equal);
            *one = one.filter(|slot| equal == Some(*slot));
            if let Some(have) = equal {
                let one = stands_for.entry(have).or_insert(Some(want.slot));
                *one = one.filter(|slot| *slot == want.slot);
            }
        }
        let (left, live): (HashSet<Slot>, Vec<Slot>) = stands_in
            .into_iter()
            .filter_map(|(want, have)| Some((want, have?)))
            .filter(|(want, have)| stands_for.get(have) == Some(&Some(*want)))
            .unzip();
        for dir in &mut self.tree.dirs {
            dir.names.retain(|name| {
                let want = name.want.as_ref();
                want.is_none_or(|(want, _)| want.kind == Kind::Dir || !left.contains(&want.slot))
            });
        }
        self.tree.contents.retain(|slot, _| !left.contains(slot));
        self.tree.several.retain(|slot| !left.contains(slot));
        Ok(live)
    }

    /// Returns the paths restored as separate files although they were hard links, at the
    /// checkpoint, to paths that are not restored.
    pub(super) fn split(&self, engine: &Engine) -> Vec<TreePath> {
        let view = engine.states.view(TreeState::At(self.target));
        let wanted = || {
            self.tree.dirs.iter().flat_map(|dir| {
                dir.names
                    .iter()
                    .filter_map(move |name| Some((dir, name, name.want.as_ref()?)))
            })
        };
        let mut names: HashMap<Slot, u64> = HashMap::new();
        wanted().for_each(|(_, _, (child, _))| *names.entry(child.slot).or_default() += 1);
        let is_split = |child: &Child, trail: &Arc<Trail>| {
            let known = names.get(&child.slot).copied().unwrap_or(0);
            child.kind == Kind::File
                && self.tree.contents.get(&child.slot) == Some(&InodeAction::New)
                && view
                    .attr(trail)
                    .is_ok_and(|attr| u64::from(attr.stat.nlink) > known)
        };
        let split = wanted().filter(|(_, _, (child, trail))| is_split(child, trail));
        split
            .map(|(dir, name, _)| TreePath(join(&dir.want.path(), &name.name)))
            .collect()
    }
}
