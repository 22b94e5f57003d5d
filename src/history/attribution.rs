//! Who changes what: told to the journal before the change, once for each process and thing in an epoch.
//!
//! Whoever serves a request says for which process ([`Timeline::acting`]), and the live tree what it is about to change ([`Timeline::touch_name`] and so
//! on). What the open epoch does not know yet of that process goes into the same append as the undo records, or into one of its own where there are
//! none. So it is there after `kill -9` whenever the change is.
//!
//! **What is not recorded** is what can be told without: a file belongs to whoever made it, and what is in a directory made in this epoch to whoever
//! made that. An inode that was made and removed within one epoch leaves nothing.
//!
//! **Locking.** The table is part of the open epoch's, under the timeline's lock; the numbers are a leaf. The process is a property of the thread.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::timeline::{Inner, Timeline};
use crate::store::ids::{Name, Slot};
use crate::store::record::{NameTouch, Process, ProcessNumber, Record, Touch};
use crate::sys::SysResult;

/// Processes that are told apart for one thing; more are "others".
pub const TOUCHERS_MAX: usize = 8;
/// Stands for the others.
pub const OTHERS: ProcessNumber = 0;
/// How far up it is told whose child a process is.
const ANCESTORS_MAX: usize = 32;
/// Processes that are found again by their number; beyond that they get another.
const NUMBERED_MAX: usize = 4096;

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
    /// This one, the one that started it, and so on, as far as the journal does not know them: with a process it is told whose child it is.
    fn untold(self: &Arc<Numbered>, told: &HashSet<ProcessNumber>) -> Vec<(ProcessNumber, Process)> {
        let line = std::iter::successors(Some(self), |one| one.parent.as_ref());
        line.take_while(|one| !told.contains(&one.number)).map(|one| (one.number, one.process.clone())).collect()
    }
}

/// The processes that have a number in this run of the daemon, newest of each id.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    last: ProcessNumber,
    by_pid: HashMap<u32, Arc<Numbered>>,
}

thread_local! {
    static ACTING: RefCell<Option<Arc<Numbered>>> = const { RefCell::new(None) };
    static STAGED: RefCell<Vec<Touch>> = const { RefCell::new(Vec::new()) };
}

/// The thread acts for a process until this is dropped.
#[derive(Debug)]
pub struct Acting(Option<Arc<Numbered>>);

impl Drop for Acting {
    fn drop(&mut self) {
        let before = self.0.take();
        let _ = ACTING.try_with(|acting| *acting.borrow_mut() = before);
        // What was about to be touched by an operation that failed before it was recorded.
        let _ = STAGED.try_with(|staged| staged.borrow_mut().clear());
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
    Some(if known.len() < TOUCHERS_MAX { by } else { OTHERS })
}

fn put(set: &mut Vec<ProcessNumber>, by: ProcessNumber) {
    if !set.contains(&by) {
        set.push(by);
    }
}

impl TouchTable {
    fn add(&mut self, touch: Touch) {
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

    /// Nobody has written to the file after all.
    pub(super) fn void(&mut self, slot: Slot) {
        self.data.remove(&slot);
    }

    /// Whether the open epoch has a change of this inode on record.
    pub(super) fn knows(&self, slot: Slot) -> bool {
        self.data.contains_key(&slot) || self.attrs.contains_key(&slot)
    }
}

impl Inner {
    /// Whoever made an inode of the open epoch, if that is known.
    fn maker(&self, slot: Slot) -> Option<ProcessNumber> {
        self.born.get(&slot).copied().filter(|maker| *maker != OTHERS)
    }

    /// Nobody could ask: there is no checkpoint to compare with, nor one that may come back, or it is not in the tree.
    fn asks_nobody(&self, slot: Slot) -> bool {
        slot == Slot::STAGING || (self.checkpoints.is_empty() && self.hidden.is_empty())
    }
}

fn acting() -> Option<ProcessNumber> {
    ACTING.with(|acting| acting.borrow().as_ref().map(|known| known.number))
}

fn stage(touch: Touch) {
    STAGED.with(|staged| staged.borrow_mut().push(touch));
}

/// The process for which this thread acts.
pub fn acting_for() -> Option<Arc<Numbered>> {
    ACTING.with(|acting| acting.borrow().clone())
}

/// The number of the process for which this thread acts; [`OTHERS`] if there is none.
pub(super) fn acting_number() -> ProcessNumber {
    acting().unwrap_or(OTHERS)
}

impl Timeline {
    /// The number of a process; the same as long as it is the same in all that is known of it.
    pub fn number(&self, process: Process) -> Arc<Numbered> {
        self.number_child(process, |_| None)
    }

    /// As [`Timeline::number`], with those that it descends from: `parent_of` tells who a process id is. It is asked only for a process that is new.
    pub fn number_child(&self, process: Process, parent_of: impl Fn(u32) -> Option<Process>) -> Arc<Numbered> {
        let known = |process: &Process, same: fn(&Process, &Process) -> bool| {
            let numbers = self.numbers.lock();
            numbers.by_pid.get(&process.pid).filter(|known| same(&known.process, process)).map(Arc::clone)
        };
        if let Some(known) = known(&process, |a, b| a == b) {
            return known;
        }
        let (mut line, mut above) = (vec![process], None);
        while let Some(child) = line.last().filter(|child| child.parent > 1 && line.len() < ANCESTORS_MAX) {
            // Whoever began later has only got the number of the one that is gone.
            let Some(parent) = parent_of(child.parent).filter(|parent| parent.start <= child.start) else { break };
            above = known(&parent, |a, b| a.start == b.start);
            if above.is_some() {
                break;
            }
            line.push(parent);
        }
        let mut numbered = None;
        for process in line.into_iter().rev() {
            numbered = Some(self.put_number(process, numbered.or(above.take())));
        }
        numbered.unwrap_or_default()
    }

