//! Execution of a plan: move inodes aside that are needed elsewhere, remove unwanted names, put
//! everything in place, then set attributes.
//!
//! An inode whose wanted name is taken first moves to the staging directory ([`Slot::STAGING`]).
//! Swaps, and directories that exchange places with an ancestor, therefore need no particular
//! order.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::plan::{DirPlan, InodeAction, NameChange, TreePlan, WantedByName};
use crate::history::present::Trail;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{Child, Place};
use ckptfs_sys::{Errno, Kind, RenameMode, SysResult};

/// A tree to change. A place refers to an existing directory by number.
pub trait Sink {
    /// Returns the current place of an inode; `want` is its trail in the wanted state, if
    /// available.
    ///
    /// # Errors
    /// ESTALE: at none of its names.
    fn locate(&self, child: Child, want: Option<&Arc<Trail>>) -> SysResult<Place>;

    /// Reports whether a wanted inode has a single name, so that its other names are removed.
    fn has_one_name(&self, want: &Arc<Trail>) -> bool;

    /// Sets the attributes of an existing inode, and its content for [`InodeAction::InPlace`].
    ///
    /// # Errors
    /// Those of writing.
    fn rewrite(&mut self, child: Child, want: &Arc<Trail>, content: InodeAction) -> SysResult<()>;

    /// Renames an inode, replacing the target unless `how` is [`RenameMode::NoReplace`].
    ///
    /// # Errors
    /// EEXIST; those of rename(2).
    fn rename(&mut self, child: Child, from: &Place, to: &Place, how: RenameMode) -> SysResult<()>;

    /// Adds a name to an inode. An existing name in the staging directory is stale, or already
    /// leads to the inode.
    ///
    /// # Errors
    /// EEXIST; those of link(2).
    fn link(&mut self, child: Child, from: &Place, to: &Place) -> SysResult<()>;

    /// Removes a name with everything below it, if it still leads to `have`.
    ///
    /// # Errors
    /// Those of the removal.
    fn remove(&mut self, dir: &Arc<Trail>, name: &Name, have: Child) -> SysResult<()>;

    /// Creates a directory at a free name; its attributes are set at the end.
    ///
    /// # Errors
    /// Those of mkdir(2).
    fn make_dir(&mut self, want: &Arc<Trail>, at: &Place) -> SysResult<Slot>;

    /// Creates a wanted inode in the staging directory, if not yet done.
    ///
    /// # Errors
    /// Those of creating it.
    fn make(&mut self, child: Child, want: &Arc<Trail>) -> SysResult<()>;

    /// Puts a created inode in place, replacing an existing file. The move may be delayed until
    /// [`Sink::flush`]. Returns `false` if the inode was already put somewhere.
    ///
    /// # Errors
    /// Those of rename(2), also for earlier delayed moves.
    fn put(&mut self, child: Child, at: &Place) -> SysResult<bool>;

    /// Completes all delayed moves.
    ///
    /// # Errors
    /// As [`Sink::put`].
    fn flush(&mut self) -> SysResult<()>;

    /// Notifies the sink that an existing inode was moved to its wanted place.
    ///
    /// # Errors
    /// Those of setting times.
    fn arrived(&mut self, child: Child) -> SysResult<()>;

    /// Sets the attributes of a directory.
    ///
    /// # Errors
    /// Those of setting them.
    fn apply_attrs(&mut self, dir: &DirPlan, here: Slot) -> SysResult<()>;
}

/// Wanted directory -> existing or created directory.
pub type DirMap = HashMap<Slot, Slot>;

struct Applier<'a, S> {
    plan: &'a TreePlan,
    sink: &'a mut S,
    dirs: DirMap,
    /// Wanted inode -> its current place. Created inodes with a single wanted name are omitted.
    placed: HashMap<Slot, Place>,
    /// Built on first use: scanning the whole plan for each moved inode would be quadratic.
    leads: OnceCell<WantedByName<'a>>,
}

/// Executes a plan.
///
/// # Errors
/// Those of the sink; the plan is then partly executed.
pub fn apply<S: Sink>(plan: &TreePlan, sink: &mut S) -> SysResult<DirMap> {
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
    // Children before parents, because changes in a directory update its times.
    for dir in plan.dirs.iter().rev().filter(|dir| dir.with_attrs) {
        let here = *applier.dirs.get(&dir.want.slot).ok_or(Errno::EIO)?;
        let applied = applier.sink.apply_attrs(dir, here);
        logged(applied, "apply the attributes of", &dir.want)?;
    }
    Ok(applier.dirs)
}

/// Logs a failed step with its path.
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
    /// Sets the attributes of existing inodes, and the content of those rewritten in place.
    fn rewrite(&mut self) -> SysResult<()> {
        let (plan, mut done) = (self.plan, HashSet::new());
        for (_, _, child, trail, _) in plan.wanted() {
            match plan.contents.get(&child.slot) {
                Some(content @ (InodeAction::Attributes | InodeAction::InPlace))
                    if done.insert(child.slot) =>
                {
                    logged(self.sink.rewrite(child, trail, *content), "rewrite", trail)?
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Moves inodes that are wanted at another name there or aside; creates those that do not
    /// exist.
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
                Some(InodeAction::New) | None => {
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

    /// Reports whether the name at a place is planned to lead to another inode.
    fn is_vacated(&self, place: &Place, slot: Slot) -> bool {
        let leads = self.leads.get_or_init(|| self.plan.leads());
        leads
            .get(&(place.parent, &place.name))
            .is_some_and(|wanted| wanted.iter().any(|want| *want != Some(slot)))
    }

    /// Moves an inode to its wanted name if that is free, otherwise aside. An inode that keeps
    /// another name is linked instead.
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
                // The name was taken by another planned name.
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

    /// Removes names that lead to another inode or to none. A file to be replaced stays until then.
    fn remove(&mut self) -> SysResult<()> {
        let plan = self.plan;
        for dir in &plan.dirs {
            let Some(live) = &dir.live else { continue };
            for name in &dir.names {
                if let Some(NameChange::Goes(have) | NameChange::Exchanged(have, _)) =
                    plan.change(name)
                {
                    let removed = self.sink.remove(live, &name.name, have);
                    logged(removed, "remove a name in", live)?;
                }
            }
        }
        Ok(())
    }

    /// Puts all wanted inodes of one directory in place.
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
                Some(NameChange::Stays(_)) => {}
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
            Some(InodeAction::New) | None
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
            // It kept one of its names; this is a further one.
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
        // Another file than before at this name; it may be older than files built from the previous
        // one.
        if !new {
            self.sink.arrived(child)?;
        }
        self.placed.insert(child.slot, at.clone());
        Ok(())
    }
}
