//! Encoding of [`Record`]s as the payload of a frame.
//!
//! The encoding is compact and canonical: a record has exactly one encoding, so that equal journals
//! are equal files.
//!
//! Invariants: decoding is total (invalid bytes return an error, never panic, and never allocate
//! more memory than the bytes justify), and `decode(encode(r)) == r` for each record that encodes.
//! Names are checked in both directions: no decoded name can lead out of a directory.
//!
//! ```text
//! uint      LEB128, low seven bits first, up to 10 bytes
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
//! `uint id`; 7 Replacing `uint slot, place, object`; 8 RestoreBegin `uint target, uint guard, list
//! bytes`; 9 RestoreEnd; 10 Mounted `int at_ns, byte 1 and int stopped_ns, or byte 0`; 11 Unmounted
//! `int at_ns`; 12 By `int at_ns, uint uid, uint gid, uint pid, text process`; 13 Hashes `uint
//! epoch, list (uint slot, uint serial, u8 origin, uint size, 32 B hash), bool whole`; 14 Pinned
//! `uint id, option text reason`; 15 Hidden `uint id, bool hidden`; 16 Operation `uint number, int
//! at_ns, uint uid, uint gid, uint pid, text process, option uint undoes, deed`, where
//! ```text
//! deed      u8 tag: 0 Made     uint id
//!                   1 Restored uint target, uint guard, list bytes paths
//!                   2 Deleted  uint id, bool freed
//!                   3 Revived  uint id
//!                   4 Tagged   list (uint id, list text lost, list text got)
//!                   5 Pinned   uint id, option text before, option text after
//!                   6 Restored uint target, uint guard, list bytes paths: nothing below them
//!                   7 Branch   uint base, text name, text store, bool dropped
//! ```
//! 17, the processes that change the tree, is `u8 0, list (uint number, process), list touch`, or
//! `u8 1, uint checkpoint, list (bytes path, process), uint more`, where
//! ```text
//! process   uint pid, start, uid, parent, session, text name, text cgroup
//! touch     u8 0 Name  uint by, directory, name, u8 0 removed, 1 created, 2 moved there
//!           u8 1 Data  uint by, slot          u8 2 Attr  uint by, slot         u8 3 Made  uint by, slot
//!           u8 4 Gone  uint slot              u8 5 Left  uint by, slot
//! ```
//! 18 RestoreOnly `list bytes`; 19 Dropped `uint epoch, list text paths, list (uint slot, uint
//! serial, u8 origin, uint size, uint first, uint last)`; 20 Comparing `u8 0`: ended, or `u8` epoch
//! of the differences (1: the open one; 2: a separate one, not yet begun; 3: a separate one), `uint
//! segment, uint offset, int left_ns`; 21 Told `int from_ns, int to_ns`; 22 Replacing as 7, with a
//! whiteout left at the place.

mod forms;

use self::forms::{
    Bytes, DefaultEncoding, Encoding, List, OptionOf, Tagged, Text, fields, variants,
};
use crate::error::CodecError;
use crate::ids::{Address, Name, ObjectId, ObjectOrigin, Slot};
use crate::layout::STORE_NAME;
use crate::operation::{Operation, OperationEffect, TagChange};
use crate::record::{
    AbsenceEpoch, AttrState, Checkpoint, CheckpointState, Child, Comparing, DataState, Dropped,
    Key, NameTouch, ObjectHash, Place, Process, ProcessChange, Record, Undo,
};
use ckptfs_api::{Actor, CheckpointId, Epoch, Reason, Trigger};
use ckptfs_sys::{Kind, Protection, Stat, Time};

/// Length limit of a name in a directory, in bytes.
pub const NAME_MAX: usize = 255;
/// Length limit of a checkpoint's note, in bytes.
pub const NOTE_MAX: usize = 4096;
/// Length limit of a tag, in bytes.
pub const TAG_MAX: usize = 255;
/// Maximum number of tags of a checkpoint.
pub const TAGS_MAX: usize = 64;
/// Maximum number of undo records in a frame: the index stores it as a `u16`.
const UNDO_ITEMS_MAX: usize = 65_535;
/// Maximum number of objects in a record of hashes, and of versions in a record of dropped content.
const OBJECTS_MAX: usize = 4096;
/// Maximum number of patterns of a tier.
const TIER_PATHS_MAX: usize = 256;
/// Length limit of such a pattern, in bytes.
const TIER_PATH_MAX: usize = 1024;
/// Length limit of a process name, in bytes (15 on Linux).
const PROCESS_MAX: usize = 64;
/// Length limit of a control group path, in bytes.
const CGROUP_MAX: usize = 4096;
/// Length limit of a link target or path, in bytes.
const PATH_BYTES_MAX: usize = 65_536;
/// Length limit of the name of an extended attribute, in bytes.
const XATTR_NAME_MAX: usize = 1024;
/// Size limit of a payload, in bytes.
pub const PAYLOAD_MAX: usize = 4 << 20;

