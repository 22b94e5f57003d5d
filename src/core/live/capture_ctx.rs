//! The capture context: the parts that every change needs in order to record the old state first.

use std::sync::Arc;

pub(super) use super::attribution::WriterTable;
pub(super) use super::capture::Captures;
pub(super) use super::durable::Durability;
pub(super) use super::inodes::Inodes;
pub(super) use super::lock_waits::LockWaits;
use super::shared_tables::SharedTables;
use ckptfs_sys::{self as sys, Stat, SysResult};

/// Finds an inode, captures it, attributes the change, and orders writes to the disk.
#[derive(Clone)]
pub(super) struct CaptureCtx {
    pub(super) inodes: Arc<Inodes>,
    pub(super) durability: Arc<Durability>,
    pub(super) writers: Arc<WriterTable>,
    pub(super) captures: Arc<Captures>,
    pub(super) busy: Arc<LockWaits>,
}

impl CaptureCtx {
    /// Builds the parts in dependency order. `stat` has the attributes of the root.
    ///
    /// # Errors
    /// Those of statfs(2).
    pub(super) fn new(tables: &SharedTables, stat: &Stat) -> SysResult<CaptureCtx> {
        let filesystem = sys::fs_name(sys::statfs_fd(&tables.root)?.fs_type);
        let inodes = Inodes::new(tables, stat);
        let is_btrfs = filesystem == "btrfs";
        let durability = Durability::new(tables, is_btrfs && !sys::host::left_out("overtaken"));
        let writers = WriterTable::new(tables);
        let captures = Captures::new(tables, &inodes, &durability, is_btrfs);
        let busy = LockWaits::new(tables, &inodes, &captures);
        Ok(CaptureCtx {
            inodes,
            durability,
            writers,
            captures,
            busy,
        })
    }
}
