//! The command line: one file per verb, which parses, asks the daemon and prints.
//!
//! stdout is data and stderr is talk. Exit codes: 0 done, 1 it failed or the answer is no, 2 the
//! command line is wrong, 4 damage was found (docs/cli.md).
//!
//! Start-up is part of a checkpoint's cost: nothing is read and no thread is started before a verb
//! needs it.

mod audit;
mod bisect;
mod by;
mod cat;
mod changes;
mod checkpoint;
mod completion;
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
mod mount;
mod mounts;
mod ops;
mod output;
mod past;
mod patch;
mod pin;
mod progress;
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
mod umount;
mod undo;
mod unpin;
mod untag;
mod verify;
mod volumes;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use self::context::Context;
use self::error::{Failure, Outcome};
use self::logging::log_to_stderr;
use self::output::{Color, Out};

/// A filesystem that gives a directory instant checkpoints.
#[derive(Debug, Parser)]
#[command(name = "ckptfs", version, max_term_width = 100)]
#[command(
    after_help = "Every verb acts on the mount, or the store, that contains the working directory or DIR of -C.\n\
    Exit status: 0 done, 1 failed or the answer is no, 2 wrong command line, 4 damage found."
)]
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

#[derive(Debug, Subcommand)]
enum Verb {
    Mount(mount::Args),
    Umount(umount::Args),
    Checkpoint(checkpoint::Args),
    Status(status::Args),
    Log(log::Args),
    Find(find::Args),
    Tag(tag::Args),
    Untag(untag::Args),
    Rename(rename::Args),
    Pin(pin::Args),
    Unpin(unpin::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Stat(stat::Args),
    Show(show::Args),
    Diff(diff::Args),
    Restore(restore::Args),
    Run(run::Args),
    Bisect(bisect::Args),
    Delete(delete::Args),
    Du(du::Args),
    Gc(gc::Args),
    Dedup(dedup::Args),
    Ops(ops::Args),
    Undo(undo::Args),
    Redo(redo::Args),
    Export(export::Args),
    Fork(fork::Args),
    Import(import::Args),
    Verify(verify::Args),
    Volumes(volumes::Args),
    #[cfg(feature = "csi")]
    Csi(csi::Args),
    Fsck(fsck::Args),
    Audit(audit::Args),
    Doctor(doctor::Args),
    Stats(stats::Args),
    Config(config::Args),
    Completion(completion::Args),
    #[command(hide = true)]
    Daemon(daemon::Args),
}

/// Runs the program with the process's arguments.
pub fn main() -> ExitCode {
    let Cli { global, verb } = Cli::parse();
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
        Verb::Mount(_) | Verb::Umount(_) | Verb::Daemon(_) | Verb::Completion(_)
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

fn is_driver(verb: &Verb) -> bool {
    match verb {
        Verb::Volumes(args) => args.is_driver(),
        #[cfg(feature = "csi")]
        Verb::Csi(_) => true,
        _ => false,
    }
}

fn run(verb: Verb, context: &mut Context) -> Outcome {
    match verb {
        Verb::Mount(args) => mount::run(args, context),
        Verb::Umount(args) => umount::run(args, context),
        Verb::Checkpoint(args) => checkpoint::run(args, context),
        Verb::Status(args) => status::run(args, context),
        Verb::Log(args) => log::run(args, context),
        Verb::Find(args) => find::run(args, context),
        Verb::Tag(args) => tag::run(args, context),
        Verb::Untag(args) => untag::run(args, context),
        Verb::Rename(args) => rename::run(args, context),
        Verb::Pin(args) => pin::run(args, context),
        Verb::Unpin(args) => unpin::run(args, context),
        Verb::Ls(args) => ls::run(args, context),
        Verb::Cat(args) => cat::run(args, context),
        Verb::Stat(args) => stat::run(args, context),
        Verb::Show(args) => show::run(args, context),
        Verb::Diff(args) => diff::run(args, context),
        Verb::Restore(args) => restore::run(args, context),
        Verb::Run(args) => run::run(args, context),
        Verb::Bisect(args) => bisect::run(args, context),
        Verb::Delete(args) => delete::run(args, context),
        Verb::Du(args) => du::run(args, context),
        Verb::Gc(args) => gc::run(args, context),
        Verb::Dedup(args) => dedup::run(args, context),
        Verb::Ops(args) => ops::run(args, context),
        Verb::Undo(args) => undo::run(args, context),
        Verb::Redo(args) => redo::run(args, context),
        Verb::Export(args) => export::run(args, context),
        Verb::Fork(args) => fork::run(args, context),
        Verb::Import(args) => import::run(args, context),
        Verb::Verify(args) => verify::run(args, context),
        Verb::Volumes(args) => volumes::run(args, context),
        #[cfg(feature = "csi")]
        Verb::Csi(args) => csi::run(args, context),
        Verb::Fsck(args) => fsck::run(args, context),
        Verb::Audit(args) => audit::run(args, context),
        Verb::Doctor(args) => doctor::run(args, context),
        Verb::Stats(args) => stats::run(args, context),
        Verb::Config(args) => config::run(args, context),
        Verb::Completion(args) => completion::run(args, context),
        Verb::Daemon(args) => daemon::run(args),
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
