//! `ckptfs untag`.

use super::context::Context;
use super::error::Outcome;
use super::{locate, tag};
use crate::engine::api::{ChangeTags, Retag, StateName};

/// Take tags from their checkpoints, which stay
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The tags
    #[arg(value_name = "TAG", required = true)]
    tags: Vec<String>,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    for tag in args.tags {
        let retag = Retag {
            remove: vec![tag.clone()],
            ..Retag::default()
        };
        let untagged = served.client.ask(ChangeTags {
            state: StateName(tag),
            retag,
        })?;
        tag::print(&untagged, context)?;
    }
    Ok(())
}