const NSEC_PER_SEC: u32 = 1_000_000_000;

/// The highest frame kind.
pub(super) const KIND_MAX: u16 = 22;

type Coded<T> = Result<T, CodecError>;
type Note = Text<NOTE_MAX>;
type Tags = List<TAGS_MAX, Text<TAG_MAX>>;
type Paths = List<PAYLOAD_MAX, Bytes<PATH_BYTES_MAX>>;
type XattrList = List<PAYLOAD_MAX, (Bytes<XATTR_NAME_MAX>, Bytes<PAYLOAD_MAX>)>;

fields! {
    Slot { 0 }
    Epoch { 0 }
    CheckpointId { 0 }
    Address { segment, offset }
    ObjectId { epoch, slot, serial, origin }
    Child { slot, kind }
    Stat {
        dev, ino, kind, mode, nlink, uid, gid, rdev, size, blocks, blksize, atime, mtime, ctime,
        btime: OptionOf;
        protection = Protection::None
    }
    AttrState { stat, target: OptionOf<Bytes<PATH_BYTES_MAX>> }
    DataState { object: OptionOf, size, provisional }
    Actor { uid, gid, pid, process: Text<PROCESS_MAX> }
    Checkpoint { id, tags: Tags, note: Note, created_ns, atomic, dirty, reason }
    ObjectHash { object: InEpoch, size, hash }
    Dropped { object: InEpoch, size, first, last }
    Process {
        pid, start, uid, parent, session, name: Text<PROCESS_MAX>, cgroup: Text<CGROUP_MAX>
    }
    Comparing { apart, baseline, left_ns }
    TagChange { id, lost: Tags, got: Tags }
    Operation { number, at_ns, by, undoes: OptionOf, deed }
}

variants! {
    Kind { 0 File, 1 Dir, 2 Symlink, 3 Fifo, 4 Socket, 5 CharDev, 6 BlockDev }
    ObjectOrigin { 0 Cloned, 1 Moved }
    Key {
        0 Entry(dir: DefaultEncoding, name: DefaultEncoding), 1 Attr(slot: DefaultEncoding), 2 Xattrs(slot: DefaultEncoding), 3 Data(slot: DefaultEncoding),
        4 Home(slot: DefaultEncoding)
    }
    Trigger { 0 Tripwire, 1 Interval, 2 Quiet, 3 Unmount, 4 Absence }
    Reason {
        0 Asked, 1 Guard { restored }, 2 Directory { name: Text<TAG_MAX> }, 3 Auto { trigger },
        4 Imported { of_ns }
    }
    NameTouch { 0 Removed, 1 Made, 2 Moved }
    ProcessChange {
        0 Name { by, dir, name, how }, 1 Data { by, slot }, 2 Attr { by, slot },
        3 Made { by, slot }, 4 Gone { slot }, 5 Left { by, slot }
    }
    AbsenceEpoch { 1 No, 2 Unclosed, 3 Closed }
    OperationEffect {
        0 Made { id }, 1 Restored { target, guard, paths: Paths; only = false },
        2 Deleted { id, freed }, 3 Revived { id }, 4 Tagged { changes: List<PAYLOAD_MAX> },
        5 Pinned { id, before: OptionOf<Note>, after: OptionOf<Note> },
        6 Restored { target, guard, paths: Paths; only = true },
        7 Branch { base, name: Text<TAG_MAX>, store: Text<TAG_MAX>, dropped }
    }
    Record {
        1 Undo { epoch, undo: List<UNDO_ITEMS_MAX> },
        2 Void { epoch, slot },
        3 Moved { places: List<PAYLOAD_MAX, (DefaultEncoding, DefaultEncoding)> },
        4 Checkpoint(checkpoint: DefaultEncoding),
        5 Tags { id, tags: Tags },
        6 Deleted { id },
        7 Replacing { slot, place, object; whiteout = false },
        8 RestoreBegin { target, guard, paths: Paths },
        9 RestoreEnd,
        10 Mounted { at_ns, stopped_ns: OptionOf },
        11 Unmounted { at_ns },
        12 By { at_ns, actor },
        13 Hashes { epoch, objects: List<OBJECTS_MAX>, whole },
        14 Pinned { id, reason: OptionOf<Note> },
        15 Hidden { id, hidden },
        16 Operation(operation: DefaultEncoding),
        17 (0) Touched {
            processes: List<PAYLOAD_MAX, (DefaultEncoding, DefaultEncoding)>, touches: List<PAYLOAD_MAX>
        },
        17 (1) OpenAt {
            id, open: List<PAYLOAD_MAX, (Bytes<PATH_BYTES_MAX>, DefaultEncoding)>, more
        },
        18 RestoreOnly { paths: Paths },
        19 Dropped {
            epoch, paths: List<TIER_PATHS_MAX, Text<TIER_PATH_MAX>>, objects: List<OBJECTS_MAX>
        },
        20 Comparing(comparing: OrZero),
        21 Told { from_ns, to_ns },
        22 Replacing { slot, place, object; whiteout = true },
    }
}

