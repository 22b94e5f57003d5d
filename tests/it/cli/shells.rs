//! The manual, rendered by man and groff, and completions in real shells.

use std::fs;
use std::path::Path;

use super::support::{Ran, Sandbox};
use crate::common::command::has;
use crate::common::skip;

fn pages(sandbox: &Sandbox) -> Vec<String> {
    sandbox.ckptfs(&["man", "manual"]).ok();
    let mut pages: Vec<String> = fs::read_dir(sandbox.path.join("manual"))
        .expect("the manual")
        .map(|entry| {
            entry
                .expect("entry")
                .file_name()
                .into_string()
                .expect("UTF-8")
        })
        .collect();
    pages.sort();
    pages
}

#[test]
fn every_verb_has_a_page_of_the_manual() {
    if !has("man") || !has("groff") {
        skip("man or groff is not installed");
        return;
    }
    let sandbox = Sandbox::new();
    let pages = pages(&sandbox);
    let verbs = sandbox.verbs();
    assert!(verbs.len() > 30, "{verbs:?}");
    for verb in &verbs {
        assert!(pages.contains(&format!("ckptfs-{verb}.1")), "{verb}");
    }
    for page in [
        "ckptfs.1",
        "ckptfs-branch-create.1",
        "ckptfs-serve-volumes.1",
    ] {
        assert!(pages.contains(&page.to_owned()), "{page} in {pages:?}");
    }
    assert!(!pages.contains(&"ckptfs-daemon.1".to_owned()), "{pages:?}");
    for page in &pages {
        let mut man = sandbox.hermetic("man", "manual");
        man.args(["--warnings=w", "-P", "cat", "-l", page]);
        let ran = sandbox.run(man).ok();
        assert!(ran.err().is_empty(), "{page}: {}", ran.err());
        assert!(ran.out().contains("SYNOPSIS"), "{page}: {}", ran.out());
        let mut groff = sandbox.hermetic("groff", "manual");
        groff.args(["-ww", "-z", "-man", "-Tutf8", page]);
        let ran = sandbox.run(groff).ok();
        assert!(ran.err().is_empty(), "{page}: {}", ran.err());
    }
}

/// A mounted tree with a checkpoint and a deletion since.
fn with_a_past() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.file("p/src/greeting here", "hello from the past\n");
    sandbox.file("p/src/main.rs", "fn main() {}\n");
    sandbox.ckptfs(&["mount", "p"]).ok();
    sandbox
        .ckptfs_in(
            "p",
            &[
                "checkpoint",
                "--tag",
                "before-it-broke",
                "-m",
                "all is well",
            ],
        )
        .ok();
    fs::remove_dir_all(sandbox.path.join("p/src")).expect("rm");
    sandbox
}

/// Types lines into a shell in the tree, and returns the screen contents.
fn typed(sandbox: &Sandbox, shell: &[&str], lines: &[&str]) -> Ran {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/cli/shell.py");
    let mut python = sandbox.hermetic("python3", "p");
    python
        .arg(script)
        .arg(lines.join("\n"))
        .args(shell)
        .env("TERM", "xterm")
        .env("NO_COLOR", "1")
        .env("PS1", "$ ");
    sandbox.run(python).ok()
}

/// Input with tabs, and output of the completed command that was not typed.
const COMPLETED: [(&str, &str); 4] = [
    // A verb and a tag.
    ("ckptfs sho\tbef\t", "all is well"),
    // A directory of the past, and a name with a space.
    (
        "ckptfs show before-it-broke:s\tgre\t",
        "hello from the past",
    ),
    // A path that was deleted.
    ("ckptfs restore before-it-broke -n s\tm\t", "A src/main.rs"),
    // A branch.
    ("ckptfs branch drop -n twi\t", "would drop twig-one"),
];

fn completes(shell: &[&str], register: &str) {
    let sandbox = with_a_past();
    sandbox
        .ckptfs_in("p", &["branch", "create", "twig-one", "--no-git"])
        .ok();
    let lines: Vec<&str> = [register]
        .into_iter()
        .chain(COMPLETED.map(|(line, _)| line))
        .chain(["exit"])
        .collect();
    let screen = typed(&sandbox, shell, &lines).out();
    for (line, said) in COMPLETED {
        assert!(screen.contains(said), "{line:?} in {}: {screen}", shell[0]);
    }
    sandbox.ckptfs(&["umount", "p"]).ok();
}

#[test]
fn bash_completes_what_only_the_tree_knows() {
    if !has("python3") {
        skip("python3 is not installed");
        return;
    }
    completes(
        &["bash", "--norc", "--noprofile", "-i"],
        "source <(ckptfs completion bash)",
    );
}

#[test]
fn zsh_and_fish_do_too() {
    let shells: [(&[&str], &str); 2] = [
        (
            &["zsh", "-f", "-i"],
            "autoload -U compinit; compinit -u -D; source <(ckptfs completion zsh)",
        ),
        (
            &["fish", "--no-config", "-i"],
            "ckptfs completion fish | source",
        ),
    ];
    let missing: Vec<&str> = shells
        .iter()
        .map(|(shell, _)| shell[0])
        .chain(["python3"])
        .filter(|program| !has(program))
        .collect();
    if !missing.is_empty() {
        skip(&format!("not installed: {}", missing.join(", ")));
        return;
    }
    for (shell, register) in shells {
        completes(shell, register);
    }
}

#[test]
fn a_shell_that_asks_where_nothing_is_served_gets_verbs_and_no_errors() {
    let sandbox = Sandbox::new();
    let ask = |shell: &str, words: &[&str]| {
        let mut command = sandbox.command("");
        command
            .args(["--"])
            .args(words)
            .env("CKPTFS_COMPLETE", shell)
            .env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        sandbox.run(command)
    };
    let ran = ask("bash", &["ckptfs", "chec"]);
    assert_eq!(
        (ran.code, ran.out().trim(), ran.err().as_str()),
        (0, "checkpoint", "")
    );
    for words in [
        &["ckptfs", "show", ""][..],
        &["ckptfs", "show", "1:"],
        &["ckptfs", "-C", "gone", "restore", "1", "\u{1b}[31m"],
    ] {
        let ran = ask("fish", words);
        assert_eq!((ran.code, ran.err().as_str()), (0, ""), "{words:?}");
        assert!(!ran.out().contains("Error"), "{words:?}: {}", ran.out());
    }
    let ran = ask("no-shell", &["ckptfs", ""]);
    assert_eq!((ran.code, ran.out().as_str()), (0, ""));
}
