//! `ckptfs branch update`.

use super::super::merge::{PolicyArgs, clashes, is_whole, print_merged, settle_by};
use super::super::restore::TimesArg;
use ckptfs_api::{Merged, StateName, Times, UpdateBranch};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::Outcome;
use ckptfs_ui::interrupt::Interrupt;
use ckptfs_ui::{changes, locate, time};

/// Merge into a branch the changes of its parent since the branch began, or was last updated
///
/// Like `ckptfs merge`, from the parent into the branch: --ours keeps the version of the branch.
/// The branch is saved as a checkpoint first; `ckptfs undo` in the branch reverts the update. From
/// then on the branch's changes are those since the state that it was updated to.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The branch
    #[arg(value_name = "NAME")]
    name: String,
    /// Update to this checkpoint of the parent, instead of its live tree
    #[arg(long, value_name = "ID")]
    at: Option<String>,
    #[command(flatten)]
    policy: PolicyArgs,
    /// The modification time of changed files: `now` (the default), or `kept`, their time in the
    /// parent
    #[arg(long, value_enum, value_name = "WHICH")]
    times: Option<TimesArg>,
    /// Only list the changes and the conflicts
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    listed: changes::ListAllArg,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let mut served = locate::served(context.dir())?;
    let interrupt = Interrupt::gives_up(&served.client)?;
    let ask = UpdateBranch {
        name: args.name.clone(),
        at: args.at.map(StateName),
        policy: args.policy.policy(),
        times: args.times.map(Times::from),
        dry_run: args.dry_run,
    };
    let merged = interrupt.ask(&mut served.client, ask, "updating", &context.out)?;
    if context.out.json {
        context.out.json(&merged)?;
    } else {
        print_merged(&merged, args.listed, context)?;
        context.out.line(&summary(&args.name, &merged))?;
    }
    interrupt.end(&context.out)?;
    is_whole(&merged, "ckptfs undo, in the branch", &context.out)
}

fn summary(name: &str, merged: &Merged) -> String {
    let (count, clash) = (changes::count(merged.changes.len() as u64), clashes(merged));
    match (merged.guard, merged.merged) {
        _ if merged.refused && merged.dry_run => {
            format!("update of {name} would make {count}, but for {clash}")
        }
        _ if merged.dry_run && merged.merged_by.is_none() => {
            format!("update of {name} would make {count}")
        }
        _ if merged.refused => settle_by(&clash),
        (Some(guard), Some(at)) => format!(
            "updated {name} to checkpoint {at}: {count} in {}; the branch's previous state is its checkpoint {guard}",
            time::duration(merged.duration_us)
        ),
        _ => match merged.merged_by {
            Some(operation) => format!(
                "nothing to update: {name} was updated already (its operation {operation}), and its parent has nothing new since"
            ),
            None => format!("nothing to update: {name} has everything from its parent"),
        },
    }
}
