//! Planner of a restore: compares the live tree with a checkpoint wherever something was recorded
//! since.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::super::Engine;
use super::excluded::ExcludedPaths;
use super::plan::{PlanScope, RestorePlan};
use super::rescue::{UnplannedPaths, to_rescue};
use crate::history::diff::join;
use crate::history::present::{LiveTree, Trail};
use crate::history::state::TreeState;
use crate::history::touched::Touched;
use crate::history::view::View;
use crate::live::NodeRef;
use crate::tree;
use crate::tree::plan::{DirPlan, InodeAction, NamePlan};
use crate::tree::states::PlanBuilder;
use ckptfs_api::{CheckpointId, Times};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{Child, Place};
use ckptfs_sys::{Errno, Kind, SysResult};

/// The inputs of a plan.
#[derive(Clone, Copy)]
pub(super) struct PlanInput<'a> {
    pub(super) engine: &'a Engine,
    /// The live tree, possibly through a cache.
    pub(super) present: &'a dyn LiveTree,
    /// The checkpoint to restore.
    pub(super) target: CheckpointId,
    /// The records since the checkpoint.
    pub(super) touched: &'a Touched,
    /// Paths that are excluded.
    pub(super) spared: &'a ExcludedPaths,
    /// Whether files get their original times; otherwise changed files get the time of the restore.
    pub(super) times: Times,
}

impl<'a> PlanInput<'a> {
    fn view(&self, state: TreeState) -> View<'a> {
        View::new(self.engine.timeline(), self.present, state)
    }
}

pub(super) struct Planner<'a> {
    pub(super) engine: &'a Engine,
    pub(super) view: View<'a>,
    pub(super) now: View<'a>,
    pub(super) touched: &'a Touched,
    pub(super) paths: &'a [Vec<u8>],
    /// The places of the paths in the live tree.
    pub(super) roots: HashSet<Place>,
    /// Only the paths are restored, not their descendants.
    pub(super) exact: bool,
    /// Live directories, and whether they are inside the restored paths.
    pub(super) inside: RefCell<HashMap<Slot, bool>>,
    /// Excluded paths, and their places in the live tree.
    pub(super) spared: ExcludedPaths,
    pub(super) spared_places: HashSet<Place>,
    /// Paths with an unknown past in directories that are removed. The live file is moved to the
    /// restored directory.
    pub(super) rescued: BTreeSet<Vec<u8>>,
    /// All paths that are not planned because their past is unknown.
    pub(super) left: UnplannedPaths,
    /// Directories of the checkpoint that were visited.
    passed: HashSet<Slot>,
    pub(super) plan: RestorePlan,
}

/// The live directory, if it exists, and its past state.
type LiveAndPast = (Option<Arc<Trail>>, Arc<Trail>);

/// A pending step of the planner.
enum PlanStep<'p> {
    /// A directory above restored paths, live and past, with the paths below it.
    Way(Option<Arc<Trail>>, Option<Arc<Trail>>, Vec<&'p [Name]>),
    /// The inode of a restored path at the checkpoint.
    Wanted(Child, Arc<Trail>),
}

impl RestorePlan {
    /// Compares the live tree with a checkpoint, entirely or below the given paths.
    ///
    /// A path whose past is unknown is left unchanged. If its directory is removed, a second pass
    /// plans to move the path: the first pass finds such paths after it has planned other names.
    pub(super) fn make(ground: PlanInput<'_>, which: PlanScope<'_>) -> SysResult<RestorePlan> {
        let (first, left) = RestorePlan::pass(ground, which, BTreeSet::new())?;
        let rescued = to_rescue(&ground.view(TreeState::Live), left)?;
        if rescued.is_empty() {
            return Ok(first);
        }
        let (mut plan, _) = RestorePlan::pass(ground, which, rescued)?;
        plan.unknown.extend(first.unknown);
        Ok(plan)
    }

