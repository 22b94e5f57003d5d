//! The payload of a frame: a [`Record`] as bytes, and back.
//!
//! Compact and canonical: a record has exactly one encoding, so that equal journals are equal
//! files.
//!
//! Invariants: decoding is total (an error for any bytes that are no record, never a panic, never
//! more memory than the bytes justify), and `decode(encode(r)) == r` for each record that encodes.
//! Names are checked both ways: nothing that comes out can climb out of a directory.
//!
//! ```text
//! uint      LEB128, low seven bits first, at most 10 bytes
//! int       zigzag of a uint
//! bytes     uint length, then the bytes;  name, text: bytes with their own limits
//! option    0, or 1 and the value;  bool: 0 or 1;  list: uint count, then the items
//! child     uint slot, u8 kind             kind: 0 file 1 dir 2 symlink 3 fifo 4 socket 5 chardev 6 blockdev
//! place     uint parent, name
//! object    uint epoch, uint slot, uint serial, u8 origin (0 cloned, 1 moved)
//! time      int seconds, uint nanoseconds
//! stat      uint dev, uint ino, u8 kind, uint mode, nlink, uid, gid, rdev, size, blocks, blksize, time atime, mtime, ctime, option btime
//! undo      u8 tag: 0 Entry  uint dir, name, option child
//!                   1 Attr   uint slot, stat, option bytes target
//!                   2 Xattrs uint slot, list (bytes name, bytes value)
//!                   3 Data   uint slot, option object, uint size, bool provisional
//!                   4 Home   uint slot, place
//! checkpoint  uint id, list text tags, text note, int created_ns, bool atomic, uint dirty, u8 reason (0 asked, 1 guard: uint restored,
//!             2 directory: text, 3 automatic: u8 trigger (0 tripwire, 1 interval, 2 quiet, 3 unmount, 4 absence), 4 imported: int of_ns)
//! ```
//! By the frame's `kind`: 1 Undo `uint epoch, list undo`; 2 Void `uint epoch, uint slot`; 3 Moved
//! `list (uint slot, place)`; 4 Checkpoint `checkpoint`; 5 Tags `uint id, list text`; 6 Deleted
//! `uint id`; 7 Replacing `uint slot, place, object`; 8 RestoreBegin
//! `uint target, uint guard, list bytes`; 9 RestoreEnd; 10 Mounted
//! `int at_ns, byte 1 and int stopped_ns, or byte 0`; 11 Unmounted `int at_ns`; 12 By
//! `int at_ns, uint uid, uint gid, uint pid, text process`; 13 ObjectHash `uint epoch, list (uint
//! slot, uint serial, u8 origin, uint size, 32 B hash), bool whole`; 14 Ahead
//! `uint epoch, list undo, uint upto`; 15 Pinned `uint id, option text reason`; 16 Hidden
//! `uint id, bool hidden`; 17 Operation `uint number, int at_ns, uint uid, uint gid, uint pid, text
//! process, option uint undoes, deed`, where
//! ```text
//! deed      u8 tag: 0 Made     uint id
//!                   1 Restored uint target, uint guard, list bytes paths
//!                   2 Deleted  uint id, bool freed
//!                   3 Revived  uint id
//!                   4 Tagged   list (uint id, list text lost, list text got)
//!                   5 Pinned   uint id, option text before, option text after
//!                   6 Restored uint target, uint guard, list bytes paths: nothing below them
//! ```
//! 18 and 19: see `codec_attribution`; 21 Comparing: see `comparing`; 22 Told
//! `int from_ns, int to_ns`; 20 Dropped `uint epoch, list text paths, list (uint slot, uint serial,
//! u8 origin, uint size, uint first, uint last)`.

use crate::store::error::CodecError;
use crate::store::ids::{CheckpointId, Epoch, Name, ObjectId, ObjectOrigin, Slot};
use crate::store::layout::STORE_NAME;
use crate::store::record::{
    Actor, AttrState, Checkpoint, Child, DataState, Dropped, Key, ObjectHash, Place, Reason,
    Record, Trigger, Undo,
};
use crate::sys::{Kind, Stat, Time, Xattrs};

