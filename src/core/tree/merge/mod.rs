//! Three-way merge: applies the changes from `base` to `theirs` to `ours`.
//!
//! An inode with one number in all three states is one inode. Each property of an inode is merged
//! separately: its names, content, mode, owner, and each extended attribute. A property changed on
//! one side takes that side's value; equal changes of both sides are taken once. A file that one
//! side renamed and the other wrote to is thus renamed with the new content. A property that both
//! sides changed differently is a [`Conflict`] and stays as in `ours`.
//!
//! - `side`: the inodes of a state by common number, and their places.
//! - `places`: the names of each inode, such that they form a tree.
//! - [`inode_classes`]: inodes that are one although their numbers differ.
//! - `scope`: the inodes at or below given paths.
//! - `inodes`: content and attributes.
//! - [`text`]: three-way merge of lines.
//! - [`outcome`]: the result, as a [`Tree`] that can be planned for.
//!
//! Nothing here makes a system call ([ADR 31](../../../docs/adr/0031-branches-look-through.md)).

pub mod inode_classes;
mod inodes;
pub mod outcome;
mod places;
mod scope;
mod side;
#[cfg(test)]
mod tests;
pub mod text;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use self::inode_classes::InodeClasses;
use self::outcome::MergeOutcome;
use self::scope::scope;
use self::side::{MergeState, WalkContext};
use self::text::Labels;
use super::Tree;
use ckptfs_api::CheckpointId;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_sys::SysResult;

/// A side of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MergeParty {
    /// The side merged into.
    Ours,
    /// The side merged.
    Theirs,
}

/// A property that both sides changed differently.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClashKind {
    /// Both sides moved it, to different places.
    Moved,
    /// This side removed it; the other moved or changed it.
    Removed(MergeParty),
    /// Each side has another inode at this name.
    Name,
    /// It is in a directory that this side removed.
    Directory(MergeParty),
    /// Each side moved one of two directories into the other.
    Cycle,
    /// The content of a file, or the target of a symbolic link.
    Content,
    /// The permissions.
    Mode,
    /// The owner or the group.
    Owner,
    /// The extended attribute with this name.
    Xattr(Vec<u8>),
}

/// A conflict. Unless the policy or an answer resolves it, `ours` stays unchanged in this property.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The path in `ours`, else in `theirs`, else in `base`.
    pub path: Vec<u8>,
    /// The property in conflict.
    pub clash: ClashKind,
    /// The common number of the inode.
    pub slot: Slot,
    /// The policy or an answer resolves it.
    pub settled: bool,
}

/// The resolution of conflicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConflictPolicy<'h> {
    /// `ours` stays; the conflict remains open.
    #[default]
    Name,
    /// `ours` stays.
    Ours,
    /// The value of `theirs` is taken.
    Theirs,
    /// A text gets both versions of the lines, with conflict markers.
    Markers,
    /// `ours` stays, and the version of `theirs` is added next to it, with this suffix to its name.
    KeepBoth(&'h [u8]),
}

impl ConflictPolicy<'_> {
    /// Returns the side whose version stays.
    fn winner(self) -> MergeParty {
        if self == ConflictPolicy::Theirs {
            MergeParty::Theirs
        } else {
            MergeParty::Ours
        }
    }

    fn settles_all(self) -> bool {
        matches!(self, ConflictPolicy::Ours | ConflictPolicy::Theirs)
    }
}

/// A resolution for the content of a file in conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// Hashes of its content in the base, in `ours` and in `theirs`; the answer is valid for these
    /// only.
    pub of: [blake3::Hash; 3],
    /// The resolved content.
    pub text: Vec<u8>,
}

/// Answers by path in `ours`.
pub type Answers = BTreeMap<Vec<u8>, Resolution>;

