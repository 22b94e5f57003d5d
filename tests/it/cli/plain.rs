//! Commands without a mount: the command line itself, and errors before any daemon is contacted.

use super::support::Sandbox;

const VERBS: [&str; 26] = [
    "mount",
    "umount",
    "checkpoint",
    "status",
    "prompt",
    "config",
    "log",
    "show",
    "diff",
    "restore",
    "rewind",
    "merge",
    "delete",
    "pin",
    "ops",
    "undo",
    "redo",
    "du",
    "gc",
    "export",
    "fork",
    "import",
    "verify",
    "doctor",
    "mcp",
    "completion",
];

#[test]
fn every_verb_has_help_and_is_in_the_overview() {
    let sandbox = Sandbox::new();
    let told = sandbox.verbs();
    for verb in VERBS {
        assert!(told.iter().any(|told| told == verb), "{verb} in {told:?}");
        for help in ["--help", "-h"] {
            let ran = sandbox.ckptfs(&[verb, help]).ok();
            assert!(
                ran.out().contains(&format!("Usage: ckptfs {verb}")),
                "{}",
                ran.out()
            );
            assert!(
                ran.out().contains("--json") && ran.err().is_empty(),
                "{}",
                ran.out()
            );
        }
    }
    assert!(
        !told.contains(&"daemon".to_owned()),
        "it is not a command for users"
    );
}

#[test]
fn the_reference_has_every_verb_with_every_flag_and_no_other() {
    let sandbox = Sandbox::new();
    let reference = include_str!("../../../docs/cli.md");
    let global = flags(&sandbox.ckptfs(&["--help"]).ok().out());
    for verb in VERBS {
        let heading = format!("\n### `ckptfs {verb}");
        let section = reference
            .split(&heading)
            .nth(1)
            .unwrap_or_else(|| panic!("{verb} has no section"));
        let section = section
            .split("\n### ")
            .next()
            .and_then(|section| section.split("\n## ").next())
            .expect("a section");
        let help = sandbox.ckptfs(&[verb, "--help"]).ok().out();
        let mut wanted = flags(help.split("\nExamples:").next().expect("help"));
        wanted.retain(|flag| !global.contains(flag));
        let table = section
            .lines()
            .filter(|line| line.starts_with("| `-"))
            .collect::<Vec<_>>()
            .join("\n");
        assert_eq!(flags(&table), wanted, "{verb}");
    }
}

/// Returns the long options in a text, sorted.
fn flags(text: &str) -> Vec<String> {
    let words = text.split(|char: char| !(char.is_ascii_lowercase() || char == '-'));
    let mut flags: Vec<String> = words
        .filter(|word| word.starts_with("--") && word.len() > 3)
        .map(str::to_owned)
        .collect();
    flags.sort();
    flags.dedup();
    flags
}

#[test]
fn a_wrong_command_line_is_status_2_and_says_what_is_wrong() {
    let sandbox = Sandbox::new();
    let cases: [(&[&str], &str); 8] = [
        (&[], "Usage: ckptfs"),
        (&["chekpoint"], "'checkpoint'"),
        (&["fly"], "unrecognized subcommand 'fly'"),
        (
            &["commit", "-m", "x"],
            "Hint: in ckptfs this is: ckptfs checkpoint -m NOTE\n",
        ),
        (&["mount"], "<DIR>"),
        (&["delete"], "<ID>"),
        (&["checkpoint", "--tagg", "v1"], "'--tag'"),
        (
            &["mount", "x", "--io", "fast"],
            "[possible values: auto, passthrough, daemon]",
        ),
    ];
    for (args, said) in cases {
        let ran = sandbox.ckptfs(args);
        assert_eq!((ran.code, ran.out().as_str()), (2, ""), "{args:?}");
        assert!(ran.err().contains(said), "{args:?}: {}", ran.err());
    }
}

