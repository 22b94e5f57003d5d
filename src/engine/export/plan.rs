//! What must be done to a copy of one checkpoint to make it one of another: a walk along the names that were recorded between the two.
//!
//! What was recorded is enough: it is a superset of what differs, and nothing is compared. A file whose content was not recorded keeps what it has and
//! gets its attributes only.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{How, Work};
use crate::history::diff::join;
use crate::history::present::Trail;
use crate::history::touched::Touched;
use crate::history::view::View;
use crate::store::ids::{Name, Slot};
use crate::store::record::Child;
use crate::sys::{Errno, Kind, SysResult};

/// What is to be done, and in this order.
#[derive(Default)]
pub(super) struct Plan {
    /// Paths that go, with what is below.
    pub(super) removed: Vec<Vec<u8>>,
    /// What is made, or is given attributes.
    pub(super) works: Vec<Work>,
    /// Where the content of a file is kept that may have got further names.
    pub(super) kept: HashMap<Slot, Vec<u8>>,
    /// What cannot be told.
    pub(super) refused: Vec<(Vec<u8>, Errno)>,
}

pub(super) struct Planner<'a> {
    pub(super) from: View<'a>,
    pub(super) to: View<'a>,
    pub(super) touched: &'a Touched,
}

/// A directory that both states have.
struct Both {
    path: Vec<u8>,
    from: Arc<Trail>,
    to: Arc<Trail>,
}

impl Planner<'_> {
    /// The plan.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub(super) fn plan(&self) -> SysResult<Plan> {
        let mut plan = Plan::default();
        let mut open = vec![Both { path: Vec::new(), from: Trail::root(), to: Trail::root() }];
        let mut passed = HashSet::new();
        while let Some(both) = open.pop() {
            if !passed.insert(both.to.slot) {
                plan.refused.push((both.path, Errno::EIO));
                continue;
            }
            let (slot, before) = (both.to.slot, (plan.works.len(), plan.removed.len()));
            for name in self.touched.names.get(&slot).into_iter().flatten() {
                self.name(&both, name, &mut plan, &mut open);
            }
            // What is done in a directory changes its times, also where its own entry did not change.
            let worked_in = before != (plan.works.len(), plan.removed.len());
            if worked_in || self.touched.dirs.contains(&slot) || self.touched.nodes.contains(&slot) {
                let attributes = Work::one(both.path, Child { slot, kind: Kind::Dir }, both.to, How::Kept);
                plan.works.insert(before.0, attributes);
            }
        }
        plan.kept = kept(&plan.works);
        Ok(plan)
    }

    /// One name of a directory that both states have.
    fn name(&self, both: &Both, name: &Name, plan: &mut Plan, open: &mut Vec<Both>) {
        let path = join(&both.path, name);
        let new = match self.to.step(&both.to, name) {
            Ok(new) => new,
            Err(errno) => return plan.refused.push((path, errno)),
        };
        // What it was cannot be told: then whatever is there goes.
        let (was, unknown) = match self.from.step(&both.from, name) {
            Ok(was) => (was, false),
            Err(_) => (None, true),
        };
        let Some((child, trail)) = new else {
            if was.is_some() || unknown {
                plan.removed.push(path);
            }
            return;
        };
        if unknown {
            plan.removed.push(path.clone());
        }
        let same = was.as_ref().is_some_and(|(old, _)| *old == child);
        match was {
            Some((_, old)) if same && child.kind == Kind::Dir => open.push(Both { path, from: old, to: trail }),
            _ if same && !self.touched.nodes.contains(&child.slot) => {}
            _ if same && child.kind == Kind::File && !self.touched.data.contains(&child.slot) => {
                plan.works.push(Work::one(path, child, trail, How::Kept))
            }
            Some((old, _)) if old.kind != Kind::Dir && child.kind != Kind::Dir => plan.works.push(Work::one(path, child, trail, How::Whole)),
            None if child.kind != Kind::Dir => plan.works.push(Work::one(path, child, trail, How::Whole)),
            was => {
                if was.is_some() {
                    plan.removed.push(path.clone());
                }
                plan.works.push(if child.kind == Kind::Dir { Work::List { path, trail } } else { Work::one(path, child, trail, How::Whole) });
            }
        }
    }
}

/// Files that keep their content at one of their names: the others become links to that one.
fn kept(works: &[Work]) -> HashMap<Slot, Vec<u8>> {
    let mut kept: HashMap<Slot, Vec<u8>> = HashMap::new();
    for work in works {
        if let Work::One { path, child, how: How::Kept, .. } = work
            && child.kind != Kind::Dir
        {
            kept.entry(child.slot).or_insert_with(|| path.clone());
        }
    }
    kept
}
