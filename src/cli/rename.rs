//! `ckptfs rename`.

use super::context::Context;
use super::error::Outcome;
use super::tag;

/// Give a tag another name
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The tag
    #[arg(value_name = "OLD")]
    old: String,
    /// Its new name
    #[arg(value_name = "NEW")]
    new: String,
    /// Take the new name from the checkpoint that has it
    #[arg(short, long)]
    force: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    tag::rename(args.old, args.new, args.force, context)
}
