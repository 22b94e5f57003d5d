//! Input that means harm: names, links that are swapped, stores from strangers, clients that speak nonsense, other users. Nothing panics, hangs,
//! leads out of the backing directory, or takes the mount away from those who use it.

#[path = "../common/mod.rs"]
mod common;
#[path = "../mounted/support.rs"]
#[allow(dead_code)]
mod support;

mod deep;
mod flood;
mod forged;
mod freeze;
mod names;
mod owners;
mod setid;
mod slow;
mod socket;
mod store;
mod strangers;
mod stuck;
mod swaps;
mod trust;
mod users;
