//! Keys and values of the index as bytes. See the parent module for the table.
//!
//! Invariant: keys sort as (kind, slot, name, epoch), whatever bytes a name holds, so that one
//! range holds a directory, a name, or a key's later epochs.

use super::runs::Line;
use crate::store::error::CodecError;
use crate::store::forget::Forgotten;
use crate::store::hash::Hash;
use crate::store::ids::{CheckpointId, Epoch, Name, ObjectId, ObjectOrigin, Slot};
use crate::store::journal::{Address, codec};
use crate::store::record::{Key, Undo};

/// Version of what is in here: a change makes every older index one to be rebuilt.
pub(super) const VERSION: u32 = 9;

pub(super) const META_STORE: &[u8] = b"ms";
pub(super) const META_APPLIED: &[u8] = b"ma";
/// Up to which epoch everything that changed was looked at to be captured ahead.
pub(super) const META_AHEAD: &[u8] = b"mh";

const TAG_ATTR: u8 = b'A';
const TAG_CHECKPOINT: u8 = b'C';
const TAG_CONTENT: u8 = b'K';
const TAG_DATA: u8 = b'D';
const TAG_DROPPED: u8 = b'T';
const TAG_ABSENCE: u8 = b'B';
const TAG_ENTRY: u8 = b'E';
const TAG_HOME: u8 = b'H';
const TAG_LINEAGE: u8 = b'L';
const TAG_AHEAD: u8 = b'F';
const TAG_OPERATION: u8 = b'O';
const TAG_PLACE: u8 = b'P';
const TAG_RUN: u8 = b'R';
const TAG_SEAL: u8 = b'S';
const TAG_STRUCK: u8 = b'V';
const TAG_XATTRS: u8 = b'X';

/// What the keys begin with of records of an inode's data and of its attributes.
pub(super) const CAPTURES: [u8; 2] = [TAG_ATTR, TAG_DATA];

/// Bytes of the checksum at the end of each value.
const SUM: usize = 4;
/// A tag, and the directory or the hash.
const GROUP_BYTES: usize = 9;

