//! Taking a session over from a worker that died.
//!
//! `fuser` greets the kernel before anything else, and the kernel greets once only. So the new
//! session is made on one end of a socket pair, where it finds a greeting that looks like the first
//! worker's; then its descriptor is made to be `/dev/fuse`, and then it reads. Requests that the
//! dead worker had read and not answered are given out again by the kernel, marked, when it is
//! asked to (`FUSE_NOTIFY_RESEND`, Linux 6.9).

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fuser::{Config, SessionACL};

use super::adapter::Adapter;
use crate::engine::request::{
    Caller, Fh, LEFT_OPEN, LeftOpen, NOTE_CAPABILITIES, NOTE_PROTOCOL, NodeId, Opened,
};
use crate::sys::lock::Mutex;
use crate::sys::{self, Ledger, ROW_WORDS, RowId};

/// `FUSE_INIT`.
const INIT: u32 = 26;
/// Bytes of a request's head, and of a greeting.
const HEAD_BYTES: usize = 40;
const GREETING_BYTES: usize = HEAD_BYTES + 64;
/// `FUSE_INIT_EXT`: there are further flags.
const INIT_EXT: u64 = 1 << 30;
/// What the first worker would read ahead; nobody hears the answer.
const READAHEAD_BYTES: u32 = 128 << 10;
/// A message to the kernel with this code and no content: give out again what nobody has answered
/// (`FUSE_NOTIFY_RESEND`).
const NOTIFY_RESEND: i32 = 7;

/// The first request of a connection, as the kernel sent it to the first worker.
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

/// A session on the connection of `device`, which has been greeted long ago.
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

/// Has the kernel give out again what was not answered. Before anything is read, or that would be
/// given out twice.
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

/// Open files as the next worker shall know them: entered before the kernel hears of them, and
/// taken out when they are closed.
///
/// ```text
///   row: handle, node, flags of open(2), backing id or all ones, request, 1 if passed through, who opened it
/// ```
pub struct Opens {
    ledger: Option<Arc<Ledger>>,
    rows: Mutex<HashMap<Fh, RowId>>,
    /// Those of the worker before, by the request that opened them.
    left: Mutex<HashMap<u64, (NodeId, Fh)>>,
}

const NO_BACKING: u64 = u64::MAX;
/// Which word of a row has the backing id.
const BACKING_WORD: usize = 3;

impl Opens {
    pub fn new(ledger: Option<Arc<Ledger>>) -> Opens {
        Opens {
            ledger,
            rows: Mutex::default(),
            left: Mutex::default(),
        }
    }

    /// Enters an open file that the kernel is about to hear of.
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

    /// Its backing id may be given back from now on, and given to another file then: nobody must
    /// take it for this one's.
    pub fn part(&self, fh: Fh) {
        let Some(ledger) = &self.ledger else { return };
        let row = self.rows.lock().get(&fh).copied();
        if let Some(row) = row {
            ledger.set(row, BACKING_WORD, NO_BACKING);
        }
    }

    /// It is closed.
    pub fn remove(&self, fh: Fh) {
        let Some(ledger) = &self.ledger else { return };
        let row = self.rows.lock().remove(&fh);
        if let Some(row) = row {
            ledger.remove(row);
        }
    }

    /// What the worker before left, with its backing ids.
    pub fn left(&self) -> Vec<(LeftOpen, Option<u32>)> {
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
            let left = LeftOpen {
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

    /// The handle that a worker before us made for this very request, if it was not answered.
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
