//! Numbers processes that change the tree, and stages their touches: the source of
//! [`attribution`](super::attribution) records.

use std::collections::HashMap;
use std::sync::Arc;

use super::append::Appender;
use super::attribution::{Author, NumberedProcess, OTHERS, TouchTable};
use super::epochs::Epochs;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{NameTouch, Process, ProcessChange, ProcessNumber, Record};
use ckptfs_sys::SysResult;
use ckptfs_sys::lock::Mutex;

/// Maximum number of recorded ancestors of a process.
const ANCESTORS_MAX: usize = 32;
/// Maximum number of processes in memory; beyond it a process may be numbered again.
const NUMBERED_MAX: usize = 4096;

/// Numbers of processes in this run of the daemon, the newest for each pid.
#[derive(Debug, Default)]
struct Numbers {
    last: ProcessNumber,
    by_pid: HashMap<u32, Arc<NumberedProcess>>,
}

/// Numbers processes and stages their touches. See [`attribution`](super::attribution).
pub struct Processes {
    journal: Arc<Appender>,
    epochs: Arc<Epochs>,
    /// A leaf lock.
    numbers: Mutex<Numbers>,
}

impl Processes {
    pub(super) fn new(journal: Arc<Appender>, epochs: Arc<Epochs>) -> Processes {
        Processes {
            journal,
            epochs,
            numbers: Mutex::default(),
        }
    }

    /// Returns the number of a process, which is stable while its known properties are the same.
    pub fn number(&self, process: Process) -> Arc<NumberedProcess> {
        self.number_child(process, |_| None)
    }

    /// As [`Processes::number`], with its ancestors. `parent_of` returns the process with a pid,
    /// and is called only for a new process.
    pub fn number_child(
        &self,
        process: Process,
        parent_of: impl Fn(u32) -> Option<Process>,
    ) -> Arc<NumberedProcess> {
        let known = |process: &Process, same: fn(&Process, &Process) -> bool| {
            let numbers = self.numbers.lock();
            numbers
                .by_pid
                .get(&process.pid)
                .filter(|known| same(&known.process, process))
                .map(Arc::clone)
        };
        if let Some(known) = known(&process, |a, b| a == b) {
            return known;
        }
        let (mut line, mut above) = (vec![process], None);
        while let Some(child) = line
            .last()
            .filter(|child| child.parent > 1 && line.len() < ANCESTORS_MAX)
        {
            // A parent that started later only reused the pid of the real one.
            let Some(parent) = parent_of(child.parent).filter(|parent| parent.start <= child.start)
            else {
                break;
            };
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

    fn put_number(
        &self,
        process: Process,
        parent: Option<Arc<NumberedProcess>>,
    ) -> Arc<NumberedProcess> {
        let mut numbers = self.numbers.lock();
        if numbers.by_pid.len() >= NUMBERED_MAX {
            numbers.by_pid.clear();
        }
        numbers.last = numbers.last.wrapping_add(1).max(OTHERS + 1);
        let numbered = Arc::new(NumberedProcess {
            number: numbers.last,
            process,
            parent,
        });
        numbers
            .by_pid
            .insert(numbered.process.pid, Arc::clone(&numbered));
        numbered
    }

    /// Stages a change of a name.
    pub fn touch_name(&self, author: &Author, dir: Slot, name: &Name, how: NameTouch) {
        let Some(by) = author.number().filter(|_| !self.epochs.asks_nobody(dir)) else {
            return;
        };
        let news = {
            let tables = self.epochs.read();
            tables
                .open()
                .touched
                .name_news(dir, name, how, by, tables.maker(dir) == Some(by))
        };
        if let Some(by) = news {
            author.stage(ProcessChange::Name {
                by,
                dir,
                name: name.clone(),
                how,
            });
        }
    }

    /// Stages a possible change of a file's content. Returns whether it needs a record.
    pub fn touch_data(&self, author: &Author, slot: Slot) -> bool {
        let news = self.news(author, slot, TouchTable::data_news);
        if let Some(by) = news {
            author.stage(ProcessChange::Data { by, slot });
        }
        news.is_some()
    }

    /// Stages a change of an inode's attributes.
    pub fn touch_attr(&self, author: &Author, slot: Slot) {
        if let Some(by) = self.news(author, slot, TouchTable::attr_news) {
            author.stage(ProcessChange::Attr { by, slot });
        }
    }

    fn news(
        &self,
        author: &Author,
        slot: Slot,
        of: fn(&TouchTable, Slot, ProcessNumber) -> Option<ProcessNumber>,
    ) -> Option<ProcessNumber> {
        let by = author.number().filter(|_| !self.epochs.asks_nobody(slot))?;
        let tables = self.epochs.read();
        if tables.maker(slot) == Some(by) {
            None
        } else {
            of(&tables.open().touched, slot, by)
        }
    }

    /// Stages the removal of an inode's last name.
    pub fn touch_gone(&self, author: &Author, slot: Slot) {
        if author.number().is_none() || self.epochs.asks_nobody(slot) {
            return;
        }
        if !self.epochs.is_born(slot) || self.epochs.read().open().touched.knows(slot) {
            author.stage(ProcessChange::Gone { slot });
        }
    }

    /// Stages a rename of an inode created in the open epoch. Its creator must be recorded if it is
    /// another process, or if it is a directory, whose new names are attributed to its creator.
    /// Before the rename, the record of its name implies the creator.
    pub fn touch_moved(&self, author: &Author, slot: Slot, is_dir: bool) {
        let Some(by) = author.number() else {
            return;
        };
        let maker = {
            let tables = self.epochs.read();
            let maker = tables.maker(slot).filter(|maker| is_dir || *maker != by);
            maker.filter(|maker| tables.open().touched.has_told(*maker))
        };
        if let Some(by) = maker {
            author.stage(ProcessChange::Made { by, slot });
        }
    }

    /// Records the staged touches in an append of their own. On return this survives `kill -9`.
    ///
    /// # Errors
    /// As [`Epochs::record`].
    pub fn tell_touches(&self, author: &Author) -> SysResult<()> {
        if author.has_staged() {
            self.epochs.record(author, Vec::new(), Vec::new())
        } else {
            Ok(())
        }
    }

    /// Records that a process closed a file opened for writing without having written.
    pub fn touch_left(&self, slot: Slot, by: &NumberedProcess) {
        if self
            .epochs
            .read()
            .open()
            .touched
            .may_have_written(slot, by.number)
        {
            let touch = ProcessChange::Left {
                by: by.number,
                slot,
            };
            self.journal.tell(Record::Touched {
                processes: Vec::new(),
                touches: vec![touch.clone()],
            });
            self.epochs.write().open_mut().touched.add(touch);
        }
    }
}
