//! Incremental update of a baseline from the changes since it was written, without a walk.
//!
//! The history provides the changed keys ([`crate::history::since`]). Their current state is read:
//! a name through its directory, an inode by its slot. A directory that is not in the baseline, or
//! whose changes made no records, is walked. An inode that is not found and not known to be removed
//! is at an unknown name; the whole tree is then walked.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::BaselineUpdate;
use crate::history::present::Trail;
use crate::history::since::ChangedSince;
use crate::live::inodes::{at_place, is_elsewhere, names_of, target_of_fd};
use crate::live::nodes::generation_of;
use crate::live::saved_content::ContentSaver;
use ckptfs_store::Address;
use ckptfs_store::baseline::{Baseline, BaselineNode};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{AttrState, Child};
use ckptfs_sys::{self as sys, Errno, Kind, SysResult};

/// Number of changes above which a walk is as cheap and needs less memory.
const CHANGES_MAX: usize = 300_000;

struct IncrementalUpdate<'a> {
    baselines: &'a BaselineUpdate,
    baseline: Baseline,
    since: ChangedSince,
    keeper: Option<&'a ContentSaver<'a>>,
    /// The tree is served.
    served: bool,
    /// Inodes already read.
    seen: HashSet<Slot>,
    /// New directories already walked.
    walked: HashSet<Slot>,
}

impl BaselineUpdate {
    /// Updates the baseline so that it is valid while the journal ends at `end`. Without `end` the
    /// tree is served. Returns the approximate number of files in the old baseline. Returns `None`
    /// if no usable baseline exists and a walk is required.
    ///
    /// # Errors
    /// ENOSPC, EIO.
    pub(in crate::live) fn advance_baseline(
        &self,
        end: Option<Address>,
        keeper: Option<&ContentSaver<'_>>,
    ) -> SysResult<Option<u64>> {
        let layout = &self.timeline.store().layout;
        let Some(since) = self.timeline.baseline.changed_since() else {
            return Ok(None);
        };
        let baseline = match Baseline::open_any(layout) {
            Ok(Some(baseline)) => baseline,
            Ok(None) => return Ok(None),
            Err(error) => {
                tracing::warn!(%error, "the baseline cannot be read; the tree is walked");
                return Ok(None);
            }
        };
        if !self.timeline.baseline.begin_baseline() {
            return Ok(None);
        }
        let files = baseline.files().unwrap_or(0);
        let mut advance = IncrementalUpdate {
            baselines: self,
            baseline,
            since,
            keeper,
            served: end.is_none(),
            seen: HashSet::new(),
            walked: HashSet::new(),
        };
        let advanced = advance.all().and_then(|()| {
            let mut baseline = advance.baseline;
            baseline
                .changes
                .set_gone(&self.timeline.baseline.gone_now());
            self.kept.unsettle_kept()?;
            match end {
                Some(end) => baseline.write(layout, end),
                None => baseline
                    .write_changes(layout, None)
                    .map(|()| baseline.changes.len()),
            }
            .map_err(Errno::from)
        });
        self.timeline.baseline.end_baseline(advanced.ok());
        match advanced {
            Err(errno) if errno.is_no_room() || errno == Errno::E2BIG => Err(errno),
            Err(errno) => {
                tracing::debug!(%errno, "the baseline cannot be brought up to date; the tree is walked");
                Ok(None)
            }
            Ok(_) => Ok(Some(files)),
        }
    }

    /// In a test: compares the result with a walk, and writes the differences to a file that the
    /// test reads.
    pub(in crate::live) fn check_advanced(&self, end: Address) -> SysResult<()> {
        if !sys::host::left_out("baseline-trust") {
            return Ok(());
        }
        let layout = &self.timeline.store().layout;
        let baseline = Baseline::open(layout, end)?.ok_or(Errno::ENODATA)?;
        let wrong = self.differing(&baseline)?;
        let lines = if wrong.is_empty() {
            "right\n".to_owned()
        } else {
            wrong.join("\n")
        };
        let (name, how) = (
            b"baseline.compared",
            sys::Access {
                truncate: true,
                ..sys::Access::READ_WRITE
            },
        );
        let file = sys::create_file_at(layout.dir(), name, how, 0o600)
            .or_else(|_| sys::open_file_at(layout.dir(), name, how))?;
        sys::write_all_at(&file, lines.as_bytes(), 0)
    }

