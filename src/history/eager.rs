//! Captures ahead of need: the state of files and directories that changed in a closed epoch, so
//! that their past does not depend on the live tree.
//!
//! An undo record has the state of a key before a change; a capture ahead has its current state. It
//! becomes an undo record when an unrecorded change is found, which was made while the tree was not
//! mounted. It is valid until an undo record of its key follows, and only while an older checkpoint
//! is stored: without checkpoints changes are not recorded, so staleness could not be detected.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::append::{Appender, fault};
use super::catalogue::Catalogue;
use super::checkpoints::Known;
use super::lookup::Lookup;
use crate::store::ids::{CheckpointId, Epoch, Name, ObjectId, Slot};
use crate::store::record::{AttrState, Child, DataState, Key, Record, Undo};
use crate::store::{Address, Batch, StoreResult};
use crate::sys::lock::RwLock;
use crate::sys::{SysResult, Xattrs};

/// Valid captures ahead of one inode.
#[derive(Clone, Debug, Default)]
pub struct AheadNode {
    /// Attributes; of a directory only if all its entries are included.
    pub attr: Option<AttrState>,
    /// Extended attributes.
    pub xattrs: Option<Xattrs>,
    /// Content.
    pub data: Option<DataState>,
    /// Entries.
    pub entries: BTreeMap<Name, Child>,
}

/// Changes in a range of the journal.
#[derive(Debug, Default)]
pub struct Changed {
    /// Inodes with a record, each with the first epoch that recorded its attributes.
    pub nodes: HashMap<Slot, Option<Epoch>>,
    /// Names with a record, each with the last epoch that recorded it.
    pub names: HashMap<(Slot, Name), Epoch>,
}

/// Records of captures ahead that the index may not contain yet.
#[derive(Debug, Default)]
pub(super) struct Noted {
    at: Vec<Address>,
    /// Last epoch whose changes were examined.
    upto: Epoch,
}

impl Noted {
    /// Adds the record at `at`.
    pub(super) fn note(&mut self, at: Address, upto: Epoch) {
        self.at.push(at);
        self.upto = self.upto.max(upto);
    }
}

/// Captures ahead of need. See the module.
pub struct Ahead {
    journal: Arc<Appender>,
    catalogue: Arc<Catalogue>,
    lookup: Arc<Lookup>,
    /// A leaf lock.
    noted: RwLock<Noted>,
}

impl Ahead {
    pub(super) fn new(
        journal: Arc<Appender>,
        catalogue: Arc<Catalogue>,
        lookup: Arc<Lookup>,
        noted: Noted,
    ) -> Ahead {
        Ahead {
            journal,
            catalogue,
            lookup,
            noted: RwLock::new(noted),
        }
    }

    /// Records captures ahead. On return this survives `kill -9`.
    ///
    /// # Errors
    /// As [`Appender::append`].
    pub fn add(&self, epoch: Epoch, undo: Vec<Undo>, upto: Epoch) -> SysResult<()> {
        let at = self.journal.write(&[Record::Ahead { epoch, undo, upto }])?;
        let mut noted = self.noted.write();
        at.into_iter().for_each(|at| noted.note(at, upto));
        Ok(())
    }

    /// Returns the last epoch whose changes were examined.
    ///
    /// # Errors
    /// EIO if the index cannot be read.
    pub fn upto(&self) -> SysResult<Epoch> {
        let memory = self.noted.read().upto;
        Ok(memory.max(
            self.journal
                .store()
                .index
                .catalogue()
                .ahead_upto()
                .map_err(fault)?,
        ))
    }

