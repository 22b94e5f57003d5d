//! Container engines, Docker and Podman, with our volume driver: each event of an engine's
//! lifecycle, and the death of each process involved.
//!
//! Everything runs in private namespaces (`rig.rs`): an engine of the machine is not touched, and
//! nothing stays behind.

mod database;
mod docs;
mod engines;
mod lifecycle;
mod packages;
mod past;
mod podman;

pub(crate) mod rig;
mod survival;

use crate::common::skip;
use rig::{podman_unavailable, unavailable};

/// Defines a test for each named function `fn()`, skipped with the reason where no engine can run.
macro_rules! on_an_engine {
    (@with $engine:ident $unavailable:ident $body:ident) => {
        mod $body {
            #[test]
            fn $engine() {
                match crate::engine::$unavailable() {
                    Some(reason) => crate::engine::skip(&reason),
                    None => super::$body(),
                }
            }
        }
    };
    ($($body:ident),+ $(,)?) => {
        $(crate::engine::on_an_engine! { @with docker unavailable $body })+
    };
}
pub(crate) use on_an_engine;

/// The same for Podman.
macro_rules! on_podman {
    ($($body:ident),+ $(,)?) => {
        $(crate::engine::on_an_engine! { @with podman podman_unavailable $body })+
    };
}
pub(crate) use on_podman;
