//! Creates the inodes to restore in the staging directory before the tree is changed, with several
//! threads, and without locks where possible.
//!
//! The state of an inode at a checkpoint does not change, so a staged inode stays valid whatever
//! happens to the tree. Only content that is still in a live file can change while it is cloned;
//! such files are staged inside the freeze.

use std::collections::HashSet;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::Arc;

use super::super::Engine;
use super::super::requester::Requester;
use super::desired::{DesiredContent, DesiredInodes};
use super::plan::RestorePlan;
use super::threads;
use crate::history::present::Trail;
use crate::live::{ChangeCtx, InodeSpec, STAGED_PREFIX, Staged};
use crate::tree::plan::InodeAction;
use ckptfs_api::{Times, VerbResult};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::Child;
use ckptfs_sys::{Errno, Kind, SysResult};

/// Inodes created between two checks for cancellation.
const AT_ONCE: usize = 1024;
/// Minimum number of inodes for another thread.
const THREADS_FROM: usize = 32;

/// Inodes in the staging directory that are not yet in any table, by the inode that they replace.
/// Unused ones are removed.
pub(in crate::engine) struct Stage<'a> {
    engine: &'a Engine,
    requester: &'a Requester,
    made: HashMap<Slot, Staged>,
}

type Job<'p> = (Child, &'p Arc<Trail>);

impl<'a> Stage<'a> {
    pub(super) fn new(engine: &'a Engine, requester: &'a Requester) -> Stage<'a> {
        Stage {
            engine,
            requester,
            made: HashMap::new(),
        }
    }

    /// Returns an error if the request was cancelled.
    ///
    /// # Errors
    /// `cancelled`.
    pub(super) fn still_wanted(&self) -> VerbResult<()> {
        self.requester.still_wants()
    }

    /// Creates the inodes that a plan needs and that are not staged. Ends early if the request is
    /// cancelled. `frozen`: the tree cannot change.
    pub(super) fn fill(
        &mut self,
        plan: &RestorePlan,
        want: &dyn DesiredInodes,
        frozen: bool,
    ) -> SysResult<()> {
        let mut known: HashSet<Slot> = self.made.keys().copied().collect();
        let wanted = plan
            .tree
            .wanted()
            .map(|(_, _, child, trail, _)| (child, trail));
        let new = wanted.filter(|(child, _)| {
            child.kind != Kind::Dir
                && matches!(
                    plan.tree.contents.get(&child.slot),
                    Some(InodeAction::New) | None
                )
        });
        let jobs: Vec<Job<'_>> = new.filter(|(child, _)| known.insert(child.slot)).collect();
        for jobs in jobs.chunks(AT_ONCE) {
            if self.still_wanted().is_err() {
                break;
            }
            self.make_all((plan, want), frozen, jobs)?;
        }
        Ok(())
    }

    fn make_all(
        &mut self,
        (plan, want): (&RestorePlan, &dyn DesiredInodes),
        frozen: bool,
        jobs: &[Job<'_>],
    ) -> SysResult<()> {
        let engine = self.engine;
        let one = |(child, trail): &Job<'_>| {
            Ok(make(engine, (plan, want), *child, trail, frozen)?
                .map(|staged| (child.slot, staged)))
        };
        let (made, result) = threads::each(jobs, ("stage", THREADS_FROM), one);
        self.made.extend(made.into_iter().flatten());
        result
    }

    /// Creates an inode unless it is staged. The caller has frozen the tree.
    pub(super) fn complete(
        &mut self,
        (plan, want): (&RestorePlan, &dyn DesiredInodes),
        child: Child,
        trail: &Arc<Trail>,
    ) -> SysResult<()> {
        if let Entry::Vacant(vacant) = self.made.entry(child.slot) {
            vacant.insert(make(self.engine, (plan, want), child, trail, true)?.ok_or(Errno::EIO)?);
        }
        Ok(())
    }

    /// Removes an inode from the stage and adds it to the tables.
    pub(super) fn take(&mut self, change: &ChangeCtx, slot: Slot) -> SysResult<Option<Staged>> {
        let Some(staged) = self.made.remove(&slot) else {
            return Ok(None);
        };
        self.engine.live.staged.adopt(change, &staged)?;
        Ok(Some(staged))
    }

    /// Removes unused inodes.
    pub(super) fn clear(&mut self) {
        self.made
            .drain()
            .for_each(|(_, staged)| self.engine.live.staged.unstage(&staged));
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Attempts to read content that changes while it is cloned.
const TRIES: u32 = 100;

/// Creates an inode in the desired state; `None`: it must wait for the freeze.
fn make(
    engine: &Engine,
    (plan, want): (&RestorePlan, &dyn DesiredInodes),
    child: Child,
    trail: &Arc<Trail>,
    frozen: bool,
) -> SysResult<Option<Staged>> {
    let attr = want.attr(trail)?;
    if attr.stat.kind != child.kind {
        return Err(Errno::EIO);
    }
    let xattrs = want.xattrs(trail)?;
    let name = Name::new(format!("{STAGED_PREFIX}{}", child.slot.0).as_bytes());
    for _ in 0..TRIES {
        let opened = match child.kind {
            Kind::File => want.open(trail, frozen)?,
            _ => Some(DesiredContent {
                file: None,
                still: true,
            }),
        };
        let Some(opened) = opened else {
            return Ok(None);
        };
        let wanted = InodeSpec {
            attr: &attr,
            xattrs: &xattrs,
            source: opened.file.as_ref(),
            still: opened.still,
            times: plan.times == Times::Kept,
        };
        let staged = engine.live.staged.stage(name.clone(), &wanted);
        if want.was_so(trail, &opened)? {
            return staged.map(Some);
        }
        if let Ok(staged) = staged {
            engine.live.staged.unstage(&staged);
        }
    }
    Err(Errno::EBUSY)
}
