//! The capture context: the parts that every change needs in order to record the old state first.

use std::sync::Arc;

pub(super) use super::attribution::Writers;
pub(super) use super::busy::Busy;
pub(super) use super::capture::Captures;
pub(super) use super::durable::Durability;
pub(super) use super::inodes::Inodes;
use super::tables::Tables;
use crate::sys::{self, Stat, SysResult};

/// Finds an inode, captures it, attributes the change, and orders writes to the disk.
#[derive(Clone)]
pub(super) struct Past {
    pub(super) inodes: Arc<Inodes>,
    pub(super) durability: Arc<Durability>,
    pub(super) writers: Arc<Writers>,
    pub(super) captures: Arc<Captures>,
    pub(super) busy: Arc<Busy>,
}

impl Past {
    /// Builds the parts in dependency order. `stat` has the attributes of the root.
    ///
    /// # Errors
    /// Those of statfs(2).
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
