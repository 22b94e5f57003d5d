//! Container volumes: a pool of trees, each with a history of its own, and the volume driver that
//! serves them to a container engine.
//!
//! ```text
//! ROOT/volumes/NAME/      a volume's tree, with its history in .ckptfs; ROOT/images/NAME.img is mounted there if the volume has a size
//! ROOT/mnt/NAME/          where it is mounted while somebody uses it, unless it is staged
//! ROOT/meta/NAME.json     what is known of it; written whole (new file, fsync, rename), so that it is the old or the new one
//! ROOT/locks/NAME         locked (flock(2)) while somebody works on it: the driver's threads and programs of the command line alike
//! ROOT/staging/           trees that are being made, and such that are being removed
//! ROOT/fetched/NAME/      what has come of a volume that a remote has; it is gone on with for a day
//! ROOT/trash/             volumes that were removed with on-remove=trash
//! ```
//!
//! **Nothing is done here that a verb does.** Mounting, unmounting and forking is done by the
//! functions of these verbs, which the command line lends ([`Verbs`]): so a volume is served as any
//! directory is, by a holder and a daemon that do not depend on the driver and outlive it
//! (docs/adr/0009).
//!
//! **Facts before records.** Which mounts a container engine has asked for is recorded, as a set;
//! whether a volume is really in use is what the kernel's tables of mounts say, of all processes
//! ([`facts`]). Records are what unmounting goes by, for a container may be about to be started;
//! facts are what removal and the start of the driver go by.
//!
//! **Locking.** One flock(2) for each volume, taken by whoever changes something of it, and never
//! two at a time but for a volume that is made from another: then first the new one's, whose name
//! nobody else can have got yet. No locks in memory.

mod asker;
pub mod bind;
mod claims;
mod clones;
mod dirs;
pub mod error;
pub mod facts;
mod files;
mod fill;
mod history;
pub mod http;
mod image;
mod metrics;
mod mounts;
pub mod name;
pub mod options;
mod pool;
pub mod protocol;
mod record;
mod registry;
mod remotes;
pub mod serve;
mod sizes;
mod staging;
mod sweep;
pub mod timed;
pub mod tool;
mod trash;
mod verbs;

pub use claims::SNAPSHOT_TAG;
pub use facts::Place;
pub use pool::Pool;
pub use record::{Claim, Parent, Record, Sent, Snapshot};
pub use verbs::{Pushed, Verbs};
