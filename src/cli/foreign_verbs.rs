//! Suggestions for verbs of other programs: git, jj, ZFS, btrfs, snapper.

use clap::Command;
use clap::builder::PossibleValue;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use ckptfs_api::{Code, VerbError};
use ckptfs_ui::error::Failure;
use ckptfs_ui::output::{Color, Out};

/// A verb of another program, the verb of this one, and the whole command.
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
    ("remove", "delete", "delete ID"),
    ("forget", "delete", "delete ID, or gc to delete by rules"),
    ("prune", "gc", "gc"),
    ("info", "status", "status"),
    ("watch", "status", "status, or log"),
    ("usage", "du", "du"),
    ("backup", "export", "export ID DEST"),
    ("volume", "volumes", "volumes"),
    ("send", "export", "export ID DEST"),
    ("receive", "import", "import DIR"),
    ("get", "config", "config show"),
    ("set", "config", "config set KEY VALUE"),
    ("scrub", "verify", "verify --deep"),
    ("fsck", "verify", "verify, or verify --repair"),
    ("dedup", "gc", "gc --dedup"),
    ("stats", "status", "status -v"),
    ("audit", "ops", "ops --all"),
    (
        "find",
        "log",
        "log --tag, --note, --author, --since or --changed",
    ),
    ("cat", "show", "show ID:FILE"),
    ("ls", "show", "show ID:DIR"),
    ("stat", "show", "show -l ID:PATH"),
    ("untag", "tag", "tag -d TAG"),
    ("rename", "tag", "tag -m OLD NEW"),
    ("csi", "serve", "serve csi"),
    ("unpin", "pin", "pin -d ID"),
    ("check", "verify", "verify"),
    ("version", "", "--version"),
    ("branch merge", "merge", "merge NAME"),
];

/// A word below a verb that has subcommands, and its equivalents: the first that exists is
/// suggested.
const BELOW: &[(&str, &[&str])] = &[
    ("rm", &["remove", "drop", "delete"]),
    ("remove", &["rm", "drop", "delete"]),
    ("delete", &["remove", "drop", "rm"]),
    ("list", &["ls", "show"]),
    ("ls", &["list", "show"]),
    ("show", &["list", "ls"]),
    ("get", &["show"]),
    ("new", &["create", "add"]),
    ("create", &["add"]),
    ("add", &["create", "set"]),
];

/// Prints the error of the command line, or the requested help, and exits.
pub fn end(mut error: clap::Error, mut command: Command) -> ! {
    command.build();
    let known = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(typed)) if error.kind() == ErrorKind::InvalidSubcommand => {
            let typed = typed.clone();
            known(&typed, &above(&error), &command)
        }
        _ => None,
    };
    let hint = match known {
        Some((verb, shown)) => {
            suggest(&mut error, vec![verb]);
            Some(["in ckptfs this is: ckptfs ", &shown].concat())
        }
        None => {
            let shown = suggested(&error, &command);
            suggest(&mut error, shown);
            missing(&error, &command)
        }
    };
    let status = error.exit_code();
    if status != 0 && wants_json() {
        let told = Failure::Verb(as_json(&error, hint));
        told.report(&Out::new(true, Color::Never));
        std::process::exit(status);
    }
    // stderr may be closed.
    let _ = error.print();
    if let Some(hint) = hint {
        eprintln!("Hint: {hint}");
    }
    std::process::exit(status);
}

/// Returns the verbs that clap found similar and that its help lists.
fn suggested(error: &clap::Error, command: &Command) -> Vec<String> {
    let Some(ContextValue::Strings(similar)) = error.get(ContextKind::SuggestedSubcommand) else {
        return Vec::new();
    };
    let Some(group) = group(&above(error), command) else {
        return Vec::new();
    };
    let shown = |verb: &&String| {
        group
            .find_subcommand(verb)
            .is_some_and(|verb| !verb.is_hide_set())
    };
    similar.iter().filter(shown).cloned().collect()
}

/// Replaces the verbs that clap suggests.
fn suggest(error: &mut clap::Error, verbs: Vec<String>) {
    error.remove(ContextKind::SuggestedSubcommand);
    let verbs: Vec<String> = verbs.into_iter().filter(|verb| !verb.is_empty()).collect();
    if !verbs.is_empty() {
        error.insert(
            ContextKind::SuggestedSubcommand,
            ContextValue::Strings(verbs),
        );
    }
}

/// Reports whether `--json` is on the command line, before any `--`.
fn wants_json() -> bool {
    let typed = std::env::args_os().skip(1);
    typed
        .take_while(|word| word != "--")
        .any(|word| word == "--json")
}

