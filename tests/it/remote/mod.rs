//! Checkpoints beyond this machine, in servers that run here for the length of a test.

mod oci;
pub mod restic;
