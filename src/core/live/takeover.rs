//! Takeover: a worker adopts the state of one that died.
//!
//! The kernel continues to use the nodes and handles of the previous worker. Nodes are found by one
//! walk over the tree, because their numbers are inode numbers. For a branch the walk covers own
//! inodes; an **inherited** one is found when the kernel refers to it, by its place in the base
//! ([`Adoption::meet`]). All other state is in the handover state (`legacy`). A `Ledger` in memory
//! outlives the worker. It lists the files that the kernel may write to without a handle, and the
//! exchanges begun; `fuse/` adds open handles, the engine adds nodes of views. A `Keeper` has
//! descriptors of open files without names.

mod branch;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::capture_ctx::{CaptureCtx, Inodes, WriterTable};
use super::change::ChangeCtx;
use super::handles::{Handle, HandleId, OpenFlags};
use super::handover::{HandedHotFile, KeptFds};
use super::nodes::{IoMode, generation_of};
use super::shared_tables::{Handles, HandoverLog, HotFiles, Locks, NodeTable, SharedTables};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::Place;
use ckptfs_sys::{self as sys, Access, Errno, Kind, SysResult};

/// Adopts the state of the previous worker.
pub struct Adoption {
    root: Arc<OwnedFd>,
    locks: Arc<Locks>,
    nodes: Arc<NodeTable>,
    hot: Arc<HotFiles>,
    handles: Arc<Handles>,
    handover: Arc<HandoverLog>,
    inodes: Arc<Inodes>,
    writers: Arc<WriterTable>,
    /// The kernel may reference inherited inodes that are not in the node table.
    asks_base: AtomicBool,
}

impl Adoption {
    pub(super) fn new(tables: &SharedTables, past: &CaptureCtx) -> Adoption {
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

    /// Adopts every inode of the tree by a walk, because the kernel may reference it; for a branch,
    /// every own inode. To be called before the tree is served. Returns their number.
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

    /// Adopts an open file of the previous worker.
    ///
    /// # Errors
    /// Those of open(2); ESTALE if it is not found.
    pub fn adopt_open(
        &self,
        change: &ChangeCtx,
        id: HandleId,
        slot: Slot,
        flags: OpenFlags,
        io: IoMode,
        orphans: &KeptFds,
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
        // Writes to a file without names affect no checkpoint.
        if io == IoMode::Passthrough && flags.write && !self.nodes.is_dead(slot) {
            // The process is recorded as a writer in the journal since its open, or since the
            // newest checkpoint.
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

    /// Returns whether an inode has no name in the tree: either no name, or only one in a layer.
    fn is_nameless(&self, slot: Slot, orphan: &OwnedFd) -> SysResult<bool> {
        let is_nowhere = || self.inodes.find(slot.into()).err() == Some(Errno::ESTALE);
        Ok(sys::stat_fd(orphan)?.nlink == 0 || is_nowhere())
    }

    /// Adopts the hot files in the ledger that have no open handle. To be called after all handles
    /// are adopted.
    pub fn adopt_rest(&self, orphans: &KeptFds) {
        self.handover.adopt(
            orphans,
            |HandedHotFile {
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
            .open_file(slot.into(), Access::READ)
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
