//! Merges on real mounts: what another line of the history did is done to the live tree, whole or
//! not at all.

mod branch;
mod cases;
mod cost;
mod cut_short;
mod later;
mod links;
mod story;
mod support;
mod tool;
mod update;
