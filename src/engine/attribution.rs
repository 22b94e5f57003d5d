//! Who did it: what differs, by process; and the restore of what one of them changed
//! (docs/adr/0015-who.md).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::Engine;
use super::api::attribution::{
    ByProcess, ChangeBy, OnlyBy, OpenAtCut, OpenFile, ProcessInfo, SharedPath,
};
use super::api::{Change, StateName, TreePath, VerbError, VerbResult};
use super::checkpoint::Checkpoints;
use super::checkpoint::Opened;
use super::compare::States;
use super::compare::change;
use super::error;
use crate::history::diff::{Comparison, Difference, Differs};
use crate::history::present::Trail;
use crate::history::state::State;
use crate::history::touched::Touched;
use crate::history::writers::{Set, Writer, Writers};
use crate::store::ids::{CheckpointId, Slot};
use crate::store::record::{Actor, Process, Record};
use crate::sys::{self, Errno, Kind, SysResult};

/// Times that a comparison with the live tree is tried again when the tree changes under it.
const COMPARE_TRIES: u32 = 3;

/// What differs from an older state to a newer, with who changed it.
pub(super) struct Told {
    /// As a person is told, sorted by path, with the trails.
    pub(super) paired: Vec<(Differs, Set)>,
    pub(super) unpaired: Vec<(Differs, Set)>,
    pub(super) writers: Writers,
}

/// Which writers are meant.
pub(super) enum Selector {
    Pid(u32),
    /// One of several that had the number: when it started.
    Started(u32, u64),
    Session(u32),
    Cgroup(String),
    Name(String),
}