    /// Returns the objects captured ahead that the index may not contain.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn in_memory(&self) -> SysResult<HashSet<ObjectId>> {
        let places = self.noted.read().at.clone();
        let mut objects = HashSet::new();
        for at in places {
            if let Record::Ahead { undo, .. } =
                self.journal.store().journal.read(at).map_err(fault)?
            {
                objects.extend(undo.into_iter().filter_map(|item| match item {
                    Undo::Data { before, .. } => before.object,
                    _ => None,
                }));
            }
        }
        Ok(objects)
    }

    /// Returns the last capture ahead of each key, with its epoch. It may be superseded.
    fn latest(&self) -> SysResult<HashMap<Key, (Epoch, Undo)>> {
        let mut frames: BTreeMap<Address, Option<HashSet<u16>>> = BTreeMap::new();
        for (at, item) in self
            .journal
            .store()
            .index
            .catalogue()
            .ahead()
            .map_err(fault)?
        {
            frames
                .entry(at)
                .or_insert_with(|| Some(HashSet::new()))
                .get_or_insert_default()
                .insert(item);
        }
        // Records of the tail are read completely; the order of their items determines which ones
        // count.
        for at in self.noted.read().at.iter() {
            frames.insert(*at, None);
        }
        let mut latest = HashMap::new();
        for (at, items) in frames {
            let Record::Ahead { epoch, undo, .. } =
                self.journal.store().journal.read(at).map_err(fault)?
            else {
                continue;
            };
            for (number, item) in (0_u16..).zip(undo) {
                if items.as_ref().is_none_or(|items| items.contains(&number)) {
                    latest.insert(item.key(), (epoch, item));
                }
            }
        }
        Ok(latest)
    }

    /// Returns the last object captured ahead of each file. It may belong to a record by now, or be
    /// gone.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn objects(&self) -> SysResult<Vec<(Slot, ObjectId)>> {
        let data = |(_, item)| match item {
            Undo::Data { slot, before } => before.object.map(|object| (slot, object)),
            _ => None,
        };
        Ok(self.latest()?.into_values().filter_map(data).collect())
    }

    /// Returns all valid captures ahead.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn standing(&self) -> SysResult<HashMap<Slot, AheadNode>> {
        let oldest = self.catalogue.stored_ids().first().copied();
        let mut latest = self.latest()?;
        latest.retain(|_, (epoch, _)| oldest.is_some_and(|oldest| oldest.epoch() < *epoch));
        let mut nodes: HashMap<Slot, AheadNode> = HashMap::new();
        for (key, (epoch, item)) in latest {
            if !matches!(key, Key::Home(_)) && !self.lookup.is_recorded_since(&key, epoch)? {
                put(&mut nodes, item);
            }
        }
        Ok(nodes)
    }

    /// Removes superseded captures ahead from the index. The records that supersede them may be
    /// omitted afterwards.
    ///
    /// # Errors
    /// Those of the journal and the index.
    pub(super) fn forget_superseded(&self) -> StoreResult<()> {
        let index = &self.journal.store().index;
        let mut frames: BTreeMap<Address, HashSet<u16>> = BTreeMap::new();
        for (at, item) in index.catalogue().ahead()? {
            frames.entry(at).or_default().insert(item);
        }
        let mut superseded = Vec::new();
        for (at, items) in frames {
            let Record::Ahead { epoch, undo, .. } = self.journal.store().journal.read(at)? else {
                continue;
            };
            for (_, item) in (0_u16..)
                .zip(undo)
                .filter(|(number, _)| items.contains(number))
            {
                if matches!(item, Undo::Home { .. })
                    || self
                        .lookup
                        .is_recorded_since(&item.key(), epoch)
                        .unwrap_or(true)
                {
                    superseded.push(item.key());
                }
            }
        }
        index.apply(&mut Batch::forget_ahead(&superseded))
    }

    /// Returns the changes of the closed epochs after `after`, up to the newest stored checkpoint.
    /// Reading begins at the newest checkpoint not after `after`.
    ///
    /// # Errors
    /// EIO if a record cannot be read.
    pub fn changed_after(&self, after: Epoch) -> SysResult<Changed> {
        let (from, to) = {
            let checkpoints = self.catalogue.read();
            let last = |upto: CheckpointId| {
                let of = |known: &Known| known.range(..=upto).next_back().map(|(_, (_, at))| *at);
                of(checkpoints.seen()).max(of(checkpoints.hidden()))
            };
            (
                last(after.checkpoint()).unwrap_or(self.journal.store().journal.start()),
                last(CheckpointId(u64::MAX)),
            )
        };
        let mut changed = Changed::default();
        for frame in self
            .journal
            .store()
            .journal
            .scan(from, Some(to.unwrap_or(from)))
        {
            let Record::Undo { epoch, undo } = frame.map_err(fault)?.1 else {
                continue;
            };
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
        Undo::Entry {
            dir,
            name,
            before: Some(child),
        } => {
            nodes.entry(dir).or_default().entries.insert(name, child);
        }
        Undo::Attr { slot, before } => nodes.entry(slot).or_default().attr = Some(before),
        Undo::Xattrs { slot, before } => nodes.entry(slot).or_default().xattrs = Some(before),
        Undo::Data { slot, before } => nodes.entry(slot).or_default().data = Some(before),
        Undo::Entry { before: None, .. } | Undo::Home { .. } => {}
    }
}
