//! Counts independent of the machine's load: kernel requests per workload, system calls of the
//! daemon per operation, memory per inode.
//!
//! Requests and system calls are compared with the files in `tests/it/counts/baseline`. A higher
//! count fails; a lower one passes with a note that the baseline can be lowered. `CKPTFS_BLESS=1
//! cargo test --test it counts::` rewrites the files: review the changes before committing them.

mod baseline;
mod branches;
mod databases;
mod memory;
mod requests;
mod rig;
mod syscalls;
mod tree;
