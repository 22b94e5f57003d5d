//! Checks that the commands in messages, help and documents can be typed: the help lists the verb,
//! and it has these options.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Arg, Command};

/// Options of the program that precede a verb, and take a value.
const BEFORE_VERB: [&str; 3] = ["-C", "--volume", "--color"];

/// Returns all files below a directory with this extension.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let (mut found, mut pending) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).expect("a directory").flatten() {
            let path = entry.path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found
}

/// Returns the visible text of a source file: without tests, and without comments except help
/// texts.
fn shown(source: &str) -> String {
    let code = source.split("\n#[cfg(test)]\nmod tests {").next();
    let lines = code.unwrap_or_default().lines().map(str::trim_start);
    let lines = lines.filter(|line| !line.starts_with("//") || line.starts_with("///"));
    let lines: Vec<&str> = lines
        .map(|line| line.strip_prefix("/// ").unwrap_or(line))
        .collect();
    lines.join("\n").replace("\\\n", "")
}

/// Returns the error in the first command of a text that begins after `ckptfs `; `marked`: it is a
/// command and not part of a sentence.
fn fault(text: &str, marked: bool, whole: &Command) -> Option<String> {
    let end = text.find(['`', '"', '\'', '\n', ';', '(', ')', '|', '&', '>']);
    let text = text.get(..end.unwrap_or(text.len())).unwrap_or_default();
    let mut words = text.split_whitespace().peekable();
    while let Some(option) = words.next_if(|word| word.starts_with('-')) {
        if BEFORE_VERB.contains(&option) {
            words.next();
        }
    }
    let (mut verb, mut known) = (whole, false);
    for word in words {
        let bare = word.trim_end_matches([',', ':', '.', '?']);
        if bare == "--" || bare.starts_with("{{") {
            break;
        }
        match verb.find_subcommand(bare) {
            // `help concepts` is for users, and a diagram shows the daemon.
            Some(_) if verb.get_name() == "help" || bare == "daemon" => break,
            Some(found) if found.is_hide_set() => return Some(format!("{bare} is hidden")),
            Some(found) => (verb, known) = (found, true),
            None if !known
                && marked
                && bare.starts_with(|char: char| char.is_ascii_lowercase()) =>
            {
                return Some(format!("{bare} is no verb"));
            }
            None if !known => return None,
            None if bare.starts_with('-') && !has(verb, bare) => {
                return Some(format!("{} has no {bare}", verb.get_name()));
            }
            None => {}
        }
        if bare != word {
            break;
        }
    }
    None
}

fn has(verb: &Command, option: &str) -> bool {
    let name = option.split(['=', '{', '[']).next().unwrap_or_default();
    let is_it = |arg: &Arg| match name.strip_prefix("--") {
        Some(long) => {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(long) || aliases.contains(&long)
        }
        None => arg.get_short() == name.chars().nth(1),
    };
    let is_number = name
        .trim_start_matches('-')
        .starts_with(|char: char| char.is_ascii_digit());
    is_number || ["-", "--", "--help", "-h"].contains(&name) || verb.get_arguments().any(is_it)
}

fn faults(text: &str, whole: &Command) -> Vec<String> {
    let begins = text.match_indices("ckptfs ").filter_map(|(at, name)| {
        let before = text.get(..at).unwrap_or_default();
        let is_path =
            before.ends_with(|char: char| char.is_alphanumeric() || "/._-".contains(char));
        let marked = before.ends_with('`') || before.ends_with("$ ");
        let behind = text.get(at + name.len()..)?;
        (!is_path).then_some((behind, marked))
    });
    begins
        .filter_map(|(behind, marked)| {
            let line = behind.lines().next().unwrap_or_default();
            fault(behind, marked, whole).map(|fault| format!("{fault}: ckptfs {line}"))
        })
        .collect()
}

/// Hints named `stat`, `ls`, `fsck` and `dedup`, which the help no longer lists.
#[test]
fn a_command_that_is_shown_can_be_typed() {
    let mut whole = super::command();
    whole.build();
    for (text, is_wrong) in [
        ("`ckptfs stat 1:a` shows it", true),
        ("to see it: ckptfs -C DIR concepts 1:", true),
        ("ckptfs umount --lazily", true),
        ("`ckptfs nosuch`", true),
        ("in ckptfs this is, or ckptfs serves it", false),
        ("ckptfs restore -n latest; ckptfs log --limit=3", false),
        ("ckptfs run -- rm -rf x", false),
    ] {
        assert_eq!(!faults(text, &whole).is_empty(), is_wrong, "{text}");
    }
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut offences = Vec::new();
    let read = |path: &Path| fs::read_to_string(path).expect("a file");
    for path in files(&root.join("src"), "rs") {
        if path.ends_with(file!()) {
            continue;
        }
        let found = faults(&shown(&read(&path)), &whole);
        offences.extend(
            found
                .iter()
                .map(|fault| format!("{}: {fault}", path.display())),
        );
    }
    let (mut pages, others) = (
        files(&root.join("docs"), "md"),
        ["/adr/", "format", "new-users"],
    );
    pages.push(root.join("README.md"));
    pages.retain(|path| {
        !others
            .iter()
            .any(|other| path.to_string_lossy().contains(other))
    });
    for path in &pages {
        let text = read(path);
        // The reference still has sections for hidden verbs.
        let lines = text
            .lines()
            .filter(|line| !line.starts_with("### `ckptfs "));
        let text = lines.collect::<Vec<_>>().join("\n");
        let found = faults(&text, &whole);
        offences.extend(
            found
                .iter()
                .map(|fault| format!("{}: {fault}", path.display())),
        );
    }
    assert!(offences.is_empty(), "{}", offences.join("\n"));
}
