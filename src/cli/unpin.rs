//! `ckptfs unpin`.

use super::context::Context;
use super::error::Outcome;
use super::pin;

/// Unpin a checkpoint, so that it can be deleted again
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The checkpoint: a number, a tag, `latest`, `latest~2`, `@{10min ago}`
    #[arg(value_name = "ID")]
    id: String,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    pin::pin(args.id, None, context)
}
