//! `export`: a checkpoint's tree, told in parts to whoever makes a copy of it, with descriptors of
//! the files in it (docs/adr/0016-export.md).
//!
//! Whoever asked clones the files himself, with his own rights, and then says so. **Only then is it
//! proven** that what was cloned from live files is of the past: a record is made before its
//! change, so a file without one was not changed ([`View`](crate::history::view::View) has the same
//! rule). What was changed meanwhile is given again.
//!
//! Most of a tree has no record after its checkpoint. What has one is known from the journal in
//! advance, so the rest is read as the backing filesystem has it, without asking history for each;
//! if anything at all was recorded meanwhile, history is asked.
//!
//! **Locking.** A job is worked on by several connections at once. Its state is a leaf, and nothing
//! is read or opened under it.

pub mod parts;
mod plan;
mod tell;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use parts::{ExportAsk, ExportEntry, ExportPart, Refused};
use plan::Between;

use super::Engine;
use super::api::{TreePath, VerbResult};
use super::error;
use super::runs::Runs;
use crate::history::diff::join;
use crate::history::present::Trail;
use crate::history::state::State;
use crate::history::touched::Touched;
use crate::store::ids::{CheckpointId, Name, Slot};
use crate::store::record::Child;
use crate::sys::lock::{Condvar, Mutex};
use crate::sys::{Errno, FILES_AT_ONCE, Kind, SysResult, Time};

/// How long, and how often, who asks for a part waits for what another part leaves.
const WAIT: Duration = Duration::from_millis(5);
const WAITS_MAX: u32 = 10;
/// Entries of one part.
const ENTRIES_MAX: usize = FILES_AT_ONCE;
/// Bytes of one part in a message, about.
const PART_BYTES_MAX: usize = 1 << 20;
/// Paths to be removed in one part.
const REMOVED_MAX: usize = 1000;

/// Exports that are under way, each worked on by whoever asks.
pub(super) type Exports = Runs<Arc<Job>, 8>;

/// An export.
pub(super) struct Job {
    at: CheckpointId,
    from: Option<CheckpointId>,
    /// Everything is told in the order of names.
    in_order: bool,
    /// Of [`ExportAsk::Whole`]: the state whose files are not told again, and what was recorded
    /// between the two.
    since: Option<(CheckpointId, Touched)>,
    /// What was recorded after the checkpoint, until the export began.
    touched: Touched,
    /// [`crate::history::epochs::Epochs::recordings`] before `touched` was read.
    recordings: u64,
    total: Option<u64>,
    /// See [`plan::Plan::kept`].
    kept: HashMap<Slot, Vec<u8>>,
    progress: Mutex<Progress>,
    /// A part was told, or copied.
    told: Condvar,
}

#[derive(Default)]
struct Progress {
    removed: Vec<Vec<u8>>,
    /// What is still to be told, the next last.
    todo: Vec<Work>,
    refused: Vec<Refused>,
    /// Directories that were told: forged, one can be in many places.
    listed: HashSet<Slot>,
    /// Parts being put together.
    busy: u32,
    last_part: u64,
    /// Of a difference: names of files with several that are in directories that are told whole.
    /// Where their other names are is looked for at the end.
    linked: Vec<Linked>,
    /// Parts that were given and not confirmed: what of them must be proven.
    given: HashMap<u64, Vec<Given>>,
}

impl Progress {
    /// All is told, and was copied.
    fn is_finished(&self) -> bool {
        self.busy == 0
            && self.todo.is_empty()
            && self.removed.is_empty()
            && self.linked.is_empty()
            && self.given.is_empty()
    }
}

/// Something to be told.
enum Work {
    /// A directory and everything below.
    List {
        path: Vec<u8>,
        trail: Arc<Trail>,
        /// It had this path in [`Job::since`].
        was_here: bool,
    },
    /// The rest of what is below a directory.
    Rest {
        path: Vec<u8>,
        trail: Arc<Trail>,
        was_here: bool,
        names: std::vec::IntoIter<(Name, Child)>,
    },
    /// One inode alone.
    One {
        path: Vec<u8>,
        child: Child,
        trail: Arc<Trail>,
        how: How,
        again: bool,
    },
}

/// How much of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
enum How {
    Whole,
    /// Its attributes: the content is what it was in the state before.
    Kept,
    /// It has another name, where its content is.
    Link(Vec<u8>),
}

/// A name of a file that has several.
struct Linked {
    path: Vec<u8>,
    child: Child,
    trail: Arc<Trail>,
    nlink: u32,
}

impl Work {
    fn all() -> Work {
        Work::List {
            path: Vec::new(),
            trail: Trail::root(),
            was_here: true,
        }
    }

    fn one(path: Vec<u8>, child: Child, trail: Arc<Trail>, how: How) -> Work {
        Work::One {
            path,
            child,
            trail,
            how,
            again: false,
        }
    }
}

/// What was read from the live tree.
struct Given {
    path: Vec<u8>,
    child: Child,
    trail: Arc<Trail>,
    /// The descriptor that was handed out, with its ctime then.
    file: Option<(Arc<File>, Time)>,
    /// History was not asked: there was no record of anything of it.
    unrecorded: bool,
}

