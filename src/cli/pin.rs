//! `ckptfs pin`.

use crate::executor;
use ckptfs_api::{CheckpointInfo, PinCheckpoint, Query, StateName};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;
use ckptfs_ui::listing::print_checkpoints;
use ckptfs_ui::locate;

/// Pin a checkpoint, so that it cannot be deleted; without arguments list pinned checkpoints
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The checkpoint: a number, a tag, `latest`, `latest~2`, `@{10min ago}`
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// Unpin the checkpoint
    #[arg(short, long, requires = "id", conflicts_with = "reason")]
    delete: bool,
    /// The reason, for users who want to delete the checkpoint
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
    match args.id {
        Some(id) => pin(id, (!args.delete).then_some(args.reason), context),
        None => list(context),
    }
}

/// Lists the pinned checkpoints.
fn list(context: &mut Context) -> Outcome {
    let pinned = executor::history(context.dir())?.ask(Query {
        pinned: true,
        counted: true,
        ..Query::default()
    })?;
    match context.out.json {
        true => Ok(context.out.json(&pinned)?),
        false => print_checkpoints(&pinned, &mut context.out),
    }
}

/// Pins a checkpoint, for a reason, or unpins it.
pub fn pin(id: String, reason: Option<String>, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let state = StateName(id);
    let pinned = served.client.ask(PinCheckpoint { state, reason })?;
    print(&pinned, context)
}

/// Prints whether a checkpoint is pinned.
fn print(checkpoint: &CheckpointInfo, context: &mut Context) -> Outcome {
    let now = match checkpoint.pinned.as_deref() {
        None => "is not pinned".to_owned(),
        Some("") => "is pinned".to_owned(),
        Some(reason) => format!("is pinned: {reason}"),
    };
    context.out.answer(checkpoint, |out| {
        out.text_line(&format!("checkpoint {} {now}", checkpoint.id))
    })
}
