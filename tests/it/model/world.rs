//! Performs operations on a real directory and on the model, and compares the results.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::calls::{actual, open, write_all};
use super::counts::Counts;
use super::cut::CutDisk;
use super::expected::expected;
use super::generate::DrawContext;
use super::map::Mapping;
use super::marks::destroys;
use super::observe::{StampTimes, absolute};
use super::ops::{Op, Verb, bytes};
use super::setup::has_tripwire;
use super::tree::{Id, Model, OpResult, Tree};
use crate::common::{Io, Mount, MountOpts, OpenStore};
use ckptfs_api::Client;

/// Maximum number of open handles.
pub const HANDLES: usize = 8;
/// Handles that are opened and closed often; the others stay open and are written rarely.
pub const HANDLES_BUSY: usize = 5;
/// Maximum number of mappings.
pub const MAPS: usize = 3;
/// Maximum number of open files of views.
pub const VIEWS: usize = 3;

/// A user subject to limits keeps one checkpoint and one deleted checkpoint; gc frees marks at
/// once.
const SETTINGS: &str =
    "[snapdir]\nper-user = 1\nper-minute = 100000\n\n[tripwire]\nkeep = \"1ms\"\n";

pub struct Handle {
    pub id: Id,
    pub ino: u64,
    pub file: OwnedFd,
    pub read: bool,
    pub write: bool,
    pub append: bool,
}

/// A shared mapping whose file was closed.
pub struct Mapped {
    pub id: Id,
    pub mapping: Mapping,
    /// May be served by daemon I/O, because of set-id bits or because the file was open that way
    /// already. Such a mapping does not survive the daemon.
    pub served: bool,
    pub ino: u64,
}

/// An open file of a view, with its immutable content.
pub struct ViewFile {
    pub file: OwnedFd,
    pub content: Arc<Vec<u8>>,
}

/// A checkpoint and the expected tree.
pub struct ModelCheckpoint {
    pub id: u64,
    /// Requested by a user: may be `latest`. Not a guard, nor made by the daemon.
    pub asked: bool,
    /// Made by the daemon for an absence.
    pub auto: bool,
    pub tree: Tree,
    pub tag: Option<String>,
    /// Inode numbers of its view, from the first observation on.
    pub inos: HashMap<Vec<u8>, u64>,
    /// Survives a power cut.
    pub synced: bool,
    pub made: Instant,
}

/// The mount under test.
pub struct Mounted {
    pub client: Option<Client>,
    pub mount: Mount,
    pub passthrough: bool,
}

/// A directory, its model, and all open files. Without a mount it is an ordinary directory, which
/// tests the model itself.
pub struct ModelRun {
    // Dropped first: open files keep the mount busy.
    pub handles: [Option<Handle>; HANDLES],
    pub maps: [Option<Mapped>; MAPS],
    pub views: [Option<ViewFile>; VIEWS],
    pub mounted: Option<Mounted>,
    pub root: PathBuf,
    pub model: Model,
    pub times: StampTimes,
    pub snaps: Vec<ModelCheckpoint>,
    /// Tripwire marks whose expected content is known.
    pub marks: Vec<ModelCheckpoint>,
    /// Newest mark seen.
    pub mark_newest: u64,
    pub tags: u64,
    pub view_inos: HashSet<u64>,
    /// The tree at the unmount, while nothing is mounted.
    left: Option<Tree>,
    /// Views are checked after each operation.
    pub watch: bool,
    /// Rotates over the other files checked in each view.
    pub turn: usize,
    pub disk: Option<Arc<CutDisk>>,
    pub counts: Counts,
}

/// Returns the content generated from a seed.
pub fn data(seed: u64, length: u64) -> Vec<u8> {
    (0..length)
        .map(|at| (seed.wrapping_mul(31).wrapping_add(at.wrapping_mul(7)) % 251) as u8 + 1)
        .collect()
}

impl ModelRun {
    pub fn new(root: &Path, opts: Option<&MountOpts>) -> ModelRun {
        rustix::fs::chmod(root, Mode::from_raw_mode(0o755)).expect("the directory can be changed");
        let passthrough = opts.is_some_and(|opts| opts.io == Io::Passthrough);
        let mounted = opts.map(|opts| Mounted {
            client: None,
            mount: Mount::start(root, opts),
            passthrough,
        });
        if mounted.is_some() {
            OpenStore::of(root).configure(SETTINGS);
        }
        ModelRun {
            mounted,
            ..ModelRun::plain(root, Model::new(), StampTimes::default())
        }
    }