impl Job {
    fn new(at: CheckpointId, touched: Touched, recordings: u64) -> Job {
        Job {
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

    /// What entries with [`ExportData::Kept`](parts::ExportData::Kept) refer to.
    fn told_from(&self) -> Option<CheckpointId> {
        self.from.or(self.since.as_ref().map(|(since, _)| *since))
    }

    /// How much of an inode is told. `was_here`: it had its path in [`Job::since`].
    fn how(&self, child: Child, was_here: bool) -> How {
        match &self.since {
            Some((_, touched))
                if was_here && child.kind == Kind::File && !touched.data.contains(&child.slot) =>
            {
                How::Kept
            }
            _ => How::Whole,
        }
    }

    /// Nothing was recorded of an inode after the checkpoint, as far as was known when the export
    /// began.
    fn is_untouched(&self, slot: Slot) -> bool {
        !self.touched.nodes.contains(&slot)
    }
}

/// A part being put together.
#[derive(Default)]
struct Building {
    part: Vec<ExportEntry>,
    files: Vec<Arc<File>>,
    given: Vec<Given>,
    refused: Vec<Refused>,
    linked: Vec<Linked>,
    removed: Vec<Vec<u8>>,
    bytes: usize,
}

impl Building {
    fn is_full(&self) -> bool {
        self.part.len() >= ENTRIES_MAX
            || self.files.len() >= FILES_AT_ONCE
            || self.bytes >= PART_BYTES_MAX
    }

    fn add(&mut self, entry: ExportEntry, file: Option<Arc<File>>, given: Option<Given>) {
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

/// Tells checkpoints of an engine.
#[derive(Clone, Copy)]
pub(super) struct Exporter<'a> {
    pub(super) engine: &'a Engine,
}

impl<'a> Exporter<'a> {
    pub(super) fn new(engine: &'a Engine) -> Exporter<'a> {
        Exporter { engine }
    }

    /// The answer to one request.
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

    fn put(&self, at: CheckpointId, job: SysResult<Job>) -> VerbResult<ExportPart> {
        let job = job.map_err(error::failed("the checkpoint cannot be read"))?;
        let (from, total) = (job.told_from(), job.total);
        let run = self.engine.exports.put(None, Arc::new(job));
        Ok(ExportPart {
            from,
            total,
            ..self.no_part(run, at)
        })
    }

    fn get(&self, run: u64) -> VerbResult<Arc<Job>> {
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

    fn begin(&self, at: CheckpointId, from: Option<CheckpointId>) -> SysResult<Job> {
        self.engine.checkpoints.settle();
        let recordings = self.timeline().epochs.recordings();
        let touched = self.timeline().touched(at, None)?;
        let from = from.filter(|from| self.timeline().catalogue.has_checkpoint(*from));
        let mut progress = Progress::default();
        let mut total = None;
        let mut kept = HashMap::new();
        match from {
            None => progress.todo.push(Work::all()),
            Some(from) => {
                let between = self
                    .engine
                    .states
                    .touched(from.min(at), Some(from.max(at)))?;
                let mut plan = Between::new(
                    self.engine.states.view(State::At(from)),
                    self.engine.states.view(State::At(at)),
                    &between,
                )
                .plan()?;
                plan.works.reverse();
                if plan
                    .works
                    .iter()
                    .all(|work| matches!(work, Work::One { .. }))
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
        Ok(Job {
            from,
            total,
            kept,
            progress: Mutex::new(progress),
            ..Job::new(at, touched, recordings)
        })
    }

    fn begin_whole(&self, at: CheckpointId, since: Option<CheckpointId>) -> SysResult<Job> {
        let since = since.filter(|since| self.timeline().catalogue.has_checkpoint(*since));
        let between = |since: CheckpointId| {
            let touched = self
                .engine
                .states
                .touched(since.min(at), Some(since.max(at)))?;
            SysResult::Ok((since, touched))
        };
        Ok(Job {
            in_order: true,
            since: since.map(between).transpose()?,
            ..self.begin(at, None)?
        })
    }

    fn next_part(
        &self,
        run: u64,
        job: &Job,
        done: &[u64],
        waits: u32,
        files: &mut Vec<Arc<File>>,
    ) -> ExportPart {
        let (unproven, again): (Vec<_>, Vec<_>) = self.confirm(job, done).into_iter().unzip();
        let mut building = Building::default();
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
            // What is being told to another may be more than that takes, and what it copies may be
            // to be told again. To answer that there is nothing yet would have us asked again and
            // again.
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

    /// What is to be told next. When all else is, it is the names of files that may have others:
    /// the first part that has come so far looks for them.
    fn next_work(&self, job: &Job) -> Option<Work> {
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

    /// Makes links out of names whose file has another one outside of what is told: the copy has it
    /// there.
    fn resolve(&self, job: &Job, linked: Vec<Linked>) -> Vec<Work> {
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
            // What cannot be listed was refused when it was to be told, or was not to be told.
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
                .map_or(How::Whole, |path| How::Link(path.clone()))
        };
        linked
            .iter()
            .map(|name| {
                Work::one(
                    name.path.clone(),
                    name.child,
                    Arc::clone(&name.trail),
                    how(name.child.slot),
                )
            })
            .collect()
    }
}