/// Options of a merge.
#[derive(Clone, Copy, Debug)]
pub struct MergeOptions<'h> {
    /// The names recorded on either side since the base, and the names of the directories above
    /// them; without it everything is compared.
    pub along: Option<&'h Names>,
    /// Restricts the merge to these paths and everything below; empty: no restriction.
    pub paths: &'h [Vec<u8>],
    /// The resolution of conflicts.
    pub policy: ConflictPolicy<'h>,
    /// Given answers for the content of files in conflict, by path in `ours`.
    pub answers: Option<&'h Answers>,
    /// The names of both sides in conflict markers.
    pub labels: Labels<'h>,
    /// The checkpoints of `ours` and `theirs` that equal the base, to query the history of names.
    pub since: [Option<CheckpointId>; 2],
    /// Inodes recorded as one by earlier merges.
    pub same: Option<&'h InodeClasses>,
    /// Modification times are merged; a different time alone is a change.
    pub times: bool,
    /// The inodes that `ours` and `theirs` recorded since the base, if the base is a checkpoint of
    /// that side. No other inode of the base has changed there.
    pub changed: [Option<&'h HashSet<Slot>>; 2],
    /// The inodes whose extended attributes either side recorded since a common state no later than
    /// the base. Other inodes with one number in all three states have equal attributes.
    pub xattrs: Option<&'h HashSet<Slot>>,
}

impl Default for MergeOptions<'_> {
    fn default() -> Self {
        MergeOptions {
            along: None,
            paths: &[],
            policy: ConflictPolicy::Name,
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

/// Set in the common number of an inode whose own number denotes a different inode in another
/// state.
const ANOTHER: u64 = 1 << 63;
/// Set in addition if both sides reused the number.
const AGAIN: u64 = 1 << 60;
/// Set in the number of an inode added next to the one it conflicts with. Numbers of backing
/// filesystems are lower, and a branch stores its level in bits 56 to 59.
const BESIDE: u64 = 1 << 61;

/// Directory -> names at which two states may differ.
pub type Names = HashMap<Slot, BTreeSet<Name>>;

/// Merges the changes from `base` to `theirs` into `ours`.
///
/// # Errors
/// Those of reading the three states; EIO: a directory is in two places of one state.
pub fn merge<'a, T: Tree>(
    base: &'a T,
    ours: &'a T,
    theirs: &'a T,
    how: &MergeOptions<'_>,
) -> SysResult<MergeOutcome<'a, T>> {
    merge_since(None, base, ours, theirs, how)
}

/// As [`merge`], with records ([`MergeOptions::along`]) made since `origin`, where the base is a
/// later state. A directory that `origin` lacks is compared completely, because the names of a new
/// directory are not recorded.
///
/// # Errors
/// As [`merge`]; those of reading `origin`.
pub fn merge_since<'a, T: Tree>(
    origin: Option<&'a T>,
    base: &'a T,
    ours: &'a T,
    theirs: &'a T,
    how: &MergeOptions<'_>,
) -> SysResult<MergeOutcome<'a, T>> {
    let origin = origin
        .map(|origin| MergeState::base(origin, how.along, None))
        .transpose()?;
    let mut base = MergeState::base(base, how.along, origin.as_ref())?;
    let known = WalkContext {
        along: how.along,
        origin: origin.as_ref(),
        base: &base,
        same: how.same,
    };
    let mut ours = MergeState::of(ours, known, None, how.since[0])?;
    let mut theirs = MergeState::of(theirs, known, Some(&ours), how.since[1])?;
    side::part_links(&mut base, &mut ours, &mut theirs);
    let scope = scope([&base, &ours, &theirs], how.paths);
    let mut merged = places::merge(&base, &ours, &theirs, how.policy, scope.as_ref())?;
    let inodes = inodes::merge(&base, &ours, &theirs, how, scope.as_ref(), &mut merged)?;
    for (slot, beside) in &merged.beside {
        theirs.add_beside(*slot, *beside);
    }
    merged.conflicts.sort();
    merged.conflicts.dedup();
    Ok(MergeOutcome::new(base, ours, theirs, merged, inodes))
}
