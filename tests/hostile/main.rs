//! Input that means harm: names, links that are swapped, stores from strangers, clients that speak nonsense, other users. Nothing panics, hangs,
//! leads out of the backing directory, or takes the mount away from those who use it.

#[path = "../common/mod.rs"]
mod common;
#[path = "../mounted/support.rs"]
#[allow(dead_code)]
mod support;

mod deep;
mod names;
mod socket;
mod store;
mod swaps;
mod users;
