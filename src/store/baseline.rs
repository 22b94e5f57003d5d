//! The baseline: the state of the tree at the end of the last service, in one file or two.
//!
//! It is written at an orderly shutdown and read at the next mount. Differences from it were made
//! while nothing was mounted, and are recorded like any other change. A baseline is valid only if
//! the journal still ends at the position stored in it.
//!
//! The whole tree is written rarely, in idle time. Later changes are stored next to it
//! ([`Changes`]): a second run, whose keys identify inodes by slot. If it exists, its position is
//! the valid one. For a tree of limited size both are folded into one file once the changes are a
//! sufficient part of it.
//!
//! ```text
//! baseline          a run (module `index::runs`), of one epoch: u32 segment, u32 offset of the end of the journal; 2^64-1: valid only with its changes
//! key               u64 number of a directory (big-endian; the root is 1), name; of the root itself: number 0, no name
//! value             uint number of the directory that the name leads to (0: not a directory), and three parts, each uint length and bytes as in a record of kind 1:
//!                   the inode that the name leads to, attributes, extended attributes (empty: none)
//! key               number 2^64-1
//! value             uint files that are not empty, uint random id of the baseline
//! key               number 2^64-1, u64 slot of a directory (big-endian)
//! value             uint its number, uint its generation
//!
//! baseline.changes  a run of one epoch, as above
//! 'B'               uint: id of the baseline they belong to
//! 'A' slot          attributes and extended attributes of an inode, two parts as above
//! 'G' slot          an inode that has lost its last name in the open epoch; no value
//! 'N' slot name     of a directory: the inode that the name leads to, as in a record of kind 1; no value: none
//! 'W' slot          a directory all of whose names are here: uint its generation
//! ```
//! Directories are numbered in listing order, so a parent precedes its children.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io;

use rustix::fs::OFlags;

mod changes;
mod writer;

pub use self::changes::Changes;
use self::changes::{slot_key, slot_of};
pub use self::writer::BaselineWriter;
use self::writer::{builder, finish};
use super::Address;
use super::at;
use super::error::{StoreError, StoreResult};
use super::ids::{Name, Slot};
use super::index::{Run, RunCursor, RunSource};
use super::journal::codec::{
    PAYLOAD_MAX, decode_before, decode_uint, encode_before, encode_uint, is_name,
};
use super::layout::Layout;
use super::record::{AttrState, Child, Key, Undo};
use ckptfs_api::Epoch;
use ckptfs_sys::{Kind, Xattrs, host};

const NAME: &str = "baseline";
const CHANGES: &str = "baseline.changes";
/// An incomplete file of either kind.
const UNFINISHED: &str = "baseline.new";
/// Key of the id of the baseline that changes belong to.
const OF: &[u8] = b"B";
/// Number under which directories are found by slot.
const BY_SLOT: u64 = u64::MAX;
/// In place of the end of the journal: valid only with its changes.
const OPEN: Epoch = Epoch(u64::MAX);

/// The number of the root directory.
pub const ROOT: u64 = 1;
/// Size limit of an inode's extended attributes, in bytes. It equals the limit through the mount;
/// otherwise a user could prevent the baseline from being written.
const XATTRS_MAX: usize = PAYLOAD_MAX / 2;

/// Changes are folded from one per this number of names, because each mount reads both files.
const FOLD_PART: u64 = 4;
/// Fewer changes are not folded: their cost is negligible.
const FOLD_MIN: u64 = 1000;
/// Maximum number of names of a tree to fold, because unmounting waits for it.
const FOLD_MAX: u64 = 100_000;

/// The state of an inode at one of its names.
#[derive(Clone, Debug)]
pub struct BaselineNode {
    /// Its slot and type.
    pub child: Child,
    /// Its attributes.
    pub attr: AttrState,
    /// Its extended attributes, sorted.
    pub xattrs: Xattrs,
    /// A directory's number; 0: not a directory, or its entries are unknown.
    pub number: u64,
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    StoreError::io(what, NAME)
}

fn token(end: Option<Address>) -> Epoch {
    end.map_or(OPEN, |end| {
        Epoch(u64::from(end.segment) << 32 | u64::from(end.offset))
    })
}

fn put_part(part: Option<&Undo>, value: &mut Vec<u8>) -> StoreResult<()> {
    let mut bytes = Vec::new();
    part.map_or(Ok(()), |part| encode_before(part, &mut bytes))?;
    encode_uint(bytes.len() as u64, value);
    value.extend_from_slice(&bytes);
    Ok(())
}

fn take_part<'a>(value: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(decode_uint(value).ok()?).ok()?;
    let (part, rest) = value.split_at_checked(length)?;
    *value = rest;
    Some(part)
}

