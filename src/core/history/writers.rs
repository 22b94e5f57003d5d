//! Writers of each path between two states, from the [`attribution`](super::attribution) records.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::append::fault;
use super::attribution::OTHERS;
use super::present::Trail;
use super::timeline::Timeline;
use ckptfs_api::{CheckpointId, Epoch};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{NameTouch, Place, Process, ProcessChange, ProcessNumber, Record, Undo};
use ckptfs_sys::{Errno, SysResult};

/// A process among the [`Writers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChangeWriter {
    /// Index in [`Writers::processes`].
    One(usize),
    /// Further processes, not recorded separately.
    Others,
}

/// A set of writers.
pub type WriterSet = BTreeSet<ChangeWriter>;

/// A process, with all its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterProcess {
    /// Its properties at its first change.
    pub process: Process,
    /// Its names at its changes, the first one first.
    pub names: Vec<String>,
    /// Its control groups.
    pub cgroups: Vec<String>,
    /// The users for whom it made changes.
    pub uids: Vec<u32>,
}

#[derive(Debug)]
struct NameWriters {
    /// All writers.
    all: WriterSet,
    /// The writers since it has its current target.
    fresh: WriterSet,
    last: ChangeWriter,
    how: NameTouch,
}

#[derive(Debug)]
struct NodeTouch {
    by: ChangeWriter,
    data: bool,
    epoch: Epoch,
    generation: u32,
}

#[derive(Debug, Default)]
struct NodeWriters {
    touches: Vec<NodeTouch>,
    /// How often its number was reused.
    generation: u32,
    made: Option<ChangeWriter>,
}

/// Paths open for writing with their processes, and the number of further ones.
pub type OpenForWriting = (Vec<(Vec<u8>, Process)>, u64);

/// Writers in a range of the journal. See the module.
#[derive(Debug, Default)]
pub struct Writers {
    /// The processes.
    pub processes: Vec<WriterProcess>,
    /// Index of each process, and its properties until its first change. A process recorded only as
    /// a parent has no name in the list.
    numbers: HashMap<ProcessNumber, (usize, Option<Process>)>,
    people: HashMap<(u32, u64), usize>,
    names: HashMap<Slot, HashMap<Name, NameWriters>>,
    nodes: HashMap<Slot, NodeWriters>,
    homes: HashMap<Slot, Place>,
}

impl Timeline {
    /// Returns the writers after checkpoint `after`, up to checkpoint `upto` or until now. Reads
    /// that part of the journal: O(changes).
    ///
    /// # Errors
    /// ENOENT if a checkpoint does not exist; EIO if the journal cannot be read.
    pub fn writers(&self, after: CheckpointId, upto: Option<CheckpointId>) -> SysResult<Writers> {
        let from = self.catalogue.address(after).ok_or(Errno::ENOENT)?;
        let to = upto
            .map(|id| self.catalogue.address(id).ok_or(Errno::ENOENT))
            .transpose()?;
        let mut writers = Writers::default();
        let mut epoch = after.epoch().next();
        for frame in self.store().journal.scan(from, to) {
            match frame.map_err(fault)?.1 {
                Record::Touched { processes, touches } => {
                    processes
                        .into_iter()
                        .for_each(|(number, process)| writers.meet(number, process));
                    touches
                        .into_iter()
                        .for_each(|touch| writers.touch(touch, epoch));
                }
                Record::Undo { undo, .. } => {
                    undo.into_iter().for_each(|item| writers.undo(item, epoch))
                }
                Record::Void { epoch, slot } => {
                    writers.void(slot, |touch| touch.data && touch.epoch == epoch)
                }
                Record::Checkpoint(made) if made.id > after => epoch = made.id.epoch().next(),
                _ => {}
            }
        }
        Ok(writers)
    }

    /// Returns the files recorded as open for writing at a checkpoint, and the number of further
    /// ones.
    ///
    /// # Errors
    /// EIO if the journal cannot be read.
    pub fn open_at(&self, id: CheckpointId) -> SysResult<Option<OpenForWriting>> {
        let from = self.catalogue.address(id).ok_or(Errno::ENOENT)?;
        for frame in self.store().journal.scan(from, None) {
            match frame.map_err(fault)?.1 {
                Record::OpenAt { id: of, open, more } if of == id => return Ok(Some((open, more))),
                // It is recorded before the next checkpoint can be made.
                Record::Checkpoint(later) if later.id > id => break,
                _ => {}
            }
        }
        Ok(None)
    }
}

