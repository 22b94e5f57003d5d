//! Verbs of other programs that people type here: git, jj, ZFS, btrfs, snapper.

use clap::error::{ContextKind, ContextValue, ErrorKind};

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
pub fn end(mut error: clap::Error) -> ! {
    let known = (error.kind() == ErrorKind::InvalidSubcommand)
        .then(|| error.get(ContextKind::InvalidSubcommand).and_then(known))
        .flatten();
    let Some((verb, command)) = known else {
        error.exit()
    };
    let suggested = ContextValue::Strings(vec![verb.to_owned()]);
    error.insert(ContextKind::SuggestedSubcommand, suggested);
    // Whoever closed stderr does not want to be told.
    let _ = error.print();
    eprintln!("Hint: here it is: ckptfs {command}");
    std::process::exit(error.exit_code())
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
