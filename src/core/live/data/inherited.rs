//! Open inherited files of a branch.

use std::fs::File;
use std::sync::Arc;

use super::Files;
use crate::live::change::ChangeCtx;
use crate::live::handles::{Handle, HandleId, OpenFlags};
use crate::live::nodes::IoMode;
use ckptfs_store::ids::Slot;
use ckptfs_sys::{Access, SysResult};

/// Inherited files of this size or more are copied up at their open, for passthrough reads. Smaller
/// ones are read once and are then in the page cache.
const COPIED_FROM: u64 = 128 * 1024;

impl Files {
    /// Opens an inherited file for reading, without a lock during access to the parent's file.
    /// Returns `None` if the file is own. I/O goes through the daemon: a later copy-up moves the
    /// content to another backing inode, which a passthrough handle would not follow.
    pub(super) fn open_inherited(
        &self,
        change: &ChangeCtx,
        slot: Slot,
        flags: OpenFlags,
    ) -> SysResult<Option<(HandleId, Arc<Handle>)>> {
        let base = self.inodes.base();
        let Some((content, stat)) = base.open_content(slot.into())? else {
            return Ok(None);
        };
        let file = match content.file() {
            Some(file) => file,
            None => Arc::new(base.empty_file()?),
        };
        let _tree = self.locks.tree.read();
        let _stripe = self.locks.stripe(slot);
        if !self.inodes.base().is_inherited(slot) {
            return Ok(None);
        }
        let io = IoMode::Daemon;
        let inherited = Some(content);
        self.opened_as(change, slot, file, flags, io, (stat.mode, None), inherited)
            .map(Some)
    }

    /// Returns whether an inherited file opened for reading is copied up to permit passthrough:
    /// large files and executables are.
    pub(super) fn is_served_by_kernel(&self, slot: Slot, flags: OpenFlags) -> SysResult<bool> {
        if !self.inodes.base().is_inherited(slot) || !self.passthrough.is_for(flags.asker) {
            return Ok(false);
        }
        let stat = self.inodes.stat(slot)?;
        Ok(stat.size >= COPIED_FROM || stat.size > 0 && stat.mode & 0o111 != 0)
    }

    /// Calls `with` on the file to read from, or with `None` if it is empty. A file that was
    /// inherited when it was opened may have been copied up and changed since.
    ///
    /// # Errors
    /// Those of `with` and of open(2).
    pub fn with_source<T>(
        &self,
        handle: &Handle,
        with: impl Fn(Option<&File>) -> SysResult<T>,
    ) -> SysResult<T> {
        let Some(content) = &handle.inherited else {
            return with(Some(&handle.file));
        };
        let base = self.inodes.base();
        if let Some(view) = base.view()
            && base.is_inherited(handle.slot)
        {
            return content.with(&view, with);
        }
        let (file, _) = {
            let _tree = self.locks.tree.read();
            self.inodes.open_file(handle.slot.into(), Access::READ)?
        };
        with(Some(&file))
    }

    /// Reads through a handle of an inherited file. Returns `None` if the file is own.
    pub(super) fn read_inherited(
        &self,
        handle: &Handle,
        offset: u64,
        size: u32,
    ) -> SysResult<Option<Vec<u8>>> {
        let base = self.inodes.base();
        match (&handle.inherited, base.view()) {
            (Some(content), Some(view)) if base.is_inherited(handle.slot) => {
                content.read(&view, offset, size).map(Some)
            }
            _ => Ok(None),
        }
    }
}
