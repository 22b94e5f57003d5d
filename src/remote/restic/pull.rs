//! A snapshot becomes a tree.
