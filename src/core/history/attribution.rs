//! Attribution of changes to processes: a record in the journal precedes the change, once per
//! process, object and epoch.
//!
//! The handler of a request names the process ([`Author`]), and the live tree the object about to
//! change (`Processes`). Information not yet recorded in the open epoch goes into the same append
//! as the undo records, or into an append of its own without undo records. It therefore survives
//! `kill -9` whenever the change does.
//!
//! **Not recorded** is information that can be inferred: a file is attributed to its creator, and
//! the names in a directory created in this epoch to the creator of the directory. An inode created
//! and removed within one epoch leaves no record.
//!
//! The table belongs to the open epoch. The author and its staged touches are passed to the code
//! that appends the records.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{NameTouch, Process, ProcessChange, ProcessNumber, Record};

/// Maximum number of processes recorded for one object; further ones are recorded as [`OTHERS`].
pub const TOUCHERS_MAX: usize = 8;
/// Number of all processes beyond the maximum.
pub const OTHERS: ProcessNumber = 0;

/// A process with its number in the journal.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NumberedProcess {
    /// The number.
    pub number: ProcessNumber,
    /// The process.
    pub process: Process,
    /// Its parent process, if that was alive when this process was first seen.
    pub parent: Option<Arc<NumberedProcess>>,
}

impl NumberedProcess {
    /// Returns this process and its ancestors, up to the first one already in `told`. Every process
    /// is recorded with its parent.
    fn untold(
        self: &Arc<NumberedProcess>,
        told: &HashSet<ProcessNumber>,
    ) -> Vec<(ProcessNumber, Process)> {
        let line = std::iter::successors(Some(self), |one| one.parent.as_ref());
        line.take_while(|one| !told.contains(&one.number))
            .map(|one| (one.number, one.process.clone()))
            .collect()
    }
}

/// The process for which a request or verb makes a change, and its staged touches. The default is
/// no process; its changes are not attributed.
#[derive(Debug, Default)]
pub struct Author {
    by: Option<Arc<NumberedProcess>>,
    /// Touches for the next record.
    staged: RefCell<Vec<ProcessChange>>,
}

impl Author {
    /// Creates the author for a process; `None`: no process.
    pub fn new(by: Option<Arc<NumberedProcess>>) -> Author {
        Author {
            by,
            staged: RefCell::default(),
        }
    }

    /// Returns the process.
    pub fn process(&self) -> Option<&Arc<NumberedProcess>> {
        self.by.as_ref()
    }

    pub(super) fn number(&self) -> Option<ProcessNumber> {
        self.by.as_ref().map(|known| known.number)
    }

    /// Stages a touch for the next record.
    pub(super) fn stage(&self, touch: ProcessChange) {
        self.staged.borrow_mut().push(touch);
    }

    pub(super) fn has_staged(&self) -> bool {
        !self.staged.borrow().is_empty()
    }

    /// Returns the record of the staged touches, with the process if it is not recorded in this
    /// epoch.
    pub(super) fn take_staged(&self, known: &TouchTable) -> Option<Record> {
        let touches = self.staged.take();
        if touches.is_empty() {
            return None;
        }
        Some(Record::Touched {
            processes: self.by.as_ref()?.untold(&known.told),
            touches,
        })
    }
}

/// Processes that changed a name.
#[derive(Clone, Debug, Default)]
struct NameTouches {
    all: Vec<ProcessNumber>,
    /// The process that set its current target.
    fresh: ProcessNumber,
}

/// Attribution recorded in the open epoch.
#[derive(Clone, Debug, Default)]
pub struct TouchTable {
    /// Processes recorded in this epoch.
    told: HashSet<ProcessNumber>,
    names: HashMap<Slot, HashMap<Name, NameTouches>>,
    data: HashMap<Slot, Vec<ProcessNumber>>,
    attrs: HashMap<Slot, Vec<ProcessNumber>>,
}

/// Returns the number under which to record a touch; `None` if it needs no record.
fn news(known: Option<&Vec<ProcessNumber>>, by: ProcessNumber) -> Option<ProcessNumber> {
    let known = known.map(Vec::as_slice).unwrap_or_default();
    if known.contains(&by) || known.contains(&OTHERS) {
        return None;
    }
    Some(if known.len() < TOUCHERS_MAX {
        by
    } else {
        OTHERS
    })
}

