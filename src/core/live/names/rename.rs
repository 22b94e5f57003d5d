//! Renames.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{Names, NewInode};
use crate::live::change::ChangeCtx;
use crate::live::handover::KernelRequest;
use crate::live::inodes::{NodeRef, place, target_of};
use crate::live::remove::{EntryTarget, UnlinkFate};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{Key, NameTouch, Place, Record, Undo};
use ckptfs_sys::{self as sys, Errno, Kind, RenameMode, SysResult};

impl Names {
    /// Renames, as renameat2(2). Returns the slot of an inode that was replaced. `turn` identifies
    /// the request, which a previous worker may have carried out.
    ///
    /// # Errors
    /// Those of rename(2). ENOSPC or EIO if the capture failed; nothing changed then. ESTALE makes
    /// the kernel repeat the lookups and retry once.
    pub fn rename(
        &self,
        change: &ChangeCtx,
        from: (Slot, &Name),
        to: (Slot, &Name),
        how: RenameMode,
        turn: KernelRequest,
    ) -> SysResult<Option<Slot>> {
        self.copies.own_name(from.0.into(), from.1)?;
        self.copies.own_name(to.0.into(), to.1)?;
        self.busy
            .patiently(change, || self.rename_now(change, from, to, how, turn))
    }

    fn rename_now(
        &self,
        change: &ChangeCtx,
        from: (Slot, &Name),
        to: (Slot, &Name),
        how: RenameMode,
        turn: KernelRequest,
    ) -> SysResult<Option<Slot>> {
        let _changing = self.locks.enter();
        let _tree = self.locks.tree.write();
        let known = self.locks.stale_names.check(&[from, to]);
        // A rename that a previous worker has carried out must not be retried.
        if !turn.again {
            known?;
        }
        if self.nodes.is_dead(to.0) {
            return Err(Errno::ENOENT);
        }
        if turn.again && self.is_renamed(turn, from, to, how)? {
            if how.leaves_whiteout() && !self.inodes.is_whiteout(from)? {
                let made = self.make_in(change, from.0.into(), from.1, &whiteout(turn), 1)?;
                self.nodes.forget(made.slot, 1);
            }
            return Ok(None);
        }
        known?;
        self.rename_in(
            change,
            (from.0.into(), from.1),
            (to.0.into(), to.1),
            how,
            turn,
        )
    }

