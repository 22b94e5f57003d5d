//! `export`: the tree of a checkpoint, sent in parts to a client that copies it, with descriptors
//! of its files (docs/adr/0016-export.md).
//!
//! The client clones the files itself, with its own credentials, and then confirms the part. **Only
//! the confirmation proves** that content cloned from live files was that of the checkpoint: a
//! record precedes its change, so a file without a record is unchanged
//! ([`View`](crate::history::view::View) has the same rule). Files that changed while they were
//! copied are sent again.
//!
//! Most of a tree has no record after its checkpoint. The journal lists the inodes that have one.
//! All others are read from the backing filesystem without a look-up in history. If anything was
//! recorded since the export began, history is consulted.
//!
//! **Locking.** Several connections work on a job at the same time. Its state is a leaf lock; no
//! file is read or opened under it.

mod entries;
mod plan;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::error;
use super::runs::SlicedRuns;
use crate::history::diff::join;
use crate::history::present::Trail;
use crate::history::state::TreeState;
use crate::history::touched::Touched;
use ckptfs_api::{CheckpointId, ExportAsk, ExportEntry, ExportPart, Refused, TreePath, VerbResult};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::Child;
use ckptfs_sys::lock::{Condvar, Mutex};
use ckptfs_sys::{Errno, FILES_AT_ONCE, Kind, SysResult, Time};
use plan::DiffPlanner;

/// Interval and number of waits of a request for a part that depends on other parts.
const WAIT: Duration = Duration::from_millis(5);
const WAITS_MAX: u32 = 10;
/// Limit of entries in one part.
const ENTRIES_MAX: usize = FILES_AT_ONCE;
/// Approximate size of one part in a message, in bytes.
const PART_BYTES_MAX: usize = 1 << 20;
/// Limit of paths to remove in one part.
const REMOVED_MAX: usize = 1000;

/// The exports in progress. Their clients' requests drive them.
pub(super) type Exports = SlicedRuns<Arc<ExportJob>, 8>;

/// An export.
pub(super) struct ExportJob {
    at: CheckpointId,
    from: Option<CheckpointId>,
    /// All entries are sent in the order of names.
    in_order: bool,
    /// Of [`ExportAsk::Whole`]: the state whose files are not sent again, and the records between
    /// the two.
    since: Option<(CheckpointId, Touched)>,
    /// The records after the checkpoint, up to the beginning of the export.
    touched: Touched,
    /// [`crate::history::epochs::Epochs::recordings`] before `touched` was read.
    recordings: u64,
    total: Option<u64>,
    /// See [`plan::DiffPlan::kept`].
    kept: HashMap<Slot, Vec<u8>>,
    progress: Mutex<ExportProgress>,
    /// Signals that a part was sent or confirmed.
    told: Condvar,
}

#[derive(Default)]
struct ExportProgress {
    removed: Vec<Vec<u8>>,
    /// Pending work, the next item last.
    todo: Vec<ExportWork>,
    refused: Vec<Refused>,
    /// Directories already sent: a forged directory could be in many places.
    listed: HashSet<Slot>,
    /// Parts being assembled.
    busy: u32,
    last_part: u64,
    /// In a difference: names of hard-linked files in directories that are sent whole. Their other
    /// names are searched at the end.
    linked: Vec<LinkedName>,
    /// Parts sent and not yet confirmed, with the entries to be proven.
    given: HashMap<u64, Vec<SentEntry>>,
}

impl ExportProgress {
    /// Returns whether everything was sent and confirmed.
    fn is_finished(&self) -> bool {
        self.busy == 0
            && self.todo.is_empty()
            && self.removed.is_empty()
            && self.linked.is_empty()
            && self.given.is_empty()
    }
}

/// An item of work.
enum ExportWork {
    /// A directory and everything below it.
    List {
        path: Vec<u8>,
        trail: Arc<Trail>,
        /// Whether it had this path in [`ExportJob::since`].
        was_here: bool,
    },
    /// The remaining entries of a directory.
    Rest {
        path: Vec<u8>,
        trail: Arc<Trail>,
        was_here: bool,
        names: std::vec::IntoIter<(Name, Child)>,
    },
    /// A single inode.
    One {
        path: Vec<u8>,
        child: Child,
        trail: Arc<Trail>,
        how: ExportExtent,
        again: bool,
    },
}

