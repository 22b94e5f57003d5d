//! `export`: a checkpoint's tree, told in parts to whoever makes a copy of it, with descriptors of the files in it (docs/adr/0016-export.md).
//!
//! Whoever asked clones the files himself, with his own rights, and then says so. **Only then is it proven** that what was cloned from live files is of
//! the past: a record is made before its change, so a file without one was not changed ([`View`](crate::history::view::View) has the same rule). What
//! was changed meanwhile is given again.
//!
//! Most of a tree has no record after its checkpoint. What has one is known from the journal in advance, so the rest is read as the backing filesystem
//! has it, without asking history for each; if anything at all was recorded meanwhile, history is asked.
//!
//! **Locking.** A job is worked on by several connections at once. Its state is a leaf, and nothing is read or opened under it.

pub mod parts;
mod plan;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parts::{ExportAsk, ExportData, ExportEntry, ExportPart, Refused};
use plan::Between;

use super::Engine;
use super::api::{TreePath, VerbError, VerbResult};
use super::error;
use crate::history::diff::join;
use crate::history::dropped::DROPPED;
use crate::history::present::{Present, Trail};
use crate::history::touched::Touched;
use crate::history::view::{Known, Source, State};
use crate::store::ids::{CheckpointId, Name, Slot};
use crate::store::record::Child;
use crate::sys::lock::{Condvar, Mutex};
use crate::sys::{self, Errno, FILES_AT_ONCE, Kind, Open, SysResult, Time};

/// Exports that may be under way at once; of more, the oldest is given up.
const RUNS_MAX: usize = 8;
/// How long, and how often, who asks for a part waits for what another part leaves.
const WAIT: Duration = Duration::from_millis(5);
const WAITS_MAX: u32 = 10;
/// Entries of one part.
const ENTRIES_MAX: usize = FILES_AT_ONCE;
/// Bytes of one part in a message, about.
const PART_BYTES_MAX: usize = 1 << 20;
/// Paths to be removed in one part.
const REMOVED_MAX: usize = 1000;

/// Exports that are under way. A leaf.
#[derive(Default)]
pub(super) struct Exports(Mutex<Jobs>);

#[derive(Default)]
struct Jobs {
    last: u64,
    all: Vec<(u64, Arc<Job>)>,
}

struct Job {
    at: CheckpointId,
    from: Option<CheckpointId>,
    /// What was recorded after the checkpoint, until the export began.
    touched: Touched,
    /// [`crate::history::timeline::Timeline::recordings`] before `touched` was read.
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
    /// Of a difference: names of files with several that are in directories that are told whole. Where their other names are is looked for at the end.
    linked: Vec<Linked>,
    /// Parts that were given and not confirmed: what of them must be proven.
    given: HashMap<u64, Vec<Given>>,
}

/// Something to be told.
enum Work {
    /// A directory and everything below.
    List { path: Vec<u8>, trail: Arc<Trail> },
    /// The rest of what is below a directory.
    Rest { path: Vec<u8>, trail: Arc<Trail>, names: std::vec::IntoIter<(Name, Child)> },
    /// One inode alone.
    One { path: Vec<u8>, child: Child, trail: Arc<Trail>, how: How, again: bool },
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
    fn one(path: Vec<u8>, child: Child, trail: Arc<Trail>, how: How) -> Work {
        Work::One { path, child, trail, how, again: false }
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
        self.part.len() >= ENTRIES_MAX || self.files.len() >= FILES_AT_ONCE || self.bytes >= PART_BYTES_MAX
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
        self.refused.push(Refused { path: TreePath(path), errno: errno.0 });
    }
}

impl Exports {
    fn add(&self, job: Job) -> u64 {
        let mut jobs = self.0.lock();
        jobs.last += 1;
        let run = jobs.last;
        if jobs.all.len() >= RUNS_MAX {
            jobs.all.remove(0);
        }
        jobs.all.push((run, Arc::new(job)));
        run
    }

