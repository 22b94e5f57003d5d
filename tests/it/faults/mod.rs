//! What fails: the Nth system call, the whole disk, the index; and a disk that is really full.
//!
//! Most of it drives the engine in this process, over a plain directory on a real filesystem: there
//! the seam of `sys::fault` can make any call fail and the directory can be looked at past the
//! engine. The seam is compiled in debug builds only.

mod always;
#[cfg(debug_assertions)]
mod baseline;
#[cfg(debug_assertions)]
mod calls;
mod device;
mod full;
#[cfg(debug_assertions)]
mod mounted;
#[cfg(debug_assertions)]
mod ops;
mod room;
#[cfg(debug_assertions)]
mod seen;
mod served;
