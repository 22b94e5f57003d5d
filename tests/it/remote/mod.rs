//! Checkpoints on other machines: remotes, served locally for the duration of a test.

mod oci;
mod proxy;
pub mod restic;
