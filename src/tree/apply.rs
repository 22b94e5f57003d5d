//! Carrying a plan out: put aside what is needed elsewhere, remove what is not wanted, put
//! everything in place, then give back attributes.
//!
//! Nothing is ever at two places that wait for each other: what is wanted under a name that is
//! taken goes to a directory beside the tree first ([`Slot::STAGING`]), so that swaps, and
//! directories that come to be where they were above, need no order.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::plan::{Change, Content, DirPlan, Leads, Plan};
use crate::history::present::Trail;
use crate::store::ids::{Name, Slot};
use crate::store::record::{Child, Place};
use crate::sys::{Errno, Kind, RenameMode, SysResult};

/// A tree that is changed. Places are named by the numbers of directories that are there.
pub trait Sink {
    /// Where an inode is now; `want`: the way to it in the state that is wanted, if that is at
    /// hand.
    ///
    /// # Errors
    /// ESTALE: at none of its names.
    fn locate(&self, child: Child, want: Option<&Arc<Trail>>) -> SysResult<Place>;

    /// A wanted inode is to have one name, and whatever others it has go.
    fn has_one_name(&self, want: &Arc<Trail>) -> bool;

    /// An inode that is there and stays gets the attributes that it is to have, and the content, if
    /// that is to be given [`Content::InPlace`].
    ///
    /// # Errors
    /// Those of writing.
    fn rewrite(&mut self, child: Child, want: &Arc<Trail>, content: Content) -> SysResult<()>;

    /// Renames an inode; what is at the place goes, but for [`RenameMode::NoReplace`].
    ///
    /// # Errors
    /// EEXIST; those of rename(2).
    fn rename(&mut self, child: Child, from: &Place, to: &Place, how: RenameMode) -> SysResult<()>;

    /// Gives an inode one more name. Beside the tree a name that is taken is nobody's, or leads to
    /// it already.
    ///
    /// # Errors
    /// EEXIST; those of link(2).
    fn link(&mut self, child: Child, from: &Place, to: &Place) -> SysResult<()>;

    /// Removes a name and everything below, if it still leads to `have`.
    ///
    /// # Errors
    /// Those of removing it.
    fn remove(&mut self, dir: &Arc<Trail>, name: &Name, have: Child) -> SysResult<()>;

    /// Makes a directory where nothing is; it gets its attributes at the end.
    ///
    /// # Errors
    /// Those of mkdir(2).
    fn make_dir(&mut self, want: &Arc<Trail>, at: &Place) -> SysResult<Slot>;

    /// Makes what stands for a wanted inode, if it is not made yet, beside the tree.
    ///
    /// # Errors
    /// Those of making it.
    fn make(&mut self, child: Child, want: &Arc<Trail>) -> SysResult<()>;

    /// Puts what stands for a wanted inode in place, in the place of a file that is there; it may
    /// happen later, but with [`Sink::flush`]. `false`: it was put somewhere already.
    ///
    /// # Errors
    /// Those of rename(2), also of what was to be put before.
    fn put(&mut self, child: Child, at: &Place) -> SysResult<bool>;

    /// Everything that was to be put in place is.
    ///
    /// # Errors
    /// As [`Sink::put`].
    fn flush(&mut self) -> SysResult<()>;

    /// An inode that was there before is where it is wanted, and was not.
    ///
    /// # Errors
    /// Those of setting times.
    fn arrived(&mut self, child: Child) -> SysResult<()>;

    /// Gives a directory the attributes that it is to have.
    ///
    /// # Errors
    /// Those of setting them.
    fn apply_attrs(&mut self, dir: &DirPlan, here: Slot) -> SysResult<()>;
}

/// Directory that is wanted -> the one that stands for it.
pub type Dirs = HashMap<Slot, Slot>;

struct Applier<'a, S> {
    plan: &'a Plan,
    sink: &'a mut S,
    dirs: Dirs,
    /// Wanted inode -> where the one that stands for it is now. One that is made anew and is wanted
    /// once is not asked for.
    placed: HashMap<Slot, Place>,
    /// Made when it is first asked for: each inode that is taken would look through the whole plan
    /// otherwise.
    leads: OnceCell<Leads<'a>>,
}

