//! Checkpoints on other machines (docs/adr/0036-remotes.md): in a repository in restic's format
//! ([`restic`]), or as images in a registry ([`oci`]).
//!
//! This layer does not communicate with a daemon: pushed data comes from a
//! [`PartSource`](ckptfs_transfer::PartSource), and pulled data goes to a
//! [`Sink`](ckptfs_transfer::Sink) or a directory. A server may be hostile: names are checked like
//! those of any foreign tree, nothing is followed or executed, and its messages are displayed
//! escaped.

mod http;
pub mod limits;
pub mod oci;
pub mod restic;
