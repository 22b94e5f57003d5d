//! Detection of changes made while nothing was mounted, by comparison with the baseline: the tree
//! at the end of the last mount.
//!
//! A daemon that ends cleanly writes the baseline ([`ckptfs_store::baseline`]). The next one
//! compares before it serves: from the root down the directories of the baseline, with a stat of
//! each inode. Each difference gets the undo records of a change made in the open epoch, with its
//! old names, attributes, extended attributes and places. The old content of a file is unknown
//! unless a copy was saved. Without a copy its record has a size and no object, and views return
//! EIO for it. A directory whose names are accounted for gets a current ctime, which marks its
//! changes as recorded.
//!
//! An inode is identified by slot, type and birth time. One that is no longer at its name is
//! searched for among the new names.

mod advance;
mod settle;

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::attrs::Attrs;
use super::capture_ctx::{CaptureCtx, Inodes};
use super::inodes::{names_of, place};
use super::nodes::{generation_of, is_same};
use super::saved_content::{ContentSaver, SavedContent};
use super::shared_tables::{NodeTable, SharedTables};
use crate::history::attribution::Author;
use crate::history::present::Trail;
use crate::history::timeline::Timeline;
use crate::history::unserved::has_same_content;
use ckptfs_api::SavePolicy;
use ckptfs_store::Address;
use ckptfs_store::baseline::{Baseline, BaselineNode, BaselineWriter, ROOT};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{DataState, Key, Place, Record, Undo};
use ckptfs_sys::{self as sys, Errno, Kind, SetTime, Stat, SysResult};

/// Time limit of a walk, excluding saved content; a larger tree has no baseline. A mount waits
/// slightly longer for a process that is writing one.
const WRITE_MAX: Duration = Duration::from_secs(15);

/// A directory to be listed.
struct PendingDir {
    number: u64,
    trail: Arc<Trail>,
    was: Stat,
}

/// Parameters of a walk.
pub(super) struct WalkParams<'a> {
    /// End of the journal. `None` while the tree is served: concurrent changes are then left to the
    /// next update of the baseline.
    pub(super) end: Option<Address>,
    /// Saves content during the walk.
    pub(super) keeper: Option<&'a ContentSaver<'a>>,
    /// Updates ctimes that are in the future.
    pub(super) settles: bool,
    /// Called before each directory; `false` ends the walk.
    pub(super) go_on: &'a mut dyn FnMut() -> bool,
}

/// Writes the baseline, and records differences from it.
pub struct BaselineUpdate {
    timeline: Arc<Timeline>,
    nodes: Arc<NodeTable>,
    inodes: Arc<Inodes>,
    kept: Arc<SavedContent>,
    attrs: Arc<Attrs>,
}

impl BaselineUpdate {
    pub(super) fn new(
        tables: &SharedTables,
        past: &CaptureCtx,
        kept: &Arc<SavedContent>,
        attrs: &Arc<Attrs>,
    ) -> Arc<BaselineUpdate> {
        Arc::new(BaselineUpdate {
            timeline: Arc::clone(&tables.timeline),
            nodes: Arc::clone(&tables.nodes),
            inodes: Arc::clone(&past.inodes),
            kept: Arc::clone(kept),
            attrs: Arc::clone(attrs),
        })
    }

    /// Writes the baseline of the current tree, and saves content that a checkpoint shows and no
    /// layer has, for the time that `keep` permits. The tree is no longer served. Returns the
    /// number of files not saved for lack of time or space. `alone`: no process could change the
    /// backing directory directly, so all changes are recorded. `all`: a checkpoint will show the
    /// current tree.
    ///
    /// # Errors
    /// EBUSY: the tree was changed concurrently; ETIMEDOUT: it is very large; ENOSPC, EIO. No
    /// baseline exists after an error.
    pub fn write(&self, keep: SavePolicy, alone: bool, all: bool) -> SysResult<u64> {
        let layout = &self.timeline.store().layout;
        if !alone {
            self.timeline.baseline.distrust_baseline();
        }
        let written = self.write_or_advance(keep, all);
        if written.is_err()
            && let Err(error) = Baseline::remove(layout)
        {
            tracing::debug!(%error, "what there is of a baseline stays");
        }
        written
    }

