//! What does not depend on the machine's mood: requests of the kernel per workload, system calls of
//! the daemon per operation, memory per inode.
//!
//! Requests and system calls are compared with the files in `tests/it/counts/baseline`. More than
//! the baseline fails; less passes and says that the baseline can be lowered.
//! `CKPTFS_BLESS=1 cargo test --test it counts::` writes the files anew: look at what changed
//! before committing it.

mod baseline;
mod branches;
mod databases;
mod memory;
mod requests;
mod rig;
mod syscalls;
mod tree;
