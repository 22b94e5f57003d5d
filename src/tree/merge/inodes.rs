//! What an inode holds and has, after a merge.

use std::collections::{BTreeMap, HashMap};

use super::super::Tree;
use super::places::Merged;
use super::side::Side;
use super::text::{self, Text};
use super::{Clash, Conflict};
use crate::store::ids::Slot;
use crate::sys::{Kind, Stat, SysResult, Time, Xattrs};

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

/// An inode as one side has it.
struct Seen {
    stat: Stat,
    xattrs: Xattrs,
}

fn seen<T: Tree>(side: &Side<'_, T>, slot: Slot) -> SysResult<Option<Seen>> {
    let Some(way) = side.way(slot) else {
        return Ok(None);
    };
    Ok(Some(Seen {
        stat: side.tree.attr(way)?.stat,
        xattrs: side.tree.xattrs(way)?,
    }))
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
    for slot in theirs.met.keys().copied() {
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

/// What is in `base` or not: a directory that both made is in both sides alone.
fn merge_one<T: Tree>(
    sides: [&Side<'_, T>; 3],
    slot: Slot,
    clashes: &mut Vec<Clash>,
) -> SysResult<Option<Inode>> {
    let [base, ours, theirs] = sides;
    let (Some(o), Some(t)) = (seen(ours, slot)?, seen(theirs, slot)?) else {
        return Ok(None);
    };
    let b = seen(base, slot)?;
    let content = match (o.stat.kind, &b) {
        (Kind::File | Kind::Symlink, Some(_)) => merge_content(sides, slot, clashes)?,
        _ => Origin::Ours,
    };
    let before = b.as_ref().map(|b| b.stat.mode);
    let mode = three(before, Some(o.stat.mode), Some(t.stat.mode))
        .flatten()
        .unwrap_or_else(|| {
            clashes.push(Clash::Mode);
            o.stat.mode
        });
    let owner = |seen: &Seen| (seen.stat.uid, seen.stat.gid);
    let (uid, gid) = three(b.as_ref().map(owner), Some(owner(&o)), Some(owner(&t)))
        .flatten()
        .unwrap_or_else(|| {
            clashes.push(Clash::Owner);
            owner(&o)
        });
    let before = b.as_ref().map_or(o.stat.mtime, |b| b.stat.mtime);
    let mtime = match content {
        Origin::Ours => Some(three(before, o.stat.mtime, t.stat.mtime).unwrap_or(o.stat.mtime)),
        Origin::Theirs => Some(t.stat.mtime),
        Origin::Text(_) => None,
    };
    let none = Xattrs::new();
    let before = b.as_ref().map_or(&none, |b| &b.xattrs);
    let xattrs = merge_xattrs([before, &o.xattrs, &t.xattrs], clashes);
    let inode = Inode {
        content,
        mode,
        uid,
        gid,
        mtime,
        xattrs,
    };
    let stays = Inode {
        content: Origin::Ours,
        mode: o.stat.mode,
        uid: o.stat.uid,
        gid: o.stat.gid,
        mtime: Some(o.stat.mtime),
        xattrs: o.xattrs,
    };
    Ok((inode != stays).then_some(inode))
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
