//! Who did it: which process changed what, the restore of one writer's changes, and what was open
//! for writing at a checkpoint.

mod cut;
mod descriptors;
mod identity;
mod only;
mod support;
mod told;
