//! Makes the plan of a restore: compares the live tree with a checkpoint, where something was
//! recorded since.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::super::Engine;
use super::super::api::Times;
use super::left::{Left, to_rescue};
use super::plan::{Plan, Which};
use super::spared::Spared;
use crate::history::diff::join;
use crate::history::present::{Present, Trail};
use crate::history::state::State;
use crate::history::touched::Touched;
use crate::history::view::View;
use crate::live::At;
use crate::store::ids::{CheckpointId, Name, Slot};
use crate::store::record::{Child, Place};
use crate::sys::{Errno, Kind, SysResult};
use crate::tree;
use crate::tree::plan::{Content, DirPlan, NamePlan};
use crate::tree::states::States;

/// What a plan is made from.
#[derive(Clone, Copy)]
pub(super) struct Ground<'a> {
    pub(super) engine: &'a Engine,
    /// The live tree, as it is looked at.
    pub(super) present: &'a dyn Present,
    /// What is to come back.
    pub(super) target: CheckpointId,
    /// What was recorded since.
    pub(super) touched: &'a Touched,
    /// What stays as it is all the same.
    pub(super) spared: &'a Spared,
    /// Files get the times that they had; else what is changed has the time of the restore.
    pub(super) times: Times,
}

impl<'a> Ground<'a> {
    fn view(&self, state: State) -> View<'a> {
        View::new(self.engine.timeline(), self.present, state)
    }
}

pub(super) struct Planner<'a> {
    pub(super) engine: &'a Engine,
    pub(super) view: View<'a>,
    pub(super) now: View<'a>,
    pub(super) touched: &'a Touched,
    pub(super) paths: &'a [Vec<u8>],
    /// Where the paths are in the live tree.
    pub(super) roots: HashSet<Place>,
    /// The paths alone are restored, not what is below them.
    pub(super) exact: bool,
    /// Directories of the live tree, and whether they are inside what is restored.
    pub(super) inside: RefCell<HashMap<Slot, bool>>,
    /// What stays as it is, and where that is in the live tree.
    pub(super) spared: Spared,
    pub(super) spared_places: HashSet<Place>,
    /// Paths whose past is not known, in directories that go: the live file is moved over to the
    /// directory that comes.
    pub(super) rescued: BTreeSet<Vec<u8>>,
    /// Every path whose past is not known and which therefore is not planned.
    pub(super) left: Left,
    /// Directories of the checkpoint that are wanted.
    passed: HashSet<Slot>,
    pub(super) plan: Plan,
}

/// Where a directory is now, if it is in the live tree, and where it was.
type Ways = (Option<Arc<Trail>>, Arc<Trail>);

/// What is still to be planned.
enum Step<'p> {
    /// A directory on the way to restored paths, as it is and as it was, with the paths below it.
    Way(Option<Arc<Trail>>, Option<Arc<Trail>>, Vec<&'p [Name]>),
    /// What a restored path led to.
    Wanted(Child, Arc<Trail>),
}

impl Plan {
    /// Compares the live tree with a checkpoint, in the whole or below the given paths.
    ///
    /// A path whose past is not known is left as it is. If the directory that it is in goes, a
    /// second pass plans to move it over: the first pass finds such paths too late, when it has
    /// planned other names already.
    pub(super) fn make(ground: Ground<'_>, which: Which<'_>) -> SysResult<Plan> {
        let (first, left) = Plan::pass(ground, which, BTreeSet::new())?;
        let rescued = to_rescue(&ground.view(State::Live), left)?;
        if rescued.is_empty() {
            return Ok(first);
        }
        let (mut plan, _) = Plan::pass(ground, which, rescued)?;
        plan.unknown.extend(first.unknown);
        Ok(plan)
    }