/// Carries out a plan.
///
/// # Errors
/// Those of the sink: then it is carried out in part.
pub fn apply<S: Sink>(plan: &Plan, sink: &mut S) -> SysResult<Dirs> {
    let dirs = plan.alive_dirs.iter().map(|slot| (*slot, *slot)).collect();
    let mut applier = Applier {
        plan,
        sink,
        dirs,
        placed: HashMap::new(),
        leads: OnceCell::new(),
    };
    applier.rewrite()?;
    applier.put_aside()?;
    applier.remove()?;
    for (number, dir) in plan.dirs.iter().enumerate() {
        applier.place(number, dir)?;
    }
    applier.sink.flush()?;
    // Children before parents, for what is done in a directory changes its times.
    for dir in plan.dirs.iter().rev().filter(|dir| dir.with_attrs) {
        let here = *applier.dirs.get(&dir.want.slot).ok_or(Errno::EIO)?;
        let applied = applier.sink.apply_attrs(dir, here);
        logged(applied, "apply the attributes of", &dir.want)?;
    }
    Ok(applier.dirs)
}

/// Logs the step that failed, and its path.
fn logged<T>(result: SysResult<T>, step: &str, at: &Arc<Trail>) -> SysResult<T> {
    result.inspect_err(|errno| {
        let path = at.path();
        tracing::warn!(%errno, path = %String::from_utf8_lossy(&path).escape_debug(), "cannot {step}");
    })
}

fn aside(slot: Slot) -> Place {
    Place {
        parent: Slot::STAGING,
        name: Name::new(format!("{}", slot.0).as_bytes()),
    }
}

