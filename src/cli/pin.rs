//! `ckptfs pin`.

use super::context::Context;
use super::error::Outcome;
use super::locate;
use crate::engine::api::{CheckpointInfo, PinCheckpoint, StateName};

/// Pin a checkpoint: nobody can delete it until it is unpinned
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The checkpoint: a number, a tag, `latest`, `latest~2`, `@{10min ago}`
    #[arg(value_name = "ID")]
    id: String,
    /// Why, for whoever wants to delete it
    #[arg(
        short,
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    reason: String,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let pinned = served.client.ask(PinCheckpoint {
        state: StateName(args.id),
        reason: Some(args.reason),
    })?;
    print(&pinned, context)
}

/// Prints whether a checkpoint is pinned now.
pub fn print(checkpoint: &CheckpointInfo, context: &mut Context) -> Outcome {
    let now = match checkpoint.pinned.as_deref() {
        None => "is not pinned".to_owned(),
        Some("") => "is pinned".to_owned(),
        Some(reason) => format!("is pinned: {reason}"),
    };
    context.out.answer(checkpoint, |out| {
        out.text_line(&format!("checkpoint {} {now}", checkpoint.id))
    })
}
