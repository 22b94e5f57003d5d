//! Paths that a restore leaves unchanged because their past is unknown or because a tier dropped
//! their content. If the directory of such a path is replaced, the path is rescued: moved to the
//! staging directory, then to the restored directory.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::plan::RestorePlan;
use super::planner::Planner;
use crate::history::diff::join;
use crate::history::present::Trail;
use crate::history::view::{KnownListing, View};
use crate::tree::plan::RescuedPath;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{Child, Place};
use ckptfs_sys::{Kind, SysResult};

/// Paths that are left unchanged, each with its directory if that stays in the live tree.
pub(super) type UnplannedPaths = BTreeMap<Vec<u8>, Option<Slot>>;

/// Returns the name of a rescued path in the staging directory. It is a hash, so that it fits for a
/// path of any length and an interrupted restore can continue.
fn aside_of(path: &[u8]) -> Place {
    let hash = blake3::hash(path).to_hex();
    Place {
        parent: Slot::STAGING,
        name: Name::new(format!("kept-{}", hash.as_str()).as_bytes()),
    }
}

fn staging() -> Arc<Trail> {
    Arc::new(Trail {
        slot: Slot::STAGING,
        name: Name::new(b""),
        up: None,
    })
}

/// Returns the inode that an interrupted restore moved aside for a path.
fn put_aside(now: &View<'_>, path: &[u8]) -> SysResult<Option<Child>> {
    now.child(&staging(), &aside_of(path).name)
}

/// Returns the paths that would be removed with their directory, and those that an interrupted
/// restore moved aside. Looks up each directory once, and a path only if its directory is removed.
///
/// # Errors
/// As [`View::walk`].
pub(super) fn to_rescue(now: &View<'_>, left: UnplannedPaths) -> SysResult<BTreeSet<Vec<u8>>> {
    if left.is_empty() {
        return Ok(BTreeSet::new());
    }
    let interrupted = !now.list(&staging())?.is_empty();
    let mut rescued = BTreeSet::new();
    let mut dir: Option<(Vec<u8>, Option<Slot>)> = None;
    for (path, inside) in left {
        let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let above = path.get(..end).unwrap_or_default();
        if dir.as_ref().is_none_or(|(known, _)| known != above) {
            let there = now.walk(above)?.map(|(child, _)| child.slot);
            dir = Some((above.to_vec(), there));
        }
        let there = dir.as_ref().and_then(|(_, there)| *there);
        let goes = there.is_some() && there != inside && now.walk(&path)?.is_some();
        if goes || interrupted && put_aside(now, &path)?.is_some() {
            rescued.insert(path);
        }
    }
    Ok(rescued)
}

impl RestorePlan {
    /// Removes the names of files that no longer exist and whose content is unknown.
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
    /// Returns whether a name of a directory is left unchanged. `live`: the directory planned next,
    /// if it exists.
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

    /// Returns the rescued names of a directory of the checkpoint.
    pub(super) fn rescued_in(&self, dir: &[u8]) -> Vec<Name> {
        let below = join(dir, &Name::new(b""));
        let from = self.rescued.range(below.clone()..);
        from.map_while(|path| path.strip_prefix(below.as_slice()))
            .filter(|rest| !rest.contains(&b'/'))
            .map(Name::new)
            .collect()
    }

    /// Adds the names of a directory whose past is unknown to the paths that are left unchanged.
    pub(super) fn leave(
        &mut self,
        want: &Arc<Trail>,
        live: Option<&Arc<Trail>>,
        known: &KnownListing,
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
        // Any name may have existed.
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

    /// Plans to move the live inode at a path, or the one that an interrupted restore moved aside,
    /// to the directory planned next, unless that directory has the name.
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
        self.plan
            .tree
            .kept
            .extend(found.map(|(child, from)| RescuedPath {
                dir,
                name: name.clone(),
                child,
                from,
                aside,
            }));
        Ok(())
    }
}
