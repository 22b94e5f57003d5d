//! Attribution: differences by process, and the restore of the changes of one process
//! (docs/adr/0015-who.md).

mod path_selection;

use std::collections::{BTreeMap, HashSet};

use self::path_selection::choose;
pub(super) use self::path_selection::{Selection, WriterSelector};
use super::Engine;
use super::checkpoint::Checkpoints;
use super::checkpoint::CutFiles;
use super::compare::StateComparer;
use super::compare::change;
use super::error;
use crate::history::diff::{Comparison, Difference, PathDiff};
use crate::history::state::TreeState;
use crate::history::touched::Touched;
use crate::history::writers::{ChangeWriter, WriterSet, Writers};
use ckptfs_api::{
    Actor, ByProcess, Change, ChangeBy, CheckpointId, OnlyBy, OpenAtCut, OpenFile, ProcessInfo,
    REWIND_PROCESS, SharedPath, StateName, TreePath, UNDO_PROCESS, VerbError, VerbResult,
};
use ckptfs_store::ids::Slot;
use ckptfs_store::record::{Process, Record};
use ckptfs_sys::{self as sys, Errno, SysResult};

/// Retries of a comparison with the live tree when the tree changes during it.
const COMPARE_TRIES: u32 = 3;

/// The differences from an older state to a newer one, with their writers.
pub(super) struct AttributedDiff {
    /// Renames paired, as printed; sorted by path, with the trails.
    pub(super) paired: Vec<(PathDiff, WriterSet)>,
    pub(super) unpaired: Vec<(PathDiff, WriterSet)>,
    pub(super) writers: Writers,
}

