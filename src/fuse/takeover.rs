//! Takeover of a session from a worker that has died.
//!
//! `fuser` performs the FUSE_INIT handshake first, but the kernel sends FUSE_INIT only once per
//! connection. The new session is therefore created on one end of a socket pair, from which it
//! reads a copy of the first worker's FUSE_INIT. Its descriptor is then replaced by `/dev/fuse`,
//! before it reads further requests. On demand the kernel resends, with a mark, the requests that
//! the dead worker had read but not answered (`FUSE_NOTIFY_RESEND`, Linux 6.9).

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fuser::{Config, SessionACL};

use super::adapter::Adapter;
use ckptfs_core::engine::request::{
    Caller, Fh, HandedOverFile, LEFT_OPEN, NOTE_CAPABILITIES, NOTE_PROTOCOL, NodeId, Opened,
};
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Ledger, ROW_WORDS, RowId};

/// `FUSE_INIT`.
const INIT: u32 = 26;
/// Size of a request header, and of FUSE_INIT with its header.
const HEAD_BYTES: usize = 40;
const GREETING_BYTES: usize = HEAD_BYTES + 64;
/// `FUSE_INIT_EXT`: the request has a second word of flags.
const INIT_EXT: u64 = 1 << 30;
/// Readahead in the copied request; the reply is discarded.
const READAHEAD_BYTES: u32 = 128 << 10;
/// The notification that makes the kernel resend unanswered requests (`FUSE_NOTIFY_RESEND`); it has
/// no payload.
const NOTIFY_RESEND: i32 = 7;

/// The FUSE_INIT request of the connection, as the kernel sent it to the first worker.
fn greeting(ledger: &Ledger) -> [u8; GREETING_BYTES] {
    let capabilities = ledger.noted(NOTE_CAPABILITIES) | INIT_EXT;
    let protocol = ledger.noted(NOTE_PROTOCOL);
    let mut words = [0_u32; GREETING_BYTES / 4];
    let head = [GREETING_BYTES as u32, INIT, 2];
    let init = [
        (protocol >> 32) as u32,
        protocol as u32,
        READAHEAD_BYTES,
        capabilities as u32,
        (capabilities >> 32) as u32,
    ];
    words
        .iter_mut()
        .zip(head)
        .for_each(|(word, value)| *word = value);
    words
        .iter_mut()
        .skip(HEAD_BYTES / 4)
        .zip(init)
        .for_each(|(word, value)| *word = value);
    let mut bytes = [0; GREETING_BYTES];
    bytes
        .chunks_exact_mut(4)
        .zip(words)
        .for_each(|(chunk, word)| chunk.copy_from_slice(&word.to_ne_bytes()));
    bytes
}

/// Creates a session on the connection of `device`, whose handshake is already complete.
pub fn resume(
    adapter: Adapter,
    device: &OwnedFd,
    acl: SessionACL,
    config: Config,
    ledger: &Ledger,
) -> io::Result<fuser::Session<Adapter>> {
    let (ours, theirs) = sys::message_pair()?;
    sys::send_message(&ours, &greeting(ledger), &[])?;
    let session = fuser::Session::from_fd(adapter, theirs, acl, config)?;
    sys::replace_descriptor(session.as_fd(), device)?;
    Ok(session)
}

/// Makes the kernel resend unanswered requests. Must precede the first read, because requests read
/// before would be resent.
pub fn resend(device: &OwnedFd) -> io::Result<()> {
    let mut message = [0; 16];
    let words = [16_u32, NOTIFY_RESEND as u32, 0, 0];
    message
        .chunks_exact_mut(4)
        .zip(words)
        .for_each(|(chunk, word): (&mut [u8], u32)| chunk.copy_from_slice(&word.to_ne_bytes()));
    sys::write_at_once(device, &message)?;
    Ok(())
}

/// The ledger's table of open files for the successor. A row is added before the reply to the open,
/// and removed on release.
///
/// ```text
///   row: handle, node, flags of open(2), backing id or all ones, request, 1 if passed through, opener
/// ```
pub struct OpenFileTable {
    ledger: Option<Arc<Ledger>>,
    rows: Mutex<HashMap<Fh, RowId>>,
    /// Open files of the predecessor, by the request that opened them.
    left: Mutex<HashMap<u64, (NodeId, Fh)>>,
}

const NO_BACKING: u64 = u64::MAX;
/// Index of the word with the backing ID in a row.
const BACKING_WORD: usize = 3;

impl OpenFileTable {
    pub fn new(ledger: Option<Arc<Ledger>>) -> OpenFileTable {
        OpenFileTable {
            ledger,
            rows: Mutex::default(),
            left: Mutex::default(),
        }
    }

    /// Adds an open file, before the kernel receives the reply.
    pub fn enter(
        &self,
        caller: Caller,
        node: NodeId,
        opened: &Opened,
        flags: i32,
        backing: Option<u32>,
    ) {
        let Some(ledger) = &self.ledger else { return };
        let backing_word = backing.map_or(NO_BACKING, u64::from);
        let words: [u64; ROW_WORDS] = [
            opened.fh.0,
            node.0,
            u64::from(flags.cast_unsigned()),
            backing_word,
            caller.request,
            u64::from(backing.is_some()),
            opened.by,
        ];
        if let Some(row) = ledger.put(LEFT_OPEN, words) {
            self.rows.lock().insert(opened.fh, row);
        }
    }

    /// Removes the backing ID from the row of `fh`. From now on the ID may be closed and reused for
    /// another file, so no successor may associate it with this one.
    pub fn part(&self, fh: Fh) {
        let Some(ledger) = &self.ledger else { return };
        let row = self.rows.lock().get(&fh).copied();
        if let Some(row) = row {
            ledger.set(row, BACKING_WORD, NO_BACKING);
        }
    }

    /// Removes a closed file.
    pub fn remove(&self, fh: Fh) {
        let Some(ledger) = &self.ledger else { return };
        let row = self.rows.lock().remove(&fh);
        if let Some(row) = row {
            ledger.remove(row);
        }
    }

    /// Returns the open files of the predecessor, with their backing IDs.
    pub fn left(&self) -> Vec<(HandedOverFile, Option<u32>)> {
        let Some(ledger) = &self.ledger else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for row in ledger
            .rows()
            .into_iter()
            .filter(|row| row.kind == LEFT_OPEN)
        {
            let [fh, node, flags, backing, request, passthrough, by] = row.words;
            let left = HandedOverFile {
                fh: Fh(fh),
                node: NodeId(node),
                flags: (flags as u32).cast_signed(),
                passthrough: passthrough != 0,
                by,
            };
            self.rows.lock().insert(left.fh, row.id);
            self.left.lock().insert(request, (left.node, left.fh));
            found.push((left, u32::try_from(backing).ok()));
        }
        found
    }

    /// Returns the handle that a predecessor created for this request without answering it.
    pub fn unanswered(&self, caller: Caller) -> Option<(NodeId, Fh)> {
        if caller.again {
            self.left.lock().remove(&caller.request)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_has_the_fields_where_the_kernel_has_them() {
        let Ok(ledger) = Ledger::create() else { return };
        ledger.note(NOTE_PROTOCOL, 7 << 32 | 45);
        ledger.note(NOTE_CAPABILITIES, 1 << 37 | 1);
        let bytes = greeting(&ledger);
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4), word(40), word(44)), (104, 26, 7, 45));
        assert_eq!((word(52), word(56)), (1 << 30 | 1, 1 << 5));
    }
}
