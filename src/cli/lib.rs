//! The command line: one file per verb, which parses, sends requests to the daemon and prints.
//!
//! stdout is for data and stderr for messages. Exit status: 0 success, 1 failure or negative
//! result, 2 wrong command line, 4 damage found (docs/cli.md).
//!
//! Start-up is part of a checkpoint's cost: nothing is read and no thread is started before a verb
//! needs it.

// A build with fewer features may omit the users of an item.
#![cfg_attr(
    not(all(feature = "csi", feature = "mcp", feature = "remote")),
    allow(dead_code, unused_imports)
)]

mod agent;
mod audit;
mod bisect;
mod branch;
mod browse;
mod caches;
mod checkpoint;
mod completion;
mod concepts;
mod config;
mod control_socket;
#[cfg(feature = "csi")]
mod csi;
mod daemon;
mod dead_mounts;
mod dedup;
mod delete;
mod detached;
mod diff;
mod doctor;
mod du;
mod examples;
mod executor;
mod export;
mod export_common;
mod find;
mod findings;
mod foreign_verbs;
mod fork;
mod freeing;
mod gc;
mod git_guard;
mod hang_watch;
mod holder;
mod hook;
mod import;
mod launch;
mod log;
mod logging;
mod man;
#[cfg(feature = "mcp")]
mod mcp;
mod merge;
mod more;
mod mount;
mod mount_users;
mod nested;
mod ops;
mod origin;
mod pin;
mod prompt;
mod redo;
#[cfg(feature = "remote")]
mod remote;
mod remotes;
mod restore;
mod restore_target;
mod retention_preview;
mod rewind;
mod run;
mod run_at;
mod satellite;
mod serve;
mod serving;
mod show;
mod size;
mod stale_handles;
mod stats;
mod status;
mod tag;
mod tar;
mod transient_users;
mod trees;
mod umount;
mod undo;
mod verb_runner;
mod verify;
mod volumes;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use self::logging::log_to_stderr;
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{Failure, Outcome};
use ckptfs_ui::output::{Color, Out};

/// The verbs of remotes in [`HELP`], if built in.
#[cfg(feature = "remote")]
macro_rules! remote_verbs {
    () => {
        "  push        Send checkpoints to a remote, or one to a registry as an image
  pull        Fetch a checkpoint from there into a new directory
  remote      Name the places that checkpoints are pushed to; list what is there
"
    };
}
#[cfg(not(feature = "remote"))]
macro_rules! remote_verbs {
    () => {
        ""
    };
}

/// Output of `ckptfs --help`, because clap does not support groups of verbs.
const HELP: &str = concat!(
    "\
{about}

Usage: {usage}

Start
  mount       Serve a directory with checkpoints, from a daemon in the background
  umount      Unmount; an ordinary directory is left, with the history beside it
  checkpoint  Freeze the state of the tree; prints the new checkpoint's number
  status      Show what is mounted and what changed since the newest checkpoint

Look
  log         List checkpoints, or every version of one path, newest first
  show        Show a checkpoint, or a file or directory as it was
  diff        List what changed between two states, or print it as a patch
  browse      Look through the history on the whole terminal, and go back

Go back
  restore     Bring the tree, or some paths of it, back to an earlier state
  undo        Undo the last operations: restores, merges, deletions, tags, pins
  rewind      Take back what an agent did since a prompt, and nothing else
  run         Run a command protected by a checkpoint, or in the past

Branches
  branch      Writable second trees that start from a checkpoint of this one
  merge       Merge what a branch changed

Keep
  tag         Name checkpoints, remove, rename or list their tags
  pin         Protect a checkpoint from being deleted
  delete      Delete a checkpoint
  gc          Thin out the history by rules, and free what no checkpoint needs

Agents
  agent       Have coding agents make checkpoints, for `rewind`

Elsewhere
  export      Copy a checkpoint to a directory, or as a tar stream to stdout
  import      Bring existing directories, and series of snapshots, into a tree
",
    remote_verbs!(),
    "
Administration
  verify      Look for damage in the history, and repair it
  help        Print this, or the help of a verb

More (ckptfs help more)
  bisect, completion, config, doctor, du, fork, mcp, ops, prompt, redo, serve

Options:
{options}{after-help}"
);

