//! Merge of the content and attributes of inodes.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::super::Tree;
use super::places::{MergedPlaces, comes_beside};
use super::side::MergeState;
use super::text::{self, Text};
use super::{ClashKind, Conflict, ConflictPolicy, MergeOptions, MergeParty};
use ckptfs_store::ids::Slot;
use ckptfs_sys::{Kind, Stat, SysResult, Time, Xattrs};

/// The source of a merged inode's content, which is the bytes of a file or the target of a symbolic
/// link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentOrigin {
    /// Unchanged in `ours`.
    Ours,
    /// The inode of `theirs`.
    Theirs,
    /// Lines of both sides.
    Text(Vec<u8>),
}

/// A merged inode that differs from `ours`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedInode {
    /// Its content.
    pub content: ContentOrigin,
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time; `None`: the time of the merge.
    pub mtime: Option<Time>,
    /// Extended attributes, sorted by name; `None`: those of `ours`.
    pub xattrs: Option<Xattrs>,
}

/// The state of an inode on one side.
struct SideInode {
    stat: Stat,
    /// `None`: equal in all three states.
    xattrs: Option<Xattrs>,
}

fn seen<T: Tree>(
    side: &MergeState<'_, T>,
    slot: Slot,
    xattrs: bool,
) -> SysResult<Option<SideInode>> {
    let Some(way) = side.way(slot) else {
        return Ok(None);
    };
    Ok(Some(SideInode {
        stat: side.tree.attr(way)?.stat,
        xattrs: xattrs.then(|| side.tree.xattrs(way)).transpose()?,
    }))
}

/// Reports whether records prove that an inode is unchanged since the base.
fn is_as_in<T: Tree>(
    (base, side): (&MergeState<'_, T>, &MergeState<'_, T>),
    slot: Slot,
    changed: Option<&HashSet<Slot>>,
) -> bool {
    let (Some(own), Some(changed)) = (side.own_number(slot), changed) else {
        return false;
    };
    base.own_number(slot) == Some(own) && !changed.contains(&own)
}

/// The merge of one inode; each clash has a flag that reports whether it is settled.
struct InodeMerger<'m, 'a, T> {
    base: &'m MergeState<'a, T>,
    ours: &'m MergeState<'a, T>,
    theirs: &'m MergeState<'a, T>,
    how: &'m MergeOptions<'m>,
    clashes: Vec<(ClashKind, bool)>,
    /// The path whose answer was used.
    answered: Option<Vec<u8>>,
}

/// Merges content and attributes of the inodes in `scope` that both sides have. Returns the inodes
/// that differ from `ours`.
///
/// # Errors
/// Those of reading them.
pub(super) fn merge<T: Tree>(
    base: &MergeState<'_, T>,
    ours: &MergeState<'_, T>,
    theirs: &MergeState<'_, T>,
    how: &MergeOptions<'_>,
    scope: Option<&HashSet<Slot>>,
    merged: &mut MergedPlaces,
) -> SysResult<HashMap<Slot, MergedInode>> {
    let mut inodes = HashMap::new();
    for slot in theirs.met.keys().copied() {
        let [_, changed] = how.changed;
        let stays = is_as_in((base, theirs), slot, changed);
        if stays || scope.is_some_and(|scope| !scope.contains(&slot)) {
            continue;
        }
        let mut merger = InodeMerger {
            base,
            ours,
            theirs,
            how,
            clashes: Vec::new(),
            answered: None,
        };
        let inode = merger.merge(slot)?;
        merged.answered.extend(merger.answered);
        let clashes = merger.clashes;
        let clash = clashes.iter().any(|(_, settled)| !settled);
        let beside = clash && comes_beside([base, ours, theirs], how.policy, slot, merged)?;
        let path = ours.way(slot).map(|way| way.path()).unwrap_or_default();
        let conflict = |(clash, settled)| Conflict {
            path: path.clone(),
            clash,
            slot,
            settled: settled || beside || how.policy.settles_all(),
        };
        merged.conflicts.extend(clashes.into_iter().map(conflict));
        inodes.extend(inode.map(|inode| (slot, inode)));
    }
    Ok(inodes)
}

