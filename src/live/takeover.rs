//! One worker dies, the next takes over: what it leaves behind, and how that is found again.
//!
//! The kernel goes on with the nodes and handles that it was told of. Nodes are found by a walk over the tree, once, for their numbers are inode
//! numbers. What cannot be found there is in the **legacy**: a [`Ledger`] in memory that outlives the worker has the files that the kernel may be
//! writing to without a handle and the exchanges that were begun (open handles are entered by `fuse/`, nodes of views by the engine), and a
//! [`Keeper`] holds descriptors of files that are open and have no name.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::Live;
use super::data::{Handle, HandleId, OpenFlags};
use super::nodes::{IoMode, generation_of};
use crate::history::attribution::acting_for;
use crate::store::ids::{Name, Slot};
use crate::store::record::Place;
use crate::sys::lock::Mutex;
use crate::sys::{self, Errno, Kind, Ledger, Open, ROW_WORDS, RenameMode, RowId, SysResult};

/// Rows of files that may be written to without a request: slot, mappable.
const HOT: u64 = 2;
/// Rows of exchanges: request, inode at the first name, inode at the second.
const EXCHANGE: u64 = 4;
/// Exchanges that are remembered: more than requests can be under way.
const EXCHANGES_MAX: usize = 256;

/// Which request of the kernel an operation serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Its number; 0: none.
    pub request: u64,
    /// It was given to a worker that has died: it may have been done.
    pub again: bool,
    /// User and group that ask: a whiteout is theirs.
    pub owner: (u32, u32),
}

/// Holds descriptors for as long as this process may die. It never waits, and does what it can.
pub trait Keeper: Send + Sync {
    /// Holds `fd` under the number of its inode.
    fn keep(&self, number: u64, fd: BorrowedFd<'_>);
    /// Lets go of it.
    fn let_go(&self, number: u64);
}

/// Descriptors that a keeper held: of inodes that had no name.
pub type Orphans = HashMap<u64, OwnedFd>;

/// See the module.
pub struct Legacy {
    ledger: Arc<Ledger>,
    keeper: Arc<dyn Keeper>,
    /// What the keeper holds.
    kept: Mutex<HashSet<Slot>>,
    hot: Mutex<HashMap<Slot, RowId>>,
    exchanges: Mutex<VecDeque<RowId>>,
}

impl Legacy {
    /// That of a worker: empty, or what the one before left.
    pub fn new(ledger: Arc<Ledger>, keeper: Arc<dyn Keeper>) -> Legacy {
        Legacy { ledger, keeper, kept: Mutex::default(), hot: Mutex::default(), exchanges: Mutex::default() }
    }
}

fn words<const N: usize>(some: [u64; N]) -> [u64; ROW_WORDS] {
    std::array::from_fn(|at| some.get(at).copied().unwrap_or(0))
}

impl Live {
    /// From now on there is somebody to take over.
    pub fn hand_over(&self, legacy: Legacy) {
        let _ = self.legacy.set(legacy);
    }

    /// The file is hot, as the next worker shall know.
    pub(super) fn leave_hot(&self, slot: Slot, mappable: bool, past_mount: bool) {
        let Some(legacy) = self.legacy.get() else { return };
        let mut rows = legacy.hot.lock();
        if let Some(row) = legacy.ledger.put(HOT, words([slot.0, u64::from(mappable), u64::from(past_mount)]))
            && let Some(before) = rows.insert(slot, row)
        {
            legacy.ledger.remove(before);
        }
    }

    /// It is so no longer.
    pub(super) fn leave_cold(&self, slot: Slot) {
        let Some(legacy) = self.legacy.get() else { return };
        if let Some(row) = legacy.hot.lock().remove(&slot) {
            legacy.ledger.remove(row);
        }
    }

    /// An open inode is about to lose its last name: it must not die with this worker.
    pub(super) fn leave_orphan(&self, slot: Slot, held: Option<&Arc<OwnedFd>>) {
        let (Some(legacy), Some(held)) = (self.legacy.get(), held) else { return };
        if self.nodes.lock().get(slot).is_some_and(|node| node.handles() > 0) {
            legacy.kept.lock().insert(slot);
            legacy.keeper.keep(slot.0, std::os::fd::AsFd::as_fd(&**held));
        }
    }

    /// A handle of an inode was closed: if it was the last, nobody needs to hold the inode.
    pub(super) fn drop_orphan(&self, slot: Slot) {
        let Some(legacy) = self.legacy.get() else { return };
        let kept = legacy.kept.lock().contains(&slot);
        if !kept || self.nodes.lock().get(slot).is_some_and(|node| node.handles() > 0) {
            return;
        }
        legacy.kept.lock().remove(&slot);
        legacy.keeper.let_go(slot.0);
    }

    /// Two inodes are about to change places: whether they have cannot be told from the names.
    pub(super) fn leave_exchange(&self, turn: Turn, source: Slot, target: Slot) {
        let Some(legacy) = self.legacy.get() else { return };
        let mut rows = legacy.exchanges.lock();
        rows.extend(legacy.ledger.put(EXCHANGE, words([turn.request, source.0, target.0])));
        if rows.len() > EXCHANGES_MAX
            && let Some(oldest) = rows.pop_front()
        {
            legacy.ledger.remove(oldest);
        }
    }