/// A filesystem that gives a directory instant checkpoints.
#[derive(Debug, Parser)]
#[command(name = "ckptfs", version, max_term_width = 100, help_template = HELP)]
#[command(after_help = "The words in a page: ckptfs help concepts\n\
    Every verb acts on the mount, or the store, that contains the working directory or DIR of -C.\n\
    Exit status: 0 done, 1 failed or the answer is no, 2 wrong command line, 4 damage found.")]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

/// Options of all verbs.
#[derive(Debug, Args)]
struct Global {
    /// Run as if started in DIR
    #[arg(short = 'C', value_name = "DIR", global = true, display_order = 900)]
    change_dir: Option<PathBuf>,
    /// Act on this container volume, and mount it if necessary
    #[arg(
        long,
        value_name = "NAME",
        global = true,
        display_order = 901,
        conflicts_with = "change_dir"
    )]
    volume: Option<String>,
    /// Print JSON: data to stdout, an error as one line to stderr
    #[arg(long, global = true, display_order = 902)]
    json: bool,
    /// Color the output
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value_t,
        global = true,
        display_order = 903
    )]
    color: Color,
    /// Do not use a pager (CKPTFS_PAGER, PAGER, less)
    #[arg(long, global = true, display_order = 904)]
    no_pager: bool,
}

