//! `gc` and `du`: exactly the reported space is freed, kept checkpoints are unchanged, and the next
//! run completes an interrupted one.

mod auto_gc;
mod born;
mod concurrent_use;
mod cut_short;
mod delete_cost;
mod freed_space;
mod interrupted_runs;
mod plan;
mod store_size;
mod story;
mod tiers;
mod tiers_cut_short;
mod tiers_random;
