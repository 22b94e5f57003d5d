//! `ckptfs remote`, `push` and `pull`.

mod oci;
pub mod pull;
pub mod push;
