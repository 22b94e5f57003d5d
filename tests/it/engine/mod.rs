//! Real container engines, Docker and Podman, with our volume driver: each row of an engine's life,
//! and what happens when something in it dies.
//!
//! Everything runs in namespaces of its own (`rig.rs`): nothing of the machine's engine, if it has
//! one, is touched, and nothing stays.

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

/// Makes a test of each named function `fn()`, skipped with the reason where no engine can run.
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
