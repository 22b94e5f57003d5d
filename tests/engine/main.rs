//! Real container engines, Docker and Podman, with our volume driver: each row of an engine's life, and what happens when something in it dies.
//!
//! Everything runs in namespaces of its own (`rig.rs`): nothing of the machine's engine, if it has one, is touched, and nothing stays.

#[path = "../common/mod.rs"]
mod common;
mod engines;
mod rig;


use common::skip;
use rig::unavailable;

/// Makes a test of each named function `fn()`, skipped with the reason where no engine can run.
macro_rules! on_an_engine {
    ($($(#[$attribute:meta])* $body:ident),+ $(,)?) => {
        $(mod $body {
            #[test]
            $(#[$attribute])*
            fn docker() {
                match crate::unavailable() {
                    Some(reason) => crate::skip(&reason),
                    None => super::$body(),
                }
            }
        })+
    };
}
pub(crate) use on_an_engine;
