//! `ckptfs checkpoint`.

use super::error::Outcome;
use super::{Context, locate};
use crate::engine::api::CheckpointOptions;

/// Freeze the state of the tree; prints the new checkpoint's number
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to remember about it
    #[arg(short, long = "message", value_name = "NOTE", default_value = "", hide_default_value = true)]
    message: String,
    /// A name for it; can be repeated
    #[arg(short, long = "tag", value_name = "TAG")]
    tag: Vec<String>,
    /// Sync the tree and the store first, so that it survives a power cut
    #[arg(long)]
    sync: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let options = CheckpointOptions { note: args.message, tags: args.tag, sync: args.sync };
    let made = served.client.checkpoint(options)?;
    if context.out.json {
        context.out.json(&made)?;
    } else {
        context.out.line(&made.id.to_string())?;
    }
    if !made.atomic {
        context.out.warn("files written all the time were not all captured at one instant (mount with --writes=daemon for that)");
    }
    Ok(())
}
