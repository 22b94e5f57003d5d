//! `dedup` and what the sealer shares by itself: the same content is there once, and nobody can
//! tell but by the space.

mod across;
mod forged;
mod killed;
mod live;
mod story;
mod versions;
