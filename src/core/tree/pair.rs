//! Plans for two trees, by full comparison or by the records between them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::plan::{InodeAction, NamePlan, TreePlan};
use super::states::PlanBuilder;
use super::{Tree, has_attrs};
use crate::history::present::Trail;
use crate::history::touched::Touched;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{Child, Place};
use ckptfs_sys::{Errno, Kind, SysResult};

struct PairPlanner<'a, T> {
    from: &'a T,
    to: &'a T,
    touched: Option<&'a Touched>,
    /// The trails of existing inodes at names that may differ.
    ways: HashMap<Slot, (Kind, Arc<Trail>)>,
    passed: HashSet<Slot>,
    plan: TreePlan,
}

/// Plans the changes that turn `from` into `to`. `touched` has the records between the two; without
/// it everything is compared.
///
/// # Errors
/// Those of reading both; EIO: a directory is in two places.
pub fn plan<T: Tree>(from: &T, to: &T, touched: Option<&Touched>) -> SysResult<TreePlan> {
    let mut pair = PairPlanner {
        from,
        to,
        touched,
        ways: HashMap::new(),
        passed: HashSet::new(),
        plan: TreePlan::default(),
    };
    pair.look()?;
    pair.all()?;
    Ok(pair.plan)
}

impl<T: Tree> PairPlanner<'_, T> {
    /// Locates existing inodes that may be wanted elsewhere.
    fn look(&mut self) -> SysResult<()> {
        let (mut open, mut listed) = (vec![Trail::root()], HashSet::new());
        while let Some(dir) = open.pop() {
            if !listed.insert(dir.slot) {
                return Err(Errno::EIO);
            }
            for name in self.names_of(self.from, &dir)? {
                let Some((child, trail)) = self.from.step(&dir, &name)? else {
                    continue;
                };
                self.ways
                    .insert(child.slot, (child.kind, Arc::clone(&trail)));
                if child.kind == Kind::Dir {
                    open.push(trail);
                }
            }
        }
        Ok(())
    }

    /// Returns the names of a directory that may differ, as far as one state shows them.
    fn names_of(&self, tree: &T, dir: &Arc<Trail>) -> SysResult<BTreeSet<Name>> {
        match self.touched {
            Some(touched) => Ok(touched.names.get(&dir.slot).cloned().unwrap_or_default()),
            None => Ok(tree.list(dir)?.into_iter().map(|(name, _)| name).collect()),
        }
    }
}

impl<T: Tree> PlanBuilder for PairPlanner<'_, T> {
    fn plan(&mut self) -> &mut TreePlan {
        &mut self.plan
    }

    fn names(&mut self, want: &Arc<Trail>, live: Option<&Arc<Trail>>) -> SysResult<Vec<NamePlan>> {
        let names: BTreeSet<Name> = match live {
            Some(live) => self
                .names_of(self.from, live)?
                .into_iter()
                .chain(self.names_of(self.to, want)?)
                .collect(),
            None => self
                .to
                .list(want)?
                .into_iter()
                .map(|(name, _)| name)
                .collect(),
        };
        let mut plans = Vec::with_capacity(names.len());
        for name in names {
            let wanted = self.to.step(want, &name)?;
            let have = live.map_or(Ok(None), |live| self.from.child(live, &name))?;
            plans.push(NamePlan {
                name,
                want: wanted,
                have,
            });
        }
        Ok(plans)
    }

    fn find(&mut self, child: Child, want: &Arc<Trail>, here: bool) -> SysResult<Option<Place>> {
        let known = self
            .ways
            .get(&child.slot)
            .filter(|(kind, _)| *kind == child.kind);
        let way = if here {
            Some(want)
        } else {
            known.map(|(_, way)| way)
        };
        Ok(way.and_then(|way| {
            way.up.as_ref().map(|up| Place {
                parent: up.slot,
                name: way.name.clone(),
            })
        }))
    }

    fn enters(&mut self, want: &Arc<Trail>, _alive: bool) -> SysResult<bool> {
        if self.passed.insert(want.slot) {
            Ok(true)
        } else {
            Err(Errno::EIO)
        }
    }

    fn content(&mut self, child: Child, want: &Arc<Trail>, alive: bool) -> SysResult<InodeAction> {
        let touches = |slots: fn(&Touched) -> &HashSet<Slot>| {
            self.touched
                .is_none_or(|touched| slots(touched).contains(&child.slot))
        };
        if !alive {
            return Ok(InodeAction::New);
        }
        if !touches(|touched| &touched.nodes) {
            return Ok(InodeAction::Same);
        }
        let there = self
            .ways
            .get(&child.slot)
            .map_or_else(|| Arc::clone(want), |(_, way)| Arc::clone(way));
        if child.kind == Kind::File
            && touches(|touched| &touched.data)
            && !self.from.same_content(&there, self.to, want)?
        {
            return Ok(if self.to.attr(want)?.stat.nlink > 1 {
                InodeAction::InPlace
            } else {
                InodeAction::New
            });
        }
        // The target of a symbolic link cannot be changed.
        if child.kind == Kind::Symlink
            && self.from.attr(&there)?.target != self.to.attr(want)?.target
        {
            return Ok(InodeAction::New);
        }
        Ok(if has_attrs((self.from, &there), (self.to, want), true)? {
            InodeAction::Same
        } else {
            InodeAction::Attributes
        })
    }

    fn with_attrs(&mut self, _want: &Arc<Trail>) -> SysResult<bool> {
        Ok(true)
    }
}
