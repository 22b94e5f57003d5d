//! The expected differences of two trees of the model, by the documented rules of `diff` and
//! `status`, and their comparison with the output.

use std::collections::{BTreeMap, BTreeSet};

use super::observe::{StampTimes, shown};
use super::tree::{Id, Node, Tree};
use ckptfs_api::{Change, ChangeKind};

/// Letters of the paths that must be listed, and paths that may be.
#[derive(Debug, Default)]
pub struct Expected {
    pub must: BTreeMap<Vec<u8>, char>,
    pub may: BTreeSet<Vec<u8>>,
}

/// Compares two trees; the times of `loose` nodes are unknown.
pub fn expected(old: &Tree, new: &Tree, times: &StampTimes, loose: &BTreeSet<Id>) -> Expected {
    let (before, after) = (old.paths(), new.paths());
    let mut found = Expected::default();
    for (path, id) in before.iter().filter(|(path, _)| !path.is_empty()) {
        let Some(other) = after.get(path) else {
            found.must.insert(path.clone(), 'D');
            continue;
        };
        let (a, b) = (old.node(*id), new.node(*other));
        if a.body.letter() != b.body.letter() {
            found.must.insert(path.clone(), 'T');
        } else if differs(a, b) {
            found.must.insert(path.clone(), 'M');
        } else if a.mtime != b.mtime {
            let same_dir = id == other && a.entries == b.entries;
            match (times.get(a.mtime), times.get(b.mtime)) {
                _ if loose.contains(id) || loose.contains(other) => {
                    found.may.insert(path.clone());
                }
                (Some(x), Some(y)) if x == y => {}
                // A directory's time counts if its entries did not change. Whether they changed in
                // between is not always known here.
                (Some(_), Some(_)) if !a.is_dir() || same_dir => {
                    found.must.insert(path.clone(), 'M');
                }
                _ if a.is_dir() && id == other && !same_dir => drop(found.may.insert(path.clone())),
                _ => drop(found.may.insert(path.clone())),
            }
        }
    }
    for path in after.keys().filter(|path| !before.contains_key(*path)) {
        found.must.insert(path.clone(), 'A');
    }
    found
}

fn differs(a: &Node, b: &Node) -> bool {
    let body = !a.is_dir() && a.body != b.body;
    body || a.mode != b.mode || a.uid != b.uid || a.gid != b.gid || a.xattrs != b.xattrs
}

/// Returns letters by path, with renames split.
pub fn taken_apart(
    changes: &[Change],
    old: &Tree,
    new: &Tree,
) -> Result<BTreeMap<Vec<u8>, char>, String> {
    let mut found = BTreeMap::new();
    let mut add = |path: &[u8], letter: char| match found.insert(path.to_vec(), letter) {
        Some(before) if before != letter => Err(format!(
            "{} is reported as {before} and as {letter}",
            shown(path)
        )),
        _ => Ok(()),
    };
    for change in changes {
        let path = &change.path.0;
        if change.change != ChangeKind::Renamed {
            add(path, change.change.letter())?;
            continue;
        }
        let from = &change.from.as_ref().ok_or("a rename without `from`")?.0;
        let below = |tree: &Tree, top: &[u8]| -> Vec<Vec<u8>> {
            tree.paths()
                .into_keys()
                .filter(|path| {
                    path == top || (path.starts_with(top) && path.get(top.len()) == Some(&b'/'))
                })
                .collect()
        };
        for path in below(old, from) {
            add(&path, 'D')?;
        }
        for path in below(new, path) {
            add(&path, 'A')?;
        }
    }
    Ok(found)
}

/// Compares the listed changes with the expected ones.
pub fn check(
    what: &str,
    changes: &[Change],
    expected: &Expected,
    old: &Tree,
    new: &Tree,
) -> Result<(), String> {
    let told = taken_apart(changes, old, new).map_err(|problem| format!("{what}: {problem}"))?;
    for (path, letter) in &expected.must {
        match told.get(path) {
            Some(is) if is == letter => {}
            Some(is) => {
                return Err(format!(
                    "{what}: {} is reported as {is}, expected {letter}",
                    shown(path)
                ));
            }
            None => {
                return Err(format!(
                    "{what}: {} is not reported, expected {letter}",
                    shown(path)
                ));
            }
        }
    }
    match told
        .iter()
        .find(|(path, _)| !expected.must.contains_key(*path) && !expected.may.contains(*path))
    {
        Some((path, letter)) => Err(format!(
            "{what}: {} is reported as {letter}, but does not differ",
            shown(path)
        )),
        None => Ok(()),
    }
}
