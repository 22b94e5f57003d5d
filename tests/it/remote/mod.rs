//! Checkpoints beyond this machine, in servers that run here for the length of a test.

mod oci;
mod proxy;
pub mod restic;
