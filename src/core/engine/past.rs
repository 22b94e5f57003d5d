//! Past nodes: inodes below `.snapshots`.
//!
//! A past node is an inode in the view of one checkpoint. Its number is derived from both, so that
//! it is stable across lookups and remounts and never equals that of the live inode: `diff`, `tar`
//! and `rsync` treat equal numbers as the same file.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::request::{Fh, NodeId};
use crate::history::present::Trail;
use crate::history::state::TreeState;
use crate::history::view::{OpenContent, View};
use ckptfs_api::CheckpointId;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::Child;
use ckptfs_sys::lock::{Mutex, RwLock};
use ckptfs_sys::{Errno, Kind, Ledger, ROW_WORDS, RowId, SysResult};

/// Set in the number of every past node.
pub(super) const PAST: u64 = 1 << 62;
/// Set in every handle of a past file.
pub(super) const PAST_HANDLE: u64 = 1 << 63;

/// The kind of name by which a view was entered. Each kind has other inodes of the same view,
/// because the kernel keeps one dentry per directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ViewEntryKind {
    /// The checkpoint's number.
    Number,
    /// The directory made by `mkdir .snapshots/NAME`.
    Made,
    /// Its time (`--snapdir-names=gmt`).
    Time,
}

impl ViewEntryKind {
    /// All kinds; the index is used in node numbers and ledgers.
    pub(super) const ALL: [ViewEntryKind; 3] = [
        ViewEntryKind::Number,
        ViewEntryKind::Made,
        ViewEntryKind::Time,
    ];
}

/// An inode of a view.
#[derive(Clone, Debug)]
pub(super) struct PastNode {
    pub(super) id: NodeId,
    pub(super) checkpoint: CheckpointId,
    pub(super) door: ViewEntryKind,
    pub(super) child: Child,
    pub(super) trail: Arc<Trail>,
}

/// An open file of a view.
pub(super) struct PastHandle {
    node: PastNode,
    pub(super) content: OpenContent,
}

/// Ledger rows of nodes: number, checkpoint, door, slot, type, slot of the directory in which it
/// was found.
const LEFT_NODE: u64 = 3;

/// A node in the kernel's cache. Compact, because a million may exist: all nodes in a directory
/// share its trail.
struct CachedPastNode {
    checkpoint: CheckpointId,
    slot: Slot,
    /// For a directory its own trail; otherwise that of its directory, with the name.
    trail: Arc<Trail>,
    name: Option<Name>,
    lookups: u64,
    row: Option<RowId>,
    kind: Kind,
    door: ViewEntryKind,
}

impl CachedPastNode {
    fn new(
        checkpoint: CheckpointId,
        door: ViewEntryKind,
        child: Child,
        trail: Arc<Trail>,
        row: Option<RowId>,
    ) -> CachedPastNode {
        let (trail, name) = match &trail.up {
            Some(up) if child.kind != Kind::Dir => (Arc::clone(up), Some(trail.name.clone())),
            _ => (trail, None),
        };
        CachedPastNode {
            checkpoint,
            slot: child.slot,
            trail,
            name,
            lookups: 0,
            row,
            kind: child.kind,
            door,
        }
    }

    fn node(&self, id: NodeId) -> PastNode {
        let trail = self.name.as_ref().map_or_else(
            || Arc::clone(&self.trail),
            |name| self.trail.step(name, self.slot),
        );
        PastNode {
            id,
            checkpoint: self.checkpoint,
            door: self.door,
            child: Child {
                slot: self.slot,
                kind: self.kind,
            },
            trail,
        }
    }
}

/// A node of an earlier worker, not used since the takeover.
#[derive(Clone, Copy, Debug)]
pub(super) struct InheritedNode {
    row: RowId,
    pub(super) checkpoint: CheckpointId,
    pub(super) door: ViewEntryKind,
    pub(super) child: Child,
    /// The directory in which it was found.
    pub(super) up: NodeId,
}

