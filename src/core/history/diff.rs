//! Differences between two states of the tree.
//!
//! Only keys recorded between the two states can differ, so the walk follows recorded names, and
//! lists a directory completely only if its inode was replaced. Recorded keys are compared: a file
//! that was only opened, or changed and changed back, is not reported.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::dropped::DROPPED;
use super::present::{Trail, there};
use super::same::{attributes_differ, same_content};
use super::state::TreeState;
use super::touched::Touched;
use super::view::View;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::Child;
use ckptfs_sys::{Errno, Kind, SysResult};

/// Kind of difference of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The path exists only in the newer state.
    Added,
    /// Content, attributes or extended attributes differ.
    Modified,
    /// The path exists only in the older state.
    Deleted,
    /// The inode had this path in the older state.
    Renamed(Vec<u8>),
    /// The file type differs.
    TypeChanged,
    /// The difference cannot be determined, because one of the states cannot be read: it was
    /// changed without a record, its version is lost, or it was forged.
    Unknown,
}

/// A path that differs.
#[derive(Clone, Debug)]
pub struct PathDiff {
    /// Path in the newer state, or in the older one if deleted.
    pub path: Vec<u8>,
    /// Kind of difference.
    pub how: Difference,
    /// File type in the newer state, or in the older one if deleted.
    pub kind: Kind,
    /// Inode in the newer state, or in the older one if deleted.
    slot: Slot,
    /// Trail in the older state, if the path existed there; for a rename, along the old path.
    pub old: Option<Arc<Trail>>,
    /// Trail in the newer state, if the path exists there.
    pub new: Option<Arc<Trail>>,
}

/// Compares two states. See the module.
pub struct Comparison<'a> {
    /// The older state.
    pub from: View<'a>,
    /// The newer state.
    pub to: View<'a>,
    /// Keys recorded between the states.
    pub touched: &'a Touched,
    /// Whether a different mtime counts although the content is equal.
    pub times: bool,
}

type Side = Option<(Child, Arc<Trail>)>;

/// A path with its targets in both states.
type Pair = (Vec<u8>, Side, Side);

/// Results of the walk.
#[derive(Default)]
struct WalkResults {
    differs: Vec<PathDiff>,
    /// Directories visited in the older and in the newer state. In one state a directory has one
    /// place; a forged one can have many, and the number of paths to it can be unbounded.
    passed: [HashSet<Slot>; 2],
}

impl WalkResults {
    /// Marks a directory as visited; `false` if it already was.
    fn pass(&mut self, child: Child, newer: bool) -> bool {
        child.kind != Kind::Dir
            || self
                .passed
                .get_mut(usize::from(newer))
                .is_some_and(|passed| passed.insert(child.slot))
    }
}

/// Result of comparing two inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InodeComparison {
    Same,
    Changed,
    Unknown,
}

impl From<bool> for InodeComparison {
    fn from(changed: bool) -> InodeComparison {
        if changed {
            InodeComparison::Changed
        } else {
            InodeComparison::Same
        }
    }
}

/// Below a directory with a path longer than this, no path is reported separately: the directory is
/// reported as different. The depth of directories is unlimited, and the total length of their
/// paths grows with its square.
const PATH_TOLD_MAX: usize = 16 << 10;