/// Converts an error of clap: the message is its first paragraph, the hint its tips, or the usage.
fn as_json(error: &clap::Error, hint: Option<String>) -> VerbError {
    let text = error.render().to_string();
    let line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut paragraphs = text.split("\n\n").map(str::trim);
    let first = paragraphs.next().unwrap_or_default();
    // For a missing verb it lists all, including hidden ones.
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
        ..ckptfs_ui::error::error(Code::Usage, message)
    }
}

/// Returns the possible values of the missing arguments.
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

/// Returns the verbs before an unknown word, from the usage.
fn above(error: &clap::Error) -> Vec<String> {
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else {
        return Vec::new();
    };
    let usage = usage.to_string();
    let words = usage.split_whitespace().skip(2);
    words
        .take_while(|word| word.starts_with(|first: char| first.is_ascii_lowercase()))
        .map(str::to_owned)
        .collect()
}

/// Returns the verb for `typed` below these verbs, and the whole command.
fn known(typed: &str, above: &[String], command: &Command) -> Option<(String, String)> {
    let whole = [above, &[typed.to_owned()]].concat().join(" ");
    if let Some((_, verb, shown)) = VERBS.iter().find(|(name, ..)| *name == whole) {
        return Some(((*verb).to_owned(), (*shown).to_owned()));
    }
    let group = group(above, command).filter(|_| !above.is_empty())?;
    let (_, others) = BELOW.iter().find(|(name, _)| *name == typed)?;
    let found = others.iter().find_map(|other| group.find_subcommand(other));
    let verb = found?.get_name().to_owned();
    let shown = format!("{} {verb}", above.join(" "));
    Some((verb, shown))
}

/// Returns the verb at the end of this path.
fn group<'a>(above: &[String], command: &'a Command) -> Option<&'a Command> {
    above
        .iter()
        .try_fold(command, |group, word| group.find_subcommand(word))
}

#[cfg(test)]
mod tests {
    use super::VERBS;

    #[test]
    fn what_is_suggested_is_a_verb_and_what_is_typed_is_none() {
        let mut command = super::super::command();
        command.build();
        for (typed, verb, shown) in VERBS {
            let way: Vec<String> = typed.split(' ').map(str::to_owned).collect();
            assert!(super::group(&way, &command).is_none(), "{typed}");
            let is_shown = |verb| {
                command
                    .find_subcommand(verb)
                    .is_some_and(|verb| !verb.is_hide_set())
            };
            assert!(is_shown(verb) || shown.starts_with("--"), "{verb}");
            assert!(shown.starts_with(verb), "{shown}");
        }
    }

    /// For `remove`, clap suggested `more`, `rename` and others that the help does not list.
    #[test]
    fn no_hidden_verb_is_suggested() {
        let mut command = super::super::command();
        command.build();
        for typed in ["renam", "untags", "mor", "fsc", "stats2"] {
            let mut error = command
                .clone()
                .try_get_matches_from(["ckptfs", typed])
                .unwrap_err();
            let shown = super::suggested(&error, &command);
            super::suggest(&mut error, shown);
            let text = error.render().to_string();
            for hidden in command.get_subcommands().filter(|verb| verb.is_hide_set()) {
                let name = format!("'{}'", hidden.get_name());
                assert!(!text.contains(&name), "{text}");
            }
        }
    }

    /// For `remote rm` the suggestion was `delete ID`, which deletes a checkpoint.
    #[test]
    fn below_a_verb_its_own_verbs_are_meant() {
        let mut command = super::super::command();
        command.build();
        let hint = |line: &[&str]| {
            let (typed, above) = line.split_last().expect("a word");
            let above: Vec<String> = above.iter().map(|word| (*word).to_owned()).collect();
            super::known(typed, &above, &command).map(|(_, shown)| shown)
        };
        for (line, shown) in [
            (&["rm"] as &[&str], "delete ID"),
            #[cfg(feature = "remote")]
            (&["remote", "rm"], "remote remove"),
            (&["config", "list"], "config show"),
            (&["branch", "new"], "branch create"),
        ] {
            assert_eq!(hint(line).as_deref(), Some(shown), "{line:?}");
        }
        assert_eq!(hint(&["config", "stash"]), None);
        let typed = ["ckptfs", "config", "list"];
        let error = command.clone().try_get_matches_from(typed).unwrap_err();
        assert_eq!(super::above(&error), ["config"]);
    }
}
