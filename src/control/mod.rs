//! The control protocol: the verbs of [`crate::engine::verb`] over a unix socket in the store.
//!
//! **Wire.** Frames are JSON on one line, terminated by a newline: `{"version":2,"request":{...}}`
//! to the daemon, up to `FRAME_BYTES_MAX` long, and `{"version":2,"result":{"ok":{...}}}` or
//! `{"version":2,"result":{"error":{...}}}` in reply. A connection carries any number of requests,
//! in sequence.
//!
//! **Clients.** The daemon accepts the user that it runs as, and root, by the peer credentials of
//! the socket.
//!
//! **Daemons.** A client connects only to a daemon of its user or root: see [`look`]. A request
//! names its tree, and the daemon of another tree rejects it.
//!
//! **Latency.** The thread that accepts a connection reads the request, runs the verb and writes a
//! short reply in one write; no other thread wakes.
//!
//! **Locking.** None: each connection belongs to one thread, and the verbs do their own locking.

mod client;
mod discovery;
mod history;
mod protocol;
mod server;

pub use client::Client;
pub use discovery::{StoreDir, StoreLookup, is_same, look};
pub use history::VerbExecutor;
pub use protocol::{encode, receive_up_to};
pub use server::{CONNECTIONS_MAX, ServerHandle, serve};

/// Name of the socket in the store.
pub const SOCKET_NAME: &str = "control.sock";

/// Name of the store in its directory, and of the link to it in the mount.
pub const STORE_NAME: &str = ".ckptfs";

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
