//! The command line: one file per verb, which parses, asks the daemon and prints.
//!
//! stdout is data and stderr is talk. Exit codes: 0 done, 1 it failed or the answer is no, 2 the
//! command line is wrong, 4 damage was found (docs/cli.md).
//!
//! Start-up is part of a checkpoint's cost: nothing is read and no thread is started before a verb
//! needs it.

mod answering;
mod audit;
mod bisect;
mod branch;
mod by;
mod cat;
mod changes;
mod checkpoint;
mod completion;
mod concepts;
mod config;
mod context;
mod copies;
#[cfg(feature = "csi")]
mod csi;
mod daemon;
mod dedup;
mod delete;
mod diff;
mod doctor;
mod du;
mod error;
mod examples;
mod export;
mod find;
mod findings;
mod fork;
mod freeing;
mod fsck;
mod gc;
mod graph;
mod holder;
mod holders;
mod hook;
mod import;
mod interrupt;
mod launch;
mod locate;
mod log;
mod logging;
mod ls;
mod man;
#[cfg(feature = "mcp")]
mod mcp;
mod merge;
mod metrics;
mod mount;
mod mounts;
mod ops;
mod output;
mod past;
mod patch;
mod pin;
mod progress;
mod prompt;
mod redo;
mod rename;
mod replaced;
mod restore;
mod run;
mod run_at;
mod serving;
mod show;
mod size;
mod stat;
mod stats;
mod status;
mod tag;
mod tar;
mod time;
mod tree_path;
mod trees;
mod umount;
mod undo;
mod unpin;
mod untag;
mod verify;
mod volumes;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use self::context::Context;
use self::error::{Failure, Outcome};
use self::logging::log_to_stderr;
use self::output::{Color, Out};

/// A filesystem that gives a directory instant checkpoints.
#[derive(Debug, Parser)]
#[command(name = "ckptfs", version, max_term_width = 100)]
#[command(after_help = "The words in a page: ckptfs help concepts\n\
    Every verb acts on the mount, or the store, that contains the working directory or DIR of -C.\n\
    Exit status: 0 done, 1 failed or the answer is no, 2 wrong command line, 4 damage found.")]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

/// What every verb understands.
#[derive(Debug, Args)]
struct Global {
    /// Act as if started in DIR
    #[arg(short = 'C', value_name = "DIR", global = true)]
    change_dir: Option<PathBuf>,
    /// Act on this container volume, as with -C and the place where it is mounted; it is mounted
    /// meanwhile if it is not
    #[arg(
        long,
        value_name = "NAME",
        global = true,
        conflicts_with = "change_dir"
    )]
    volume: Option<String>,
    /// Print JSON: data on stdout, an error as one line on stderr
    #[arg(long, global = true)]
    json: bool,
    /// Color the output
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, global = true)]
    color: Color,
}

/// The verbs, and the module of each, whose `Args` clap reads and whose `run` does it.
macro_rules! verbs {
    ($($(#[cfg($condition:meta)])? $(#[command($shown:meta)])? $verb:ident($module:ident),)*) => {
        #[derive(Debug, Subcommand)]
        enum Verb {
            $($(#[cfg($condition)])? $(#[command($shown)])? $verb($module::Args),)*
        }

        fn run(verb: Verb, context: &mut Context) -> Outcome {
            match verb {
                $($(#[cfg($condition)])? Verb::$verb(args) => $module::run(args, context),)*
            }
        }
    };
}

verbs! {
    Mount(mount),
    Umount(umount),
    Checkpoint(checkpoint),
    Status(status),
    Log(log),
    Find(find),
    Tag(tag),
    Untag(untag),
    Rename(rename),
    Pin(pin),
    Unpin(unpin),
    Ls(ls),
    Cat(cat),
    Stat(stat),
    Show(show),
    Diff(diff),
    Restore(restore),
    Merge(merge),
    Run(run),
    Bisect(bisect),
    Branch(branch),
    Delete(delete),
    Du(du),
    Gc(gc),
    Dedup(dedup),
    Ops(ops),
    Undo(undo),
    Redo(redo),
    Export(export),
    Fork(fork),
    Import(import),
    Verify(verify),
    Volumes(volumes),
    #[cfg(feature = "csi")]
    Csi(csi),
    #[cfg(feature = "mcp")]
    Mcp(mcp),
    Fsck(fsck),
    Audit(audit),
    Doctor(doctor),
    Stats(stats),
    Prompt(prompt),
    Config(config),
    Completion(completion),
    #[command(hide = true)]
    Concepts(concepts),
    #[command(hide = true)]
    Man(man),
    #[command(hide = true)]
    Daemon(daemon),
}

/// Runs the program with the process's arguments.
pub fn main() -> ExitCode {
    if completion::answered() {
        return ExitCode::SUCCESS;
    }
    let Cli { global, verb } = parsed();
    let daemon = matches!(verb, Verb::Daemon(_));
    if !daemon {
        log_to_stderr(if is_driver(&verb) { Some("info") } else { None });
    }
    let mut context = Context {
        dir: global.change_dir,
        out: Out::new(global.json, global.color),
    };
    // These say it in their own way, or act on no tree.
    if !matches!(
        verb,
        Verb::Mount(_)
            | Verb::Umount(_)
            | Verb::Daemon(_)
            | Verb::Completion(_)
            | Verb::Man(_)
            | Verb::Prompt(_)
    ) {
        holders::warn_if_below(&context.out);
    }
    let result = match &global.volume {
        Some(name) => volumes::with(name, &mut context, |context| run(verb, context)),
        None => run(verb, &mut context),
    };
    let result = result.and_then(|()| context.out.flush().map_err(Failure::Output));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(&context.out),
    }
}

/// The command line as it is shown.
fn command() -> clap::Command {
    examples::with_examples(Cli::command())
}

/// What was typed; a mistake, or a question for help, ends the process.
fn parsed() -> Cli {
    let mut command = command();
    let matches = command.get_matches_mut();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
}

fn is_driver(verb: &Verb) -> bool {
    match verb {
        Verb::Volumes(args) => args.is_driver(),
        #[cfg(feature = "csi")]
        Verb::Csi(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        super::command().debug_assert();
    }
}
