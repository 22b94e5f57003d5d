//! FUSE: requests of the kernel decoded for the engine's
//! [`Service`](crate::engine::request::Service), and its answers sent back.
//!
//! Nothing is decided here, and nothing is kept but the backing ids of open files (`backing`).
//! `fuser` is named in this module only. What it asks of its surroundings: descriptors 0 to 2 are
//! open (`fuser` insists that `/dev/fuse` does not become one of them).

mod adapter;
mod answer;
mod backing;
mod convert;
mod dispatch;
mod greeting;
mod listing;
mod notify;
mod server;
mod session;
mod takeover;
mod trouble;
mod xattrs;

pub use session::{MountConfig, Session};
pub use xattrs::Xattrs;
