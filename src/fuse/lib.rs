//! The FUSE adapter: decodes requests of the kernel for the engine's
//! [`Service`](ckptfs_core::engine::request::Service), and sends its replies.
//!
//! It makes no decisions and keeps no state except the backing IDs of open files (`backing`). Only
//! this module names `fuser`. Precondition: descriptors 0 to 2 are open (`fuser` rejects
//! `/dev/fuse` as one of them).

mod adapter;
mod answer;
mod backing;
mod convert;
mod dispatch;
mod eio_log;
mod init_handshake;
mod listing;
mod notify;
mod server;
mod session;
mod takeover;
mod xattrs;

pub use session::{MountConfig, Session};
pub use xattrs::Xattrs;