/// Defines the verbs by their modules, each with `Args` for clap and a function `run`.
macro_rules! verbs {
    ($($(#[cfg($condition:meta)])? $(#[command($shown:meta)])? $verb:ident($($module:ident)::+),)*) => {
        // The arguments of a verb are built only when that verb is used: the start of a process is
        // most of the cost of a checkpoint.
        #[derive(Debug, Subcommand)]
        #[command(defer = true)]
        enum Verb {
            $($(#[cfg($condition)])? $(#[command($shown)])? $verb($($module)::+::Args),)*
        }

        fn run(verb: Verb, context: &mut Context) -> Outcome {
            match verb {
                $($(#[cfg($condition)])? Verb::$verb(args) => $($module)::+::run(args, context),)*
            }
        }
    };
}

verbs! {
    Mount(mount),
    #[command(visible_alias = "unmount")]
    Umount(umount),
    Checkpoint(checkpoint),
    #[command(visible_alias = "st")]
    Status(status),
    Log(log),
    Tag(tag),
    Pin(pin),
    Show(show),
    Diff(diff),
        Browse(browse),
    #[command(visible_alias = "rollback")]
    Restore(restore),
    Rewind(rewind),
    Merge(merge),
    Run(run),
    Bisect(bisect),
    Branch(branch),
    Delete(delete),
    Du(du),
    Gc(gc),
    Ops(ops),
    Undo(undo),
    Redo(redo),
    Export(export),
    Fork(fork),
    Import(import),
    #[cfg(feature = "remote")]
    Remote(remote),
    #[cfg(feature = "remote")]
    Push(remote::push),
    #[cfg(feature = "remote")]
    Pull(remote::pull),
    #[cfg(feature = "remote")]
    #[command(hide = true)]
    RemoteReader(remote::reader),
    Verify(verify),
    Serve(serve),
    Volumes(volumes),
    #[cfg(feature = "mcp")]
    Mcp(mcp),
    Doctor(doctor),
    Prompt(prompt),
    Config(retention_preview),
    Agent(agent),
    Completion(completion),
    #[command(hide = true)]
    Concepts(concepts),
    #[command(hide = true)]
    More(more),
    #[command(hide = true)]
    Man(man),
    #[command(hide = true)]
    Daemon(daemon),
}

/// Runs the program with the process's arguments.
pub fn main() -> ExitCode {
    if agent::is_hook() {
        return agent::main();
    }
    if prompt::is_plain() {
        return prompt::main();
    }
    if completion::answered() {
        return ExitCode::SUCCESS;
    }
    let Cli { global, verb } = parsed();
    let daemon = matches!(verb, Verb::Daemon(_));
    if !daemon {
        log_to_stderr(if matches!(verb, Verb::Serve(_)) {
            Some("info")
        } else {
            None
        });
    }
    let mut context = Context {
        dir: global.change_dir,
        out: Out::new(global.json, global.color).with_pager(!global.no_pager),
    };
    if !goes_on(&verb) {
        hang_watch::watch(&context.out, context.dir());
    }
    // These warn by themselves, or act on no tree.
    if !matches!(
        verb,
        Verb::Mount(_)
            | Verb::Umount(_)
            | Verb::Daemon(_)
            | Verb::Completion(_)
            | Verb::Man(_)
            | Verb::Prompt(_)
            | Verb::Agent(_)
    ) {
        mount_users::warn_if_below(&context.out);
    }
    let result = match &global.volume {
        Some(name) => volumes::with(name, &mut context, |context| run(verb, context)),
        None => run(verb, &mut context),
    };
    let result = result.and_then(|()| context.out.flush().map_err(Failure::Output));
    context.out.end_page();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(&context.out),
    }
}

/// Reports whether this program has a verb.
fn has_verb(name: &str) -> bool {
    Cli::command().find_subcommand(name).is_some()
}

/// Returns the command line with examples.
fn command() -> clap::Command {
    examples::with_examples(Cli::command())
}

/// Returns the names of all verbs, including hidden ones, with their parents: `branch create`.
pub fn verbs() -> Vec<String> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut found = Vec::new();
    let mut pending = vec![(String::new(), &command)];
    while let Some((above, command)) = pending.pop() {
        for verb in command.get_subcommands() {
            let name = [&above, verb.get_name()].concat();
            pending.push(([&name, " "].concat(), verb));
            found.push(name);
        }
    }
    found.sort();
    found
}

/// Parses the command line; a mistake, or a request for help, ends the process. Examples are added
/// only for help, because start-up is part of the cost of a checkpoint.
fn parsed() -> Cli {
    let typed = |mut command: clap::Command| {
        let matches = command.try_get_matches_from_mut(std::env::args_os())?;
        Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    };
    let is_help = |error: &clap::Error| error.kind() == ErrorKind::DisplayHelp;
    match typed(Cli::command()) {
        Err(error) if is_help(&error) => typed(command()),
        typed => typed,
    }
    .unwrap_or_else(|error| foreign_verbs::end(error, Cli::command()))
}

/// Reports whether a verb runs until it is ended; such a verb mostly waits for requests.
fn goes_on(verb: &Verb) -> bool {
    match verb {
        Verb::Daemon(_) => true,
        #[cfg(feature = "remote")]
        Verb::RemoteReader(_) => true,
        Verb::Browse(_) => true,
        #[cfg(feature = "mcp")]
        Verb::Mcp(_) => true,
        _ => matches!(verb, Verb::Serve(_)),
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(all(test, feature = "remote"))]
mod shown_commands;
#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        super::command().debug_assert();
    }

    #[test]
    fn the_help_has_every_verb_but_hidden_ones_and_volumes() {
        for verb in super::command().get_subcommands() {
            let name = verb.get_name();
            let told = [super::HELP, "\n", super::more::VERBS].concat();
            let is_told = told.contains(&format!("\n  {name} "));
            let is_named = super::HELP.contains(&format!("\n  {name} "))
                || super::HELP.lines().any(|line| {
                    line.contains(", ") && line.trim().split(", ").any(|word| word == name)
                });
            assert_eq!(is_told, is_named, "{name}");
            let is_for_people = !verb.is_hide_set() && name != "volumes";
            assert_eq!(is_told, is_for_people, "{name}");
        }
    }
}