impl Selector {
    /// A number is a process, what begins with `/` a control group, anything else a name; `pid:`,
    /// `session:`, `cgroup:` and `name:` say so.
    pub(super) fn parse(text: &str) -> Option<Selector> {
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0);
        let pid = |text: &str| match text.split_once('@') {
            Some((pid, start)) => Some(Selector::Started(number(pid)?, start.parse().ok()?)),
            None => number(text).map(Selector::Pid),
        };
        match text.split_once(':') {
            Some(("pid", rest)) => return pid(rest),
            Some(("session", rest)) => return number(rest).map(Selector::Session),
            Some(("cgroup", rest)) => {
                return Some(Selector::Cgroup(format!("/{}", rest.trim_matches('/'))));
            }
            Some(("name", rest)) => {
                return (!rest.is_empty()).then(|| Selector::Name(rest.to_owned()));
            }
            _ => {}
        }
        if text.is_empty() {
            None
        } else if text.starts_with('/') {
            Some(Selector::Cgroup(format!("/{}", text.trim_matches('/'))))
        } else {
            pid(text).or_else(|| Some(Selector::Name(text.to_owned())))
        }
    }

    fn takes(&self, known: &crate::history::writers::Known) -> bool {
        let within = |group: &String, of: &String| {
            of == "/"
                || group
                    .strip_prefix(of.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match self {
            Selector::Pid(pid) => known.process.pid == *pid,
            Selector::Started(pid, start) => {
                (known.process.pid, known.process.start) == (*pid, *start)
            }
            Selector::Session(session) => known.process.session == *session,
            Selector::Cgroup(of) => known.cgroups.iter().any(|group| within(group, of)),
            Selector::Name(name) => known.names.contains(name),
        }
    }
}

pub(super) fn process_info(process: &Process) -> ProcessInfo {
    ProcessInfo {
        pid: process.pid,
        start: process.start,
        uid: process.uid,
        parent: process.parent,
        session: process.session,
        name: process.name.clone(),
        also: Vec::new(),
        cgroup: process.cgroup.clone(),
        paths: 0,
    }
}

impl States {
    /// What differs between two states, and who changed it.
    pub(super) fn told(
        &self,
        older: CheckpointId,
        newer: State,
        touched: &Touched,
    ) -> SysResult<Told> {
        let upto = if let State::At(id) = newer {
            Some(id)
        } else {
            None
        };
        let writers = self.live.timeline().writers(older, upto)?;
        let comparison = Comparison {
            from: self.view(State::At(older)),
            to: self.view(newer),
            touched,
            times: true,
        };
        let mut tries = 0;
        let unpaired = loop {
            match comparison.unpaired(b"") {
                Err(Errno::ESTALE | Errno::ENOENT) if tries < COMPARE_TRIES => tries += 1,
                other => break other?,
            }
        };
        let by = |differs: Differs| {
            let set = writers.of(differs.old.as_ref(), differs.new.as_ref());
            (differs, set)
        };
        let paired = comparison
            .paired(unpaired.clone())?
            .into_iter()
            .map(by)
            .collect();
        let unpaired = unpaired.into_iter().map(by).collect();
        Ok(Told {
            paired,
            unpaired,
            writers,
        })
    }

    /// What a selected restore is to do: the paths, what a person is told of them, and what stays
    /// although the writer changed it.
    pub(super) fn selection(
        &self,
        target: CheckpointId,
        touched: &Touched,
        options: &OnlyBy,
        selector: &Selector,
    ) -> VerbResult<Selection> {
        let failed = error::failed("the restore failed");
        let told = self.told(target, State::Live, touched).map_err(failed)?;
        let mut meant: HashSet<usize> = told
            .writers
            .processes
            .iter()
            .enumerate()
            .filter(|(_, known)| selector.takes(known))
            .map(|(at, _)| at)
            .collect();
        if meant.is_empty() {
            return Err(nobody(&options.who, &told));
        }
        if let Selector::Pid(pid) = selector
            && meant.len() > 1
        {
            return Err(several(*pid, &told, &meant));
        }
        if matches!(selector, Selector::Pid(_) | Selector::Started(..)) {
            told.writers.add_children(&mut meant);
        }
        let is_meant = |writer: &Writer| matches!(writer, Writer::One(at) if meant.contains(at));
        let chosen = choose(&told.unpaired, |_, set| {
            if options.also_shared {
                set.iter().any(is_meant)
            } else {
                !set.is_empty() && set.iter().all(is_meant)
            }
        });
        let mut shared = Vec::new();
        let mut changes = Vec::new();
        for (differs, set) in told.paired {
            let from = if let Difference::Renamed(from) = &differs.how {
                Some(from.clone())
            } else {
                None
            };
            let path = differs.path.clone();
            if chosen.contains(&path) && from.as_ref().is_none_or(|from| chosen.contains(from)) {
                changes.push(change(differs, true));
            } else if set.iter().any(is_meant) {
                let others: Vec<String> = set
                    .iter()
                    .filter(|writer| !is_meant(writer))
                    .map(|writer| label(&told.writers, *writer))
                    .collect();
                shared.push(SharedPath {
                    path: TreePath(path),
                    by: others,
                });
            }
        }
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Selection::new(&told.unpaired, chosen, changes, shared))
    }

    /// What a restore of these names alone is to do, as far as that can be without others.
    pub(super) fn selection_of(
        &self,
        target: CheckpointId,
        touched: &Touched,
        names: &[Vec<u8>],
    ) -> SysResult<Selection> {
        let told = self.told(target, State::Live, touched)?;
        let names: HashSet<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let chosen = choose(&told.unpaired, |differs, _| {
            names.contains(differs.path.as_slice())
        });
        let is_chosen = |differs: &Differs| {
            let from = if let Difference::Renamed(from) = &differs.how {
                Some(from)
            } else {
                None
            };
            chosen.contains(&differs.path) && from.is_none_or(|from| chosen.contains(from))
        };
        let mut changes: Vec<Change> = told
            .paired
            .into_iter()
            .filter(|(differs, _)| is_chosen(differs))
            .map(|(differs, _)| change(differs, true))
            .collect();
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Selection::new(&told.unpaired, chosen, changes, Vec::new()))
    }
}

impl Engine {
    pub(super) fn changes_by(
        &self,
        from: Option<&StateName>,
        to: Option<&StateName>,
    ) -> VerbResult<ByProcess> {
        let failed = error::not_compared;
        let from = match from {
            Some(from) => self.states.state(from)?,
            None => State::At(
                self.live
                    .timeline()
                    .base()
                    .ok_or_else(error::no_checkpoint)?,
            ),
        };
        let to = to.map_or(Ok(State::Live), |to| self.states.state(to))?;
        let (older, newer, backwards) = crate::history::diff::ordered(from, to);
        let State::At(older) = older else {
            return Ok(ByProcess::default());
        };
        if newer == State::Live {
            self.checkpoints.settle();
        }
        let upto = if let State::At(id) = newer {
            Some(id)
        } else {
            None
        };
        if upto == Some(older) {
            return Ok(ByProcess::default());
        }
        let touched = self.states.touched(older, upto).map_err(failed)?;
        let told = self.states.told(older, newer, &touched).map_err(failed)?;
        let mut listed = listed(
            &told.writers,
            told.paired
                .into_iter()
                .map(|(differs, set)| (change(differs, backwards), set)),
        );
        if newer == State::Live {
            // What was changed unseen: nobody knows by whom.
            let known: HashSet<TreePath> = listed
                .changes
                .iter()
                .map(|one| one.change.path.clone())
                .collect();
            let unseen = self.states.changed_unserved(older).map_err(failed)?;
            let unseen = unseen.iter().filter(|change| !known.contains(&change.path));
            listed.changes.extend(unseen.map(|change| ChangeBy {
                change: change.clone(),
                by: Vec::new(),
                others: false,
            }));
        }
        listed
            .changes
            .sort_by(|a, b| a.change.path.cmp(&b.change.path));
        Ok(listed)
    }
}

