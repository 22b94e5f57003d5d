//! What may not become dearer and can be counted: system calls of an export, page faults of the
//! start of a process. How long export, restore and checkpoint take beside `cp -a` is measured by
//! `benches/seeds`.
//!
//! Each count is compared with the one in `baseline.toml`. `CKPTFS_BLESS=1 cargo test --test it
//! bounds::` writes a lower or a new number into the file, never a higher one: see CONTRIBUTING.

mod baseline;
mod counts;
mod shapes;
