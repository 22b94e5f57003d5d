//! What the inodes of a plan are to be: a state of the past for a restore, what comes of three for
//! a merge.

use std::fs::File;
use std::sync::Arc;

use crate::history::present::Trail;
use crate::history::view::{Source, View};
use crate::store::ids::Slot;
use crate::store::layout::merges::Birth;
use crate::store::record::AttrState;
use crate::sys::{SysResult, Xattrs};

/// The content of a wanted file, opened.
pub(in crate::engine) struct Opened {
    /// `None`: it is empty.
    pub(in crate::engine) file: Option<File>,
    /// Nobody can be writing to it.
    pub(in crate::engine) still: bool,
}

/// See the module. Asked by several threads.
pub(in crate::engine) trait Want: Sync {
    /// # Errors
    /// Those of reading them; EIO: they cannot be told.
    fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState>;

    /// # Errors
    /// As [`Want::attr`].
    fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs>;

    /// Opens the content of a regular file; `None`: it can change until the tree is frozen, and
    /// `frozen` says that it is not.
    ///
    /// # Errors
    /// As [`Want::attr`].
    fn open(&self, node: &Arc<Trail>, frozen: bool) -> SysResult<Option<Opened>>;

    /// The way to an inode that is there and stays, in the tree as it is before anything is done.
    fn here(&self, node: &Arc<Trail>) -> Arc<Trail> {
        Arc::clone(node)
    }

    /// An inode was made for the wanted one with this number; `born` tells which.
    ///
    /// # Errors
    /// Those of looking at it.
    fn made(&self, _wanted: Slot, _born: &dyn Fn() -> SysResult<Birth>) -> SysResult<()> {
        Ok(())
    }

    /// What was read of it since it was opened was what is wanted; else it is opened again.
    ///
    /// # Errors
    /// As [`Want::attr`].
    fn was_so(&self, _node: &Arc<Trail>, _opened: &Opened) -> SysResult<bool> {
        Ok(true)
    }
}

impl Want for View<'_> {
    fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState> {
        View::attr(self, node)
    }

    fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs> {
        View::xattrs(self, node)
    }

    fn open(&self, node: &Arc<Trail>, frozen: bool) -> SysResult<Option<Opened>> {
        let (from, file) = View::open(self, node)?;
        let still = from != Source::Live;
        Ok((still || frozen).then_some(Opened { file, still }))
    }
}