/// All past nodes in the kernel's cache, and their open files. The locks are leaves.
#[derive(Default)]
pub(super) struct PastNodes {
    /// A B-tree grows node by node; a hash table would be copied on growth, and then be half empty.
    nodes: Mutex<BTreeMap<NodeId, CachedPastNode>>,
    ledger: OnceLock<Arc<Ledger>>,
    left: Mutex<HashMap<NodeId, InheritedNode>>,
    handles: RwLock<HashMap<u64, Arc<PastHandle>>>,
    last_handle: AtomicU64,
}

impl PastNodes {
    /// Returns the number of an inode of a view.
    pub(super) fn number(checkpoint: CheckpointId, door: ViewEntryKind, child: Child) -> NodeId {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(&checkpoint.0.to_le_bytes())
            .update(&[door as u8])
            .update(&child.slot.0.to_le_bytes());
        let bytes = hasher.finalize();
        let mut low = [0_u8; 8];
        low.copy_from_slice(bytes.as_bytes().get(..8).unwrap_or(&[0; 8]));
        NodeId(PAST | (u64::from_le_bytes(low) >> 4))
    }

    /// Enters an inode of a view, and adds `lookups` to its count.
    ///
    /// # Errors
    /// EIO if two inodes have the same number: with 60 bits of a hash, likely only with 2^30 inodes
    /// in use.
    pub(super) fn learn(
        &self,
        checkpoint: CheckpointId,
        door: ViewEntryKind,
        child: Child,
        trail: Arc<Trail>,
        lookups: u64,
    ) -> SysResult<PastNode> {
        let id = PastNodes::number(checkpoint, door, child);
        let mut nodes = self.nodes.lock();
        let known = nodes.entry(id).or_insert_with(|| {
            let row = self.ledger.get().and_then(|ledger| {
                ledger.put(LEFT_NODE, row_of(id, checkpoint, door, child, &trail))
            });
            CachedPastNode::new(checkpoint, door, child, trail, row)
        });
        let node = known.node(id);
        if node.checkpoint != checkpoint || node.child != child || node.door != door {
            return Err(Errno::EIO);
        }
        known.lookups += lookups;
        Ok(node)
    }

    /// Enters nodes into the ledger from now on, and reads those of earlier workers.
    pub(super) fn hand_over(&self, ledger: &Arc<Ledger>) {
        let mut left = self.left.lock();
        for row in ledger
            .rows()
            .into_iter()
            .filter(|row| row.kind == LEFT_NODE)
        {
            let [id, checkpoint, door, slot, kind, up, _] = row.words;
            let (Some(door), Some(kind)) =
                (one_of(&ViewEntryKind::ALL, door), one_of(&KINDS, kind))
            else {
                continue;
            };
            let checkpoint = CheckpointId(checkpoint);
            let dir = Child {
                slot: Slot(up),
                kind: Kind::Dir,
            };
            let up = PastNodes::number(checkpoint, door, dir);
            left.insert(
                NodeId(id),
                InheritedNode {
                    row: row.id,
                    checkpoint,
                    door,
                    child: Child {
                        slot: Slot(slot),
                        kind,
                    },
                    up,
                },
            );
        }
        let _ = self.ledger.set(Arc::clone(ledger));
    }

    /// Returns a node of an earlier worker that has not been used since.
    pub(super) fn left(&self, id: NodeId) -> Option<InheritedNode> {
        self.left.lock().get(&id).copied()
    }

    /// Removes it from those: it was used and entered, or forgotten.
    pub(super) fn no_longer_left(&self, id: NodeId) {
        let gone = self.left.lock().remove(&id);
        if let (Some(gone), Some(ledger)) = (gone, self.ledger.get()) {
            ledger.remove(gone.row);
        }
    }

    /// Returns a node in the kernel's cache.
    pub(super) fn get(&self, id: NodeId) -> SysResult<PastNode> {
        self.nodes
            .lock()
            .get(&id)
            .map(|known| known.node(id))
            .ok_or(Errno::ESTALE)
    }

