//! Carrying a plan out: stage what is needed elsewhere, remove what is not wanted, put everything in place, then give back attributes.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::super::Engine;
use super::super::api::Times;
use super::Stale;
use super::plan::{Content, DirPlan, Leads, Plan};
use super::stage::Stage;
use crate::history::present::Trail;
use crate::history::state::State;
use crate::live::{At, Make, Swap, Turn};
use crate::store::ids::{Name, Slot};
use crate::store::record::{Child, Place};
use crate::sys::{self, Errno, Kind, RenameMode, SysResult};

/// New inodes that are put in place at once, at most.
const SWAPS_MAX: usize = 4096;

struct Applier<'a> {
    engine: &'a Engine,
    plan: &'a Plan,
    stage: Stage<'a>,
    /// New inodes that are about to be put in place. Whatever else is done, they are before it.
    swaps: Vec<Swap>,
    places: HashSet<Place>,
    /// Wanted directory -> the one that stands for it in the live tree.
    dirs: HashMap<Slot, Slot>,
    /// Wanted inode -> where the one that stands for it is now. One that is made anew and is wanted once is not asked for.
    placed: HashMap<Slot, Place>,
    /// Made when it is first asked for: each inode that is taken would look through the whole plan otherwise.
    leads: OnceCell<Leads<'a>>,
    stale: Stale,
}

/// Carries out a plan, with what was made for it. The caller holds the freeze lock and the tree for writing.
pub(super) fn apply(engine: &Engine, plan: &Plan, stage: Stage<'_>) -> SysResult<Stale> {
    let mut applier = Applier {
        engine,
        plan,
        stage,
        swaps: Vec::new(),
        places: HashSet::new(),
        dirs: plan.alive_dirs.iter().map(|slot| (*slot, *slot)).collect(),
        placed: HashMap::new(),
        leads: OnceCell::new(),
        stale: Stale::default(),
    };
    applier.rewrite()?;
    applier.stage()?;
    applier.remove()?;
    for dir in &plan.dirs {
        applier.place(dir)?;
    }
    applier.put_in_place()?;
    applier.apply_attrs()?;
    applier.stage.clear();
    applier.clean_staging()?;
    Ok(applier.stale.without_twice())
}

/// Everything that a plan can have changed: for when it was carried out in part.
pub(super) fn all_of(plan: &Plan) -> Stale {
    let mut stale = Stale::default();
    for dir in &plan.dirs {
        let here = dir.live.as_ref().map_or(dir.want.slot, |live| live.slot);
        stale.nodes.push(here);
        for name in &dir.names {
            stale.names.push((here, name.name.clone()));
            stale.nodes.extend(name.have.map(|have| have.slot));
            stale.nodes.extend(name.want.as_ref().map(|(child, _)| child.slot));
        }
    }
    stale
}

fn staged_name(slot: Slot) -> Name {
    Name::new(format!("{}", slot.0).as_bytes())
}