fn tagged(tag: u8, number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(32);
    key.push(tag);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The key of an undo record, without its epoch.
pub(super) fn undo_prefix(key: &Key) -> Vec<u8> {
    match key {
        Key::Entry(dir, name) => {
            let mut bytes = entries_prefix(*dir);
            push_name(&mut bytes, name);
            bytes
        }
        Key::Attr(slot) => tagged(TAG_ATTR, slot.0),
        Key::Xattrs(slot) => tagged(TAG_XATTRS, slot.0),
        Key::Data(slot) => tagged(TAG_DATA, slot.0),
        Key::Home(slot) => tagged(TAG_HOME, slot.0),
    }
}

pub(super) fn with_epoch(mut prefix: Vec<u8>, epoch: Epoch) -> Vec<u8> {
    prefix.extend_from_slice(&epoch.0.to_be_bytes());
    prefix
}

/// The key of what was captured ahead of an undo record.
pub(super) fn ahead_key(key: &Key) -> Vec<u8> {
    let mut bytes = vec![TAG_AHEAD];
    bytes.extend_from_slice(&undo_prefix(key));
    bytes
}

/// All keys of what was captured ahead begin with this.
pub(super) fn ahead_prefix() -> [u8; 1] {
    [TAG_AHEAD]
}

/// Where what was captured ahead is: its frame and its number there.
pub(super) fn parse_item(value: &[u8]) -> Option<(Address, u16)> {
    let (at, item) = take_address(value)?;
    Some((at, u16::from_le_bytes(item.try_into().ok()?)))
}

/// All keys of entries of a directory begin with this.
pub(super) fn entries_prefix(dir: Slot) -> Vec<u8> {
    tagged(TAG_ENTRY, dir.0)
}

pub(super) fn place_key(slot: Slot) -> Vec<u8> {
    tagged(TAG_PLACE, slot.0)
}

pub(super) fn checkpoint_key(id: CheckpointId) -> Vec<u8> {
    tagged(TAG_CHECKPOINT, id.0)
}

/// The key of where a checkpoint comes from, if that is not the one before.
pub(super) fn lineage_key(id: CheckpointId) -> Vec<u8> {
    tagged(TAG_LINEAGE, id.0)
}

/// All keys of where checkpoints come from begin with this.
pub(super) fn lineage_prefix() -> [u8; 1] {
    [TAG_LINEAGE]
}

/// The key of an operation, by its number.
pub(super) fn operation_key(number: u64) -> Vec<u8> {
    tagged(TAG_OPERATION, number)
}

/// All keys of operations begin with this.
pub(super) fn operations_prefix() -> [u8; 1] {
    [TAG_OPERATION]
}

/// The value of an operation's key: where its record is, and which other it undoes, or 0.
pub(super) fn operation_value(at: Address, undoes: Option<u64>) -> Vec<u8> {
    let mut value = Vec::with_capacity(24);
    push_address(&mut value, at);
    value.extend_from_slice(&undoes.unwrap_or(0).to_le_bytes());
    value
}

/// What an operation's key and value say; the value is unsealed.
pub(super) fn parse_operation(key: &[u8], value: &[u8]) -> Option<(u64, Address, Option<u64>)> {
    let (at, undoes) = take_address(value)?;
    let undoes = u64::from_le_bytes(undoes.try_into().ok()?);
    Some((
        parse_epoch(key)?.0,
        at,
        Some(undoes).filter(|undoes| *undoes > 0),
    ))
}

/// The key of a time in which nobody served the tree, by its end (nanoseconds since 1970).
pub(super) fn absence_key(to_ns: i64) -> Vec<u8> {
    tagged(TAG_ABSENCE, to_ns.cast_unsigned())
}

/// All keys of absences begin with this.
pub(super) fn absences_prefix() -> [u8; 1] {
    [TAG_ABSENCE]
}

/// The end of an absence, from its key.
pub(super) fn parse_absence(key: &[u8]) -> Option<i64> {
    let number: [u8; 8] = key.get(1..)?.try_into().ok()?;
    Some(u64::from_be_bytes(number).cast_signed())
}

/// The value of an absence's key: its beginning, and whether all that was changed is on record.
pub(super) fn absence_value(from_ns: i64, told: bool) -> Vec<u8> {
    [&from_ns.to_le_bytes()[..], &[u8::from(told)]].concat()
}

/// When an absence began, and whether all that was changed in it is on record; the value is
/// unsealed.
pub(super) fn parse_absence_value(value: &[u8]) -> Option<(i64, bool)> {
    let (from, told) = value.split_first_chunk::<8>()?;
    Some((i64::from_le_bytes(*from), told == [1]))
}

/// The key of a record of hashes of an epoch's objects, by where it is.
pub(super) fn hashes_key(epoch: Epoch, at: Address) -> Vec<u8> {
    let mut key = hashes_prefix(epoch);
    key.extend_from_slice(&at.segment.to_be_bytes());
    key.extend_from_slice(&at.offset.to_be_bytes());
    key
}

/// All keys of hashes of an epoch begin with this.
pub(super) fn hashes_prefix(epoch: Epoch) -> Vec<u8> {
    tagged(TAG_SEAL, epoch.0)
}

/// Where the record of hashes is, from its key.
pub(super) fn parse_seal(key: &[u8]) -> Option<Address> {
    let (_, rest) = key.split_first_chunk::<9>()?;
    let (segment, offset) = rest.split_first_chunk::<4>()?;
    Some(Address {
        segment: u32::from_be_bytes(*segment),
        offset: u32::from_be_bytes(offset.try_into().ok()?),
    })
}

/// The key of a record of dropped versions, by the layer that they are in and where it is.
pub(super) fn dropped_key(epoch: Epoch, at: Address) -> Vec<u8> {
    let mut key = tagged(TAG_DROPPED, epoch.0);
    key.extend_from_slice(&at.segment.to_be_bytes());
    key.extend_from_slice(&at.offset.to_be_bytes());
    key
}

/// All keys of dropped versions begin with this.
pub(super) fn dropped_prefix() -> [u8; 1] {
    [TAG_DROPPED]
}

/// The first and the last checkpoint that show something of it.
pub(super) fn dropped_value(first: CheckpointId, last: CheckpointId) -> Vec<u8> {
    [first.0.to_le_bytes(), last.0.to_le_bytes()].concat()
}

/// Layer, place of the record, first and last checkpoint; the value is unsealed.
pub(super) fn parse_dropped(
    key: &[u8],
    value: &[u8],
) -> Option<(Epoch, Address, CheckpointId, CheckpointId)> {
    let epoch: [u8; 8] = key.get(1..9)?.try_into().ok()?;
    let (first, last) = value.split_first_chunk::<8>()?;
    let last = u64::from_le_bytes(last.try_into().ok()?);
    Some((
        Epoch(u64::from_be_bytes(epoch)),
        parse_seal(key)?,
        CheckpointId(u64::from_le_bytes(*first)),
        CheckpointId(last),
    ))
}

/// Bytes of a hash that a key has: who finds an object by it compares.
const CONTENT_HASH: usize = 8;

/// All keys of objects with this hash begin with this.
pub(super) fn content_prefix(hash: &Hash) -> Vec<u8> {
    let mut key = Vec::with_capacity(24);
    key.push(TAG_CONTENT);
    key.extend(hash.iter().take(CONTENT_HASH));
    key
}

/// The key of an object by what it holds, without its epoch.
pub(super) fn content_key(hash: &Hash, object: ObjectId) -> Vec<u8> {
    let mut key = content_prefix(hash);
    let origin = match object.origin {
        ObjectOrigin::Cloned => 0,
        ObjectOrigin::Moved => 1,
    };
    [object.slot.0, u64::from(object.serial), origin]
        .iter()
        .for_each(|number| codec::encode_uint(*number, &mut key));
    key
}

/// The key is that of an object by what it holds.
pub(super) fn is_content(key: &[u8]) -> bool {
    key.first() == Some(&TAG_CONTENT)
}

/// What a hash leads to is a hint, and so are hashes themselves, and what was captured ahead:
/// nothing is missing where it is not.
pub(super) fn is_hint(key: &[u8]) -> bool {
    matches!(key.first(), Some(&(TAG_CONTENT | TAG_AHEAD | TAG_SEAL)))
}

/// The key is that of a place that no undo record tells.
pub(super) fn is_place(key: &[u8]) -> bool {
    key.first() == Some(&TAG_PLACE)
}

/// The inode that a key tells the place of: by its home's record, or by a place; `None`: it is
/// another key.
pub(super) fn placed_slot(key: &[u8]) -> Option<Slot> {
    key.first()
        .is_some_and(|tag| [TAG_HOME, TAG_PLACE].contains(tag))
        .then(|| owner(key))
        .flatten()
}

/// The inode that the record of a name says it led to.
///
/// Errors: it cannot be decoded.
pub(super) fn entry_child(key: &[u8], value: &[u8]) -> Result<Option<Slot>, CodecError> {
    let (Some(name), Some(dir)) = (
        entry_name(key).filter(|_| key.first() == Some(&TAG_ENTRY)),
        owner(key),
    ) else {
        return Ok(None);
    };
    match codec::decode_before(Key::Entry(dir, name), value)? {
        Undo::Entry { before, .. } => Ok(before.map(|child| child.slot)),
        _ => Ok(None),
    }
}

/// The object of this epoch, from its key.
pub(super) fn parse_content(key: &[u8], epoch: Epoch) -> Option<ObjectId> {
    let mut rest = key.get(1 + CONTENT_HASH..)?;
    let mut number = || codec::decode_uint(&mut rest).ok();
    let (slot, serial, origin) = (Slot(number()?), u32::try_from(number()?).ok()?, number()?);
    let origin = match origin {
        0 => ObjectOrigin::Cloned,
        1 => ObjectOrigin::Moved,
        _ => return None,
    };
    rest.is_empty().then_some(ObjectId {
        epoch,
        slot,
        serial,
        origin,
    })
}

/// All keys of checkpoints begin with this.
pub(super) fn checkpoints_prefix() -> [u8; 1] {
    [TAG_CHECKPOINT]
}

/// A zero byte becomes `00 ff`, and `00 00` ends the name: a shorter name sorts before all that it
/// is a prefix of, and no name is a prefix of another key.
fn push_name(key: &mut Vec<u8>, name: &Name) {
    for &byte in name.as_bytes() {
        key.push(byte);
        if byte == 0 {
            key.push(0xff);
        }
    }
    key.extend_from_slice(&[0, 0]);
}

/// The name in an entry's key; `None` if it is no such key.
pub(super) fn entry_name(key: &[u8]) -> Option<Name> {
    let (tag, rest) = key.split_first()?;
    let (_, mut rest) = rest.split_first_chunk::<8>()?;
    let mut name = Vec::with_capacity(rest.len());
    loop {
        match rest {
            [0, 0] => return (*tag == TAG_ENTRY).then(|| Name(name.into())),
            [0, 0xff, after @ ..] => {
                name.push(0);
                rest = after;
            }
            [0, ..] | [] => return None,
            [byte, after @ ..] => {
                name.push(*byte);
                rest = after;
            }
        }
    }
}

/// The slot of a data record's key; `None` if it is another key.
pub(super) fn data_slot(key: &[u8]) -> Option<Slot> {
    let (tag, slot) = key.split_first()?;
    (*tag == TAG_DATA)
        .then(|| slot.try_into().ok())
        .flatten()
        .map(|slot| Slot(u64::from_be_bytes(slot)))
}

/// Of which inode's data or attributes the key of a record is.
pub(super) fn capture(key: &[u8]) -> Option<Key> {
    let (tag, slot) = key.split_first()?;
    let slot = Slot(u64::from_be_bytes(slot.try_into().ok()?));
    match *tag {
        TAG_ATTR => Some(Key::Attr(slot)),
        TAG_DATA => Some(Key::Data(slot)),
        _ => None,
    }
}

/// It is that of a record of attributes.
pub(super) fn is_attr(key: &[u8]) -> bool {
    key.first() == Some(&TAG_ATTR)
}

/// It is that of an undo record.
pub(super) fn is_undo(key: &[u8]) -> bool {
    matches!(
        key.first(),
        Some(&(TAG_ENTRY | TAG_ATTR | TAG_XATTRS | TAG_DATA | TAG_HOME))
    )
}

/// The key that a filter has of several keys: of all names in a directory, and of all objects with
/// a hash.
pub(super) fn group(key: &[u8]) -> Option<&[u8]> {
    key.first()
        .is_some_and(|tag| [TAG_ENTRY, TAG_CONTENT].contains(tag))
        .then(|| key.split_at_checked(GROUP_BYTES))
        .flatten()
        .map(|(group, _)| group)
}

/// The inode that the key of an undo record is of; of an entry, the directory.
pub(super) fn owner(key: &[u8]) -> Option<Slot> {
    key.get(1..)?
        .first_chunk::<8>()
        .map(|slot| Slot(u64::from_be_bytes(*slot)))
}

/// The key of what is in a run and its epoch, from both in one; `None`: it is another key.
#[cfg(test)]
pub(super) fn split_epoch(key: &[u8]) -> Option<(&[u8], Epoch)> {
    let (prefix, epoch) = key.split_last_chunk::<8>()?;
    let in_run = is_undo(key) || is_place(key) || is_content(key);
    in_run.then_some((prefix, Epoch(u64::from_be_bytes(*epoch))))
}

/// The key of a run in the list, by where its records begin.
pub(super) fn run_key(from: Address) -> Vec<u8> {
    let mut key = vec![TAG_RUN];
    key.extend_from_slice(&from.segment.to_be_bytes());
    key.extend_from_slice(&from.offset.to_be_bytes());
    key
}

/// All keys of runs begin with this.
pub(super) fn runs_prefix() -> [u8; 1] {
    [TAG_RUN]
}

/// The value of a run's key.
pub(super) fn run_value(line: &Line) -> Vec<u8> {
    let mut value = line.number.to_le_bytes().to_vec();
    value.push(line.level);
    value
}

/// What a run's key and value say; the value is unsealed.
pub(super) fn parse_run(key: &[u8], value: &[u8]) -> Option<Line> {
    let (segment, offset) = key.get(1..)?.split_first_chunk::<4>()?;
    let from = Address {
        segment: u32::from_be_bytes(*segment),
        offset: u32::from_be_bytes(offset.try_into().ok()?),
    };
    let (number, level) = value.split_first_chunk::<8>()?;
    let [level] = level else { return None };
    Some(Line {
        from,
        number: u64::from_le_bytes(*number),
        level: *level,
    })
}

/// Where the last record that was applied begins, and where it ends.
pub(super) fn parse_applied(value: &[u8]) -> Option<(Address, Address)> {
    let (last, rest) = take_address(value)?;
    let (end, rest) = take_address(rest)?;
    rest.is_empty().then_some((last, end))
}

/// The key of a data record that was taken back after it came into a run.
pub(super) fn struck_key(epoch: Epoch, slot: Slot) -> Vec<u8> {
    let mut key = tagged(TAG_STRUCK, epoch.0);
    key.extend_from_slice(&slot.0.to_be_bytes());
    key
}

/// All keys of what was struck begin with this.
pub(super) fn struck_prefix() -> [u8; 1] {
    [TAG_STRUCK]
}

/// The value of such a key: it is struck in runs that begin before.
pub(super) fn struck_value(upto: Address) -> Vec<u8> {
    let mut value = Vec::new();
    push_address(&mut value, upto);
    value
}

/// What is struck, and in which runs; the value is unsealed.
pub(super) fn parse_struck(key: &[u8], value: &[u8]) -> Option<((Epoch, Slot), Address)> {
    let (epoch, slot) = key.get(1..)?.split_first_chunk::<8>()?;
    let slot = Slot(u64::from_be_bytes(slot.try_into().ok()?));
    Some((
        (Epoch(u64::from_be_bytes(*epoch)), slot),
        take_address(value)?.0,
    ))
}

/// It says which runs there are, and not what the journal does.
pub(super) fn is_list(key: &[u8]) -> bool {
    matches!(key.first(), Some(&(TAG_RUN | TAG_STRUCK)))
}

/// What the index has of things that nobody can ask for any more.
pub(super) fn of_forgotten(forgotten: &Forgotten) -> Vec<Vec<u8>> {
    let Forgotten {
        checkpoints,
        lineage,
        operations,
        absences,
        dropped,
        ..
    } = forgotten;
    let mut keys: Vec<Vec<u8>> = lineage.iter().map(|child| lineage_key(*child)).collect();
    keys.extend(operations.iter().map(|number| operation_key(*number)));
    keys.extend(absences.iter().map(|to_ns| absence_key(*to_ns)));
    keys.extend(dropped.iter().map(|(epoch, at)| dropped_key(*epoch, *at)));
    // Last: as long as they are there it is seen that something is to be forgotten.
    keys.extend(checkpoints.iter().map(|id| checkpoint_key(*id)));
    keys
}

/// The number at the end of a key.
pub(super) fn parse_epoch(key: &[u8]) -> Option<Epoch> {
    key.split_last_chunk::<8>()
        .map(|(_, epoch)| Epoch(u64::from_be_bytes(*epoch)))
}

/// The id in a checkpoint's key.
pub(super) fn parse_checkpoint(key: &[u8]) -> Option<CheckpointId> {
    parse_epoch(key).map(|Epoch(id)| CheckpointId(id))
}

fn sum(key: &[u8], value: &[u8]) -> [u8; SUM] {
    let mut hasher = blake3::Hasher::new();
    hasher
        .update(&(key.len() as u32).to_le_bytes())
        .update(key)
        .update(value);
    let mut sum = [0; SUM];
    hasher.finalize_xof().fill(&mut sum);
    sum
}

/// Appends the checksum, which covers the key too: a value under the wrong key is as bad as a
/// changed one.
pub(super) fn seal(key: &[u8], mut value: Vec<u8>) -> Vec<u8> {
    let sum = sum(key, &value);
    value.extend_from_slice(&sum);
    value
}

/// The value without its checksum; `None` if that does not match.
pub(super) fn unseal<'a>(key: &[u8], value: &'a [u8]) -> Option<&'a [u8]> {
    let (value, found) = value.split_last_chunk::<SUM>()?;
    (sum(key, value) == *found).then_some(value)
}

pub(super) fn push_address(value: &mut Vec<u8>, at: Address) {
    value.extend_from_slice(&at.segment.to_le_bytes());
    value.extend_from_slice(&at.offset.to_le_bytes());
}

/// Where the last record that was applied begins, and where it ends.
pub(super) fn applied_value((last, end): (Address, Address)) -> Vec<u8> {
    let mut value = Vec::with_capacity(24);
    push_address(&mut value, last);
    push_address(&mut value, end);
    value
}

pub(super) fn take_address(value: &[u8]) -> Option<(Address, &[u8])> {
    let (segment, rest) = value.split_first_chunk::<4>()?;
    let (offset, rest) = rest.split_first_chunk::<4>()?;
    Some((
        Address {
            segment: u32::from_le_bytes(*segment),
            offset: u32::from_le_bytes(*offset),
        },
        rest,
    ))
}

/// The value of what was captured ahead: its frame and its number there.
pub(super) fn item_value(at: Address, item: u16) -> Vec<u8> {
    let mut value = Vec::with_capacity(16);
    push_address(&mut value, at);
    value.extend_from_slice(&item.to_le_bytes());
    value
}
