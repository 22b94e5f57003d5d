//! Plans the changes that make a tree equal to another.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::os::fd::OwnedFd;

use super::execute::ImportResult;
use super::record::{ImportRecord, ImportedName, InodeStamp};
use super::scan::{Listing, Scan, ScanEntry, join};
use super::skipped::SkippedPath;
use crate::dirs::{open_below, split};
use crate::inode::mode_for;
use ckptfs_store::extents::same_bytes;
use ckptfs_sys::{
    self as sys, Access, Kind, OpenKind, Stat, SysResult, Time, Xattrs, is_own_xattr,
};

/// A path, and its attributes in the source.
pub type Item = (Vec<u8>, Stat);

/// The planned changes.
#[derive(Debug, Default)]
pub struct ImportPlan {
    /// Paths to remove with everything below; none is below another.
    pub removed: Vec<Vec<u8>>,
    /// Directories to create or to set attributes of; sorted by path.
    pub dirs: Vec<Item>,
    /// Other inodes to create or replace; sorted by path.
    pub others: Vec<Item>,
}

impl ImportPlan {
    /// Plans the creation of everything, for an empty tree.
    pub fn all(source: &Scan) -> ImportPlan {
        let mut plan = ImportPlan {
            dirs: vec![(Vec::new(), source.root)],
            ..ImportPlan::default()
        };
        let unread = source.unread();
        for (path, found) in source
            .paths()
            .filter(|(path, _)| !unread.contains(path.as_slice()))
        {
            let list = if found.stat.kind == Kind::Dir {
                &mut plan.dirs
            } else {
                &mut plan.others
            };
            list.push((path, found.stat));
        }
        plan.dirs.sort_by(|a, b| a.0.cmp(&b.0));
        plan.others.sort_by(|a, b| a.0.cmp(&b.0));
        plan
    }

    /// Reports whether the plan has no changes.
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.dirs.is_empty() && self.others.is_empty()
    }
}

/// The two trees to compare.
pub struct TreePair<'a> {
    /// The root of the source, open for reading.
    pub source: &'a OwnedFd,
    /// The scan of the source.
    pub source_scan: &'a Scan,
    /// The root of the tree, open for reading.
    pub there: &'a OwnedFd,
    /// The scan of the tree.
    pub there_scan: &'a Scan,
}

/// Returns the paths not proven to be unchanged since their import, all paths if no record exists;
/// the root is the empty path.
pub fn suspects(record: Option<&ImportRecord>, source: &Scan, there: &Scan) -> BTreeSet<Vec<u8>> {
    let Some(record) = record.filter(|record| record.device == source.root.dev) else {
        return everything(source, there);
    };
    let mut found = BTreeSet::new();
    if record.root != (InodeStamp::of(&source.root), InodeStamp::of(&there.root)) {
        found.insert(Vec::new());
    }
    let names = |listing: Option<&'_ Listing>| listing.map_or(0, |listing| listing.names.len());
    let mut gone: HashSet<&[u8]> = there.dirs.iter().map(|dir| dir.path.as_slice()).collect();
    for listing in &source.dirs {
        gone.remove(listing.path.as_slice());
        let known = record
            .dirs
            .get(&listing.path)
            .map_or(&[] as &[ImportedName], Vec::as_slice);
        let there = there.dir(&listing.path);
        let there_names = there.map_or(&[] as &[ScanEntry], |there| there.names.as_slice());
        if known.len() == listing.names.len() && names(there) == known.len() {
            let same = |((known, one), other): ((&ImportedName, &ScanEntry), &ScanEntry)| {
                is_proven(known, one, other)
            };
            if known.iter().zip(&listing.names).zip(there_names).all(same) {
                continue;
            }
        }
        compare_names(
            &listing.path,
            known,
            &listing.names,
            there_names,
            &mut found,
        );
    }
    for path in gone {
        let Some(listing) = there.dir(path) else {
            continue;
        };
        found.extend(listing.names.iter().map(|name| join(path, &name.name)));
    }
    found
}

