//! Keys and values of the index as bytes. The table is in the parent module.
//!
//! Invariant: keys sort by (kind, slot, name, epoch) for any bytes in a name, so one range covers a
//! directory, a name, or the later epochs of a key.

use super::runs::RunListEntry;
use crate::error::CodecError;
use crate::expiry::ExpiredItems;
use crate::hash::Hash;
use crate::ids::{Name, ObjectId, Slot};
use crate::journal::{Address, codec};
use crate::record::{Key, Undo};
use ckptfs_api::{CheckpointId, Epoch};

/// Version of the contents. A change forces a rebuild of older indexes.
pub(super) const VERSION: u32 = 1;

pub(super) const META_STORE: &[u8] = b"ms";
pub(super) const META_APPLIED: &[u8] = b"ma";

/// Tags of keys in the database.
pub(super) const ABSENCE: u8 = b'B';
pub(super) const CHECKPOINT: u8 = b'C';
pub(super) const DROPPED: u8 = b'T';
pub(super) const LINEAGE: u8 = b'L';
pub(super) const OPERATION: u8 = b'O';
pub(super) const RUN: u8 = b'R';
pub(super) const SEAL: u8 = b'S';
pub(super) const STRUCK: u8 = b'V';

/// Tags of keys in runs.
const ATTR: u8 = b'A';
const CONTENT: u8 = b'K';
const DATA: u8 = b'D';
const ENTRY: u8 = b'E';
const HOME: u8 = b'H';
const PLACE: u8 = b'P';
const XATTRS: u8 = b'X';

/// Tags of attribute and data records.
pub(super) const CAPTURES: [u8; 2] = [ATTR, DATA];

/// Bytes of the checksum at the end of each value.
const SUM: usize = 4;
/// Bytes of a tag and the directory or hash prefix.
const GROUP_BYTES: usize = 9;
/// Bytes of the hash in a key. Callers compare the objects that they find.
const CONTENT_HASH: usize = 8;

/// Returns a key of these numbers.
pub(super) fn key<const N: usize>(tag: u8, numbers: [u64; N]) -> Vec<u8> {
    let mut key = Vec::with_capacity(32);
    key.push(tag);
    numbers
        .iter()
        .for_each(|number| key.extend_from_slice(&number.to_be_bytes()));
    key
}

/// Returns the numbers of a key.
pub(super) fn numbers<const N: usize>(key: &[u8]) -> Option<[u64; N]> {
    let (numbers, rest) = key.get(1..)?.as_chunks();
    let numbers: &[[u8; 8]; N] = numbers.try_into().ok()?;
    rest.is_empty().then_some(numbers.map(u64::from_be_bytes))
}

