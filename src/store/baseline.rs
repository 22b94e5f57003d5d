//! The baseline: the tree as it was when it was last served, in one file.
//!
//! It is written when a daemon ends in an orderly way, and read when the next begins: what differs was changed while nothing was mounted, and is recorded
//! as any other change. It counts only if the journal ends where it did when the baseline was written, so one that is of an earlier end is none.
//!
//! ```text
//! baseline   a run (module `index::runs`), of one epoch: u32 segment, u32 offset of the end of the journal
//! key        u64 number of a directory (big-endian; the root is 1), name; of the root itself: number 0, no name
//! value      uint number of the directory that the name leads to (0: it is none), and three parts, each uint length and bytes as in a record of kind 1:
//!            what the name leads to, attributes, extended attributes (empty: none)
//! ```
//! Directories are numbered in the order in which they are listed, so a parent comes before its children.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::OFlags;

use super::Address;
use super::at;
use super::error::{StoreError, StoreResult};
use super::ids::{Epoch, Name, Slot};
use super::index::{Builder, Bytes, Cursor, Out, Run};
use super::journal::codec::{PAYLOAD_MAX, decode_before, decode_uint, encode_before, encode_uint, is_name};
use super::layout::Layout;
use super::record::{AttrState, Child, Key, Undo};
use crate::sys::Xattrs;

const NAME: &str = "baseline";
const UNFINISHED: &str = "baseline.new";

/// The number of the root directory.
pub const ROOT: u64 = 1;
/// Bytes of attributes that an inode may have: as many as can be set through the mount, or one of its users could see to it that there is no baseline.
const XATTRS_MAX: usize = PAYLOAD_MAX / 2;

/// An inode as it was at one of its names.
#[derive(Clone, Debug)]
pub struct Node {
    /// What the name led to.
    pub child: Child,
    /// Its attributes.
    pub attr: AttrState,
    /// Its extended attributes, sorted.
    pub xattrs: Xattrs,
    /// A directory's number; 0: it is none, or what is in it is not known.
    pub number: u64,
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    StoreError::io(what, NAME)
}

fn token(end: Address) -> Epoch {
    Epoch(u64::from(end.segment) << 32 | u64::from(end.offset))
}

fn key(number: u64, name: &[u8]) -> Vec<u8> {
    [&number.to_be_bytes()[..], name].concat()
}

/// Writes a baseline. Dropped before [`Writer::finish`] it leaves nothing that counts.
pub struct Writer<'a> {
    dir: BorrowedFd<'a>,
    builder: Builder,
    token: Epoch,
}

impl<'a> Writer<'a> {
    /// Begins one that counts for as long as the journal ends at `end`.
    ///
    /// Errors: `Io`.
    pub fn new(layout: &'a Layout, end: Address) -> StoreResult<Writer<'a>> {
        let dir = layout.dir();
        let file = at::open_file(dir, UNFINISHED, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC).map_err(failed("make"))?;
        let token = token(end);
        Ok(Writer { dir, builder: Builder::new(Out::File(file), token, token, 1), token })
    }

    /// Adds a name of the directory with this number. Names come sorted, directories by their numbers; the root itself comes first, as number 0 without a name.
    ///
    /// Errors: `Io`, `Codec`.
    pub fn add(&mut self, number: u64, name: &[u8], node: &Node) -> StoreResult<()> {
        let slot = node.child.slot;
        let mut value = Vec::with_capacity(128);
        encode_uint(node.number, &mut value);
        let child = Undo::Entry { dir: Slot::ROOT, name: Name::new(b"-"), before: Some(node.child).filter(|child| child.slot != Slot::ROOT) };
        let xattrs = Some(Undo::Xattrs { slot, before: node.xattrs.clone() }).filter(|_| !node.xattrs.is_empty());
        for part in [Some(child), Some(Undo::Attr { slot, before: node.attr.clone() }), xattrs] {
            let mut bytes = Vec::new();
            part.map_or(Ok(()), |part| encode_before(&part, &mut bytes))?;
            encode_uint(bytes.len() as u64, &mut value);
            value.extend_from_slice(&bytes);
        }
        self.builder.add(&key(number, name), self.token, &value).map_err(failed("write"))
    }

    /// Puts it in place of an older one. Durable on return.
    ///
    /// Errors: `Io`.
    pub fn finish(self) -> StoreResult<()> {
        let run = self.builder.finish(0).map_err(failed("write"))?;
        run.sync().and_then(|()| at::rename(self.dir, UNFINISHED, NAME)).and_then(|()| at::sync_dir(self.dir)).map_err(failed("write"))
    }
}

/// Whether an inode with these attributes can be written.
pub fn fits(xattrs: &Xattrs) -> bool {
    xattrs.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() <= XATTRS_MAX
}

/// A baseline that is read.
pub struct Baseline {
    run: Run,
}

impl Baseline {
    /// Opens that of a store, if there is one and it counts: the journal ends at `end`.
    ///
    /// Errors: `Io`; `IndexDamaged`: it is not whole.
    pub fn open(layout: &Layout, end: Address) -> StoreResult<Option<Baseline>> {
        let file: File = match at::open_file(layout.dir(), NAME, OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed("open"))?,
        };
        let run = Run::open(0, Bytes::File(file))?;
        Ok(Some(Baseline { run }).filter(|baseline| baseline.run.first == token(end)))
    }

