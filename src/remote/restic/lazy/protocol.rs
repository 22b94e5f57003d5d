//! The protocol between a daemon and its remote reader.
//!
//! For each file the daemon sends one byte and one end of a socket (`SCM_RIGHTS`) to the reader's
//! standard input. On that socket the daemon sends an [`Ask`] for each blob, and the reader an
//! [`Answer`], followed by the bytes of the blob. Each message is a line of JSON.

use std::io::{self, BufRead, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use ckptfs_api::VerbError;
use ckptfs_api::protocol::encode;
use ckptfs_api::protocol::receive_up_to;

/// The longest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// A request for one blob.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ask {
    /// Its SHA-256, in hexadecimal digits.
    pub blob: String,
    /// The largest size that the daemon accepts, in bytes.
    pub most: u64,
}

/// The result of a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The size of the blob, followed by its bytes.
    Bytes(u64),
    /// The repository cannot be read now.
    Away(VerbError),
    /// The blob is damaged or missing.
    Damaged(String),
}

/// Sends a message.
///
/// # Errors
/// Errors of the socket.
pub fn send(mut to: impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(&encode(message)?)
}

/// Receives a message; `None`: the other end has closed the socket.
///
/// # Errors
/// Errors of the socket; `InvalidData`: it is not such a message.
pub fn receive<M: DeserializeOwned>(from: impl BufRead) -> io::Result<Option<M>> {
    let mut line = Vec::new();
    if !receive_up_to(from, &mut line, MESSAGE_BYTES_MAX)? {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}
