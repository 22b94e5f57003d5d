//! Input that means harm: names, links that are swapped, stores from strangers, clients that speak
//! nonsense, other users. Nothing panics, hangs, leads out of the backing directory, or takes the
//! mount away from those who use it.

mod archives;
mod damage;
mod deep;
mod flood;
mod forged;
mod forged_marks;
mod freeze;
mod names;
mod other_mounts;
mod owners;
mod reserved;
mod setid;
mod slow;
mod socket;
mod store;
mod strangers;
mod stuck;
mod swaps;
mod trust;
mod users;

use crate::mounted::support;