/// Reports whether the whole source is unchanged since its import.
pub fn is_as_imported(record: &ImportRecord, source: &Scan) -> bool {
    let same = |known: &ImportedName, one: &ScanEntry| {
        known.name == one.name
            && known.kind == one.stat.kind
            && known.source == InodeStamp::of(&one.stat)
    };
    record.device == source.root.dev
        && record.root.0 == InodeStamp::of(&source.root)
        && record.dirs.len() == source.dirs.len()
        && source.dirs.iter().all(|listing| {
            let known = record.dirs.get(&listing.path);
            known.is_some_and(|known| {
                known.len() == listing.names.len()
                    && known
                        .iter()
                        .zip(&listing.names)
                        .all(|(known, one)| same(known, one))
            })
        })
}

fn is_proven(known: &ImportedName, source: &ScanEntry, there: &ScanEntry) -> bool {
    known.name == source.name
        && known.name == there.name
        && (known.kind, known.kind) == (source.stat.kind, there.stat.kind)
        && known.source == InodeStamp::of(&source.stat)
        && known.there == InodeStamp::of(&there.stat)
}

fn compare_names(
    path: &[u8],
    known: &[ImportedName],
    source: &[ScanEntry],
    there: &[ScanEntry],
    found: &mut BTreeSet<Vec<u8>>,
) {
    let at = |name: &[u8]| {
        known
            .binary_search_by(|known| known.name.as_slice().cmp(name))
            .ok()
            .and_then(|at| known.get(at))
    };
    let other = |name: &[u8]| {
        there
            .binary_search_by(|found| found.name.as_slice().cmp(name))
            .ok()
            .and_then(|at| there.get(at))
    };
    for one in source {
        let proven = at(&one.name)
            .zip(other(&one.name))
            .is_some_and(|(known, there)| is_proven(known, one, there));
        if !proven {
            found.insert(join(path, &one.name));
        }
    }
    let named: HashSet<&[u8]> = source.iter().map(|one| one.name.as_slice()).collect();
    found.extend(
        there
            .iter()
            .filter(|there| !named.contains(there.name.as_slice()))
            .map(|there| join(path, &there.name)),
    );
}

/// Returns every path of both trees.
pub fn everything(source: &Scan, there: &Scan) -> BTreeSet<Vec<u8>> {
    let paths = source.paths().chain(there.paths()).map(|(path, _)| path);
    paths.chain([Vec::new()]).collect()
}