fn put(set: &mut Vec<ProcessNumber>, by: ProcessNumber) {
    if !set.contains(&by) {
        set.push(by);
    }
}

impl TouchTable {
    pub(super) fn add(&mut self, touch: ProcessChange) {
        match touch {
            ProcessChange::Name { by, dir, name, how } => {
                let known = self.names.entry(dir).or_default().entry(name).or_default();
                put(&mut known.all, by);
                if how != NameTouch::Removed {
                    known.fresh = by;
                }
            }
            ProcessChange::Data { by, slot } => put(self.data.entry(slot).or_default(), by),
            ProcessChange::Attr { by, slot } => put(self.attrs.entry(slot).or_default(), by),
            ProcessChange::Made { .. } => {}
            ProcessChange::Gone { slot } => {
                self.data.remove(&slot);
                self.attrs.remove(&slot);
            }
            ProcessChange::Left { by, slot } => self.left(slot, by),
        }
    }

    fn left(&mut self, slot: Slot, by: ProcessNumber) {
        if let Some(set) = self.data.get_mut(&slot) {
            set.retain(|known| *known != by);
        }
    }

    /// Adds an appended record.
    pub(super) fn take(
        &mut self,
        processes: &[(ProcessNumber, Process)],
        touches: Vec<ProcessChange>,
    ) {
        self.told
            .extend(processes.iter().map(|(number, _)| *number));
        touches.into_iter().for_each(|touch| self.add(touch));
    }

    /// Returns the number under which to record a change of a name; `None` if it needs no record.
    /// `is_maker` states that the process created the directory.
    pub(super) fn name_news(
        &self,
        dir: Slot,
        name: &Name,
        how: NameTouch,
        by: ProcessNumber,
        is_maker: bool,
    ) -> Option<ProcessNumber> {
        let known = self.names.get(&dir).and_then(|names| names.get(name));
        if known.is_none() && is_maker {
            return None;
        }
        let again = how != NameTouch::Removed && known.is_some_and(|known| known.fresh != by);
        let again = || (again && known.is_some_and(|known| known.all.contains(&by))).then_some(by);
        news(known.map(|known| &known.all), by).or_else(again)
    }

    /// As `name_news`, for a change of content.
    pub(super) fn data_news(&self, slot: Slot, by: ProcessNumber) -> Option<ProcessNumber> {
        news(self.data.get(&slot), by)
    }

    /// As `name_news`, for a change of attributes.
    pub(super) fn attr_news(&self, slot: Slot, by: ProcessNumber) -> Option<ProcessNumber> {
        news(self.attrs.get(&slot), by)
    }

    /// Whether a process is recorded as a possible writer of a file.
    pub(super) fn may_have_written(&self, slot: Slot, by: ProcessNumber) -> bool {
        self.data.get(&slot).is_some_and(|set| set.contains(&by))
    }

    /// Whether this process is recorded in this epoch.
    pub(super) fn has_told(&self, number: ProcessNumber) -> bool {
        self.told.contains(&number)
    }

    /// Removes the recorded writers of a file that was not written.
    pub(super) fn void(&mut self, slot: Slot) {
        self.data.remove(&slot);
    }

    /// Whether the open epoch has a recorded change of this inode.
    pub(super) fn knows(&self, slot: Slot) -> bool {
        self.data.contains_key(&slot) || self.attrs.contains_key(&slot)
    }
}

/// Returns the record of the processes that have files open for writing when an epoch begins;
/// `None` if no file is open.
pub(super) fn open_ones(open: &[(Slot, Arc<NumberedProcess>)]) -> Option<Record> {
    let mut told = HashSet::new();
    let mut processes = Vec::new();
    for (_, by) in open {
        let untold = by.untold(&told);
        told.extend(untold.iter().map(|(number, _)| *number));
        processes.extend(untold);
    }
    let touches = open
        .iter()
        .map(|(slot, by)| ProcessChange::Data {
            by: by.number,
            slot: *slot,
        })
        .collect();
    (!open.is_empty()).then_some(Record::Touched { processes, touches })
}
