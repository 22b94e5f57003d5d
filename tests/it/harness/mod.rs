//! The harness itself: images mount and are removed afterwards, hung commands end, tree comparison
//! detects differences, and the scripts around the tests count and clean correctly.

mod hung;
mod images;
mod scripts;
mod trees;
mod waits;