impl<T: Tree> InodeMerger<'_, '_, T> {
    /// Merges one value; records a clash if both sides changed it differently.
    fn three<V: PartialEq>(&mut self, clash: impl FnOnce() -> ClashKind, values: [V; 3]) -> V {
        let [base, ours, theirs] = values;
        if theirs == base || ours == theirs {
            return ours;
        }
        if ours == base {
            return theirs;
        }
        self.clashes.push((clash(), false));
        match self.how.policy.winner() {
            MergeParty::Ours => ours,
            MergeParty::Theirs => theirs,
        }
    }

    /// Merges an inode that may be missing in the base: a directory that both sides created is.
    fn merge(&mut self, slot: Slot) -> SysResult<Option<MergedInode>> {
        let xattrs = self.may_have_other_xattrs(slot);
        let seen = |side| seen(side, slot, xattrs);
        let (Some(o), Some(t)) = (seen(self.ours)?, seen(self.theirs)?) else {
            return Ok(None);
        };
        let b = seen(self.base)?;
        let content = match (o.stat.kind, &b) {
            (Kind::File | Kind::Symlink, Some(_)) => self.content(slot)?,
            _ => ContentOrigin::Ours,
        };
        let modes = [
            b.as_ref().map(|b| b.stat.mode),
            Some(o.stat.mode),
            Some(t.stat.mode),
        ];
        let mode = self.three(|| ClashKind::Mode, modes).unwrap_or(o.stat.mode);
        let owner = |seen: &SideInode| (seen.stat.uid, seen.stat.gid);
        let owners = [b.as_ref().map(owner), Some(owner(&o)), Some(owner(&t))];
        let (uid, gid) = self.three(|| ClashKind::Owner, owners).unwrap_or(owner(&o));
        let before = b.as_ref().map_or(o.stat.mtime, |b| b.stat.mtime);
        let mtime = match content {
            ContentOrigin::Ours if self.how.times && o.stat.mtime == before => Some(t.stat.mtime),
            ContentOrigin::Ours => Some(o.stat.mtime),
            ContentOrigin::Theirs => Some(t.stat.mtime),
            ContentOrigin::Text(_) => None,
        };
        let none = Xattrs::new();
        let before = b.as_ref().and_then(|b| b.xattrs.as_ref()).unwrap_or(&none);
        let both = o.xattrs.as_ref().zip(t.xattrs.as_ref());
        let xattrs = both.map(|(ours, theirs)| self.xattrs([before, ours, theirs]));
        let inode = MergedInode {
            content,
            mode,
            uid,
            gid,
            mtime,
            xattrs,
        };
        let stays = MergedInode {
            content: ContentOrigin::Ours,
            mode: o.stat.mode,
            uid: o.stat.uid,
            gid: o.stat.gid,
            mtime: Some(o.stat.mtime),
            xattrs: o.xattrs,
        };
        Ok((inode != stays).then_some(inode))
    }

    fn may_have_other_xattrs(&self, slot: Slot) -> bool {
        let [base, ours, theirs] =
            [self.base, self.ours, self.theirs].map(|side| side.own_number(slot));
        let recorded = |own| {
            self.how
                .xattrs
                .is_none_or(|recorded| recorded.contains(&own))
        };
        base != ours || base != theirs || base.is_none_or(recorded)
    }

    fn xattrs(&mut self, [base, ours, theirs]: [&Xattrs; 3]) -> Xattrs {
        let mut names: BTreeMap<&Vec<u8>, [Option<&Vec<u8>>; 3]> = BTreeMap::new();
        for (name, value) in base {
            names.entry(name).or_default()[0] = Some(value);
        }
        for (name, value) in ours {
            names.entry(name).or_default()[1] = Some(value);
        }
        for (name, value) in theirs {
            names.entry(name).or_default()[2] = Some(value);
        }
        let mut merged = Xattrs::new();
        for (name, values) in names {
            let value = self.three(|| ClashKind::Xattr(name.clone()), values);
            merged.extend(value.map(|value| (name.clone(), value.clone())));
        }
        merged
    }

