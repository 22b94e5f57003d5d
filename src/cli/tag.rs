//! `ckptfs tag`.

use super::context::Context;
use super::error::Outcome;
use super::locate;
use crate::engine::api::{ChangeTags, CheckpointInfo, Retag, StateName};

/// Give a checkpoint names
///
/// A tag stands for its checkpoint wherever a number does, and is a name in .snapshots.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The checkpoint: a number, a tag, `latest`, `latest~2`, `@{10min ago}`
    #[arg(value_name = "ID")]
    id: String,
    /// The names
    #[arg(value_name = "TAG", required = true)]
    tags: Vec<String>,
    /// Take them from whichever checkpoints have them
    #[arg(short, long)]
    force: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let retag = Retag {
        add: args.tags,
        remove: Vec::new(),
        force: args.force,
    };
    let tagged = served.client.ask(ChangeTags {
        state: StateName(args.id),
        retag,
    })?;
    print(&tagged, context)
}

/// Prints a checkpoint and the tags that it has now.
pub fn print(tagged: &CheckpointInfo, context: &mut Context) -> Outcome {
    let tags = if tagged.tags.is_empty() {
        "has no tag".to_owned()
    } else {
        format!("is tagged {}", tagged.tags.join(", "))
    };
    context.out.answer(tagged, |out| {
        out.text_line(&format!("checkpoint {} {tags}", tagged.id))
    })
}
