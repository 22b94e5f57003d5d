//! What a restore leaves as it is, because it is not known what it was or because a tier has dropped
//! it, also where the directory that it is in goes and another one comes.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::plan::Plan;
use super::planner::Planner;
use crate::history::diff::join;
use crate::history::present::Trail;
use crate::history::view::{Known, View};
use crate::store::ids::{Name, Slot};
use crate::store::record::{Child, Place};
use crate::sys::{Kind, SysResult};
use crate::tree::plan::Kept;

/// Paths that are left as they are, each with the directory in which it needs no rescue.
pub(super) type Left = BTreeMap<Vec<u8>, Option<Slot>>;

/// Where what stays at a path is put while the directory that it is in goes.
fn aside_of(path: &[u8]) -> Place {
    let hash = blake3::hash(path).to_hex();
    Place {
        parent: Slot::STAGING,
        name: Name::new(format!("kept-{}", hash.as_str()).as_bytes()),
    }
}

/// What a restore that was interrupted has put aside for a path.
pub(super) fn put_aside(now: &View<'_>, path: &[u8]) -> SysResult<Option<Child>> {
    let beside = Arc::new(Trail {
        slot: Slot::STAGING,
        name: Name::new(b""),
        up: None,
    });
    now.child(&beside, &aside_of(path).name)
}

impl Plan {
    /// Files that are gone and cannot be made again are not planned.
    pub(super) fn leave_lost(&mut self) {
        let lost = std::mem::take(&mut self.lost);
        for dir in &mut self.tree.dirs {
            dir.names.retain(|name| {
                name.want
                    .as_ref()
                    .is_none_or(|(child, _)| child.kind == Kind::Dir || !lost.contains(&child.slot))
            });
        }
    }
}

impl Planner<'_> {
    /// Whether a name of a directory stays as it is; `live`: the directory that is planned next, if
    /// it is there.
    pub(super) fn stays(
        &mut self,
        dir: Option<&Arc<Trail>>,
        name: &Name,
        live: Option<&Arc<Trail>>,
    ) -> SysResult<bool> {
        let Some(dir) = dir.filter(|_| !self.spared.is_empty() || !self.rescued.is_empty()) else {
            return Ok(false);
        };
        let path = join(&dir.path(), name);
        if self.rescued.contains(&path) {
            self.rescue(&path, name, live)?;
            return Ok(true);
        }
        Ok(self.spared.has(&path))
    }

    /// The names of a directory of the checkpoint that are rescued.
    pub(super) fn rescued_in(&self, dir: &[u8]) -> Vec<Name> {
        let below = join(dir, &Name::new(b""));
        let from = self.rescued.range(below.clone()..);
        from.map_while(|path| path.strip_prefix(below.as_slice()))
            .filter(|rest| !rest.contains(&b'/'))
            .map(Name::new)
            .collect()
    }

    /// Notes what is not known of the names of a directory, so that it stays as it is.
    pub(super) fn leave(
        &mut self,
        want: &Arc<Trail>,
        live: Option<&Arc<Trail>>,
        known: &Known,
    ) -> SysResult<()> {
        let inside = live.map(|live| live.slot);
        let of_names = known.unknown.iter().map(|name| join(&want.path(), name));
        for path in of_names {
            self.left.insert(path.clone(), inside);
            self.plan.unknown.insert(path);
        }
        if !known.partial {
            return Ok(());
        }
        // Any name may have been there.
        self.plan.unknown.insert(want.path());
        let there = self.now.walk(&want.path())?;
        if let Some((_, there)) = there.filter(|(child, _)| child.kind == Kind::Dir) {
            let is_known: HashSet<&Name> = known.names.iter().map(|(name, _)| name).collect();
            for (name, _) in self.now.list(&there)? {
                if !is_known.contains(&name) {
                    self.left.insert(join(&want.path(), &name), inside);
                }
            }
        }
        Ok(())
    }

    /// What is at a path that stays, and would go with the directory that it is in: it comes to the
    /// directory that is planned next, unless that has something there. A restore that was
    /// interrupted may have put it aside.
    pub(super) fn rescue(
        &mut self,
        path: &[u8],
        name: &Name,
        live: Option<&Arc<Trail>>,
    ) -> SysResult<()> {
        if live
            .map_or(Ok(None), |live| self.now.child(live, name))?
            .is_some()
        {
            return Ok(());
        }
        let aside = aside_of(path);
        let found = match self.now.walk(path)? {
            Some((child, trail)) => trail.up.as_ref().map(|up| {
                (
                    child,
                    Place {
                        parent: up.slot,
                        name: trail.name.clone(),
                    },
                )
            }),
            None => put_aside(&self.now, path)?.map(|child| (child, aside.clone())),
        };
        let dir = self.plan.tree.dirs.len();
        self.plan.tree.kept.extend(found.map(|(child, from)| Kept {
            dir,
            name: name.clone(),
            child,
            from,
            aside,
        }));
        Ok(())
    }
}