    /// Plans with these paths rescued. Returns the plan and the paths that it leaves as they are.
    fn pass(
        ground: Ground<'_>,
        which: Which<'_>,
        rescued: BTreeSet<Vec<u8>>,
    ) -> SysResult<(Plan, Left)> {
        let Ground {
            engine,
            target,
            touched,
            spared,
            times,
            ..
        } = ground;
        let (paths, exact) = match which {
            Which::Below(paths) => (paths, false),
            Which::Only(paths) => (paths, true),
        };
        let (view, now) = (ground.view(State::At(target)), ground.view(State::Live));
        let plan = Plan {
            target,
            whole: paths.is_empty() && !exact && spared.is_empty() && rescued.is_empty(),
            tree: tree::plan::Plan::default(),
            times,
            unknown: BTreeSet::new(),
            lost: HashSet::new(),
        };
        let mut roots = HashSet::new();
        for path in paths {
            roots.extend(live_place(&now, path)?);
        }
        let mut spared_places = HashSet::new();
        for path in spared.paths().chain(&rescued) {
            spared_places.extend(live_place(&now, path)?);
        }
        let inside = RefCell::default();
        let mut planner = Planner {
            engine,
            view,
            now,
            touched,
            paths,
            roots,
            exact,
            inside,
            spared: spared.clone(),
            spared_places,
            rescued,
            left: Left::new(),
            passed: HashSet::new(),
            plan,
        };
        if paths.is_empty() && !exact {
            planner.all()?;
        }
        let mut split: Vec<Vec<Name>> = paths
            .iter()
            .map(|path| path.split(|byte| *byte == b'/').map(Name::new).collect())
            .collect();
        split.sort();
        let split: Vec<&[Name]> = split.iter().map(Vec::as_slice).collect();
        if exact {
            planner.only(split)?;
        } else if !split.is_empty() {
            planner.paths(split)?;
        }
        let (mut plan, left) = (planner.plan, planner.left);
        plan.leave_lost();
        Ok((plan, left))
    }
}

/// The place that a path names in the live tree, if the directory is there.
fn live_place(now: &View<'_>, path: &[u8]) -> SysResult<Option<Place>> {
    let end = path.iter().rposition(|byte| *byte == b'/');
    let (dir, name) = (
        path.get(..end.unwrap_or(0)).unwrap_or_default(),
        path.get(end.map_or(0, |end| end + 1)..).unwrap_or_default(),
    );
    let found = now.walk(dir)?.filter(|(child, _)| child.kind == Kind::Dir);
    Ok(found.map(|(child, _)| Place {
        parent: child.slot,
        name: Name::new(name),
    }))
}

