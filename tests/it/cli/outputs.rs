//! The output of every verb as snapshots: its help, and its output in a story on a tree, where it
//! succeeds, prints nothing, and fails, as text and as JSON. A changed message is in the diff of
//! the commit that changes it (CONTRIBUTING.md explains how to accept one).
//!
//! `outputs/*.story` contain the commands, `outputs/redacted.txt` the parts that vary between runs.
//! A verb without help in the snapshots, or that no story calls, fails the test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use super::support::{Ran, Sandbox};
use crate::common::image::{Fs, Image};
use crate::common::mount_opts::Io;
use crate::common::variant::{Variant, skip};
use ckptfs_cli::verbs;

/// Verbs that run until a signal or draw on a terminal: in the stories they only fail.
const ONLY_FAIL: [&str; 5] = [
    "browse",
    "daemon",
    "remote-reader",
    "serve csi",
    "serve volumes",
];

/// Each runs on a separate tree. The snapshot of a verb contains its calls in both, in this order.
const STORIES: [&str; 2] = ["tree.story", "places.story"];

/// Waits until the daemon has received RELEASE for all written files. Otherwise the next checkpoint
/// would capture more or fewer of them, depending on the load.
const SETTLE: &str = "while stats=$(ckptfs --json status -v 2>/dev/null) && [[ ! $stats =~ '\"open_files\":0,' ]]; do sleep 0.01; done";

/// The snapshots of one test, by name.
type Texts = BTreeMap<String, String>;

/// Calls of verbs: the verb, whether as JSON, and whether it succeeded.
type VerbCalls = BTreeSet<(String, bool, bool)>;

fn here() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/cli"))
}

fn text_of(name: &str) -> String {
    let path = here().join("outputs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the lines of a file without comments.
fn lines_of(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Formats a command with its output and status.
fn shown(command: &str, ran: &Ran, is_json: bool) -> String {
    let json = serde_json::from_str::<serde_json::Value>(&ran.out()).ok();
    let out = json
        .filter(|_| is_json)
        .map_or_else(|| ran.out(), |json| format!("{json:#}"));
    let err: String = ran
        .err()
        .lines()
        .map(|line| format!("{}\n", format!("stderr: {line}").trim_end()))
        .collect();
    let status = match ran.code {
        0 => String::new(),
        code => format!("exit status {code}\n"),
    };
    let end = if out.is_empty() || out.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    format!("$ {command}\n{out}{end}{err}{status}\n")
}

/// Returns the verb that a command calls, by its longest matching name.
fn verb_of<'a>(verbs: &'a [String], command: &str) -> Option<&'a str> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let calls = |verb: &&String| {
        let names: Vec<&str> = verb.split(' ').collect();
        words.starts_with(&names)
    };
    let found = verbs.iter().filter(calls).max_by_key(|verb| verb.len());
    found.map(String::as_str)
}

/// A running story, with the output and calls so far.
struct Story {
    sandbox: Sandbox,
    verbs: Vec<String>,
    dir: String,
    texts: Texts,
    seen: VerbCalls,
}

impl Story {
    fn bash(&self, line: &str) -> Ran {
        let mut bash = self.sandbox.hermetic("bash", &self.dir);
        bash.args(["-c", line]);
        bash.env("CKPTFS_VOLUMES", self.sandbox.path.join("volumes"))
            .env("CKPTFS_REMOTE_PASSWORD", "secret");
        self.sandbox.run(bash)
    }

    fn command(&mut self, command: &str, is_json: bool) {
        let program = if is_json { "ckptfs --json" } else { "ckptfs" };
        let line = format!("{program} {command}");
        let ran = self.bash(&line);
        let verb = verb_of(&self.verbs, command).unwrap_or("ckptfs");
        let top = verb.split(' ').next().unwrap_or(verb).to_owned();
        let text = self.texts.entry(top).or_default();
        text.push_str(&shown(&line, &ran, is_json));
        self.seen.insert((verb.to_owned(), is_json, ran.code == 0));
    }

    /// Runs a story on a new tree in `image`.
    fn told(name: &str, image: &Image) -> Story {
        let mut story = Story {
            sandbox: Sandbox::in_dir(image.path()),
            verbs: verbs(),
            dir: String::new(),
            texts: Texts::new(),
            seen: VerbCalls::new(),
        };
        for line in lines_of(&text_of(name)) {
            story.line(line);
        }
        story
    }

    /// `cd DIR`; `$ COMMAND`, a shell command that must succeed; `= VERB` and `=json VERB`, once;
    /// `+ VERB`, as text and as JSON.
    fn line(&mut self, line: &str) {
        let (what, rest) = line.split_once(' ').expect("a keyword and its argument");
        match what {
            "cd" => self.dir = rest.to_owned(),
            "$" => drop(self.bash(&format!("set -e; {rest}\n{SETTLE}")).ok()),
            "=" => self.command(rest, false),
            "=json" => self.command(rest, true),
            "+" => {
                self.command(rest, false);
                self.command(rest, true);
            }
            _ => panic!("{line}: a line of a story begins with another keyword"),
        }
    }
}