impl Comparison<'_> {
    /// Returns every differing path at or below `path`, sorted by path.
    ///
    /// # Errors
    /// EIO if a record or a version cannot be read.
    pub fn below(&self, path: &[u8]) -> SysResult<Vec<PathDiff>> {
        self.paired(self.unpaired(path)?)
    }

    /// Pairs the renames in a result of [`Comparison::unpaired`], and sorts it by path.
    ///
    /// # Errors
    /// As [`Comparison::below`].
    pub fn paired(&self, found: Vec<PathDiff>) -> SysResult<Vec<PathDiff>> {
        let mut found = pair_renames(
            found,
            |old, new| self.is_one_inode(old, new),
            |old, new, kind| {
                let (from, to) = (
                    Child {
                        slot: old.slot,
                        kind,
                    },
                    Child {
                        slot: new.slot,
                        kind,
                    },
                );
                Ok(self.changed(from, to, old, new)? != InodeComparison::Same)
            },
        )?;
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    /// As [`Comparison::below`], in no order, and with a rename reported as a deletion and an
    /// addition, including everything below it.
    ///
    /// # Errors
    /// As [`Comparison::below`].
    pub fn unpaired(&self, path: &[u8]) -> SysResult<Vec<PathDiff>> {
        let from = there(self.from.walk(path))?;
        let to = there(self.to.walk(path))?;
        let mut found = WalkResults::default();
        self.pair(path, from, to, &mut found)?;
        Ok(found.differs)
    }

    /// Compares a path in both states, with everything below it. Depth first and iterative, because
    /// a tree can be deeper than the stack.
    fn pair(&self, path: &[u8], from: Side, to: Side, out: &mut WalkResults) -> SysResult<()> {
        let mut open = vec![(path.to_vec(), from, to)];
        while let Some((path, from, to)) = open.pop() {
            match (from, to) {
                (None, None) => {}
                (Some((child, trail)), None) => {
                    self.only(&self.from, &path, child, &trail, &Difference::Deleted, out)?
                }
                (None, Some((child, trail))) => {
                    self.only(&self.to, &path, child, &trail, &Difference::Added, out)?
                }
                (Some(from), Some(to)) => {
                    open.extend(self.both(&path, &from, &to, out)?.into_iter().rev())
                }
            }
        }
        Ok(())
    }

    /// Reports a path that exists in one state only, with everything below it up to the maximum
    /// length.
    fn only(
        &self,
        view: &View<'_>,
        path: &[u8],
        child: Child,
        trail: &Arc<Trail>,
        how: &Difference,
        out: &mut WalkResults,
    ) -> SysResult<()> {
        let newer = *how == Difference::Added;
        let mut open = vec![(path.to_vec(), child, Arc::clone(trail))];
        while let Some((path, child, trail)) = open.pop() {
            let mut how = how.clone();
            if child.kind == Kind::Dir && path.len() <= PATH_TOLD_MAX {
                let listed = if out.pass(child, newer) {
                    view.told(there(view.list_known(&trail).map(Some)))?
                } else {
                    None
                };
                if listed
                    .as_ref()
                    .is_none_or(|known| known.as_ref().is_some_and(|known| known.partial))
                {
                    how = Difference::Unknown;
                }
                let known = listed.flatten().unwrap_or_default();
                for (name, below) in known.names {
                    open.push((join(&path, &name), below, trail.step(&name, below.slot)));
                }
                let unknown = known
                    .unknown
                    .iter()
                    .map(|name| PathDiff::unknown(join(&path, name)));
                out.differs.extend(unknown);
            }
            if !path.is_empty() {
                let (old, new) = if newer {
                    (None, Some(trail))
                } else {
                    (Some(trail), None)
                };
                out.differs.push(PathDiff {
                    path,
                    how,
                    kind: child.kind,
                    slot: child.slot,
                    old,
                    new,
                });
            }
        }
        Ok(())
    }

    /// Compares a path that exists in both states. Returns the names below it that may differ.
    fn both(
        &self,
        path: &[u8],
        from: &(Child, Arc<Trail>),
        to: &(Child, Arc<Trail>),
        out: &mut WalkResults,
    ) -> SysResult<Vec<Pair>> {
        let (old, new) = (from.0, to.0);
        let trails = || (Some(Arc::clone(&from.1)), Some(Arc::clone(&to.1)));
        let differs = |how| {
            let (before, after) = trails();
            PathDiff {
                path: path.to_vec(),
                how,
                kind: new.kind,
                slot: new.slot,
                old: before,
                new: after,
            }
        };
        if old.kind != new.kind {
            out.differs.push(differs(Difference::TypeChanged));
            let above = out.differs.len();
            self.only(&self.from, path, old, &from.1, &Difference::Deleted, out)?;
            self.only(&self.to, path, new, &to.1, &Difference::Added, out)?;
            let below = out.differs.split_off(above);
            out.differs
                .extend(below.into_iter().filter(|item| item.path != path));
            return Ok(Vec::new());
        }
        if !out.pass(old, false) || !out.pass(new, true) {
            out.differs.push(differs(Difference::Unknown));
            return Ok(Vec::new());
        }
        let deep = path.len() > PATH_TOLD_MAX && new.kind == Kind::Dir;
        match self.changed(old, new, &from.1, &to.1)? {
            _ if deep => out.differs.push(differs(Difference::Modified)),
            InodeComparison::Changed if !path.is_empty() => {
                out.differs.push(differs(Difference::Modified))
            }
            InodeComparison::Unknown if !path.is_empty() => {
                out.differs.push(differs(Difference::Unknown))
            }
            _ => {}
        }
        if new.kind != Kind::Dir || deep {
            return Ok(Vec::new());
        }
        self.below_both(path, &from.1, &to.1, out)
    }

    /// Returns the names that may differ in a directory of both states.
    fn below_both(
        &self,
        path: &[u8],
        from: &Arc<Trail>,
        to: &Arc<Trail>,
        out: &mut WalkResults,
    ) -> SysResult<Vec<Pair>> {
        let mut below = Vec::new();
        let is_one = self.is_one_inode(from, to);
        let names = self.names(from, to, is_one)?;
        let before = self.from.steps_told(from, &names);
        // A name without a record is the same in the live tree and is not looked up twice.
        let now = self.to.state() == TreeState::Live && is_one;
        let others: BTreeSet<Name> = names
            .iter()
            .zip(&before)
            .filter(|(_, (live, _))| !(now && *live))
            .map(|(name, _)| name.clone())
            .collect();
        let mut after = self.to.steps(to, &others).into_iter();
        for (name, (live, old)) in names.iter().zip(before) {
            let new = if now && live {
                old.clone()
                    .map(|step| step.map(|(child, _)| (child, to.step(name, child.slot))))
            } else {
                after.next().unwrap_or(Ok(None))
            };
            let path = join(path, name);
            let old = self.from.told(old)?;
            let new = self.to.told(there(new))?;
            match (old, new) {
                (Some(old), Some(new)) => below.push((path, old, new)),
                // One of the states is unknown.
                (old, new) => {
                    let (old, new) = (old.flatten(), new.flatten());
                    let child = old.as_ref().or(new.as_ref()).map(|(child, _)| *child);
                    let unknown = PathDiff::unknown(path);
                    let (kind, slot) = child.map_or((unknown.kind, unknown.slot), |child| {
                        (child.kind, child.slot)
                    });
                    out.differs.push(PathDiff {
                        kind,
                        slot,
                        old: old.map(|found| found.1),
                        new: new.map(|found| found.1),
                        ..unknown
                    });
                }
            }
        }
        Ok(below)
    }

    /// Returns the names that can differ between two directories, or between two states of one.
    fn names(&self, from: &Arc<Trail>, to: &Arc<Trail>, is_one: bool) -> SysResult<BTreeSet<Name>> {
        if is_one {
            return Ok(self
                .touched
                .names
                .get(&from.slot)
                .cloned()
                .unwrap_or_default());
        }
        let before = self
            .from
            .told(self.from.list_known(from))?
            .unwrap_or_default();
        let after = self
            .to
            .told(there(self.to.list_known(to).map(Some)))?
            .flatten()
            .unwrap_or_default();
        let both = [before, after].into_iter();
        Ok(both
            .flat_map(|known| {
                known
                    .names
                    .into_iter()
                    .map(|(name, _)| name)
                    .chain(known.unknown)
            })
            .collect())
    }

    fn is_one_inode(&self, old: &Arc<Trail>, new: &Arc<Trail>) -> bool {
        self.touched.is_one((&self.from, old), (&self.to, new))
    }

    /// Compares content, attributes and extended attributes of two inodes of one file type.
    fn changed(
        &self,
        old: Child,
        new: Child,
        from: &Arc<Trail>,
        to: &Arc<Trail>,
    ) -> SysResult<InodeComparison> {
        let same_inode = old.slot == new.slot;
        if same_inode && !self.touched.nodes.contains(&old.slot) {
            return Ok(InodeComparison::Same);
        }
        let Some(before) = self.from.told(self.from.attr(from))? else {
            return Ok(InodeComparison::Unknown);
        };
        let Some(after) = self.to.told(there(self.to.attr(to).map(Some)))? else {
            return Ok(InodeComparison::Unknown);
        };
        let Some(after) = after else {
            return Ok(InodeComparison::Changed);
        };
        if attributes_differ(&before, &after) {
            return Ok(InodeComparison::Changed);
        }
        let times_differ = self.times && before.stat.mtime != after.stat.mtime;
        // Changes of entries change a directory's times, which count only if no entry changed.
        let explained =
            old.kind == Kind::Dir && (!same_inode || self.touched.dirs.contains(&old.slot));
        if times_differ && !explained {
            return Ok(InodeComparison::Changed);
        }
        let xattrs = self.xattrs_differ(from, to)?;
        if xattrs != InodeComparison::Same {
            return Ok(xattrs);
        }
        if old.kind != Kind::File || (same_inode && !self.touched.data.contains(&old.slot)) {
            return Ok(InodeComparison::Same);
        }
        match same_content((&self.from, from), (&self.to, to)) {
            // Its record shows that it was about to change.
            Err(DROPPED) => Ok(InodeComparison::Changed),
            // An unprivileged daemon may not read it, even as the owner.
            Err(Errno::EACCES) => Ok(InodeComparison::Unknown),
            same => {
                let whole = if self.from.may_be_unserved() {
                    &self.from
                } else {
                    &self.to
                };
                Ok(whole
                    .told(same)?
                    .map_or(InodeComparison::Unknown, |same| (!same).into()))
            }
        }
    }

    fn xattrs_differ(&self, from: &Arc<Trail>, to: &Arc<Trail>) -> SysResult<InodeComparison> {
        let Some(before) = self.from.told(self.from.xattrs(from))? else {
            return Ok(InodeComparison::Unknown);
        };
        let after = match self.to.told(there(self.to.xattrs(to).map(Some))) {
            // An unprivileged daemon may not read it, even as the owner.
            Err(Errno::EACCES) => None,
            after => after?,
        };
        let Some(after) = after else {
            return Ok(InodeComparison::Unknown);
        };
        Ok((after != Some(before)).into())
    }
}

