//! Common parts of all merges of trees.

use std::collections::HashMap;

use crate::history::present::Trail;
use crate::history::touched::Touched;
use crate::history::view::View;
use crate::tree::merge::{ClashKind, Conflict, MergeParty, Names};
use ckptfs_api::{Code, ConflictKind, MergeConflict, MergeSide, TreePath, VerbError, hinted};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_sys::{Kind, SysResult};

/// Returns the names at which the three states may differ: all recorded ones.
pub(in crate::engine) fn along(recorded: &[&Touched]) -> Names {
    let mut along: Names = HashMap::new();
    for (dir, names) in recorded.iter().flat_map(|touched| &touched.names) {
        along.entry(*dir).or_default().extend(names.iter().cloned());
    }
    along
}

/// Excludes `.git` where it is a directory in one state and a file in another. A git worktree has a
/// file that refers to the repository; one must not replace the other.
///
/// # Errors
/// Errors of reading the root directories.
pub(in crate::engine) fn leave_out_git(along: &mut Names, states: [&View<'_>; 3]) -> SysResult<()> {
    let (root, git) = (Trail::root(), Name::new(b".git"));
    let names = along.get(&Slot::ROOT);
    if !names.is_some_and(|names| names.contains(&git)) {
        return Ok(());
    }
    let kind = |view: &View<'_>| {
        let found = view.child(&root, &git)?;
        Ok(found.map(|child| child.kind))
    };
    let kinds: SysResult<Vec<Option<Kind>>> = states.into_iter().map(kind).collect();
    let kinds = kinds?;
    if kinds.contains(&Some(Kind::Dir)) && kinds.contains(&Some(Kind::File)) {
        along.entry(Slot::ROOT).or_default().remove(&git);
    }
    Ok(())
}

/// Converts a conflict for the answer.
pub(in crate::engine) fn told(conflict: &Conflict) -> MergeConflict {
    let side = |who: &MergeParty| match who {
        MergeParty::Ours => MergeSide::Ours,
        MergeParty::Theirs => MergeSide::Theirs,
    };
    let (what, by, xattr) = match &conflict.clash {
        ClashKind::Moved => (ConflictKind::Moved, None, None),
        ClashKind::Removed(by) => (ConflictKind::Removed, Some(side(by)), None),
        ClashKind::Name => (ConflictKind::Name, None, None),
        ClashKind::Directory(by) => (ConflictKind::Directory, Some(side(by)), None),
        ClashKind::Cycle => (ConflictKind::Cycle, None, None),
        ClashKind::Content => (ConflictKind::Content, None, None),
        ClashKind::Mode => (ConflictKind::Mode, None, None),
        ClashKind::Owner => (ConflictKind::Owner, None, None),
        ClashKind::Xattr(name) => (ConflictKind::Xattr, None, Some(TreePath(name.clone()))),
    };
    MergeConflict {
        path: TreePath(conflict.path.clone()),
        what,
        by,
        xattr,
        settled: conflict.settled,
        marked: false,
        tool: false,
    }
}

/// Returns the error for a file that changed after it was merged by a tool.
pub(super) fn outdated(path: &[u8]) -> VerbError {
    hinted(
        Code::Outdated,
        format!(
            "nothing was changed: {:?} was changed, here or there, after the tool had merged it",
            String::from_utf8_lossy(path)
        ),
        "run the merge again",
    )
}