/// Returns the outcomes that the stories lack, for verbs without subcommands.
fn missing(seen: &VerbCalls) -> Vec<String> {
    let verbs = verbs();
    let has_others = |verb: &str| {
        let below = format!("{verb} ");
        verbs.iter().any(|other| other.starts_with(&below))
    };
    let mut missing = Vec::new();
    for verb in verbs.iter().filter(|verb| !has_others(verb)) {
        for (is_json, done) in [(false, true), (true, true), (false, false), (true, false)] {
            let is_wanted = !done || !ONLY_FAIL.contains(&verb.as_str());
            if is_wanted && !seen.contains(&(verb.clone(), is_json, done)) {
                let json = if is_json { "--json " } else { "" };
                let end = if done { "succeeds" } else { "fails" };
                missing.push(format!("`ckptfs {json}{verb}` that {end}"));
            }
        }
    }
    missing
}

/// Compares each text with the snapshot of its name, and lists those that differ.
fn compare(texts: &Texts, kind: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let redacted = text_of("redacted.txt");
    for line in lines_of(&redacted) {
        let (shown, varies) = line
            .split_once('\t')
            .expect("a placeholder, a tab, a regex");
        settings.add_filter(varies, shown);
    }
    let differs = |(name, text): &(&String, &String)| {
        let name = format!("{name}{kind}");
        let check = || settings.bind(|| insta::assert_snapshot!(name, text));
        panic::catch_unwind(AssertUnwindSafe(check)).is_err()
    };
    let differ: Vec<&String> = texts.iter().filter(differs).map(|(name, _)| name).collect();
    assert!(
        differ.is_empty(),
        "the output of {differ:?} has changed (see the diffs above). If the new output is correct, accept it:\n  INSTA_UPDATE=always cargo test --features remote --test it -- cli::outputs"
    );
    let there = fs::read_dir(here().join("snapshots")).expect("snapshots");
    let left: Vec<String> = there
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter_map(|file| Some(file.strip_suffix(".snap")?.to_owned()))
        .filter(|name| name.ends_with(".help") != kind.is_empty())
        .filter(|name| !texts.contains_key(name.trim_end_matches(".help")))
        .collect();
    assert!(
        left.is_empty(),
        "snapshots of verbs that no longer exist: {left:?}"
    );
}

/// Shortens the global options of a verb's help, where they precede `--help`. The program's help
/// lists them in full.
fn without_options_of_all(help: &str) -> String {
    let (own, rest) = help.split_once("  -C <DIR>\n").unwrap_or((help, ""));
    match rest.split_once("  -h, --help\n") {
        Some((_, end)) => format!("{own}  [OPTIONS OF EACH VERB]\n\n  -h, --help\n{end}"),
        None => help.to_owned(),
    }
}

#[test]
fn every_verb_has_the_help_that_is_known() {
    let sandbox = Sandbox::new();
    let mut texts = Texts::new();
    let mut help = |file: &str, words: &str| {
        let arguments: Vec<&str> = words.split(' ').collect();
        let ran = sandbox.ckptfs(&arguments).ok();
        let mut text = shown(&format!("ckptfs {words}"), &ran, false);
        if file != "ckptfs" {
            text = without_options_of_all(&text);
        }
        texts.entry(file.to_owned()).or_default().push_str(&text);
    };
    help("ckptfs", "--help");
    help("ckptfs", "--version");
    for verb in verbs() {
        let top = verb.split(' ').next().unwrap_or(&verb);
        help(top, &format!("{verb} --help"));
    }
    compare(&texts, ".help");
}

#[test]
fn every_verb_prints_what_is_known() {
    let variant = Variant {
        fs: Fs::Xfs,
        io: Io::Passthrough,
    };
    if let Some(reason) = variant.unavailable() {
        return skip(&reason);
    }
    let image = Image::of(variant.fs);
    let told: Vec<Story> = std::thread::scope(|scope| {
        let image = &image;
        let stories = STORIES.map(|name| scope.spawn(move || Story::told(name, image)));
        let told = stories.into_iter().map(|story| story.join());
        told.map(|story| story.expect("the story runs to its end"))
            .collect()
    });
    let (mut texts, mut seen) = (Texts::new(), VerbCalls::new());
    for story in &told {
        for (verb, text) in &story.texts {
            texts.entry(verb.clone()).or_default().push_str(text);
        }
        seen.extend(story.seen.iter().cloned());
    }
    compare(&texts, "");
    let missing = missing(&seen);
    assert!(missing.is_empty(), "outputs/*.story lack {missing:#?}");
}
