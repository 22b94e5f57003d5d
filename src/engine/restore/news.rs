//! What a restore has to tell to those who watch the tree.

use super::super::Engine;
use super::super::announce::{Step, What, secret_name};
use super::Stale;
use super::plan::{Content, NamePlan, Plan};
use crate::store::ids::{Name, Slot};
use crate::sys::Kind;

impl Engine {
    /// Announces what was done by a plan: the names of each directory that was there before, and the inodes that stayed and were changed. What is
    /// below a directory that came or went is announced with it.
    pub(super) fn announce(&self, plan: &Plan, stale: &Stale) {
        let mut steps = Vec::new();
        for dir in &plan.dirs {
            let Some(live) = &dir.live else { continue };
            for name in &dir.names {
                steps_of(plan, live.slot, name, &mut steps);
            }
        }
        let changed = stale.attrs_changed.iter().map(|dir| Step { dir: *dir, name: Name::new(b"."), node: Some(*dir), what: What::Attributes });
        steps.extend(changed);
        let dead = |slot: &Slot| Step { dir: Slot::ROOT, name: secret_name(), node: Some(*slot), what: What::Dead };
        steps.extend(stale.dead.iter().map(|(_, _, slot)| dead(slot)));
        self.announcer.tell(steps);
    }
}

fn steps_of(plan: &Plan, dir: Slot, planned: &NamePlan, steps: &mut Vec<Step>) {
    let mut add = |node, what| steps.push(Step { dir, name: planned.name.clone(), node, what });
    let want = planned.want.as_ref().map(|(child, _)| *child);
    let (have, want) = match (planned.have, want) {
        (None, None) => return,
        (None, Some(want)) => return add(None, What::Come(want.kind)),
        (Some(have), None) => return add(None, What::Gone { dir: have.kind == Kind::Dir, now: None }),
        (Some(have), Some(want)) => (have, want),
    };
    if have.slot == want.slot && plan.keeps(want) {
        match plan.contents.get(&want.slot) {
            Some(Content::Attributes) => add(Some(want.slot), What::Attributes),
            Some(Content::InPlace) => {
                add(Some(want.slot), What::Content);
                add(None, What::Written);
            }
            Some(Content::Same | Content::New) | None => {}
        }
    } else if have.kind != Kind::Dir && want.kind != Kind::Dir {
        add(None, What::Replaced);
    } else {
        add(None, What::Gone { dir: have.kind == Kind::Dir, now: Some(want.kind) });
        add(None, What::Come(want.kind));
    }
}