impl Checkpoints {
    /// What was open for writing when a checkpoint was made, as it was told then; `None`: nothing
    /// was, or an older program made it.
    pub(super) fn open_at(&self, id: CheckpointId) -> VerbResult<Option<OpenAtCut>> {
        self.live
            .timeline()
            .open_at(id)
            .map(|found| found.map(|(open, more)| open_at_cut(open, more)))
            .map_err(error::failed("the journal cannot be read"))
    }

    /// Tells the journal what was open for writing at a cut: found out after the thaw, so that
    /// nobody waits for it.
    pub(super) fn tell_open(&self, id: CheckpointId, opened: Opened) {
        let Opened { open, more, .. } = opened;
        if open.is_empty() && more == 0 {
            return;
        }
        let path = |slot: Slot| {
            self.live
                .inodes
                .path_of(slot)
                .unwrap_or_else(|| format!("(inode {}, without a name)", slot.0).into_bytes())
        };
        let open = open
            .into_iter()
            .map(|(slot, by)| (path(slot), by.process.clone()))
            .collect();
        self.live
            .timeline()
            .journal
            .tell(Record::OpenAt { id, open, more });
    }
}

pub(super) fn open_at_cut(open: Vec<(Vec<u8>, Process)>, more: u64) -> OpenAtCut {
    let mut files: Vec<OpenFile> = open
        .into_iter()
        .map(|(path, by)| OpenFile {
            path: TreePath(path),
            by: process_info(&by),
        })
        .collect();
    files.sort_by(|a, b| a.path.cmp(&b.path).then(a.by.pid.cmp(&b.by.pid)));
    OpenAtCut { files, more }
}

/// What a restore of selected paths is to do.
#[derive(Default)]
pub(super) struct Selection {
    /// The names as they are in the one state or the other.
    pub(super) names: Vec<Vec<u8>>,
    /// These names alone, as the state that is restored has them.
    pub(super) paths: Vec<Vec<u8>>,
    pub(super) changes: Vec<Change>,
    pub(super) shared: Vec<SharedPath>,
}

