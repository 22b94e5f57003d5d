//! Attribution: which process changed which files, restores of one writer's changes, and files open
//! for writing at a checkpoint.

mod open_for_write;
mod descriptors;
mod identity;
mod restored_by_writer;
mod support;
mod status_by;
