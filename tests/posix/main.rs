//! Conformance suites that we did not write, `pjdfstest` and `fsx`, on the plain filesystem and through the mount: what passes there passes here.

#[path = "../common/mod.rs"]
mod common;

mod cases;
mod exclusions;
mod fsx;
mod limits;
#[path = "../cut/map.rs"]
#[allow(dead_code)]
mod map;
mod pjdfstest;
mod probes;
mod setid;
mod support;
