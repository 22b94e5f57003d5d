//! The server of the control socket: executes requests of clients (`ckptfs-api`).
//!
//! **Clients.** The daemon accepts the user that it runs as, and root, by the peer credentials of
//! the socket.
//!
//! **Latency.** The thread that accepts a connection reads the request, runs the verb and writes a
//! short reply in one write; no other thread wakes.
//!
//! **Locking.** None: each connection belongs to one thread, and the verbs do their own locking.

mod history;
mod server;

pub use history::VerbExecutor;
pub use server::{CONNECTIONS_MAX, ServerHandle, serve};

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