impl Writers {
    fn meet(&mut self, number: ProcessNumber, process: Process) {
        let at = *self
            .people
            .entry((process.pid, process.start))
            .or_insert(self.processes.len());
        if at == self.processes.len() {
            self.processes.push(WriterProcess {
                process: process.clone(),
                names: Vec::new(),
                cgroups: Vec::new(),
                uids: Vec::new(),
            });
        }
        self.numbers.insert(number, (at, Some(process)));
    }

    /// Adds the descendants of processes, as far as recorded.
    pub fn add_children(&self, of: &mut HashSet<usize>) {
        let mut by_pid: HashMap<u32, Vec<usize>> = HashMap::new();
        for (at, known) in self.processes.iter().enumerate() {
            by_pid.entry(known.process.pid).or_default().push(at);
        }
        let parent = |at: &usize| {
            let child = &self.processes.get(*at)?.process;
            let begun = |at: &usize| {
                self.processes
                    .get(*at)
                    .map(|known| known.process.start)
                    .filter(|start| *start <= child.start)
            };
            let same_number = by_pid
                .get(&child.parent)
                .filter(|_| child.parent != 0 && child.parent != child.pid)?;
            same_number
                .iter()
                .copied()
                .filter(|at| begun(at).is_some())
                .max_by_key(begun)
        };
        let descends = |at: &usize| {
            std::iter::successors(Some(*at), parent)
                .take(self.processes.len())
                .any(|above| of.contains(&above))
        };
        let children: Vec<usize> = (0..self.processes.len()).filter(descends).collect();
        of.extend(children);
    }

    fn by(&mut self, number: ProcessNumber) -> ChangeWriter {
        let Some((at, new)) = self.numbers.get_mut(&number).filter(|_| number != OTHERS) else {
            return ChangeWriter::Others;
        };
        if let (Some(process), Some(known)) = (new.take(), self.processes.get_mut(*at)) {
            if known.names.is_empty() {
                known.process = process.clone();
            }
            if !known.uids.contains(&process.uid) {
                known.uids.push(process.uid);
            }
            for (list, value) in [
                (&mut known.names, process.name),
                (&mut known.cgroups, process.cgroup),
            ] {
                if !value.is_empty() && !list.contains(&value) {
                    list.push(value);
                }
            }
        }
        ChangeWriter::One(*at)
    }

    fn touch(&mut self, touch: ProcessChange, epoch: Epoch) {
        match touch {
            ProcessChange::Name { by, dir, name, how } => {
                let by = self.by(by);
                let known = self
                    .names
                    .entry(dir)
                    .or_default()
                    .entry(name)
                    .or_insert_with(|| NameWriters {
                        all: WriterSet::new(),
                        fresh: WriterSet::new(),
                        last: by,
                        how,
                    });
                if how != NameTouch::Removed {
                    known.fresh.clear();
                    (known.last, known.how) = (by, how);
                }
                known.fresh.insert(by);
                known.all.insert(by);
            }
            ProcessChange::Data { by, slot } => self.touch_node(slot, by, true, epoch),
            ProcessChange::Attr { by, slot } => self.touch_node(slot, by, false, epoch),
            ProcessChange::Made { by, slot } => {
                let by = self.by(by);
                self.nodes.entry(slot).or_default().made = Some(by);
            }
            ProcessChange::Gone { slot } => {
                let node = self.nodes.entry(slot).or_default();
                (node.generation, node.made) = (node.generation + 1, None);
            }
            ProcessChange::Left { by, slot } => {
                let by = self.by(by);
                self.void(slot, |touch| {
                    touch.data && touch.epoch == epoch && touch.by == by
                });
            }
        }
    }

    fn touch_node(&mut self, slot: Slot, by: ProcessNumber, data: bool, epoch: Epoch) {
        let by = self.by(by);
        let node = self.nodes.entry(slot).or_default();
        let generation = node.generation;
        node.touches.push(NodeTouch {
            by,
            data,
            epoch,
            generation,
        });
    }

    fn void(&mut self, slot: Slot, which: impl Fn(&NodeTouch) -> bool) {
        if let Some(node) = self.nodes.get_mut(&slot) {
            node.touches
                .retain(|touch| touch.generation != node.generation || !which(touch));
        }
    }

