//! `ckptfs branch diff`.

use super::super::diff;
use ckptfs_api::{BranchInfo, DiffBranch, MergeBase};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;
use ckptfs_ui::locate::{self, ServedTree};
use ckptfs_ui::past::{StateTree, state};
use ckptfs_ui::{changes, hunks::Style};

/// List the changes of a branch since it began, or was last merged or updated
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The branch
    #[arg(value_name = "NAME")]
    name: String,
    /// Print a patch for `git apply`
    #[arg(short, long, conflicts_with = "json")]
    patch: bool,
    /// Print a patch for reading, with changes word by word: [-removed-]{+added+}
    #[arg(long, conflicts_with = "json")]
    word_diff: bool,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let (served, branch) = super::mounted(&args.name, context)?;
    let since = match branch.merge_base {
        Some(base) if !base.of_branch => {
            context.out.page();
            return since_update(served, &branch, base, &args, context);
        }
        Some(base) => Some(base.checkpoint),
        None => branch.since,
    };
    let since = since.map_or_else(|| "1".to_owned(), |since| since.to_string());
    context.dir = Some(branch.path);
    diff::run(
        diff::Args::since(since, args.patch, args.word_diff),
        context,
    )
}

/// Prints the differences from a checkpoint of the parent, which the parent reports, because they
/// are between two trees.
fn since_update(
    mut parent: ServedTree,
    branch: &BranchInfo,
    base: MergeBase,
    args: &Args,
    context: &mut Context,
) -> Outcome {
    let name = branch.name.clone();
    let changes = parent.client.ask(DiffBranch { name })?;
    if !args.patch && !args.word_diff {
        return context
            .out
            .answer(&changes, |out| changes::print(out, &changes));
    }
    let checkpoint = state(&mut parent, &base.checkpoint.to_string())?;
    let before = StateTree::at(&parent, checkpoint.as_ref())?;
    let after = StateTree::at(&locate::served(Some(&branch.path))?, None)?;
    let style = Style {
        words: args.word_diff,
    };
    diff::tell_patch(&changes, (&before, &after), style, context)
}