/// The extent to which an inode is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ExportExtent {
    Whole,
    /// Attributes only: the content is that of the earlier state.
    Kept,
    /// A hard link to another name, whose content is sent.
    Link(Vec<u8>),
}

/// A name of a hard-linked file.
struct LinkedName {
    path: Vec<u8>,
    child: Child,
    trail: Arc<Trail>,
    nlink: u32,
}

impl ExportWork {
    fn all() -> ExportWork {
        ExportWork::List {
            path: Vec::new(),
            trail: Trail::root(),
            was_here: true,
        }
    }

    fn one(path: Vec<u8>, child: Child, trail: Arc<Trail>, how: ExportExtent) -> ExportWork {
        ExportWork::One {
            path,
            child,
            trail,
            how,
            again: false,
        }
    }
}

/// An entry read from the live tree.
struct SentEntry {
    path: Vec<u8>,
    child: Child,
    trail: Arc<Trail>,
    /// The descriptor that was sent, with the ctime of the file at that time.
    file: Option<(Arc<File>, Time)>,
    /// History was not consulted, because the inode had no record.
    unrecorded: bool,
}

impl ExportJob {
    fn new(at: CheckpointId, touched: Touched, recordings: u64) -> ExportJob {
        ExportJob {
            at,
            from: None,
            in_order: false,
            since: None,
            touched,
            recordings,
            total: None,
            kept: HashMap::new(),
            progress: Mutex::default(),
            told: Condvar::default(),
        }
    }

    /// Returns the state that entries with [`ExportData::Kept`](ckptfs_api::ExportData::Kept) refer to.
    fn told_from(&self) -> Option<CheckpointId> {
        self.from.or(self.since.as_ref().map(|(since, _)| *since))
    }

    /// Returns the extent to which an inode is sent. `was_here`: it had its path in
    /// [`ExportJob::since`].
    fn how(&self, child: Child, was_here: bool) -> ExportExtent {
        match &self.since {
            Some((_, touched))
                if was_here && child.kind == Kind::File && !touched.data.contains(&child.slot) =>
            {
                ExportExtent::Kept
            }
            _ => ExportExtent::Whole,
        }
    }

    /// Returns whether an inode had no record after the checkpoint when the export began.
    fn is_untouched(&self, slot: Slot) -> bool {
        !self.touched.nodes.contains(&slot)
    }
}

/// A part being assembled.
#[derive(Default)]
struct PartBuilder {
    part: Vec<ExportEntry>,
    files: Vec<Arc<File>>,
    given: Vec<SentEntry>,
    refused: Vec<Refused>,
    linked: Vec<LinkedName>,
    removed: Vec<Vec<u8>>,
    bytes: usize,
}

impl PartBuilder {
    fn is_full(&self) -> bool {
        self.part.len() >= ENTRIES_MAX
            || self.files.len() >= FILES_AT_ONCE
            || self.bytes >= PART_BYTES_MAX
    }

    fn add(&mut self, entry: ExportEntry, file: Option<Arc<File>>, given: Option<SentEntry>) {
        self.bytes += entry.weight();
        self.part.push(entry);
        self.files.extend(file);
        self.given.extend(given);
    }

    fn refuse(&mut self, path: Vec<u8>, errno: Errno) {
        if self.refused.last().is_some_and(|last| last.path.0 == path) {
            return;
        }
        self.bytes += path.len();
        self.refused.push(Refused {
            path: TreePath(path),
            errno: errno.0,
        });
    }
}

/// Exports checkpoints of an engine.
#[derive(Clone, Copy)]
pub(super) struct Exporter<'a> {
    pub(super) engine: &'a Engine,
}