#[test]
fn options_of_dedup_are_for_dedup_alone() {
    let sandbox = Sandbox::new();
    for wrong in [
        &["gc", "--live"][..],
        &["gc", "--with", "x"],
        &["gc", "--threads", "2"],
        &["gc", "--min-size", "1"],
        &["gc", "--dedup", "--keep-last", "1"],
    ] {
        let ran = sandbox.ckptfs(wrong);
        assert_eq!(
            (ran.code, ran.out().as_str()),
            (2, ""),
            "{wrong:?}: {}",
            ran.err()
        );
    }
}

#[test]
fn version_is_data() {
    let version = concat!("ckptfs ", env!("CARGO_PKG_VERSION"), "\n");
    Sandbox::new().ckptfs(&["--version"]).is(0, version, "");
}

#[test]
fn nothing_mounted_is_said_by_every_verb_that_needs_a_daemon() {
    let sandbox = Sandbox::new();
    let verbs: [&[&str]; 12] = [
        &["checkpoint"],
        &["status"],
        &["log"],
        &["show", "1"],
        &["diff", "1"],
        &["restore", "1"],
        &["delete", "1"],
        &["pin", "1"],
        &["undo"],
        &["redo"],
        &["verify"],
        &["ops", "--all"],
    ];
    for verb in verbs {
        sandbox.ckptfs(verb).is(
            1,
            "",
            "Error: [DIR] is not inside a directory mounted by ckptfs\nHint: ckptfs mount DIR\n",
        );
    }
    let hint = "Hint: name the mount: ckptfs umount DIR\n";
    sandbox.ckptfs(&["umount"]).is(
        1,
        "",
        &format!("Error: [DIR] is not inside a directory mounted by ckptfs\n{hint}"),
    );
    sandbox
        .ckptfs(&["umount", "out"])
        .is(1, "", "Error: out is not mounted by ckptfs\n");
    sandbox
        .ckptfs(&["umount", "gone"])
        .is(1, "", "Error: gone is not mounted by ckptfs\n");
}

#[test]
fn errors_are_one_line_of_json_on_stderr_if_asked() {
    let ran = Sandbox::new().ckptfs(&["status", "--json"]);
    let expected = r#"{"error":{"code":"not-mounted","message":"[DIR] is not inside a directory mounted by ckptfs","hint":"ckptfs mount DIR"}}"#;
    ran.is(1, "", &format!("{expected}\n"));
}

#[test]
fn a_history_without_daemon_is_recognised_from_below() {
    let sandbox = Sandbox::new();
    sandbox.file("p/.ckptfs/format", "not read");
    sandbox.file("p/src/a", "");
    let expected = "Error: [DIR]/p has a history but is not mounted\nHint: ckptfs mount [DIR]/p\n";
    sandbox
        .ckptfs_in("p/src", &["checkpoint"])
        .is(1, "", expected);
    sandbox.ckptfs(&["-C", "p", "status"]).is(1, "", expected);
}

#[test]
fn a_bad_directory_is_named() {
    let sandbox = Sandbox::new();
    sandbox.file("file", "");
    sandbox
        .ckptfs(&["mount", "file"])
        .is(1, "", "Error: file is not a directory\n");
    sandbox
        .ckptfs(&["mount", "gone"])
        .is(1, "", "Error: gone does not exist\nHint: mkdir gone\n");
    sandbox.ckptfs(&["mount", "out", "gone"]).is(
        1,
        "",
        "Error: gone does not exist\nHint: mkdir gone\n",
    );
    sandbox
        .ckptfs(&["mount", "file/x"])
        .is(1, "", "Error: file/x: Not a directory\n");
    sandbox
        .ckptfs(&["-C", "file", "log"])
        .is(1, "", "Error: file is not a directory\n");
    sandbox
        .ckptfs(&["-C", "gone", "log"])
        .is(1, "", "Error: gone: No such file or directory\n");
}

