//! Container volumes: a pool of trees, each with its own history, and the volume driver that serves
//! them to a container engine.
//!
//! ```text
//! ROOT/volumes/NAME/      tree of a volume, with its history in .ckptfs; mount point of ROOT/images/NAME.img if the volume has a size
//! ROOT/mnt/NAME/          mount point of a volume in use, unless it is staged
//! ROOT/meta/NAME.json     record of a volume; written atomically (new file, fsync, rename)
//! ROOT/locks/NAME         lock file (flock(2)) of a volume, for the threads of the driver and for the command line
//! ROOT/staging/           trees being created
//! ROOT/gone/              trees being deleted
//! ROOT/fetched/NAME/      partial fetch of a volume from a remote; can be resumed for a day
//! ROOT/trash/             volumes removed with on-remove=trash
//! ```
//!
//! **Verbs are not reimplemented.** Mount, unmount and fork call the functions of these verbs,
//! which the command line provides ([`VerbRunner`]). A volume is therefore served like any
//! directory, by a holder and a daemon that are independent of the driver and outlive it
//! (docs/adr/0009).
//!
//! **Facts and records.** The mounts requested by an engine are recorded as a set. Whether a volume
//! is really in use is determined from the kernel's mount tables of all processes
//! ([`mount_facts`]). Unmounting is based on the records, because a container may be about to
//! start. Removal and the start of the driver are based on the facts.
//!
//! **Locking.** One flock(2) per volume, held for every change. Two are held only to create a
//! volume from another one, the new one first: its name is not in use yet. No locks in memory.

pub mod bind;
mod claims;
mod clones;
#[cfg(feature = "csi")]
pub mod csi;
mod dirs;
mod files;
mod fill;
mod history;
pub mod http;
mod image;
mod metrics;
pub mod mount_facts;
mod mounts;
pub mod name;
pub mod options;
mod pool;
mod process_ident;
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
pub use mount_facts::VolumePlace;
pub use pool::Pool;
pub use record::{Claim, RemoteDestination, Snapshot, VolumeOrigin, VolumeRecord};
pub use verbs::{RemoteCheckpoint, VerbRunner};
