//! `ckptfs branch`: a file for each of its verbs.

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

use super::context::Context;
use super::error::{Outcome, error};
use super::locate::{self, Served};
use crate::engine::api::{BranchInfo, Code, DiffBranch, ListBranches, VerbResult};

/// Branches: writable second trees that start from a checkpoint of this one
///
/// Each is a directory of its own, mounted by the daemon of its parent, and every verb works in it.
/// `ckptfs merge NAME` merges its changes into this tree.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
}

/// The verbs, and the module of each, whose `Args` clap reads and whose `run` does it.
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

/// A branch by its name, and that it is mounted.
pub fn mounted(name: &str, context: &Context) -> VerbResult<(Served, BranchInfo)> {
    let mut served = locate::served(context.dir())?;
    let all = served.client.ask(ListBranches::default())?;
    let found = all.into_iter().find(|branch| branch.name == name);
    if let Some(found) = found.filter(|branch| branch.mounted) {
        return Ok((served, found));
    }
    // The daemon tells why it is not.
    let name = name.to_owned();
    let refused = served.client.ask(DiffBranch { name }).err();
    Err(refused
        .unwrap_or_else(|| error(Code::Busy, "the branch is being made or mounted right now")))
}
