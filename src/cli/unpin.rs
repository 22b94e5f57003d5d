//! `ckptfs unpin`.

use super::context::Context;
use super::error::Outcome;
use super::{locate, pin};
use crate::engine::api::{PinCheckpoint, StateName};

/// Unpin a checkpoint: it can be deleted again
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The checkpoint: a number, a tag, `latest`, `latest~2`, `@{10min ago}`
    #[arg(value_name = "ID")]
    id: String,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let unpinned = served.client.ask(PinCheckpoint {
        state: StateName(args.id),
        reason: None,
    })?;
    pin::print(&unpinned, context)
}