    /// A rename that was asked for again has been done. The kernel has both directories locked, so what is there tells.
    pub(super) fn is_renamed(&self, turn: Turn, from: (Slot, &Name), to: (Slot, &Name), how: RenameMode) -> SysResult<bool> {
        let at = |(dir, name): (Slot, &Name)| match sys::stat_at(self.dir(dir)?, name.as_bytes()) {
            Ok(stat) => self.slot_of(&stat).map(Some),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        };
        if how != RenameMode::Exchange {
            let left = at(from)?.is_none() || how.leaves_whiteout() && self.is_whiteout(from)?;
            return Ok(left && at(to)?.is_some());
        }
        let Some(legacy) = self.legacy.get() else { return Ok(false) };
        let begun = legacy.ledger.rows().into_iter().find(|row| row.kind == EXCHANGE && row.words.first() == Some(&turn.request));
        Ok(begun.is_some_and(|row| at(from) == Ok(row.words.get(2).copied().map(Slot))))
    }

    /// Finds every inode of the tree by a walk, as the kernel may know it. Nothing is served yet.
    ///
    /// # Errors
    /// Those of reading the root.
    pub fn adopt_tree(&self, is_ours: impl Fn(&[u8]) -> bool) -> SysResult<usize> {
        let mut open = vec![(Slot::ROOT, self.root.try_clone()?)];
        let mut found = 0;
        while let Some((slot, dir)) = open.pop() {
            let entries = match sys::list_dir(&dir) {
                Ok(entries) => entries,
                Err(errno) if slot == Slot::ROOT => return Err(errno),
                Err(_) => continue,
            };
            let mut nodes = self.nodes.lock();
            for entry in entries {
                if slot == Slot::ROOT && is_ours(&entry.name) {
                    continue;
                }
                let kind = match entry.kind {
                    Some(kind) => kind,
                    None => match sys::stat_at(&dir, &entry.name) {
                        Ok(stat) => stat.kind,
                        Err(_) => continue,
                    },
                };
                let place = Place { parent: slot, name: Name::new(&entry.name) };
                nodes.adopt(Slot(entry.ino), kind, &place);
                found += 1;
                if kind == Kind::Dir
                    && let Ok(below) = sys::open_path_at(&dir, &entry.name)
                {
                    open.push((Slot(entry.ino), below));
                }
            }
        }
        Ok(found)
    }

    /// Takes over an open file of the worker before.
    ///
    /// # Errors
    /// Those of open(2); ESTALE if it is nowhere.
    pub fn adopt_open(&self, id: HandleId, slot: Slot, flags: OpenFlags, io: IoMode, orphans: &Orphans) -> SysResult<()> {
        let flags = OpenFlags { truncate: false, ..flags };
        let file = match orphans.get(&slot.0) {
            Some(orphan) if sys::stat_fd(orphan)?.nlink == 0 => {
                let held = Arc::new(orphan.try_clone()?);
                let stat = sys::stat_fd(&held)?;
                self.nodes.lock().adopt_dead(slot, stat.kind, generation_of(&stat), Arc::clone(&held));
                if let Some(legacy) = self.legacy.get() {
                    legacy.kept.lock().insert(slot);
                }
                sys::reopen(&held, flags.backing())?
            }
            _ => self.open_file(slot.into(), flags.backing())?.0,
        };
        let (mode, file) = (sys::stat_fd(&file)?.mode, Arc::new(file));
        let by = if flags.write { acting_for() } else { None };
        if io == IoMode::Passthrough && flags.write {
            // That it may write is in the journal since it opened the file, or since the newest checkpoint.
            self.note_hot(slot, &file, flags.read, by.clone().map(|by| (by, None)))?;
        }
        self.nodes.lock().opened(slot, flags.read, flags.write, io);
        let handle = Handle::new(slot, file, flags, io, by, mode);
        self.note_writer(id.0, &handle);
        self.handles.adopt(id, handle);
        Ok(())
    }

    /// Takes over what the worker before left in the ledger: files that may be mapped though no handle is open. To be called when handles were.
    pub fn adopt_rest(&self, orphans: &Orphans) {
        let Some(legacy) = self.legacy.get() else { return };
        for row in legacy.ledger.rows() {
            let [number, mappable, past_mount, ..] = row.words;
            match row.kind {
                HOT => {
                    let slot = Slot(number);
                    let known = legacy.hot.lock().get(&slot).copied();
                    if known == Some(row.id) {
                        continue;
                    }
                    legacy.ledger.remove(row.id);
                    if known.is_none() && !orphans.contains_key(&number) {
                        self.adopt_hot(slot, mappable != 0);
                    }
                    if past_mount != 0 {
                        self.note_past_mount(slot);
                    }
                }
                EXCHANGE => legacy.exchanges.lock().push_back(row.id),
                _ => {}
            }
        }
        // What no handle is open of any more was closed while nobody could tell the keeper.
        let kept = legacy.kept.lock().clone();
        orphans.keys().filter(|number| !kept.contains(&Slot(**number))).for_each(|number| legacy.keeper.let_go(*number));
    }

    fn adopt_hot(&self, slot: Slot, mappable: bool) {
        let file: SysResult<File> = self.open_file(slot.into(), Open::READ).map(|(file, _)| file);
        let noted = file.and_then(|file| self.note_hot(slot, &Arc::new(file), mappable, None));
        if let Err(errno) = noted {
            tracing::warn!(slot = slot.0, %errno, "a file that may be mapped is not watched any more");
        }
    }
}