    /// Returns whether the tree is a branch.
    pub(super) fn is_of_branch(&self) -> bool {
        self.inodes.base().through().is_some()
    }

    fn write_or_advance(&self, keep: SavePolicy, all: bool) -> SysResult<u64> {
        let store = self.timeline.store();
        // A tree without checkpoints needs no history. A branch has few own inodes, and their
        // ctimes show whether they were changed.
        if self.timeline.catalogue.stored_ids().is_empty() || self.is_of_branch() {
            Baseline::remove(&store.layout)?;
            return self.kept.drop_all().map(|()| 0);
        }
        let keeper = self.kept.keeper(keep, all)?;
        let end = store.journal.position();
        if let Some(files) = self.advance_baseline(Some(end), keeper.as_ref())? {
            self.check_advanced(end)?;
            return keeper.map_or(Ok(0), |keeper| keeper.catch_up(files));
        }
        let (began, most) = (Instant::now(), WRITE_MAX.saturating_add(keep.time_limit()));
        let mut go_on = || began.elapsed() <= most;
        self.walk_baseline(WalkParams {
            end: Some(end),
            keeper: keeper.as_ref(),
            settles: false,
            go_on: &mut go_on,
        })?;
        let gone = self.timeline.baseline.gone_now();
        if let (false, Some(mut baseline)) = (gone.is_empty(), Baseline::open_any(&store.layout)?) {
            baseline.changes.set_gone(&gone);
            baseline.write_changes(&store.layout, Some(end))?;
        }
        keeper.map_or(Ok(0), ContentSaver::finish)
    }

    /// Writes the baseline by a walk over the whole tree.
    ///
    /// # Errors
    /// As [`BaselineUpdate::write`].
    pub(super) fn walk_baseline(&self, walk: WalkParams<'_>) -> SysResult<()> {
        if !self.timeline.baseline.begin_baseline() {
            return Err(Errno::ENODATA);
        }
        let walked = self.walk(walk);
        self.timeline
            .baseline
            .end_baseline(walked.is_ok().then_some(0));
        walked
    }

    fn walk(&self, walk: WalkParams<'_>) -> SysResult<()> {
        let WalkParams { end, keeper, .. } = walk;
        let mut writer = BaselineWriter::new(&self.timeline.store().layout, end)?;
        let root = self.inodes.root_node()?;
        self.settle(walk.settles, Trail::root, &root.attr.stat);
        writer.add(0, b"", &root)?;
        let mut open = VecDeque::from([PendingDir {
            number: ROOT,
            trail: Trail::root(),
            was: root.attr.stat,
        }]);
        // In an unchanging tree, an inode that the walk does not find is gone.
        let mut unmet = if end.is_some() {
            self.timeline.epochs.recorded_now()
        } else {
            HashSet::new()
        };
        unmet.remove(&Slot::ROOT);
        let (mut last, mut above) = (ROOT, None);
        while let Some(PendingDir { number, trail, was }) = open.pop_front() {
            if !(walk.go_on)() {
                return Err(Errno::ETIMEDOUT);
            }
            let Some(fd) = self.inodes.listed_dir(&trail, &mut above)? else {
                continue;
            };
            self.inodes.note_born(trail.slot);
            for name in names_of(trail.slot, &fd)? {
                let mut node = match self.inodes.node_at(&fd, &name) {
                    // Another filesystem is not part of the tree.
                    Err(Errno::EXDEV) => continue,
                    Err(Errno::ENOENT) if end.is_none() => {
                        self.timeline.baseline.note_missed(trail.slot, &name);
                        continue;
                    }
                    node => node?,
                };
                let child = || trail.step(&name, node.child.slot);
                self.settle(walk.settles, child, &node.attr.stat);
                unmet.remove(&node.child.slot);
                if let Some(keeper) = keeper {
                    keeper.keep(&fd, &name, &node);
                }
                if node.child.kind == Kind::Dir {
                    last += 1;
                    node.number = last;
                    open.push_back(PendingDir {
                        number: last,
                        trail: trail.step(&name, node.child.slot),
                        was: node.attr.stat,
                    });
                }
                writer.add(number, name.as_bytes(), &node)?;
            }
            if end.is_some() && !is_same(&sys::stat_fd(&fd)?, &was) {
                return Err(Errno::EBUSY);
            }
            writer.listed(number, trail.slot, generation_of(&was));
        }
        unmet
            .into_iter()
            .for_each(|slot| self.timeline.baseline.note_gone(slot));
        self.kept.unsettle_kept()?;
        // One of its files may already have replaced the old one.
        writer
            .finish()
            .map_err(Errno::from)
            .inspect_err(|_| self.timeline.baseline.distrust_baseline())
    }

