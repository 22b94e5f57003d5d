//! `ckptfs rename`.

use super::context::Context;
use super::error::Outcome;
use super::{locate, tag};
use crate::engine::api::{ChangeTags, Retag, StateName};

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
    let mut served = locate::served(context.dir())?;
    let retag = Retag {
        add: vec![args.new],
        remove: vec![args.old.clone()],
        force: args.force,
    };
    let renamed = served.client.ask(ChangeTags {
        state: StateName(args.old),
        retag,
    })?;
    tag::print(&renamed, context)
}