impl AttributedDiff {
    /// Attributes a path that was put back to its writers before its removal.
    fn look_past_rewinds(&mut self) {
        let AttributedDiff {
            paired,
            unpaired,
            writers,
        } = self;
        for (differs, set) in paired.iter_mut().chain(unpaired) {
            let put_back = !set.is_empty() && set.iter().all(|by| is_rewind(writers, *by));
            if let Some(new) = differs.new.as_ref().filter(|_| put_back) {
                set.extend(writers.ever(new));
            }
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

/// Returns the selected writers, with the descendants of a selected process.
fn meant(
    told: &AttributedDiff,
    options: &OnlyBy,
    selector: &WriterSelector,
) -> VerbResult<HashSet<usize>> {
    let mut meant: HashSet<usize> = told
        .writers
        .processes
        .iter()
        .enumerate()
        .filter(|(_, known)| selector.takes(known))
        .map(|(at, _)| at)
        .collect();
    if meant.is_empty() {
        return Err(nobody(&options.who, told));
    }
    if let WriterSelector::Pid(pid) = selector
        && meant.len() > 1
    {
        return Err(several(*pid, told, &meant));
    }
    if matches!(
        selector,
        WriterSelector::Pid(_) | WriterSelector::Started(..) | WriterSelector::Several(_)
    ) {
        told.writers.add_children(&mut meant);
    }
    if let Some(user) = options.of_user {
        let processes = &told.writers.processes;
        meant.retain(|at| {
            let known = processes.get(*at);
            known.is_some_and(|known| known.uids.iter().all(|uid| *uid == user))
        });
    }
    Ok(meant)
}

impl StateComparer {
    /// Returns the differences between two states and their writers. `times`: a different mtime
    /// counts as a difference.
    pub(super) fn told(
        &self,
        older: CheckpointId,
        newer: TreeState,
        touched: &Touched,
        times: bool,
    ) -> SysResult<AttributedDiff> {
        let upto = newer.checkpoint();
        let writers = self.timeline().writers(older, upto)?;
        let comparison = Comparison {
            from: self.view(TreeState::At(older)),
            to: self.view(newer),
            touched,
            times,
        };
        let mut tries = 0;
        let unpaired = loop {
            match comparison.unpaired(b"") {
                Err(Errno::ESTALE | Errno::ENOENT) if tries < COMPARE_TRIES => tries += 1,
                other => break other?,
            }
        };
        let by = |differs: PathDiff| {
            let set = writers.of(differs.old.as_ref(), differs.new.as_ref());
            (differs, set)
        };
        let paired = comparison
            .paired(unpaired.clone())?
            .into_iter()
            .map(by)
            .collect();
        let unpaired = unpaired.into_iter().map(by).collect();
        Ok(AttributedDiff {
            paired,
            unpaired,
            writers,
        })
    }

    /// Returns the current differences for a selective restore.
    fn told_for(
        &self,
        target: CheckpointId,
        touched: &Touched,
        options: &OnlyBy,
    ) -> SysResult<AttributedDiff> {
        // A path that was put back has the mtime of that moment.
        let times = !options.past_rewinds;
        let mut told = self.told(target, TreeState::Live, touched, times)?;
        if options.past_rewinds {
            told.look_past_rewinds();
        }
        Ok(told)
    }

    /// Returns the paths of a selective restore, the changes to report, and the paths that stay
    /// although the writer changed them.
    pub(super) fn selection(
        &self,
        target: CheckpointId,
        touched: &Touched,
        options: &OnlyBy,
        selector: &WriterSelector,
    ) -> VerbResult<Selection> {
        let failed = error::failed("the restore failed");
        let told = self.told_for(target, touched, options).map_err(failed)?;
        let meant = meant(&told, options, selector)?;
        let is_meant =
            |writer: &ChangeWriter| matches!(writer, ChangeWriter::One(at) if meant.contains(at));
        let counts = |writer: &ChangeWriter| {
            !(is_meant(writer) || options.past_rewinds && is_rewind(&told.writers, *writer))
        };
        let chosen = choose(&told.unpaired, |differs, set| {
            options.takes(&differs.path)
                && set.iter().any(is_meant)
                && (options.also_shared || !set.iter().any(counts))
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
            } else if set.iter().any(is_meant)
                && (options.takes(&path) || from.is_some_and(|from| options.takes(&from)))
            {
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

    /// Returns the selection of exactly these names, as far as they can be restored without others.
    pub(super) fn selection_of(
        &self,
        target: CheckpointId,
        touched: &Touched,
        names: &[Vec<u8>],
    ) -> SysResult<Selection> {
        let told = self.told(target, TreeState::Live, touched, true)?;
        let names: HashSet<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let chosen = choose(&told.unpaired, |differs, _| {
            names.contains(differs.path.as_slice())
        });
        let is_chosen = |differs: &PathDiff| {
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
            None => TreeState::At(self.timeline().base().ok_or_else(error::no_checkpoint)?),
        };
        let to = to.map_or(Ok(TreeState::Live), |to| self.states.state(to))?;
        let (older, newer, backwards) = crate::history::diff::ordered(from, to);
        let TreeState::At(older) = older else {
            return Ok(ByProcess::default());
        };
        if newer == TreeState::Live {
            self.checkpoints.settle();
        }
        let upto = newer.checkpoint();
        if upto == Some(older) {
            return Ok(ByProcess::default());
        }
        let touched = self.states.touched(older, upto).map_err(failed)?;
        let told = self
            .states
            .told(older, newer, &touched, true)
            .map_err(failed)?;
        let mut listed = listed(
            &told.writers,
            told.paired
                .into_iter()
                .map(|(differs, set)| (change(differs, backwards), set)),
        );
        if newer == TreeState::Live {
            // Offline changes have no known writer.
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
    /// Returns the files that were open for writing when a checkpoint was made. `None`: no file
    /// was, or an older version made the checkpoint.
    pub(super) fn open_at(&self, id: CheckpointId) -> VerbResult<Option<OpenAtCut>> {
        self.timeline()
            .open_at(id)
            .map(|found| found.map(|(open, more)| open_at_cut(open, more)))
            .map_err(error::failed("the journal cannot be read"))
    }

    /// Records the files that were open for writing at a cut. They are determined after the thaw,
    /// outside the freeze.
    pub(super) fn tell_open(&self, id: CheckpointId, opened: CutFiles) {
        let CutFiles { open, more, .. } = opened;
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
        self.timeline()
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

fn nobody(who: &str, told: &AttributedDiff) -> VerbError {
    let writers: WriterSet = told
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

fn several(pid: u32, told: &AttributedDiff, meant: &HashSet<usize>) -> VerbError {
    let mut known: Vec<String> = meant
        .iter()
        .filter_map(|at| told.writers.processes.get(*at))
        .map(|known| format!("{pid}@{} ({})", known.process.start, known.names.join(", ")))
        .collect();
    known.sort();
    error::ambiguous_process(pid, &known)
}

/// Returns whether the writer is `rewind` or `undo`, which only put changes back or take that back:
/// a path touched by them contains no work of another process.
fn is_rewind(writers: &Writers, writer: ChangeWriter) -> bool {
    let ChangeWriter::One(at) = writer else {
        return false;
    };
    writers.processes.get(at).is_some_and(|known| {
        !known.names.is_empty()
            && known
                .names
                .iter()
                .all(|name| [REWIND_PROCESS, UNDO_PROCESS].contains(&name.as_str()))
    })
}

/// Returns the printed form of a writer.
fn label(writers: &Writers, writer: ChangeWriter) -> String {
    match writer {
        ChangeWriter::Others => "others".into(),
        ChangeWriter::One(at) => match writers.processes.get(at) {
            Some(known) if known.process.pid == 0 => "unknown".into(),
            Some(known) if known.names.is_empty() => known.process.pid.to_string(),
            Some(known) => format!("{}[{}]", known.names.join("/"), known.process.pid),
            None => "unknown".into(),
        },
    }
}

/// Returns the changes and the processes that made any of them.
fn listed(writers: &Writers, changes: impl Iterator<Item = (Change, WriterSet)>) -> ByProcess {
    let mut found = ByProcess::default();
    let mut place: BTreeMap<usize, usize> = BTreeMap::new();
    for (change, set) in changes {
        let mut by = Vec::new();
        for at in set.iter().filter_map(|writer| {
            if let ChangeWriter::One(at) = writer {
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
            others: set.contains(&ChangeWriter::Others),
        });
    }
    found
}

/// Returns the process record of a verb's caller.
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
