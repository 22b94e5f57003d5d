//! `ckptfs man`: the manual, for `make install` and packages.

use std::path::PathBuf;

use clap::{Arg, Command};

use super::Context;
use ckptfs_ui::error::{ErrorContext, Outcome};

/// Write the manual to a directory: ckptfs.1, and a page for each verb
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory, which is created if missing
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub fn run(args: Args, _: &mut Context) -> Outcome {
    std::fs::create_dir_all(&args.dir).on(args.dir.display())?;
    let mut command = super::command().disable_help_subcommand(true);
    command.build();
    let command = with_synopsis(command, "ckptfs");
    Ok(clap_mangen::generate_to(command, &args.dir).on(args.dir.display())?)
}

/// Adds a synopsis with the names of all values, because clap_mangen omits those of options.
fn with_synopsis(command: Command, name: &str) -> Command {
    let shown = |arg: &&Arg| !arg.is_hide_set() && !arg.is_global_set() && arg.get_id() != "help";
    let mut usage = name.to_owned();
    for arg in command
        .get_arguments()
        .filter(|arg| !arg.is_positional())
        .filter(shown)
    {
        usage.push_str(&if arg.is_required_set() {
            format!(" {arg}")
        } else {
            format!(" [{arg}]")
        });
    }
    for arg in command.get_positionals().filter(shown) {
        usage.push_str(&format!(" {arg}"));
    }
    if command.has_subcommands() {
        usage.push_str(" <COMMAND>");
    }
    command.override_usage(usage).mut_subcommands(|verb| {
        let name = format!("{name} {}", verb.get_name());
        with_synopsis(verb, &name)
    })
}