#[test]
fn a_mountpoint_inside_of_the_tree_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.file("p/sub/file", "");
    let message = "the mountpoint [DIR]/p/sub is inside [DIR]/p: the tree would contain itself";
    let hint = "mount it in place: ckptfs mount [DIR]/p";
    sandbox.ckptfs(&["mount", "p", "p/sub"]).is(
        1,
        "",
        &format!("Error: {message}\nHint: {hint}\n"),
    );
}

#[test]
fn a_store_that_is_no_directory_is_refused_and_left_alone() {
    let sandbox = Sandbox::new();
    sandbox.file("p/.ckptfs", "mine");
    let expected = "Error: [DIR]/p/.ckptfs is not a directory\nHint: the history is stored under this name: move it out of the way\n";
    sandbox.ckptfs(&["mount", "p"]).is(1, "", expected);
    assert_eq!(
        std::fs::read_to_string(sandbox.path.join("p/.ckptfs")).expect("it still exists"),
        "mine"
    );
}

#[test]
fn completions_are_made_for_every_shell() {
    let sandbox = Sandbox::new();
    for (shell, said) in [
        ("bash", "-F _ckptfs ckptfs"),
        ("zsh", "#compdef ckptfs"),
        ("fish", "--command ckptfs"),
        ("elvish", "edit:"),
        ("powershell", "Register-"),
    ] {
        let ran = sandbox.ckptfs(&["completion", shell]).ok();
        assert!(
            ran.out().contains(said) && ran.out().contains("CKPTFS_COMPLETE"),
            "{shell}"
        );
    }
    assert_eq!(sandbox.ckptfs(&["completion", "csh"]).code, 2);
}

#[test]
fn doctor_looks_at_a_directory_and_leaves_nothing_in_it() {
    let sandbox = Sandbox::new();
    sandbox.file("p/a", "");
    let ran = sandbox.ckptfs(&["doctor", "p", "--json"]);
    let report = ran.json();
    assert_eq!(report["ok"], ran.code == 0);
    let checks: Vec<&str> = report["findings"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|finding| finding["check"].as_str())
        .collect();
    for check in [
        "mounted",
        "filesystem",
        "reflink",
        "store",
        "fuse",
        "kernel",
        "passthrough",
        "privileges",
        "stale mounts",
        "xattrs",
    ] {
        assert!(checks.contains(&check), "{check} in {checks:?}");
    }
    assert_eq!(
        std::fs::read_dir(sandbox.path.join("p"))
            .expect("list")
            .count(),
        1
    );
    let ran = sandbox.ckptfs(&["doctor", "gone"]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.out().contains("FAIL  directory") && ran.out().ends_with("gone cannot be mounted\n"),
        "{}",
        ran.out()
    );
}

#[test]
fn a_closed_pipe_is_no_error() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.hermetic("bash", "");
    command.args(["-c", "set -o pipefail; ckptfs completion bash | head -1"]);
    let ran = sandbox.run(command);
    assert_eq!(
        (ran.code, ran.out().as_str(), ran.err().as_str()),
        (0, "_ckptfs() {\n", "")
    );
}

#[test]
fn names_are_escaped_on_a_terminal_and_left_alone_on_a_pipe() {
    let sandbox = Sandbox::new();
    let ran = sandbox.ckptfs(&["mount", "\u{1b}[31m"]);
    assert!(
        ran.err().starts_with("Error: \u{1b}[31m does not exist"),
        "{}",
        ran.err()
    );
    let mut terminal = sandbox.hermetic("script", "");
    terminal.args([
        "-qec",
        "ckptfs --color never mount \"$(printf '\\033[31m')\"",
        "/dev/null",
    ]);
    let shown = sandbox.run(terminal).out();
    assert!(
        shown.contains(r"Error: \x1b[31m does not exist") && !shown.contains('\u{1b}'),
        "{shown:?}"
    );
}