    /// Subtracts from the lookup count.
    pub(super) fn forget(&self, id: NodeId, lookups: u64) {
        let gone = {
            let mut nodes = self.nodes.lock();
            let Some(known) = nodes.get_mut(&id) else {
                drop(nodes);
                return self.no_longer_left(id);
            };
            known.lookups = known.lookups.saturating_sub(lookups);
            if known.lookups == 0 {
                nodes.remove(&id)
            } else {
                None
            }
        };
        if let (Some(CachedPastNode { row: Some(row), .. }), Some(ledger)) =
            (gone, self.ledger.get())
        {
            ledger.remove(row);
        }
    }

    /// As [`crate::live::Handles::number_from`].
    pub(super) fn number_from(&self, first: u64) {
        self.last_handle.fetch_max(first, Ordering::Relaxed);
    }

    /// Opens a file of a view.
    pub(super) fn open(&self, view: &View<'_>, node: PastNode) -> SysResult<Fh> {
        let handle = PastHandle::open(view, node)?;
        let id = PAST_HANDLE | (self.last_handle.fetch_add(1, Ordering::Relaxed) + 1);
        self.handles.write().insert(id, handle);
        Ok(Fh(id))
    }

    /// Opens a file of a view under its handle from an earlier worker.
    pub(super) fn adopt(&self, view: &View<'_>, node: PastNode, fh: Fh) -> SysResult<()> {
        let handle = PastHandle::open(view, node)?;
        self.last_handle
            .fetch_max(fh.0 & !PAST_HANDLE, Ordering::Relaxed);
        self.handles.write().insert(fh.0, handle);
        Ok(())
    }

    /// Closes a file.
    pub(super) fn release(&self, fh: Fh) {
        self.handles.write().remove(&fh.0);
    }

    /// Returns the number of open files.
    pub(super) fn open_handles(&self) -> usize {
        self.handles.read().len()
    }

    /// Returns the number of inodes in the kernel's cache.
    pub(super) fn known(&self) -> usize {
        self.nodes.lock().len()
    }

    /// Returns an open file of a view.
    pub(super) fn handle(&self, fh: Fh) -> SysResult<Arc<PastHandle>> {
        self.handles.read().get(&fh.0).cloned().ok_or(Errno::EBADF)
    }
}

/// Returns the value with this number in a ledger.
fn one_of<T: Copy>(all: &[T], number: u64) -> Option<T> {
    all.get(usize::try_from(number).ok()?).copied()
}

/// File types by number in a ledger.
const KINDS: [Kind; 7] = [
    Kind::File,
    Kind::Dir,
    Kind::Symlink,
    Kind::Fifo,
    Kind::Socket,
    Kind::CharDev,
    Kind::BlockDev,
];

fn row_of(
    id: NodeId,
    checkpoint: CheckpointId,
    door: ViewEntryKind,
    child: Child,
    trail: &Trail,
) -> [u64; ROW_WORDS] {
    let kind = KINDS
        .iter()
        .position(|kind| *kind == child.kind)
        .unwrap_or(0) as u64;
    let up = trail.up.as_ref().map_or(0, |up| up.slot.0);
    [id.0, checkpoint.0, door as u64, child.slot.0, kind, up, 0]
}

impl PastNode {
    pub(super) fn state(&self) -> TreeState {
        TreeState::At(self.checkpoint)
    }
}

impl PastHandle {
    fn open(view: &View<'_>, node: PastNode) -> SysResult<Arc<PastHandle>> {
        let content = OpenContent::open(view, &node.trail)?;
        Ok(Arc::new(PastHandle { node, content }))
    }

    pub(super) fn state(&self) -> TreeState {
        self.node.state()
    }

    pub(super) fn read(&self, view: &View<'_>, offset: u64, size: u32) -> SysResult<Vec<u8>> {
        self.content.read(view, offset, size)
    }

    /// Returns the inode in the live tree.
    pub(super) fn slot(&self) -> Slot {
        self.node.child.slot
    }
}
