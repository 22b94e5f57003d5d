//! Paths that a restore excludes: mount points, and paths whose content a tier has dropped.
//!
//! The content of a dropped version no longer exists, and half of an old `node_modules` among
//! current files would be worse than either. If anything in a **unit** (the topmost path that the
//! tier's patterns match) was dropped from the checkpoint, the whole unit is excluded: existing
//! paths stay, missing ones are not created. A request for paths inside a unit restores those that
//! are complete.

use std::collections::{BTreeSet, HashMap};

use super::super::error;
use super::super::tiers::TierPatterns;
use super::Restorer;
use super::mount_points::MountPoints;
use super::plan::PlanScope;
use crate::history::state::TreeState;
use crate::history::touched::Touched;
use crate::history::view::ContentLocation;
use ckptfs_api::{Change, ChangeKind, CheckpointId, DroppedInfo, TreePath, VerbResult};
use ckptfs_sys::SysResult;

/// Excluded paths, each with everything below it.
#[derive(Clone, Debug, Default)]
pub(in crate::engine) struct ExcludedPaths {
    all: BTreeSet<Vec<u8>>,
    /// Those among them that are mount points or directories above one.
    mounted: BTreeSet<Vec<u8>>,
}

/// A file whose content was dropped.
pub(in crate::engine) struct DroppedPath {
    path: Vec<u8>,
    unit: Vec<u8>,
    size: u64,
}

/// Returns whether `path` is `above`, or below it.
pub(super) fn is_at_or_below(path: &[u8], above: &[u8]) -> bool {
    path.strip_prefix(above)
        .is_some_and(|rest| rest.is_empty() || above.is_empty() || rest.starts_with(b"/"))
}

impl ExcludedPaths {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.all.iter()
    }

    /// Returns whether the path itself is excluded.
    pub(super) fn has(&self, path: &[u8]) -> bool {
        self.all.contains(path)
    }

    /// Returns whether the path or one above it is excluded.
    pub(super) fn covers(&self, path: &[u8]) -> bool {
        let above = path
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'/')
            .filter_map(|(end, _)| path.get(..end));
        !self.all.is_empty()
            && (self.all.contains(path) || above.into_iter().any(|above| self.all.contains(above)))
    }

    /// Returns the paths excluded because a tier dropped content.
    pub(super) fn dropped(&self) -> Vec<TreePath> {
        let dropped = self.all.difference(&self.mounted);
        dropped.cloned().map(TreePath).collect()
    }

    /// Returns the paths excluded because of mount points.
    pub(super) fn mounted(&self) -> Vec<TreePath> {
        self.mounted.iter().cloned().map(TreePath).collect()
    }

    /// Removes the excluded paths from the changes of a restore.
    pub(super) fn filter(&self, changes: Vec<Change>) -> Vec<Change> {
        if self.all.is_empty() {
            return changes;
        }
        let kept = changes.into_iter().filter_map(|mut change| {
            let from_spared = change
                .from
                .as_ref()
                .is_some_and(|from| self.covers(&from.0));
            match (self.covers(&change.path.0), change.from.clone()) {
                (false, Some(_)) if from_spared => {
                    // The excluded source stays, so the file is created.
                    (change.change, change.from) = (ChangeKind::Added, None);
                    Some(change)
                }
                (true, Some(from)) if !from_spared => Some(Change {
                    path: from,
                    change: ChangeKind::Deleted,
                    from: None,
                    size: None,
                    ..change
                }),
                (true, _) => None,
                (false, _) => Some(change),
            }
        });
        kept.collect()
    }
}

