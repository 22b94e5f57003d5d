//! Keys recorded between two states: the only keys in which the states can differ.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::append::fault;
use super::present::Trail;
use super::state::TreeState;
use super::timeline::Timeline;
use super::view::View;
use ckptfs_api::CheckpointId;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{Record, Undo};
use ckptfs_sys::{Errno, Kind, Stat, SysResult};

/// The keys recorded in a range of the journal.
///
/// Every directory above a change has a record of its place, so a walk from the root along `names`
/// reaches every change.
#[derive(Debug, Default)]
pub struct Touched {
    /// By directory, the names with a recorded entry or with a record below them.
    pub names: HashMap<Slot, BTreeSet<Name>>,
    /// Inodes with a record of attributes, extended attributes or content.
    pub nodes: HashSet<Slot>,
    /// Inodes with a record of content.
    pub data: HashSet<Slot>,
    /// Names with a recorded entry, by directory.
    entries: HashMap<Slot, BTreeSet<Name>>,
    /// Inodes with a record of extended attributes.
    pub xattrs: HashSet<Slot>,
    /// Directories with a recorded name.
    pub dirs: HashSet<Slot>,
    /// Former number of links of each inode (1 for a directory) whose attributes were recorded.
    named: HashMap<Slot, u32>,
}

fn names_of(stat: &Stat) -> u32 {
    if stat.kind == Kind::Dir {
        1
    } else {
        stat.nlink
    }
}

impl Touched {
    fn add(&mut self, undo: Undo) {
        match undo {
            Undo::Entry { dir, name, .. } => {
                self.dirs.insert(dir);
                self.entries.entry(dir).or_default().insert(name.clone());
                self.names.entry(dir).or_default().insert(name);
            }
            Undo::Home { before, .. } => {
                let names = self.names.entry(before.parent).or_default();
                names.insert(before.name);
            }
            Undo::Data { slot, .. } => {
                self.nodes.insert(slot);
                self.data.insert(slot);
            }
            Undo::Attr { slot, before } => {
                self.nodes.insert(slot);
                self.named.entry(slot).or_insert(names_of(&before.stat));
            }
            Undo::Xattrs { slot, .. } => {
                self.nodes.insert(slot);
                self.xattrs.insert(slot);
            }
        }
    }
}

impl Touched {
    /// Whether `old` and `new` are the same inode: they have the same number and the same time of
    /// birth, as far as that is known. The filesystem reuses the number of a removed inode, and
    /// the names created in a new directory have no record, so `names` does not list them.
    pub fn is_one(
        &self,
        (from, old): (&View<'_>, &Arc<Trail>),
        (to, new): (&View<'_>, &Arc<Trail>),
    ) -> bool {
        if old.slot != new.slot || !self.nodes.contains(&old.slot) {
            return old.slot == new.slot;
        }
        let birth = |view: &View<'_>, way| view.attr(way).ok()?.stat.btime;
        let births = birth(from, old).zip(birth(to, new));
        births.is_none_or(|(old, new)| old == new)
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.nodes.is_empty()
    }

    /// Whether the changes of two sides are disjoint: neither side changed an inode that the other
    /// one changed, or a name that leads to such an inode.
    pub fn is_apart_from(&self, other: &Touched) -> bool {
        let leads = |one: &Touched, other: &Touched| {
            one.entries.iter().any(|(dir, names)| {
                let there = other.names.get(dir);
                there.is_some_and(|there| !there.is_disjoint(names))
            })
        };
        self.nodes.is_disjoint(&other.nodes) && !leads(self, other) && !leads(other, self)
    }

    /// Adds the names of hard links that have no record: a file is recorded under the names by
    /// which it was seen, and it may have more. Walks the whole tree of `before`, the older state,
    /// but only if a changed file has fewer recorded names there than links.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn add_unseen_links(&mut self, timeline: &Timeline, before: &View<'_>) -> SysResult<()> {
        let TreeState::At(id) = before.state() else {
            return Ok(());
        };
        let mut wanted = HashMap::new();
        for slot in &self.nodes {
            let named = match self.named.get(slot) {
                Some(named) => *named,
                None => timeline
                    .lookup
                    .attr_at(*slot, id)?
                    .map_or(1, |attr| names_of(&attr.before.stat)),
            };
            if named > 1 {
                wanted.insert(*slot, named);
            }
        }
        self.subtract_recorded_names(before, &mut wanted);
        if wanted.is_empty() {
            return Ok(());
        }
        let (mut open, mut listed) = (vec![Trail::root()], HashSet::new());
        while let Some(dir) = open.pop() {
            // A forged directory can have many places, and the number of paths to it can be
            // unbounded.
            if !listed.insert(dir.slot) {
                continue;
            }
            // An unreadable directory is reported by the comparison.
            for (name, child) in before.told(before.list(&dir))?.unwrap_or_default() {
                if child.kind == Kind::Dir {
                    open.push(dir.step(&name, child.slot));
                } else if wanted.contains_key(&child.slot) {
                    self.names.entry(dir.slot).or_default().insert(name);
                    self.add_way(&dir);
                }
            }
        }
        Ok(())
    }

    /// Subtracts from the number of links of each file in `wanted` the recorded names that led to
    /// it in `before`, and removes the files that have no other. A recorded name may have led to
    /// the file later only, in a directory that `before` does not have.
    fn subtract_recorded_names(&self, before: &View<'_>, wanted: &mut HashMap<Slot, u32>) {
        let (mut open, mut walked) = (vec![Trail::root()], HashSet::new());
        while let Some(dir) = open.pop()
            && !wanted.is_empty()
        {
            let Some(names) = self.names.get(&dir.slot) else {
                continue;
            };
            if !walked.insert(dir.slot) {
                continue;
            }
            for (child, way) in before.steps(&dir, names).into_iter().flatten().flatten() {
                if child.kind == Kind::Dir {
                    open.push(way);
                } else if let Some(left) = wanted.get_mut(&child.slot) {
                    *left = left.saturating_sub(1);
                    if *left == 0 {
                        wanted.remove(&child.slot);
                    }
                }
            }
        }
    }

    /// Adds the names on the path to a directory.
    fn add_way(&mut self, dir: &Arc<Trail>) {
        let mut at = dir;
        while let Some(up) = &at.up {
            self.names
                .entry(up.slot)
                .or_default()
                .insert(at.name.clone());
            at = up;
        }
    }
}

impl Timeline {
    /// Returns the keys recorded after checkpoint `after`, up to checkpoint `upto` or until now.
    /// Reads that part of the journal: O(changes).
    ///
    /// # Errors
    /// ENOENT if a checkpoint does not exist; EIO if the journal cannot be read.
    pub fn touched(&self, after: CheckpointId, upto: Option<CheckpointId>) -> SysResult<Touched> {
        let from = self.catalogue.address(after).ok_or(Errno::ENOENT)?;
        let to = upto
            .map(|id| self.catalogue.address(id).ok_or(Errno::ENOENT))
            .transpose()?;
        let mut touched = Touched::default();
        for frame in self.store().journal.scan(from, to) {
            let (_, record) = frame.map_err(fault)?;
            if let Record::Undo { undo, .. } = record {
                undo.into_iter().for_each(|item| touched.add(item));
            }
        }
        Ok(touched)
    }
}