/// Maps the index of each addition to the index of the deletion of the same inode.
fn renamed(
    found: &[PathDiff],
    is_one: impl Fn(&Arc<Trail>, &Arc<Trail>) -> bool,
) -> HashMap<usize, usize> {
    let mut gone: HashMap<(Slot, Kind), Vec<usize>> = HashMap::new();
    for (index, item) in found
        .iter()
        .enumerate()
        .filter(|(_, item)| item.how == Difference::Deleted)
    {
        gone.entry((item.slot, item.kind)).or_default().push(index);
    }
    let mut from_of: HashMap<usize, usize> = HashMap::new();
    for (index, item) in found
        .iter()
        .enumerate()
        .filter(|(_, item)| item.how == Difference::Added)
    {
        let Some(candidates) = gone.get_mut(&(item.slot, item.kind)) else {
            continue;
        };
        let Some(from) = candidates.last().copied() else {
            continue;
        };
        let both = found
            .get(from)
            .and_then(|from| from.old.as_ref())
            .zip(item.new.as_ref());
        if both.is_none_or(|(old, new)| is_one(old, new)) {
            candidates.pop();
            from_of.insert(index, from);
        }
    }
    from_of
}

/// Pairs inodes deleted at one path and added at another, if `is_one` matches them, to renames. An
/// inode that moved only with its directory is omitted unless it also `changed`.
fn pair_renames(
    found: Vec<PathDiff>,
    is_one: impl Fn(&Arc<Trail>, &Arc<Trail>) -> bool,
    changed: impl Fn(&Arc<Trail>, &Arc<Trail>, Kind) -> SysResult<bool>,
) -> SysResult<Vec<PathDiff>> {
    let from_of = renamed(&found, is_one);
    if from_of.is_empty() {
        return Ok(found);
    }
    let moved: HashMap<Vec<u8>, Vec<u8>> = from_of
        .iter()
        .filter_map(|(to, from)| {
            Some((found.get(*to)?.path.clone(), found.get(*from)?.path.clone()))
        })
        .collect();
    let consumed: HashSet<usize> = from_of.values().copied().collect();
    let mut trails: HashMap<usize, Option<Arc<Trail>>> = from_of
        .iter()
        .filter_map(|(to, from)| Some((*to, found.get(*from)?.old.clone())))
        .collect();
    let carried = |to: &[u8], from: &[u8]| {
        let (Some((to_dir, to_name)), Some((from_dir, from_name))) = (split(to), split(from))
        else {
            return false;
        };
        to_name == from_name && moved.get(to_dir).is_some_and(|old| old == from_dir)
    };
    let mut out = Vec::with_capacity(found.len());
    for (index, item) in found.into_iter().enumerate() {
        if consumed.contains(&index) {
            continue;
        }
        let from = from_of
            .get(&index)
            .and_then(|_| moved.get(&item.path))
            .cloned();
        match from {
            Some(from) => {
                let old = trails.remove(&index).flatten();
                let both = old.as_ref().zip(item.new.as_ref());
                if !carried(&item.path, &from)
                    || both.map_or(Ok(true), |(old, new)| changed(old, new, item.kind))?
                {
                    out.push(PathDiff {
                        how: Difference::Renamed(from),
                        old,
                        ..item
                    });
                }
            }
            None => out.push(item),
        }
    }
    Ok(out)
}

fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let slash = path.iter().rposition(|byte| *byte == b'/')?;
    Some((path.get(..slash)?, path.get(slash + 1..)?))
}

/// Returns `dir/name`, or `name` in the root.
pub fn join(dir: &[u8], name: &Name) -> Vec<u8> {
    let mut path = Vec::with_capacity(dir.len() + 1 + name.as_bytes().len());
    if !dir.is_empty() {
        path.extend_from_slice(dir);
        path.push(b'/');
    }
    path.extend_from_slice(name.as_bytes());
    path
}

impl PathDiff {
    /// Creates an unknown difference.
    fn unknown(path: Vec<u8>) -> PathDiff {
        PathDiff {
            path,
            how: Difference::Unknown,
            kind: Kind::File,
            slot: Slot::STAGING,
            old: None,
            new: None,
        }
    }

    /// Returns the inode in the newer state, or in the older one if deleted.
    pub fn slot(&self) -> Slot {
        self.slot
    }
}

/// Orders two states, older first, and returns whether they were swapped.
pub fn ordered(a: TreeState, b: TreeState) -> (TreeState, TreeState, bool) {
    if a <= b { (a, b, false) } else { (b, a, true) }
}
