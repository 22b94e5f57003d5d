//! Who changes what: told to the journal before the change, once for each process and thing in an
//! epoch.
//!
//! Whoever serves a request says for which process ([`Author`]), and the live tree what it is about
//! to change (`Processes`). What the open epoch does not know yet of
//! that process goes into the same append as the undo records, or into one of its own where there
//! are none. So it is there after `kill -9` whenever the change is.
//!
//! **What is not recorded** is what can be told without: a file belongs to whoever made it, and
//! what is in a directory made in this epoch to whoever made that. An inode that was made and
//! removed within one epoch leaves nothing.
//!
//! The table is part of the open epoch's. The process, and what it is about to change, are passed
//! down to whatever makes the records.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::store::ids::{Name, Slot};
use crate::store::record::{NameTouch, Process, ProcessNumber, Record, Touch};

/// Processes that are told apart for one thing; more are "others".
pub const TOUCHERS_MAX: usize = 8;
/// Stands for the others.
pub const OTHERS: ProcessNumber = 0;

/// A process with its number in the journal.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Numbered {
    /// Its number.
    pub number: ProcessNumber,
    /// Who it is.
    pub process: Process,
    /// The process that started it, if that was there still when this one was met.
    pub parent: Option<Arc<Numbered>>,
}

impl Numbered {
    /// This one, the one that started it, and so on, as far as the journal does not know them: with
    /// a process it is told whose child it is.
    fn untold(
        self: &Arc<Numbered>,
        told: &HashSet<ProcessNumber>,
    ) -> Vec<(ProcessNumber, Process)> {
        let line = std::iter::successors(Some(self), |one| one.parent.as_ref());
        line.take_while(|one| !told.contains(&one.number))
            .map(|one| (one.number, one.process.clone()))
            .collect()
    }
}

/// For whom something is changed, and what is about to be: of a request, or of a verb. The default
/// is nobody, of whom nothing is told.
#[derive(Debug, Default)]
pub struct Author {
    by: Option<Arc<Numbered>>,
    /// Goes into the next record.
    staged: RefCell<Vec<Touch>>,
}

impl Author {
    /// This process; `None`: nobody.
    pub fn new(by: Option<Arc<Numbered>>) -> Author {
        Author {
            by,
            staged: RefCell::default(),
        }
    }

    /// The process.
    pub fn process(&self) -> Option<&Arc<Numbered>> {
        self.by.as_ref()
    }

    pub(super) fn number(&self) -> Option<ProcessNumber> {
        self.by.as_ref().map(|known| known.number)
    }

    /// It is about to change something: that goes into the next record.
    pub(super) fn stage(&self, touch: Touch) {
        self.staged.borrow_mut().push(touch);
    }

    pub(super) fn has_staged(&self) -> bool {
        !self.staged.borrow().is_empty()
    }

    /// The record of what is staged, with who it is if that was not told in this epoch.
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

/// Who has changed one name.
#[derive(Clone, Debug, Default)]
struct NameTouches {
    all: Vec<ProcessNumber>,
    /// Who made it lead where it leads now.
    fresh: ProcessNumber,
}

/// What the open epoch knows of who changed what.
#[derive(Clone, Debug, Default)]
pub struct TouchTable {
    /// The processes of which the journal has told who they are.
    told: HashSet<ProcessNumber>,
    names: HashMap<Slot, HashMap<Name, NameTouches>>,
    data: HashMap<Slot, Vec<ProcessNumber>>,
    attrs: HashMap<Slot, Vec<ProcessNumber>>,
}

/// Whether a touch is news, and by whom it is to be told.
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
    pub(super) fn add(&mut self, touch: Touch) {
        match touch {
            Touch::Name { by, dir, name, how } => {
                let known = self.names.entry(dir).or_default().entry(name).or_default();
                put(&mut known.all, by);
                if how != NameTouch::Removed {
                    known.fresh = by;
                }
            }
            Touch::Data { by, slot } => put(self.data.entry(slot).or_default(), by),
            Touch::Attr { by, slot } => put(self.attrs.entry(slot).or_default(), by),
            Touch::Made { .. } => {}
            Touch::Gone { slot } => {
                self.data.remove(&slot);
                self.attrs.remove(&slot);
            }
            Touch::Left { by, slot } => self.left(slot, by),
        }
    }

    fn left(&mut self, slot: Slot, by: ProcessNumber) {
        if let Some(set) = self.data.get_mut(&slot) {
            set.retain(|known| *known != by);
        }
    }

    /// The record was appended.
    pub(super) fn take(&mut self, processes: &[(ProcessNumber, Process)], touches: Vec<Touch>) {
        self.told
            .extend(processes.iter().map(|(number, _)| *number));
        touches.into_iter().for_each(|touch| self.add(touch));
    }

    /// Whether a change of what a name leads to is news, and by whom it is to be told. `is_maker`:
    /// whoever it is made the directory.
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

    /// Whether a change of content is news.
    pub(super) fn data_news(&self, slot: Slot, by: ProcessNumber) -> Option<ProcessNumber> {
        news(self.data.get(&slot), by)
    }

    /// Whether a change of attributes is news.
    pub(super) fn attr_news(&self, slot: Slot, by: ProcessNumber) -> Option<ProcessNumber> {
        news(self.attrs.get(&slot), by)
    }

    /// Whether it was told that a process may have written to a file.
    pub(super) fn may_have_written(&self, slot: Slot, by: ProcessNumber) -> bool {
        self.data.get(&slot).is_some_and(|set| set.contains(&by))
    }

    /// Whether the journal has told who this process is.
    pub(super) fn has_told(&self, number: ProcessNumber) -> bool {
        self.told.contains(&number)
    }

    /// Nobody has written to the file after all.
    pub(super) fn void(&mut self, slot: Slot) {
        self.data.remove(&slot);
    }

    /// Whether the open epoch has a change of this inode on record.
    pub(super) fn knows(&self, slot: Slot) -> bool {
        self.data.contains_key(&slot) || self.attrs.contains_key(&slot)
    }
}

/// The record of those who have files open for writing when an epoch begins; `None`: nobody has.
pub(super) fn open_ones(open: &[(Slot, Arc<Numbered>)]) -> Option<Record> {
    let mut told = HashSet::new();
    let mut processes = Vec::new();
    for (_, by) in open {
        let untold = by.untold(&told);
        told.extend(untold.iter().map(|(number, _)| *number));
        processes.extend(untold);
    }
    let touches = open
        .iter()
        .map(|(slot, by)| Touch::Data {
            by: by.number,
            slot: *slot,
        })
        .collect();
    (!open.is_empty()).then_some(Record::Touched { processes, touches })
}
