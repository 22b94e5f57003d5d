//! `gc` and `du`: exactly the reported space is freed, kept checkpoints are unchanged, and the next
//! run completes an interrupted one.

mod around;
mod born;
mod by_itself;
mod closed;
mod cut_short;
mod cuts;
mod forgotten;
mod plan;
mod story;
mod tiers;
mod tiers_cut_short;
mod tiers_random;
mod use_meanwhile;