impl Selection {
    fn new(
        found: &[(Differs, Set)],
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

fn nobody(who: &str, told: &Told) -> VerbError {
    let writers: Set = told
        .unpaired
        .iter()
        .flat_map(|(_, set)| set.iter().copied())
        .collect();
    let mut known: Vec<String> = writers
        .into_iter()
        .map(|writer| label(&told.writers, writer))
        .collect();
    known.sort();
    known.dedup();
    known.truncate(8);
    error::unknown_process(who, &known)
}

fn several(pid: u32, told: &Told, meant: &HashSet<usize>) -> VerbError {
    let mut known: Vec<String> = meant
        .iter()
        .filter_map(|at| told.writers.processes.get(*at))
        .map(|known| format!("{pid}@{} ({})", known.process.start, known.names.join(", ")))
        .collect();
    known.sort();
    error::ambiguous_process(pid, &known)
}

/// A process as a person is told of it.
fn label(writers: &Writers, writer: Writer) -> String {
    match writer {
        Writer::Others => "others".into(),
        Writer::One(at) => match writers.processes.get(at) {
            Some(known) if known.process.pid == 0 => "unknown".into(),
            Some(known) if known.names.is_empty() => known.process.pid.to_string(),
            Some(known) => format!("{}[{}]", known.names.join("/"), known.process.pid),
            None => "unknown".into(),
        },
    }
}

/// The changes with the processes that made them, those alone that made any.
fn listed(writers: &Writers, changes: impl Iterator<Item = (Change, Set)>) -> ByProcess {
    let mut found = ByProcess::default();
    let mut place: BTreeMap<usize, usize> = BTreeMap::new();
    for (change, set) in changes {
        let mut by = Vec::new();
        for at in set.iter().filter_map(|writer| {
            if let Writer::One(at) = writer {
                Some(*at)
            } else {
                None
            }
        }) {
            let next = found.processes.len();
            let index = *place.entry(at).or_insert(next);
            if index == next
                && let Some(known) = writers.processes.get(at)
            {
                let mut info = process_info(&known.process);
                info.also = known.names.iter().skip(1).cloned().collect();
                found.processes.push(info);
            }
            if let Some(info) = found.processes.get_mut(index) {
                info.paths += 1;
            }
            by.push(index);
        }
        found.changes.push(ChangeBy {
            change,
            by,
            others: set.contains(&Writer::Others),
        });
    }
    found
}

/// Where an inode has gone from, and where it has come to.
type Moves<'a> = (Vec<&'a [u8]>, Vec<&'a [u8]>);

fn parent_of(path: &[u8]) -> Option<&[u8]> {
    path.iter()
        .rposition(|byte| *byte == b'/')
        .and_then(|at| path.get(..at))
}

/// The paths that can be made what they were, and are chosen: nothing that is not chosen goes or
/// comes with them. What cannot be done without the rest is left out until that is so:
/// - what has gone together with its directory comes back only if that does, or is there;
/// - a directory goes only if all that is in it does;
/// - an inode that has another path now is at one of the two, so both are chosen or none.
fn choose(found: &[(Differs, Set)], wanted: impl Fn(&Differs, &Set) -> bool) -> HashSet<Vec<u8>> {
    let by_path: HashMap<&[u8], &Differs> = found
        .iter()
        .map(|(differs, _)| (differs.path.as_slice(), differs))
        .collect();
    let mut pairs: HashMap<(Slot, Kind), Moves<'_>> = HashMap::new();
    for (differs, _) in found {
        match differs.how {
            Difference::Deleted => pairs
                .entry((differs.slot(), differs.kind))
                .or_default()
                .0
                .push(&differs.path),
            Difference::Added => pairs
                .entry((differs.slot(), differs.kind))
                .or_default()
                .1
                .push(&differs.path),
            _ => {}
        }
    }
    pairs.retain(|_, (gone, come)| !gone.is_empty() && !come.is_empty());
    let mut chosen: HashSet<&[u8]> = found
        .iter()
        .filter(|(differs, set)| wanted(differs, set))
        .map(|(differs, _)| differs.path.as_slice())
        .collect();
    loop {
        let before = chosen.len();
        let fits = |path: &&[u8], chosen: &HashSet<&[u8]>| {
            let comes = by_path
                .get(path)
                .is_some_and(|differs| differs.old.is_some());
            let up = parent_of(path).and_then(|up| by_path.get(up));
            let needs_up = up
                .is_some_and(|up| matches!(up.how, Difference::Deleted | Difference::TypeChanged));
            !(comes && needs_up) || up.is_some_and(|up| chosen.contains(up.path.as_slice()))
        };
        let mut all: Vec<&[u8]> = chosen.iter().copied().collect();
        all.sort_unstable();
        for path in all {
            if !fits(&path, &chosen) {
                chosen.remove(path);
            }
        }
        let stay = |differs: &&Differs| {
            differs.how == Difference::Added && !chosen.contains(differs.path.as_slice())
        };
        let staying: Vec<&Differs> = found
            .iter()
            .map(|(differs, _)| differs)
            .filter(stay)
            .collect();
        for differs in staying {
            let mut up = parent_of(&differs.path);
            while let Some(path) = up {
                if by_path.get(path).is_some_and(|above| {
                    matches!(above.how, Difference::Added | Difference::TypeChanged)
                }) {
                    chosen.remove(path);
                }
                up = parent_of(path);
            }
        }
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

/// The chosen names as the plan wants them: what is in a directory that goes back to where it was,
/// by its path there.
fn exact_paths(found: &[(Differs, Set)], chosen: &HashSet<Vec<u8>>) -> Vec<Vec<u8>> {
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

/// The name of this program's process for what a verb changes.
pub(super) fn actor_process(by: &Actor) -> Process {
    let facts = sys::facts_of(by.pid).unwrap_or_default();
    Process {
        pid: by.pid,
        start: facts.start,
        uid: by.uid,
        parent: facts.parent,
        session: facts.session,
        name: by.process.clone(),
        cgroup: facts.cgroup,
    }
}
