//! Notifies watchers of the tree after a restore.

use super::super::announce::{Step, What, secret_name};
use super::plan::Plan;
use super::{Restorer, Stale};
use crate::store::ids::{Name, Slot};
use crate::store::record::Child;
use crate::sys::Kind;
use crate::tree::plan::{self, Change, Content, NamePlan};

impl Restorer<'_> {
    /// Announces the changes of a plan: the names in each directory that existed before, and the
    /// inodes that stayed and were changed. An event for a directory that appeared or disappeared
    /// covers everything below it.
    pub(super) fn announce(&self, plan: &Plan, stale: &Stale) {
        let mut steps = Vec::new();
        for dir in &plan.tree.dirs {
            let Some(live) = &dir.live else { continue };
            for name in &dir.names {
                steps_of(&plan.tree, live.slot, name, &mut steps);
            }
        }
        let changed = stale.attrs_changed.iter().map(|dir| Step {
            dir: *dir,
            name: Name::new(b"."),
            node: Some(*dir),
            what: What::Attributes,
        });
        steps.extend(changed);
        let dead = |slot: &Slot| Step {
            dir: Slot::ROOT,
            name: secret_name(),
            node: Some(*slot),
            what: What::Dead,
        };
        steps.extend(stale.dead.iter().map(|(_, _, slot)| dead(slot)));
        self.engine.announcer.tell(steps);
    }
}

fn steps_of(plan: &plan::Plan, dir: Slot, planned: &NamePlan, steps: &mut Vec<Step>) {
    let mut add = |node, what| {
        steps.push(Step {
            dir,
            name: planned.name.clone(),
            node,
            what,
        })
    };
    let is_dir = |child: Child| child.kind == Kind::Dir;
    match plan.change(planned) {
        None | Some(Change::Stays(Content::Same | Content::New)) => {}
        Some(Change::Comes(want)) => add(None, What::Come(want.kind)),
        Some(Change::Goes(have)) => add(
            None,
            What::Gone {
                dir: is_dir(have),
                now: None,
            },
        ),
        Some(Change::Stays(Content::Attributes)) => {
            add(planned.have.map(|have| have.slot), What::Attributes)
        }
        Some(Change::Stays(Content::InPlace)) => {
            add(planned.have.map(|have| have.slot), What::Content);
            add(None, What::Written);
        }
        Some(Change::Replaced(_)) => add(None, What::Replaced),
        Some(Change::Exchanged(have, want)) => {
            add(
                None,
                What::Gone {
                    dir: is_dir(have),
                    now: Some(want.kind),
                },
            );
            add(None, What::Come(want.kind));
        }
    }
}