    /// Plans with these paths rescued. Returns the plan and the paths that it leaves unchanged.
    fn pass(
        ground: PlanInput<'_>,
        which: PlanScope<'_>,
        rescued: BTreeSet<Vec<u8>>,
    ) -> SysResult<(RestorePlan, UnplannedPaths)> {
        let PlanInput {
            engine,
            target,
            touched,
            spared,
            times,
            ..
        } = ground;
        let (paths, exact) = match which {
            PlanScope::Below(paths) => (paths, false),
            PlanScope::Only(paths) => (paths, true),
        };
        let (view, now) = (
            ground.view(TreeState::At(target)),
            ground.view(TreeState::Live),
        );
        let plan = RestorePlan {
            target,
            whole: paths.is_empty() && !exact && spared.is_empty() && rescued.is_empty(),
            tree: tree::plan::TreePlan::default(),
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
            left: UnplannedPaths::new(),
            passed: HashSet::new(),
            plan,
        };
        planner.run()?;
        let (mut plan, left) = (planner.plan, planner.left);
        plan.leave_lost();
        Ok((plan, left))
    }
}

impl Planner<'_> {
    /// Plans the whole tree, what is below the paths, or the paths alone.
    fn run(&mut self) -> SysResult<()> {
        let mut split: Vec<Vec<Name>> = self
            .paths
            .iter()
            .map(|path| path.split(|byte| *byte == b'/').map(Name::new).collect())
            .collect();
        split.sort();
        let split: Vec<&[Name]> = split.iter().map(Vec::as_slice).collect();
        match (self.exact, split.is_empty()) {
            (true, _) => self.only(split),
            (false, true) => self.all(),
            (false, false) => self.paths(split),
        }
    }
}

/// Returns the place of a path in the live tree, if its directory exists.
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

impl PlanBuilder for Planner<'_> {
    fn plan(&mut self) -> &mut tree::plan::TreePlan {
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
                // Changed while the tree was not served, or damaged: left unchanged.
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
            match self
                .engine
                .live
                .inodes
                .locate(NodeRef::from(trail), child.kind)
            {
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
        // The excluded inode stays there; a new one is created here.
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

    /// Leaves an inode unchanged if its past state is unknown; if it no longer exists, it is not
    /// restored.
    fn content(&mut self, child: Child, trail: &Arc<Trail>, alive: bool) -> SysResult<InodeAction> {
        let content = self.content_known(child, trail, alive).and_then(|content| {
            if matches!(content, InodeAction::New | InodeAction::InPlace) {
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
        Ok(InodeAction::Same)
    }

    /// Returns whether the past attributes of a directory are known. Otherwise the directory keeps
    /// those that it has.
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
    /// Plans the given paths, split into names and sorted, and everything below them. Depth-first
    /// without recursion: a tree can be deeper than the stack.
    fn paths(&mut self, paths: Vec<&[Name]>) -> SysResult<()> {
        let mut open = vec![PlanStep::Way(
            Some(Trail::root()),
            Some(Trail::root()),
            paths,
        )];
        while let Some(step) = open.pop() {
            match step {
                PlanStep::Way(live, then, paths) => {
                    open.extend(self.some(live, then, &paths)?.into_iter().rev())
                }
                PlanStep::Wanted(child, trail) => self.below(vec![(child, trail, false)])?,
            }
        }
        Ok(())
    }

    /// Plans the paths below one directory and returns the pending steps. Paths are relative to the
    /// directory and sorted. Intermediate directories are resolved by name in the live tree; a
    /// missing one is restored without other entries.
    fn some<'p>(
        &mut self,
        live: Option<Arc<Trail>>,
        then: Option<Arc<Trail>>,
        paths: &[&'p [Name]],
    ) -> SysResult<Vec<PlanStep<'p>>> {
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
                below.extend(want.map(|(child, trail)| PlanStep::Wanted(child, trail)));
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
            below.push(PlanStep::Way(
                have,
                want,
                group.iter().filter_map(|path| path.get(1..)).collect(),
            ));
        }
        // Parents precede children. An existing directory keeps its attributes because the restore
        // does not include it.
        let with_attrs = live.is_none() && self.with_attrs(&want)?;
        self.plan.tree.dirs.push(DirPlan {
            want,
            with_attrs,
            live,
            names,
        });
        Ok(below)
    }

    /// Plans exactly the given paths, split into names and sorted. A directory is resolved in the
    /// checkpoint, and may be elsewhere now; if it did not exist there, in the live tree.
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

    /// Plans the inode of a selected path. For a directory, returns its live and past states.
    fn chosen(&mut self, child: Child, trail: Arc<Trail>) -> SysResult<Option<LiveAndPast>> {
        let is_dir = self.inode(child, &trail, false)?;
        let alive = self.plan.tree.alive_dirs.contains(&child.slot);
        Ok(is_dir.then(|| (alive.then(|| Arc::clone(&trail)), trail)))
    }
}
