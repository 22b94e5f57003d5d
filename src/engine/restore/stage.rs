//! Making again what is to come back, before anything is changed: with threads, and with nothing held where that can be.
//!
//! What an inode was at a checkpoint does not change, so what was made stays right whatever is done to the tree meanwhile. Only content that is still in a
//! live file can change while it is cloned: that waits for the freeze.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::super::Engine;
use super::super::api::Times;
use super::super::asker::still_wanted;
use super::plan::{Content, Plan};
use crate::history::present::Trail;
use crate::history::view::{Source, State};
use crate::live::{STAGED_PREFIX, Staged, Wanted};
use crate::store::ids::{Name, Slot};
use crate::store::record::Child;
use crate::sys::{Errno, Kind, SysResult};

/// Inodes that are made before it is asked whether somebody wants them still.
const AT_ONCE: usize = 1024;
/// Fewer than this are not worth another thread.
const THREADS_FROM: usize = 32;
/// The filesystem has one log: more threads wait for each other.
const THREADS_MAX: usize = 4;

/// Inodes in the staging directory that nobody knows, by what they stand for. Those that are not taken are removed.
pub(super) struct Stage<'a> {
    engine: &'a Engine,
    made: HashMap<Slot, Staged>,
}

type Job<'p> = (Child, &'p Arc<Trail>);

impl<'a> Stage<'a> {
    pub(super) fn new(engine: &'a Engine) -> Stage<'a> {
        Stage { engine, made: HashMap::new() }
    }

    /// Makes what a plan needs and is not there; ends early, with less, when nobody wants it any more. `frozen`: nothing changes meanwhile.
    pub(super) fn fill(&mut self, plan: &Plan, frozen: bool) -> SysResult<()> {
        let mut known: HashSet<Slot> = self.made.keys().copied().collect();
        let wanted = plan.dirs.iter().flat_map(|dir| &dir.names).filter_map(|name| name.want.as_ref());
        let new = wanted.filter(|(child, _)| child.kind != Kind::Dir && matches!(plan.contents.get(&child.slot), Some(Content::New) | None));
        let jobs: Vec<Job<'_>> = new.filter(|(child, _)| known.insert(child.slot)).map(|(child, trail)| (*child, trail)).collect();
        for jobs in jobs.chunks(AT_ONCE) {
            if still_wanted().is_err() {
                break;
            }
            self.make_all(plan, frozen, jobs)?;
        }
        Ok(())
    }

    fn make_all(&mut self, plan: &Plan, frozen: bool, jobs: &[Job<'_>]) -> SysResult<()> {
        let (engine, next) = (self.engine, AtomicUsize::new(0));
        let work = || {
            let mut made = Vec::new();
            while let Some((child, trail)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                match make(engine, plan, *child, trail, frozen) {
                    Ok(staged) => made.extend(staged.map(|staged| (child.slot, staged))),
                    Err(errno) => {
                        next.store(jobs.len(), Ordering::Relaxed);
                        return (made, Err(errno));
                    }
                }
            }
            (made, Ok(()))
        };
        let threads = if jobs.len() < THREADS_FROM { 1 } else { thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX) };
        let done = thread::scope(|scope| {
            // Where one cannot be had the others do it all.
            let others = (1..threads).filter_map(|_| thread::Builder::new().name("stage".to_owned()).spawn_scoped(scope, work).ok());
            let others: Vec<_> = others.collect();
            let mut done = vec![work()];
            done.extend(others.into_iter().map(|other| other.join().unwrap_or_else(|_| (Vec::new(), Err(Errno::EIO)))));
            done
        });
        let mut failed = Ok(());
        for (made, result) in done {
            self.made.extend(made);
            failed = failed.and(result);
        }
        failed
    }

    /// What stands for this inode: made before, or now. The caller has frozen the tree.
    pub(super) fn take(&mut self, plan: &Plan, child: Child, trail: &Arc<Trail>) -> SysResult<Staged> {
        match self.made.remove(&child.slot) {
            Some(staged) => Ok(staged),
            None => make(self.engine, plan, child, trail, true)?.ok_or(Errno::EIO),
        }
    }

    /// Removes what was not taken.
    pub(super) fn clear(&mut self) {
        self.made.drain().for_each(|(_, staged)| self.engine.live.unstage(&staged));
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Makes an inode as it was; `None`: it must wait for the freeze.
fn make(engine: &Engine, plan: &Plan, child: Child, trail: &Arc<Trail>, frozen: bool) -> SysResult<Option<Staged>> {
    let view = engine.view(State::At(plan.target));
    let attr = view.attr(trail)?;
    if attr.stat.kind != child.kind {
        return Err(Errno::EIO);
    }
    let (from, source) = if child.kind == Kind::File { view.open(trail)? } else { (Source::Empty, None) };
    if from == Source::Live && !frozen {
        return Ok(None);
    }
    let xattrs = view.xattrs(trail)?;
    let name = Name::new(format!("{STAGED_PREFIX}{}", child.slot.0).as_bytes());
    let still = from != Source::Live;
    let wanted = Wanted { attr: &attr, xattrs: &xattrs, source: source.as_ref(), still, times: plan.times == Times::Kept };
    engine.live.stage(name, &wanted).map(Some)
}
