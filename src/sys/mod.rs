//! The seam to the kernel.

mod types;

pub use types::{Errno, Kind, Stat, SysResult, Time, Xattrs};