    /// Records all differences from the baseline, and calls `begin` before the first record.
    /// Records of an interrupted earlier attempt are kept. To be called before the tree is served.
    ///
    /// # Errors
    /// ENOSPC or EIO of the journal, EIO of the baseline, those of `begin`. Views return EIO for
    /// changes that were not recorded.
    pub fn record_absence(
        &self,
        baseline: &Baseline,
        begin: &mut dyn FnMut() -> SysResult<()>,
    ) -> SysResult<()> {
        let root = baseline.root()?;
        let mut compared = BaselineDiff {
            baselines: self,
            baseline,
            begin,
            open: Vec::new(),
            away: HashMap::new(),
            new: HashMap::new(),
            unlisted: Vec::new(),
            told: HashSet::new(),
            as_is: HashSet::new(),
        };
        compared.open.push(ComparedDir {
            now: Trail::root(),
            was: Trail::root(),
            node: root,
        });
        compared.all()
    }
}

/// A directory that still exists.
struct ComparedDir {
    /// Its current path.
    now: Arc<Trail>,
    /// Its path in the baseline.
    was: Arc<Trail>,
    /// Its state in the baseline.
    node: BaselineNode,
}

struct BaselineDiff<'a> {
    baselines: &'a BaselineUpdate,
    baseline: &'a Baseline,
    /// Called before each record.
    begin: &'a mut dyn FnMut() -> SysResult<()>,
    /// Directories not yet compared.
    open: Vec<ComparedDir>,
    /// Inodes no longer at their place, with their old state and path.
    away: HashMap<Slot, (BaselineNode, Arc<Trail>)>,
    /// Inodes at new names: directory, name and attributes.
    new: HashMap<Slot, (Arc<Trail>, Name, Stat)>,
    /// New directories not yet listed.
    unlisted: Vec<Arc<Trail>>,
    /// Removed directories whose old names have been added to the search.
    told: HashSet<Slot>,
    /// Files found at one of their names with unchanged content.
    as_is: HashSet<Slot>,
}

/// Returns whether this is the inode of the baseline.
fn is_it(baselines: &BaselineUpdate, stat: &Stat, node: &BaselineNode) -> bool {
    let was = &node.attr.stat;
    baselines.inodes.slot_of(stat) == Ok(node.child.slot)
        && stat.kind == was.kind
        && generation_of(stat) == generation_of(was)
}

fn place_of(trail: &Trail) -> Option<Place> {
    trail.up.as_ref().map(|up| place(up.slot, &trail.name))
}

