//! Plans that turn one state of a tree into another, and their execution on any tree that supports
//! rename and link.
//!
//! A plan consists of names and inodes. For each directory with differences it lists names, with
//! the inodes they lead to and should lead to; for each wanted inode, the action on it. A move is
//! thus an inode wanted at a name other than its own, and a hard link is an inode wanted at two
//! names. Neither is found by comparing paths. A rename on one side and a write on the other are
//! independent parts of a plan.
//!
//! - [`Tree`]: one state of a tree.
//! - [`states::PlanBuilder`]: two states, with a bound on their differences; the walk along these
//!   makes a [`plan::TreePlan`].
//! - [`pair::plan`]: plans for any two trees, by full comparison or by the records between them.
//! - [`merge::merge`]: three-way merge; the outcome is again a tree (ADR 31).
//! - [`apply::apply`]: executes a plan on an [`apply::Sink`].
//!
//! Nothing here makes a system call ([ADR 29](../../docs/adr/0029-one-plan.md)).

pub mod apply;
#[cfg(test)]
mod memory;
pub mod merge;
pub mod pair;
pub mod plan;
pub mod states;
#[cfg(test)]
pub(crate) mod tests;

use std::io::Read;
use std::sync::Arc;

use crate::history::present::Trail;
use crate::history::same::same_content;
use crate::history::view::{ContentLocation, View};
use ckptfs_api::CheckpointId;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{AttrState, Child};
use ckptfs_sys::{SysResult, Xattrs};

/// One state of a tree. Equal inode numbers in two states denote the same inode.
pub trait Tree {
    /// Returns the inode that a name in a directory leads to.
    ///
    /// # Errors
    /// Those of reading the directory.
    fn child(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<Child>>;

    /// Returns every name of a directory.
    ///
    /// # Errors
    /// Those of reading it.
    fn list(&self, dir: &Arc<Trail>) -> SysResult<Vec<(Name, Child)>>;

    /// Returns the attributes of an inode.
    ///
    /// # Errors
    /// Those of reading them.
    fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState>;

    /// Returns the extended attributes of an inode, sorted by name.
    ///
    /// # Errors
    /// Those of reading them.
    fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs>;

    /// Reports whether a file has the same bytes as a file of another state.
    ///
    /// # Errors
    /// Those of reading both.
    fn same_content(&self, file: &Arc<Trail>, other: &Self, there: &Arc<Trail>) -> SysResult<bool>;

    /// Returns the content of a file, or `None` if it is longer than `most` bytes.
    ///
    /// # Errors
    /// Those of reading it.
    fn read(&self, file: &Arc<Trail>, most: u64) -> SysResult<Option<Vec<u8>>>;

    /// Returns the inodes that a name led to since a checkpoint and no longer does, newest first,
    /// as far as history has them.
    ///
    /// # Errors
    /// Those of reading the history.
    fn former(&self, _dir: Slot, _name: &Name, _since: CheckpointId) -> SysResult<Vec<Child>> {
        Ok(Vec::new())
    }

    /// Returns the inode that a name leads to, with its trail.
    ///
    /// # Errors
    /// As [`Tree::child`].
    fn step(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<(Child, Arc<Trail>)>> {
        Ok(self
            .child(dir, name)?
            .map(|child| (child, dir.step(name, child.slot))))
    }
}

impl Tree for View<'_> {
    fn former(&self, dir: Slot, name: &Name, since: CheckpointId) -> SysResult<Vec<Child>> {
        View::former(self, dir, name, since)
    }

    fn child(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<Child>> {
        View::child(self, dir, name)
    }

    fn list(&self, dir: &Arc<Trail>) -> SysResult<Vec<(Name, Child)>> {
        View::list(self, dir)
    }

    fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState> {
        View::attr(self, node)
    }

    fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs> {
        View::xattrs(self, node)
    }

    fn same_content(&self, file: &Arc<Trail>, other: &Self, there: &Arc<Trail>) -> SysResult<bool> {
        loop {
            let sources = (self.source(file.slot)?, other.source(there.slot)?);
            // Different sizes nearly always decide; then no file is opened.
            let sizes = (self.attr(file)?.stat.size, other.attr(there)?.stat.size);
            let same = match sizes.0 == sizes.1 {
                true => same_content((self, file), (other, there)),
                false => Ok(false),
            };
            // The content of a live file was that of the past if no record was made while it was
            // read.
            if sources == (self.source(file.slot)?, other.source(there.slot)?) {
                return same;
            }
        }
    }

    fn read(&self, file: &Arc<Trail>, most: u64) -> SysResult<Option<Vec<u8>>> {
        loop {
            let mut bytes = Vec::new();
            let (source, opened) = self.open(file)?;
            if let Some(opened) = &opened {
                opened
                    .take(most.saturating_add(1))
                    .read_to_end(&mut bytes)?;
            }
            if source != ContentLocation::Live || self.still_live(file, opened.as_ref())? {
                return Ok((bytes.len() as u64 <= most).then_some(bytes));
            }
        }
    }
}

/// Reports whether an inode has the same attributes and extended attributes in both states; with
/// `times`, including the modification time.
///
/// # Errors
/// Those of reading them; EIO: the target of a symbolic link differs, which cannot change.
pub fn has_attrs<T: Tree>(
    (before, old): (&T, &Arc<Trail>),
    (after, new): (&T, &Arc<Trail>),
    times: bool,
) -> SysResult<bool> {
    let (then, now) = (before.attr(old)?, after.attr(new)?);
    if then.target != now.target {
        return Err(ckptfs_sys::Errno::EIO);
    }
    let (a, b) = (&then.stat, &now.stat);
    let same =
        a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && (!times || a.mtime == b.mtime);
    Ok(same && before.xattrs(old)? == after.xattrs(new)?)
}
