//! The list of changes of a merge.

use std::collections::HashSet;
use std::sync::Arc;

use crate::engine::restore::plan::RestorePlan;
use crate::history::diff::join;
use crate::history::present::Trail;
use crate::history::view::View;
use crate::tree::Tree;
use crate::tree::merge::outcome::MergeOutcome;
use crate::tree::plan::{self, InodeAction};
use ckptfs_api::{Change, ChangeKind, Times, TreePath};
use ckptfs_store::ids::Name;
use ckptfs_store::record::{Child, Place};
use ckptfs_sys::{Kind, SysResult};

struct ChangeCollector<'p, 'o> {
    plan: &'p RestorePlan,
    outcome: &'p MergeOutcome<'o, View<'o>>,
    ours: &'p View<'p>,
    /// Places from which an inode was moved.
    left: HashSet<Place>,
    changes: Vec<Change>,
}

/// Returns the changes, sorted by path.
pub(super) fn changes<'o>(
    plan: &RestorePlan,
    outcome: &MergeOutcome<'o, View<'o>>,
    ours: &View<'_>,
) -> SysResult<Vec<Change>> {
    let mut telling = ChangeCollector {
        plan,
        outcome,
        ours,
        left: HashSet::new(),
        changes: Vec::new(),
    };
    telling.come()?;
    telling.go()?;
    let mut changes = telling.changes;
    changes.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(changes)
}

impl ChangeCollector<'_, '_> {
    fn add(&mut self, path: Vec<u8>, change: ChangeKind, kind: Kind) {
        self.changes.push(Change::new(path, change, kind));
    }

    /// Returns whether the visible attributes of an inode that stays are unchanged.
    fn has_attrs(&self, want: &Arc<Trail>) -> SysResult<bool> {
        let here = self.outcome.here(want);
        let (old, new) = (self.ours.attr(&here)?.stat, self.outcome.attr(want)?.stat);
        let times = self.plan.times == Times::Kept && old.kind != Kind::Dir;
        let same = (old.mode, old.uid, old.gid) == (new.mode, new.uid, new.gid)
            && (!times || old.mtime == new.mtime);
        Ok(same && self.ours.xattrs(&here)? == self.outcome.xattrs(want)?)
    }

    /// Adds inodes that appear, and those that exist and change.
    fn come(&mut self) -> SysResult<()> {
        let plan = &self.plan.tree;
        let leads = plan.leads();
        for dir in &plan.dirs {
            if dir.live.is_some() && !self.has_attrs(&dir.want)? {
                self.add(dir.want.path(), ChangeKind::Modified, Kind::Dir);
            }
            for name in &dir.names {
                let Some((child, trail)) = &name.want else {
                    continue;
                };
                let path = join(&dir.want.path(), &name.name);
                let from = plan.found.get(&child.slot).filter(|place| {
                    plan.keeps(*child)
                        && leads
                            .get(&(place.parent, &place.name))
                            .is_some_and(|wanted| {
                                wanted.iter().any(|wanted| *wanted != Some(child.slot))
                            })
                });
                let change = match plan.change(name) {
                    None | Some(plan::NameChange::Goes(_)) => continue,
                    Some(plan::NameChange::Stays(InodeAction::Same)) => continue,
                    Some(plan::NameChange::Stays(_)) if child.kind == Kind::Dir => continue,
                    Some(plan::NameChange::Stays(InodeAction::Attributes)) => {
                        if self.has_attrs(trail)? {
                            continue;
                        }
                        ChangeKind::Modified
                    }
                    Some(plan::NameChange::Stays(_)) => ChangeKind::Modified,
                    Some(_) if from.is_some() => ChangeKind::Renamed,
                    Some(plan::NameChange::Comes(_)) => ChangeKind::Added,
                    Some(plan::NameChange::Replaced(_) | plan::NameChange::Exchanged(..)) => {
                        match name.have {
                            Some(have) if have.kind != child.kind => ChangeKind::TypeChanged,
                            _ => ChangeKind::Modified,
                        }
                    }
                };
                let from = from.filter(|_| change == ChangeKind::Renamed);
                let before = from.map(|place| TreePath(self.path_of(place)));
                self.left.extend(from.cloned());
                self.changes.push(Change {
                    from: before,
                    ..Change::new(path, change, child.kind)
                });
            }
        }
        Ok(())
    }

    fn path_of(&self, place: &Place) -> Vec<u8> {
        join(&self.outcome.path_here(place.parent), &place.name)
    }

    /// Adds inodes that disappear, with everything below them except what is moved.
    fn go(&mut self) -> SysResult<()> {
        let plan = &self.plan.tree;
        let mut open: Vec<(Arc<Trail>, Name, Child)> = Vec::new();
        for dir in &plan.dirs {
            let Some(live) = &dir.live else { continue };
            for name in &dir.names {
                let (have, told) = match plan.change(name) {
                    Some(plan::NameChange::Goes(have)) => (have, true),
                    Some(plan::NameChange::Exchanged(have, _)) => (have, false),
                    _ => continue,
                };
                if !told && !plan.keeps(have) && have.kind == Kind::Dir {
                    let dir = live.step(&name.name, have.slot);
                    let below = self.ours.list(&dir)?;
                    open.extend(
                        below
                            .into_iter()
                            .map(|(name, child)| (Arc::clone(&dir), name, child)),
                    );
                } else if told {
                    open.push((Arc::clone(live), name.name.clone(), have));
                }
            }
        }
        while let Some((dir, name, child)) = open.pop() {
            let place = Place {
                parent: dir.slot,
                name: name.clone(),
            };
            if self.left.contains(&place) || (child.kind == Kind::Dir && plan.keeps(child)) {
                continue;
            }
            self.add(join(&dir.path(), &name), ChangeKind::Deleted, child.kind);
            if child.kind == Kind::Dir {
                let dir = dir.step(&name, child.slot);
                let below = self.ours.list(&dir)?;
                open.extend(
                    below
                        .into_iter()
                        .map(|(name, child)| (Arc::clone(&dir), name, child)),
                );
            }
        }
        Ok(())
    }
}