impl Restorer<'_> {
    /// Returns the paths whose content was dropped from a checkpoint.
    pub(in crate::engine) fn dropped_paths(&self, id: CheckpointId) -> SysResult<Vec<DroppedPath>> {
        let mut found = Vec::new();
        let mut matchers: HashMap<Vec<String>, Option<TierPatterns>> = HashMap::new();
        let view = self.engine.states.view(TreeState::At(id));
        for (list, dropped) in self.timeline().dropped.at(id)? {
            let slot = dropped.object.slot;
            if view.source(slot)? != ContentLocation::Object(dropped.object) {
                continue;
            }
            let Some(at) = self.timeline().lookup.path_at(slot, id)? else {
                continue;
            };
            let matcher = matchers
                .entry(list.paths.clone())
                .or_insert_with_key(|paths| TierPatterns::new(paths).ok());
            let unit = matcher
                .as_ref()
                .and_then(|matcher| matcher.unit(&at.path))
                .unwrap_or(&at.path)
                .to_vec();
            // The checkpoint may be older than the file and not show it.
            if view
                .walk(&at.path)?
                .is_none_or(|(child, _)| child.slot != slot)
            {
                continue;
            }
            found.push(DroppedPath {
                path: at.path,
                unit,
                size: dropped.size,
            });
        }
        Ok(found)
    }

    /// Returns the content that tiers dropped from a checkpoint; `None`: nothing.
    pub(in crate::engine) fn dropped_info(
        &self,
        id: CheckpointId,
    ) -> VerbResult<Option<Box<DroppedInfo>>> {
        let failed = error::failed("what was dropped cannot be read");
        if !self.timeline().dropped.shows(id) {
            return Ok(None);
        }
        let found = self.dropped_paths(id).map_err(failed)?;
        let (files, bytes) = (
            found.len() as u64,
            found.iter().map(|found| found.size).sum(),
        );
        let paths: BTreeSet<Vec<u8>> = found.into_iter().map(|found| found.unit).collect();
        Ok(Some(DroppedInfo {
            paths: paths.into_iter().map(TreePath).collect(),
            files,
            bytes,
        })
        .filter(|info| info.files > 0)
        .map(Box::new))
    }

    /// Returns the paths that a restore excludes.
    pub(super) fn spared(
        &self,
        id: CheckpointId,
        which: PlanScope<'_>,
        (covered, touched): (&MountPoints, &Touched),
    ) -> SysResult<ExcludedPaths> {
        let mounted = covered.in_the_way(self.engine, (id, which), touched)?;
        let mut all = mounted.clone();
        all.extend(self.without_content(id, which)?);
        Ok(ExcludedPaths { all, mounted })
    }

    /// Returns the paths excluded because a tier dropped content.
    fn without_content(
        &self,
        id: CheckpointId,
        which: PlanScope<'_>,
    ) -> SysResult<BTreeSet<Vec<u8>>> {
        let mut spared = BTreeSet::new();
        if !self.timeline().dropped.shows(id) {
            return Ok(spared);
        }
        for DroppedPath { path, unit, .. } in self.dropped_paths(id)? {
            let asked: Vec<Vec<u8>> = match which {
                PlanScope::Below([]) => vec![unit],
                // For a path inside the unit only that path counts.
                PlanScope::Below(paths) => {
                    let inside = paths
                        .iter()
                        .filter(|asked| {
                            is_at_or_below(asked, &unit) && is_at_or_below(&path, asked)
                        })
                        .cloned();
                    inside
                        .chain(
                            paths
                                .iter()
                                .filter(|asked| is_at_or_below(&unit, asked))
                                .map(|_| unit.clone()),
                        )
                        .collect()
                }
                PlanScope::Only(paths) => paths
                    .iter()
                    .filter(|asked| **asked == path)
                    .cloned()
                    .collect(),
            };
            spared.extend(asked);
        }
        Ok(spared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ckptfs_sys::Kind;

    fn change(path: &str, kind: ChangeKind, from: Option<&str>) -> Change {
        let of = |text: &str| TreePath(text.as_bytes().to_vec());
        Change {
            from: from.map(of),
            ..Change::new(path.as_bytes().to_vec(), kind, Kind::File)
        }
    }

    #[test]
    fn what_is_left_alone_is_not_told_as_changed() {
        let spared = ExcludedPaths {
            all: BTreeSet::from([b"a/target".to_vec()]),
            ..ExcludedPaths::default()
        };
        assert!(
            spared.covers(b"a/target")
                && spared.covers(b"a/target/x")
                && !spared.covers(b"a/targets")
                && !spared.covers(b"a")
        );
        let changes = vec![
            change("a/target/x", ChangeKind::Modified, None),
            change("a/targets", ChangeKind::Modified, None),
            change("b", ChangeKind::Renamed, Some("a/target/b")),
            change("a/target/c", ChangeKind::Renamed, Some("c")),
            change("a/target/e", ChangeKind::Renamed, Some("a/target/d")),
        ];
        let expected = vec![
            change("a/targets", ChangeKind::Modified, None),
            change("b", ChangeKind::Added, None),
            change("c", ChangeKind::Deleted, None),
        ];
        assert_eq!(spared.filter(changes), expected);
    }
}