    fn put_number(&self, process: Process, parent: Option<Arc<Numbered>>) -> Arc<Numbered> {
        let mut numbers = self.numbers.lock();
        if numbers.by_pid.len() >= NUMBERED_MAX {
            numbers.by_pid.clear();
        }
        numbers.last = numbers.last.wrapping_add(1).max(OTHERS + 1);
        let numbered = Arc::new(Numbered { number: numbers.last, process, parent });
        numbers.by_pid.insert(numbered.process.pid, Arc::clone(&numbered));
        numbered
    }

    /// From now on this thread acts for a process, until the result is dropped.
    pub fn acting(known: Option<Arc<Numbered>>) -> Acting {
        Acting(ACTING.with(|acting| std::mem::replace(&mut *acting.borrow_mut(), known)))
    }

    /// What a name leads to is about to change.
    pub fn touch_name(&self, dir: Slot, name: &Name, how: NameTouch) {
        let Some(by) = acting() else { return };
        let inner = self.inner.read();
        if inner.asks_nobody(dir) {
            return;
        }
        let known = inner.open.touched.names.get(&dir).and_then(|names| names.get(name));
        if known.is_none() && inner.maker(dir) == Some(by) {
            return;
        }
        let again = how != NameTouch::Removed && known.is_some_and(|known| known.fresh != by);
        let by = match news(known.map(|known| &known.all), by) {
            None if again && known.is_some_and(|known| known.all.contains(&by)) => by,
            None => return,
            Some(by) => by,
        };
        drop(inner);
        stage(Touch::Name { by, dir, name: name.clone(), how });
    }

    /// The content of a file is about to change, or may; says whether that is news.
    pub fn touch_data(&self, slot: Slot) -> bool {
        let news = self.is_news(slot, |touched| touched.data.get(&slot));
        if let Some(by) = news {
            stage(Touch::Data { by, slot });
        }
        news.is_some()
    }

    /// Attributes of an inode are about to change.
    pub fn touch_attr(&self, slot: Slot) {
        if let Some(by) = self.is_news(slot, |touched| touched.attrs.get(&slot)) {
            stage(Touch::Attr { by, slot });
        }
    }

    fn is_news(&self, slot: Slot, pick: impl FnOnce(&TouchTable) -> Option<&Vec<ProcessNumber>>) -> Option<ProcessNumber> {
        let by = acting()?;
        let inner = self.inner.read();
        if inner.asks_nobody(slot) || inner.maker(slot) == Some(by) {
            return None;
        }
        news(pick(&inner.open.touched), by)
    }

    /// An inode is about to lose its last name.
    pub fn touch_gone(&self, slot: Slot) {
        let inner = self.inner.read();
        if acting().is_some() && !inner.asks_nobody(slot) && (!inner.is_born(slot) || inner.open.touched.knows(slot)) {
            drop(inner);
            stage(Touch::Gone { slot });
        }
    }

    /// An inode is about to get another name: if it was made in the open epoch by somebody else, or others may follow what it is made for, that must be
    /// told, for its name said it so far.
    pub fn touch_moved(&self, slot: Slot, is_dir: bool) {
        let Some(by) = acting() else { return };
        let inner = self.inner.read();
        if let Some(maker) = inner.maker(slot).filter(|maker| is_dir || *maker != by)
            && inner.open.touched.told.contains(&maker)
        {
            drop(inner);
            stage(Touch::Made { by: maker, slot });
        }
    }

    /// Tells at once what is staged, where there is nothing else to record.
    ///
    /// # Errors
    /// As [`Timeline::record`].
    pub fn tell_touches(&self) -> SysResult<()> {
        if STAGED.with(|staged| staged.borrow().is_empty()) { Ok(()) } else { self.record(Vec::new(), Vec::new()) }
    }

    /// A process had a file open for writing and has not written.
    pub fn touch_left(&self, slot: Slot, by: &Numbered) {
        let known = self.inner.read().open.touched.data.get(&slot).is_some_and(|set| set.contains(&by.number));
        if known {
            let touch = Touch::Left { by: by.number, slot };
            self.tell(Record::Touched { processes: Vec::new(), touches: vec![touch.clone()] });
            self.inner.write().open.touched.add(touch);
        }
    }

    /// The record of what is staged, with who it is if that was not told in this epoch.
    pub(super) fn staged(&self) -> Option<Record> {
        let touches = STAGED.with(|staged| std::mem::take(&mut *staged.borrow_mut()));
        if touches.is_empty() {
            return None;
        }
        let acting = acting_for()?;
        let processes = acting.untold(&self.inner.read().open.touched.told);
        Some(Record::Touched { processes, touches })
    }
}

impl TouchTable {
    /// The record was appended.
    pub(super) fn take(&mut self, processes: &[(ProcessNumber, Process)], touches: Vec<Touch>) {
        self.told.extend(processes.iter().map(|(number, _)| *number));
        touches.into_iter().for_each(|touch| self.add(touch));
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
    let touches = open.iter().map(|(slot, by)| Touch::Data { by: by.number, slot: *slot }).collect();
    (!open.is_empty()).then_some(Record::Touched { processes, touches })
}
