//! Checkpoints beyond this machine (docs/adr/0036-remotes.md): in a repository of restic's format
//! ([`restic`]), or as images in a registry ([`oci`]).
//!
//! Nothing here talks to a daemon: what is pushed comes from a [`Feed`](crate::transfer::Feed), and
//! what is pulled goes to a [`Sink`](crate::transfer::Sink) or a directory. Whatever a server says
//! may be hostile: names are checked as those of any tree that is not ours, nothing of it is
//! followed or executed, and what it says is shown escaped.

mod http;
pub mod limits;
pub mod oci;
pub mod restic;
