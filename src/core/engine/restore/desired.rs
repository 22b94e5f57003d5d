//! The desired state of the inodes of a plan: a past state for a restore, the merge result for a
//! merge.

use std::fs::File;
use std::sync::Arc;

use crate::history::present::Trail;
use crate::history::view::{ContentLocation, View};
use ckptfs_store::ids::Slot;
use ckptfs_store::layout::merges::InodeBirth;
use ckptfs_store::record::AttrState;
use ckptfs_sys::{SysResult, Xattrs};

/// The content of a desired file, opened.
pub(in crate::engine) struct DesiredContent {
    /// `None`: the file is empty.
    pub(in crate::engine) file: Option<File>,
    /// No process can write to the file.
    pub(in crate::engine) still: bool,
}

/// The source of desired inodes. Used by several threads.
pub(in crate::engine) trait DesiredInodes: Sync {
    /// Returns the desired attributes.
    ///
    /// # Errors
    /// Errors of reading them; EIO: they are unknown.
    fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState>;

    /// Returns the desired extended attributes.
    ///
    /// # Errors
    /// As [`DesiredInodes::attr`].
    fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs>;

    /// Opens the content of a regular file. `None`: the content can change until the tree is
    /// frozen, and `frozen` is false.
    ///
    /// # Errors
    /// As [`DesiredInodes::attr`].
    fn open(&self, node: &Arc<Trail>, frozen: bool) -> SysResult<Option<DesiredContent>>;

    /// Returns the path to an inode that exists and stays, in the live tree before any change.
    fn here(&self, node: &Arc<Trail>) -> Arc<Trail> {
        Arc::clone(node)
    }

    /// Notifies that an inode was created for the desired one with this number; `born` identifies
    /// it.
    ///
    /// # Errors
    /// Errors of stat.
    fn made(&self, _wanted: Slot, _born: &dyn Fn() -> SysResult<InodeBirth>) -> SysResult<()> {
        Ok(())
    }

    /// Returns whether the content read since the open was the desired content; otherwise the
    /// caller opens it again.
    ///
    /// # Errors
    /// As [`DesiredInodes::attr`].
    fn was_so(&self, _node: &Arc<Trail>, _opened: &DesiredContent) -> SysResult<bool> {
        Ok(true)
    }
}

impl DesiredInodes for View<'_> {
    fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState> {
        View::attr(self, node)
    }

    fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs> {
        View::xattrs(self, node)
    }

    fn open(&self, node: &Arc<Trail>, frozen: bool) -> SysResult<Option<DesiredContent>> {
        let (from, file) = View::open(self, node)?;
        let still = from != ContentLocation::Live;
        Ok((still || frozen).then_some(DesiredContent { file, still }))
    }
}