/// Appends the payload of `record` to `out` and returns the frame's kind. On failure `out` ends
/// with garbage that the caller truncates.
pub fn encode(record: &Record, out: &mut Vec<u8>) -> Coded<u16> {
    let begin = out.len();
    check(record)?;
    record.put_fields(out)?;
    if out.len().saturating_sub(begin) > PAYLOAD_MAX {
        return Err(CodecError::Limit);
    }
    Ok(record.tag())
}

/// Decodes the record of a frame with this kind and payload.
pub fn decode(kind: u16, payload: &[u8]) -> Coded<Record> {
    whole(payload, |from| {
        let mut record = Record::take_fields(kind, from)?;
        match &mut record {
            Record::Hashes { epoch, objects, .. } => {
                objects.iter_mut().for_each(|one| one.object.epoch = *epoch);
            }
            Record::Dropped { epoch, objects, .. } => {
                objects.iter_mut().for_each(|one| one.object.epoch = *epoch);
            }
            _ => {}
        }
        check(&record).map(|()| record)
    })
}

/// Decodes a value that must use all bytes.
fn whole<T>(mut bytes: &[u8], take: impl FnOnce(&mut &[u8]) -> Coded<T>) -> Coded<T> {
    let value = take(&mut bytes)?;
    if bytes.is_empty() {
        Ok(value)
    } else {
        Err(CodecError::Trailing)
    }
}

/// Checks the relations between the parts of a record.
fn check(record: &Record) -> Coded<()> {
    match record {
        Record::Moved { places } => places
            .iter()
            .try_for_each(|(slot, place)| check_below(place.parent, *slot)),
        Record::Replacing { slot, place, .. } => check_below(place.parent, *slot),
        Record::Hashes { epoch, objects, .. }
            if objects.iter().any(|one| one.object.epoch != *epoch) =>
        {
            Err(CodecError::Range)
        }
        Record::Dropped { epoch, objects, .. }
            if objects.iter().any(|one| one.object.epoch != *epoch) =>
        {
            Err(CodecError::Range)
        }
        _ => Ok(()),
    }
}

/// Rejects names of the store, which is not part of the tree.
fn check_place(dir: Slot, name: &Name) -> Coded<()> {
    if dir == Slot::ROOT && name.as_bytes() == STORE_NAME.as_bytes() {
        Err(CodecError::Reserved)
    } else {
        Ok(())
    }
}

/// Rejects a directory in itself, and the root in any directory.
fn check_below(dir: Slot, child: Slot) -> Coded<()> {
    if child == dir || child == Slot::ROOT || child == Slot::STAGING {
        Err(CodecError::Circle)
    } else {
        Ok(())
    }
}

pub(crate) fn is_name(bytes: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&bytes.len())
        && bytes != b"."
        && bytes != b".."
        && !bytes.iter().any(|b| matches!(b, 0 | b'/'))
}

