//! Import of existing trees: reads a directory, compares it with the tree, and updates the tree
//! where they differ.
//!
//! **Proof.** A path counts as unchanged since its import while stat(2) returns the recorded values
//! for it in both source and tree (module [`record`]). Everything else is compared, with its
//! content. A path that cannot be read in the source stays unchanged in the tree and is reported
//! (module [`skipped`]).
//!
//! **Order.** Removals, directories, all other inodes by several threads, further names, attributes
//! of directories.

pub mod contents;
pub mod execute;
pub mod plan;
pub mod record;
pub mod record_files;
pub mod scan;
pub mod skipped;