    /// Returns the differences between the baseline and a walk.
    fn differing(&self, baseline: &Baseline) -> SysResult<Vec<String>> {
        let path = |trail: &Trail| String::from_utf8_lossy(&trail.path()).into_owned();
        let mut wrong = Vec::new();
        let root = self.inodes.root_node()?;
        if is_other(&root, &baseline.root()?) {
            wrong.push("the root".to_owned());
        }
        let mut open = VecDeque::from([(Trail::root(), baseline.root()?)]);
        while let Some((trail, node)) = open.pop_front() {
            let fd = self.inodes.dir(&trail)?;
            let mut known: BTreeMap<Name, BaselineNode> = match baseline.names(&node) {
                Ok(names) => names.into_iter().collect(),
                Err(error) => {
                    wrong.push(format!("{}: {error}", path(&trail)));
                    continue;
                }
            };
            for name in names_of(trail.slot, &fd)? {
                let Ok(now) = self.inodes.node_at(&fd, &name) else {
                    continue;
                };
                let trail = trail.step(&name, now.child.slot);
                match known.remove(&name) {
                    Some(then) if !is_other(&now, &then) => {
                        if now.child.kind == Kind::Dir {
                            open.push_back((trail, then));
                        }
                    }
                    then => wrong.push(format!("{}: {now:?}, and not {then:?}", path(&trail))),
                }
            }
            let gone = |name: &Name| format!("{}/{name:?} is gone", path(&trail));
            wrong.extend(known.keys().map(gone));
        }
        Ok(wrong)
    }
}

