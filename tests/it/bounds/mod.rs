//! Upper bounds of countable costs: system calls of an export, page faults of a process start.
//! `benches/seeds` measures the time of export, restore and checkpoint compared with `cp -a`.
//!
//! Each count is compared with the one in `baseline.toml`. `CKPTFS_BLESS=1 cargo test --test it
//! bounds::` writes a lower or a new number into the file, never a higher one: see CONTRIBUTING.

mod baseline;
mod counts;
mod shapes;