impl Encoding<Name> for DefaultEncoding {
    fn put(name: &Name, out: &mut Vec<u8>) -> Coded<()> {
        if !is_name(name.as_bytes()) {
            return Err(CodecError::Name);
        }
        Bytes::<NAME_MAX>::put(name.as_bytes(), out)
    }

    fn take(from: &mut &[u8]) -> Coded<Name> {
        let bytes = Bytes::<NAME_MAX>::part(from)?;
        if is_name(bytes) {
            Ok(Name::new(bytes))
        } else {
            Err(CodecError::Name)
        }
    }
}

impl Encoding<Place> for DefaultEncoding {
    fn put(Place { parent, name }: &Place, out: &mut Vec<u8>) -> Coded<()> {
        check_place(*parent, name)?;
        DefaultEncoding::put(parent, out)?;
        DefaultEncoding::put(name, out)
    }

    fn take(from: &mut &[u8]) -> Coded<Place> {
        let place = Place {
            parent: DefaultEncoding::take(from)?,
            name: DefaultEncoding::take(from)?,
        };
        check_place(place.parent, &place.name).map(|()| place)
    }
}

/// An object in a record that states the epoch once for all its objects.
struct InEpoch;

impl Encoding<ObjectId> for InEpoch {
    fn put(object: &ObjectId, out: &mut Vec<u8>) -> Coded<()> {
        DefaultEncoding::put(&object.slot, out)?;
        DefaultEncoding::put(&object.serial, out)?;
        DefaultEncoding::put(&object.origin, out)
    }

    /// Leaves the epoch to be set from the record.
    fn take(from: &mut &[u8]) -> Coded<ObjectId> {
        Ok(ObjectId {
            epoch: Epoch(0),
            slot: DefaultEncoding::take(from)?,
            serial: DefaultEncoding::take(from)?,
            origin: DefaultEncoding::take(from)?,
        })
    }
}

impl Encoding<Time> for DefaultEncoding {
    fn put(time: &Time, out: &mut Vec<u8>) -> Coded<()> {
        if time.nsec >= NSEC_PER_SEC {
            return Err(CodecError::Range);
        }
        DefaultEncoding::put(&time.sec, out)?;
        DefaultEncoding::put(&time.nsec, out)
    }

    fn take(from: &mut &[u8]) -> Coded<Time> {
        let time = Time {
            sec: DefaultEncoding::take(from)?,
            nsec: DefaultEncoding::take(from)?,
        };
        if time.nsec < NSEC_PER_SEC {
            Ok(time)
        } else {
            Err(CodecError::Range)
        }
    }
}

/// A value whose first byte is never zero, or a zero for `None`.
struct OrZero;

impl Encoding<Option<Comparing>> for OrZero {
    fn put(comparing: &Option<Comparing>, out: &mut Vec<u8>) -> Coded<()> {
        match comparing {
            Some(comparing) => DefaultEncoding::put(comparing, out),
            None => {
                out.push(0);
                Ok(())
            }
        }
    }

    fn take(from: &mut &[u8]) -> Coded<Option<Comparing>> {
        if forms::eat(from, 0) {
            Ok(None)
        } else {
            DefaultEncoding::take(from).map(Some)
        }
    }
}

impl Encoding<Undo> for DefaultEncoding {
    fn put(undo: &Undo, out: &mut Vec<u8>) -> Coded<()> {
        // Encodes the key without cloning its name.
        let (tag, slot) = match undo {
            Undo::Entry { dir, .. } => (0, dir),
            Undo::Attr { slot, .. } => (1, slot),
            Undo::Xattrs { slot, .. } => (2, slot),
            Undo::Data { slot, .. } => (3, slot),
            Undo::Home { slot, .. } => (4, slot),
        };
        out.push(tag);
        DefaultEncoding::put(slot, out)?;
        if let Undo::Entry { name, .. } = undo {
            DefaultEncoding::put(name, out)?;
        }
        encode_before(undo, out)
    }

    fn take(from: &mut &[u8]) -> Coded<Undo> {
        take_before(DefaultEncoding::take(from)?, from)
    }
}

