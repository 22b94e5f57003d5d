//! What the benchmarks share: samples, tables, options, and the machine they ran on.
#![allow(dead_code)]

pub mod machine;
pub mod markdown;
pub mod options;
pub mod stats;
pub mod tree;
