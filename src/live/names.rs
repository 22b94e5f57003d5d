//! Making, linking and renaming.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use super::busy::Busy;
use super::capture::{Captures, target_of};
use super::dirs::Dirs;
use super::durable::Durability;
use super::handles::SET_ID;
use super::inodes::{At, Inodes, place};
use super::legacy::{Handover, Turn};
use super::locks::Locks;
use super::nodes::generation_of;
use super::past::Past;
use super::remove::{Fate, Removal, Target};
use super::table::NodeTable;
use super::tables::Tables;
use crate::history::timeline::Timeline;
use crate::store::ids::{Name, Slot};
use crate::store::record::{Child, Key, NameTouch, Place, Record, Undo};
use crate::sys::{self, Errno, Kind, Open, RenameMode, Stat, SysResult};

/// An inode to be made.
#[derive(Clone, Debug)]
pub struct Make<'a> {
    /// What.
    pub kind: Kind,
    /// Permission bits asked for.
    pub mode: u32,
    /// The caller's umask; applied unless the directory has a default ACL.
    pub umask: u32,
    /// Device number of a device node.
    pub rdev: u64,
    /// Target of a symbolic link.
    pub target: &'a [u8],
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory gives its own.
    pub gid: u32,
    /// How to open a regular file; `None`: it is not opened.
    pub open: Option<Open>,
    /// A worker that died may have made it already: then what is there is taken, if it is of that kind.
    pub again: bool,
}

/// An inode that was made, or found again.
#[derive(Debug)]
pub struct Made {
    /// Its slot.
    pub slot: Slot,
    /// Its generation.
    pub generation: u64,
    /// Its attributes.
    pub stat: Stat,
    /// The file, if it was to be opened.
    pub file: Option<File>,
}

/// Makes, links and renames.
pub struct Names {
    timeline: Arc<Timeline>,
    staging: Arc<OwnedFd>,
    locks: Arc<Locks>,
    nodes: Arc<NodeTable>,
    dirs: Arc<Dirs>,
    handover: Arc<Handover>,
    inodes: Arc<Inodes>,
    durability: Arc<Durability>,
    captures: Arc<Captures>,
    busy: Arc<Busy>,
    removal: Arc<Removal>,
    /// The error of a rename over a directory in which something is.
    not_empty: OnceLock<Errno>,
}

impl Names {
    pub(super) fn new(tables: &Tables, past: &Past, removal: &Arc<Removal>) -> Arc<Names> {
        let Tables { timeline, staging, locks, nodes, dirs, handover, .. } = tables.clone();
        let Past { inodes, durability, captures, busy, .. } = past.clone();
        Arc::new(Names {
            timeline,
            staging,
            locks,
            nodes,
            dirs,
            handover,
            inodes,
            durability,
            captures,
            busy,
            removal: Arc::clone(removal),
            not_empty: OnceLock::new(),
        })
    }

    /// Makes an inode; the kernel's table learns of it with one look-up.
    ///
    /// # Errors
    /// EEXIST and those of open(2), mkdir(2), mknod(2), symlink(2); ENOSPC or EIO if the past could not be kept: then nothing changed.
    pub fn make(&self, parent: Slot, name: &Name, make: &Make<'_>) -> SysResult<Made> {
        let _changing = self.locks.enter();
        let _tree = self.locks.tree.write();
        self.make_in(parent.into(), name, make, 1)
    }

    /// As [`Names::make`]; the caller holds the freeze lock and the tree.
    pub fn make_in(&self, parent: At<'_>, name: &Name, make: &Make<'_>, lookups: u64) -> SysResult<Made> {
        if self.nodes.is_dead(parent.slot) {
            return Err(Errno::ENOENT);
        }
        let dir = self.inodes.dir(parent)?;
        if make.again && self.is_made(&dir, name, make)? {
            let file = make.open.map(|open| sys::open_file_at(&dir, name.as_bytes(), open)).transpose()?;
            let made = self.own(parent, &dir, name, make, make.mode, file, lookups)?;
            // A checkpoint may have been made since, which sees it.
            self.timeline.set_born(made.slot, false);
            return Ok(made);
        }
        self.record_new_name(parent, &dir, name, NameTouch::Made, Vec::new())?;
        let mode = if make.umask & make.mode != 0 && !self.has_default_acl(parent.slot, &dir)? { make.mode & !make.umask } else { make.mode };
        let file = create(&dir, name, make, mode)?;
        let made = self.own(parent, &dir, name, make, mode, file, lookups);
        if made.is_err() {
            let removed = if make.kind == Kind::Dir { sys::rmdir_at(&dir, name.as_bytes()) } else { sys::unlink_at(&dir, name.as_bytes()) };
            tracing::debug!(?removed, "an inode that could not be given to its owner");
        }
        made
    }

