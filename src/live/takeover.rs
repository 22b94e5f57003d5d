//! One worker dies, the next takes over: what it leaves behind, and how that is found again.
//!
//! The kernel goes on with the nodes and handles that it was told of. Nodes are found by a walk
//! over the tree, once, for their numbers are inode numbers. Of a branch that is what it has of its
//! own: what is **inherited** is found when the kernel asks for it, by where it was in the base
//! ([`Adoption::meet`]). What cannot be found there is in the **legacy**: a `Ledger` in memory that outlives the worker has the files that the kernel may be
//! writing to without a handle and the exchanges that were begun (open handles are entered by
//! `fuse/`, nodes of views by the engine), and a `Keeper` holds descriptors of files that are
//! open and have no name.

mod branch;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::change::Change;
use super::handles::{Handle, HandleId, OpenFlags};
use super::legacy::{LeftHot, Orphans};
use super::nodes::{IoMode, generation_of};
use super::past::{Inodes, Past, Writers};
use super::tables::{Handles, Handover, HotFiles, Locks, NodeTable, Tables};
use crate::store::ids::{Name, Slot};
use crate::store::record::Place;
use crate::sys::{self, Errno, Kind, Open, SysResult};

/// Takes over what the worker before left.
pub struct Adoption {
    root: Arc<OwnedFd>,
    locks: Arc<Locks>,
    nodes: Arc<NodeTable>,
    hot: Arc<HotFiles>,
    handles: Arc<Handles>,
    handover: Arc<Handover>,
    inodes: Arc<Inodes>,
    writers: Arc<Writers>,
    /// The kernel may know inherited inodes of a branch that are not in the table of nodes.
    asks_base: AtomicBool,
}

impl Adoption {
    pub(super) fn new(tables: &Tables, past: &Past) -> Adoption {
        Adoption {
            root: Arc::clone(&tables.root),
            locks: Arc::clone(&tables.locks),
            nodes: Arc::clone(&tables.nodes),
            hot: Arc::clone(&tables.hot),
            handles: Arc::clone(&tables.handles),
            handover: Arc::clone(&tables.handover),
            inodes: Arc::clone(&past.inodes),
            writers: Arc::clone(&past.writers),
            asks_base: AtomicBool::new(false),
        }
    }

    /// Finds every inode of the tree by a walk, as the kernel may know it; of a branch, every inode
    /// of its own. Nothing is served yet.
    ///
    /// # Errors
    /// Those of reading the root.
    pub fn adopt_tree(&self, is_ours: impl Fn(&[u8]) -> bool) -> SysResult<usize> {
        if self.inodes.base().through().is_some() {
            return self.adopt_own(is_ours);
        }
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
                let place = Place {
                    parent: slot,
                    name: Name::new(&entry.name),
                };
                let Ok(child) = self.inodes.slot_of_ino(entry.ino) else {
                    continue;
                };
                nodes.adopt(child, kind, &place);
                found += 1;
                if kind == Kind::Dir
                    && let Ok(below) = sys::open_path_at(&dir, &entry.name)
                {
                    open.push((child, below));
                }
            }
        }
        Ok(found)
    }

    /// Takes over an open file of the worker before.
    ///
    /// # Errors
    /// Those of open(2); ESTALE if it is nowhere.
    pub fn adopt_open(
        &self,
        change: &Change,
        id: HandleId,
        slot: Slot,
        flags: OpenFlags,
        io: IoMode,
        orphans: &Orphans,
    ) -> SysResult<()> {
        let mut flags = OpenFlags {
            truncate: false,
            ..flags
        };
        self.meet(slot);
        let mut inherited = None;
        let file = match orphans.get(&slot.0) {
            Some(orphan) if self.is_nameless(slot, orphan)? => {
                let held = Arc::new(orphan.try_clone()?);
                let stat = sys::stat_fd(&held)?;
                self.note_dead(slot, &held, &stat)?;
                self.nodes.lock().adopt_dead(
                    slot,
                    stat.kind,
                    generation_of(&stat),
                    Arc::clone(&held),
                );
                self.handover.note_kept(slot);
                Arc::new(sys::reopen(&held, flags.backing())?)
            }
            _ if self.inodes.base().is_inherited(slot) => {
                let (file, content) = self.open_inherited(slot)?;
                inherited = Some(content);
                file
            }
            _ => {
                let (file, _, opened) = flags.open(&self.inodes, slot, flags.backing())?;
                flags = opened;
                Arc::new(file)
            }
        };
        let mode = sys::stat_fd(&*file)?.mode;
        let by = change.author.process().filter(|_| flags.write).cloned();
        // What is written to a file without a name changes no past.
        if io == IoMode::Passthrough && flags.write && !self.nodes.is_dead(slot) {
            // That it may write is in the journal since it opened the file, or since the newest
            // checkpoint.
            self.hot
                .note(slot, &file, flags.read, by.clone().map(|by| (by, None)))?;
            if flags.read || flags.is_synced() {
                self.hot.note_syncs(slot);
            }
        }
        self.nodes.lock().opened(slot, flags.read, flags.write, io);
        let mut handle = Handle::new(slot, file, flags, io, by, mode);
        handle.inherited = inherited;
        self.writers.note_writer(id.0, &handle);
        self.handles.adopt(id, handle);
        Ok(())
    }

    /// It has no name in the tree: none at all, or one in a layer.
    fn is_nameless(&self, slot: Slot, orphan: &OwnedFd) -> SysResult<bool> {
        let is_nowhere = || self.inodes.find(slot.into()).err() == Some(Errno::ESTALE);
        Ok(sys::stat_fd(orphan)?.nlink == 0 || is_nowhere())
    }

    /// Takes over what the worker before left in the ledger: files that may be mapped though no
    /// handle is open. To be called when handles were.
    pub fn adopt_rest(&self, orphans: &Orphans) {
        self.handover.adopt(
            orphans,
            |LeftHot {
                 slot,
                 mappable,
                 past_mount,
             }| {
                if let Some(mappable) = mappable {
                    self.adopt_hot(slot, mappable);
                }
                if past_mount {
                    self.hot.note_past_mount(slot);
                }
            },
        );
    }

    fn adopt_hot(&self, slot: Slot, mappable: bool) {
        let file: SysResult<File> = self
            .inodes
            .open_file(slot.into(), Open::READ)
            .map(|(file, _)| file);
        let noted = file.and_then(|file| self.hot.note(slot, &Arc::new(file), mappable, None));
        if mappable {
            self.hot.note_syncs(slot);
        }
        if let Err(errno) = noted {
            tracing::warn!(slot = slot.0, %errno, "a file that may be mapped is not watched any more");
        }
    }
}
