//! Path selection of a selective restore: the changes of one process, without those of any other.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::history::diff::{Difference, PathDiff};
use crate::history::present::Trail;
use crate::history::writers::WriterSet;
use ckptfs_api::{Change, SharedPath};
use ckptfs_store::ids::Slot;
use ckptfs_sys::Kind;

/// Selection of writers.
pub(in crate::engine) enum WriterSelector {
    Pid(u32),
    /// Identifies one of several processes with this pid by its start time.
    Started(u32, u64),
    /// Several processes, treated as one.
    Several(Vec<(u32, u64)>),
    Session(u32),
    Cgroup(String),
    Name(String),
}

impl WriterSelector {
    /// Parses a selector: a number is a process, several `PID@START` are separated by commas, a
    /// leading `/` denotes a control group, and anything else a command name. `pid:`, `session:`,
    /// `cgroup:` and `name:` are explicit.
    pub(in crate::engine) fn parse(text: &str) -> Option<WriterSelector> {
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0);
        let started = |text: &str| {
            let (pid, start) = text.split_once('@')?;
            Some((number(pid)?, start.parse().ok()?))
        };
        let pid = |text: &str| match text.split_once('@') {
            Some(_) => started(text).map(|(pid, start)| WriterSelector::Started(pid, start)),
            None => number(text).map(WriterSelector::Pid),
        };
        if text.contains(',')
            && let Some(all) = text.split(',').map(started).collect()
        {
            return Some(WriterSelector::Several(all));
        }
        match text.split_once(':') {
            Some(("pid", rest)) => return pid(rest),
            Some(("session", rest)) => return number(rest).map(WriterSelector::Session),
            Some(("cgroup", rest)) => {
                return Some(WriterSelector::Cgroup(format!(
                    "/{}",
                    rest.trim_matches('/')
                )));
            }
            Some(("name", rest)) => {
                return (!rest.is_empty()).then(|| WriterSelector::Name(rest.to_owned()));
            }
            _ => {}
        }
        if text.is_empty() {
            None
        } else if text.starts_with('/') {
            Some(WriterSelector::Cgroup(format!(
                "/{}",
                text.trim_matches('/')
            )))
        } else {
            pid(text).or_else(|| Some(WriterSelector::Name(text.to_owned())))
        }
    }

    pub(super) fn takes(&self, known: &crate::history::writers::WriterProcess) -> bool {
        let within = |group: &String, of: &String| {
            of == "/"
                || group
                    .strip_prefix(of.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match self {
            WriterSelector::Pid(pid) => known.process.pid == *pid,
            WriterSelector::Started(pid, start) => {
                (known.process.pid, known.process.start) == (*pid, *start)
            }
            WriterSelector::Several(all) => all.contains(&(known.process.pid, known.process.start)),
            WriterSelector::Session(session) => known.process.session == *session,
            WriterSelector::Cgroup(of) => known.cgroups.iter().any(|group| within(group, of)),
            WriterSelector::Name(name) => known.names.contains(name),
        }
    }
}

/// The paths of a selective restore.
#[derive(Default)]
pub(in crate::engine) struct Selection {
    /// Paths in either of the two states.
    pub(in crate::engine) names: Vec<Vec<u8>>,
    /// Exactly these paths, named as in the restored state.
    pub(in crate::engine) paths: Vec<Vec<u8>>,
    pub(in crate::engine) changes: Vec<Change>,
    pub(in crate::engine) shared: Vec<SharedPath>,
}

impl Selection {
    pub(super) fn new(
        found: &[(PathDiff, WriterSet)],
        chosen: HashSet<Vec<u8>>,
        changes: Vec<Change>,
        shared: Vec<SharedPath>,
    ) -> Self {
        let paths = exact_paths(found, &chosen);
        let mut names: Vec<Vec<u8>> = chosen.into_iter().collect();
        names.sort();
        Selection {
            names,
            paths,
            changes,
            shared,
        }
    }
}

/// The old and the new paths of an inode.
type Moves<'a> = (Vec<&'a [u8]>, Vec<&'a [u8]>);

fn parent_of(path: &[u8]) -> Option<&[u8]> {
    path.iter()
        .rposition(|byte| *byte == b'/')
        .and_then(|at| path.get(..at))
}

/// Returns the wanted paths that can be restored without adding or removing any other. Paths that
/// violate a rule are dropped until none does:
/// - a path deleted with its directory needs that directory, existing or restored;
/// - a directory can only be removed with everything in it;
/// - a moved inode needs all of its old and new paths.
pub(super) fn choose(
    found: &[(PathDiff, WriterSet)],
    wanted: impl Fn(&PathDiff, &WriterSet) -> bool,
) -> HashSet<Vec<u8>> {
    let by_path: HashMap<&[u8], &PathDiff> = found
        .iter()
        .map(|(differs, _)| (differs.path.as_slice(), differs))
        .collect();
    let pairs = moves(found);
    let mut chosen: HashSet<&[u8]> = found
        .iter()
        .filter(|(differs, set)| wanted(differs, set))
        .map(|(differs, _)| differs.path.as_slice())
        .collect();
    loop {
        let before = chosen.len();
        leave_out_orphans(&by_path, &mut chosen);
        leave_out_full(found, &by_path, &mut chosen);
        for (gone, come) in pairs.values() {
            if !gone.iter().chain(come).all(|path| chosen.contains(path)) {
                gone.iter().chain(come).for_each(|path| {
                    chosen.remove(path);
                });
            }
        }
        if chosen.len() == before {
            return chosen.into_iter().map(<[u8]>::to_vec).collect();
        }
    }
}

/// Returns the inodes that moved from one path to another.
fn moves(found: &[(PathDiff, WriterSet)]) -> HashMap<(Slot, Kind), Moves<'_>> {
    let mut pairs: HashMap<(Slot, Kind), Moves<'_>> = HashMap::new();
    for (differs, _) in found {
        let key = (differs.slot(), differs.kind);
        match differs.how {
            Difference::Deleted => pairs.entry(key).or_default().0.push(&differs.path),
            Difference::Added => pairs.entry(key).or_default().1.push(&differs.path),
            _ => {}
        }
    }
    pairs.retain(|_, (gone, come)| !gone.is_empty() && !come.is_empty());
    pairs
}

