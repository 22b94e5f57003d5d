//! `ckptfs agent`: the hooks that coding agents call around their actions, and their installation
//! (docs/adr/0034-agents.md).

mod agents;
mod event;
mod event_tree;
mod files;
mod hook;
pub mod install;
pub mod labels;
mod prior_checkpoint;
pub mod process;
mod settings;
mod summary;
mod worktree;

use std::process::ExitCode;

use clap::Subcommand;

use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Failure, Outcome};
use ckptfs_ui::output::{Color, Out};

/// Coding agents: let them make checkpoints, so that `ckptfs rewind` can revert their changes
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Add hooks and a skill to an agent's settings, and leave the rest unchanged
    Install(install::Args),
    /// Remove the additions of `install` from an agent's settings
    Uninstall(install::Args),
    /// Show which agents have the hooks
    Status(install::StatusArgs),
    /// Read an agent's event from stdin and act on it; called by the hooks
    Hook(hook::Args),
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    match args.verb {
        Verb::Install(args) => install::run(&args, install::InstallAction::Install, context),
        Verb::Uninstall(args) => install::run(&args, install::InstallAction::Uninstall, context),
        Verb::Status(args) => install::status(&args, context),
        Verb::Hook(args) => hook::run(&args, context),
    }
}

/// Reports whether this process was started as a hook, and not for help.
pub fn is_hook() -> bool {
    let mut arguments = std::env::args_os().skip(1);
    arguments.by_ref().take(2).eq(["agent", "hook"])
        && arguments.all(|argument| argument != "--help" && argument != "-h")
}

/// Runs the program as a hook, without parsing the whole command line, which would take as long as
/// the rest. No error in it may cause status 2, which would forbid the agent's action.
pub fn main() -> ExitCode {
    let mut context = Context {
        dir: None,
        out: Out::new(false, Color::Never),
    };
    let args = hook::Args::of(std::env::args_os().skip(3));
    let done = hook::run(&args, &mut context);
    match done.and_then(|()| context.out.flush().map_err(Failure::Output)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(&context.out),
    }
}