impl States for Planner<'_> {
    fn plan(&mut self) -> &mut tree::plan::Plan {
        &mut self.plan.tree
    }

    fn names(&mut self, want: &Arc<Trail>, live: Option<&Arc<Trail>>) -> SysResult<Vec<NamePlan>> {
        let is_one = |live| self.touched.is_one((&self.view, want), (&self.now, live));
        let one = live.is_some_and(is_one);
        let mut names: BTreeSet<Name> = match live {
            Some(_) if one => self
                .touched
                .names
                .get(&want.slot)
                .cloned()
                .unwrap_or_default(),
            _ => {
                let known = self.view.list_known(want)?;
                let there = live.map_or_else(|| Ok(Vec::new()), |live| self.now.list(live))?;
                self.leave(want, live, &known)?;
                let both = known.names.into_iter().chain(there);
                both.map(|(name, _)| name).collect()
            }
        };
        if !self.spared.is_empty() || !self.rescued.is_empty() {
            let path = want.path();
            let mut spared: BTreeSet<Name> = names
                .iter()
                .filter(|name| self.spared.has(&join(&path, name)))
                .cloned()
                .collect();
            spared.extend(self.rescued_in(&path));
            for name in spared {
                self.rescue(&join(&path, &name), &name, live)?;
                names.remove(&name);
            }
        }
        let mut plans = Vec::with_capacity(names.len());
        let steps = self.view.steps_told(want, &names);
        for (name, (now, wanted)) in names.into_iter().zip(steps) {
            let wanted = match wanted {
                // Changed while nobody served the tree, or damaged: it stays as it is.
                Err(Errno::EIO) => {
                    let path = join(&want.path(), &name);
                    self.left.insert(path.clone(), live.map(|live| live.slot));
                    self.plan.unknown.insert(path);
                    continue;
                }
                wanted => wanted?,
            };
            let have = match live {
                Some(_) if now && one => wanted.as_ref().map(|(child, _)| *child),
                Some(live) => self.now.child(live, &name)?,
                None => None,
            };
            if wanted.is_some() || have.is_some() {
                plans.push(NamePlan {
                    name,
                    want: wanted,
                    have,
                });
            }
        }
        Ok(plans)
    }

    fn find(&mut self, child: Child, trail: &Arc<Trail>, here: bool) -> SysResult<Option<Place>> {
        let whole = self.paths.is_empty() && !self.exact;
        if let Some(up) = trail.up.as_ref().filter(|_| {
            whole && here && self.spared.is_empty() && !self.engine.live.nodes.is_dead(child.slot)
        }) {
            return Ok(Some(Place {
                parent: up.slot,
                name: trail.name.clone(),
            }));
        }
        let found = if whole {
            match self.engine.live.inodes.locate(At::from(trail), child.kind) {
                Err(Errno::ESTALE) => None,
                place => Some(place?),
            }
        } else {
            self.names_inside(child, trail)?.pop()
        };
        let found = match found {
            None if child.kind != Kind::Dir && !self.exact => self.name_outside(child, trail)?,
            found => found,
        };
        // It stays there, and another one comes here.
        match found {
            Some(place) if self.is_spared(&place)? => Ok(None),
            found => Ok(found),
        }
    }

    fn enters(&mut self, want: &Arc<Trail>, _alive: bool) -> SysResult<bool> {
        if self.passed.insert(want.slot) {
            Ok(true)
        } else {
            Err(Errno::EIO)
        }
    }

    /// One of which it cannot be told what it was stays as it is; if it is gone it does not come
    /// back.
    fn content(&mut self, child: Child, trail: &Arc<Trail>, alive: bool) -> SysResult<Content> {
        let content = self.content_known(child, trail, alive).and_then(|content| {
            if matches!(content, Content::New | Content::InPlace) {
                self.can_be_told(child, trail)?;
            }
            Ok(content)
        });
        if content != Err(Errno::EIO) {
            return content;
        }
        self.plan.unknown.insert(trail.path());
        if !alive {
            let up = trail.up.as_ref().map(|up| up.slot);
            let inside = up.filter(|up| self.plan.tree.alive_dirs.contains(up));
            self.left.insert(trail.path(), inside);
            self.plan.lost.insert(child.slot);
        }
        Ok(Content::Same)
    }

    /// Whether it can be told what a directory was; else it stays as it is, or as it is made.
    fn with_attrs(&mut self, want: &Arc<Trail>) -> SysResult<bool> {
        match self.view.attr(want).and_then(|_| self.view.xattrs(want)) {
            Err(Errno::EIO) => {
                self.plan.unknown.insert(want.path());
                Ok(false)
            }
            told => told.map(|_| true),
        }
    }
}

