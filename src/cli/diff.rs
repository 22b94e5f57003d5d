//! `ckptfs diff`.

use super::error::Outcome;
use super::{Context, changes, locate};
use crate::engine::api::StateName;

/// List what changed from one checkpoint to another, or to the tree as it is now
///
/// One line per path: A added, M modified, D deleted, R renamed, T of another kind.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The older state: a number, a tag, or `latest`
    #[arg(value_name = "A")]
    from: String,
    /// The newer state; the tree as it is now (`live`) if not given
    #[arg(value_name = "B")]
    to: Option<String>,
    /// Print the paths alone
    #[arg(long, conflicts_with = "json")]
    name_only: bool,
    /// End each field with NUL and escape nothing
    #[arg(short = 'z', conflicts_with = "json")]
    nul: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let changes = served.client.diff(StateName(args.from), args.to.map(StateName))?;
    let out = &mut context.out;
    match (out.json, args.name_only, args.nul) {
        (true, _, _) => out.json(&changes)?,
        (false, true, nul) => changes::print_names(out, &changes, nul)?,
        (false, false, true) => changes::print_nul(out, &changes)?,
        (false, false, false) => changes::print(out, &changes)?,
    }
    Ok(())
}