impl TreePair<'_> {
    /// Plans the changes for these paths.
    pub fn plan(&self, mut suspects: BTreeSet<Vec<u8>>) -> ImportPlan {
        let (source, there) = (
            PathIndex::of(self.source_scan),
            PathIndex::of(self.there_scan),
        );
        // All names of an inode are compared together.
        let inodes: HashSet<u64> = suspects
            .iter()
            .filter_map(|path| source.linked(path))
            .collect();
        suspects.extend(
            inodes
                .iter()
                .filter_map(|ino| source.links.get(ino))
                .flatten()
                .cloned(),
        );
        let mut plan = ImportPlan::default();
        let mut touched: BTreeSet<Vec<u8>> = BTreeSet::new();
        let unread = self.source_scan.unread();
        for path in suspects
            .iter()
            .filter(|path| !unread.contains(path.as_slice()))
        {
            let (one, other) = (source.stats.get(path), there.stats.get(path));
            if other.is_some_and(|other| one.is_none_or(|one| one.kind != other.kind)) {
                if one.is_none() && is_unknown(path, &self.source_scan.left) {
                    continue;
                }
                touched.extend(split(path).map(|(above, _)| above.to_vec()));
                plan.removed.push(path.clone());
            }
            let Some(one) = one else { continue };
            let same = other.is_some_and(|other| {
                let links = one.kind == Kind::Dir
                    || (one.nlink < 2 && other.nlink < 2)
                    || source.links_of(path) == there.links_of(path);
                one.kind == other.kind && links && self.is_same(path, one, other).unwrap_or(false)
            });
            if !same {
                // Setting attributes of an existing directory does not change its parent.
                let is_new = other.is_none_or(|other| other.kind != one.kind);
                if is_new || one.kind != Kind::Dir {
                    touched.extend(split(path).map(|(above, _)| above.to_vec()));
                }
                let list = if one.kind == Kind::Dir {
                    &mut plan.dirs
                } else {
                    &mut plan.others
                };
                list.push((path.clone(), **one));
            }
        }
        self.finish(plan, &source, touched)
    }

    /// Adds all names of each inode to create, and the parent of each changed name, to reset its
    /// times.
    fn finish(
        &self,
        mut plan: ImportPlan,
        source: &PathIndex<'_>,
        mut touched: BTreeSet<Vec<u8>>,
    ) -> ImportPlan {
        let mut making: HashSet<Vec<u8>> =
            plan.others.iter().map(|(path, _)| path.clone()).collect();
        let inodes: HashSet<u64> = plan
            .others
            .iter()
            .filter_map(|(path, _)| source.linked(path))
            .collect();
        for path in inodes
            .iter()
            .filter_map(|ino| source.links.get(ino))
            .flatten()
        {
            if let Some(stat) = source
                .stats
                .get(path)
                .filter(|_| making.insert(path.clone()))
            {
                touched.extend(split(path).map(|(above, _)| above.to_vec()));
                plan.others.push((path.clone(), **stat));
            }
        }
        let with_attrs: HashSet<&[u8]> =
            plan.dirs.iter().map(|(path, _)| path.as_slice()).collect();
        let more: Vec<Item> = touched
            .iter()
            .filter(|path| !with_attrs.contains(path.as_slice()))
            .filter_map(|path| {
                Some((
                    path.clone(),
                    **source
                        .stats
                        .get(path)
                        .filter(|stat| stat.kind == Kind::Dir)?,
                ))
            })
            .collect();
        plan.dirs.extend(more);
        plan.dirs.sort_by(|a, b| a.0.cmp(&b.0));
        plan.others.sort_by(|a, b| a.0.cmp(&b.0));
        // A removed directory covers everything below it.
        plan.removed.sort();
        plan.removed.dedup_by(|below, above| {
            below.starts_with(above) && below.get(above.len()) == Some(&b'/')
        });
        plan
    }

    /// Reports whether two inodes of one kind are equal except for the access time.
    fn is_same(&self, path: &[u8], one: &Stat, other: &Stat) -> SysResult<bool> {
        let owners = sys::ids().0 != 0 || (one.uid, one.gid) == (other.uid, other.gid);
        let mode = one.kind == Kind::Symlink
            || mode_for(
                (other.uid, other.gid),
                one.kind,
                one.mode,
                (one.uid, one.gid),
            ) == other.mode;
        let device = !matches!(one.kind, Kind::CharDev | Kind::BlockDev) || one.rdev == other.rdev;
        let size = one.kind != Kind::File || one.size == other.size;
        if !owners || !mode || !device || !size || one.mtime != other.mtime {
            return Ok(false);
        }
        if one.kind == Kind::File {
            let open = |root: &OwnedFd| {
                open_below(root, path, OpenKind::File(Access::READ)).map(File::from)
            };
            let (one, other) = (open(self.source)?, open(self.there)?);
            return Ok(
                kept(sys::file_xattrs(&one)?) == kept(sys::file_xattrs(&other)?)
                    && same_bytes(&one, &other)?,
            );
        }
        let (one_fd, other_fd) = (
            open_below(self.source, path, OpenKind::Path)?,
            open_below(self.there, path, OpenKind::Path)?,
        );
        if one.kind == Kind::Symlink && sys::readlink_fd(&one_fd)? != sys::readlink_fd(&other_fd)? {
            return Ok(false);
        }
        Ok(kept(sys::all_xattrs(&one_fd)?) == kept(sys::all_xattrs(&other_fd)?))
    }
}

fn kept(mut xattrs: Xattrs) -> Xattrs {
    xattrs.retain(|(name, _)| !is_own_xattr(name));
    xattrs
}

