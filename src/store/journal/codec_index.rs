//! Parts of records as the index keeps them: the same bytes as in a frame.

use super::{Coded, NOTE_MAX, Reader, Writer};
use crate::store::record::{Kept, Key, Place, Undo};

/// A checkpoint as the index keeps it: as in a frame of kind 4, then `bool hidden, option text
/// pinned, option (uint uid, uint gid, uint pid, text process)`. Where it comes from is kept apart.
pub(in crate::store) fn encode_kept(kept: &Kept, out: &mut Vec<u8>) -> Coded<()> {
    let mut w = Writer(out);
    w.checkpoint(&kept.checkpoint)?;
    w.byte(u8::from(kept.hidden));
    w.option(kept.pinned.as_ref(), |w, reason| {
        w.bytes(reason.as_bytes(), NOTE_MAX)
    })?;
    w.option(kept.by.as_ref(), Writer::asker)
}

/// Reads what [`encode_kept`] wrote.
pub(in crate::store) fn decode_kept(bytes: &[u8]) -> Coded<Kept> {
    let mut r = Reader(bytes);
    let mut kept = Kept::new(r.checkpoint()?, None);
    kept.hidden = r.bool()?;
    kept.pinned = r.option(|r| r.text(NOTE_MAX))?;
    kept.by = r.option(Reader::actor)?;
    r.end()?;
    Ok(kept)
}

/// Appends a place's bytes; the index keeps the same.
pub(in crate::store) fn encode_place(place: &Place, out: &mut Vec<u8>) -> Coded<()> {
    Writer(out).place(place)
}

/// Reads what [`encode_place`] wrote.
pub(in crate::store) fn decode_place(bytes: &[u8]) -> Coded<Place> {
    let mut r = Reader(bytes);
    let place = r.place()?;
    r.end()?;
    Ok(place)
}

/// Appends what the key of an undo record held, without the key: the index has that already.
pub(in crate::store) fn encode_before(undo: &Undo, out: &mut Vec<u8>) -> Coded<()> {
    Writer(out).before(undo)
}

/// Reads what [`encode_before`] wrote of this key.
pub(in crate::store) fn decode_before(key: Key, bytes: &[u8]) -> Coded<Undo> {
    let mut r = Reader(bytes);
    let undo = r.before(key)?;
    r.end()?;
    Ok(undo)
}

/// Appends a uint.
pub(in crate::store) fn encode_uint(value: u64, out: &mut Vec<u8>) {
    Writer(out).uint(value);
}

/// Takes a uint from the beginning of `bytes`.
pub(in crate::store) fn decode_uint(bytes: &mut &[u8]) -> Coded<u64> {
    let mut r = Reader(bytes);
    let value = r.uint()?;
    *bytes = r.0;
    Ok(value)
}
