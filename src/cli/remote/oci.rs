//! `push` to a registry, and `pull` from one.