    fn plain(root: &Path, model: Model, times: StampTimes) -> ModelRun {
        ModelRun {
            root: root.to_owned(),
            mounted: None,
            model,
            times,
            snaps: Vec::new(),
            marks: Vec::new(),
            mark_newest: 0,
            handles: Default::default(),
            maps: Default::default(),
            views: Default::default(),
            tags: 0,
            view_inos: HashSet::new(),
            left: None,
            watch: false,
            turn: 0,
            disk: None,
            counts: Counts::default(),
        }
    }

    /// Returns the model of a branch of this tree, served at `root` by another mount.
    pub fn branch(&mut self, root: &Path) -> ModelRun {
        let model = Model {
            tree: self.model.tree.reachable(),
            counter: self.model.counter.apart(),
            held: BTreeSet::new(),
        };
        ModelRun::plain(root, model, self.times.clone())
    }

    /// Unmounts until an operation needs the mount.
    fn leave(&mut self) -> Result<(), String> {
        if self.mounted.is_some() && self.left.is_none() {
            self.close_all();
            let Some(mounted) = &mut self.mounted else {
                return Ok(());
            };
            mounted.client = None;
            mounted.mount.umount();
            self.left = Some(self.model.tree.reachable());
            mounted.mount.compared_baseline()?;
        }
        Ok(())
    }

    /// Mounts again after `leave`.
    pub fn come_back(&mut self) -> Result<(), String> {
        let (Some(left), Some(mounted)) = (self.left.take(), &mut self.mounted) else {
            return Ok(());
        };
        mounted.mount.remount();
        self.take_in_absence(left)
    }

    /// Nodes with unknown times, because a mapping may be stored to at any time.
    pub fn loose(&self) -> BTreeSet<Id> {
        self.maps.iter().flatten().map(|mapped| mapped.id).collect()
    }

    fn refresh_held(&mut self) {
        let held: BTreeSet<Id> = self
            .handles
            .iter()
            .flatten()
            .map(|handle| handle.id)
            .chain(self.loose())
            .collect();
        for id in std::mem::replace(&mut self.model.held, held.clone()) {
            if !held.contains(&id) {
                self.model.let_go(id);
            }
        }
    }