impl IncrementalUpdate<'_> {
    fn all(&mut self) -> SysResult<()> {
        let names = std::mem::take(&mut self.since.names);
        self.doubt_old(&names)?;
        for (dir, name) in names {
            if dir == Slot::STAGING {
                continue;
            }
            match self.baselines.inodes.dir(dir) {
                Ok(fd) => self.name(dir, &fd, &name)?,
                Err(errno) if is_elsewhere(errno) && self.since.gone.contains(&dir) => {}
                Err(errno) => return Err(errno),
            }
        }
        for slot in std::mem::take(&mut self.since.nodes) {
            if slot != Slot::STAGING && !self.seen.contains(&slot) {
                self.inode(slot)?;
            }
        }
        Ok(())
    }

    /// Marks the clones of inodes that were at these names as possibly obsolete. Called before any
    /// update: a reused inode number would lead to its new inode, possibly of another type.
    fn doubt_old(&self, names: &BTreeSet<(Slot, Name)>) -> SysResult<()> {
        let Some(keeper) = self.keeper else {
            return Ok(());
        };
        let known = |dir: &Slot| *dir != Slot::STAGING && !self.since.gone.contains(dir);
        for (dir, name) in names.iter().filter(|(dir, _)| known(dir)) {
            let old = self.baseline.at(*dir, name)?;
            old.iter().for_each(|old| keeper.doubt(old));
        }
        Ok(())
    }

    /// Updates the entry of a name.
    fn name(&mut self, dir: Slot, fd: &OwnedFd, name: &Name) -> SysResult<()> {
        let node = match self.baselines.inodes.node_at(fd, name) {
            // No inode, or another filesystem, which is not part of the tree.
            Err(Errno::ENOENT | Errno::EXDEV) => {
                return self
                    .baseline
                    .changes
                    .put_name(dir, name, None)
                    .map_err(Errno::from);
            }
            node => node?,
        };
        if self.put_at(dir, fd, name, &node)? {
            self.walk(at_place(dir).step(name, node.child.slot), &node)?;
        }
        Ok(())
    }

    /// Updates an entry and its inode. Returns `true` for a directory that must be walked.
    fn put_at(
        &mut self,
        dir: Slot,
        fd: &OwnedFd,
        name: &Name,
        node: &BaselineNode,
    ) -> SysResult<bool> {
        self.baseline
            .changes
            .put_name(dir, name, Some(node.child))?;
        self.put(node)?;
        if let Some(keeper) = self.keeper {
            keeper.keep(fd, name, node);
        }
        Ok(node.child.kind == Kind::Dir
            && !self.knows(node)?
            && self.walked.insert(node.child.slot))
    }

    fn put(&mut self, node: &BaselineNode) -> SysResult<()> {
        self.seen.insert(node.child.slot);
        if self.baseline.changes.len() > CHANGES_MAX {
            return Err(Errno::EFBIG);
        }
        self.baseline.changes.put_inode(node).map_err(Errno::from)
    }

    /// Returns whether the baseline has the names of this directory, except for recorded changes.
    fn knows(&self, node: &BaselineNode) -> SysResult<bool> {
        let (slot, generation) = (node.child.slot, generation_of(&node.attr.stat));
        if generation == 0 || self.since.unsure.contains(&slot) {
            return Ok(false);
        }
        Ok(self.baseline.generation(slot)? == Some(generation))
    }

    /// Adds all contents of a new directory.
    fn walk(&mut self, trail: Arc<Trail>, node: &BaselineNode) -> SysResult<()> {
        let mut open = VecDeque::from([(trail, generation_of(&node.attr.stat))]);
        while let Some((trail, generation)) = open.pop_front() {
            let fd = match self.baselines.inodes.dir(&trail) {
                // It was moved, and the record of its rename leads to its new place.
                Err(errno) if is_elsewhere(errno) && self.served => {
                    if let Some(up) = &trail.up {
                        self.baselines
                            .timeline
                            .baseline
                            .note_missed(up.slot, &trail.name);
                    }
                    continue;
                }
                fd => fd?,
            };
            self.baselines.inodes.note_born(trail.slot);
            self.baseline.changes.put_whole(trail.slot, generation);
            for name in names_of(trail.slot, &fd)? {
                let node = match self.baselines.inodes.node_at(&fd, &name) {
                    Err(Errno::EXDEV) => continue,
                    Err(Errno::ENOENT) if self.served => {
                        self.baselines
                            .timeline
                            .baseline
                            .note_missed(trail.slot, &name);
                        continue;
                    }
                    node => node?,
                };
                if self.put_at(trail.slot, &fd, &name, &node)? {
                    open.push_back((
                        trail.step(&name, node.child.slot),
                        generation_of(&node.attr.stat),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Updates an inode whose names have not changed.
    fn inode(&mut self, slot: Slot) -> SysResult<()> {
        if self.baselines.nodes.is_dead(slot) {
            return Ok(());
        }
        let fd = match self.baselines.inodes.fd(slot) {
            Err(errno) if is_elsewhere(errno) && self.since.gone.contains(&slot) => return Ok(()),
            fd => fd?,
        };
        let stat = sys::stat_fd(&fd)?;
        if stat.nlink == 0 {
            return Ok(());
        }
        let target = target_of_fd(&stat, &fd)?;
        let node = BaselineNode {
            child: Child {
                slot,
                kind: stat.kind,
            },
            attr: AttrState { stat, target },
            xattrs: sys::all_xattrs(&fd)?,
            number: 0,
        };
        if !ckptfs_store::baseline::fits(&node.xattrs) {
            return Err(Errno::E2BIG);
        }
        self.put(&node)?;
        if let Some(keeper) = self.keeper {
            keeper.keep_inode(&fd, &node);
        }
        Ok(())
    }
}

/// Compares all fields except the access time and block count, which change without a change of the
/// file.
fn is_other(now: &BaselineNode, then: &BaselineNode) -> bool {
    let same = |node: &BaselineNode| {
        let mut stat = node.attr.stat;
        (stat.atime, stat.blocks) = (stat.mtime, 0);
        (
            node.child,
            AttrState {
                stat,
                target: node.attr.target.clone(),
            },
            node.xattrs.clone(),
        )
    };
    same(now) != same(then)
}