/// Returns a value of these numbers.
pub(super) fn value(numbers: &[u64]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

/// Splits the numbers off the start of a value.
pub(super) fn parse<const N: usize>(value: &[u8]) -> Option<([u64; N], &[u8])> {
    let mut numbers = [0; N];
    let mut rest = value;
    for number in &mut numbers {
        let (bytes, after) = rest.split_first_chunk()?;
        (*number, rest) = (u64::from_le_bytes(*bytes), after);
    }
    Some((numbers, rest))
}

/// As [`parse`], for a value without trailing bytes.
pub(super) fn parse_all<const N: usize>(value: &[u8]) -> Option<[u64; N]> {
    parse(value)
        .filter(|(_, rest)| rest.is_empty())
        .map(|(numbers, _)| numbers)
}

/// Encodes an address for a key, in sort order.
pub(super) fn in_key(at: Address) -> u64 {
    u64::from(at.segment) << 32 | u64::from(at.offset)
}

fn from_key(number: u64) -> Address {
    Address {
        segment: (number >> 32) as u32,
        offset: number as u32,
    }
}

/// Encodes an address for a value, segment first.
pub(super) fn in_value(at: Address) -> u64 {
    in_key(at).rotate_left(32)
}

pub(super) fn from_value(number: u64) -> Address {
    from_key(number.rotate_left(32))
}

/// Returns the key of an undo record, without its epoch.
pub(super) fn undo_prefix(of: &Key) -> Vec<u8> {
    match of {
        Key::Entry(dir, name) => {
            let mut bytes = entries_prefix(*dir);
            push_name(&mut bytes, name);
            bytes
        }
        Key::Attr(slot) => key(ATTR, [slot.0]),
        Key::Xattrs(slot) => key(XATTRS, [slot.0]),
        Key::Data(slot) => key(DATA, [slot.0]),
        Key::Home(slot) => key(HOME, [slot.0]),
    }
}

pub(super) fn with_epoch(mut prefix: Vec<u8>, epoch: Epoch) -> Vec<u8> {
    prefix.extend_from_slice(&epoch.0.to_be_bytes());
    prefix
}

/// Returns the prefix of all entries of a directory.
pub(super) fn entries_prefix(dir: Slot) -> Vec<u8> {
    key(ENTRY, [dir.0])
}

pub(super) fn place_key(slot: Slot) -> Vec<u8> {
    key(PLACE, [slot.0])
}

pub(super) fn checkpoint_key(id: CheckpointId) -> Vec<u8> {
    key(CHECKPOINT, [id.0])
}

/// Parses the id in the key of a checkpoint or of its parent.
pub(super) fn parse_checkpoint(key: &[u8]) -> Option<CheckpointId> {
    numbers(key).map(|[id]| CheckpointId(id))
}

/// Parses an operation: number, address of the record, and the operation it undoes.
pub(super) fn parse_operation(key: &[u8], value: &[u8]) -> Option<(u64, Address, Option<u64>)> {
    let ([number], [at, undoes]) = (numbers(key)?, parse_all(value)?);
    Some((
        number,
        from_value(at),
        Some(undoes).filter(|undoes| *undoes > 0),
    ))
}

/// Returns the key of an absence, by its end (nanoseconds since 1970).
pub(super) fn absence_key(to_ns: i64) -> Vec<u8> {
    key(ABSENCE, [to_ns.cast_unsigned()])
}

/// Returns the value of an absence: its start, and whether all changes are recorded.
pub(super) fn absence_value(from_ns: i64, told: bool) -> Vec<u8> {
    [&from_ns.to_le_bytes()[..], &[u8::from(told)]].concat()
}

/// Parses an absence: start, end, and whether all changes are recorded.
pub(super) fn parse_absence(key: &[u8], value: &[u8]) -> Option<(i64, i64, bool)> {
    let ([to], ([from], told)) = (numbers(key)?, parse(value)?);
    Some((from.cast_signed(), to.cast_signed(), told == [1]))
}

/// Returns the key of a record about objects of an epoch, by its address.
pub(super) fn objects_key(tag: u8, epoch: Epoch, at: Address) -> Vec<u8> {
    key(tag, [epoch.0, in_key(at)])
}

/// Parses the address of a hash record from its key.
pub(super) fn parse_seal(key: &[u8]) -> Option<Address> {
    numbers(key).map(|[_, at]| from_key(at))
}

/// Parses a record of dropped versions: layer, address, and the first and last checkpoint that show
/// any of them.
pub(super) fn parse_dropped(
    key: &[u8],
    value: &[u8],
) -> Option<(Epoch, Address, CheckpointId, CheckpointId)> {
    let ([epoch, at], [first, last]) = (numbers(key)?, parse_all(value)?);
    Some((
        Epoch(epoch),
        from_key(at),
        CheckpointId(first),
        CheckpointId(last),
    ))
}

/// Returns the prefix of all objects with this hash.
pub(super) fn content_prefix(hash: &Hash) -> Vec<u8> {
    let mut key = Vec::with_capacity(24);
    key.push(CONTENT);
    key.extend(hash.iter().take(CONTENT_HASH));
    key
}

/// Returns the key of an object by content, without its epoch.
pub(super) fn content_key(hash: &Hash, object: ObjectId) -> Result<Vec<u8>, CodecError> {
    let mut key = content_prefix(hash);
    codec::encode_in_epoch(&object, &mut key).map(|()| key)
}

/// Parses the object of this epoch from its key.
pub(super) fn parse_content(key: &[u8], epoch: Epoch) -> Option<ObjectId> {
    codec::decode_in_epoch(epoch, key.get(1 + CONTENT_HASH..)?).ok()
}

fn is(key: &[u8], tags: &[u8]) -> bool {
    key.first().is_some_and(|tag| tags.contains(tag))
}

/// Whether this is the key of an object by content.
pub(super) fn is_content(key: &[u8]) -> bool {
    is(key, &[CONTENT])
}

/// The key is that of a hash, or of a version by its hash: an index without it is complete.
pub(super) fn is_hint(key: &[u8]) -> bool {
    is(key, &[CONTENT, SEAL])
}

/// Whether this is the key of a place outside undo records.
pub(super) fn is_place(key: &[u8]) -> bool {
    is(key, &[PLACE])
}

/// Whether this is the key of an attribute record.
pub(super) fn is_attr(key: &[u8]) -> bool {
    is(key, &[ATTR])
}

/// Whether this is the key of an undo record.
pub(super) fn is_undo(key: &[u8]) -> bool {
    is(key, &[ENTRY, ATTR, XATTRS, DATA, HOME])
}

/// Whether the key lists runs or void records, which do not follow from the journal.
pub(super) fn is_list(key: &[u8]) -> bool {
    is(key, &[RUN, STRUCK])
}

/// Returns the inode whose place this key records, by its home record or as a place; `None` for
/// other keys.
pub(super) fn placed_slot(key: &[u8]) -> Option<Slot> {
    owner(key).filter(|_| is(key, &[HOME, PLACE]))
}

/// Returns the inode that the name led to according to its record.
///
/// Errors: the record cannot be decoded.
pub(super) fn entry_child(key: &[u8], value: &[u8]) -> Result<Option<Slot>, CodecError> {
    let (Some(name), Some(dir)) = (entry_name(key), owner(key)) else {
        return Ok(None);
    };
    match codec::decode_before(Key::Entry(dir, name), value)? {
        Undo::Entry { before, .. } => Ok(before.map(|child| child.slot)),
        _ => Ok(None),
    }
}

/// Escapes a name: a zero byte becomes `00 ff`, and `00 00` ends it. A shorter name sorts before
/// all that it is a prefix of, and no name is a prefix of another key.
fn push_name(key: &mut Vec<u8>, name: &Name) {
    for &byte in name.as_bytes() {
        key.push(byte);
        if byte == 0 {
            key.push(0xff);
        }
    }
    key.extend_from_slice(&[0, 0]);
}

/// Returns the name in an entry's key; `None` for other keys.
pub(super) fn entry_name(key: &[u8]) -> Option<Name> {
    let (tag, rest) = key.split_first()?;
    let (_, mut rest) = rest.split_first_chunk::<8>()?;
    let mut name = Vec::with_capacity(rest.len());
    loop {
        match rest {
            [0, 0] => return (*tag == ENTRY).then(|| Name(name.into())),
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

/// Returns the slot in a data record's key; `None` for other keys.
pub(super) fn data_slot(key: &[u8]) -> Option<Slot> {
    numbers(key)
        .filter(|_| is(key, &[DATA]))
        .map(|[slot]| Slot(slot))
}

/// Parses the key of a data or attribute record.
pub(super) fn capture(key: &[u8]) -> Option<Key> {
    let [slot] = numbers(key)?;
    match *key.first()? {
        ATTR => Some(Key::Attr(Slot(slot))),
        DATA => Some(Key::Data(Slot(slot))),
        _ => None,
    }
}

/// Returns the prefix that a filter contains for several keys: all names in a directory, or all
/// objects with a hash.
pub(super) fn group(key: &[u8]) -> Option<&[u8]> {
    key.get(..GROUP_BYTES)
        .filter(|_| is(key, &[ENTRY, CONTENT]))
}

/// Returns the inode of an undo record's key; for an entry, the directory.
pub(super) fn owner(key: &[u8]) -> Option<Slot> {
    key.get(1..)?
        .first_chunk::<8>()
        .map(|slot| Slot(u64::from_be_bytes(*slot)))
}

/// Splits the epoch off a key of an entry in a run; `None` for other keys.
#[cfg(test)]
pub(super) fn split_epoch(key: &[u8]) -> Option<(&[u8], Epoch)> {
    let (prefix, epoch) = key.split_last_chunk::<8>()?;
    let in_run = is_undo(key) || is_place(key) || is_content(key);
    in_run.then_some((prefix, Epoch(u64::from_be_bytes(*epoch))))
}

/// Returns the value of a run's key.
pub(super) fn run_value(line: &RunListEntry) -> Vec<u8> {
    [&value(&[line.number])[..], &[line.level]].concat()
}

/// Parses the key and value of a run.
pub(super) fn parse_run(key: &[u8], value: &[u8]) -> Option<RunListEntry> {
    let ([from], ([number], &[level])) = (numbers(key)?, parse(value)?) else {
        return None;
    };
    Some(RunListEntry {
        from: from_key(from),
        number,
        level,
    })
}

/// Returns the key of a data record that was voided after it was added to a run.
pub(super) fn struck_key(epoch: Epoch, slot: Slot) -> Vec<u8> {
    key(STRUCK, [epoch.0, slot.0])
}

/// Parses a void record, and the address before which the affected runs start.
pub(super) fn parse_struck(key: &[u8], value: &[u8]) -> Option<((Epoch, Slot), Address)> {
    let ([epoch, slot], [upto]) = (numbers(key)?, parse_all(value)?);
    Some(((Epoch(epoch), Slot(slot)), from_value(upto)))
}

/// Returns the keys of entries that no request can reach any more.
pub(super) fn of_forgotten(forgotten: &ExpiredItems) -> Vec<Vec<u8>> {
    let ExpiredItems {
        checkpoints,
        lineage,
        operations,
        absences,
        dropped,
        ..
    } = forgotten;
    let mut keys: Vec<Vec<u8>> = lineage
        .iter()
        .map(|child| key(LINEAGE, [child.0]))
        .collect();
    keys.extend(operations.iter().map(|number| key(OPERATION, [*number])));
    keys.extend(absences.iter().map(|to_ns| absence_key(*to_ns)));
    keys.extend(
        dropped
            .iter()
            .map(|(epoch, at)| objects_key(DROPPED, *epoch, *at)),
    );
    // Last: as long as they exist, the index reports that something can be forgotten.
    keys.extend(checkpoints.iter().map(|id| checkpoint_key(*id)));
    keys
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

/// Appends the checksum. It covers key and value: a value under the wrong key is as bad as a
/// changed one.
pub(super) fn seal(key: &[u8], mut value: Vec<u8>) -> Vec<u8> {
    let sum = sum(key, &value);
    value.extend_from_slice(&sum);
    value
}

/// Returns the value without its checksum; `None` on a mismatch.
pub(super) fn unseal<'a>(key: &[u8], value: &'a [u8]) -> Option<&'a [u8]> {
    let (value, found) = value.split_last_chunk::<SUM>()?;
    (sum(key, value) == *found).then_some(value)
}
