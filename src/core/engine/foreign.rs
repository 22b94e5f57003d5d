//! Mount points of nested filesystems and subvolumes: the kernel sees an opaque directory, over
//! which `ckptfs mount` binds the original.

use super::Engine;
use super::request::{Attr, Entry, FOR_EVER, NodeId};
use super::snapdir::CONTROL;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_sys::{self as sys, Kind, Stat, SysResult};

/// Set in the number of every such node, with the bit of control nodes.
const FOREIGN: u64 = 1 << 57;
/// The bits that distinguish kinds of control nodes.
const KIND: u64 = 0b11111 << 57;

/// Returns whether a node is foreign.
pub(super) fn is_foreign(node: NodeId) -> bool {
    node.0 & KIND == CONTROL | FOREIGN
}

/// Set in the number of a node that is not a directory.
const FILE: u64 = 1;

/// Returns the node of a name in a live directory. It is derived from the name, so that a mount
/// over it remains.
fn node_of(dir: Slot, name: &Name, kind: Kind) -> NodeId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&dir.0.to_le_bytes()).update(name.as_bytes());
    let mut low = [0; 8];
    hasher.finalize_xof().fill(&mut low);
    let hash = (u64::from_le_bytes(low) >> 8) & !FILE;
    NodeId(CONTROL | FOREIGN | hash | u64::from(kind != Kind::Dir))
}

/// Returns the entry of a name in a live directory that leads to another filesystem.
///
/// # Errors
/// Those of stat(2).
pub(super) fn entry(engine: &Engine, dir: Slot, name: &Name) -> SysResult<Entry> {
    let there = sys::stat_at(engine.live.inodes.dir(dir)?, name.as_bytes())?;
    let node = node_of(dir, name, there.kind);
    Ok(Entry {
        node,
        generation: 0,
        stat: stat(engine, node)?,
        ttl: FOR_EVER,
    })
}

/// Returns the attributes of such a node without a request to the other filesystem.
///
/// # Errors
/// Those of stat(2) of the root directory.
pub(super) fn stat(engine: &Engine, node: NodeId) -> SysResult<Stat> {
    let is_dir = node.0 & FILE == 0;
    Ok(Stat {
        ino: node.0,
        kind: if is_dir { Kind::Dir } else { Kind::File },
        mode: if is_dir { 0o555 } else { 0o444 },
        nlink: if is_dir { 2 } else { 1 },
        size: 0,
        blocks: 0,
        ..engine.live.inodes.stat(Slot::ROOT)?
    })
}

/// As [`stat`], with the timeout.
///
/// # Errors
/// As [`stat`].
pub(super) fn attr(engine: &Engine, node: NodeId) -> SysResult<Attr> {
    let stat = stat(engine, node)?;
    let ttl = FOR_EVER;
    Ok(Attr { stat, ttl })
}
