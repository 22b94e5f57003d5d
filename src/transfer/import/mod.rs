//! Existing trees brought in: what is in a directory is read, compared with what is in the tree,
//! and what differs is made there.
//!
//! **Proof.** A path is taken to be as it was imported while stat(2) says the same of it in the
//! source and in the tree as when it was (module [`record`]). Everything else is compared, with its
//! content. What cannot be read in the source is left as it is in the tree, and told (module
//! [`left`]).
//!
//! **Order.** What goes, then directories, then everything else by several threads, then further
//! names, then the attributes of directories.

pub mod bring;
pub mod contents;
pub mod keep;
pub mod left;
pub mod plan;
pub mod record;
pub mod scan;
