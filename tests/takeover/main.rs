//! The mount outlives its daemon: programs go on while it is killed, and nothing is lost or done twice.

#[path = "../common/mod.rs"]
mod common;

mod basic;