/// Drops paths that would return into a directory that does not.
fn leave_out_orphans(by_path: &HashMap<&[u8], &PathDiff>, chosen: &mut HashSet<&[u8]>) {
    let mut all: Vec<&[u8]> = chosen.iter().copied().collect();
    // Parents first.
    all.sort_unstable();
    for path in all {
        let found = by_path.get(path);
        let comes = found.is_some_and(|differs| differs.old.is_some());
        let up = parent_of(path).and_then(|up| by_path.get(up));
        let gone = up.filter(|up| matches!(up.how, Difference::Deleted | Difference::TypeChanged));
        if comes && gone.is_some_and(|up| !chosen.contains(up.path.as_slice())) {
            chosen.remove(path);
        }
    }
}

/// Drops directories that would be removed although an entry below them stays.
fn leave_out_full(
    found: &[(PathDiff, WriterSet)],
    by_path: &HashMap<&[u8], &PathDiff>,
    chosen: &mut HashSet<&[u8]>,
) {
    let added = found.iter().map(|(differs, _)| differs);
    let staying: Vec<&[u8]> = added
        .filter(|differs| differs.how == Difference::Added)
        .map(|differs| differs.path.as_slice())
        .filter(|path| !chosen.contains(path))
        .collect();
    for path in staying {
        let mut up = parent_of(path);
        while let Some(path) = up {
            if by_path.get(path).is_some_and(|above| {
                matches!(above.how, Difference::Added | Difference::TypeChanged)
            }) {
                chosen.remove(path);
            }
            up = parent_of(path);
        }
    }
}

/// Returns the chosen paths in the form that the plan expects: entries of a directory that moves
/// back have their path below its old place.
fn exact_paths(found: &[(PathDiff, WriterSet)], chosen: &HashSet<Vec<u8>>) -> Vec<Vec<u8>> {
    let chosen_ones = || {
        found
            .iter()
            .map(|(differs, _)| differs)
            .filter(|differs| chosen.contains(&differs.path))
    };
    let back: HashMap<Slot, &[u8]> = chosen_ones()
        .filter(|differs| differs.kind == Kind::Dir && differs.new.is_none())
        .map(|differs| (differs.slot(), differs.path.as_slice()))
        .collect();
    let there = |trail: &Arc<Trail>| {
        let mut names = Vec::new();
        let mut at = trail;
        while let Some(up) = &at.up {
            names.push(at.name.as_bytes());
            if let Some(path) = back.get(&up.slot) {
                names.reverse();
                return Some([path, names.join(&b'/').as_slice()].join(&b'/'));
            }
            at = up;
        }
        None
    };
    let mut paths: Vec<Vec<u8>> = chosen_ones()
        .map(|differs| {
            differs
                .new
                .as_ref()
                .filter(|_| differs.how == Difference::Added)
                .and_then(there)
                .unwrap_or_else(|| differs.path.clone())
        })
        .collect();
    paths.sort();
    paths.dedup();
    paths
}
