//! The changes that turn a copy of one checkpoint into one of another, found by a
//! [walk](crate::tree::states) along the names recorded between the two.
//!
//! The records are a superset of the differences, so nothing is compared. A file without a record
//! of its content gets only its attributes. The receiver has paths but no inodes, so a move is a
//! removal and a creation.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::{ExportExtent, ExportWork};
use crate::history::diff::join;
use crate::history::present::Trail;
use crate::history::touched::Touched;
use crate::history::view::View;
use crate::tree;
use crate::tree::plan::{DirPlan, InodeAction, NameChange, NamePlan};
use crate::tree::states::PlanBuilder;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{Child, Place};
use ckptfs_sys::{Errno, Kind, SysResult};

/// The changes, in the order of the fields.
#[derive(Default)]
pub(super) struct DiffPlan {
    /// Paths to remove, with everything below them.
    pub(super) removed: Vec<Vec<u8>>,
    /// Entries to create, or whose attributes are set.
    pub(super) works: Vec<ExportWork>,
    /// The path of the content of each file that may have more names now.
    pub(super) kept: HashMap<Slot, Vec<u8>>,
    /// Paths that cannot be read.
    pub(super) refused: Vec<(Vec<u8>, Errno)>,
}

/// Two checkpoints, and the records between them.
pub(super) struct DiffPlanner<'a> {
    from: View<'a>,
    to: View<'a>,
    touched: &'a Touched,
    plan: tree::plan::TreePlan,
    passed: HashSet<Slot>,
    /// Directories with a removed entry whose past is unknown.
    worked_in: HashSet<Slot>,
    told: DiffPlan,
}

impl<'a> DiffPlanner<'a> {
    pub(super) fn new(from: View<'a>, to: View<'a>, touched: &'a Touched) -> DiffPlanner<'a> {
        let passed = HashSet::from([Slot::ROOT]);
        DiffPlanner {
            from,
            to,
            touched,
            plan: tree::plan::TreePlan::default(),
            passed,
            worked_in: HashSet::new(),
            told: DiffPlan::default(),
        }
    }

    /// Returns the plan.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub(super) fn plan(mut self) -> SysResult<DiffPlan> {
        self.all()?;
        for dir in &self.plan.dirs {
            add_dir(
                &self.plan,
                dir,
                self.worked_in.contains(&dir.want.slot),
                &mut self.told,
            );
        }
        self.told.kept = kept(&self.told.works);
        Ok(self.told)
    }
}

/// Adds a directory that both states have.
fn add_dir(plan: &tree::plan::TreePlan, dir: &DirPlan, worked_in: bool, told: &mut DiffPlan) {
    let (path, before) = (dir.want.path(), (told.works.len(), told.removed.len()));
    for planned in &dir.names {
        let (Some(change), path) = (plan.change(planned), join(&path, &planned.name)) else {
            continue;
        };
        if matches!(change, NameChange::Goes(_) | NameChange::Exchanged(..)) {
            told.removed.push(path.clone());
        }
        let how = match change {
            NameChange::Goes(_) | NameChange::Stays(InodeAction::Same) => continue,
            NameChange::Stays(InodeAction::Attributes) => ExportExtent::Kept,
            _ => ExportExtent::Whole,
        };
        let Some((child, trail)) = &planned.want else {
            continue;
        };
        let trail = Arc::clone(trail);
        told.works.push(if child.kind == Kind::Dir {
            ExportWork::List {
                path,
                trail,
                was_here: false,
            }
        } else {
            ExportWork::one(path, *child, trail, how)
        });
    }
    // Changes in a directory update its times, even if its own attributes have no record.
    if dir.with_attrs || worked_in || before != (told.works.len(), told.removed.len()) {
        let child = Child {
            slot: dir.want.slot,
            kind: Kind::Dir,
        };
        told.works.insert(
            before.0,
            ExportWork::one(path, child, Arc::clone(&dir.want), ExportExtent::Kept),
        );
    }
}

impl DiffPlanner<'_> {
    /// Returns the names of a directory at which the states may differ.
    fn names_of(&self, want: &Arc<Trail>, live: Option<&Arc<Trail>>) -> SysResult<BTreeSet<Name>> {
        let is_one = |live| self.touched.is_one((&self.from, live), (&self.to, want));
        Ok(match live {
            Some(live) if !is_one(live) => {
                let both = [self.from.list_known(live)?, self.to.list_known(want)?];
                let each = both.into_iter().flat_map(|known| {
                    let names = known.names.into_iter().map(|(name, _)| name);
                    names.chain(known.unknown)
                });
                each.collect()
            }
            _ => self
                .touched
                .names
                .get(&want.slot)
                .cloned()
                .unwrap_or_default(),
        })
    }
}

impl PlanBuilder for DiffPlanner<'_> {
    fn plan(&mut self) -> &mut tree::plan::TreePlan {
        &mut self.plan
    }

    fn names(&mut self, want: &Arc<Trail>, live: Option<&Arc<Trail>>) -> SysResult<Vec<NamePlan>> {
        let (dir, mut names) = (want.path(), Vec::new());
        for name in &self.names_of(want, live)? {
            let new = match self.to.step(want, name) {
                Ok(new) => new,
                Err(errno) => {
                    self.told.refused.push((join(&dir, name), errno));
                    continue;
                }
            };
            // The past entry is unknown: any existing one is removed.
            let have = live
                .map_or(Ok(None), |live| self.from.child(live, name))
                .unwrap_or_else(|_| {
                    self.told.removed.push(join(&dir, name));
                    self.worked_in.insert(want.slot);
                    None
                });
            names.push(NamePlan {
                name: name.clone(),
                want: new,
                have,
            });
        }
        Ok(names)
    }

    /// Only an inode at its former path is found, because the copy has only paths.
    fn find(&mut self, _child: Child, want: &Arc<Trail>, here: bool) -> SysResult<Option<Place>> {
        let place = want.up.as_ref().filter(|_| here).map(|up| Place {
            parent: up.slot,
            name: want.name.clone(),
        });
        Ok(place)
    }

    /// A new directory is sent whole, without a comparison.
    fn enters(&mut self, want: &Arc<Trail>, alive: bool) -> SysResult<bool> {
        if alive && !self.passed.insert(want.slot) {
            self.told.refused.push((want.path(), Errno::EIO));
            return Ok(false);
        }
        Ok(alive)
    }

    fn content(
        &mut self,
        child: Child,
        _want: &Arc<Trail>,
        _alive: bool,
    ) -> SysResult<InodeAction> {
        Ok(match child.kind {
            _ if !self.touched.nodes.contains(&child.slot) => InodeAction::Same,
            Kind::File if !self.touched.data.contains(&child.slot) => InodeAction::Attributes,
            _ => InodeAction::New,
        })
    }

    fn with_attrs(&mut self, want: &Arc<Trail>) -> SysResult<bool> {
        Ok(self.touched.dirs.contains(&want.slot) || self.touched.nodes.contains(&want.slot))
    }
}

/// Returns the files that keep their content at one of their names; the other names become links to
/// it.
fn kept(works: &[ExportWork]) -> HashMap<Slot, Vec<u8>> {
    let mut kept: HashMap<Slot, Vec<u8>> = HashMap::new();
    for work in works {
        if let ExportWork::One {
            path,
            child,
            how: ExportExtent::Kept,
            ..
        } = work
            && child.kind != Kind::Dir
        {
            kept.entry(child.slot).or_insert_with(|| path.clone());
        }
    }
    kept
}
