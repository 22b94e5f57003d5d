//! What may not become dearer beside plain tools: the CPU time of an export or a restore divided by
//! that of `cp -a` of the same tree, done in turn, and what can be counted. Never a time on the
//! clock.
//!
//! Each quotient is compared with twice the one in `baseline.toml`, the quotient of the least of a
//! session. A machine that is busy makes quotients larger now and then, so a bound is broken only
//! if each of three sessions breaks it, and a session goes on for a while before it says so.
//! `CKPTFS_BLESS=1 cargo test --test it bounds::` writes a lower or a new number into the file,
//! never a higher one: see CONTRIBUTING.

mod baseline;
mod counts;
mod ratios;
mod shapes;
