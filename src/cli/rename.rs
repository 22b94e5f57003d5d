//! `ckptfs rename`.

use super::context::Context;
use super::error::Outcome;
use super::tag;

/// Rename a tag
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The tag
    #[arg(value_name = "OLD")]
    old: String,
    /// Its new name
    #[arg(value_name = "NEW")]
    new: String,
    /// Move the new name from the checkpoint that has it
    #[arg(short, long)]
    force: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    tag::rename(args.old, args.new, args.force, context)
}