/// Most bytes of a name in a directory.
pub const NAME_MAX: usize = 255;
/// Most bytes of a checkpoint's note.
pub const NOTE_MAX: usize = 4096;
/// Most bytes of one tag.
pub const TAG_MAX: usize = 255;
/// Most tags of one checkpoint.
pub const TAGS_MAX: usize = 64;
/// Most undo records in one frame: their number is a `u16` in the index.
pub const UNDO_ITEMS_MAX: usize = 65_535;
/// Most objects in one record of hashes.
pub const SEALED_MAX: usize = 4096;
/// Most versions in one record of what was dropped.
pub const DROPPED_MAX: usize = 4096;
/// Most patterns of a tier, ...
pub const TIER_PATHS_MAX: usize = 256;
/// ... and bytes of one.
pub const TIER_PATH_MAX: usize = 1024;
/// Most bytes of the name of a process (Linux has 15).
pub const PROCESS_MAX: usize = 64;
/// Most bytes of a link target or a path.
const PATH_BYTES_MAX: usize = 65_536;
/// Most bytes of the name of an extended attribute.
const XATTR_NAME_MAX: usize = 1024;
/// Most bytes of a payload.
pub const PAYLOAD_MAX: usize = 4 << 20;

const NSEC_PER_SEC: u32 = 1_000_000_000;

/// The highest kind of frame that there is.
pub(super) const KIND_MAX: u16 = 22;

type Coded<T> = Result<T, CodecError>;

/// Appends the payload of `record` to `out` and returns the frame's kind. On failure `out` ends in
/// rubbish that the caller cuts off.
pub fn encode(record: &Record, out: &mut Vec<u8>) -> Coded<u16> {
    let begin = out.len();
    let mut w = Writer(out);
    let kind = match record {
        Record::Undo { epoch, undo } => {
            w.undos(*epoch, undo)?;
            1
        }
        Record::Void { epoch, slot } => {
            w.uints([epoch.0, slot.0]);
            2
        }
        Record::Moved { places } => {
            w.list(places, PAYLOAD_MAX, |w, (slot, place)| {
                w.placed(*slot, place)
            })?;
            3
        }
        Record::Checkpoint(_)
        | Record::Tags { .. }
        | Record::Deleted { .. }
        | Record::Pinned { .. }
        | Record::Hidden { .. } => encode_of_checkpoint(&mut w, record)?,
        Record::Replacing {
            slot,
            place,
            object,
        } => {
            w.placed(*slot, place)?;
            w.object(*object);
            7
        }
        Record::RestoreBegin {
            target,
            guard,
            paths,
        } => {
            w.uints([target.0, guard.0]);
            w.list(paths, PAYLOAD_MAX, |w, path| w.bytes(path, PATH_BYTES_MAX))?;
            8
        }
        Record::RestoreEnd => 9,
        Record::Mounted { at_ns, stopped_ns } => {
            w.mounted(*at_ns, *stopped_ns);
            10
        }
        Record::Unmounted { at_ns } => {
            w.int(*at_ns);
            11
        }
        Record::By { at_ns, actor } => {
            w.actor(*at_ns, actor)?;
            12
        }
        Record::Hashes {
            epoch,
            objects,
            whole,
        } => {
            w.sealed(*epoch, objects, *whole)?;
            13
        }
        Record::Ahead { epoch, undo, upto } => w.ahead(*epoch, undo, *upto)?,
        Record::Operation(operation) => {
            w.operation(operation)?;
            17
        }
        Record::Touched { .. } | Record::OpenAt { .. } | Record::RestoreOnly { .. } => {
            w.who(record)?
        }
        Record::Dropped {
            epoch,
            paths,
            objects,
        } => w.dropped(*epoch, paths, objects)?,
        Record::Comparing(comparing) => w.comparing(comparing.as_ref()),
        Record::Told { from_ns, to_ns } => {
            [from_ns, to_ns].into_iter().for_each(|time| w.int(*time));
            22
        }
    };
    if out.len().saturating_sub(begin) > PAYLOAD_MAX {
        return Err(CodecError::Limit);
    }
    Ok(kind)
}