impl<S: Sink> Applier<'_, S> {
    /// Inodes that stay get attributes, and content where they must keep their number.
    fn rewrite(&mut self) -> SysResult<()> {
        let (plan, mut done) = (self.plan, HashSet::new());
        for (_, _, child, trail, _) in plan.wanted() {
            match plan.contents.get(&child.slot) {
                Some(content @ (Content::Attributes | Content::InPlace))
                    if done.insert(child.slot) =>
                {
                    logged(self.sink.rewrite(child, trail, *content), "rewrite", trail)?
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes inodes that are wanted at another name there, or out of the way; makes what is to be
    /// made and is not yet.
    fn put_aside(&mut self) -> SysResult<()> {
        let plan = self.plan;
        for kept in plan.kept.iter().filter(|kept| kept.from != kept.aside) {
            self.sink
                .rename(kept.child, &kept.from, &kept.aside, RenameMode::Replace)?;
        }
        for (dir, name, child, trail, have) in plan.wanted() {
            if self.placed.contains_key(&child.slot) {
                continue;
            }
            let here = have.is_some_and(|have| have.slot == child.slot);
            let free = || {
                dir.live
                    .as_ref()
                    .filter(|_| have.is_none())
                    .map(|live| Place {
                        parent: live.slot,
                        name: name.clone(),
                    })
            };
            let place = match plan.contents.get(&child.slot) {
                _ if child.kind == Kind::Dir
                    && (here || !plan.alive_dirs.contains(&child.slot)) =>
                {
                    continue;
                }
                _ if child.kind == Kind::Dir => {
                    logged(self.take(child, trail, None), "move", trail)?
                }
                Some(Content::New) | None => {
                    logged(self.sink.make(child, trail), "make", trail)?;
                    continue;
                }
                Some(_) if here => continue,
                Some(_) => logged(self.take(child, trail, free()), "move", trail)?,
            };
            self.placed.insert(child.slot, place);
        }
        Ok(())
    }

    /// The name at a place is planned to lead to something else.
    fn is_vacated(&self, place: &Place, slot: Slot) -> bool {
        let leads = self.leads.get_or_init(|| self.plan.leads());
        leads
            .get(&(place.parent, &place.name))
            .is_some_and(|wanted| wanted.iter().any(|want| *want != Some(slot)))
    }

    /// Moves an inode to where it is wanted, if nothing is there, or aside. One that keeps another
    /// name gets one more.
    fn take(&mut self, child: Child, trail: &Arc<Trail>, free: Option<Place>) -> SysResult<Place> {
        let (from, aside) = (self.sink.locate(child, Some(trail))?, aside(child.slot));
        if from == aside {
            return Ok(aside);
        }
        let moves = child.kind == Kind::Dir
            || self.is_vacated(&from, child.slot)
            || self.sink.has_one_name(trail);
        if let Some(free) = free {
            let done = match moves {
                true => self.sink.rename(child, &from, &free, RenameMode::NoReplace),
                false => self.sink.link(child, &from, &free),
            };
            match done {
                // Something was put there for another name.
                Err(Errno::EEXIST) => {}
                done => return done.map(|()| free),
            }
        }
        match moves {
            true => self
                .sink
                .rename(child, &from, &aside, RenameMode::Replace)?,
            false => self.sink.link(child, &from, &aside)?,
        }
        Ok(aside)
    }

    /// Removes what is at names that lead to something else or to nothing. A file that will be
    /// replaced stays until then.
    fn remove(&mut self) -> SysResult<()> {
        let plan = self.plan;
        for dir in &plan.dirs {
            let Some(live) = &dir.live else { continue };
            for name in &dir.names {
                if let Some(Change::Goes(have) | Change::Exchanged(have, _)) = plan.change(name) {
                    let removed = self.sink.remove(live, &name.name, have);
                    logged(removed, "remove a name in", live)?;
                }
            }
        }
        Ok(())
    }

    /// Puts everything into one directory that belongs there.
    fn place(&mut self, number: usize, dir: &DirPlan) -> SysResult<()> {
        let here = match &dir.live {
            Some(live) => live.slot,
            None => *self.dirs.get(&dir.want.slot).ok_or(Errno::EIO)?,
        };
        for name in &dir.names {
            let Some((child, trail)) = &name.want else {
                continue;
            };
            let at = Place {
                parent: here,
                name: name.name.clone(),
            };
            match self.plan.change(name) {
                Some(Change::Stays(_)) => {}
                _ if child.kind == Kind::Dir => {
                    logged(self.place_dir(*child, trail, &at), "make", trail)?
                }
                _ => logged(self.place_file(*child, &at), "put in place", trail)?,
            }
        }
        for kept in self.plan.kept.iter().filter(|kept| kept.dir == number) {
            self.sink.flush()?;
            self.sink.rename(
                kept.child,
                &kept.aside,
                &Place {
                    parent: here,
                    name: kept.name.clone(),
                },
                RenameMode::NoReplace,
            )?;
        }
        Ok(())
    }

    fn place_dir(&mut self, child: Child, trail: &Arc<Trail>, at: &Place) -> SysResult<()> {
        self.sink.flush()?;
        if let Some(aside) = self.placed.remove(&child.slot) {
            return self.sink.rename(child, &aside, at, RenameMode::NoReplace);
        }
        let made = self.sink.make_dir(trail, at)?;
        self.dirs.insert(child.slot, made);
        Ok(())
    }

    fn place_file(&mut self, child: Child, at: &Place) -> SysResult<()> {
        let new = matches!(
            self.plan.contents.get(&child.slot),
            Some(Content::New) | None
        );
        if new && self.sink.put(child, at)? {
            if self.plan.several.contains(&child.slot) {
                self.placed.insert(child.slot, at.clone());
            }
            return Ok(());
        }
        self.sink.flush()?;
        let from = match self.placed.get(&child.slot) {
            Some(place) => place.clone(),
            // It stayed at one of its names: this is one more.
            None => self.sink.locate(child, None)?,
        };
        if from != *at {
            let mut staged = from;
            if staged.parent != Slot::STAGING {
                let aside = aside(child.slot);
                self.sink.link(child, &staged, &aside)?;
                staged = aside;
            }
            self.sink.rename(child, &staged, at, RenameMode::Replace)?;
        }
        // It is another file than was here, and may be older than what was made of that.
        if !new {
            self.sink.arrived(child)?;
        }
        self.placed.insert(child.slot, at.clone());
        Ok(())
    }
}
