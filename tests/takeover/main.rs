//! The mount outlives its daemon: programs go on while it is killed, and nothing is lost or done twice.

#[path = "../common/mod.rs"]
mod common;

mod basic;
#[allow(dead_code)]
#[path = "../cut/map.rs"]
mod map;
mod others;
mod programs;
mod verbs;
