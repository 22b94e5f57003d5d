//! What is to be done to make one tree another, wherever they are: found out from two states of it,
//! and carried out on whatever can rename and link.
//!
//! A plan is names and inodes. Of each directory in which something differs it has the names, with
//! what they lead to and are to lead to; of each inode that is wanted, what becomes of it. So a
//! move is an inode that is wanted at another name than it has, and a hard link is one that is
//! wanted at two: neither is found by comparing paths, and what was renamed on one side and written
//! to on the other is told by two parts of a plan that do not meet.
//!
//! - [`Tree`]: one state of a tree.
//! - [`states::States`]: two of them, with what is known of where they differ; walks along that,
//!   and makes a [`plan::Plan`].
//! - [`pair::plan`]: of any two trees, with nothing known, or with what was recorded between them.
//! - [`merge::merge`]: of three, what two did to one; its outcome is a tree again (ADR 31).
//! - [`apply::apply`]: carries a plan out on a [`apply::Sink`].
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
use crate::history::view::{Source, View};
use crate::store::ids::{CheckpointId, Name, Slot};
use crate::store::record::{AttrState, Child};
use crate::sys::{SysResult, Xattrs};

/// One state of a tree. Inodes of two states with one number are one inode.
pub trait Tree {
    /// What a name in a directory leads to.
    ///
    /// # Errors
    /// Those of reading the directory.
    fn child(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<Child>>;

    /// Every name of a directory.
    ///
    /// # Errors
    /// Those of reading it.
    fn list(&self, dir: &Arc<Trail>) -> SysResult<Vec<(Name, Child)>>;

    /// Attributes.
    ///
    /// # Errors
    /// Those of reading them.
    fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState>;

    /// Extended attributes, sorted by name.
    ///
    /// # Errors
    /// Those of reading them.
    fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs>;

    /// A file holds the same bytes as a file of another state.
    ///
    /// # Errors
    /// Those of reading both.
    fn same_content(&self, file: &Arc<Trail>, other: &Self, there: &Arc<Trail>) -> SysResult<bool>;

    /// What a file holds; `None`: more than `most` bytes.
    ///
    /// # Errors
    /// Those of reading it.
    fn read(&self, file: &Arc<Trail>, most: u64) -> SysResult<Option<Vec<u8>>>;

    /// What a name has led to since a checkpoint, before what it leads to, the last first, as far
    /// as that is known.
    ///
    /// # Errors
    /// Those of reading the history.
    fn former(&self, _dir: Slot, _name: &Name, _since: CheckpointId) -> SysResult<Vec<Child>> {
        Ok(Vec::new())
    }

    /// The inode that a name leads to, with the way to it.
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
            // Nearly always that tells it, and neither need be opened.
            let sizes = (self.attr(file)?.stat.size, other.attr(there)?.stat.size);
            let same = match sizes.0 == sizes.1 {
                true => same_content((self, file), (other, there)),
                false => Ok(false),
            };
            // What is still in a live file was of the past if no record came while it was read.
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
            if source != Source::Live || self.still_live(file, opened.as_ref())? {
                return Ok((bytes.len() as u64 <= most).then_some(bytes));
            }
        }
    }
}

/// An inode has the attributes and extended attributes that it had, or another one. `times`: the
/// time of change of content too.
///
/// # Errors
/// Those of reading them; EIO: the inode of a symbolic link leads elsewhere, which none does.
pub fn has_attrs<T: Tree>(
    (before, old): (&T, &Arc<Trail>),
    (after, new): (&T, &Arc<Trail>),
    times: bool,
) -> SysResult<bool> {
    let (then, now) = (before.attr(old)?, after.attr(new)?);
    if then.target != now.target {
        return Err(crate::sys::Errno::EIO);
    }
    let (a, b) = (&then.stat, &now.stat);
    let same =
        a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && (!times || a.mtime == b.mtime);
    Ok(same && before.xattrs(old)? == after.xattrs(new)?)
}
