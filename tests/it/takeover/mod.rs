//! Takeover: the mount survives its daemon. Programs continue, and no operation is lost or done
//! twice.

mod basic;
mod branches;
mod others;
mod programs;
mod verbs;

use crate::cut::map;
