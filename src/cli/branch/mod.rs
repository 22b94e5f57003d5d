//! `ckptfs branch`: a file for each of its verbs.

mod conflicts;
mod create;
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
use super::error::{Outcome, hinted};
use super::locate::{self, Served};
use crate::engine::api::{BranchInfo, Code, ListBranches, VerbResult};

/// Branches: writable second trees that begin as a checkpoint of this one
///
/// Each is a directory of its own, mounted by the daemon of its parent: every verb works in it as
/// in any tree.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

/// The verbs, and the module of each, whose `Args` clap reads and whose `run` does it.
macro_rules! verbs {
    ($($verb:ident($module:ident),)*) => {
        #[derive(Debug, Subcommand)]
        enum Verb {
            $($verb($module::Args),)*
        }

        pub fn run(args: Args, context: &mut Context) -> Outcome {
            match args.verb {
                $(Verb::$verb(args) => $module::run(args, context),)*
            }
        }
    };
}

verbs! {
    Create(create),
    Run(run),
    List(list),
    Diff(diff),
    Update(update),
    Conflicts(conflicts),
    Mount(mount),
    Drop(drop),
    Restore(restore),
}

/// A branch by its name, and that it is mounted.
pub fn mounted(name: &str, context: &Context) -> VerbResult<(Served, BranchInfo)> {
    let mut served = locate::served(context.dir())?;
    let all = served.client.ask(ListBranches::default())?;
    let Some(found) = all.into_iter().find(|branch| branch.name == name) else {
        return Err(hinted(
            Code::UnknownBranch,
            format!("there is no branch {name:?}"),
            "`ckptfs branch list` tells of all",
        ));
    };
    if !found.mounted {
        return Err(hinted(
            Code::NotMounted,
            format!("the branch {name} is not mounted"),
            format!(
                "ckptfs branch mount {}",
                crate::engine::word::word(&found.name)
            ),
        ));
    }
    Ok((served, found))
}