fn named(child: Option<Child>) -> Undo {
    Undo::Entry {
        dir: Slot::ROOT,
        name: Name::new(b"-"),
        before: child,
    }
}

fn child_of(bytes: &[u8]) -> Option<Option<Child>> {
    match decode_before(Key::Entry(Slot::ROOT, Name::new(b"-")), bytes).ok()? {
        Undo::Entry { before, .. } => Some(before),
        _ => None,
    }
}

/// Appends attributes and extended attributes.
fn put_inode(node: &BaselineNode, value: &mut Vec<u8>) -> StoreResult<()> {
    let slot = node.child.slot;
    put_part(
        Some(&Undo::Attr {
            slot,
            before: node.attr.clone(),
        }),
        value,
    )?;
    let xattrs = Some(Undo::Xattrs {
        slot,
        before: node.xattrs.clone(),
    })
    .filter(|_| !node.xattrs.is_empty());
    put_part(xattrs.as_ref(), value)
}

fn take_inode(slot: Slot, value: &mut &[u8]) -> Option<(AttrState, Xattrs)> {
    let Undo::Attr { before: attr, .. } = decode_before(Key::Attr(slot), take_part(value)?).ok()?
    else {
        return None;
    };
    let xattrs = match take_part(value)? {
        [] => Vec::new(),
        bytes => match decode_before(Key::Xattrs(slot), bytes).ok()? {
            Undo::Xattrs { before, .. } => before,
            _ => return None,
        },
    };
    Some((attr, xattrs))
}

fn key(number: u64, name: &[u8]) -> Vec<u8> {
    [&number.to_be_bytes()[..], name].concat()
}

fn open(layout: &Layout, name: &str) -> StoreResult<Option<Run>> {
    match at::open_file(layout.dir(), name, OFlags::RDONLY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        file => Run::open(0, RunSource::File(file.map_err(failed("open"))?)).map(Some),
    }
}

/// Reports whether an inode with these attributes can be written.
pub fn fits(xattrs: &Xattrs) -> bool {
    xattrs
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum::<usize>()
        <= XATTRS_MAX
}

/// An open baseline.
pub struct Baseline {
    run: Run,
    /// The changes since it was written.
    pub changes: Changes,
}

impl Baseline {
    /// Opens the baseline of a store if it is valid for a journal that ends at `end`.
    ///
    /// Errors: `Io`; `IndexDamaged`: it is incomplete.
    pub fn open(layout: &Layout, end: Address) -> StoreResult<Option<Baseline>> {
        let Some(run) = open(layout, NAME)? else {
            return Ok(None);
        };
        let changes = open(layout, CHANGES)?;
        if changes.as_ref().unwrap_or(&run).first != token(Some(end)) {
            return Ok(None);
        }
        Baseline::with(run, changes)
    }

    /// Opens the baseline of a store regardless of the end of the journal, for a caller that
    /// updates it with all changes since.
    ///
    /// Errors: as [`Baseline::open`].
    pub fn open_any(layout: &Layout) -> StoreResult<Option<Baseline>> {
        let Some(run) = open(layout, NAME)? else {
            return Ok(None);
        };
        Baseline::with(run, open(layout, CHANGES)?)
    }

    /// Removes the baseline of a store; succeeds if none exists.
    ///
    /// Errors: `Io`.
    pub fn remove(layout: &Layout) -> StoreResult<()> {
        [NAME, CHANGES, UNFINISHED]
            .iter()
            .try_for_each(|name| at::remove_tree(layout.dir(), name.as_bytes()))
            .map_err(failed("remove"))
    }

    /// Removes an incomplete baseline.
    ///
    /// Errors: `Io`.
    pub fn discard(layout: &Layout) -> StoreResult<()> {
        at::remove_tree(layout.dir(), UNFINISHED.as_bytes()).map_err(failed("remove"))
    }

