//! Opening files of a branch that the base still answers for.

use std::fs::File;
use std::sync::Arc;

use super::Files;
use crate::live::change::Change;
use crate::live::handles::{Handle, HandleId, OpenFlags};
use crate::live::nodes::IoMode;
use crate::store::ids::Slot;
use crate::sys::{Open, SysResult};

/// An inherited file of so many bytes is copied up when it is opened, where the kernel reads by
/// itself: smaller ones are read once, and are in its cache then.
const COPIED_FROM: u64 = 128 * 1024;

impl Files {
    /// Opens an inherited file to be read, with nothing held while the parent's is looked at; `None`:
    /// it is own. Somebody may write to it later, through an inode of its own that the kernel would
    /// not know: the daemon serves it.
    pub(super) fn open_inherited(
        &self,
        change: &Change,
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

    /// An inherited file that is opened to be read is worth a copy: it is large, or a program, and
    /// the kernel can read it by itself then.
    pub(super) fn is_served_by_kernel(&self, slot: Slot, flags: OpenFlags) -> SysResult<bool> {
        if !self.inodes.base().is_inherited(slot) || !self.passthrough.is_for(flags.asker) {
            return Ok(false);
        }
        let stat = self.inodes.stat(slot)?;
        Ok(stat.size >= COPIED_FROM || stat.size > 0 && stat.mode & 0o111 != 0)
    }

    /// Does `with` on the file that a handle reads from; `None`: it is empty. What was inherited when
    /// it was opened may have been copied up since, and changed.
    ///
    /// # Errors
    /// Its own; those of open(2).
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
            self.inodes.open_file(handle.slot.into(), Open::READ)?
        };
        with(Some(&file))
    }

    /// Reads through a handle of a file that was inherited when it was opened; `None`: it is not
    /// any more, or never was.
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