    fn get(&self, run: u64) -> VerbResult<Arc<Job>> {
        let found = self.0.lock().all.iter().find(|(number, _)| *number == run).map(|(_, job)| Arc::clone(job));
        found.ok_or_else(|| VerbError {
            code: "unknown-run".into(),
            message: "the daemon does not know this export any more".into(),
            hint: Some("run the same command again: it goes on where this one ended".into()),
        })
    }

    fn end(&self, run: u64) {
        let ended = {
            let mut jobs = self.0.lock();
            let at = jobs.all.iter().position(|(number, _)| *number == run);
            at.map(|at| jobs.all.remove(at))
        };
        // Its trails and files are let go of without the lock.
        drop(ended);
    }
}

impl Engine {
    pub(super) fn export_part(&self, ask: &ExportAsk, files: &mut Vec<Arc<File>>) -> VerbResult<ExportPart> {
        match ask {
            ExportAsk::Begin { state, from } => {
                let at = self.checkpoint_id(state)?;
                let job = self.begin_export(at, *from).map_err(|errno| error::failed("the checkpoint cannot be read", errno))?;
                let (from, total) = (job.from, job.total);
                let run = self.exports.add(job);
                Ok(ExportPart { from, total, ..self.no_part(run, at) })
            }
            ExportAsk::Next { run, done } | ExportAsk::Ahead { run, done } => {
                let job = self.exports.get(*run)?;
                if !self.timeline().has_checkpoint(job.at) {
                    self.exports.end(*run);
                    return Err(error::unknown_state(&job.at.to_string(), &self.state_names()));
                }
                let waits = if matches!(ask, ExportAsk::Ahead { .. }) { 0 } else { WAITS_MAX };
                Ok(self.next_part(*run, &job, done, waits, files))
            }
            ExportAsk::End { run } => {
                let at = self.exports.get(*run)?.at;
                self.exports.end(*run);
                Ok(ExportPart { finished: true, ..self.no_part(*run, at) })
            }
        }
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

    fn begin_export(&self, at: CheckpointId, from: Option<CheckpointId>) -> SysResult<Job> {
        self.settle();
        let recordings = self.timeline().recordings();
        let touched = self.timeline().touched(at, None)?;
        let from = from.filter(|from| self.timeline().has_checkpoint(*from));
        let mut progress = Progress::default();
        let mut total = None;
        let mut kept = HashMap::new();
        match from {
            None => progress.todo.push(Work::List { path: Vec::new(), trail: Trail::root() }),
            Some(from) => {
                let between = self.touched(from.min(at), Some(from.max(at)))?;
                let mut plan = Between::new(self.view(State::At(from)), self.view(State::At(at)), &between).plan()?;
                plan.works.reverse();
                if plan.works.iter().all(|work| matches!(work, Work::One { .. })) {
                    total = Some(plan.works.len() as u64);
                }
                progress.refused = plan.refused.into_iter().map(|(path, errno)| Refused { path: TreePath(path), errno: errno.0 }).collect();
                (progress.removed, progress.todo, kept) = (plan.removed, plan.works, plan.kept);
            }
        }
        Ok(Job { at, from, touched, recordings, total, kept, progress: Mutex::new(progress), told: Condvar::default() })
    }

    fn next_part(&self, run: u64, job: &Job, done: &[u64], waits: u32, files: &mut Vec<Arc<File>>) -> ExportPart {
        let (unproven, again) = self.confirm(job, done).into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
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
                let Some(work) = self.next_work(job) else { break };
                let more = self.tell(job, work, &mut building);
                let mut progress = job.progress.lock();
                progress.todo.extend(more);
                progress.linked.append(&mut building.linked);
            }
            // What is being told to another may be more than that takes, and what it copies may be to be told again. To answer that there is nothing yet would have us asked again and again.
            let mut progress = job.progress.lock();
            let others = progress.busy > 1 || !progress.given.is_empty();
            if !building.part.is_empty() || !removed.is_empty() || !others || waited == waits {
                break;
            }
            progress.busy -= 1;
            job.told.wait_for(&mut progress, WAIT);
            progress.busy += 1;
        }
        let mut progress = job.progress.lock();
        progress.busy -= 1;
        job.told.notify_all();
        let mut part = 0;
        removed.append(&mut building.removed);
        if !building.part.is_empty() || !removed.is_empty() {
            progress.last_part += 1;
            part = progress.last_part;
            progress.given.insert(part, building.given);
        }
        let finished =
            progress.busy == 0 && progress.todo.is_empty() && progress.removed.is_empty() && progress.linked.is_empty() && progress.given.is_empty();
        drop(progress);
        files.append(&mut building.files);
        let removed = removed.into_iter().map(TreePath).collect();
        let (entries, refused) = (building.part, building.refused);
        ExportPart { from: job.from, part, removed, entries, refused, unproven, total: job.total, finished, ..self.no_part(run, job.at) }
    }

    /// What is to be told next. When all else is, it is the names of files that may have others: the first part that has come so far looks for them.
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

    /// Makes links out of names whose file has another one outside of what is told: the copy has it there.
    fn resolve(&self, job: &Job, linked: Vec<Linked>) -> Vec<Work> {
        let mut names: HashMap<Slot, u32> = HashMap::new();
        linked.iter().for_each(|name| *names.entry(name.child.slot).or_default() += 1);
        let wanted: HashSet<Slot> =
            linked.iter().filter(|name| names.get(&name.child.slot) < Some(&name.nlink)).map(|name| name.child.slot).collect();
        let told: HashSet<&[u8]> = linked.iter().map(|name| name.path.as_slice()).collect();
        let mut others: HashMap<Slot, Vec<u8>> = HashMap::new();
        let (mut open, mut passed) = (if wanted.is_empty() { Vec::new() } else { vec![(Vec::new(), Trail::root())] }, HashSet::new());
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
        let how = |slot: Slot| others.get(&slot).map_or(How::Whole, |path| How::Link(path.clone()));
        linked.iter().map(|name| Work::one(name.path.clone(), name.child, Arc::clone(&name.trail), how(name.child.slot))).collect()
    }

    /// Parts were copied: gives what of them was changed meanwhile, each with its path.
    fn confirm(&self, job: &Job, done: &[u64]) -> Vec<(TreePath, Work)> {
        let given: Vec<Given> = {
            let mut progress = job.progress.lock();
            done.iter().filter_map(|part| progress.given.remove(part)).flatten().collect()
        };
        // Asked before the files are: who changes one afterwards has copied nothing of it.
        let quiet = self.timeline().recordings() == job.recordings;
        let changed = given.into_iter().filter(|given| !self.is_proven(job, given, quiet).unwrap_or(false));
        let again = |Given { path, child, trail, .. }| (TreePath(path.clone()), Work::One { path, child, trail, how: How::Whole, again: true });
        changed.map(again).collect()
    }

    /// What was read from the live tree was still of the past when it was.
    fn is_proven(&self, job: &Job, given: &Given, quiet: bool) -> SysResult<bool> {
        if let Some((file, ctime)) = &given.file
            && sys::stat_fd(&**file)?.ctime != *ctime
        {
            return Ok(false);
        }
        if quiet {
            return Ok(true);
        }
        let (timeline, slot) = (self.timeline(), given.child.slot);
        if given.file.is_some() && timeline.data_at(slot, job.at)?.is_some() {
            return Ok(false);
        }
        Ok(!given.unrecorded || (timeline.attr_at(slot, job.at)?.is_none() && timeline.xattrs_at(slot, job.at)?.is_none()))
    }

    /// Adds what there is to tell to a part; gives what comes next, the last first.
    fn tell(&self, job: &Job, work: Work, building: &mut Building) -> Vec<Work> {
        match work {
            Work::One { path, child, trail, how, again } => {
                self.tell_one(job, path, child, &trail, &how, again, building);
                Vec::new()
            }
            Work::List { path, trail } => {
                let child = Child { slot: trail.slot, kind: Kind::Dir };
                let first = job.progress.lock().listed.insert(trail.slot);
                match if first { self.list_at(job, &trail) } else { Err(Errno::EIO) } {
                    Ok(Known { names, unknown, partial }) => {
                        self.tell_one(job, path.clone(), child, &trail, &How::Whole, false, building);
                        unknown.iter().for_each(|name| building.refuse(join(&path, name), Errno::EIO));
                        if partial {
                            building.refuse(path.clone(), Errno::EIO);
                        }
                        vec![Work::Rest { path, trail, names: names.into_iter() }]
                    }
                    Err(errno) => {
                        building.refuse(path, errno);
                        Vec::new()
                    }
                }
            }
            Work::Rest { path, trail, mut names } => {
                let dir = self.live.dir(&trail).ok();
                let mut below = Vec::new();
                while !building.is_full() {
                    let Some((name, child)) = names.next() else { break };
                    let (path, trail) = (join(&path, &name), trail.step(&name, child.slot));
                    if child.kind == Kind::Dir {
                        below.push(Work::List { path, trail });
                    } else if let Some((entry, file, given)) = dir.as_deref().and_then(|dir| self.exported_live(job, dir, &path, child, &trail)) {
                        if job.from.is_some() && entry.is_linked() {
                            building.linked.push(Linked { path, child, trail, nlink: entry.nlink });
                        } else {
                            building.add(entry, file, Some(given));
                        }
                    } else if let Some(nlink) = self.links_of(job, child, &trail) {
                        building.linked.push(Linked { path, child, trail, nlink });
                    } else {
                        self.tell_one(job, path, child, &trail, &How::Whole, false, building);
                    }
                }
                if names.len() > 0 {
                    below.push(Work::Rest { path, trail, names });
                }
                below
            }
        }
    }

    /// The names that an inode had, where it had several and it matters.
    fn links_of(&self, job: &Job, child: Child, trail: &Arc<Trail>) -> Option<u32> {
        if job.from.is_none() || job.kept.contains_key(&child.slot) {
            return None;
        }
        self.view(State::At(job.at)).attr(trail).ok().map(|attr| attr.stat.nlink).filter(|nlink| *nlink > 1)
    }

    /// Nothing was recorded of an inode after the checkpoint, as far as was known when the export began.
    fn is_untouched(&self, job: &Job, slot: Slot) -> bool {
        !job.touched.nodes.contains(&slot)
    }

    /// Its last change was after the checkpoint, and has no record: it was changed behind our back, or a moment ago.
    fn looks_changed(&self, job: &Job, ctime: Time) -> bool {
        self.timeline().changed_unseen(ctime, job.at) || self.timeline().changed_in_absence(ctime, job.at)
    }

    /// The names of a directory, as far as they can be told.
    fn list_at(&self, job: &Job, dir: &Arc<Trail>) -> SysResult<Known> {
        if self.is_untouched(job, dir.slot) && !job.touched.names.contains_key(&dir.slot) {
            let ctime = self.live.dir(dir).and_then(|fd| sys::stat_fd(&fd)).map(|stat| stat.ctime);
            if ctime.is_ok_and(|ctime| !self.looks_changed(job, ctime))
                && let Ok(mut names) = self.live.list(dir)
                && self.timeline().recordings() == job.recordings
            {
                names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
                return Ok(Known { names, ..Known::default() });
            }
        }
        self.view(State::At(job.at)).list_known(dir)
    }

    /// An inode that is no directory and has no record, as it is in the live tree; `None`: history must be asked.
    fn exported_live(
        &self,
        job: &Job,
        dir: &OwnedFd,
        path: &[u8],
        child: Child,
        trail: &Arc<Trail>,
    ) -> Option<(ExportEntry, Option<Arc<File>>, Given)> {
        if !self.is_untouched(job, child.slot) || job.kept.contains_key(&child.slot) {
            return None;
        }
        let name = trail.name.as_bytes();
        let (stat, target, xattrs, file) = if child.kind == Kind::File {
            let file = sys::open_file_at(dir, name, Open::READ).ok()?;
            (sys::stat_fd(&file).ok()?, None, sys::file_xattrs(&file).ok()?, Some(file))
        } else {
            let fd = sys::open_path_at(dir, name).ok()?;
            let target = if child.kind == Kind::Symlink { Some(sys::readlink_fd(&fd).ok()?) } else { None };
            (sys::stat_fd(&fd).ok()?, target, sys::all_xattrs(&fd).ok()?, None)
        };
        if self.live.slot_of(&stat) != Ok(child.slot) || stat.kind != child.kind || self.looks_changed(job, stat.ctime) {
            return None;
        }
        let mut entry = ExportEntry::new(path.to_vec(), &stat, child.slot.0, target, xattrs);
        let file = file.map(Arc::new);
        let kept = file.as_ref().map(|file| (Arc::clone(file), stat.ctime));
        let sent = file.filter(|_| stat.size > 0);
        entry.data = if sent.is_some() { ExportData::File } else { ExportData::None };
        let given = Given { path: path.to_vec(), child, trail: Arc::clone(trail), file: kept, unrecorded: true };
        Some((entry, sent, given))
    }

    /// One inode, as history tells it.
    #[allow(clippy::too_many_arguments)]
    fn tell_one(&self, job: &Job, path: Vec<u8>, child: Child, trail: &Arc<Trail>, how: &How, again: bool, building: &mut Building) {
        match self.exported_past(job, &path, child, trail, how) {
            Ok((mut entry, file, given)) => {
                entry.again = again;
                building.add(entry, file, given);
            }
            Err(errno) => {
                // What the copy of another state has there is not what belongs there.
                if errno == DROPPED && job.from.is_some() {
                    building.removed.push(path.clone());
                }
                // What is in it may be told all the same, and wants a place.
                if child.kind == Kind::Dir
                    && let Ok(attr) = self.view(State::At(job.at)).attr(trail)
                {
                    building.add(ExportEntry::new(path.clone(), &attr.stat, child.slot.0, None, Vec::new()), None, None);
                }
                building.refuse(path, errno);
            }
        }
    }

    fn exported_past(
        &self,
        job: &Job,
        path: &[u8],
        child: Child,
        trail: &Arc<Trail>,
        how: &How,
    ) -> SysResult<(ExportEntry, Option<Arc<File>>, Option<Given>)> {
        let view = self.view(State::At(job.at));
        let attr = view.attr(trail)?;
        let mut entry = ExportEntry::new(path.to_vec(), &attr.stat, child.slot.0, attr.target, view.xattrs(trail)?);
        match how {
            How::Kept => entry.data = ExportData::Kept,
            How::Link(to) => entry.data = ExportData::Link(TreePath(to.clone())),
            How::Whole if job.kept.contains_key(&child.slot) => {
                let to = job.kept.get(&child.slot).cloned().unwrap_or_default();
                entry.data = ExportData::Link(TreePath(to));
            }
            How::Whole if child.kind == Kind::File => {
                let (source, file) = view.open(trail)?;
                let Some(file) = file.map(Arc::new) else { return Ok((entry, None, None)) };
                let mut given = None;
                if source == Source::Live {
                    let ctime = sys::stat_fd(&*file)?.ctime;
                    // It was opened, and may have been changed before its ctime was asked for.
                    if !view.still_live(trail, Some(&file))? {
                        return self.exported_past(job, path, child, trail, how);
                    }
                    let file = Some((Arc::clone(&file), ctime));
                    given = Some(Given { path: path.to_vec(), child, trail: Arc::clone(trail), file, unrecorded: false });
                }
                entry.data = ExportData::File;
                return Ok((entry, Some(file), given));
            }
            How::Whole => {}
        }
        Ok((entry, None, None))
    }
}
