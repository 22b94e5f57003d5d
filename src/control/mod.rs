//! The control protocol: the verbs of [`crate::engine::verb`] over a unix socket in the store.
//!
//! **Wire.** Frames are JSON on one line, ended by a newline: `{"version":2,"request":{...}}` to
//! the daemon, at most `FRAME_BYTES_MAX` long, and `{"version":2,"result":{"ok":{...}}}` or
//! `{"version":2,"result":{"error":{...}}}` back. A connection carries any number of requests, one
//! after the other.
//!
//! **Who may ask.** The user that the daemon runs as, and root; the socket says who is at the other
//! end.
//!
//! **Who is asked.** Only a daemon of the caller's, or root's: see [`look`]. A request names the
//! tree that it is meant for, and the daemon of another one refuses it.
//!
//! **Latency.** The thread that accepts a connection reads the request, calls the verb and writes a
//! short answer in one write; nobody else is woken.
//!
//! **Locking.** None: a connection belongs to its thread, and the verbs look after themselves.

mod client;
mod history;
mod place;
mod protocol;
mod server;

pub use client::Client;
pub use history::History;
pub use place::{Seen, Store, is_same, look};
pub use protocol::{encode, receive_up_to};
pub use server::{Answers, CONNECTIONS_MAX, serve};

/// Name of the socket in the store.
pub const SOCKET_NAME: &str = "control.sock";

/// Name of the store in the directory that it belongs to, and of the link that leads to it through
/// the mount.
pub const STORE_NAME: &str = ".ckptfs";

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
