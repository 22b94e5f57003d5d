//! Nodes of the past: what the kernel sees below `.snapshots`.
//!
//! A past node is an inode of one checkpoint's view. Its number is made from the two, so that it is the same at every look-up and after a remount,
//! and never that of the live inode: `diff`, `tar` and `rsync` take equal numbers for the same file.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::request::{Fh, NodeId};
use crate::history::present::Trail;
use crate::history::view::{Source, State, View};
use crate::store::ids::CheckpointId;
use crate::store::record::Child;
use crate::sys::lock::{Mutex, RwLock};
use crate::sys::{self, Errno, SysResult};

/// Set in the number of every past node.
pub(super) const PAST: u64 = 1 << 62;
/// Set in the number of every handle of a past file.
pub(super) const PAST_HANDLE: u64 = 1 << 63;

/// An inode of a view.
#[derive(Debug)]
pub(super) struct PastNode {
    pub(super) id: NodeId,
    pub(super) checkpoint: CheckpointId,
    /// The view was entered by a directory that `mkdir .snapshots/NAME` made: the same view, but other inodes than below the number.
    pub(super) named: bool,
    pub(super) child: Child,
    pub(super) trail: Arc<Trail>,
}

/// An open file of a view.
pub(super) struct PastHandle {
    node: Arc<PastNode>,
    open: Mutex<(Source, Option<Arc<File>>)>,
}

/// All past nodes that the kernel knows, and their open files. Both locks are leaves.
#[derive(Default)]
pub(super) struct Past {
    nodes: Mutex<HashMap<NodeId, (Arc<PastNode>, u64)>>,
    handles: RwLock<HashMap<u64, Arc<PastHandle>>>,
    last_handle: AtomicU64,
}

impl Past {
    /// The number of an inode of a view.
    pub(super) fn number(checkpoint: CheckpointId, named: bool, child: Child) -> NodeId {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&checkpoint.0.to_le_bytes()).update(&[u8::from(named)]).update(&child.slot.0.to_le_bytes());
        let bytes = hasher.finalize();
        let mut low = [0_u8; 8];
        low.copy_from_slice(bytes.as_bytes().get(..8).unwrap_or(&[0; 8]));
        NodeId(PAST | (u64::from_le_bytes(low) >> 4))
    }

    /// Enters an inode of a view, with `lookups` more look-ups.
    ///
    /// # Errors
    /// EIO if two inodes have one number: 60 bits of a hash make that a matter of 2^30 inodes in use at once.
    pub(super) fn learn(&self, checkpoint: CheckpointId, named: bool, child: Child, trail: Arc<Trail>, lookups: u64) -> SysResult<Arc<PastNode>> {
        let id = Past::number(checkpoint, named, child);
        let mut nodes = self.nodes.lock();
        let (node, count) = nodes.entry(id).or_insert_with(|| (Arc::new(PastNode { id, checkpoint, named, child, trail }), 0));
        if node.checkpoint != checkpoint || node.child != child || node.named != named {
            return Err(Errno::EIO);
        }
        *count += lookups;
        Ok(Arc::clone(node))
    }

    /// A node that the kernel knows.
    pub(super) fn get(&self, id: NodeId) -> SysResult<Arc<PastNode>> {
        self.nodes.lock().get(&id).map(|(node, _)| Arc::clone(node)).ok_or(Errno::ESTALE)
    }

    /// Takes back look-ups.
    pub(super) fn forget(&self, id: NodeId, lookups: u64) {
        let mut nodes = self.nodes.lock();
        if let Some((_, count)) = nodes.get_mut(&id) {
            *count = count.saturating_sub(lookups);
            if *count == 0 {
                nodes.remove(&id);
            }
        }
    }

    /// Opens a file of a view.
    pub(super) fn open(&self, view: &View<'_>, node: Arc<PastNode>) -> SysResult<Fh> {
        let (source, file) = view.open(&node.trail)?;
        let handle = Arc::new(PastHandle { node, open: Mutex::new((source, file.map(Arc::new))) });
        let id = PAST_HANDLE | (self.last_handle.fetch_add(1, Ordering::Relaxed) + 1);
        self.handles.write().insert(id, handle);
        Ok(Fh(id))
    }

    /// Closes one.
    pub(super) fn release(&self, fh: Fh) {
        self.handles.write().remove(&fh.0);
    }

    /// Number of open files.
    pub(super) fn open_handles(&self) -> usize {
        self.handles.read().len()
    }

    /// Number of inodes that the kernel knows.
    pub(super) fn known(&self) -> usize {
        self.nodes.lock().len()
    }

    /// An open file of a view.
    pub(super) fn handle(&self, fh: Fh) -> SysResult<Arc<PastHandle>> {
        self.handles.read().get(&fh.0).cloned().ok_or(Errno::EBADF)
    }
}

impl PastNode {
    pub(super) fn state(&self) -> State {
        State::At(self.checkpoint)
    }
}

impl PastHandle {
    pub(super) fn state(&self) -> State {
        self.node.state()
    }

    /// Does `with` on the file that holds the content; `None` if it is empty. While the content is still in the live file, what was done counts
    /// only if it is there still after; else it is done again on the capture.
    pub(super) fn with<T>(&self, view: &View<'_>, with: impl Fn(Option<&File>) -> SysResult<T>) -> SysResult<T> {
        loop {
            let (source, file) = self.open.lock().clone();
            let answer = with(file.as_deref());
            if source != Source::Live || view.still_live(&self.node.trail, file.as_deref())? {
                return answer;
            }
            let (source, file) = view.open(&self.node.trail)?;
            *self.open.lock() = (source, file.map(Arc::new));
        }
    }

    /// Reads.
    pub(super) fn read(&self, view: &View<'_>, offset: u64, size: u32) -> SysResult<Vec<u8>> {
        self.with(view, |file| {
            let Some(file) = file else { return Ok(Vec::new()) };
            let mut buffer = vec![0_u8; size as usize];
            let filled = sys::read_full_at(file, &mut buffer, offset)?;
            buffer.truncate(filled);
            Ok(buffer)
        })
    }
}
