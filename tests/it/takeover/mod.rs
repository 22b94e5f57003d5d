//! The mount outlives its daemon: programs go on while it is killed, and nothing is lost or done
//! twice.

mod basic;
mod branches;
mod others;
mod programs;
mod verbs;

use crate::cut::map;
