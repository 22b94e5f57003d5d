//! `gc` and `du`: exactly the reported space is freed, kept checkpoints are unchanged, and the next
//! run completes an interrupted one.

mod delete_cost;
mod born;
mod auto_gc;
mod freed_space;
mod cut_short;
mod interrupted_runs;
mod store_size;
mod plan;
mod story;
mod tiers;
mod tiers_cut_short;
mod tiers_random;
mod concurrent_use;
