//! `ckptfs untag`.

use super::context::Context;
use super::error::Outcome;
use super::tag;

/// Remove tags; their checkpoints stay
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The tags
    #[arg(value_name = "TAG", required = true)]
    tags: Vec<String>,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    tag::remove(args.tags, context)
}
