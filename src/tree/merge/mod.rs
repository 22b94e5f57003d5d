//! Three ways: what `theirs` did to `base`, done to `ours` as well.
//!
//! An inode is one in all three where it has one number. Of each inode everything is merged by
//! itself: the names that lead to it, its content, its mode, its owners, each extended attribute.
//! What only one side changed is taken from that side; what both changed alike is as both have it.
//! So a file that was renamed here and written to there is renamed and has the new content. What
//! both changed differently is a [`Conflict`], and stays as `ours` has it.
//!
//! - `side`: the inodes of a state, with the numbers that they have in common, and their places.
//! - `places`: which inode is at which names, such that it is a tree.
//! - [`same`]: which inodes are one although their numbers differ.
//! - `scope`: which of them are at or below some paths.
//! - `inodes`: content and attributes.
//! - [`text`]: lines of three versions of a text.
//! - [`outcome`]: what comes of it, as a [`Tree`] that a plan can be made for.
//!
//! Nothing here makes a system call ([ADR 31](../../../docs/adr/0031-branches-look-through.md)).

mod inodes;
pub mod outcome;
mod places;
pub mod same;
mod scope;
mod side;
#[cfg(test)]
mod tests;
pub mod text;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use self::outcome::Outcome;
use self::same::Same;
use self::scope::scope;
use self::side::{Known, Side};
use self::text::Labels;
use super::Tree;
use crate::store::ids::{CheckpointId, Name, Slot};
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
    /// What was asked for says what comes of it.
    pub settled: bool,
}

/// What comes of what both sides changed, each in another way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy<'h> {
    /// It stays as `ours` has it, and is not settled.
    #[default]
    Name,
    /// It stays as `ours` has it.
    Ours,
    /// It becomes what `theirs` has.
    Theirs,
    /// Both versions of the lines of a text are in it, marked.
    Markers,
    /// What `ours` has stays, and what `theirs` has comes beside it, with this behind its name.
    KeepBoth(&'h [u8]),
}

impl Policy<'_> {
    /// Whose version it is that stays.
    fn winner(self) -> Who {
        if self == Policy::Theirs {
            Who::Theirs
        } else {
            Who::Ours
        }
    }

    fn settles_all(self) -> bool {
        matches!(self, Policy::Ours | Policy::Theirs)
    }
}

/// What is to come of the content of a file that clashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The hashes of what it holds in the base, in `ours` and in `theirs`: of other content it is no
    /// answer.
    pub of: [blake3::Hash; 3],
    /// What it shall hold.
    pub text: Vec<u8>,
}

/// Answers by the paths in `ours`.
pub type Answers = BTreeMap<Vec<u8>, Answer>;

/// How two sides are merged.
#[derive(Clone, Copy, Debug)]
pub struct How<'h> {
    /// The names that were recorded on either side since the base, and those of the directories
    /// above them; without it everything is compared.
    pub along: Option<&'h Names>,
    /// Only what is at or below these paths; without any, all.
    pub paths: &'h [Vec<u8>],
    /// What comes of conflicts.
    pub policy: Policy<'h>,
    /// What somebody says that is to come of the content of files that clash, by their paths in
    /// `ours`.
    pub answers: Option<&'h Answers>,
    /// What both sides are called where they are marked.
    pub labels: Labels<'h>,
    /// The checkpoints of `ours` and of `theirs` that are as the base is, if the history of names
    /// is to be asked.
    pub since: [Option<CheckpointId>; 2],
    /// What merges before have noted of inodes that are one.
    pub same: Option<&'h Same>,
    /// What comes has the times that it has there: that alone is a change.
    pub times: bool,
    /// The inodes that `ours`, and `theirs`, has recorded since the base, if that is a state of its
    /// own: no other inode of the base has changed there.
    pub changed: [Option<&'h HashSet<Slot>>; 2],
    /// The inodes whose extended attributes either side has recorded since both came from one state
    /// that is no later than the base: what has one number in all three has one set of them else.
    pub xattrs: Option<&'h HashSet<Slot>>,
}

impl Default for How<'_> {
    fn default() -> Self {
        How {
            along: None,
            paths: &[],
            policy: Policy::Name,
            answers: None,
            labels: Labels {
                ours: "ours",
                base: "base",
                theirs: "theirs",
            },
            since: [None; 2],
            same: None,
            times: true,
            changed: [None; 2],
            xattrs: None,
        }
    }
}

/// Set in the number of an inode whose own is that of another one in another of the three.
const ANOTHER: u64 = 1 << 63;
/// Set too where that is so of both sides.
const AGAIN: u64 = 1 << 60;
/// Set in the number of what comes beside the inode that it clashes with. Numbers that a filesystem
/// gives are below, and so are those of branches but for the bit between the two.
const BESIDE: u64 = 1 << 61;

/// Directory -> names at which two states may differ.
pub type Names = HashMap<Slot, BTreeSet<Name>>;

/// Merges what `theirs` did to `base` into `ours`.
///
/// # Errors
/// Those of reading the three states; EIO: a directory is in two places of one.
pub fn merge<'a, T: Tree>(
    base: &'a T,
    ours: &'a T,
    theirs: &'a T,
    how: &How<'_>,
) -> SysResult<Outcome<'a, T>> {
    merge_since(None, base, ours, theirs, how)
}

/// As [`merge`], where what was recorded ([`How::along`]) was recorded since `origin`, and the base
/// is a later state: whatever `origin` has not is looked through whole, for of the names of a new
/// directory nothing is recorded.
///
/// # Errors
/// As [`merge`]; those of reading `origin`.
pub fn merge_since<'a, T: Tree>(
    origin: Option<&'a T>,
    base: &'a T,
    ours: &'a T,
    theirs: &'a T,
    how: &How<'_>,
) -> SysResult<Outcome<'a, T>> {
    let origin = origin
        .map(|origin| Side::base(origin, how.along, None))
        .transpose()?;
    let mut base = Side::base(base, how.along, origin.as_ref())?;
    let known = Known {
        along: how.along,
        origin: origin.as_ref(),
        base: &base,
        same: how.same,
    };
    let mut ours = Side::of(ours, known, None, how.since[0])?;
    let mut theirs = Side::of(theirs, known, Some(&ours), how.since[1])?;
    side::part_links(&mut base, &mut ours, &mut theirs);
    let scope = scope([&base, &ours, &theirs], how.paths);
    let mut merged = places::merge(&base, &ours, &theirs, how.policy, scope.as_ref())?;
    let inodes = inodes::merge(&base, &ours, &theirs, how, scope.as_ref(), &mut merged)?;
    for (slot, beside) in &merged.beside {
        theirs.add_beside(*slot, *beside);
    }
    merged.conflicts.sort();
    merged.conflicts.dedup();
    Ok(Outcome::new(base, ours, theirs, merged, inodes))
}
