//! The integration tests: one binary, a module per subject. `cargo test --test it cli::` and
//! `tests/run.py cli` run one module; `make test` and `make test-all` call the latter.

mod common;

mod agents;
mod apps;
mod bounds;
mod branch;
mod branch_model;
mod checkpoint;
mod cli;
#[cfg(feature = "csi")]
mod cluster;
mod concurrent;
mod counts;
mod crash;
#[cfg(feature = "csi")]
mod csi;
mod cut;
mod dedup;
mod endurance;
mod engine;
mod export;
mod faults;
mod gc;
mod harness;
mod hostile;
mod import;
mod inotify;
mod integrity;
mod limits;
#[cfg(feature = "mcp")]
mod mcp;
mod merge;
mod model;
mod mounted;
mod posix;
#[cfg(feature = "remote")]
mod remote;
mod runs;
mod takeover;
mod volumes;
mod who;