/// Appends the previous value of an undo record, without the key, which the index already has.
pub(crate) fn encode_before(undo: &Undo, out: &mut Vec<u8>) -> Coded<()> {
    check_undo(undo)?;
    match undo {
        Undo::Entry { before, .. } => <OptionOf>::put(before, out),
        Undo::Attr { before, .. } => DefaultEncoding::put(before, out),
        Undo::Xattrs { before, .. } => XattrList::put(before, out),
        Undo::Data { before, .. } => DefaultEncoding::put(before, out),
        Undo::Home { before, .. } => DefaultEncoding::put(before, out),
    }
}

/// Decodes the result of [`encode_before`] for this key.
pub(crate) fn decode_before(key: Key, bytes: &[u8]) -> Coded<Undo> {
    whole(bytes, |from| take_before(key, from))
}

fn take_before(key: Key, from: &mut &[u8]) -> Coded<Undo> {
    let undo = match key {
        Key::Entry(dir, name) => Undo::Entry {
            dir,
            name,
            before: <OptionOf>::take(from)?,
        },
        Key::Attr(slot) => Undo::Attr {
            slot,
            before: DefaultEncoding::take(from)?,
        },
        Key::Xattrs(slot) => Undo::Xattrs {
            slot,
            before: XattrList::take(from)?,
        },
        Key::Data(slot) => Undo::Data {
            slot,
            before: DefaultEncoding::take(from)?,
        },
        Key::Home(slot) => Undo::Home {
            slot,
            before: DefaultEncoding::take(from)?,
        },
    };
    check_undo(&undo).map(|()| undo)
}

fn check_undo(undo: &Undo) -> Coded<()> {
    match undo {
        Undo::Entry { dir, name, before } => {
            check_place(*dir, name)?;
            before.map_or(Ok(()), |child| check_below(*dir, child.slot))
        }
        Undo::Home { slot, before } => check_below(before.parent, *slot),
        Undo::Attr { .. } | Undo::Xattrs { .. } | Undo::Data { .. } => Ok(()),
    }
}

/// Encodes a checkpoint for the index: as in a frame of kind 4, then `bool hidden, option text
/// pinned, option (uint uid, uint gid, uint pid, text process)`. Its parent is stored separately.
pub(crate) fn encode_kept(kept: &CheckpointState, out: &mut Vec<u8>) -> Coded<()> {
    DefaultEncoding::put(&kept.checkpoint, out)?;
    DefaultEncoding::put(&kept.hidden, out)?;
    OptionOf::<Note>::put(&kept.pinned, out)?;
    <OptionOf>::put(&kept.by, out)
}

/// Decodes the result of [`encode_kept`].
pub(crate) fn decode_kept(bytes: &[u8]) -> Coded<CheckpointState> {
    whole(bytes, |from| {
        let mut kept = CheckpointState::new(DefaultEncoding::take(from)?, None);
        kept.hidden = DefaultEncoding::take(from)?;
        kept.pinned = OptionOf::<Note>::take(from)?;
        kept.by = <OptionOf>::take(from)?;
        Ok(kept)
    })
}

/// Appends a place, in the same form as in the index.
pub(crate) fn encode_place(place: &Place, out: &mut Vec<u8>) -> Coded<()> {
    DefaultEncoding::put(place, out)
}

/// Decodes the result of [`encode_place`].
pub(crate) fn decode_place(bytes: &[u8]) -> Coded<Place> {
    whole(bytes, DefaultEncoding::take)
}

/// Appends an object without its epoch: `uint slot, uint serial, u8 origin`.
pub(crate) fn encode_in_epoch(object: &ObjectId, out: &mut Vec<u8>) -> Coded<()> {
    InEpoch::put(object, out)
}

/// Decodes the result of [`encode_in_epoch`].
pub(crate) fn decode_in_epoch(epoch: Epoch, bytes: &[u8]) -> Coded<ObjectId> {
    whole(bytes, |from| {
        let object = InEpoch::take(from)?;
        Ok(ObjectId { epoch, ..object })
    })
}

/// Appends a uint.
pub(crate) fn encode_uint(value: u64, out: &mut Vec<u8>) {
    forms::put_uint(value, out);
}

/// Reads a uint from the beginning of `bytes`.
pub(crate) fn decode_uint(bytes: &mut &[u8]) -> Coded<u64> {
    DefaultEncoding::take(bytes)
}

#[cfg(test)]
#[path = "codec_tests.rs"]
mod tests;