impl Applier<'_> {
    fn live(&self) -> &crate::live::Live {
        &self.engine.live
    }

    fn keeps_times(&self) -> bool {
        self.plan.times == Times::Kept
    }

    /// Gives back attributes, and content where an inode must keep its number, to inodes that are in the live tree.
    fn rewrite(&mut self) -> SysResult<()> {
        let (plan, mut done) = (self.plan, HashSet::new());
        for (_, _, child, trail, _) in plan.wanted() {
            let content = self.plan.contents.get(&child.slot);
            if !matches!(content, Some(Content::Attributes | Content::InPlace)) || !done.insert(child.slot) {
                continue;
            }
            let view = self.engine.states.view(State::At(self.plan.target));
            if content == Some(&Content::InPlace) {
                let (_, source) = view.open(trail)?;
                self.live().attrs.rewrite_in(At::from(trail), source.as_ref(), view.attr(trail)?.stat.size)?;
            }
            self.live().attrs.apply_attrs_in(At::from(trail), &view.attr(trail)?, &view.xattrs(trail)?, self.keeps_times())?;
            self.stale.nodes.push(child.slot);
        }
        Ok(())
    }

    /// Takes inodes that are wanted at another name there, or out of the way; makes what is to be made and is not yet.
    fn stage(&mut self) -> SysResult<()> {
        let plan = self.plan;
        for (dir, name, child, trail, have) in plan.wanted() {
            if self.placed.contains_key(&child.slot) {
                continue;
            }
            let here = have.is_some_and(|have| have.slot == child.slot);
            let free = || dir.live.as_ref().filter(|_| have.is_none()).map(|live| Place { parent: live.slot, name: name.clone() });
            let place = match plan.contents.get(&child.slot) {
                _ if child.kind == Kind::Dir && (here || !plan.alive_dirs.contains(&child.slot)) => continue,
                _ if child.kind == Kind::Dir => self.take(child, trail, None)?,
                Some(Content::New) | None => {
                    self.stage.complete(plan, child, trail)?;
                    continue;
                }
                Some(_) if here => continue,
                Some(_) => self.take(child, trail, free())?,
            };
            self.placed.insert(child.slot, place);
        }
        Ok(())
    }

    /// Where a live inode is now. Of one with several names, history may know only one that it has lost; then it is where it was when the plan was made.
    fn locate(&self, at: At<'_>, child: Child) -> SysResult<Place> {
        match self.live().inodes.locate(at, child.kind) {
            Err(Errno::ESTALE) => self.plan.found.get(&child.slot).cloned().ok_or(Errno::ESTALE),
            place => place,
        }
    }

    /// The name at a place is planned to lead to something else.
    fn is_vacated(&self, place: &Place, slot: Slot) -> bool {
        let leads = self.leads.get_or_init(|| self.plan.leads());
        leads.get(&(place.parent, &place.name)).is_some_and(|wanted| wanted.iter().any(|want| *want != Some(slot)))
    }

    /// Moves a live inode to where it is wanted, if nothing is there, or to the staging directory. One that keeps another name gets one more.
    fn take(&mut self, child: Child, trail: &Arc<Trail>, free: Option<Place>) -> SysResult<Place> {
        let from = self.locate(At::from(trail), child)?;
        let staged = Place { parent: Slot::STAGING, name: staged_name(child.slot) };
        if from == staged {
            return Ok(staged);
        }
        let moves = child.kind == Kind::Dir || self.is_vacated(&from, child.slot) || self.has_one_name(trail);
        self.stale.nodes.push(child.slot);
        if moves {
            self.stale.names.push((from.parent, from.name.clone()));
        }
        if let Some(free) = free {
            let source = (At::from(from.parent), &from.name);
            let done = match moves {
                true => self.live().names.rename_in(source, (At::from(free.parent), &free.name), RenameMode::NoReplace, Turn::default()).map(drop),
                false => self.live().names.link_in(&from, &free).map(drop),
            };
            match done {
                // Something was put there for another name.
                Err(Errno::EEXIST) => {}
                done => return done.map(|()| free),
            }
        }
        if !moves {
            return self.stage_link(&from, child.slot);
        }
        let to = (At::from(Slot::STAGING), &staged.name);
        self.live().names.rename_in((At::from(from.parent), &from.name), to, RenameMode::Replace, Turn::default())?;
        Ok(staged)
    }

    /// All of the tree is restored, and the inode had this name alone: whatever others it has now go.
    fn has_one_name(&self, trail: &Arc<Trail>) -> bool {
        self.plan.whole
            && self.plan.unknown.is_empty()
            && self.engine.states.view(State::At(self.plan.target)).attr(trail).is_ok_and(|attr| attr.stat.nlink == 1)
    }

    /// Gives an inode one more name, in the staging directory. A restore that was interrupted may have done so before.
    fn stage_link(&self, from: &Place, slot: Slot) -> SysResult<Place> {
        let staged = Place { parent: Slot::STAGING, name: staged_name(slot) };
        match sys::stat_at(self.live().staging(), staged.name.as_bytes()) {
            Ok(stat) if self.live().inodes.slot_of(&stat) == Ok(slot) => return Ok(staged),
            Ok(_) => drop(self.live().removal.remove_in(At::from(Slot::STAGING), &staged.name, false)?),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        self.live().names.link_in(from, &staged)?;
        Ok(staged)
    }

    /// Puts new inodes in place, many behind one record.
    fn put_in_place(&mut self) -> SysResult<()> {
        self.places.clear();
        let swaps = std::mem::take(&mut self.swaps);
        let replaced = self.live().swaps.put_in_place(&swaps)?;
        for (Swap { to: Place { parent, name }, .. }, replaced) in swaps.into_iter().zip(replaced) {
            match replaced {
                // With its inode the kernel forgets the name.
                Some(dead) if self.live().nodes.is_dead(dead) => self.stale.dead.push((parent, name, dead)),
                replaced => {
                    self.stale.nodes.extend(replaced);
                    self.stale.names.push((parent, name));
                }
            }
        }
        Ok(())
    }

    /// Removes what is at names that lead to something else or to nothing. A file that will be replaced stays until then.
    fn remove(&mut self) -> SysResult<()> {
        for dir in &self.plan.dirs {
            let Some(live) = &dir.live else { continue };
            for name in &dir.names {
                let Some(have) = name.have else { continue };
                let wanted = name.want.as_ref().map(|(child, _)| *child);
                let stays = wanted.is_some_and(|want| want.slot == have.slot && self.plan.keeps(want));
                let replaced = wanted.is_some_and(|want| want.kind != Kind::Dir) && have.kind != Kind::Dir;
                if stays || replaced {
                    continue;
                }
                self.remove_below(live, &name.name, have)?;
                self.stale.names.push((live.slot, name.name.clone()));
            }
        }
        Ok(())
    }

    /// A name has lost its inode, for which that may have been the last. If not it has fewer names than the kernel thinks.
    fn lost(&mut self, dir: Slot, name: &Name, slot: Slot) {
        // Only what the kernel knows can be dead: the tables hold nothing else.
        if self.live().nodes.is_dead(slot) {
            self.stale.dead.push((dir, name.clone(), slot));
        } else {
            self.stale.nodes.push(slot);
        }
    }

    /// Removes a name and everything below, if it still leads to `have`.
    fn remove_below(&mut self, dir: &Arc<Trail>, name: &Name, have: Child) -> SysResult<()> {
        let engine = self.engine;
        let view = engine.states.view(State::Live);
        match view.child(dir, name)? {
            Some(now) if now.slot == have.slot => {}
            _ => return Ok(()),
        }
        // Depth first, without recursion: directories are removed on the way back.
        let mut open = vec![(Arc::clone(dir), name.clone(), have, false)];
        while let Some((dir, name, child, emptied)) = open.pop() {
            if child.kind != Kind::Dir || emptied {
                let slot = engine.live.removal.remove_in(At::from(&dir), &name, child.kind == Kind::Dir)?;
                self.lost(dir.slot, &name, slot);
                continue;
            }
            let trail = dir.step(&name, child.slot);
            open.push((dir, name, child, true));
            for (name, below) in view.list(&trail)? {
                open.push((Arc::clone(&trail), name, below, false));
            }
        }
        Ok(())
    }

    /// Puts everything into one directory that belongs there.
    fn place(&mut self, dir: &DirPlan) -> SysResult<()> {
        let here = match &dir.live {
            Some(live) => live.slot,
            None => *self.dirs.get(&dir.want.slot).ok_or(Errno::EIO)?,
        };
        for name in &dir.names {
            let Some((child, trail)) = &name.want else { continue };
            let at = Place { parent: here, name: name.name.clone() };
            let stays = name.have.map(|have| have.slot) == Some(child.slot) && self.plan.keeps(*child);
            if child.kind == Kind::Dir {
                if !stays {
                    self.place_dir(*child, trail, &at)?;
                }
            } else if !stays {
                self.place_file(*child, &at)?;
            }
        }
        self.stale.nodes.push(here);
        Ok(())
    }

    fn place_dir(&mut self, child: Child, trail: &Arc<Trail>, at: &Place) -> SysResult<()> {
        self.put_in_place()?;
        self.stale.names.push((at.parent, at.name.clone()));
        if let Some(staged) = self.placed.remove(&child.slot) {
            self.live().names.rename_in(
                (At::from(staged.parent), &staged.name),
                (At::from(at.parent), &at.name),
                RenameMode::NoReplace,
                Turn::default(),
            )?;
            return Ok(());
        }
        let stat = self.engine.states.view(State::At(self.plan.target)).attr(trail)?.stat;
        let make = Make { kind: Kind::Dir, mode: 0o700, umask: 0, rdev: 0, target: b"", uid: stat.uid, gid: stat.gid, open: None, again: false };
        let made = self.live().names.make_in(At::from(at.parent), &at.name, &make, 0)?;
        self.dirs.insert(child.slot, made.slot);
        Ok(())
    }

    fn place_file(&mut self, child: Child, at: &Place) -> SysResult<()> {
        let new = matches!(self.plan.contents.get(&child.slot), Some(Content::New) | None);
        if let Some(staged) = if new { self.stage.take(child.slot)? } else { None } {
            if self.places.contains(at) || self.swaps.len() == SWAPS_MAX {
                self.put_in_place()?;
            }
            self.places.insert(at.clone());
            self.swaps.push(Swap { staged, to: at.clone() });
            self.stale.nodes.push(child.slot);
            if self.plan.several.contains(&child.slot) {
                self.placed.insert(child.slot, at.clone());
            }
            return Ok(());
        }
        self.stale.names.push((at.parent, at.name.clone()));
        self.put_in_place()?;
        let from = match self.placed.get(&child.slot) {
            Some(place) => place.clone(),
            // It stayed at one of its names: this is one more.
            None => self.locate(At::from(child.slot), child)?,
        };
        self.stale.nodes.push(child.slot);
        if from != *at {
            let staged = if from.parent == Slot::STAGING { from } else { self.stage_link(&from, child.slot)? };
            let to = (At::from(at.parent), &at.name);
            if let Some(replaced) = self.live().names.rename_in((At::from(staged.parent), &staged.name), to, RenameMode::Replace, Turn::default())? {
                self.lost(at.parent, &at.name, replaced);
            }
        }
        // It is another file than was here, and may be older than what was made of that.
        if !self.keeps_times() && self.plan.contents.get(&child.slot) != Some(&Content::New) {
            self.live().attrs.renew_in(At::from(child.slot))?;
        }
        self.placed.insert(child.slot, at.clone());
        Ok(())
    }

    /// Gives directories their attributes back, children before parents, for what is done in a directory changes its times.
    fn apply_attrs(&mut self) -> SysResult<()> {
        let view = self.engine.states.view(State::At(self.plan.target));
        for dir in self.plan.dirs.iter().rev().filter(|dir| dir.with_attrs) {
            let slot = *self.dirs.get(&dir.want.slot).ok_or(Errno::EIO)?;
            let at = if slot == dir.want.slot { At::from(&dir.want) } else { At::from(slot) };
            let (attr, xattrs) = (view.attr(&dir.want)?, view.xattrs(&dir.want)?);
            if self.live().attrs.apply_attrs_in(at, &attr, &xattrs, self.keeps_times())? && dir.live.is_some() {
                self.stale.attrs_changed.push(slot);
            }
        }
        Ok(())
    }

    /// What an interrupted restore has left here and this one did not want: removed like anything else, so that the guard can still see it.
    fn clean_staging(&mut self) -> SysResult<()> {
        let staging = Arc::new(Trail { slot: Slot::STAGING, name: Name::new(b""), up: None });
        for (name, child) in self.engine.states.view(State::Live).list(&staging)? {
            self.remove_below(&staging, &name, child)?;
        }
        Ok(())
    }
}
