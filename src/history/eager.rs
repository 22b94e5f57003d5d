//! What was captured ahead of need: what files and directories hold that changed in a closed epoch, so that the past does not depend on the live tree.
//!
//! An undo record says what a key held before it changed. What is captured ahead says what it holds, and becomes an undo record when a change is found
//! that nobody recorded: made while nothing was mounted. It stands as long as no undo record of its key was made after it, and is believed only while some
//! checkpoint is kept that is older than it: without any, changes are not recorded, and it would not be known to be stale.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::timeline::{Inner, Timeline, fault};
use crate::store::ids::{CheckpointId, Epoch, Name, ObjectId, Slot};
use crate::store::record::{AttrState, Child, DataState, Kept, Key, Record, Undo};
use crate::store::{Address, Batch, StoreResult};
use crate::sys::{SysResult, Xattrs};

/// What was captured ahead of one inode, as far as it stands.
#[derive(Clone, Debug, Default)]
pub struct AheadNode {
    /// Its attributes; of a directory only if its entries are all here.
    pub attr: Option<AttrState>,
    /// Its extended attributes.
    pub xattrs: Option<Xattrs>,
    /// Its content.
    pub data: Option<DataState>,
    /// Its entries.
    pub entries: BTreeMap<Name, Child>,
}

/// What changed in a stretch of the journal.
#[derive(Debug, Default)]
pub struct Changed {
    /// Inodes of which anything was recorded, with the first epoch in which their attributes were.
    pub nodes: HashMap<Slot, Option<Epoch>>,
    /// Names that were recorded, each in which epoch last.
    pub names: HashMap<(Slot, Name), Epoch>,
}

impl Inner {
    pub(super) fn note_ahead(&mut self, at: Address, upto: Epoch) {
        self.ahead.0.push(at);
        self.ahead.1 = self.ahead.1.max(upto);
    }
}

impl Timeline {
    /// Records what was captured ahead.
    ///
    /// # Errors
    /// As [`Timeline::append`].
    pub fn add_ahead(&self, epoch: Epoch, undo: Vec<Undo>, upto: Epoch) -> SysResult<()> {
        let at = self.write(&[Record::Ahead { epoch, undo, upto }])?;
        let mut inner = self.inner.write();
        at.into_iter().for_each(|at| inner.note_ahead(at, upto));
        Ok(())
    }

    /// Up to which epoch what changed was looked at.
    ///
    /// # Errors
    /// EIO if the index cannot be read.
    pub fn ahead_upto(&self) -> SysResult<Epoch> {
        let memory = self.inner.read().ahead.1;
        Ok(memory.max(self.store.index.ahead_upto().map_err(fault)?))
    }