impl Planner<'_> {
    /// What is at and below the given paths, split into names and sorted. Depth first, without
    /// recursion: a tree can be deeper than the stack.
    fn paths(&mut self, paths: Vec<&[Name]>) -> SysResult<()> {
        let mut open = vec![Step::Way(Some(Trail::root()), Some(Trail::root()), paths)];
        while let Some(step) = open.pop() {
            match step {
                Step::Way(live, then, paths) => {
                    open.extend(self.some(live, then, &paths)?.into_iter().rev())
                }
                Step::Wanted(child, trail) => self.below(vec![(child, trail, false)])?,
            }
        }
        Ok(())
    }

    /// The paths below one directory, each without the names that lead to it, sorted; gives what is
    /// to be done below. Directories on the way are gone to by name, in the live tree; where one is
    /// missing it comes back too, with nothing else in it.
    fn some<'p>(
        &mut self,
        live: Option<Arc<Trail>>,
        then: Option<Arc<Trail>>,
        paths: &[&'p [Name]],
    ) -> SysResult<Vec<Step<'p>>> {
        let Some(want) = live.clone().or_else(|| then.clone()) else {
            return Ok(Vec::new());
        };
        let (mut names, mut below) = (Vec::new(), Vec::new());
        for group in paths.chunk_by(|a, b| a.first() == b.first()) {
            let Some((name, rest)) = group.first().and_then(|path| path.split_first()) else {
                continue;
            };
            let have = live
                .as_ref()
                .map_or(Ok(None), |dir| self.now.step(dir, name))?;
            let want = then
                .as_ref()
                .map_or(Ok(None), |dir| self.view.step(dir, name))?;
            if rest.is_empty()
                && self.stays(live.as_ref().or(then.as_ref()), name, live.as_ref())?
            {
                continue;
            }
            let plan = NamePlan {
                name: name.clone(),
                want: want.clone(),
                have: have.as_ref().map(|(child, _)| *child),
            };
            if rest.is_empty() {
                names.push(plan);
                below.extend(want.map(|(child, trail)| Step::Wanted(child, trail)));
                continue;
            }
            let is_dir = |found: &(Child, Arc<Trail>)| found.0.kind == Kind::Dir;
            let (have, want) = (
                have.filter(is_dir).map(|found| found.1),
                want.filter(is_dir).map(|found| found.1),
            );
            if have.is_none() && want.is_some() {
                names.push(plan);
            }
            below.push(Step::Way(
                have,
                want,
                group.iter().filter_map(|path| path.get(1..)).collect(),
            ));
        }
        // Parents come before children. One that is there keeps its attributes: it was not asked
        // for.
        let with_attrs = live.is_none() && self.with_attrs(&want)?;
        self.plan.tree.dirs.push(DirPlan {
            want,
            with_attrs,
            live,
            names,
        });
        Ok(below)
    }

    /// The given paths alone, split into names and sorted. A directory is gone to as it was, which
    /// may be somewhere else now, and where it was not as it is.
    fn only(&mut self, paths: Vec<&[Name]>) -> SysResult<()> {
        let mut open = vec![(Some(Trail::root()), Some(Trail::root()), false, paths)];
        self.plan.tree.alive_dirs.insert(Slot::ROOT);
        while let Some((live, then, with_attrs, paths)) = open.pop() {
            let Some(want) = then.clone().or_else(|| live.clone()) else {
                continue;
            };
            let (mut names, mut below) = (Vec::new(), Vec::new());
            for group in paths.chunk_by(|a, b| a.first() == b.first()) {
                let Some(name) = group.first().and_then(|path| path.first()) else {
                    continue;
                };
                let chosen = group.iter().any(|path| path.len() == 1);
                let rest: Vec<&[Name]> = group
                    .iter()
                    .filter_map(|path| path.get(1..))
                    .filter(|rest| !rest.is_empty())
                    .collect();
                let have = live
                    .as_ref()
                    .map_or(Ok(None), |dir| self.now.step(dir, name))?;
                let wanted = then
                    .as_ref()
                    .map_or(Ok(None), |dir| self.view.step(dir, name))?;
                let chosen =
                    chosen && !self.stays(then.as_ref().or(live.as_ref()), name, live.as_ref())?;
                if chosen {
                    if let Some(live) = &live {
                        self.roots.insert(Place {
                            parent: live.slot,
                            name: name.clone(),
                        });
                    }
                    let have = have.as_ref().map(|(child, _)| *child);
                    names.push(NamePlan {
                        name: name.clone(),
                        want: wanted.clone(),
                        have,
                    });
                }
                below.push((chosen, have, wanted, rest));
            }
            self.plan.tree.dirs.push(DirPlan {
                want,
                with_attrs,
                live,
                names,
            });
            for (chosen, have, wanted, rest) in below.into_iter().rev() {
                let have = have
                    .filter(|(child, _)| child.kind == Kind::Dir)
                    .map(|(_, trail)| trail);
                match wanted {
                    Some((child, trail)) if chosen => open.extend(
                        self.chosen(child, trail)?
                            .map(|(live, then)| (live, Some(then), true, rest)),
                    ),
                    Some((child, trail)) if child.kind == Kind::Dir && !rest.is_empty() => {
                        open.push((have, Some(trail), false, rest))
                    }
                    _ if !chosen && have.is_some() && !rest.is_empty() => {
                        open.push((have, None, false, rest))
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Plans what a chosen path led to; of a directory gives where it is now, and was.
    fn chosen(&mut self, child: Child, trail: Arc<Trail>) -> SysResult<Option<Ways>> {
        let is_dir = self.inode(child, &trail, false)?;
        let alive = self.plan.tree.alive_dirs.contains(&child.slot);
        Ok(is_dir.then(|| (alive.then(|| Arc::clone(&trail)), trail)))
    }
}