    fn content(&mut self, slot: Slot) -> SysResult<ContentOrigin> {
        let (base, ours, theirs) = (self.base, self.ours, self.theirs);
        if theirs.same_content(slot, base)? {
            return Ok(ContentOrigin::Ours);
        }
        let [changed, _] = self.how.changed;
        if is_as_in((base, ours), slot, changed) || ours.same_content(slot, base)? {
            return Ok(ContentOrigin::Theirs);
        }
        if ours.same_content(slot, theirs)? {
            return Ok(ContentOrigin::Ours);
        }
        let text = match ours.kind(slot) {
            Some(Kind::File) => self.text(slot)?,
            _ => Ok(Text::Binary),
        };
        let text = match text {
            Ok(text) => text,
            Err(side) => return Ok(side),
        };
        if !matches!(text, Text::Clean(_))
            && let Some(answer) = self.answer(slot)?
        {
            self.clashes.push((ClashKind::Content, true));
            return Ok(answer);
        }
        let marks = self.how.policy == ConflictPolicy::Markers;
        match text {
            Text::Clean(text) => return Ok(ContentOrigin::Text(text)),
            Text::Conflict(text) if marks => {
                self.clashes.push((ClashKind::Content, true));
                return Ok(ContentOrigin::Text(text));
            }
            Text::Conflict(_) | Text::Binary => self.clashes.push((ClashKind::Content, false)),
        }
        Ok(match self.how.policy.winner() {
            MergeParty::Ours => ContentOrigin::Ours,
            MergeParty::Theirs => ContentOrigin::Theirs,
        })
    }

    /// Returns the given answer for the content of a file, if it was given for these three
    /// versions.
    fn answer(&mut self, slot: Slot) -> SysResult<Option<ContentOrigin>> {
        let (Some(answers), Some(way)) = (self.how.answers, self.ours.way(slot)) else {
            return Ok(None);
        };
        let path = way.path();
        let Some(answer) = answers.get(&path) else {
            return Ok(None);
        };
        let Some(versions) = versions([self.base, self.ours, self.theirs], slot)? else {
            return Ok(None);
        };
        let [_, ours, theirs] = &versions;
        if versions.each_ref().map(|text| blake3::hash(text)) != answer.of {
            return Ok(None);
        }
        self.answered = Some(path);
        Ok(Some(match &answer.text {
            text if text == ours => ContentOrigin::Ours,
            text if text == theirs => ContentOrigin::Theirs,
            text => ContentOrigin::Text(text.clone()),
        }))
    }

    /// Merges lines; `Err` if the result equals one side.
    fn text(&self, slot: Slot) -> SysResult<Result<Text, ContentOrigin>> {
        let versions = versions([self.base, self.ours, self.theirs], slot)?;
        let Some([base, ours, theirs]) = versions else {
            return Ok(Ok(Text::Binary));
        };
        Ok(match text::merge(&base, &ours, &theirs, self.how.labels) {
            Text::Clean(text) if text == ours => Err(ContentOrigin::Ours),
            Text::Clean(text) if text == theirs => Err(ContentOrigin::Theirs),
            text => Ok(text),
        })
    }
}

/// Returns the content of a file in the base, in `ours` and in `theirs`. Returns `None` if one of
/// them lacks it, it is not a file, or it exceeds the size limit of a text.
///
/// # Errors
/// Those of reading it.
pub(super) fn versions<T: Tree>(
    sides: [&MergeState<'_, T>; 3],
    slot: Slot,
) -> SysResult<Option<[Vec<u8>; 3]>> {
    let mut texts = Vec::with_capacity(sides.len());
    for side in sides {
        let (Some(Kind::File), Some(way)) = (side.kind(slot), side.way(slot)) else {
            return Ok(None);
        };
        let Some(text) = side.tree.read(way, text::BYTES_MAX)? else {
            return Ok(None);
        };
        texts.push(text);
    }
    Ok(texts.try_into().ok())
}
