//! Branches as things that exist: made, mounted, held, dropped and brought back, whatever is killed
//! meanwhile.

mod devices;
mod life;
mod refusals;
mod support;
