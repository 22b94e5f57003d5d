//! Completion values that depend on the tree: checkpoints, tags, branches, and past paths.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command, CommandFactory};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter};

use super::super::Cli;
use crate::executor;
use ckptfs_api::{ListBranches, Query, VerbResult};
use ckptfs_sys::Kind;
use ckptfs_ui::locate;
use ckptfs_ui::names;
use ckptfs_ui::output::escape;
use ckptfs_ui::past;
use ckptfs_ui::tree_path::in_tree;

/// Limit of the wait for values while the user types.
const LIMIT: Duration = Duration::from_millis(1500);
/// Maximum number of checkpoints, newest first.
const CHECKPOINTS_MAX: usize = 200;
/// Maximum number of offered names of a directory.
const NAMES_MAX: usize = 2000;

/// Returns the command line with completers for its values. Builds it first, so that every verb has
/// its global arguments.
pub fn command_line() -> Command {
    let mut command = Cli::command();
    command.build();
    with_candidates(command)
}

fn with_candidates(command: Command) -> Command {
    let verb = command.get_name().to_owned();
    command
        .mut_args(|arg| match completer(&verb, &arg) {
            Some(completer) => arg.add(completer),
            None => arg,
        })
        .mut_subcommands(with_candidates)
}

/// Returns the completer of an argument, chosen by verb and value name.
fn completer(verb: &str, arg: &Arg) -> Option<ArgValueCompleter> {
    let name = arg.get_value_names()?.first()?.as_str();
    let of = |find: fn(&[u8]) -> VerbResult<Vec<CompletionValue>>| {
        Some(ArgValueCompleter::new(move |typed: &OsStr| {
            in_time(typed, find)
        }))
    };
    match (verb, name) {
        (_, "ID" | "GOOD" | "BAD") => of(states),
        (_, "A" | "B") => of(states_and_live),
        (_, "ID[:PATH]") => of(states_and_paths),
        ("log", "TAG") => of(tags),
        ("merge", "WHAT") | ("diff" | "drop" | "update" | "mount" | "run", "NAME") => of(branches),
        ("restore", "NAME") => of(dropped),
        ("restore" | "log" | "merge", "PATH" | "PATHS") => of(paths),
        (_, "DIR") => Some(ArgValueCompleter::new(PathCompleter::dir())),
        _ => None,
    }
}

/// A value and its description.
type CompletionValue = (Vec<u8>, String);

/// Returns the values that begin with the typed text. A daemon that hangs must not block a shell,
/// so values that arrive after [`LIMIT`] are discarded.
fn in_time(
    typed: &OsStr,
    find: fn(&[u8]) -> VerbResult<Vec<CompletionValue>>,
) -> Vec<CompletionCandidate> {
    let (tell, told) = mpsc::channel();
    let begin = typed.as_bytes().to_vec();
    let looking = begin.clone();
    let ask = move || {
        // The receiver is gone after a timeout.
        let _ = tell.send(find(&looking));
    };
    if std::thread::Builder::new().spawn(ask).is_err() {
        return Vec::new();
    }
    let found = told.recv_timeout(LIMIT).ok().and_then(Result::ok);
    let offered = |(value, _): &CompletionValue| {
        value.starts_with(&begin) && !value.iter().any(u8::is_ascii_control)
    };
    let candidate = |(value, said): CompletionValue| {
        let said = (!said.is_empty()).then(|| escape(said.as_bytes()).into());
        CompletionCandidate::new(OsString::from_vec(value)).help(said)
    };
    found
        .unwrap_or_default()
        .into_iter()
        .filter(offered)
        .map(candidate)
        .collect()
}

/// Parses the words before the completed one, ignoring errors.
fn typed() -> Option<ArgMatches> {
    let words = std::env::args_os().skip_while(|word| word != "--").skip(1);
    let mut words: Vec<OsString> = words.collect();
    words.pop();
    Cli::command()
        .ignore_errors(true)
        .try_get_matches_from(words)
        .ok()
}

/// Returns the argument of `-C`.
fn dir() -> Option<PathBuf> {
    let typed = typed()?;
    let of = |matches: &ArgMatches| {
        matches
            .try_get_one::<PathBuf>("change_dir")
            .ok()
            .flatten()
            .cloned()
    };
    of(&typed).or_else(|| of(typed.subcommand()?.1))
}

fn tags(_: &[u8]) -> VerbResult<Vec<CompletionValue>> {
    Ok(checkpoints()?.0)
}

