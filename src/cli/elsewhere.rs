//! Verbs of other programs that people type here: git, jj, ZFS, btrfs, snapper.

use clap::Command;
use clap::builder::PossibleValue;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::error::Failure;
use super::output::{Color, Out};
use crate::engine::api::{Code, VerbError};

/// What is typed, the verb that does it here, and the whole command.
const VERBS: &[(&str, &str, &str)] = &[
    ("init", "mount", "mount DIR"),
    ("start", "mount", "mount DIR"),
    ("commit", "checkpoint", "checkpoint -m NOTE"),
    ("save", "checkpoint", "checkpoint -m NOTE"),
    ("snapshot", "checkpoint", "checkpoint -t NAME"),
    ("snap", "checkpoint", "checkpoint -t NAME"),
    ("create", "checkpoint", "checkpoint"),
    ("checkout", "restore", "restore ID [PATHS]"),
    ("reset", "restore", "restore ID"),
    (
        "revert",
        "restore",
        "restore ID, or undo for the last operation",
    ),
    ("abandon", "restore", "restore ID"),
    ("stash", "checkpoint", "checkpoint, then restore ID"),
    (
        "switch",
        "branch",
        "branch run NAME -- CMD, or cd to the directory of the branch",
    ),
    ("worktree", "branch", "branch create NAME"),
    ("new", "branch", "branch create NAME"),
    ("rebase", "branch", "branch update NAME"),
    ("blame", "status", "status --by process, or log PATH"),
    ("annotate", "status", "status --by process, or log PATH"),
    ("op", "ops", "ops"),
    ("reflog", "ops", "ops"),
    ("history", "log", "log"),
    ("list", "log", "log"),
    ("clone", "fork", "fork ID DIR, or branch create NAME"),
    ("hold", "pin", "pin ID"),
    ("release", "pin", "pin -d ID"),
    ("destroy", "delete", "delete ID"),
    ("rm", "delete", "delete ID"),
    ("prune", "gc", "gc"),
    ("send", "export", "export ID DEST"),
    ("receive", "import", "import DIR"),
    ("get", "config", "config show"),
    ("set", "config", "config set KEY VALUE"),
    ("scrub", "verify", "verify --deep"),
    ("check", "verify", "verify"),
];

/// Tells what is wrong with the command line, or the help that was asked for, and ends.
pub fn end(mut error: clap::Error, mut command: Command) -> ! {
    command.build();
    let known = (error.kind() == ErrorKind::InvalidSubcommand)
        .then(|| error.get(ContextKind::InvalidSubcommand).and_then(known))
        .flatten();
    let hint = match known {
        Some((verb, command)) => {
            let suggested = ContextValue::Strings(vec![verb.to_owned()]);
            error.insert(ContextKind::SuggestedSubcommand, suggested);
            Some(["in ckptfs this is: ckptfs ", command].concat())
        }
        None => missing(&error, &command),
    };
    let status = error.exit_code();
    if status != 0 && wants_json() {
        let told = Failure::Verb(as_json(&error, hint));
        told.report(&Out::new(true, Color::Never));
        std::process::exit(status);
    }
    // Whoever closed stderr does not want to be told.
    let _ = error.print();
    if let Some(hint) = hint {
        eprintln!("Hint: {hint}");
    }
    std::process::exit(status);
}

/// `--json` is among what was typed, where a value cannot be meant by it.
fn wants_json() -> bool {
    let typed = std::env::args_os().skip(1);
    typed
        .take_while(|word| word != "--")
        .any(|word| word == "--json")
}

/// The first paragraph of the message, and what clap suggests, or how the verb is called.
fn as_json(error: &clap::Error, hint: Option<String>) -> VerbError {
    let text = error.render().to_string();
    let line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut paragraphs = text.split("\n\n").map(str::trim);
    let first = paragraphs.next().unwrap_or_default();
    // Of a verb that is missing it lists all, hidden ones too.
    let first = first.split(" [subcommands:").next().unwrap_or_default();
    let message = line(first.strip_prefix("error:").unwrap_or(first));
    let tips: Vec<String> = paragraphs
        .clone()
        .flat_map(|paragraph| paragraph.split("tip:").skip(1).map(line))
        .collect();
    let usage = paragraphs.find(|paragraph| paragraph.starts_with("Usage:"));
    let hint = hint
        .or_else(|| (!tips.is_empty()).then(|| tips.join("; ")))
        .or_else(|| usage.map(line));
    VerbError {
        hint,
        ..super::error::error(Code::Usage, message)
    }
}

/// What can stand where something is missing.
fn missing(error: &clap::Error, command: &Command) -> Option<String> {
    let Some(ContextValue::Strings(missing)) = error
        .get(ContextKind::InvalidArg)
        .filter(|_| error.kind() == ErrorKind::MissingRequiredArgument)
    else {
        return None;
    };
    let (mut verb, mut hints) = (command, Vec::new());
    for word in std::env::args_os().skip(1) {
        verb = verb.find_subcommand(&word).unwrap_or(verb);
    }
    for arg in verb.get_arguments() {
        let values: Vec<_> = arg.get_possible_values();
        if !values.is_empty() && missing.contains(&arg.to_string()) {
            let values: Vec<&str> = values.iter().map(PossibleValue::get_name).collect();
            hints.push(format!("{arg} is one of {}", values.join(", ")));
        }
    }
    (!hints.is_empty()).then(|| hints.join("; "))
}

fn known(typed: &ContextValue) -> Option<(&'static str, &'static str)> {
    let ContextValue::String(typed) = typed else {
        return None;
    };
    let found = VERBS.iter().find(|(name, ..)| name == typed)?;
    Some((found.1, found.2))
}

#[cfg(test)]
mod tests {
    use super::VERBS;

    #[test]
    fn what_is_suggested_is_a_verb_and_what_is_typed_is_none() {
        let command = super::super::command();
        for (typed, verb, shown) in VERBS {
            assert!(command.find_subcommand(typed).is_none(), "{typed}");
            assert!(command.find_subcommand(verb).is_some(), "{verb}");
            assert!(shown.starts_with(verb), "{shown}");
        }
    }
}