    /// Returns the state from which operations are drawn.
    pub fn scene(&self) -> DrawContext<'_> {
        // In a passthrough mount a write clears set-id bits that were set while the file is open
        // (docs/semantics.md; tests/it/posix/setid.rs has the full table).
        let open =
            self.handles.iter().any(Option::is_some) || self.maps.iter().any(Option::is_some);
        let passthrough = self
            .mounted
            .as_ref()
            .is_some_and(|mounted| mounted.passthrough);
        DrawContext {
            tree: &self.model.tree,
            past: self.snaps.iter().map(|snap| &snap.tree).collect(),
            set_ids: !(open && passthrough),
            held: (HANDLES_BUSY..HANDLES)
                .filter(|slot| self.handles[*slot].is_some())
                .collect(),
        }
    }

    /// Reports whether the tripwire is on, which makes additional checkpoints. It does not affect
    /// the others.
    pub fn has_marks(&self) -> bool {
        self.mounted
            .as_ref()
            .is_some_and(|mounted| has_tripwire(&mounted.mount.opts))
    }

    /// Performs one operation and checks that nothing else changed.
    pub fn run(&mut self, op: &Op) -> Result<(), String> {
        if !op.verb.is_by_path() {
            self.come_back()?;
        }
        self.counts.operations += 1;
        let before = (self.has_marks() && destroys(op.verb)).then(|| self.model.tree.reachable());
        self.carry_out(op)?;
        if self.mounted.is_none() || self.left.is_some() {
            return Ok(());
        }
        if self.has_marks() {
            self.note_marks(before)?;
        }
        if self.watch || matches!(op.verb, Verb::Free | Verb::Kill | Verb::KillWorker) {
            self.look()?;
        }
        Ok(())
    }

    fn carry_out(&mut self, op: &Op) -> Result<(), String> {
        match op.verb {
            Verb::With => Ok(()),
            Verb::Leave => self.leave(),
            Verb::Open
            | Verb::Close
            | Verb::HandleWrite
            | Verb::HandleTruncate
            | Verb::HandleRead
            | Verb::HandleChmod
            | Verb::HandleUtimens
            | Verb::Fsync => self.handle_op(op),
            Verb::OpenView | Verb::ReadView => self.view_op(op),
            Verb::Map | Verb::Store | Verb::Unmap => self.map_op(op),
            Verb::CheckLive => self.check_live(),
            Verb::Checkpoint
            | Verb::SyncedCheckpoint
            | Verb::NamedCheckpoint
            | Verb::LimitedCheckpoint
            | Verb::Restore
            | Verb::RestorePaths
            | Verb::Delete
            | Verb::Free
            | Verb::Verify
            | Verb::Cut
            | Verb::Remount
            | Verb::Idle
            | Verb::ListSnapshots
            | Verb::DryRestore
            | Verb::Kill
            | Verb::KillWorker
            | Verb::CheckViews
            | Verb::CheckStatus
            | Verb::CheckDiff => {
                if self.mounted.is_some() {
                    self.control_op(op)
                } else {
                    Ok(())
                }
            }
            _ => {
                let paths: Vec<Vec<u8>> = op.paths.iter().map(|path| bytes(path)).collect();
                let empty = Vec::new();
                let first = paths.first().unwrap_or(&empty);
                let second = paths.get(1).unwrap_or(&empty);
                let expected = expected(&mut self.model, &mut self.times, op, first, second);
                let act = || actual(&self.root, op, first, second);
                // The tripwire counts removals per thread.
                let actual = if op.verb == Verb::Unlink && self.has_marks() {
                    std::thread::scope(|scope| scope.spawn(act).join().expect("no panic"))
                } else {
                    act()
                };
                same(expected, actual)
            }
        }
    }

    fn handle_op(&mut self, op: &Op) -> Result<(), String> {
        let slot = op.number(0) as usize % HANDLES;
        if op.verb == Verb::Open {
            return self.open_handle(op, slot);
        }
        let Some(handle) = &self.handles[slot] else {
            return Ok(());
        };
        let (id, refused) = (
            handle.id,
            if handle.write {
                Ok(())
            } else {
                Err(Errno::BADF)
            },
        );
        match op.verb {
            Verb::Close => {
                self.handles[slot] = None;
                self.refresh_held();
                Ok(())
            }
            Verb::HandleWrite => {
                let content = data(op.number(3), op.number(2));
                same(refused, write_all(&handle.file, &content, op.number(1)))?;
                match (refused, handle.append) {
                    (Ok(()), true) => self.model.append(id, &content),
                    (Ok(()), false) => self.model.write(id, op.number(1) as usize, &content),
                    _ => {}
                }
                Ok(())
            }
            Verb::HandleTruncate => {
                same(
                    refused.map_err(|_| Errno::INVAL),
                    rustix::fs::ftruncate(&handle.file, op.number(1)),
                )?;
                if refused.is_ok() {
                    self.model.truncate(id, op.number(1) as usize);
                }
                Ok(())
            }
            Verb::Fsync => same(Ok(()), rustix::fs::fsync(&handle.file)),
            Verb::HandleChmod => {
                same(
                    Ok(()),
                    rustix::fs::fchmod(&handle.file, Mode::from_raw_mode(op.number(1) as u32)),
                )?;
                self.model.node_mut(id).mode = op.number(1) as u32;
                Ok(())
            }
            Verb::HandleUtimens => self.handle_utimens(op, slot),
            _ => self.check_handle(handle),
        }
    }

    fn handle_utimens(&mut self, op: &Op, slot: usize) -> Result<(), String> {
        let Some(handle) = &self.handles[slot] else {
            return Ok(());
        };
        let id = handle.id;
        let time = Timespec {
            tv_sec: op.number(1) as i64,
            tv_nsec: op.number(2) as _,
        };
        same(
            Ok(()),
            rustix::fs::futimens(
                &handle.file,
                &Timestamps {
                    last_access: time,
                    last_modification: time,
                },
            ),
        )?;
        self.model.touch(id);
        self.times.set(
            self.model.tree.node(id).mtime,
            (op.number(1) as i64, op.number(2) as i64),
        );
        Ok(())
    }

    fn open_handle(&mut self, op: &Op, slot: usize) -> Result<(), String> {
        let path = bytes(op.path(0));
        let id = self
            .model
            .tree
            .lookup(&path)
            .ok()
            .filter(|id| self.model.tree.node(*id).content().is_some());
        let Some(id) = id else { return Ok(()) };
        let (read, write, append) = [
            (true, false, false),
            (true, true, false),
            (false, true, true),
            (false, true, false),
        ][op.number(1) as usize % 4];
        let access = match (read, write) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            _ => OFlags::RDONLY,
        };
        let flags = if append {
            access | OFlags::APPEND
        } else {
            access
        };
        self.handles[slot] = None;
        let file = open(&absolute(&self.root, &path), flags, Mode::empty())
            .map_err(|errno| format!("cannot open {}: {errno}", op.path(0)))?;
        let ino = ino(&file)?;
        self.handles[slot] = Some(Handle {
            id,
            ino,
            file,
            read,
            write,
            append,
        });
        self.refresh_held();
        Ok(())
    }

    fn map_op(&mut self, op: &Op) -> Result<(), String> {
        let slot = op.number(0) as usize % MAPS;
        match op.verb {
            Verb::Map => {
                let path = bytes(op.path(0));
                let id = self
                    .model
                    .tree
                    .lookup(&path)
                    .ok()
                    .filter(|id| self.model.size(*id) > 0);
                let Some(id) = id else { return Ok(()) };
                self.unmap(slot);
                let path = absolute(&self.root, &path);
                let cannot = |errno: Errno| format!("cannot map {}: {errno}", op.path(0));
                let file = open(&path, OFlags::RDWR, Mode::empty()).map_err(cannot)?;
                let mapping = Mapping::new(file.as_fd(), self.model.size(id)).map_err(cannot)?;
                let open = self.handles.iter().flatten().any(|handle| handle.id == id)
                    || self.loose().contains(&id);
                let served = open || self.model.tree.node(id).mode & 0o6000 != 0;
                self.maps[slot] = Some(Mapped {
                    id,
                    mapping,
                    served,
                    ino: ino(&file)?,
                });
                self.refresh_held();
            }
            Verb::Unmap => self.unmap(slot),
            _ => {
                let Some(mapped) = &mut self.maps[slot] else {
                    return Ok(());
                };
                let (offset, bytes) = (op.number(1) as usize, data(op.number(3), op.number(2)));
                let end = self.model.size(mapped.id).min(mapped.mapping.len());
                if offset + bytes.len() <= end {
                    mapped.mapping.store(offset, &bytes)?;
                    let id = mapped.id;
                    self.model.write(id, offset, &bytes);
                }
            }
        }
        Ok(())
    }

    fn unmap(&mut self, slot: usize) {
        if let Some(mapped) = self.maps[slot].take() {
            self.model.touch(mapped.id);
            self.refresh_held();
        }
    }

    /// Closes everything before an unmount.
    pub fn close_all(&mut self) {
        self.flush_maps();
        self.unmap_all();
        self.close_handles();
    }

    pub fn unmap_all(&mut self) {
        (0..MAPS).for_each(|slot| self.unmap(slot));
    }

    pub fn unmap_served(&mut self) {
        let served = |slot: &usize| {
            self.maps[*slot]
                .as_ref()
                .is_some_and(|mapped| mapped.served)
        };
        let slots: Vec<usize> = (0..MAPS).filter(served).collect();
        slots.into_iter().for_each(|slot| self.unmap(slot));
    }

    pub fn flush_maps(&self) {
        self.maps
            .iter()
            .flatten()
            .for_each(|mapped| mapped.mapping.flush());
    }

    pub fn close_handles(&mut self) {
        self.handles = Default::default();
        self.views = Default::default();
        self.refresh_held();
    }
}

/// Compares the results of an operation.
pub fn same(expected: OpResult<()>, actual: OpResult<()>) -> Result<(), String> {
    let shown = |answer: OpResult<()>| {
        answer.map_or_else(|errno| errno.to_string(), |()| "success".to_owned())
    };
    // For a directory that is not empty POSIX allows both errors.
    let full = expected == Err(Errno::NOTEMPTY) && actual == Err(Errno::EXIST);
    if expected == actual || full {
        Ok(())
    } else {
        Err(format!(
            "answered {}, expected {}",
            shown(actual),
            shown(expected)
        ))
    }
}

fn ino(file: &OwnedFd) -> Result<u64, String> {
    rustix::fs::fstat(file)
        .map(|stat| stat.st_ino)
        .map_err(|errno| format!("fstat: {errno}"))
}
