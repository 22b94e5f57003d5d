//! Fault injection: failures of the Nth system call, of the whole disk, or of the index; and full
//! disks.
//!
//! Most tests drive the engine in this process, over a plain directory on a real filesystem:
//! `sys::fault` can make any call fail, and the directory can be inspected independently of the
//! engine. Fault injection exists in debug builds only.

#[cfg(debug_assertions)]
mod baseline;
#[cfg(debug_assertions)]
mod calls;
mod device;
mod full;
mod full_warnings;
mod full_without_reserve;
#[cfg(debug_assertions)]
mod mounted;
#[cfg(debug_assertions)]
mod node_snapshot;
#[cfg(debug_assertions)]
mod ops;
mod served;
