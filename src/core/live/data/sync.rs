//! fsync(2), in the order required by module `durable`.

use super::Files;
use crate::live::handles::HandleId;
use ckptfs_store::ids::Slot;
use ckptfs_sys::{self as sys, Access, SysResult};

impl Files {
    /// Syncs a file, as fsync(2). Its captures are synced first where the backing filesystem could
    /// lose them.
    ///
    /// # Errors
    /// EIO, ENOSPC.
    pub fn fsync(&self, id: HandleId, data_only: bool) -> SysResult<()> {
        let handle = self.handles.get(id)?;
        let _sync = self.durability.begin_sync();
        self.durability.make_captures_durable(handle.slot)?;
        if data_only {
            sys::fdatasync(&*handle.file)
        } else {
            sys::fsync(&*handle.file)
        }
    }

    /// Syncs a directory, as fsync(2).
    ///
    /// # Errors
    /// EIO.
    pub fn fsync_dir(&self, slot: Slot) -> SysResult<()> {
        let _sync = self.durability.begin_sync();
        self.durability.make_past_durable()?;
        if self.inodes.base().is_inherited(slot) {
            return Ok(());
        }
        let dir = self.inodes.dir(slot)?;
        sys::fsync(sys::reopen(&dir, Access::READ)?)
    }
}
