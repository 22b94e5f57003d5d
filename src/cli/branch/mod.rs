//! `ckptfs branch`: one file for each of its verbs.

pub mod conflicts;
pub mod create;
mod diff;
pub mod drop;
mod git;
mod list;
mod mount;
mod restore;
mod run;
mod update;

use clap::Subcommand;

use ckptfs_api::{BranchInfo, Code, DiffBranch, ListBranches, VerbResult};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Outcome, error};
use ckptfs_ui::locate::{self, ServedTree};

/// Branches: writable second trees that start from a checkpoint of this one
///
/// Each is a separate directory, mounted by the daemon of its parent, and every verb works in it.
/// `ckptfs merge NAME` merges its changes into this tree.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
}

/// Defines the verbs by their modules, each with `Args` for clap and a function `run`.
macro_rules! verbs {
    ($($(#[$more:meta])* $verb:ident($module:ident),)*) => {
        #[derive(Debug, Subcommand)]
        enum Verb {
            $($(#[$more])* $verb($module::Args),)*
        }

        pub fn run(args: Args, context: &mut Context) -> Outcome {
            match args.verb {
                $(Some(Verb::$verb(args)) => $module::run(args, context),)*
                None => list::run(list::Args::default(), context),
            }
        }
    };
}

verbs! {
    Create(create),
    Run(run),
    #[command(alias = "ls")]
    List(list),
    Diff(diff),
    Update(update),
    Conflicts(conflicts),
    Mount(mount),
    #[command(aliases = ["rm", "delete"])]
    Drop(drop),
    Restore(restore),
}

/// Returns a branch by its name, which must be mounted.
pub fn mounted(name: &str, context: &Context) -> VerbResult<(ServedTree, BranchInfo)> {
    let mut served = locate::served(context.dir())?;
    let all = served.client.ask(ListBranches::default())?;
    let found = all.into_iter().find(|branch| branch.name == name);
    if let Some(found) = found.filter(|branch| branch.mounted) {
        return Ok((served, found));
    }
    // The daemon reports the reason.
    let name = name.to_owned();
    let refused = served.client.ask(DiffBranch { name }).err();
    Err(refused
        .unwrap_or_else(|| error(Code::Busy, "the branch is being made or mounted right now")))
}
