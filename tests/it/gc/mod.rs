//! `gc` and `du`: what is told comes free and nothing else, what is kept stays as it was, and a run
//! that is cut short is finished by the next.

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