/// Returns the tags and the numbers of the checkpoints.
fn checkpoints() -> VerbResult<(Vec<CompletionValue>, Vec<CompletionValue>)> {
    let found = executor::history(dir().as_deref())?.ask(Query {
        limit: Some(CHECKPOINTS_MAX),
        ..Query::default()
    })?;
    let (mut tags, mut numbers) = (Vec::new(), Vec::new());
    for checkpoint in found {
        let said = checkpoint.note.lines().next().unwrap_or_default();
        for tag in &checkpoint.tags {
            let of = format!("checkpoint {}  {said}", checkpoint.id);
            tags.push((tag.clone().into_bytes(), of.trim_end().to_owned()));
        }
        let said = format!("{}  {said}", ckptfs_ui::time::local(&checkpoint.created));
        let number = checkpoint.id.to_string().into_bytes();
        numbers.push((number, said.trim_end().to_owned()));
    }
    Ok((tags, numbers))
}

fn states(_: &[u8]) -> VerbResult<Vec<CompletionValue>> {
    let (mut all, numbers) = checkpoints()?;
    all.push((
        b"latest".to_vec(),
        "the newest one made on request".to_owned(),
    ));
    all.extend(numbers);
    Ok(all)
}

fn states_and_live(begin: &[u8]) -> VerbResult<Vec<CompletionValue>> {
    let mut all = states(begin)?;
    all.push((b"live".to_vec(), "the tree as it is now".to_owned()));
    Ok(all)
}

fn branches(_: &[u8]) -> VerbResult<Vec<CompletionValue>> {
    branches_of(ListBranches::default())
}

fn dropped(_: &[u8]) -> VerbResult<Vec<CompletionValue>> {
    branches_of(ListBranches {
        dropped: true,
        ..ListBranches::default()
    })
}

fn branches_of(list: ListBranches) -> VerbResult<Vec<CompletionValue>> {
    let all = executor::history(dir().as_deref())?.ask(list)?;
    let one = |branch: ckptfs_api::BranchInfo| {
        (branch.name.into_bytes(), branch.path.display().to_string())
    };
    Ok(all.into_iter().map(one).collect())
}

/// States, and after a colon the paths in one.
fn states_and_paths(begin: &[u8]) -> VerbResult<Vec<CompletionValue>> {
    let Some(colon) = begin.iter().position(|byte| *byte == b':') else {
        return states(begin);
    };
    let slash = begin.iter().rposition(|byte| *byte == b'/');
    let place = slash.filter(|slash| *slash > colon).unwrap_or(colon);
    let prefix = begin.get(..=place).unwrap_or_default();
    let found = past::find(dir().as_deref(), OsStr::from_bytes(prefix))?;
    Ok(names(&found, prefix).into_iter().collect())
}

/// Completes paths that exist in the named checkpoint (default: the newest made on request) or in
/// the live tree.
fn paths(begin: &[u8]) -> VerbResult<Vec<CompletionValue>> {
    let id = typed().and_then(|typed| {
        let (_, verb) = typed.subcommand()?;
        verb.try_get_one::<String>("id").ok().flatten().cloned()
    });
    let mut served = locate::served(dir().as_deref())?;
    let place = begin.iter().rposition(|byte| *byte == b'/');
    let prefix = place
        .and_then(|place| begin.get(..=place))
        .unwrap_or_default();
    let path = in_tree(
        &served.root,
        &served.cwd,
        OsStr::from_bytes(if prefix.is_empty() { b"." } else { prefix }).as_ref(),
    )?;
    let past = past::state(&mut served, id.as_deref().unwrap_or("latest")).ok();
    let mut all = BTreeSet::new();
    for state in [past.flatten(), None] {
        let found = past::PathInState::new(&served, state, path.clone())?;
        all.extend(names(&found, prefix));
    }
    Ok(all.into_iter().collect())
}

/// Returns the entries of a directory, each after `prefix`; empty for other files.
fn names(found: &past::PathInState, prefix: &[u8]) -> BTreeSet<CompletionValue> {
    let names = names::names(found).unwrap_or_default();
    let one = |name: Vec<u8>| {
        let is_dir = found
            .tree
            .stat(&names::below(&found.path, &name))
            .is_ok_and(|stat| stat.kind == Kind::Dir);
        let end: &[u8] = if is_dir { b"/" } else { b"" };
        ([prefix, &name, end].concat(), String::new())
    };
    names.into_iter().take(NAMES_MAX).map(one).collect()
}
