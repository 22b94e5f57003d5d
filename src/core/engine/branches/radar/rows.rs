//! Rows of the radar: one for each inode of the base, and for each path, that more than one tree
//! has touched.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::touches::{BaseInode, CommonState, TouchedBy, TreeChange, TreeChanges};
use ckptfs_api::{ChangeKind, Clash, Conflict, Touch, TreePath};
use ckptfs_store::ids::Slot;
use ckptfs_sys::Kind;

/// The object of a touch. Inodes are first: a touched inode is reported once, whatever its paths.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TouchedObject {
    Inode(BaseInode),
    Path(Vec<u8>),
}

/// An object that more than one tree has touched.
pub(super) struct OverlapRow {
    pub(super) path: Vec<u8>,
    pub(super) slot: Option<Slot>,
    /// Indices in [`TreeChanges::all`].
    touches: BTreeSet<usize>,
    /// The trees: indices of branches, and this tree.
    pub(super) branches: BTreeSet<usize>,
    pub(super) here: bool,
    pub(super) clashes: Option<Vec<Clash>>,
}

/// All rows.
pub(super) struct Overlaps(pub(super) Vec<OverlapRow>);

/// Returns the objects of a touch.
fn keys(touched: &TreeChange) -> Vec<TouchedObject> {
    let inode = touched
        .before
        .as_ref()
        .map(|(inode, _)| TouchedObject::Inode(*inode));
    let from = touched.from.clone().map(TouchedObject::Path);
    inode
        .into_iter()
        .chain([TouchedObject::Path(touched.path.clone())])
        .chain(from)
        .collect()
}

/// Adds touches to removed or moved directories: an inode created in a directory that another tree
/// removed, or a directory moved into one that another tree moved. A merge has to find a place for
/// it.
fn of_directories(all: &[TreeChange], at: &mut BTreeMap<TouchedObject, BTreeSet<usize>>) {
    let mut gone: HashMap<Slot, Vec<(BaseInode, &TreeChange)>> = HashMap::new();
    for touched in all.iter().filter(|touched| touched.kind == Kind::Dir) {
        if let (ChangeKind::Deleted | ChangeKind::Renamed, Some((inode, _))) =
            (touched.change, &touched.before)
        {
            gone.entry(inode.slot).or_default().push((*inode, touched));
        }
    }
    for (number, touched) in all.iter().enumerate() {
        let into = touched.into.and_then(|into| gone.get(&into));
        for (inode, other) in into.into_iter().flatten() {
            let moves = touched.kind == Kind::Dir && touched.change == ChangeKind::Renamed;
            if other.who != touched.who && (other.change == ChangeKind::Deleted || moves) {
                at.entry(TouchedObject::Inode(*inode))
                    .or_default()
                    .insert(number);
            }
        }
    }
}

impl Overlaps {
    pub(super) fn of(touches: &TreeChanges) -> Overlaps {
        let mut at: BTreeMap<TouchedObject, BTreeSet<usize>> = BTreeMap::new();
        for (number, touched) in touches.all.iter().enumerate() {
            for key in keys(touched) {
                at.entry(key).or_default().insert(number);
            }
        }
        of_directories(&touches.all, &mut at);
        let mut rows: Vec<OverlapRow> = Vec::new();
        // Touch -> its rows.
        let mut known: HashMap<usize, Vec<usize>> = HashMap::new();
        for (key, numbers) in at {
            let Some(row) = row(touches, key, numbers) else {
                continue;
            };
            let of_first = row.touches.first().and_then(|first| known.get(first));
            let told = of_first
                .into_iter()
                .flatten()
                .filter_map(|known| rows.get(*known))
                .any(|known| known.touches.is_superset(&row.touches));
            if !told {
                for touch in &row.touches {
                    known.entry(*touch).or_default().push(rows.len());
                }
                rows.push(row);
            }
        }
        Overlaps(rows)
    }

    /// Converts the rows for the answer, sorted by path.
    pub(super) fn told(self, touches: &TreeChanges) -> Vec<Conflict> {
        let mut all: Vec<Conflict> = self.0.into_iter().map(|row| row.told(touches)).collect();
        all.sort_by(|a, b| (&a.path, a.inode).cmp(&(&b.path, b.inode)));
        all
    }
}

/// Returns the row of an object, if more than one tree touched it since their common state.
fn row(
    touches: &TreeChanges,
    key: TouchedObject,
    mut numbers: BTreeSet<usize>,
) -> Option<OverlapRow> {
    let who = |number: &usize| touches.all.get(*number).map(|touched| touched.who);
    let branches: BTreeSet<usize> = numbers
        .iter()
        .filter_map(|number| match who(number)? {
            TouchedBy::Branch(branch) => Some(branch),
            TouchedBy::Here(_) => None,
        })
        .collect();
    let base = |branch: &usize| touches.since.get(*branch).copied();
    let bases: BTreeSet<CommonState> = branches.iter().filter_map(base).collect();
    // Of the changes of this tree only those since the newest base count, if any, else those since
    // an older one.
    let here = numbers.iter().filter_map(|number| match who(number)? {
        TouchedBy::Here(since) if bases.contains(&since) => Some(since),
        _ => None,
    });
    let here = here.max();
    numbers.retain(|number| match who(number) {
        Some(TouchedBy::Here(since)) => Some(since) == here,
        _ => true,
    });
    if branches.len() + usize::from(here.is_some()) < 2 {
        return None;
    }
    let (path, slot) = match key {
        TouchedObject::Path(path) => (path, None),
        TouchedObject::Inode(inode) => {
            let path = numbers.iter().find_map(|number| {
                let (of, path) = touches.all.get(*number)?.before.as_ref()?;
                (*of == inode).then(|| path.clone())
            });
            (path?, Some(inode.slot))
        }
    };
    Some(OverlapRow {
        path,
        slot,
        touches: numbers,
        branches,
        here: here.is_some(),
        clashes: None,
    })
}

impl OverlapRow {
    /// Returns the row of a conflict that only a merge finds.
    pub(super) fn of_clash(path: Vec<u8>, ours: Option<usize>, theirs: usize) -> OverlapRow {
        OverlapRow {
            path,
            slot: None,
            touches: BTreeSet::new(),
            branches: ours.into_iter().chain([theirs]).collect(),
            here: ours.is_none(),
            clashes: Some(Vec::new()),
        }
    }

    /// Returns whether a path is, or was, one of its paths.
    pub(super) fn is_at(&self, touches: &TreeChanges, path: &[u8]) -> bool {
        let mut all = self
            .touches
            .iter()
            .filter_map(|number| touches.all.get(*number));
        self.path == path
            || all.any(|touched| touched.path == path || touched.from.as_deref() == Some(path))
    }

    fn told(self, touches: &TreeChanges) -> Conflict {
        let name = |branch: usize| {
            let branch = touches.branches.get(branch)?;
            Some(branch.name.clone())
        };
        let touch = |number: usize| {
            let touched = touches.all.get(number)?;
            let by = match touched.who {
                TouchedBy::Here(_) => None,
                TouchedBy::Branch(branch) => Some(name(branch)?),
            };
            Some(Touch {
                by,
                path: TreePath(touched.path.clone()),
                from: touched.from.clone().map(TreePath),
                change: touched.change,
            })
        };
        Conflict {
            path: TreePath(self.path),
            inode: self.slot.map(|slot| slot.0),
            branches: self.branches.into_iter().filter_map(name).collect(),
            parent: self.here,
            touched: self.touches.into_iter().filter_map(touch).collect(),
            clashes: self.clashes,
        }
    }
}
