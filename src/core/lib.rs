//! The live tree and its history: capture before change, epochs, views of checkpoints, restore,
//! branches, merge.
//!
//! Layers, top to bottom; nothing imports upward: [`engine`], [`live`], [`tree`], [`history`].

pub mod engine;
pub mod history;
pub mod live;
pub mod tree;
