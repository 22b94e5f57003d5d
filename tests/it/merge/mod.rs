//! Merges on real mounts: changes of another line of history are applied to the live tree,
//! completely or not at all.

mod branch;
mod cases;
mod cost;
mod cut_short;
mod links;
mod repeated_merges;
mod story;
mod support;
mod tool;
mod update;
