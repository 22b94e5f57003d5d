//! Shared parts of the benchmarks: samples, tables, options, and the machine.
#![allow(dead_code)]

pub mod machine;
pub mod markdown;
pub mod options;
pub mod stats;
pub mod tree;
