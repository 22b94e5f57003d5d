//! The scope of a merge.

use std::collections::HashSet;

use super::super::Tree;
use super::side::MergeState;
use ckptfs_store::ids::Slot;
use ckptfs_store::record::Place;

fn is_at_or_below(path: &[u8], top: &[u8]) -> bool {
    path.strip_prefix(top)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Returns the common numbers of inodes at or below the paths in any of the three states, and of
/// the directories of `theirs` that they need; `None`: everything.
pub(super) fn scope<T: Tree>(
    sides: [&MergeState<'_, T>; 3],
    paths: &[Vec<u8>],
) -> Option<HashSet<Slot>> {
    if paths.is_empty() {
        return None;
    }
    let [_, ours, theirs] = sides;
    let mut inside = HashSet::new();
    for side in sides {
        let is_inside = |place: &Place| {
            let Some(mut path) = side.way(place.parent).map(|dir| dir.path()) else {
                return false;
            };
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(place.name.as_bytes());
            paths.iter().any(|top| is_at_or_below(&path, top))
        };
        for (slot, places) in &side.places {
            if places.iter().any(is_inside) {
                inside.insert(*slot);
            }
        }
    }
    let mut open: Vec<Slot> = inside.iter().copied().collect();
    while let Some(slot) = open.pop() {
        for place in theirs.places.get(&slot).into_iter().flatten() {
            if !ours.has(place.parent) && inside.insert(place.parent) {
                open.push(place.parent);
            }
        }
    }
    Some(inside)
}
