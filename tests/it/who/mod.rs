//! Attribution: which process changed which files, restores of one writer's changes, and files open
//! for writing at a checkpoint.

mod cut;
mod descriptors;
mod identity;
mod only;
mod support;
mod told;
