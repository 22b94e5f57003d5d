//! What every change needs, to keep the past before it.

use std::sync::Arc;

pub(super) use super::attribution::Writers;
pub(super) use super::busy::Busy;
pub(super) use super::capture::Captures;
pub(super) use super::durable::Durability;
pub(super) use super::inodes::Inodes;
use super::tables::Tables;
use crate::sys::{self, Stat, SysResult};

/// The parts that find an inode, keep what it holds, and see to the order in which things reach the
/// disk.
#[derive(Clone)]
pub(super) struct Past {
    pub(super) inodes: Arc<Inodes>,
    pub(super) durability: Arc<Durability>,
    pub(super) writers: Arc<Writers>,
    pub(super) captures: Arc<Captures>,
    pub(super) busy: Arc<Busy>,
}

impl Past {
    /// `stat`: the attributes of the root.
    ///
    /// # Errors
    /// That of statfs(2).
    pub(super) fn new(tables: &Tables, stat: &Stat) -> SysResult<Past> {
        let filesystem = sys::fs_name(sys::statfs_fd(&tables.root)?.fs_type);
        let inodes = Inodes::new(tables, stat);
        let is_btrfs = filesystem == "btrfs";
        let durability = Durability::new(tables, is_btrfs && !sys::host::left_out("overtaken"));
        let writers = Writers::new(tables);
        let captures = Captures::new(tables, &inodes, &durability, is_btrfs);
        let busy = Busy::new(tables, &inodes, &captures);
        Ok(Past {
            inodes,
            durability,
            writers,
            captures,
            busy,
        })
    }
}
