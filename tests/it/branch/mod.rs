//! The life cycle of branches: created, mounted, held, dropped and restored, also across kills and
//! power cuts.

mod conflicts_verb;
mod cut_short;
mod devices;
mod ended;
mod fresh;
mod in_use;
mod life;
mod power_cut;
mod refusals;
pub mod support;