/// Reports whether a path may exist in the source although the scan did not find it: it, or a
/// directory above it, could not be read.
fn is_unknown(path: &[u8], left: &[SkippedPath]) -> bool {
    left.iter().filter(|left| left.why.is_missed()).any(|left| {
        let above = left.path.0.as_slice();
        above.is_empty()
            || (path.starts_with(above) && matches!(path.get(above.len()), None | Some(b'/')))
    })
}

/// The inodes of a tree by path, and the names of inodes with several.
struct PathIndex<'a> {
    stats: HashMap<Vec<u8>, &'a Stat>,
    links: HashMap<u64, BTreeSet<Vec<u8>>>,
}

impl<'a> PathIndex<'a> {
    fn of(scan: &'a Scan) -> PathIndex<'a> {
        let mut names = PathIndex {
            stats: HashMap::new(),
            links: HashMap::new(),
        };
        names.stats.insert(Vec::new(), &scan.root);
        for (path, found) in scan.paths() {
            if found.stat.kind != Kind::Dir && found.stat.nlink > 1 {
                names
                    .links
                    .entry(found.stat.ino)
                    .or_default()
                    .insert(path.clone());
            }
            names.stats.insert(path, &found.stat);
        }
        names
    }

    /// Returns the inode of a path with several names.
    fn linked(&self, path: &[u8]) -> Option<u64> {
        self.stats
            .get(path)
            .filter(|stat| stat.kind != Kind::Dir && stat.nlink > 1)
            .map(|stat| stat.ino)
    }

    fn links_of(&self, path: &[u8]) -> BTreeSet<Vec<u8>> {
        let all = self
            .linked(path)
            .and_then(|ino| self.links.get(&ino))
            .cloned();
        all.unwrap_or_else(|| BTreeSet::from([path.to_vec()]))
    }
}

/// Returns the record of an updated tree. Paths changed since `begun`, and paths that differ from
/// the source, are omitted and will be compared by the next import.
pub fn record(
    source: &Scan,
    there: &Scan,
    begun: Time,
    brought: &ImportResult,
    old: Option<&ImportRecord>,
) -> ImportRecord {
    let left: HashSet<&[u8]> = brought
        .left
        .iter()
        .chain(&source.left)
        .map(|left| left.path.0.as_slice())
        .collect();
    let mut record = ImportRecord {
        device: source.root.dev,
        root: (InodeStamp::of(&source.root), InodeStamp::of(&there.root)),
        ..ImportRecord::default()
    };
    for listing in &source.dirs {
        let Some(there) = there.dir(&listing.path) else {
            continue;
        };
        let mut names = Vec::with_capacity(listing.names.len());
        for one in &listing.names {
            let Ok(at) = there
                .names
                .binary_search_by(|found| found.name.cmp(&one.name))
            else {
                continue;
            };
            let Some(other) = there.names.get(at).map(|found| &found.stat) else {
                continue;
            };
            let path = join(&listing.path, &one.name);
            let seen = brought.seen.get(&path);
            let stat = seen.map_or(&one.stat, |seen| &seen.stat);
            if stat.ctime >= begun || !is_made(stat, other) || left.contains(path.as_slice()) {
                continue;
            }
            let before = || {
                old.and_then(|old| old.find(&listing.path, &one.name))
                    .filter(|known| known.source == InodeStamp::of(stat))?
                    .hash
            };
            let hash = seen.and_then(|seen| seen.hash).or_else(before);
            names.push(ImportedName {
                name: one.name.clone(),
                kind: stat.kind,
                source: InodeStamp::of(stat),
                there: InodeStamp::of(other),
                hash,
            });
        }
        record.dirs.insert(listing.path.clone(), names);
    }
    record
}

/// Compares the attributes that a write would change.
fn is_made(source: &Stat, there: &Stat) -> bool {
    let size = source.kind != Kind::File || source.size == there.size;
    let mode = source.kind == Kind::Symlink || source.mode == there.mode;
    source.kind == there.kind && size && mode && source.mtime == there.mtime
}