    /// Returns the root directory.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn root(&self) -> StoreResult<BaselineNode> {
        let mut cursor = RunCursor::new(&self.run, None);
        if !cursor.next()? || cursor.key != key(0, b"") {
            return Err(StoreError::IndexDamaged);
        }
        parse(cursor.value())
            .and_then(|root| self.as_changed(root))
            .ok_or(StoreError::IndexDamaged)
    }

    /// Applies changed attributes.
    fn as_changed(&self, mut node: BaselineNode) -> Option<BaselineNode> {
        if !self.changes.is_empty()
            && let Some(value) = self.changes.0.get(&slot_key(b'A', node.child.slot))
        {
            (node.attr, node.xattrs) = take_inode(node.child.slot, &mut value.as_slice())?;
        }
        (node.attr.stat.kind == node.child.kind).then_some(node)
    }

    /// Returns the names of a directory, sorted.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn names(&self, dir: &BaselineNode) -> StoreResult<Vec<(Name, BaselineNode)>> {
        let slot = dir.child.slot;
        let mut names = BTreeMap::new();
        if self.changes.whole(slot).is_none() {
            // A directory from the changes is identified by its slot only.
            let number = if dir.number == 0 {
                self.number(slot)?.map_or(0, |(number, _)| number)
            } else {
                dir.number
            };
            if number == 0 {
                return Err(StoreError::IndexDamaged);
            }
            self.names_written(number, &mut names)?;
        }
        let prefix = slot_key(b'N', slot);
        for (key, value) in self
            .changes
            .0
            .range(prefix.clone()..)
            .take_while(|(key, _)| key.starts_with(&prefix))
        {
            let name = key
                .strip_prefix(&prefix[..])
                .filter(|name| is_name(name))
                .map(Name::new)
                .ok_or(StoreError::IndexDamaged)?;
            if value.is_empty() {
                names.remove(&name);
                continue;
            }
            names.insert(name, self.changed_child(value)?);
        }
        let changed = names
            .into_iter()
            .map(|(name, node)| Some((name, self.as_changed(node)?)));
        changed
            .collect::<Option<Vec<_>>>()
            .ok_or(StoreError::IndexDamaged)
    }

    /// Reads the names written with the tree.
    fn names_written(
        &self,
        number: u64,
        names: &mut BTreeMap<Name, BaselineNode>,
    ) -> StoreResult<()> {
        let prefix = number.to_be_bytes();
        let mut cursor = RunCursor::new(&self.run, None);
        let mut found = cursor.seek(&prefix, self.run.first)?;
        while found && let Some(name) = cursor.key.strip_prefix(&prefix) {
            let node = parse(cursor.value())
                .filter(|node| is_name(name) && (node.number == 0 || node.number > number));
            names.insert(Name::new(name), node.ok_or(StoreError::IndexDamaged)?);
            found = cursor.next()?;
        }
        Ok(())
    }

    fn value(&self, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        let mut cursor = RunCursor::new(&self.run, None);
        Ok((cursor.seek(key, self.run.first)? && cursor.key == key)
            .then(|| cursor.value().to_vec()))
    }

    fn number(&self, dir: Slot) -> StoreResult<Option<(u64, u64)>> {
        let Some(value) = self.value(&key(BY_SLOT, &dir.0.to_be_bytes()))? else {
            return Ok(None);
        };
        let mut value = value.as_slice();
        let mut uint = || decode_uint(&mut value).map_err(|_| StoreError::IndexDamaged);
        Ok(Some((uint()?, uint()?)))
    }

    /// Returns the number of nonempty files at the time of writing, and the id of the baseline;
    /// zeros for a baseline of an older version.
    fn written(&self) -> StoreResult<(u64, u64)> {
        let value = self.value(&key(BY_SLOT, b""))?.unwrap_or(vec![0, 0]);
        let mut value = value.as_slice();
        let mut uint = || decode_uint(&mut value).map_err(|_| StoreError::IndexDamaged);
        Ok((uint()?, uint()?))
    }

    /// Returns the number of nonempty files at the time of writing.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn files(&self) -> StoreResult<u64> {
        Ok(self.written()?.0)
    }

    /// Replaces the changes file. It is valid as long as the journal ends at `end`, if given.
    /// Durable on return.
    ///
    /// Errors: `Io`.
    pub fn write_changes(&mut self, layout: &Layout, end: Option<Address>) -> StoreResult<()> {
        let (token, mut of) = (token(end), Vec::new());
        encode_uint(self.written()?.1, &mut of);
        self.changes.0.insert(OF.to_vec(), of);
        let mut builder = builder(layout.dir(), token)?;
        self.changes
            .0
            .iter()
            .try_for_each(|(key, value)| builder.add(key, token, value))
            .map_err(failed("write"))?;
        finish(builder, layout.dir(), CHANGES)
    }

    /// Reports whether the changes are numerous enough to fold.
    fn is_to_be_folded(&self) -> bool {
        let changes = self.changes.len() as u64;
        let enough = changes >= FOLD_MIN || host::left_out("fold-min");
        enough
            && self.run.entries <= FOLD_MAX
            && changes.saturating_mul(FOLD_PART) >= self.run.entries
    }

    /// As [`Baseline::write_changes`], but folds numerous changes into the tree. Returns the number
    /// of changes that remain separate.
    ///
    /// Errors: `Io`.
    pub fn write(mut self, layout: &Layout, end: Address) -> StoreResult<usize> {
        if self.is_to_be_folded() {
            match self.fold(layout, end) {
                Ok(()) => {
                    let gone: Vec<Slot> = self.gone().collect();
                    if gone.is_empty() {
                        return Ok(0);
                    }
                    self = Baseline::open_any(layout)?.ok_or(StoreError::IndexDamaged)?;
                    self.changes.set_gone(&gone);
                }
                Err(error) => tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "what changed stays beside the baseline"
                ),
            }
        }
        self.write_changes(layout, Some(end))
            .map(|()| self.changes.len())
    }

    /// Writes tree and changes as one new baseline.
    fn fold(&self, layout: &Layout, end: Address) -> StoreResult<()> {
        let mut writer = BaselineWriter::new(layout, Some(end))?;
        let root = self.root()?;
        writer.add(0, b"", &root)?;
        let (mut open, mut last, mut met) = (VecDeque::from([(ROOT, root)]), ROOT, HashSet::new());
        while let Some((number, dir)) = open.pop_front() {
            let slot = dir.child.slot;
            if !met.insert(slot) {
                return Err(StoreError::IndexDamaged);
            }
            for (name, mut node) in self.names(&dir)? {
                if node.child.kind == Kind::Dir {
                    last += 1;
                    open.push_back((last, node.clone()));
                    node.number = last;
                }
                writer.add(number, name.as_bytes(), &node)?;
            }
            if let Some(generation) = self.generation(slot)? {
                writer.listed(number, slot, generation);
            }
        }
        writer.finish()
    }

    /// Combines a baseline with its changes; `None` if they belong to another.
    fn with(run: Run, changes: Option<Run>) -> StoreResult<Option<Baseline>> {
        let Some(changes) = changes else {
            return Ok(Some(Baseline {
                run,
                changes: Changes::default(),
            }));
        };
        let baseline = Baseline {
            run,
            changes: Changes::read(&changes)?,
        };
        let of = baseline
            .changes
            .0
            .get(OF)
            .and_then(|of| decode_uint(&mut of.as_slice()).ok());
        let same = of == Some(baseline.written()?.1);
        Ok(Some(baseline).filter(|_| same))
    }

    /// Returns the inode that a name of a directory led to, if a direct lookup finds it.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn at(&self, dir: Slot, name: &Name) -> StoreResult<Option<BaselineNode>> {
        if let Some(value) = self
            .changes
            .0
            .get(&[&slot_key(b'N', dir)[..], name.as_bytes()].concat())
        {
            return Ok(if value.is_empty() {
                None
            } else {
                Some(self.changed_child(value)?)
            });
        }
        let Some((number, _)) = self
            .number(dir)?
            .filter(|_| self.changes.whole(dir).is_none())
        else {
            return Ok(None);
        };
        let Some(value) = self.value(&key(number, name.as_bytes()))? else {
            return Ok(None);
        };
        parse(&value)
            .and_then(|node| self.as_changed(node))
            .map(Some)
            .ok_or(StoreError::IndexDamaged)
    }

    /// Returns the inode of a changed name.
    fn changed_child(&self, value: &[u8]) -> StoreResult<BaselineNode> {
        let child = child_of(value).flatten().ok_or(StoreError::IndexDamaged)?;
        let attr = self
            .changes
            .0
            .get(&slot_key(b'A', child.slot))
            .ok_or(StoreError::IndexDamaged)?;
        let (attr, xattrs) =
            take_inode(child.slot, &mut attr.as_slice()).ok_or(StoreError::IndexDamaged)?;
        Ok(BaselineNode {
            child,
            attr,
            xattrs,
            number: 0,
        })
    }

    /// Returns the generation of a directory with known names.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn generation(&self, dir: Slot) -> StoreResult<Option<u64>> {
        match self.changes.whole(dir) {
            None => Ok(self.number(dir)?.map(|(_, generation)| generation)),
            whole => Ok(whole),
        }
    }

    /// Returns the inodes that had lost their last name in the open epoch.
    pub fn gone(&self) -> impl Iterator<Item = Slot> {
        let from = slot_key(b'G', Slot(0));
        self.changes
            .0
            .range(from..)
            .map(|(key, _)| key)
            .take_while(|key| key.first() == Some(&b'G'))
            .filter_map(|key| slot_of(key))
    }

    /// Reads the whole baseline and verifies its checksums.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn check(layout: &Layout) -> StoreResult<()> {
        [NAME, CHANGES]
            .iter()
            .try_for_each(|name| open(layout, name)?.map_or(Ok(()), |run| run.check()))
    }
}

fn parse(mut value: &[u8]) -> Option<BaselineNode> {
    let number = decode_uint(&mut value).ok()?;
    let child = child_of(take_part(&mut value)?)?.unwrap_or(Child {
        slot: Slot::ROOT,
        kind: Kind::Dir,
    });
    let (attr, xattrs) = take_inode(child.slot, &mut value)?;
    (attr.stat.kind == child.kind && (number == 0 || child.kind == Kind::Dir)).then_some(
        BaselineNode {
            child,
            attr,
            xattrs,
            number,
        },
    )
}
