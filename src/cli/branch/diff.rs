//! `ckptfs branch diff`.

use super::super::context::Context;
use super::super::error::{Outcome, hinted};
use super::super::{changes, diff};
use crate::engine::api::{Code, DiffBranch, VerbError};
use crate::store::ids::CheckpointId;

/// List what a branch has changed since it began, or was merged or updated last
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The branch
    #[arg(value_name = "NAME")]
    name: String,
    /// Print a patch that `git apply` takes
    #[arg(short, long, conflicts_with = "json")]
    patch: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let (mut served, branch) = super::mounted(&args.name, context)?;
    let since = match branch.merge_base {
        Some(base) if !base.of_branch => {
            if args.patch {
                return Err(no_patch(base.checkpoint).into());
            }
            let changes = served.client.ask(DiffBranch { name: args.name })?;
            return context
                .out
                .answer(&changes, |out| changes::print(out, &changes));
        }
        Some(base) => Some(base.checkpoint),
        None => branch.since,
    };
    let since = since.map_or_else(|| "1".to_owned(), |since| since.to_string());
    context.dir = Some(branch.path);
    diff::run(diff::Args::since(since, args.patch), context)
}

/// The two are in two trees.
fn no_patch(base: CheckpointId) -> VerbError {
    hinted(
        Code::NotExact,
        format!(
            "there is no patch of a branch that was updated to checkpoint {base} of its parent"
        ),
        format!("in the parent: diff -ru .snapshots/{base} BRANCH"),
    )
}