impl<'a> Exporter<'a> {
    pub(super) fn new(engine: &'a Engine) -> Exporter<'a> {
        Exporter { engine }
    }

    /// Answers one request.
    pub(super) fn part(
        &self,
        ask: &ExportAsk,
        files: &mut Vec<Arc<File>>,
    ) -> VerbResult<ExportPart> {
        match ask {
            ExportAsk::Begin { state, from } => {
                let at = self.engine.states.checkpoint_id(state)?;
                self.put(at, self.begin(at, *from))
            }
            ExportAsk::Whole { state, since } => {
                let at = self.engine.states.checkpoint_id(state)?;
                self.put(at, self.begin_whole(at, *since))
            }
            ExportAsk::Next { run, done } | ExportAsk::Ahead { run, done } => {
                let job = self.get(*run)?;
                if !self.timeline().catalogue.has_checkpoint(job.at) {
                    drop(self.engine.exports.remove(*run));
                    return Err(error::unknown_state(
                        &job.at.to_string(),
                        &self.engine.states.state_names(),
                    ));
                }
                let waits = if matches!(ask, ExportAsk::Ahead { .. }) {
                    0
                } else {
                    WAITS_MAX
                };
                Ok(self.next_part(*run, &job, done, waits, files))
            }
            ExportAsk::End { run } => {
                let ended = self.engine.exports.remove(*run);
                let at = ended.ok_or_else(error::unknown_export)?.at;
                Ok(ExportPart {
                    finished: true,
                    ..self.no_part(*run, at)
                })
            }
        }
    }

    fn put(&self, at: CheckpointId, job: SysResult<ExportJob>) -> VerbResult<ExportPart> {
        let job = job.map_err(error::failed("the checkpoint cannot be read"))?;
        let (from, total) = (job.told_from(), job.total);
        let run = self.engine.exports.put(None, Arc::new(job));
        Ok(ExportPart {
            from,
            total,
            ..self.no_part(run, at)
        })
    }

    fn get(&self, run: u64) -> VerbResult<Arc<ExportJob>> {
        let job = self.engine.exports.get(run);
        job.ok_or_else(error::unknown_export)
    }

    fn no_part(&self, run: u64, checkpoint: CheckpointId) -> ExportPart {
        ExportPart {
            run,
            checkpoint,
            from: None,
            store: self.timeline().store().layout.id().to_string(),
            part: 0,
            removed: Vec::new(),
            entries: Vec::new(),
            refused: Vec::new(),
            unproven: Vec::new(),
            total: None,
            finished: false,
        }
    }

    fn begin(&self, at: CheckpointId, from: Option<CheckpointId>) -> SysResult<ExportJob> {
        self.engine.checkpoints.settle();
        let recordings = self.timeline().epochs.recordings();
        let touched = self.timeline().touched(at, None)?;
        let from = from.filter(|from| self.timeline().catalogue.has_checkpoint(*from));
        let mut progress = ExportProgress::default();
        let mut total = None;
        let mut kept = HashMap::new();
        match from {
            None => progress.todo.push(ExportWork::all()),
            Some(from) => {
                let between = self
                    .engine
                    .states
                    .touched(from.min(at), Some(from.max(at)))?;
                let mut plan = DiffPlanner::new(
                    self.engine.states.view(TreeState::At(from)),
                    self.engine.states.view(TreeState::At(at)),
                    &between,
                )
                .plan()?;
                plan.works.reverse();
                if plan
                    .works
                    .iter()
                    .all(|work| matches!(work, ExportWork::One { .. }))
                {
                    total = Some(plan.works.len() as u64);
                }
                progress.refused = plan
                    .refused
                    .into_iter()
                    .map(|(path, errno)| Refused {
                        path: TreePath(path),
                        errno: errno.0,
                    })
                    .collect();
                (progress.removed, progress.todo, kept) = (plan.removed, plan.works, plan.kept);
            }
        }
        Ok(ExportJob {
            from,
            total,
            kept,
            progress: Mutex::new(progress),
            ..ExportJob::new(at, touched, recordings)
        })
    }

    fn begin_whole(&self, at: CheckpointId, since: Option<CheckpointId>) -> SysResult<ExportJob> {
        let since = since.filter(|since| self.timeline().catalogue.has_checkpoint(*since));
        let between = |since: CheckpointId| {
            let touched = self
                .engine
                .states
                .touched(since.min(at), Some(since.max(at)))?;
            SysResult::Ok((since, touched))
        };
        Ok(ExportJob {
            in_order: true,
            since: since.map(between).transpose()?,
            ..self.begin(at, None)?
        })
    }

    fn next_part(
        &self,
        run: u64,
        job: &ExportJob,
        done: &[u64],
        waits: u32,
        files: &mut Vec<Arc<File>>,
    ) -> ExportPart {
        let (unproven, again): (Vec<_>, Vec<_>) = self.confirm(job, done).into_iter().unzip();
        let mut building = PartBuilder::default();
        let mut removed = {
            let mut progress = job.progress.lock();
            progress.todo.extend(again);
            building.refused = std::mem::take(&mut progress.refused);
            progress.busy += 1;
            job.told.notify_all();
            let from = progress.removed.len().saturating_sub(REMOVED_MAX);
            progress.removed.split_off(from)
        };
        for waited in 0..=waits {
            while !building.is_full() {
                let Some(work) = self.next_work(job) else {
                    break;
                };
                let more = self.tell(job, work, &mut building);
                let mut progress = job.progress.lock();
                progress.todo.extend(more);
                progress.linked.append(&mut building.linked);
            }
            // Another part in progress may leave work, and its copies may have to be sent again. An
            // empty answer would make the client poll.
            let mut progress = job.progress.lock();
            let others = progress.busy > 1 || !progress.given.is_empty();
            if !building.part.is_empty() || !removed.is_empty() || !others || waited == waits {
                break;
            }
            progress.busy -= 1;
            job.told.wait_for(&mut progress, WAIT);
            progress.busy += 1;
        }
        removed.append(&mut building.removed);
        let mut progress = job.progress.lock();
        progress.busy -= 1;
        job.told.notify_all();
        let mut part = 0;
        if !building.part.is_empty() || !removed.is_empty() {
            progress.last_part += 1;
            part = progress.last_part;
            progress.given.insert(part, building.given);
        }
        let finished = progress.is_finished();
        drop(progress);
        files.append(&mut building.files);
        let removed = removed.into_iter().map(TreePath).collect();
        let (entries, refused) = (building.part, building.refused);
        ExportPart {
            from: job.told_from(),
            part,
            removed,
            entries,
            refused,
            unproven,
            total: job.total,
            finished,
            ..self.no_part(run, job.at)
        }
    }

    /// Returns the next item of work. If none is left and no other part is in progress, searches
    /// the other names of hard-linked files first.
    fn next_work(&self, job: &ExportJob) -> Option<ExportWork> {
        let linked = {
            let mut progress = job.progress.lock();
            match progress.todo.pop() {
                None if progress.busy == 1 => std::mem::take(&mut progress.linked),
                work => return work,
            }
        };
        let more = self.resolve(job, linked);
        let mut progress = job.progress.lock();
        progress.todo.extend(more);
        progress.todo.pop()
    }

    /// Turns names into links if the file has another name outside the exported paths: the copy has
    /// the content there.
    fn resolve(&self, job: &ExportJob, linked: Vec<LinkedName>) -> Vec<ExportWork> {
        let mut names: HashMap<Slot, u32> = HashMap::new();
        linked
            .iter()
            .for_each(|name| *names.entry(name.child.slot).or_default() += 1);
        let wanted: HashSet<Slot> = linked
            .iter()
            .filter(|name| names.get(&name.child.slot) < Some(&name.nlink))
            .map(|name| name.child.slot)
            .collect();
        let told: HashSet<&[u8]> = linked.iter().map(|name| name.path.as_slice()).collect();
        let mut others: HashMap<Slot, Vec<u8>> = HashMap::new();
        let (mut open, mut passed) = (
            if wanted.is_empty() {
                Vec::new()
            } else {
                vec![(Vec::new(), Trail::root())]
            },
            HashSet::new(),
        );
        while let Some((path, dir)) = open.pop() {
            if !passed.insert(dir.slot) {
                continue;
            }
            // A directory that cannot be listed was refused already, or is not exported.
            for (name, child) in self.list_at(job, &dir).unwrap_or_default().names {
                let path = join(&path, &name);
                if child.kind == Kind::Dir {
                    open.push((path, dir.step(&name, child.slot)));
                } else if wanted.contains(&child.slot) && !told.contains(path.as_slice()) {
                    others.insert(child.slot, path);
                }
            }
        }
        let how = |slot: Slot| {
            others
                .get(&slot)
                .map_or(ExportExtent::Whole, |path| ExportExtent::Link(path.clone()))
        };
        linked
            .iter()
            .map(|name| {
                ExportWork::one(
                    name.path.clone(),
                    name.child,
                    Arc::clone(&name.trail),
                    how(name.child.slot),
                )
            })
            .collect()
    }
}