    /// Removes that of a store. It is not an error if there is none.
    ///
    /// Errors: `Io`.
    pub fn remove(layout: &Layout) -> StoreResult<()> {
        [NAME, UNFINISHED].iter().try_for_each(|name| at::remove_tree(layout.dir(), name.as_bytes())).map_err(failed("remove"))
    }

    /// The root directory.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn root(&self) -> StoreResult<Node> {
        let mut cursor = Cursor::new(&self.run, None);
        if !cursor.next()? || cursor.key != key(0, b"") {
            return Err(StoreError::IndexDamaged);
        }
        parse(cursor.value()).ok_or(StoreError::IndexDamaged)
    }

    /// The names of the directory with this number, sorted.
    ///
    /// Errors: `Io`, `IndexDamaged`.
    pub fn names(&self, number: u64) -> StoreResult<Vec<(Name, Node)>> {
        let prefix = number.to_be_bytes();
        let mut cursor = Cursor::new(&self.run, None);
        let mut found = cursor.seek(&prefix, self.run.first)?;
        let mut names = Vec::new();
        while found && let Some(name) = cursor.key.strip_prefix(&prefix) {
            let node = parse(cursor.value()).filter(|node| is_name(name) && (node.number == 0 || node.number > number));
            names.push((Name::new(name), node.ok_or(StoreError::IndexDamaged)?));
            found = cursor.next()?;
        }
        Ok(names)
    }
}

fn parse(mut value: &[u8]) -> Option<Node> {
    let number = decode_uint(&mut value).ok()?;
    let mut part = || {
        let length = usize::try_from(decode_uint(&mut value).ok()?).ok()?;
        let (part, rest) = value.split_at_checked(length)?;
        value = rest;
        Some(part)
    };
    let (child, attr, xattrs) = (part()?, part()?, part()?);
    let Undo::Entry { before, .. } = decode_before(Key::Entry(Slot::ROOT, Name::new(b"-")), child).ok()? else { return None };
    let child = before.unwrap_or(Child { slot: Slot::ROOT, kind: crate::sys::Kind::Dir });
    let Undo::Attr { before: attr, .. } = decode_before(Key::Attr(child.slot), attr).ok()? else { return None };
    let xattrs = match xattrs {
        [] => Vec::new(),
        bytes => match decode_before(Key::Xattrs(child.slot), bytes).ok()? {
            Undo::Xattrs { before, .. } => before,
            _ => return None,
        },
    };
    (attr.stat.kind == child.kind && (number == 0 || child.kind == crate::sys::Kind::Dir)).then_some(Node { child, attr, xattrs, number })
}