impl BaselineDiff<'_> {
    fn all(&mut self) -> SysResult<()> {
        loop {
            while let Some(directory) = self.open.pop() {
                self.compare(&directory)?;
            }
            if self.away.is_empty() {
                return Ok(());
            }
            self.list_new()?;
            if !self.find_moved()? {
                self.record_gone()?;
            }
        }
    }

    /// Compares a directory and the inodes at its names.
    fn compare(&mut self, directory: &ComparedDir) -> SysResult<()> {
        let ComparedDir { now, was, node } = directory;
        let fd = self.baselines.inodes.dir(now)?;
        let stat = sys::stat_fd(&fd)?;
        let names = self.baseline.names(node)?;
        let mut undo = Vec::new();
        let (dir, changed) = (now.slot, !is_same(&stat, &node.attr.stat));
        let mut known = HashSet::new();
        for (name, child) in names {
            match sys::stat_at(&fd, name.as_bytes()) {
                Ok(stat) if is_it(self.baselines, &stat, &child) => {
                    self.compare_child(&stat, (now, was), &name, child.clone())?
                }
                Ok(_) | Err(Errno::ENOENT) if changed => {
                    undo.push(Undo::Entry {
                        dir,
                        name: name.clone(),
                        before: Some(child.child),
                    });
                    self.away
                        .entry(child.child.slot)
                        .or_insert_with(|| (child.clone(), was.step(&name, child.child.slot)));
                    // The inode at this name is new.
                    continue;
                }
                // Another filesystem is mounted there.
                Ok(_) => {}
                Err(errno) => return Err(errno),
            }
            known.insert(name);
        }
        if !changed {
            return Ok(());
        }
        let gone: HashSet<Name> = undo
            .iter()
            .filter_map(|item| {
                if let Undo::Entry { name, .. } = item {
                    Some(name.clone())
                } else {
                    None
                }
            })
            .collect();
        for name in names_of(dir, &fd)?
            .into_iter()
            .filter(|name| !known.contains(name))
        {
            if self.note_new(&fd, now, &name)? && !gone.contains(&name) {
                undo.push(Undo::Entry {
                    dir,
                    name,
                    before: None,
                });
            }
        }
        self.record(node, was, undo, None)?;
        sys::utimens_fd(&fd, SetTime::Omit, SetTime::At(stat.mtime))
    }

    fn compare_child(
        &mut self,
        stat: &Stat,
        (now, was): (&Arc<Trail>, &Arc<Trail>),
        name: &Name,
        node: BaselineNode,
    ) -> SysResult<()> {
        let slot = node.child.slot;
        if node.child.kind == Kind::Dir {
            self.open.push(ComparedDir {
                now: now.step(name, slot),
                was: was.step(name, slot),
                node,
            });
            Ok(())
        } else if is_same(stat, &node.attr.stat) {
            Ok(())
        } else {
            self.note_content(stat, &node);
            self.record(&node, &was.step(name, slot), Vec::new(), None)
        }
    }

    /// Records the inode at a new name. Returns `false` if none exists, or it is on another
    /// filesystem.
    fn note_new(&mut self, fd: &OwnedFd, dir: &Arc<Trail>, name: &Name) -> SysResult<bool> {
        let stat = match sys::stat_at(fd, name.as_bytes()) {
            Err(Errno::ENOENT) => return Ok(false),
            stat => stat?,
        };
        let Ok(slot) = self.baselines.inodes.slot_of(&stat) else {
            return Ok(false);
        };
        if stat.kind == Kind::Dir {
            self.unlisted.push(dir.step(name, slot));
        }
        self.new.insert(slot, (Arc::clone(dir), name.clone(), stat));
        Ok(true)
    }

    /// Lists new directories. One that was only moved is compared later; the listing does no harm.
    fn list_new(&mut self) -> SysResult<()> {
        while let Some(trail) = self.unlisted.pop() {
            let fd = self.baselines.inodes.dir(&trail)?;
            for name in names_of(trail.slot, &fd)? {
                self.note_new(&fd, &trail, &name)?;
            }
        }
        Ok(())
    }

    /// Records the inodes found at another place. Returns `false` if no inode was.
    fn find_moved(&mut self) -> SysResult<bool> {
        let is_there = |(slot, (node, _)): (&Slot, &(BaselineNode, Arc<Trail>))| {
            self.new
                .get(slot)
                .is_some_and(|(_, _, stat)| is_it(self.baselines, stat, node))
        };
        let moved: Vec<Slot> = self
            .away
            .iter()
            .filter(|entry| is_there(*entry))
            .map(|(slot, _)| *slot)
            .collect();
        for slot in &moved {
            let (Some((node, was)), Some((dir, name, stat))) =
                (self.away.remove(slot), self.new.remove(slot))
            else {
                continue;
            };
            self.note_content(&stat, &node);
            self.record(&node, &was, Vec::new(), Some(place(dir.slot, &name)))?;
            if node.child.kind == Kind::Dir {
                self.open.push(ComparedDir {
                    now: dir.step(&name, *slot),
                    was,
                    node,
                });
            }
        }
        Ok(!moved.is_empty())
    }

    /// Records the inodes that were not found. The contents of such a directory may be elsewhere.
    fn record_gone(&mut self) -> SysResult<()> {
        for (slot, (node, was)) in std::mem::take(&mut self.away) {
            if !self.new.contains_key(&slot)
                && (node.child.kind == Kind::Dir || node.attr.stat.nlink <= 1)
            {
                self.baselines.timeline.baseline.note_gone(slot);
            }
            let mut undo = Vec::new();
            if node.child.kind == Kind::Dir && self.told.insert(slot) {
                let names = self.baseline.names(&node)?;
                // Another directory may have reused its number.
                if let Some((
                    dir,
                    name,
                    Stat {
                        kind: Kind::Dir, ..
                    },
                )) = self.new.get(&slot)
                {
                    let fd = self.baselines.inodes.dir(&dir.step(name, slot))?;
                    let there = names_of(slot, &fd)?;
                    let others = there.into_iter().filter(|name| {
                        names
                            .binary_search_by(|(known, _)| known.cmp(name))
                            .is_err()
                    });
                    undo.extend(others.map(|name| Undo::Entry {
                        dir: slot,
                        name,
                        before: None,
                    }));
                }
                for (name, child) in names {
                    undo.push(Undo::Entry {
                        dir: slot,
                        name: name.clone(),
                        before: Some(child.child),
                    });
                    let was = was.step(&name, child.child.slot);
                    self.away.entry(child.child.slot).or_insert((child, was));
                }
            }
            self.record(&node, &was, undo, None)?;
        }
        Ok(())
    }

    /// Records that a file exists with unchanged content.
    fn note_content(&mut self, stat: &Stat, node: &BaselineNode) {
        if has_same_content(&node.attr.stat, stat) {
            self.as_is.insert(node.child.slot);
        }
    }

    /// Records the old state of an inode. `now` is its place if it was moved. The content record of
    /// a file is omitted if the content was not saved but is unchanged: only attributes or links
    /// differ.
    fn record(
        &mut self,
        node: &BaselineNode,
        was: &Arc<Trail>,
        names: Vec<Undo>,
        now: Option<Place>,
    ) -> SysResult<()> {
        (self.begin)()?;
        let (slot, timeline) = (node.child.slot, &self.baselines.timeline);
        let news = timeline.epochs.needs(&Key::Attr(slot));
        let mut undo = vec![
            Undo::Attr {
                slot,
                before: node.attr.clone(),
            },
            Undo::Xattrs {
                slot,
                before: node.xattrs.clone(),
            },
        ];
        if node.child.kind == Kind::File {
            let before = self.content(node);
            if before.object.is_some() || before.size == 0 || !self.as_is.contains(&slot) {
                undo.push(Undo::Data { slot, before });
            }
        }
        let mut at = was;
        while let (Some(place), true) = (place_of(at), timeline.epochs.needs(&Key::Home(at.slot))) {
            undo.push(Undo::Home {
                slot: at.slot,
                before: place,
            });
            let Some(up) = &at.up else { break };
            at = up;
        }
        undo.extend(names);
        let more = now.map(|place| Record::Moved {
            places: vec![(slot, place)],
        });
        timeline
            .epochs
            .record(&Author::default(), undo, more.into_iter().collect())?;
        timeline.epochs.count(i64::from(news && slot != Slot::ROOT));
        Ok(())
    }

    /// Returns the state of a file's content: with an object if a clone was kept, without
    /// otherwise.
    fn content(&self, node: &BaselineNode) -> DataState {
        let data = |object| DataState {
            object,
            size: node.attr.stat.size,
            provisional: false,
        };
        let kept = self
            .baselines
            .kept
            .take_kept(node)
            .inspect_err(|errno| tracing::warn!(%errno, "content that was kept cannot be had"));
        data(kept.unwrap_or(None))
    }
}
