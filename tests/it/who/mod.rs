//! Attribution: which process changed which files, restores of one writer's changes, and files open
//! for writing at a checkpoint.

mod descriptors;
mod identity;
mod open_for_write;
mod restored_by_writer;
mod status_by;
mod support;