    /// As [`Names::rename`]; the caller holds the freeze lock and the tree.
    pub fn rename_in(
        &self,
        change: &ChangeCtx,
        from: (NodeRef<'_>, &Name),
        to: (NodeRef<'_>, &Name),
        how: RenameMode,
        turn: KernelRequest,
    ) -> SysResult<Option<Slot>> {
        if how.leaves_whiteout() && self.inodes.base().through().is_some() {
            // The whiteout would hide the name and be invisible to the caller.
            return Err(Errno::EINVAL);
        }
        self.copies.own_name_in(from.0, from.1)?;
        self.copies.own_name_in(to.0, to.1)?;
        let _renaming = self.locks.begin_rename();
        let (from_dir, to_dir) = (self.inodes.dir(from.0)?, self.inodes.dir(to.0)?);
        let source = self.removal.target(from.0, &from_dir, from.1)?;
        let target = match self.removal.target(to.0, &to_dir, to.1) {
            Ok(target) => Some(target),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(errno),
        };
        if !self.may_rename(&source, target.as_ref(), how)? {
            return Ok(None);
        }
        // The entry of the base must remain hidden.
        let hides = how != RenameMode::Exchange && self.inodes.base().must_hide(from.0, from.1)?;
        if hides {
            self.durability.order_whiteout()?;
        }
        self.busy.probe_first_for_name(change, source.slot)?;
        match &target {
            Some(target) if how == RenameMode::Exchange => {
                self.busy.probe_first_for_name(change, target.slot)?
            }
            Some(target) => self.removal.removal_first(change, target)?,
            None => {}
        }
        let mut undo = Vec::new();
        self.captures.keep_dir(from.0, &from_dir, &mut undo)?;
        self.captures.keep_dir(to.0, &to_dir, &mut undo)?;
        self.keep_moved(&source, &mut undo)?;
        self.captures.keep_entry(
            to.0.slot,
            to.1,
            target.as_ref().map(EntryTarget::child),
            &mut undo,
        );
        self.touch_renamed(change, (&source, from), to, target.as_ref(), how);
        match target {
            Some(target) if how == RenameMode::Exchange => self
                .exchange(change, &source, &target, undo, turn)
                .map(|()| None),
            Some(target) => {
                let how = if hides { RenameMode::Whiteout } else { how };
                self.replace(change, &source, &target, undo, how)?;
                match hides {
                    true => self.durability.whiteout_made(source.slot),
                    false => self.own_whiteout(change, &source, how, turn),
                }
                Ok(Some(target.slot))
            }
            None => {
                let to = (&*to_dir, place(to.0.slot, to.1));
                self.move_to_free(change, &source, to, undo, (how, hides))?;
                self.own_whiteout(change, &source, how, turn);
                Ok(None)
            }
        }
    }

    /// Makes the checks of rename(2) on the two inodes. Returns `false` if both names lead to one
    /// inode, which requires no change.
    fn may_rename(
        &self,
        source: &EntryTarget<'_>,
        target: Option<&EntryTarget<'_>>,
        how: RenameMode,
    ) -> SysResult<bool> {
        match (target, how) {
            (None, RenameMode::Exchange) => Err(Errno::ENOENT),
            (Some(_), RenameMode::NoReplace | RenameMode::NoReplaceWhiteout) => Err(Errno::EEXIST),
            (Some(target), _) if target.slot == source.slot => Ok(false),
            (Some(target), RenameMode::Replace | RenameMode::Whiteout) => {
                self.check_replace(source, target).map(|()| true)
            }
            _ => Ok(true),
        }
    }

    /// Renames to an unused name.
    fn move_to_free(
        &self,
        change: &ChangeCtx,
        source: &EntryTarget<'_>,
        (dir, to): (&OwnedFd, Place),
        undo: Vec<Undo>,
        (how, hides): (RenameMode, bool),
    ) -> SysResult<()> {
        let over = self.inodes.base().is_hidden(dir, &to.name)?;
        let more = self.moved(&[(source, to.clone())]);
        self.timeline.epochs.record(&change.author, undo, more)?;
        let is_dir = source.stat.kind == Kind::Dir;
        let how = match (over, how.leaves_whiteout() || hides) {
            (false, true) => RenameMode::NoReplaceWhiteout,
            (false, false) => RenameMode::NoReplace,
            // A directory can replace only a directory.
            (true, _) if is_dir => RenameMode::Exchange,
            (true, true) => RenameMode::Whiteout,
            (true, false) => RenameMode::Replace,
        };
        let names = (source.name.as_bytes(), to.name.as_bytes());
        self.durability
            .order_names(&[source.slot])
            .and_then(|()| move_name((source, names.0), (dir, to.parent, names.1), how))
            .inspect_err(|_| self.not_moved(&[source]))?;
        if hides {
            self.durability.whiteout_made(source.slot);
        }
        if how == RenameMode::Exchange && !hides {
            // The whiteout at the old name hides no entry of the base.
            let removed = sys::unlink_at(source.dir, source.name.as_bytes());
            tracing::debug!(?removed, "a whiteout that is not needed");
        }
        let past = !self.timeline.epochs.is_born(source.slot);
        self.timeline.epochs.count(i64::from(past));
        self.nodes
            .lock()
            .move_link(source.slot, &source.place(), &to);
        Ok(())
    }

    /// Sets the owner of the whiteout that a rename has left for an overlay (`WHITEOUT_MODE`,
    /// `WHITEOUT_DEV` in linux/fs.h). The whiteout remains even if that fails.
    fn own_whiteout(
        &self,
        change: &ChangeCtx,
        from: &EntryTarget<'_>,
        how: RenameMode,
        turn: KernelRequest,
    ) {
        if !how.leaves_whiteout() {
            return;
        }
        match self.own(
            change,
            from.parent,
            from.dir,
            from.name,
            &whiteout(turn),
            0,
            None,
            1,
        ) {
            Ok(made) => self.nodes.forget(made.slot, 1),
            Err(errno) => tracing::warn!(%errno, "a whiteout cannot be given to its owner"),
        }
    }

    /// Returns whether a repeated rename request was carried out before. The kernel holds the locks
    /// of both directories, so the current names are conclusive.
    fn is_renamed(
        &self,
        turn: KernelRequest,
        from: (Slot, &Name),
        to: (Slot, &Name),
        how: RenameMode,
    ) -> SysResult<bool> {
        let at = |(dir, name): (Slot, &Name)| {
            let found = self.inodes.stat_child(dir.into(), name)?;
            Ok::<_, Errno>(found.map(|(child, _)| child.slot))
        };
        if how != RenameMode::Exchange {
            let left =
                at(from)?.is_none() || how.leaves_whiteout() && self.inodes.is_whiteout(from)?;
            return Ok(left && at(to)?.is_some());
        }
        Ok(self
            .handover
            .exchange_begun(turn)
            .is_some_and(|slot| at(from) == Ok(Some(slot))))
    }

    /// Records the author of the changed names.
    fn touch_renamed(
        &self,
        change: &ChangeCtx,
        (source, from): (&EntryTarget<'_>, (NodeRef<'_>, &Name)),
        to: (NodeRef<'_>, &Name),
        target: Option<&EntryTarget<'_>>,
        how: RenameMode,
    ) {
        let exchanged = how == RenameMode::Exchange;
        self.timeline.processes.touch_moved(
            &change.author,
            source.slot,
            source.stat.kind == Kind::Dir,
        );
        if let Some(target) = target.filter(|_| exchanged) {
            self.timeline.processes.touch_moved(
                &change.author,
                target.slot,
                target.stat.kind == Kind::Dir,
            );
        }
        let left = match how {
            RenameMode::Exchange => NameTouch::Moved,
            how if how.leaves_whiteout() => NameTouch::Made,
            _ => NameTouch::Removed,
        };
        self.timeline
            .processes
            .touch_name(&change.author, from.0.slot, from.1, left);
        self.timeline
            .processes
            .touch_name(&change.author, to.0.slot, to.1, NameTouch::Moved);
        if let Some(target) = target.filter(|target| !exchanged && target.is_last()) {
            self.timeline
                .processes
                .touch_gone(&change.author, target.slot);
        }
    }

    /// Records name, attributes and place of an inode that is about to be renamed.
    fn keep_moved(&self, moving: &EntryTarget<'_>, undo: &mut Vec<Undo>) -> SysResult<()> {
        self.captures
            .keep_entry(moving.parent.slot, moving.name, Some(moving.child()), undo);
        let target = target_of(&moving.stat, moving.dir, moving.name)?;
        self.captures
            .keep_attr(moving.slot, &moving.stat, target, undo);
        if self.timeline.epochs.needs(&Key::Home(moving.slot)) {
            undo.push(Undo::Home {
                slot: moving.slot,
                before: moving.place(),
            });
            self.captures.keep_homes(moving.parent, undo);
        }
        Ok(())
    }

    /// Returns the records of new places. A born file needs none. A born directory does, because an
    /// inode of a checkpoint may be below it. Its old place is recorded first, which stays valid if
    /// the rename never happens.
    fn moved(&self, moves: &[(&EntryTarget<'_>, Place)]) -> Vec<Record> {
        let (mut before, mut places) = (Vec::new(), Vec::new());
        for (moving, to) in moves {
            if self.timeline.epochs.is_born(moving.slot) {
                if moving.stat.kind != Kind::Dir {
                    continue;
                }
                self.removal
                    .keep_place(moving.slot, moving.place(), &mut before);
            }
            self.removal.keep_way(to.parent, &mut before);
            places.push((moving.slot, to.clone()));
        }
        [before, places]
            .into_iter()
            .filter(|places| !places.is_empty())
            .map(|places| Record::Moved { places })
            .collect()
    }

    /// Reverts the recorded places of a rename that failed.
    fn not_moved(&self, moves: &[&EntryTarget<'_>]) {
        let places: Vec<_> = moves
            .iter()
            .filter(|moving| self.timeline.lookup.place(moving.slot).is_some())
            .map(|at| (at.slot, at.place()))
            .collect();
        if !places.is_empty() {
            self.timeline.epochs.put_places(places);
        }
    }

    fn exchange(
        &self,
        change: &ChangeCtx,
        source: &EntryTarget<'_>,
        target: &EntryTarget<'_>,
        mut undo: Vec<Undo>,
        turn: KernelRequest,
    ) -> SysResult<()> {
        self.keep_moved(target, &mut undo)?;
        let (there, here) = (target.place(), source.place());
        self.timeline.epochs.record(
            &change.author,
            undo,
            self.moved(&[(source, there.clone()), (target, here.clone())]),
        )?;
        self.handover.leave_exchange(turn, source.slot, target.slot);
        self.durability
            .order_names(&[source.slot, target.slot])
            .and_then(|()| {
                sys::rename_at(
                    source.dir,
                    source.name.as_bytes(),
                    target.dir,
                    target.name.as_bytes(),
                    RenameMode::Exchange,
                )
            })
            .inspect_err(|_| self.not_moved(&[source, target]))?;
        self.timeline.epochs.count(2);
        let mut nodes = self.nodes.lock();
        nodes.move_link(source.slot, &here, &there);
        nodes.move_link(target.slot, &there, &here);
        Ok(())
    }

    /// Renames over an existing inode. If a checkpoint may see that inode, the two are exchanged
    /// atomically, and it is then moved from the source's old name into the layer. The next mount
    /// completes the operation after a crash between the two steps ([`Record::Replacing`]).
    fn replace(
        &self,
        change: &ChangeCtx,
        source: &EntryTarget<'_>,
        target: &EntryTarget<'_>,
        mut undo: Vec<Undo>,
        how: RenameMode,
    ) -> SysResult<()> {
        let _stripe = self.locks.stripe(target.slot);
        let (there, here) = (target.place(), source.place());
        let mut more = self.moved(&[(source, there)]);
        let fate = self.removal.plan_unlink(target, &mut undo, &mut more)?;
        if let UnlinkFate::Move(object) = fate {
            more.push(Record::Replacing {
                slot: target.slot,
                place: here,
                object,
                whiteout: how.leaves_whiteout(),
            });
        }
        let held = self.removal.hold(target, fate)?;
        self.timeline.epochs.record(&change.author, undo, more)?;
        self.replace_recorded(source, target, fate, held, how)
    }

    /// Carries out a recorded rename over an existing inode. The caller holds its stripe.
    pub(in crate::live) fn replace_recorded(
        &self,
        source: &EntryTarget<'_>,
        target: &EntryTarget<'_>,
        fate: UnlinkFate,
        held: Option<Arc<OwnedFd>>,
        how: RenameMode,
    ) -> SysResult<()> {
        let (there, here) = (target.place(), source.place());
        let past = !self.timeline.epochs.is_born(target.slot);
        self.nodes.leave_orphan(target.slot, held.as_ref());
        let names = (source.name.as_bytes(), target.name.as_bytes());
        let rename = |how| {
            self.captures.with_room(|| {
                move_name((source, names.0), (target.dir, there.parent, names.1), how)
            })
        };
        let ordered = self
            .removal
            .order_removal(target)
            .and_then(|()| self.durability.order_names(&[source.slot]));
        match fate {
            UnlinkFate::Move(object) => {
                ordered
                    .and_then(|()| rename(RenameMode::Exchange))
                    .inspect_err(|_| self.not_replaced(source, target))?;
                if let Err(errno) =
                    self.removal
                        .move_away(source.dir, source.name, object, how.leaves_whiteout())
                {
                    match rename(RenameMode::Exchange) {
                        Ok(()) => self.not_replaced(source, target),
                        Err(again) => self.half_replaced(source, target, again),
                    }
                    return Err(errno);
                }
            }
            UnlinkFate::Free => ordered
                .and_then(|()| rename(how))
                .inspect_err(|_| self.not_moved(&[source]))?,
        }
        self.timeline.epochs.count(i64::from(past));
        self.removal.lost_name(target, held);
        self.nodes.lock().move_link(source.slot, &here, &there);
        Ok(())
    }

    /// Reverts the records of a rename over an existing inode that failed.
    fn not_replaced(&self, source: &EntryTarget<'_>, target: &EntryTarget<'_>) {
        self.removal.take_back(target.slot);
        self.not_moved(&[source]);
    }

    /// Updates the tables after a rename over an existing inode failed midway and could not be
    /// reverted: the two are exchanged, and nothing is lost.
    fn half_replaced(&self, source: &EntryTarget<'_>, target: &EntryTarget<'_>, errno: Errno) {
        let (there, here) = (target.place(), source.place());
        tracing::error!(?here, ?there, %errno, "a rename failed half-way: the two names have changed places");
        self.removal.take_back(target.slot);
        self.timeline.epochs.put_places(vec![
            (source.slot, there.clone()),
            (target.slot, here.clone()),
        ]);
        self.timeline.epochs.count(2);
        let mut nodes = self.nodes.lock();
        nodes.move_link(source.slot, &here, &there);
        nodes.move_link(target.slot, &there, &here);
    }

    /// Makes the checks of rename(2) on the replaced inode, which an exchange does not make.
    fn check_replace(&self, source: &EntryTarget<'_>, target: &EntryTarget<'_>) -> SysResult<()> {
        match (source.stat.kind == Kind::Dir, target.stat.kind == Kind::Dir) {
            (false, true) => Err(Errno::EISDIR),
            (true, false) => Err(Errno::ENOTDIR),
            (true, true) if !self.removal.is_empty(target)? => Err(self.not_empty()),
            _ => Ok(()),
        }
    }

    /// Returns the error of a rename over a directory that is not empty. rename(2) permits two, and
    /// XFS returns EEXIST. The filesystem is probed once, with test directories in the staging
    /// directory.
    fn not_empty(&self) -> Errno {
        const NAMES: [&[u8]; 2] = [b"empty", b"full"];
        *self.not_empty.get_or_init(|| {
            let [empty, full] = NAMES;
            let make = |dir: &OwnedFd, name: &[u8]| match sys::mkdir_at(dir, name, 0o700) {
                Err(Errno::EEXIST) => Ok(()),
                made => made,
            };
            let ask = || {
                NAMES
                    .iter()
                    .try_for_each(|name| make(&self.staging, name))?;
                let inner = sys::open_dir_at(&*self.staging, full)?;
                make(&inner, empty)?;
                let refused = sys::rename_at(
                    &*self.staging,
                    empty,
                    &*self.staging,
                    full,
                    RenameMode::Replace,
                )
                .err();
                sys::rmdir_at(&inner, empty)?;
                Ok::<_, Errno>(refused)
            };
            let answer = ask().ok().flatten();
            for name in NAMES {
                let _ = sys::rmdir_at(&*self.staging, name);
            }
            answer.unwrap_or(Errno::ENOTEMPTY)
        })
    }
}

/// Renames. An inode that a restore moves in or out of the staging directory gets the project ID of
/// its new directory; renames by users fail as on the backing filesystem.
fn move_name(
    (source, from): (&EntryTarget<'_>, &[u8]),
    (dir, parent, to): (&OwnedFd, Slot, &[u8]),
    how: RenameMode,
) -> SysResult<()> {
    if [source.place().parent, parent].contains(&Slot::STAGING) {
        sys::rename_home(source.dir, from, dir, to, how)
    } else {
        sys::rename_at(source.dir, from, dir, to, how)
    }
}

fn whiteout(turn: KernelRequest) -> NewInode<'static> {
    let (uid, gid) = turn.owner;
    NewInode {
        kind: Kind::CharDev,
        mode: 0,
        umask: 0,
        rdev: 0,
        target: b"",
        uid,
        gid,
        open: None,
        again: false,
    }
}
