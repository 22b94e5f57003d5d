//! The harness itself: images mount and are gone afterwards, hung commands end, trees differ where
//! they should, and the scripts around the tests count and clean correctly.

mod hung;
mod images;
mod scripts;
mod trees;
mod waits;