    /// What is to be made is there.
    fn is_made(&self, dir: &OwnedFd, name: &Name, make: &Make<'_>) -> SysResult<bool> {
        match sys::stat_at(dir, name.as_bytes()) {
            Ok(stat) if stat.kind == Kind::Symlink && make.kind == Kind::Symlink => Ok(sys::readlink_at(dir, name.as_bytes())? == make.target),
            Ok(stat) => Ok(stat.kind == make.kind),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// New inodes in the directory get its default ACL, and the umask does not count.
    fn has_default_acl(&self, slot: Slot, dir: &OwnedFd) -> SysResult<bool> {
        if self.dirs.is_plain(slot) {
            return Ok(false);
        }
        let has = match sys::getxattr(dir, b"system.posix_acl_default") {
            Ok(_) => true,
            Err(Errno::NO_XATTR | Errno::EOPNOTSUPP | Errno::EACCES | Errno::EPERM) => false,
            // What it gives to those below is not known, and a wrong mode may let in others.
            Err(errno) => return Err(errno),
        };
        self.dirs.set_plain(slot, !has);
        Ok(has)
    }

    /// A name is to appear: it must not be there, and that it is not is recorded.
    fn record_new_name(&self, parent: At<'_>, dir: &OwnedFd, name: &Name, how: NameTouch, mut undo: Vec<Undo>) -> SysResult<()> {
        match sys::stat_at(dir, name.as_bytes()) {
            Err(Errno::ENOENT) => {}
            Ok(_) => return Err(Errno::EEXIST),
            Err(errno) => return Err(errno),
        }
        self.timeline.touch_name(parent.slot, name, how);
        self.captures.keep_entry(parent.slot, name, None, &mut undo);
        self.captures.keep_dir(parent, dir, &mut undo)?;
        self.timeline.record(undo, Vec::new())
    }

    /// Gives a new inode to the caller and tells the tables of it.
    #[allow(clippy::too_many_arguments)]
    fn own(&self, parent: At<'_>, dir: &OwnedFd, name: &Name, make: &Make<'_>, mode: u32, file: Option<File>, lookups: u64) -> SysResult<Made> {
        let mut stat = sys::stat_at(dir, name.as_bytes())?;
        let group_given = stat.gid != make.gid && sys::stat_fd(dir)?.mode & 0o2000 != 0;
        if stat.uid != make.uid || (stat.gid != make.gid && !group_given) {
            let fd = sys::open_path_at(dir, name.as_bytes())?;
            let give = || sys::chown_fd(&fd, Some(make.uid), (!group_given).then_some(make.gid));
            // A directory has the group's bit from the one that it is in, and XFS takes it from whoever may not keep such bits.
            match if stat.mode & SET_ID != 0 { sys::act_for(None, give) } else { give() } {
                // Only root can give files away; an ordinary user's daemon serves nobody else.
                Ok(()) | Err(Errno::EPERM) => {}
                Err(errno) => return Err(errno),
            }
            stat = sys::stat_at(dir, name.as_bytes())?;
        }
        let lost = mode & SET_ID & !stat.mode;
        if lost != 0 && make.kind != Kind::Symlink {
            sys::chmod_fd(sys::open_path_at(dir, name.as_bytes())?, stat.mode | lost)?;
            stat = sys::stat_at(dir, name.as_bytes())?;
        }
        let slot = self.inodes.slot_of(&stat)?;
        self.timeline.set_born(slot, true);
        self.timeline.count(1);
        let place = place(parent.slot, name);
        let generation = self.nodes.lock().learn(slot, stat.kind, generation_of(&stat), Some(&place), lookups);
        Ok(Made { slot, generation, stat, file })
    }

    /// link(2): one more name for an inode.
    ///
    /// # Errors
    /// Those of link(2); ENOSPC or EIO if the past could not be kept: then nothing changed.
    ///
    /// `again`: a worker that died may have done it.
    pub fn link(&self, slot: Slot, parent: Slot, name: &Name, again: bool) -> SysResult<Made> {
        self.busy.patiently(|| self.link_now(slot, parent, name, again))
    }

    fn link_now(&self, slot: Slot, parent: Slot, name: &Name, again: bool) -> SysResult<Made> {
        let _changing = self.locks.enter();
        let _tree = self.locks.tree.write();
        if self.nodes.is_dead(slot) || self.nodes.is_dead(parent) {
            return Err(Errno::ENOENT);
        }
        if again && let Ok((found, generation, stat)) = self.inodes.lookup_in(parent, name, 1) {
            if found == slot {
                return Ok(Made { slot, generation, stat, file: None });
            }
            self.nodes.forget(found, 1);
        }
        let _stripe = self.locks.stripe(slot);
        let found = self.inodes.find(slot.into())?;
        self.link_found(slot, &found.dir, &found.name, &place(parent, name), 1)
    }

    /// Links an inode that was found at `from_name`. The caller holds the freeze lock and the tree.
    pub(super) fn link_found(&self, slot: Slot, from: &OwnedFd, from_name: &Name, to: &Place, lookups: u64) -> SysResult<Made> {
        self.busy.probe_first_for_name(slot)?;
        let stat = sys::stat_at(from, from_name.as_bytes())?;
        let dir = self.inodes.dir(to.parent)?;
        let mut undo = Vec::new();
        self.captures.keep_attr(slot, &stat, target_of(&stat, from, from_name)?, &mut undo);
        self.captures.keep_homes(slot.into(), &mut undo);
        self.timeline.touch_moved(slot, false);
        self.record_new_name(to.parent.into(), &dir, &to.name, NameTouch::Moved, undo)?;
        self.durability.order_names()?;
        sys::link_at(from, from_name.as_bytes(), &dir, to.name.as_bytes())?;
        let stat = sys::stat_at(&dir, to.name.as_bytes()).inspect_err(|_| {
            let removed = sys::unlink_at(&dir, to.name.as_bytes());
            tracing::debug!(?removed, "a link that could not be looked at");
        })?;
        self.durability.note_linked(slot);
        self.timeline.count(1);
        let generation = self.nodes.lock().learn(slot, stat.kind, generation_of(&stat), Some(to), lookups);
        Ok(Made { slot, generation, stat, file: None })
    }

    /// renameat2(2). Returns the slot of an inode that was replaced.
    ///
    /// # Errors
    /// Those of rename(2); ENOSPC or EIO if the past could not be kept: then nothing changed.
    ///
    /// A worker that died may have done it, if the turn says so.
    pub fn rename(&self, from: (Slot, &Name), to: (Slot, &Name), how: RenameMode, turn: Turn) -> SysResult<Option<Slot>> {
        self.busy.patiently(|| self.rename_now(from, to, how, turn))
    }

    fn rename_now(&self, from: (Slot, &Name), to: (Slot, &Name), how: RenameMode, turn: Turn) -> SysResult<Option<Slot>> {
        let _changing = self.locks.enter();
        let _tree = self.locks.tree.write();
        if self.nodes.is_dead(to.0) {
            return Err(Errno::ENOENT);
        }
        if turn.again && self.is_renamed(turn, from, to, how)? {
            if how.leaves_whiteout() && !self.inodes.is_whiteout(from)? {
                let made = self.make_in(from.0.into(), from.1, &whiteout(turn), 1)?;
                self.nodes.forget(made.slot, 1);
            }
            return Ok(None);
        }
        self.rename_in((from.0.into(), from.1), (to.0.into(), to.1), how, turn)
    }

    /// As [`Names::rename`]; the caller holds the freeze lock and the tree.
    pub fn rename_in(&self, from: (At<'_>, &Name), to: (At<'_>, &Name), how: RenameMode, turn: Turn) -> SysResult<Option<Slot>> {
        let _renaming = self.locks.begin_rename();
        let (from_dir, to_dir) = (self.inodes.dir(from.0)?, self.inodes.dir(to.0)?);
        let source = self.removal.target(from.0, &from_dir, from.1)?;
        let target = match self.removal.target(to.0, &to_dir, to.1) {
            Ok(target) => Some(target),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(errno),
        };
        match (&target, how) {
            (None, RenameMode::Exchange) => return Err(Errno::ENOENT),
            (Some(_), RenameMode::NoReplace | RenameMode::NoReplaceWhiteout) => return Err(Errno::EEXIST),
            (Some(target), _) if target.slot == source.slot => return Ok(None),
            (Some(target), RenameMode::Replace | RenameMode::Whiteout) => self.check_replace(&source, target)?,
            _ => {}
        }
        self.busy.probe_first_for_name(source.slot)?;
        match &target {
            Some(target) if how == RenameMode::Exchange => self.busy.probe_first_for_name(target.slot)?,
            Some(target) => self.removal.removal_first(target)?,
            None => {}
        }
        let mut undo = Vec::new();
        self.captures.keep_dir(from.0, &from_dir, &mut undo)?;
        self.captures.keep_dir(to.0, &to_dir, &mut undo)?;
        self.keep_moved(&source, &mut undo)?;
        self.captures.keep_entry(to.0.slot, to.1, target.as_ref().map(Target::child), &mut undo);
        self.touch_renamed((&source, from), to, target.as_ref(), how);
        match target {
            Some(target) if how == RenameMode::Exchange => self.exchange(&source, &target, undo, turn).map(|()| None),
            Some(target) => {
                self.replace(&source, &target, undo, how)?;
                self.own_whiteout(&source, how, turn);
                Ok(Some(target.slot))
            }
            None => {
                let more = self.moved(&[(&source, place(to.0.slot, to.1))]);
                self.timeline.record(undo, more)?;
                let how = if how.leaves_whiteout() { RenameMode::NoReplaceWhiteout } else { RenameMode::NoReplace };
                self.durability
                    .order_names()
                    .and_then(|()| sys::rename_at(&from_dir, from.1.as_bytes(), &to_dir, to.1.as_bytes(), how))
                    .inspect_err(|_| self.not_moved(&[&source]))?;
                self.timeline.count(i64::from(!self.timeline.is_born(source.slot)));
                self.nodes.lock().move_link(source.slot, &source.place(), &place(to.0.slot, to.1));
                self.own_whiteout(&source, how, turn);
                Ok(None)
            }
        }
    }

    /// A rename has left a whiteout, if it was to: whoever asked has it now. Where that cannot be, it is there all the same.
    fn own_whiteout(&self, from: &Target<'_>, how: RenameMode, turn: Turn) {
        if !how.leaves_whiteout() {
            return;
        }
        match self.own(from.parent, from.dir, from.name, &whiteout(turn), 0, None, 1) {
            Ok(made) => self.nodes.forget(made.slot, 1),
            Err(errno) => tracing::warn!(%errno, "a whiteout cannot be given to its owner"),
        }
    }

    /// Notes for the record who changes which names by a rename.
    fn touch_renamed(&self, (source, from): (&Target<'_>, (At<'_>, &Name)), to: (At<'_>, &Name), target: Option<&Target<'_>>, how: RenameMode) {
        let exchanged = how == RenameMode::Exchange;
        self.timeline.touch_moved(source.slot, source.stat.kind == Kind::Dir);
        if let Some(target) = target.filter(|_| exchanged) {
            self.timeline.touch_moved(target.slot, target.stat.kind == Kind::Dir);
        }
        let left = match how {
            RenameMode::Exchange => NameTouch::Moved,
            how if how.leaves_whiteout() => NameTouch::Made,
            _ => NameTouch::Removed,
        };
        self.timeline.touch_name(from.0.slot, from.1, left);
        self.timeline.touch_name(to.0.slot, to.1, NameTouch::Moved);
        if let Some(target) = target.filter(|target| !exchanged && target.is_last()) {
            self.timeline.touch_gone(target.slot);
        }
    }

    /// Records name, attributes and place of an inode that is to be renamed.
    fn keep_moved(&self, moving: &Target<'_>, undo: &mut Vec<Undo>) -> SysResult<()> {
        self.captures.keep_entry(moving.parent.slot, moving.name, Some(moving.child()), undo);
        let target = target_of(&moving.stat, moving.dir, moving.name)?;
        self.captures.keep_attr(moving.slot, &moving.stat, target, undo);
        if self.timeline.needs(&Key::Home(moving.slot)) {
            undo.push(Undo::Home { slot: moving.slot, before: moving.place() });
            self.captures.keep_homes(moving.parent, undo);
        }
        Ok(())
    }

    /// The records of new places for inodes with a past. A directory that was made in the open epoch has none, but something with a past may be below
    /// it: its place is recorded too, and before that the old one, which is true still if the rename never happens.
    fn moved(&self, moves: &[(&Target<'_>, Place)]) -> Vec<Record> {
        let (mut before, mut places) = (Vec::new(), Vec::new());
        for (moving, to) in moves {
            if self.timeline.is_born(moving.slot) {
                if moving.stat.kind != Kind::Dir {
                    continue;
                }
                self.removal.keep_place(moving.slot, moving.place(), &mut before);
            }
            self.removal.keep_way(to.parent, &mut before);
            places.push((moving.slot, to.clone()));
        }
        [before, places].into_iter().filter(|places| !places.is_empty()).map(|places| Record::Moved { places }).collect()
    }

    /// A rename that was recorded has failed: everything is where it was.
    fn not_moved(&self, moves: &[&Target<'_>]) {
        let places: Vec<_> = moves.iter().filter(|moving| self.timeline.place(moving.slot).is_some()).map(|at| (at.slot, at.place())).collect();
        if !places.is_empty() {
            self.timeline.put_places(places);
        }
    }

    fn exchange(&self, source: &Target<'_>, target: &Target<'_>, mut undo: Vec<Undo>, turn: Turn) -> SysResult<()> {
        self.keep_moved(target, &mut undo)?;
        let (there, here) = (target.place(), source.place());
        self.timeline.record(undo, self.moved(&[(source, there.clone()), (target, here.clone())]))?;
        self.handover.leave_exchange(turn, source.slot, target.slot);
        self.durability
            .order_names()
            .and_then(|()| sys::rename_at(source.dir, source.name.as_bytes(), target.dir, target.name.as_bytes(), RenameMode::Exchange))
            .inspect_err(|_| self.not_moved(&[source, target]))?;
        self.timeline.count(2);
        let mut nodes = self.nodes.lock();
        nodes.move_link(source.slot, &here, &there);
        nodes.move_link(target.slot, &there, &here);
        Ok(())
    }

    /// A rename over an existing inode. One with a past is not lost: the two change places in one step, then it is moved into the layer from the
    /// old name of the other. A crash between the two is finished at the next mount ([`Record::Replacing`]).
    fn replace(&self, source: &Target<'_>, target: &Target<'_>, mut undo: Vec<Undo>, how: RenameMode) -> SysResult<()> {
        let _stripe = self.locks.stripe(target.slot);
        let (there, here) = (target.place(), source.place());
        let mut more = self.moved(&[(source, there)]);
        let fate = self.removal.plan_unlink(target, &mut undo, &mut more)?;
        if let Fate::Move(object) = fate {
            more.push(Record::Replacing { slot: target.slot, place: here, object });
        }
        let held = self.removal.hold(target, fate)?;
        self.timeline.record(undo, more)?;
        self.replace_recorded(source, target, fate, held, how)
    }

    /// Does what was recorded of a rename over an existing inode. The caller holds its stripe.
    pub(super) fn replace_recorded(
        &self,
        source: &Target<'_>,
        target: &Target<'_>,
        fate: Fate,
        held: Option<Arc<OwnedFd>>,
        how: RenameMode,
    ) -> SysResult<()> {
        let (there, here) = (target.place(), source.place());
        let past = !self.timeline.is_born(target.slot);
        self.nodes.leave_orphan(target.slot, held.as_ref());
        let names = (source.name.as_bytes(), target.name.as_bytes());
        let rename = |how| self.captures.with_room(|| sys::rename_at(source.dir, names.0, target.dir, names.1, how));
        let ordered = self.removal.order_removal(target);
        match fate {
            Fate::Move(object) => {
                ordered.and_then(|()| rename(RenameMode::Exchange)).inspect_err(|_| self.not_replaced(source, target))?;
                if let Err(errno) = self.removal.move_away(source.dir, source.name, object, how.leaves_whiteout()) {
                    match rename(RenameMode::Exchange) {
                        Ok(()) => self.not_replaced(source, target),
                        Err(again) => self.half_replaced(source, target, again),
                    }
                    return Err(errno);
                }
            }
            Fate::Free => ordered.and_then(|()| rename(how)).inspect_err(|_| self.not_moved(&[source]))?,
        }
        self.timeline.count(i64::from(past));
        self.removal.lost_name(target, held);
        self.nodes.lock().move_link(source.slot, &here, &there);
        Ok(())
    }

    /// A rename over an existing inode that was recorded has failed: both are where they were.
    fn not_replaced(&self, source: &Target<'_>, target: &Target<'_>) {
        self.removal.take_back(target.slot);
        self.not_moved(&[source]);
    }

    /// A rename over an existing inode has failed half-way, and the way back too: the two have changed places, and nothing is lost.
    fn half_replaced(&self, source: &Target<'_>, target: &Target<'_>, errno: Errno) {
        let (there, here) = (target.place(), source.place());
        tracing::error!(?here, ?there, %errno, "a rename failed half-way: the two names have changed places");
        self.removal.take_back(target.slot);
        self.timeline.put_places(vec![(source.slot, there.clone()), (target.slot, here.clone())]);
        self.timeline.count(2);
        let mut nodes = self.nodes.lock();
        nodes.move_link(source.slot, &here, &there);
        nodes.move_link(target.slot, &there, &here);
    }

    /// The errors that rename(2) has for what it would replace, which an exchange would not give.
    fn check_replace(&self, source: &Target<'_>, target: &Target<'_>) -> SysResult<()> {
        match (source.stat.kind == Kind::Dir, target.stat.kind == Kind::Dir) {
            (false, true) => Err(Errno::EISDIR),
            (true, false) => Err(Errno::ENOTDIR),
            (true, true) if !sys::list_dir(sys::open_path_at(target.dir, target.name.as_bytes())?)?.is_empty() => Err(self.not_empty()),
            _ => Ok(()),
        }
    }

    /// The error of a rename over a directory in which something is: rename(2) permits two, and XFS has EEXIST. The filesystem is asked once, with
    /// directories of its own in the staging directory.
    fn not_empty(&self) -> Errno {
        const NAMES: [&[u8]; 2] = [b"empty", b"full"];
        *self.not_empty.get_or_init(|| {
            let [empty, full] = NAMES;
            let make = |dir: &OwnedFd, name: &[u8]| match sys::mkdir_at(dir, name, 0o700) {
                Err(Errno::EEXIST) => Ok(()),
                made => made,
            };
            let ask = || {
                NAMES.iter().try_for_each(|name| make(&self.staging, name))?;
                let inner = sys::open_dir_at(&*self.staging, full)?;
                make(&inner, empty)?;
                let refused = sys::rename_at(&*self.staging, empty, &*self.staging, full, RenameMode::Replace).err();
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

    /// Gives an inode one more name.
    ///
    /// # Errors
    /// Those of link(2).
    pub fn link_in(&self, from: &Place, to: &Place) -> SysResult<Made> {
        let from_dir = self.inodes.dir(from.parent)?;
        let stat = sys::stat_at(&from_dir, from.name.as_bytes())?;
        self.link_found(self.inodes.slot_of(&stat)?, &from_dir, &from.name, to, 0)
    }

    /// A rename that was asked for again has been done. The kernel has both directories locked, so what is there tells.
    pub(super) fn is_renamed(&self, turn: Turn, from: (Slot, &Name), to: (Slot, &Name), how: RenameMode) -> SysResult<bool> {
        let at = |(dir, name): (Slot, &Name)| match sys::stat_at(self.inodes.dir(dir)?, name.as_bytes()) {
            Ok(stat) => self.inodes.slot_of(&stat).map(Some),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        };
        if how != RenameMode::Exchange {
            let left = at(from)?.is_none() || how.leaves_whiteout() && self.inodes.is_whiteout(from)?;
            return Ok(left && at(to)?.is_some());
        }
        Ok(self.handover.exchange_begun(turn).is_some_and(|slot| at(from) == Ok(Some(slot))))
    }
}

/// What a rename leaves behind for an overlay: it says that there is nothing (`WHITEOUT_MODE`, `WHITEOUT_DEV` in linux/fs.h).
fn whiteout(turn: Turn) -> Make<'static> {
    let (uid, gid) = turn.owner;
    Make { kind: Kind::CharDev, mode: 0, umask: 0, rdev: 0, target: b"", uid, gid, open: None, again: false }
}

fn create(dir: &Arc<OwnedFd>, name: &Name, make: &Make<'_>, mode: u32) -> SysResult<Option<File>> {
    let name = name.as_bytes();
    match make.kind {
        Kind::File => match make.open {
            Some(open) => sys::create_file_at(dir, name, open, mode).map(Some),
            None => sys::create_file_at(dir, name, Open::WRITE, mode).map(|_| None),
        },
        Kind::Dir => sys::mkdir_at(dir, name, mode).map(|()| None),
        Kind::Symlink => sys::symlink_at(make.target, dir, name).map(|()| None),
        Kind::Fifo | Kind::Socket | Kind::CharDev | Kind::BlockDev => sys::mknod_at(dir, name, make.kind, mode, make.rdev).map(|()| None),
    }
}

impl Made {
    /// As the child of its directory.
    pub fn child(&self) -> Child {
        Child { slot: self.slot, kind: self.stat.kind }
    }
}