/// As [`encode`], of a record that says something of one checkpoint.
fn encode_of_checkpoint(w: &mut Writer<'_>, record: &Record) -> Coded<u16> {
    Ok(match record {
        Record::Checkpoint(checkpoint) => {
            w.checkpoint(checkpoint)?;
            4
        }
        Record::Tags { id, tags } => {
            w.tags_of(*id, tags)?;
            5
        }
        Record::Deleted { id } => {
            w.uint(id.0);
            6
        }
        Record::Pinned { id, reason } => {
            w.uint(id.0);
            w.option(reason.as_ref(), |w, reason| {
                w.bytes(reason.as_bytes(), NOTE_MAX)
            })?;
            15
        }
        Record::Hidden { id, hidden } => {
            w.uint(id.0);
            w.byte(u8::from(*hidden));
            16
        }
        _ => return Err(CodecError::Unknown),
    })
}

/// Reads the record that a frame of this kind with this payload holds.
pub fn decode(kind: u16, payload: &[u8]) -> Coded<Record> {
    let mut r = Reader(payload);
    let record = match kind {
        1 => Record::Undo {
            epoch: Epoch(r.uint()?),
            undo: r.list(UNDO_ITEMS_MAX, Reader::undo)?,
        },
        2 => Record::Void {
            epoch: Epoch(r.uint()?),
            slot: Slot(r.uint()?),
        },
        3 => Record::Moved {
            places: r.list(PAYLOAD_MAX, Reader::placed)?,
        },
        4 => Record::Checkpoint(r.checkpoint()?),
        5 => Record::Tags {
            id: CheckpointId(r.uint()?),
            tags: r.tags()?,
        },
        6 => Record::Deleted {
            id: CheckpointId(r.uint()?),
        },
        7 => {
            let (slot, place) = r.placed()?;
            Record::Replacing {
                slot,
                place,
                object: r.object()?,
            }
        }
        8 => Record::RestoreBegin {
            target: CheckpointId(r.uint()?),
            guard: CheckpointId(r.uint()?),
            paths: r.list(PAYLOAD_MAX, |r| Ok(r.bytes(PATH_BYTES_MAX)?.to_vec()))?,
        },
        9 => Record::RestoreEnd,
        10 => {
            let at_ns = r.int()?;
            let stopped_ns = match r.byte()? {
                0 => None,
                1 => Some(r.int()?),
                _ => return Err(CodecError::Unknown),
            };
            Record::Mounted { at_ns, stopped_ns }
        }
        11 => Record::Unmounted { at_ns: r.int()? },
        12 => Record::By {
            at_ns: r.int()?,
            actor: r.actor()?,
        },
        13 => {
            let epoch = Epoch(r.uint()?);
            Record::Hashes {
                epoch,
                objects: r.list(SEALED_MAX, |r| r.sealed(epoch))?,
                whole: r.bool()?,
            }
        }
        14 => Record::Ahead {
            epoch: Epoch(r.uint()?),
            undo: r.list(UNDO_ITEMS_MAX, Reader::undo)?,
            upto: Epoch(r.uint()?),
        },
        15 => Record::Pinned {
            id: CheckpointId(r.uint()?),
            reason: r.option(|r| r.text(NOTE_MAX))?,
        },
        17 => Record::Operation(r.operation()?),
        16 => Record::Hidden {
            id: CheckpointId(r.uint()?),
            hidden: r.bool()?,
        },
        18 => r.who()?,
        20 => r.dropped()?,
        21 => Record::Comparing(r.comparing()?),
        22 => Record::Told {
            from_ns: r.int()?,
            to_ns: r.int()?,
        },
        19 => Record::RestoreOnly {
            paths: r.list(PAYLOAD_MAX, |r| Ok(r.bytes(PATH_BYTES_MAX)?.to_vec()))?,
        },
        _ => return Err(CodecError::Unknown),
    };
    r.end()?;
    Ok(record)
}

