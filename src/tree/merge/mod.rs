//! Three ways: what `theirs` did to `base`, done to `ours` as well.
//!
//! An inode is one in all three where it has one number. Of each inode everything is merged by
//! itself: the names that lead to it, its content, its mode, its owners, each extended attribute.
//! What only one side changed is taken from that side; what both changed alike is as both have it.
//! So a file that was renamed here and written to there is renamed and has the new content. What
//! both changed differently is a [`Conflict`], and stays as `ours` has it.
//!
//! - [`side`]: the inodes of a state, with the numbers that they have in common, and their places.
//! - [`places`]: which inode is at which names, such that it is a tree.
//! - [`inodes`]: content and attributes.
//! - [`text`]: lines of three versions of a text.
//! - [`outcome`]: what comes of it, as a [`Tree`] that a plan can be made for.
//!
//! Nothing here makes a system call ([ADR 31](../../../docs/adr/0031-branches-look-through.md)).

mod inodes;
pub mod outcome;
mod places;
mod side;
#[cfg(test)]
mod tests;
pub mod text;

use std::collections::{BTreeSet, HashMap};

use self::outcome::Outcome;
use self::side::Side;
use super::Tree;
use crate::store::ids::{Name, Slot};
use crate::sys::SysResult;

/// One of the two that are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// What is merged into.
    Ours,
    /// What is merged.
    Theirs,
}

/// What both sides changed, each in another way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Clash {
    /// Both moved it, to different places.
    Moved,
    /// This side removed it, and the other one moved or changed it.
    Removed(Who),
    /// Each side has something else at this name.
    Name,
    /// It is in a directory that this side removed.
    Directory(Who),
    /// Each of two directories was moved into the other.
    Cycle,
    /// The bytes of a file, or where a symbolic link leads.
    Content,
    /// The permissions.
    Mode,
    /// The owner or the group.
    Owner,
    /// The extended attribute with this name.
    Xattr(Vec<u8>),
}

/// A conflict. `ours` is left as it is where there is one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The path in `ours`; if it has none there, in `theirs`; else in `base`.
    pub path: Vec<u8>,
    /// What clashes.
    pub clash: Clash,
    /// The inode, by the number that both sides know.
    pub slot: Slot,
}

/// Directory -> names at which two states may differ.
pub type Names = HashMap<Slot, BTreeSet<Name>>;

/// Merges what `theirs` did to `base` into `ours`. `along`: the names that were recorded on either
/// side since `base`, and those of the directories above them; without it everything is compared.
///
/// # Errors
/// Those of reading the three states; EIO: a directory is in two places of one.
pub fn merge<'a, T: Tree>(
    base: &'a T,
    ours: &'a T,
    theirs: &'a T,
    along: Option<&Names>,
) -> SysResult<Outcome<'a, T>> {
    let base = Side::base(base, along)?;
    let ours = Side::of(ours, along, &base, None)?;
    let theirs = Side::of(theirs, along, &base, Some(&ours))?;
    let mut merged = places::merge(&base, &ours, &theirs)?;
    let inodes = inodes::merge(&base, &ours, &theirs, &mut merged)?;
    merged.conflicts.sort();
    merged.conflicts.dedup();
    Ok(Outcome::new(base, ours, theirs, merged, inodes))
}
