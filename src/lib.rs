//! ckptfs: a filesystem that is mounted over a directory and provides instant checkpoints of it.
//!
//! The crate is mainly a program. As a library it lets other programs send requests to the daemon
//! of a mount, as the command line does: a [`Client`] sends the verbs of [`api`] over the control
//! socket in the store.
//!
//! ```no_run
//! use ckptfs::api::{CheckpointOptions, RestoreOptions, StateName};
//! use ckptfs::{Client, STORE_NAME};
//!
//! let store = std::fs::File::open(format!("/srv/project/{STORE_NAME}"))?;
//! let mut client = Client::connect(&store)?;
//! let note = "before the migration".to_owned();
//! let made = client.ask(CheckpointOptions { note, ..CheckpointOptions::default() })?;
//! // ... and if the migration has failed:
//! client.ask(RestoreOptions {
//!     to: StateName(made.id.to_string()),
//!     paths: Vec::new(),
//!     dry_run: false,
//!     times: None,
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The documented items are stable within a version of the control protocol, and the types of
//! [`api`] serialize to the JSON that `--json` prints (docs/cli.md). All other items are private;
//! `ckptfs::internals` is for the tests and benchmarks of this package and changes with them.
//!
//! The layers, top to bottom; nothing imports upward (docs/design.md): `cli`, `csi`, `volumes`,
//! `remote`, `control`, `fuse`, `transfer`, `engine`, `live`, `tree`, `history`, `store`, `sys`.

// A build with fewer features may omit the users of an item, so only the complete build reports
// unused items.
#![cfg_attr(
    not(all(
        feature = "csi",
        feature = "mcp",
        feature = "remote",
        debug_assertions,
        target_os = "linux"
    )),
    allow(dead_code, unused_imports)
)]

#[cfg(all(feature = "cli", feature = "fuse"))]
mod cli;
mod control;
#[cfg(feature = "csi")]
mod csi;
mod engine;
#[cfg(feature = "fuse")]
mod fuse;
mod history;
mod live;
#[cfg(feature = "remote")]
mod remote;
mod store;
mod sys;
mod transfer;
mod tree;
#[cfg(all(feature = "cli", feature = "fuse"))]
mod volumes;

#[cfg(all(feature = "cli", feature = "fuse"))]
pub use cli::main;
pub use control::{Client, SOCKET_NAME, STORE_NAME};
pub use engine::api;
pub use engine::verb::Verb;

/// Internal items for the tests and benchmarks of this package.
#[doc(hidden)]
pub mod internals {
    #[cfg(all(feature = "cli", feature = "fuse"))]
    pub mod cli {
        pub use crate::cli::verbs;
    }
    pub mod control {
        pub use crate::control::CONNECTIONS_MAX;
    }
    #[cfg(feature = "csi")]
    pub mod csi {
        pub use crate::csi::{NAME, TOPOLOGY_KEY, proto};
    }
    pub mod engine {
        pub use crate::engine::{Config, Engine, IoChoice, check, counts, export, request};
    }
    #[cfg(feature = "fuse")]
    pub mod fuse {
        pub use crate::fuse::{MountConfig, Session, Xattrs};
    }
    pub mod history {
        pub use crate::history::{attribution, base, present, state, timeline, view};
    }
    pub mod store {
        pub use crate::store::{Batch, Store, ids, record};
        pub mod journal {
            pub use crate::store::journal::codec;
        }
    }
    pub mod sys {
        pub use crate::sys::{
            Errno, ExtentMap, Kind, OpenKind, Protection, Stat, SysResult, Time, Xattrs,
            all_xattrs, allocation, extent_map, fault, fsync, ids, kill_group, open_beneath,
            open_flags, open_root, read_full_at, stat_fd,
        };
        pub mod host {
            pub use crate::sys::host::open_dir_path;
        }
    }
    pub mod tree {
        pub use crate::tree::{Tree, merge};
    }
    pub mod transfer {
        pub mod import {
            pub use crate::transfer::import::{record, record_files};
        }
    }
}
