//! `ckptfs branch diff`.

use super::super::context::Context;
use super::super::diff;
use super::super::error::Outcome;

/// List what a branch has changed since it began
///
/// As `ckptfs diff` in the branch.
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
    let (_, branch) = super::mounted(&args.name, context)?;
    let since = branch
        .since
        .map_or_else(|| "1".to_owned(), |since| since.to_string());
    context.dir = Some(branch.path);
    diff::run(diff::Args::since(since, args.patch), context)
}
