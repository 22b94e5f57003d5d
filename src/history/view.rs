//! The tree as it was at a checkpoint, or as it is.
//!
//! A view resolves each key by itself: the first undo record after the checkpoint, else the live tree. **A live answer counts only if no record
//! came while it was read**: a record is always made before its change, so a second look that finds none proves that the answer is still of the
//! past. Views take no lock of the live tree and never make a writer wait.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use super::dropped::DROPPED;
use super::lookup::{Answer, Recorded};
use super::present::{Present, Trail};
use super::timeline::Timeline;
use crate::store::ids::{CheckpointId, Epoch, Name, ObjectId, ObjectOrigin, Slot};
use crate::store::record::{AttrState, Child, DataState};
use crate::sys::{Errno, Kind, SysResult, Xattrs};

/// How long an inode that is about to be moved into a layer is waited for, at once.
const MOVE_PAUSE: Duration = Duration::from_micros(100);
/// How often.
const MOVE_WAITS_MAX: u32 = 50_000;
/// How long a rename under way is waited for, each time, when an inode is at none of its names.
const RENAME_PAUSE: Duration = Duration::from_micros(200);
/// How often at most: a rename on a busy machine takes its time, and another may follow.
const RENAME_WAITS_MAX: u32 = 25_000;

/// Which state of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// As it was at a checkpoint.
    At(CheckpointId),
    /// As it is.
    Live,
}

/// Where the bytes of a version are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In an object of the store.
    Object(ObjectId),
    /// Nowhere: the file was empty.
    Empty,
    /// Still in the live file.
    Live,
}

/// One state of the tree.
pub struct View<'a> {
    timeline: &'a Timeline,
    present: &'a dyn Present,
    state: State,
}

