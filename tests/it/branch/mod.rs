//! Branches as things that exist: made, mounted, held, dropped and brought back, whatever is killed
//! meanwhile.

mod cut_short;
mod devices;
mod ended;
mod fresh;
mod in_use;
mod life;
mod power_cut;
mod radar;
mod refusals;
pub mod support;