/// Appends a number as the codec writes it.
pub(super) fn put_uint(out: &mut Vec<u8>, value: u64) {
    Writer(out).uint(value);
}

/// Takes a number from the beginning of the bytes.
pub(super) fn take_uint(bytes: &mut &[u8]) -> Coded<u64> {
    let mut reader = Reader(bytes);
    let value = reader.uint()?;
    *bytes = reader.0;
    Ok(value)
}

/// The store is no part of the tree: no name leads there.
fn check_place(dir: Slot, name: &Name) -> Coded<()> {
    if dir == Slot::ROOT && name.as_bytes() == STORE_NAME.as_bytes() {
        Err(CodecError::Reserved)
    } else {
        Ok(())
    }
}

/// Nothing is in itself, and the root is in nothing.
fn check_below(dir: Slot, child: Slot) -> Coded<()> {
    if child == dir || child == Slot::ROOT || child == Slot::STAGING {
        Err(CodecError::Circle)
    } else {
        Ok(())
    }
}

pub(in crate::store) fn is_name(bytes: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&bytes.len())
        && bytes != b"."
        && bytes != b".."
        && !bytes.iter().any(|b| matches!(b, 0 | b'/'))
}

struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    fn uint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }

    fn uints<const N: usize>(&mut self, values: [u64; N]) {
        values.into_iter().for_each(|value| self.uint(value));
    }

    fn int(&mut self, value: i64) {
        self.uint(((value << 1) ^ (value >> 63)) as u64);
    }

    fn mounted(&mut self, at_ns: i64, stopped_ns: Option<i64>) {
        self.int(at_ns);
        self.byte(u8::from(stopped_ns.is_some()));
        if let Some(stopped_ns) = stopped_ns {
            self.int(stopped_ns);
        }
    }

    fn undos(&mut self, epoch: Epoch, undo: &[Undo]) -> Coded<()> {
        self.uint(epoch.0);
        self.list(undo, UNDO_ITEMS_MAX, Writer::undo)
    }

    fn ahead(&mut self, epoch: Epoch, undo: &[Undo], upto: Epoch) -> Coded<u16> {
        self.undos(epoch, undo)?;
        self.uint(upto.0);
        Ok(14)
    }

    fn tags_of(&mut self, id: CheckpointId, tags: &[String]) -> Coded<()> {
        self.uint(id.0);
        self.tags(tags)
    }

    fn bytes(&mut self, bytes: &[u8], limit: usize) -> Coded<()> {
        if bytes.len() > limit {
            return Err(CodecError::Limit);
        }
        self.uint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn name(&mut self, name: &Name) -> Coded<()> {
        if !is_name(name.as_bytes()) {
            return Err(CodecError::Name);
        }
        self.bytes(name.as_bytes(), NAME_MAX)
    }

    fn list<T>(
        &mut self,
        items: &[T],
        limit: usize,
        mut item: impl FnMut(&mut Self, &T) -> Coded<()>,
    ) -> Coded<()> {
        if items.len() > limit {
            return Err(CodecError::Limit);
        }
        self.uint(items.len() as u64);
        items.iter().try_for_each(|one| item(self, one))
    }

    fn option<T>(
        &mut self,
        value: Option<&T>,
        mut some: impl FnMut(&mut Self, &T) -> Coded<()>,
    ) -> Coded<()> {
        self.byte(u8::from(value.is_some()));
        value.map_or(Ok(()), |value| some(self, value))
    }

    fn kind(&mut self, kind: Kind) {
        self.byte(match kind {
            Kind::File => 0,
            Kind::Dir => 1,
            Kind::Symlink => 2,
            Kind::Fifo => 3,
            Kind::Socket => 4,
            Kind::CharDev => 5,
            Kind::BlockDev => 6,
        });
    }

    fn place(&mut self, place: &Place) -> Coded<()> {
        check_place(place.parent, &place.name)?;
        self.uint(place.parent.0);
        self.name(&place.name)
    }

    fn placed(&mut self, slot: Slot, place: &Place) -> Coded<()> {
        check_below(place.parent, slot)?;
        self.uint(slot.0);
        self.place(place)
    }

    fn object(&mut self, object: ObjectId) {
        self.uint(object.epoch.0);
        self.object_in_epoch(object);
    }

    fn object_in_epoch(&mut self, object: ObjectId) {
        self.uint(object.slot.0);
        self.uint(u64::from(object.serial));
        self.byte(match object.origin {
            ObjectOrigin::Cloned => 0,
            ObjectOrigin::Moved => 1,
        });
    }

    fn actor(&mut self, at_ns: i64, actor: &Actor) -> Coded<()> {
        self.int(at_ns);
        self.asker(actor)
    }

    fn asker(&mut self, actor: &Actor) -> Coded<()> {
        for field in [actor.uid, actor.gid, actor.pid] {
            self.uint(u64::from(field));
        }
        self.bytes(actor.process.as_bytes(), PROCESS_MAX)
    }

    fn sealed(&mut self, epoch: Epoch, objects: &[ObjectHash], whole: bool) -> Coded<()> {
        self.uint(epoch.0);
        self.list(objects, SEALED_MAX, |w, sealed| {
            if sealed.object.epoch != epoch {
                return Err(CodecError::Range);
            }
            w.object_in_epoch(sealed.object);
            w.uint(sealed.size);
            w.0.extend_from_slice(&sealed.hash);
            Ok(())
        })?;
        self.byte(u8::from(whole));
        Ok(())
    }

    fn dropped(&mut self, epoch: Epoch, paths: &[String], objects: &[Dropped]) -> Coded<u16> {
        self.uint(epoch.0);
        self.list(paths, TIER_PATHS_MAX, |w, path| {
            w.bytes(path.as_bytes(), TIER_PATH_MAX)
        })?;
        self.list(objects, DROPPED_MAX, |w, dropped| {
            if dropped.object.epoch != epoch {
                return Err(CodecError::Range);
            }
            w.object_in_epoch(dropped.object);
            w.uints([dropped.size, dropped.first.0, dropped.last.0]);
            Ok(())
        })?;
        Ok(20)
    }

    fn time(&mut self, time: &Time) -> Coded<()> {
        if time.nsec >= NSEC_PER_SEC {
            return Err(CodecError::Range);
        }
        self.int(time.sec);
        self.uint(u64::from(time.nsec));
        Ok(())
    }

    fn stat(&mut self, stat: &Stat) -> Coded<()> {
        self.uint(stat.dev);
        self.uint(stat.ino);
        self.kind(stat.kind);
        for field in [stat.mode, stat.nlink, stat.uid, stat.gid] {
            self.uint(u64::from(field));
        }
        for field in [stat.rdev, stat.size, stat.blocks, u64::from(stat.blksize)] {
            self.uint(field);
        }
        for time in [stat.atime, stat.mtime, stat.ctime] {
            self.time(&time)?;
        }
        self.option(stat.btime.as_ref(), Writer::time)
    }

    fn undo(&mut self, undo: &Undo) -> Coded<()> {
        let (tag, slot) = match undo {
            Undo::Entry { dir, .. } => (0, dir),
            Undo::Attr { slot, .. } => (1, slot),
            Undo::Xattrs { slot, .. } => (2, slot),
            Undo::Data { slot, .. } => (3, slot),
            Undo::Home { slot, .. } => (4, slot),
        };
        self.byte(tag);
        self.uint(slot.0);
        if let Undo::Entry { name, .. } = undo {
            self.name(name)?;
        }
        self.before(undo)
    }

    /// What the key held.
    fn before(&mut self, undo: &Undo) -> Coded<()> {
        match undo {
            Undo::Entry { dir, name, before } => {
                check_place(*dir, name)?;
                self.option(before.as_ref(), |w, child| {
                    check_below(*dir, child.slot)?;
                    w.uint(child.slot.0);
                    w.kind(child.kind);
                    Ok(())
                })
            }
            Undo::Attr { before, .. } => {
                self.stat(&before.stat)?;
                self.option(before.target.as_ref(), |w, target| {
                    w.bytes(target, PATH_BYTES_MAX)
                })
            }
            Undo::Xattrs { before, .. } => self.list(before, PAYLOAD_MAX, |w, (name, value)| {
                w.bytes(name, XATTR_NAME_MAX)?;
                w.bytes(value, PAYLOAD_MAX)
            }),
            Undo::Data { before, .. } => {
                self.option(before.object.as_ref(), |w, object| {
                    w.object(*object);
                    Ok(())
                })?;
                self.uint(before.size);
                self.byte(u8::from(before.provisional));
                Ok(())
            }
            Undo::Home { slot, before } => {
                check_below(before.parent, *slot)?;
                self.place(before)
            }
        }
    }

    fn tags(&mut self, tags: &[String]) -> Coded<()> {
        self.list(tags, TAGS_MAX, |w, tag| w.bytes(tag.as_bytes(), TAG_MAX))
    }

    fn checkpoint(&mut self, checkpoint: &Checkpoint) -> Coded<()> {
        self.uint(checkpoint.id.0);
        self.tags(&checkpoint.tags)?;
        self.bytes(checkpoint.note.as_bytes(), NOTE_MAX)?;
        self.int(checkpoint.created_ns);
        self.byte(u8::from(checkpoint.atomic));
        self.uint(checkpoint.dirty);
        match &checkpoint.reason {
            Reason::Asked => self.byte(0),
            Reason::Guard { restored } => {
                self.byte(1);
                self.uint(restored.0);
            }
            Reason::Directory { name } => {
                self.byte(2);
                self.bytes(name.as_bytes(), TAG_MAX)?;
            }
            Reason::Imported { of_ns } => {
                self.byte(4);
                self.int(*of_ns);
            }
            Reason::Auto { trigger } => {
                self.byte(3);
                self.byte(match trigger {
                    Trigger::Tripwire => 0,
                    Trigger::Interval => 1,
                    Trigger::Quiet => 2,
                    Trigger::Unmount => 3,
                    Trigger::Absence => 4,
                });
            }
        }
        Ok(())
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn end(&self) -> Coded<()> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(CodecError::Trailing)
        }
    }

    fn byte(&mut self) -> Coded<u8> {
        let (&byte, rest) = self.0.split_first().ok_or(CodecError::Short)?;
        self.0 = rest;
        Ok(byte)
    }

    fn bool(&mut self) -> Coded<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(CodecError::Unknown),
        }
    }

    fn uint(&mut self) -> Coded<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit, and a last byte of zero would be a second
            // spelling of the same number.
            if (shift == 63 && bits > 1) || (byte == 0 && shift > 0) {
                return Err(CodecError::Range);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(CodecError::Range)
    }

    fn small(&mut self) -> Coded<u32> {
        u32::try_from(self.uint()?).map_err(|_| CodecError::Range)
    }

    fn int(&mut self) -> Coded<i64> {
        let value = self.uint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn bytes(&mut self, limit: usize) -> Coded<&'a [u8]> {
        let len = usize::try_from(self.uint()?).map_err(|_| CodecError::Range)?;
        if len > limit {
            return Err(CodecError::Limit);
        }
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(CodecError::Short)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn text(&mut self, limit: usize) -> Coded<String> {
        let bytes = self.bytes(limit)?;
        std::str::from_utf8(bytes)
            .map(str::to_owned)
            .map_err(|_| CodecError::Text)
    }

    fn name(&mut self) -> Coded<Name> {
        let bytes = self.bytes(NAME_MAX)?;
        if is_name(bytes) {
            Ok(Name::new(bytes))
        } else {
            Err(CodecError::Name)
        }
    }

    /// Each item takes at least one byte, so a count above the bytes left is a lie, and is found
    /// before memory is taken for it.
    fn list<T>(
        &mut self,
        limit: usize,
        mut item: impl FnMut(&mut Self) -> Coded<T>,
    ) -> Coded<Vec<T>> {
        let count = usize::try_from(self.uint()?).map_err(|_| CodecError::Range)?;
        if count > limit {
            return Err(CodecError::Limit);
        }
        if count > self.0.len() {
            return Err(CodecError::Short);
        }
        let mut items = Vec::with_capacity(count.min(1024));
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn option<T>(&mut self, mut some: impl FnMut(&mut Self) -> Coded<T>) -> Coded<Option<T>> {
        if self.bool()? {
            some(self).map(Some)
        } else {
            Ok(None)
        }
    }

    fn kind(&mut self) -> Coded<Kind> {
        Ok(match self.byte()? {
            0 => Kind::File,
            1 => Kind::Dir,
            2 => Kind::Symlink,
            3 => Kind::Fifo,
            4 => Kind::Socket,
            5 => Kind::CharDev,
            6 => Kind::BlockDev,
            _ => return Err(CodecError::Unknown),
        })
    }

    fn place(&mut self) -> Coded<Place> {
        let place = Place {
            parent: Slot(self.uint()?),
            name: self.name()?,
        };
        check_place(place.parent, &place.name)?;
        Ok(place)
    }

    fn placed(&mut self) -> Coded<(Slot, Place)> {
        let (slot, place) = (Slot(self.uint()?), self.place()?);
        check_below(place.parent, slot)?;
        Ok((slot, place))
    }

    fn object(&mut self) -> Coded<ObjectId> {
        let epoch = Epoch(self.uint()?);
        self.object_in_epoch(epoch)
    }

    fn actor(&mut self) -> Coded<Actor> {
        Ok(Actor {
            uid: self.small()?,
            gid: self.small()?,
            pid: self.small()?,
            process: self.text(PROCESS_MAX)?,
        })
    }

    fn sealed(&mut self, epoch: Epoch) -> Coded<ObjectHash> {
        let (object, size) = (self.object_in_epoch(epoch)?, self.uint()?);
        let (hash, rest) = self.0.split_first_chunk::<32>().ok_or(CodecError::Short)?;
        self.0 = rest;
        Ok(ObjectHash {
            object,
            size,
            hash: *hash,
        })
    }

    fn dropped(&mut self) -> Coded<Record> {
        let epoch = Epoch(self.uint()?);
        let paths = self.list(TIER_PATHS_MAX, |r| r.text(TIER_PATH_MAX))?;
        let objects = self.list(DROPPED_MAX, |r| {
            let (object, size) = (r.object_in_epoch(epoch)?, r.uint()?);
            Ok(Dropped {
                object,
                size,
                first: CheckpointId(r.uint()?),
                last: CheckpointId(r.uint()?),
            })
        })?;
        Ok(Record::Dropped {
            epoch,
            paths,
            objects,
        })
    }

    fn object_in_epoch(&mut self, epoch: Epoch) -> Coded<ObjectId> {
        Ok(ObjectId {
            epoch,
            slot: Slot(self.uint()?),
            serial: self.small()?,
            origin: match self.byte()? {
                0 => ObjectOrigin::Cloned,
                1 => ObjectOrigin::Moved,
                _ => return Err(CodecError::Unknown),
            },
        })
    }

    fn time(&mut self) -> Coded<Time> {
        let (sec, nsec) = (self.int()?, self.small()?);
        if nsec < NSEC_PER_SEC {
            Ok(Time { sec, nsec })
        } else {
            Err(CodecError::Range)
        }
    }

    fn stat(&mut self) -> Coded<Stat> {
        Ok(Stat {
            dev: self.uint()?,
            ino: self.uint()?,
            kind: self.kind()?,
            mode: self.small()?,
            nlink: self.small()?,
            uid: self.small()?,
            gid: self.small()?,
            rdev: self.uint()?,
            size: self.uint()?,
            blocks: self.uint()?,
            blksize: self.small()?,
            atime: self.time()?,
            mtime: self.time()?,
            ctime: self.time()?,
            btime: self.option(Reader::time)?,
        })
    }

    fn xattrs(&mut self) -> Coded<Xattrs> {
        self.list(PAYLOAD_MAX, |r| {
            Ok((
                r.bytes(XATTR_NAME_MAX)?.to_vec(),
                r.bytes(PAYLOAD_MAX)?.to_vec(),
            ))
        })
    }

    fn undo(&mut self) -> Coded<Undo> {
        let tag = self.byte()?;
        let key = match tag {
            0 => {
                let Place { parent: dir, name } = self.place()?;
                Key::Entry(dir, name)
            }
            1..=4 => {
                let slot = Slot(self.uint()?);
                [Key::Attr, Key::Xattrs, Key::Data, Key::Home]
                    .map(|of| of(slot))
                    .into_iter()
                    .nth(usize::from(tag) - 1)
                    .ok_or(CodecError::Unknown)?
            }
            _ => return Err(CodecError::Unknown),
        };
        self.before(key)
    }

    /// What a key held.
    fn before(&mut self, key: Key) -> Coded<Undo> {
        Ok(match key {
            Key::Entry(dir, name) => {
                let before = self.option(|r| {
                    let child = Child {
                        slot: Slot(r.uint()?),
                        kind: r.kind()?,
                    };
                    check_below(dir, child.slot).map(|()| child)
                })?;
                Undo::Entry { dir, name, before }
            }
            Key::Attr(slot) => {
                let before = AttrState {
                    stat: self.stat()?,
                    target: self.option(|r| Ok(r.bytes(PATH_BYTES_MAX)?.to_vec()))?,
                };
                Undo::Attr { slot, before }
            }
            Key::Xattrs(slot) => Undo::Xattrs {
                slot,
                before: self.xattrs()?,
            },
            Key::Data(slot) => {
                let before = DataState {
                    object: self.option(Reader::object)?,
                    size: self.uint()?,
                    provisional: self.bool()?,
                };
                Undo::Data { slot, before }
            }
            Key::Home(slot) => {
                let before = self.place()?;
                check_below(before.parent, slot)?;
                Undo::Home { slot, before }
            }
        })
    }

    fn tags(&mut self) -> Coded<Vec<String>> {
        self.list(TAGS_MAX, |r| r.text(TAG_MAX))
    }

    fn trigger(&mut self) -> Coded<Trigger> {
        match self.byte()? {
            0 => Ok(Trigger::Tripwire),
            1 => Ok(Trigger::Interval),
            2 => Ok(Trigger::Quiet),
            3 => Ok(Trigger::Unmount),
            4 => Ok(Trigger::Absence),
            _ => Err(CodecError::Unknown),
        }
    }

    fn checkpoint(&mut self) -> Coded<Checkpoint> {
        Ok(Checkpoint {
            id: CheckpointId(self.uint()?),
            tags: self.tags()?,
            note: self.text(NOTE_MAX)?,
            created_ns: self.int()?,
            atomic: self.bool()?,
            dirty: self.uint()?,
            reason: match self.byte()? {
                0 => Reason::Asked,
                1 => Reason::Guard {
                    restored: CheckpointId(self.uint()?),
                },
                2 => Reason::Directory {
                    name: self.text(TAG_MAX)?,
                },
                3 => Reason::Auto {
                    trigger: self.trigger()?,
                },
                4 => Reason::Imported { of_ns: self.int()? },
                _ => return Err(CodecError::Unknown),
            },
        })
    }
}

#[path = "codec_attribution.rs"]
mod attribution;
mod comparing;
#[path = "codec_index.rs"]
mod index;
mod operation;

pub(in crate::store) use self::index::{
    decode_before, decode_kept, decode_place, decode_uint, encode_before, encode_kept,
    encode_place, encode_uint,
};

#[cfg(test)]
#[path = "codec_tests.rs"]
mod tests;