impl<'a> View<'a> {
    /// The view of a state.
    pub fn new(timeline: &'a Timeline, present: &'a dyn Present, state: State) -> View<'a> {
        View { timeline, present, state }
    }

    /// Which state it shows.
    pub fn state(&self) -> State {
        self.state
    }

    /// Asks history, then the live tree, then history again: unless nothing at all was recorded meanwhile. Says in which epoch the answer was recorded;
    /// `None`: it is of the live tree.
    ///
    /// A rename of a directory above is recorded, then done, then told to the tables: in between nobody finds what is below it.
    fn look<T>(&self, past: impl Fn() -> Answer<T>, live: impl Fn() -> SysResult<T>) -> SysResult<(Option<Epoch>, T)> {
        let recordings = self.timeline.recordings();
        if let Some(found) = past()? {
            return Ok((Some(found.epoch), found.before));
        }
        let answer = self.at_rest(live);
        if self.timeline.recordings() == recordings {
            return answer.map(|answer| (None, answer));
        }
        match past()? {
            Some(found) => Ok((Some(found.epoch), found.before)),
            None => answer.map(|answer| (None, answer)),
        }
    }

    /// What the live tree says. That an inode is at none of its names is so only if no rename was under way meanwhile.
    fn at_rest<T>(&self, live: impl Fn() -> SysResult<T>) -> SysResult<T> {
        for _ in 0..RENAME_WAITS_MAX {
            let before = self.present.renames();
            let answer = live();
            if !matches!(answer, Err(Errno::ESTALE)) || (before.is_some() && before == self.present.renames()) {
                return answer;
            }
            std::thread::sleep(RENAME_PAUSE);
        }
        live()
    }

    /// An answer of EIO may mean that something was changed behind our back, or that the power was cut before it was on the disk; if not, reading it
    /// failed.
    pub fn may_be_unserved(&self) -> bool {
        match self.state {
            State::At(id) => self.timeline.was_absent_after(id) || self.timeline.has_met_unseen(id) || self.timeline.is_incomplete(id),
            State::Live => false,
        }
    }

    /// Refuses what was changed behind our back.
    fn check_served(&self, owner: &Arc<Trail>, kind: Kind, id: CheckpointId, epoch: Option<Epoch>) -> SysResult<()> {
        if self.changed_unserved(owner, id, epoch)? {
            self.timeline.meet_unseen(owner.path(), kind, id);
            return Err(Errno::EIO);
        }
        Ok(())
    }

    /// Whether an inode was changed behind our back, after checkpoint `id`: as it was when it was recorded in `epoch`, or as it is.
    fn changed_unserved(&self, owner: &Arc<Trail>, id: CheckpointId, epoch: Option<Epoch>) -> SysResult<bool> {
        let first = self.timeline.attr_at(owner.slot, id)?;
        // With a record of an earlier change it may be ours.
        let last = match (&first, epoch) {
            (None, None) => self.present.attr(owner).ok().map(|attr| attr.stat.ctime),
            (Some(attr), Some(epoch)) if attr.epoch == epoch => Some(attr.before.stat.ctime),
            _ => None,
        };
        // A record that came meanwhile is of a change that the answer may show.
        if last.is_some_and(|ctime| self.timeline.changed_unseen(ctime, id)) && (first.is_some() || self.timeline.attr_at(owner.slot, id)?.is_none())
        {
            return Ok(true);
        }
        if !self.timeline.was_absent_after(id) {
            return Ok(false);
        }
        let recorded = match epoch {
            Some(epoch) => self.timeline.attr_at(owner.slot, CheckpointId(epoch.0.saturating_sub(1)))?,
            None => None,
        };
        let ctime = match recorded {
            Some(attr) => attr.before.stat.ctime,
            None => match self.present.attr(owner) {
                Ok(attr) => attr.stat.ctime,
                Err(Errno::ESTALE | Errno::ENOENT) => return Ok(false),
                Err(errno) => return Err(errno),
            },
        };
        Ok(self.timeline.changed_in_absence(ctime, id))
    }

    /// What a name in a directory led to.
    ///
    /// # Errors
    /// ESTALE if the directory cannot be found; EIO if the record is damaged, or if the directory was changed while nobody served it and what the
    /// name led to cannot be told: it is gone, or was itself changed then. (A rename changes the ctime of what it moves.)
    pub fn child(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<Child>> {
        let State::At(id) = self.state else { return self.at_rest(|| self.present.child(dir, name)) };
        let live = || match self.present.child(dir, name) {
            // The directory is gone, and a name that it had was removed with a record before.
            Err(Errno::ESTALE) if self.timeline.attr_at(dir.slot, id)?.is_some() => Ok(None),
            live => live,
        };
        let (epoch, child) = self.look(|| self.timeline.entry_at(dir.slot, name, id), live)?;
        if self.changed_unserved(dir, id, epoch)? {
            match child {
                Some(child) => self.check_served(&dir.step(name, child.slot), child.kind, id, epoch)?,
                None => {
                    self.timeline.meet_unseen(dir.path(), Kind::Dir, id);
                    return Err(Errno::EIO);
                }
            }
        }
        child.map_or(Ok(()), |child| self.check_no_loop(dir, child))?;
        Ok(child)
    }

    /// Refuses a directory of the past that leads to itself, for a walk would never end: there is none unless somebody forged it. The live tree cannot
    /// have one, and may be asked by trails of the past.
    fn check_no_loop(&self, dir: &Arc<Trail>, child: Child) -> SysResult<()> {
        let State::At(id) = self.state else { return Ok(()) };
        if child.kind != Kind::Dir || !dir.goes_through(child.slot) {
            return Ok(());
        }
        tracing::error!(%id, dir = dir.slot.0, "a directory of the past leads to itself");
        Err(Errno::EIO)
    }

    /// The inode that a name led to, with its trail.
    ///
    /// # Errors
    /// As [`View::child`].
    pub fn step(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<(Child, Arc<Trail>)>> {
        Ok(self.child(dir, name)?.map(|child| (child, dir.step(name, child.slot))))
    }

    /// Every name of a directory, sorted.
    ///
    /// # Errors
    /// As [`View::child`].
    pub fn list(&self, dir: &Arc<Trail>) -> SysResult<Vec<(Name, Child)>> {
        let names = self.list_all(dir)?;
        names.iter().try_for_each(|(_, child)| self.check_no_loop(dir, *child))?;
        Ok(names)
    }

    fn list_all(&self, dir: &Arc<Trail>) -> SysResult<Vec<(Name, Child)>> {
        let State::At(id) = self.state else {
            let mut names = self.at_rest(|| self.present.list(dir))?;
            names.sort_by(|a, b| a.0.cmp(&b.0));
            return Ok(names);
        };
        // A directory that is gone from the live tree is listed from records alone: every name was removed, with a record, before the directory.
        let live = self.at_rest(|| self.present.list(dir));
        let recorded = self.timeline.entries_at(dir.slot, id)?;
        let mut names: std::collections::BTreeMap<Name, Child> = match live {
            Ok(names) => names.into_iter().collect(),
            Err(Errno::ESTALE) if self.timeline.attr_at(dir.slot, id)?.is_some() => std::collections::BTreeMap::new(),
            Err(errno) => return Err(errno),
        };
        let epochs: std::collections::BTreeSet<Epoch> = recorded.values().map(|recorded| recorded.epoch).collect();
        for epoch in epochs.into_iter().map(Some).chain(std::iter::once(None)) {
            self.check_served(dir, Kind::Dir, id, epoch)?;
        }
        for (name, recorded) in recorded {
            match recorded.before {
                Some(child) => names.insert(name, child),
                None => names.remove(&name),
            };
        }
        Ok(names.into_iter().collect())
    }

    /// Attributes. Those of a directory that was changed while nobody served it are as they are now.
    ///
    /// # Errors
    /// As [`View::child`].
    pub fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState> {
        let State::At(id) = self.state else { return self.at_rest(|| self.present.attr(node)) };
        let (epoch, attr) = self.look(|| Ok(self.timeline.attr_at(node.slot, id)?.map(owned)), || self.present.attr(node))?;
        // A directory can be passed through, so that what is below and was not changed can be reached.
        if attr.stat.kind != Kind::Dir {
            self.check_served(node, attr.stat.kind, id, epoch)?;
        }
        Ok(attr)
    }

    /// Extended attributes, sorted by name.
    ///
    /// # Errors
    /// As [`View::child`].
    pub fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs> {
        let State::At(id) = self.state else { return self.at_rest(|| self.present.xattrs(node)) };
        let (epoch, xattrs) = self.look(|| Ok(self.timeline.xattrs_at(node.slot, id)?.map(owned)), || self.present.xattrs(node))?;
        self.check_served(node, Kind::File, id, epoch)?;
        Ok(xattrs)
    }

    /// Where the content of a regular file is now. An answer of [`Source::Live`] holds only until the file changes.
    ///
    /// # Errors
    /// EIO if the record is damaged.
    pub fn source(&self, slot: Slot) -> SysResult<Source> {
        let State::At(id) = self.state else { return Ok(Source::Live) };
        Ok(match self.timeline.data_at(slot, id)?.map(|data| data.before) {
            Some(DataState { object: Some(object), .. }) => Source::Object(object),
            Some(DataState { object: None, .. }) => Source::Empty,
            None => Source::Live,
        })
    }

    /// Opens the content for reading; `None`: it is empty. A descriptor of a live file must be read with [`View::still_live`] asked after each
    /// read.
    ///
    /// # Errors
    /// As [`View::child`]; EIO if the object is not in the store.
    pub fn open(&self, node: &Arc<Trail>) -> SysResult<(Source, Option<File>)> {
        if let State::At(id) = self.state {
            let epoch = self.timeline.data_at(node.slot, id)?.map(|data| data.epoch);
            self.check_served(node, Kind::File, id, epoch)?;
        }
        let mut waits = 0;
        loop {
            match self.source(node.slot)? {
                Source::Empty => return Ok((Source::Empty, None)),
                Source::Object(object) => {
                    if self.timeline.is_dropped(object)? {
                        return Err(DROPPED);
                    }
                    if let Some(file) = self.timeline.open_object(object)? {
                        self.check_whole(node, object, &file)?;
                        return Ok((Source::Object(object), Some(file)));
                    }
                    // The record comes before the inode is moved into the layer; and a capture that was not needed goes after its record. No epoch is
                    // closed between a record and its move: of a closed one there is nothing to wait for.
                    let moving = object.origin == ObjectOrigin::Moved && object.epoch == self.timeline.epoch();
                    if self.source(node.slot)? == Source::Object(object) && !self.timeline.is_dropped(object)? {
                        // Its checkpoint was freed since somebody asked for the view: versions go after that is on record.
                        if let State::At(id) = self.state
                            && !self.timeline.is_stored(id)
                        {
                            return Err(Errno::ESTALE);
                        }
                        if !moving || waits == MOVE_WAITS_MAX {
                            tracing::error!(?object, "a version is missing from the store");
                            return Err(Errno::EIO);
                        }
                        waits += 1;
                        std::thread::sleep(MOVE_PAUSE);
                    }
                }
                Source::Live => {
                    let opened = self.at_rest(|| self.present.open(node));
                    if self.source(node.slot)? == Source::Live {
                        return Ok((Source::Live, Some(opened?)));
                    }
                }
            }
        }
    }

    /// Refuses an object of another size than what was kept: the power was cut before all of a copy was on the disk.
    fn check_whole(&self, node: &Arc<Trail>, object: ObjectId, file: &File) -> SysResult<()> {
        let State::At(id) = self.state else { return Ok(()) };
        let Some(data) = self.timeline.data_at(node.slot, id)?.map(|data| data.before).filter(|data| data.object == Some(object)) else {
            return Ok(());
        };
        let size = crate::sys::stat_fd(file)?.size;
        // Changes that never came to the disk were struck, and the inode that was moved away after them is what it was before.
        if size == data.size || (object.origin == ObjectOrigin::Moved && size == self.attr(node)?.stat.size) {
            return Ok(());
        }
        // Dropped since it was asked whether it was.
        if self.timeline.is_dropped(object)? {
            return Err(DROPPED);
        }
        tracing::error!(?object, size, kept = data.size, "a version is not whole");
        Err(Errno::EIO)
    }

    /// The content is still in the live file, and unchanged: what was read from `file`, which is that file, was of the past.
    ///
    /// # Errors
    /// EIO if a record is damaged, or the file was changed behind our back.
    pub fn still_live(&self, node: &Arc<Trail>, file: Option<&File>) -> SysResult<bool> {
        if self.source(node.slot)? != Source::Live {
            return Ok(false);
        }
        let (State::At(id), Some(file)) = (self.state, file) else { return Ok(true) };
        let ctime = crate::sys::stat_fd(file)?.ctime;
        if self.timeline.changed_unseen(ctime, id) && self.timeline.attr_at(node.slot, id)?.is_none() {
            self.timeline.meet_unseen(node.path(), Kind::File, id);
            return Err(Errno::EIO);
        }
        Ok(true)
    }

    /// Walks a path; `None` if it does not exist in this state.
    ///
    /// # Errors
    /// As [`View::child`].
    pub fn walk(&self, path: &[u8]) -> SysResult<Option<(Child, Arc<Trail>)>> {
        let mut at = (Child { slot: Slot::ROOT, kind: Kind::Dir }, Trail::root());
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            if at.0.kind != Kind::Dir {
                return Ok(None);
            }
            match self.step(&at.1, &Name::new(name))? {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }
}

fn owned<T: Clone>(recorded: Recorded<Arc<T>>) -> Recorded<T> {
    Recorded { epoch: recorded.epoch, before: (*recorded.before).clone() }
}