    /// Objects that were captured ahead of which the index may not know.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn ahead_in_memory(&self) -> SysResult<HashSet<ObjectId>> {
        let places = self.inner.read().ahead.0.clone();
        let mut objects = HashSet::new();
        for at in places {
            if let Record::Ahead { undo, .. } = self.store.journal.read(at).map_err(fault)? {
                objects.extend(undo.into_iter().filter_map(|item| match item {
                    Undo::Data { before, .. } => before.object,
                    _ => None,
                }));
            }
        }
        Ok(objects)
    }

    /// What was captured ahead of each key last, and in which epoch; it may be superseded.
    fn latest_ahead(&self) -> SysResult<HashMap<Key, (Epoch, Undo)>> {
        let mut frames: BTreeMap<Address, Option<HashSet<u16>>> = BTreeMap::new();
        for (at, item) in self.store.index.ahead().map_err(fault)? {
            frames.entry(at).or_insert_with(|| Some(HashSet::new())).get_or_insert_default().insert(item);
        }
        // Those of the tail are read whole: which of their items count is seen from their order.
        for at in self.inner.read().ahead.0.iter() {
            frames.insert(*at, None);
        }
        let mut latest = HashMap::new();
        for (at, items) in frames {
            let Record::Ahead { epoch, undo, .. } = self.store.journal.read(at).map_err(fault)? else { continue };
            for (number, item) in (0_u16..).zip(undo) {
                if items.as_ref().is_none_or(|items| items.contains(&number)) {
                    latest.insert(item.key(), (epoch, item));
                }
            }
        }
        Ok(latest)
    }

    /// Every object that was captured ahead last of a file; it may have become a record's, or be gone.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn ahead_objects(&self) -> SysResult<Vec<(Slot, ObjectId)>> {
        let data = |(_, item)| match item {
            Undo::Data { slot, before } => before.object.map(|object| (slot, object)),
            _ => None,
        };
        Ok(self.latest_ahead()?.into_values().filter_map(data).collect())
    }

    /// All that was captured ahead and stands.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn ahead(&self) -> SysResult<HashMap<Slot, AheadNode>> {
        let oldest = self.stored_ids().first().copied();
        let mut latest = self.latest_ahead()?;
        latest.retain(|_, (epoch, _)| oldest.is_some_and(|oldest| oldest.epoch() < *epoch));
        let mut nodes: HashMap<Slot, AheadNode> = HashMap::new();
        for (key, (epoch, item)) in latest {
            if !matches!(key, Key::Home(_)) && !self.is_recorded_since(&key, epoch)? {
                put(&mut nodes, item);
            }
        }
        Ok(nodes)
    }

    /// Lets go of what was captured ahead and is superseded, as far as the index has it: the records that say so may be left out then.
    ///
    /// # Errors
    /// Those of the journal and the index.
    pub(super) fn forget_superseded(&self) -> StoreResult<()> {
        let index = &self.store.index;
        let mut frames: BTreeMap<Address, HashSet<u16>> = BTreeMap::new();
        for (at, item) in index.ahead()? {
            frames.entry(at).or_default().insert(item);
        }
        let mut superseded = Vec::new();
        for (at, items) in frames {
            let Record::Ahead { epoch, undo, .. } = self.store.journal.read(at)? else { continue };
            for (_, item) in (0_u16..).zip(undo).filter(|(number, _)| items.contains(number)) {
                if matches!(item, Undo::Home { .. }) || self.is_recorded_since(&item.key(), epoch).unwrap_or(true) {
                    superseded.push(item.key());
                }
            }
        }
        index.apply(&mut Batch::forget_ahead(&superseded))
    }

    /// What changed in the closed epochs after `after`, as far as the journal is read: from the newest checkpoint kept before, to the newest of all.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn changed_after(&self, after: Epoch) -> SysResult<Changed> {
        let (from, to) = {
            let inner = self.inner.read();
            let last = |upto: CheckpointId| {
                let of = |known: &BTreeMap<CheckpointId, (Kept, Address)>| known.range(..=upto).next_back().map(|(_, (_, at))| *at);
                of(&inner.checkpoints).max(of(&inner.hidden))
            };
            (last(after.checkpoint()).unwrap_or(self.store.journal.start()), last(CheckpointId(u64::MAX)))
        };
        let mut changed = Changed::default();
        for frame in self.store.journal.scan(from, Some(to.unwrap_or(from))) {
            let Record::Undo { epoch, undo } = frame.map_err(fault)?.1 else { continue };
            for item in undo {
                match item {
                    Undo::Entry { dir, name, .. } => {
                        changed.nodes.entry(dir).or_default();
                        changed.names.insert((dir, name), epoch);
                    }
                    Undo::Attr { slot, .. } => {
                        changed.nodes.entry(slot).or_default().get_or_insert(epoch);
                    }
                    Undo::Xattrs { slot, .. } | Undo::Data { slot, .. } => {
                        changed.nodes.entry(slot).or_default();
                    }
                    Undo::Home { .. } => {}
                }
            }
        }
        Ok(changed)
    }
}

fn put(nodes: &mut HashMap<Slot, AheadNode>, item: Undo) {
    match item {
        Undo::Entry { dir, name, before: Some(child) } => {
            nodes.entry(dir).or_default().entries.insert(name, child);
        }
        Undo::Attr { slot, before } => nodes.entry(slot).or_default().attr = Some(before),
        Undo::Xattrs { slot, before } => nodes.entry(slot).or_default().xattrs = Some(before),
        Undo::Data { slot, before } => nodes.entry(slot).or_default().data = Some(before),
        Undo::Entry { before: None, .. } | Undo::Home { .. } => {}
    }
}
