//! `gc --dedup` and sharing by the sealer: equal contents are stored once, visible only in the used
//! space.

mod across;
mod forged;
mod killed;
mod live;
mod story;
mod versions;
