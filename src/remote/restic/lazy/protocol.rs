//! What a daemon and its remote reader send each other.
//!
//! The daemon sends one byte on the reader's standard input for each conversation, with one end of
//! a socket. There it sends an [`Ask`] for each blob, and the reader an [`Answer`], which the bytes
//! of the blob follow. Each message is a line of JSON.

use std::io::{self, BufRead, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::control::{encode, receive_up_to};
use crate::engine::api::VerbError;

/// Bytes of a message, at most.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// A blob is wanted.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ask {
    /// Its hash, in hexadecimal digits.
    pub blob: String,
    /// The bytes that it can have at most.
    pub most: u64,
}

/// What has come of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It has this many bytes.
    Bytes(u64),
    /// The repository cannot be read now.
    Away(VerbError),
    /// The blob is damaged, or not there.
    Damaged(String),
}

/// Sends a message.
///
/// # Errors
/// Those of the socket.
pub fn send(mut to: impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(&encode(message)?)
}

/// Receives a message; `None`: the other end has closed the socket.
///
/// # Errors
/// Those of the socket; `InvalidData`: it is no such message.
pub fn receive<M: DeserializeOwned>(from: impl BufRead) -> io::Result<Option<M>> {
    let mut line = Vec::new();
    if !receive_up_to(from, &mut line, MESSAGE_BYTES_MAX)? {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}
