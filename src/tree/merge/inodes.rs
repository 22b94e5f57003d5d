//! What an inode holds and has, after a merge.

use std::collections::{BTreeMap, HashMap};

use super::super::Tree;
use super::places::Merged;
use super::side::Side;
use super::text::{self, Text};
use super::{Clash, Conflict};
use crate::store::ids::Slot;
use crate::sys::{Kind, SysResult, Time, Xattrs};

/// Where the content of a merged inode comes from: bytes, or where a link leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It stays.
    Ours,
    /// The inode of `theirs`.
    Theirs,
    /// Lines of both.
    Text(Vec<u8>),
}

/// An inode that does not stay as `ours` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Its content.
    pub content: Origin,
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// When its content changed; `None`: with the merge.
    pub mtime: Option<Time>,
    /// Extended attributes, sorted by name.
    pub xattrs: Xattrs,
}

/// What comes of a value of which these are three versions; `None`: both changed it, differently.
fn three<V: PartialEq>(base: V, ours: V, theirs: V) -> Option<V> {
    if theirs == base || ours == theirs {
        Some(ours)
    } else if ours == base {
        Some(theirs)
    } else {
        None
    }
}

/// Merges content and attributes of what both sides have; gives the inodes that do not stay as
/// `ours` has them.
///
/// # Errors
/// Those of reading them.
pub(super) fn merge<T: Tree>(
    base: &Side<'_, T>,
    ours: &Side<'_, T>,
    theirs: &Side<'_, T>,
    merged: &mut Merged,
) -> SysResult<HashMap<Slot, Inode>> {
    let mut inodes = HashMap::new();
    let mut both: Vec<Slot> = theirs
        .met
        .keys()
        .copied()
        .filter(|slot| base.has(*slot) && ours.has(*slot))
        .collect();
    both.sort();
    for slot in both {
        let mut clashes = Vec::new();
        let inode = merge_one([base, ours, theirs], slot, &mut clashes)?;
        let path = ours.way(slot).map(|way| way.path()).unwrap_or_default();
        let conflict = |clash| Conflict {
            path: path.clone(),
            clash,
            slot,
        };
        merged.conflicts.extend(clashes.into_iter().map(conflict));
        inodes.extend(inode.map(|inode| (slot, inode)));
    }
    Ok(inodes)
}

fn merge_one<T: Tree>(
    sides: [&Side<'_, T>; 3],
    slot: Slot,
    clashes: &mut Vec<Clash>,
) -> SysResult<Option<Inode>> {
    let [_, ours, theirs] = sides;
    let mut stats = Vec::with_capacity(3);
    let mut xattrs = Vec::with_capacity(3);
    for side in sides {
        let Some(way) = side.way(slot) else {
            return Ok(None);
        };
        stats.push(side.tree.attr(way)?.stat);
        xattrs.push(side.tree.xattrs(way)?);
    }
    let [b, o, t] = &stats[..] else {
        return Ok(None);
    };
    let content = match ours.kind(slot) {
        Some(Kind::File | Kind::Symlink) => merge_content(sides, slot, clashes)?,
        _ => Origin::Ours,
    };
    let mode = three(b.mode, o.mode, t.mode).unwrap_or_else(|| {
        clashes.push(Clash::Mode);
        o.mode
    });
    let owner = |stat: &crate::sys::Stat| (stat.uid, stat.gid);
    let (uid, gid) = three(owner(b), owner(o), owner(t)).unwrap_or_else(|| {
        clashes.push(Clash::Owner);
        owner(o)
    });
    let mtime = match content {
        Origin::Ours => Some(three(b.mtime, o.mtime, t.mtime).unwrap_or(o.mtime)),
        Origin::Theirs => Some(t.mtime),
        Origin::Text(_) => None,
    };
    let xattrs = merge_xattrs([&xattrs[0], &xattrs[1], &xattrs[2]], clashes);
    let _ = theirs;
    let stays = content == Origin::Ours
        && (mode, uid, gid, mtime) == (o.mode, o.uid, o.gid, Some(o.mtime))
        && xattrs
            == ours
                .way(slot)
                .map_or(Ok(Xattrs::new()), |way| ours.tree.xattrs(way))?;
    Ok((!stays).then_some(Inode {
        content,
        mode,
        uid,
        gid,
        mtime,
        xattrs,
    }))
}

fn merge_xattrs([base, ours, theirs]: [&Xattrs; 3], clashes: &mut Vec<Clash>) -> Xattrs {
    let mut names: BTreeMap<&Vec<u8>, [Option<&Vec<u8>>; 3]> = BTreeMap::new();
    for (at, xattrs) in [base, ours, theirs].into_iter().enumerate() {
        for (name, value) in xattrs {
            names.entry(name).or_default()[at] = Some(value);
        }
    }
    let mut merged = Xattrs::new();
    for (name, [b, o, t]) in names {
        let value = three(b, o, t).unwrap_or_else(|| {
            clashes.push(Clash::Xattr(name.clone()));
            o
        });
        merged.extend(value.map(|value| (name.clone(), value.clone())));
    }
    merged
}

fn merge_content<T: Tree>(
    [base, ours, theirs]: [&Side<'_, T>; 3],
    slot: Slot,
    clashes: &mut Vec<Clash>,
) -> SysResult<Origin> {
    if theirs.same_content(slot, base)? {
        return Ok(Origin::Ours);
    }
    if ours.same_content(slot, base)? {
        return Ok(Origin::Theirs);
    }
    if ours.same_content(slot, theirs)? {
        return Ok(Origin::Ours);
    }
    if ours.kind(slot) == Some(Kind::File) {
        let mut texts = Vec::with_capacity(3);
        for side in [base, ours, theirs] {
            let Some(way) = side.way(slot) else { break };
            texts.extend(side.tree.read(way, text::BYTES_MAX)?);
        }
        if let [base, ours, theirs] = &texts[..]
            && let Text::Clean(text) = text::merge(base, ours, theirs)
        {
            return Ok(Origin::Text(text));
        }
    }
    clashes.push(Clash::Content);
    Ok(Origin::Ours)
}