    /// The writers of a name are writers of its former target, which may be found under another
    /// name later.
    fn undo(&mut self, undo: Undo, epoch: Epoch) {
        match undo {
            Undo::Home { slot, before } => {
                self.homes.insert(slot, before);
            }
            Undo::Entry {
                dir,
                name,
                before: Some(child),
            } => {
                let named = self.names.get(&dir).and_then(|names| names.get(&name));
                let (owners, made) = match named {
                    Some(named) => (
                        named.fresh.clone(),
                        (named.how == NameTouch::Made).then_some(named.last),
                    ),
                    None => {
                        let maker = self.maker_of(dir);
                        (maker.into_iter().collect(), maker)
                    }
                };
                let node = self.nodes.entry(child.slot).or_default();
                let generation = node.generation;
                node.made = made.or(node.made);
                node.touches.extend(owners.into_iter().map(|by| NodeTouch {
                    by,
                    data: false,
                    epoch,
                    generation,
                }));
            }
            _ => {}
        }
    }

    /// Returns the creator of a directory created in this range, by the recorded places.
    fn maker_of(&self, dir: Slot) -> Option<ChangeWriter> {
        let mut at = dir;
        for _ in 0..self.homes.len() {
            if let Some(made) = self.nodes.get(&at).and_then(|node| node.made) {
                return Some(made);
            }
            let place = self.homes.get(&at)?;
            match self.named(place.parent, &place.name) {
                Some(named) => return (named.how == NameTouch::Made).then_some(named.last),
                None => at = place.parent,
            }
        }
        None
    }

    /// Returns the creator of the directory at a trail, if it was created in this range.
    fn maker(&self, dir: &Trail) -> Option<ChangeWriter> {
        let mut at = dir;
        while let Some(up) = &at.up {
            if let Some(made) = self.nodes.get(&at.slot).and_then(|node| node.made) {
                return Some(made);
            }
            if let Some(named) = self.named(up.slot, &at.name) {
                return (named.how == NameTouch::Made).then_some(named.last);
            }
            at = up;
        }
        None
    }

    fn named(&self, dir: Slot, name: &Name) -> Option<&NameWriters> {
        self.names.get(&dir).and_then(|names| names.get(name))
    }

    /// Returns the writers of an inode number, for its first or its last generation in this range.
    fn node(&self, slot: Slot, last: bool) -> WriterSet {
        let Some(node) = self.nodes.get(&slot) else {
            return WriterSet::new();
        };
        let life = if last { node.generation } else { 0 };
        let touches = node
            .touches
            .iter()
            .filter(|touch| touch.generation == life)
            .map(|touch| touch.by);
        touches.chain(node.made.filter(|_| last)).collect()
    }

    /// Returns the writers of a path, by its trails in the older and the newer state. Empty if
    /// unknown.
    pub fn of(&self, old: Option<&Arc<Trail>>, new: Option<&Arc<Trail>>) -> WriterSet {
        let mut found = WriterSet::new();
        if let Some(old) = old {
            found.extend(self.node(old.slot, false));
            found.extend(self.by_name(old, |named| &named.all));
        }
        if let Some(new) = new {
            found.extend(self.node(new.slot, true));
            let named = self.by_name(new, |named| {
                if old.is_some() {
                    &named.all
                } else {
                    &named.fresh
                }
            });
            if named.is_empty() && old.is_none_or(|old| old.slot != new.slot) {
                found.extend(new.up.as_deref().and_then(|up| self.maker(up)));
            }
            found.extend(named);
        }
        if found.is_empty() {
            found = self.moved_along(old, new);
        }
        found
    }

    /// Returns all processes that changed the target of a name in this range, including changes
    /// reverted since. Without any, returns those of the nearest parent directory that has some.
    pub fn ever(&self, trail: &Arc<Trail>) -> WriterSet {
        let above = std::iter::successors(Some(trail), |at| at.up.as_ref());
        above
            .map(|at| self.by_name(at, |named| &named.all))
            .find(|found| !found.is_empty())
            .unwrap_or_default()
    }

    fn by_name<'a>(
        &'a self,
        trail: &Trail,
        pick: impl Fn(&'a NameWriters) -> &'a WriterSet,
    ) -> WriterSet {
        let named = trail
            .up
            .as_ref()
            .and_then(|up| self.named(up.slot, &trail.name));
        named.map(|named| pick(named).clone()).unwrap_or_default()
    }

    /// Returns the writers of a path that only moved with a parent directory.
    fn moved_along(&self, old: Option<&Arc<Trail>>, new: Option<&Arc<Trail>>) -> WriterSet {
        let (trail, came) = match (old, new) {
            (Some(old), None) => (old, false),
            (None, Some(new)) => (new, true),
            _ => return WriterSet::new(),
        };
        let mut at = trail.up.as_ref();
        while let Some(dir) = at {
            let named = self.by_name(dir, |named| if came { &named.fresh } else { &named.all });
            if !named.is_empty() {
                return named;
            }
            at = dir.up.as_ref();
        }
        WriterSet::new()
    }
}
