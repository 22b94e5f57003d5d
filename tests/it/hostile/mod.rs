//! Hostile input: odd names, swapped links, foreign stores, malformed requests, other users. None
//! causes a panic or a hang, escapes the backing directory, or makes the mount unavailable to its
//! users.

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
