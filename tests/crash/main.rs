//! What is left when the daemon is killed or the power is cut.
//!
//! `cut`: the disk image is frozen at a random moment and mounted again. `replay`: a recorder below the disk logs every write and
//! flush, and what a power cut may leave is made from that, with the writes that were not flushed kept, dropped or picked at random.
//!
//! `CKPTFS_SEED` is the seed, which is printed; `CKPTFS_KILLS`, `CKPTFS_CUTS`, `CKPTFS_STATES` are counts for each variant; `CKPTFS_LONG=1` gives the
//! long form.

#[path = "../common/mod.rs"]
mod common;

mod after;
mod cut;
mod disk;
mod load;
mod ops;
mod random;
mod recorder;
mod replay;
