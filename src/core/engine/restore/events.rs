//! Notifies watchers of the tree after a restore.

use super::super::announce::{Announcement, EventKind, secret_name};
use super::plan::RestorePlan;
use super::{Restorer, StaleEntries};
use crate::tree::plan::{self, InodeAction, NameChange, NamePlan};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::Child;
use ckptfs_sys::Kind;

impl Restorer<'_> {
    /// Announces the changes of a plan: the names in each directory that existed before, and the
    /// inodes that stayed and were changed. An event for a directory that appeared or disappeared
    /// covers everything below it.
    pub(super) fn announce(&self, plan: &RestorePlan, stale: &StaleEntries) {
        let mut steps = Vec::new();
        for dir in &plan.tree.dirs {
            let Some(live) = &dir.live else { continue };
            for name in &dir.names {
                steps_of(&plan.tree, live.slot, name, &mut steps);
            }
        }
        let changed = stale.attrs_changed.iter().map(|dir| Announcement {
            dir: *dir,
            name: Name::new(b"."),
            node: Some(*dir),
            what: EventKind::Attributes,
        });
        steps.extend(changed);
        let dead = |slot: &Slot| Announcement {
            dir: Slot::ROOT,
            name: secret_name(),
            node: Some(*slot),
            what: EventKind::Dead,
        };
        steps.extend(stale.dead.iter().map(|(_, _, slot)| dead(slot)));
        self.engine.announcer.tell(steps);
    }
}

fn steps_of(plan: &plan::TreePlan, dir: Slot, planned: &NamePlan, steps: &mut Vec<Announcement>) {
    let mut add = |node, what| {
        steps.push(Announcement {
            dir,
            name: planned.name.clone(),
            node,
            what,
        })
    };
    let is_dir = |child: Child| child.kind == Kind::Dir;
    match plan.change(planned) {
        None | Some(NameChange::Stays(InodeAction::Same | InodeAction::New)) => {}
        Some(NameChange::Comes(want)) => add(None, EventKind::Come(want.kind)),
        Some(NameChange::Goes(have)) => add(
            None,
            EventKind::Gone {
                dir: is_dir(have),
                now: None,
            },
        ),
        Some(NameChange::Stays(InodeAction::Attributes)) => {
            add(planned.have.map(|have| have.slot), EventKind::Attributes)
        }
        Some(NameChange::Stays(InodeAction::InPlace)) => {
            add(planned.have.map(|have| have.slot), EventKind::Content);
            add(None, EventKind::Written);
        }
        Some(NameChange::Replaced(_)) => add(None, EventKind::Replaced),
        Some(NameChange::Exchanged(have, want)) => {
            add(
                None,
                EventKind::Gone {
                    dir: is_dir(have),
                    now: Some(want.kind),
                },
            );
            add(None, EventKind::Come(want.kind));
        }
    }
}
