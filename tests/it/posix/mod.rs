//! The external conformance suites `pjdfstest` and `fsx`, on the plain filesystem and through the
//! mount: a case that passes there passes here.

mod cases;
mod exclusions;
mod fsx;
mod limits;
mod pjdfstest;
mod probes;
mod setid;
mod support;

use crate::cut::map;
