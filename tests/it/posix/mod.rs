//! Conformance suites that we did not write, `pjdfstest` and `fsx`, on the plain filesystem and
//! through the mount: what passes there passes here.

mod cases;
mod exclusions;
mod fsx;
mod limits;
mod pjdfstest;
mod probes;
mod setid;
mod support;

use crate::cut::map;
