//! Output on a terminal: the pager, patches in color, lists that fit.

use std::path::Path;

use super::support::{Ran, Sandbox};

/// Runs `ckptfs` on a terminal of `rows` lines, and presses keys there.
fn on_terminal(
    sandbox: &Sandbox,
    rows: u32,
    keys: &str,
    env: &[(&str, &str)],
    args: &[&str],
) -> Ran {
    let mut command = sandbox.hermetic("python3", "p");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/cli/terminal.py");
    command
        .arg(script)
        .args([&rows.to_string(), keys, env!("CARGO_BIN_EXE_ckptfs")])
        .args(args)
        .env_remove("LESS")
        .envs(env.iter().copied());
    sandbox.run(command)
}

/// A mounted tree with many files, a checkpoint, and a change of each file.
fn changed() -> Sandbox {
    let sandbox = Sandbox::new();
    for number in 10..50 {
        sandbox.file(format!("p/f{number}"), "old\n");
    }
    sandbox.file("p/evil", "one two\x1b[2Jthree\n");
    sandbox.ckptfs(&["mount", "p"]).ok();
    sandbox
        .ckptfs_in("p", &["checkpoint", "-m", "the \x1b[2J first"])
        .ok();
    for number in 10..50 {
        sandbox.file(format!("p/f{number}"), "new\n");
    }
    sandbox.file("p/evil", "one 2\x1b[2J three\n");
    sandbox
}

/// A pager that marks its presence and its input.
const PAGER: &str = "sed 's/^/| /'; echo \"LESS=$LESS\"";

#[test]
fn what_lists_goes_through_the_pager_and_its_status_stays() {
    let sandbox = changed();
    let pager = [("CKPTFS_PAGER", PAGER), ("PAGER", "false")];
    let paged = |args: &[&str]| on_terminal(&sandbox, 24, "", &pager, args);
    for args in [
        &["log"][..],
        &["log", "--note", "first"],
        &["log", "f10"],
        &["diff"],
        &["diff", "--stat"],
        &["diff", "-p"],
        &["show"],
        &["show", "1:"],
        &["show", "1:f10"],
        &["show", "-l", "1:"],
        &["ops"],
        &["ops", "--all"],
        &["status", "-v"],
    ] {
        let ran = paged(args);
        assert!(ran.out().contains("| "), "{args:?}: {ran:?}");
        assert!(ran.out().ends_with("LESS=FRX\r\n"), "{args:?}: {ran:?}");
        assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
        let shown = ran.out();
        assert!(!shown.contains("\x1b[2J"), "{args:?}: {shown:?}");
    }
    // Other verbs and machine-readable output are not paged.
    for args in [
        &["status"][..],
        &["diff", "-z"],
        &["log", "--json"],
        &["log", "--no-pager"],
        &["restore", "1", "-n"],
        &["doctor"],
    ] {
        let ran = paged(args);
        assert!(!ran.out().contains("LESS="), "{args:?}: {ran:?}");
    }
    // A verb that fails is not paged, and its error determines the status.
    let failed = paged(&["show", "9"]);
    assert_eq!(failed.code, 1);
    assert!(failed.out().contains("Error:") && !failed.out().contains("LESS="));
    // A verb that also prints a message is paged.
    let limited = paged(&["ops", "-n", "1"]);
    let text = limited.out();
    assert!(text.contains("LESS=FRX"), "{text}");
}

#[test]
fn a_pager_can_be_turned_off_missing_or_left_early() {
    let sandbox = changed();
    let log =
        |env: &[(&str, &str)]| on_terminal(&sandbox, 24, "", env, &["log", "--color", "never"]);
    let plain = log(&[("PAGER", "cat")]);
    assert!(plain.out().starts_with('1'), "{plain:?}");
    let off = log(&[("CKPTFS_PAGER", ""), ("PAGER", "false")]);
    assert_eq!(off.out(), plain.out());
    let missing = log(&[("PAGER", "no-such-pager")]);
    assert_eq!((missing.code, missing.out()), (0, plain.out()));
    let missing = log(&[("PAGER", "no-such-pager --here")]);
    assert!(missing.out().contains("cannot be run"), "{missing:?}");
    // A pager that exits early is not an error.
    let left = on_terminal(&sandbox, 24, "", &[("PAGER", "true")], &["diff", "-p"]);
    assert_eq!((left.code, left.out().as_str()), (0, ""));
    // less, controlled by its keys.
    let less = on_terminal(&sandbox, 12, " q", &[], &["diff", "--color", "never"]);
    assert_eq!(less.code, 0, "{less:?}");
    assert!(
        less.out().contains("M f10") && !less.out().contains("M f45"),
        "{less:?}"
    );
}

#[test]
fn a_patch_is_colored_on_a_terminal_and_says_what_changed_in_a_line() {
    let sandbox = changed();
    let colored = on_terminal(
        &sandbox,
        24,
        "",
        &[("PAGER", "")],
        &["diff", "-p", "--", "evil"],
    );
    let text = colored.out();
    assert!(text.contains("\x1b[36m@@ -1 +1 @@\x1b[0m"), "{text:?}");
    assert!(
        text.contains("\x1b[31m-\x1b[0m\x1b[31mone \x1b[0m"),
        "{text:?}"
    );
    assert!(text.contains("\x1b[31;7m"), "{text:?}");
    assert!(
        text.contains(r"\x1b[2J") && !text.contains("\x1b[2J"),
        "{text:?}"
    );
    let plain = on_terminal(
        &sandbox,
        24,
        "",
        &[("PAGER", ""), ("NO_COLOR", "1")],
        &["diff", "-p", "--", "evil"],
    );
    assert!(!plain.out().contains('\x1b'), "{plain:?}");
    // On a pipe, a patch is byte for byte in git's format.
    let piped = sandbox.ckptfs_in("p", &["diff", "-p", "--", "evil"]).ok();
    let says = "diff --git a/evil b/evil\n--- a/evil\n+++ b/evil\n@@ -1 +1 @@\n-one two\x1b[2Jthree\n+one 2\x1b[2J three\n";
    assert_eq!(piped.out(), says);
    let always = sandbox
        .ckptfs_in("p", &["diff", "-p", "--color", "always", "--", "f10"])
        .ok();
    assert!(always.out().contains("\x1b[31mold\x1b[0m"), "{always:?}");
}

#[test]
fn a_word_diff_is_as_git_shows_it() {
    let sandbox = changed();
    sandbox.file("p/f10", "old and new\n");
    let ran = sandbox
        .ckptfs_in("p", &["diff", "--word-diff", "--", "f10", "f11"])
        .ok();
    let says = "diff --git a/f10 b/f10\n--- a/f10\n+++ b/f10\n@@ -1 +1 @@\nold {+and new+}\n\
                diff --git a/f11 b/f11\n--- a/f11\n+++ b/f11\n@@ -1 +1 @@\n[-old-]{+new+}\n";
    assert_eq!(ran.out(), says);
    let colored = sandbox
        .ckptfs_in(
            "p",
            &["diff", "--word-diff", "--color", "always", "--", "f11"],
        )
        .ok();
    assert!(
        colored
            .out()
            .contains("\x1b[31m[-old-]\x1b[0m\x1b[32m{+new+}\x1b[0m"),
        "{colored:?}"
    );
}

#[test]
fn a_list_that_is_not_paged_fits_on_the_terminal() {
    let sandbox = changed();
    let shown = |args: &[&str]| on_terminal(&sandbox, 24, "", &[("NO_COLOR", "1")], args).out();
    let status = shown(&["status"]);
    assert!(status.lines().count() < 24, "{status}");
    assert!(
        status.contains("M f10") && !status.contains("M f49"),
        "{status}"
    );
    assert!(status.contains(" more (-v shows them)"), "{status}");
    let planned = shown(&["restore", "1", "-n"]);
    assert!(planned.lines().count() < 24, "{planned}");
    assert!(planned.contains(" more (--all shows them)"), "{planned}");
    assert!(shown(&["restore", "1", "-n", "--all"]).contains("M f49"));
    // A pipe receives the whole list.
    assert!(
        sandbox
            .ckptfs_in("p", &["status"])
            .ok()
            .out()
            .contains("M f49")
    );
}

#[test]
fn status_tells_of_paths_alone() {
    let sandbox = changed();
    sandbox.file("p/sub/new", "");
    let ran = sandbox.ckptfs_in("p", &["status", "f10", "sub"]).ok();
    assert_eq!(
        ran.out(),
        "3 changes there since checkpoint 1:\nM f10\nA sub\nA sub/new\n"
    );
    let ran = sandbox.ckptfs_in("p/sub", &["status", "."]).ok();
    assert_eq!(
        ran.out(),
        "2 changes there since checkpoint 1:\nA sub\nA sub/new\n"
    );
    sandbox.ckptfs_in("p", &["status", "gone"]).ok().is(
        0,
        "nothing changed there since checkpoint 1\n",
        "",
    );
    let json = sandbox
        .ckptfs_in("p", &["status", "f10", "--json"])
        .ok()
        .json();
    assert_eq!(json["dirty"].as_array().map(Vec::len), Some(1), "{json}");
}

#[test]
fn a_wrong_command_line_is_json_too_where_that_is_asked_for() {
    let sandbox = Sandbox::new();
    for (args, message, hint) in [
        (
            &["frob", "--json"][..],
            "unrecognized subcommand 'frob'",
            "some similar subcommands exist: 'rollback', 'fork'",
        ),
        (
            &["--json", "commit"],
            "unrecognized subcommand 'commit'",
            "in ckptfs this is: ckptfs checkpoint -m NOTE",
        ),
        (
            &["log", "--json", "-n", "x"],
            "invalid value 'x' for '--max-count <COUNT>': invalid digit found in string",
            "",
        ),
        (
            &["--json"],
            "'ckptfs' requires a subcommand but one was not provided",
            "Usage: ckptfs [OPTIONS] <COMMAND>",
        ),
    ] {
        let ran = sandbox.ckptfs(args);
        assert_eq!((ran.code, ran.out().as_str()), (2, ""), "{args:?}");
        let told: serde_json::Value =
            serde_json::from_slice(&ran.stderr).expect("one line of JSON");
        let error = &told["error"];
        assert_eq!(error["code"], "usage", "{told}");
        assert_eq!(error["message"], message, "{told}");
        assert_eq!(error["hint"].as_str().unwrap_or_default(), hint, "{told}");
    }
    // After `--`, the option belongs to another command.
    let ran = sandbox.ckptfs(&["frob", "--", "--json"]);
    assert!(ran.code == 2 && ran.err().starts_with("error:"), "{ran:?}");
}

#[test]
fn what_is_missing_is_named_with_its_values() {
    let sandbox = Sandbox::new();
    let ran = sandbox.ckptfs(&["agent", "install"]);
    assert_eq!(ran.code, 2);
    let hint = "Hint: <AGENT> is one of claude-code, codex, gemini, cursor, opencode\n";
    assert!(ran.err().ends_with(hint), "{ran:?}");
}

#[test]
fn the_manual_names_the_values_of_options() {
    let sandbox = Sandbox::new();
    sandbox.ckptfs(&["man", "man"]).ok();
    let page = std::fs::read_to_string(sandbox.path.join("man/ckptfs-log.1")).expect("a page");
    let synopsis = page
        .lines()
        .skip_while(|line| !line.contains("SYNOPSIS"))
        .nth(1);
    let synopsis = synopsis.expect("a synopsis").replace('\\', "");
    assert!(
        synopsis.starts_with("fBckptfs logfR [--max-count <COUNT>] [--before <ID>]"),
        "{synopsis}"
    );
    assert!(synopsis.ends_with("[PATH]"), "{synopsis}");
}

#[test]
fn a_rewind_before_the_first_prompt_knows_that_the_hooks_are_there() {
    let sandbox = Sandbox::new();
    sandbox.file("p/file", "");
    sandbox.ckptfs(&["mount", "p"]).ok();
    let none = sandbox.ckptfs_in("p", &["rewind"]);
    assert!(
        none.err().contains("ckptfs agent install claude-code"),
        "{none:?}"
    );
    sandbox.ckptfs_in("p", &["agent", "install", "codex"]).ok();
    let none = sandbox.ckptfs_in("p", &["rewind"]);
    assert_eq!(none.code, 1);
    assert!(
        none.err().contains("no prompt has come yet from codex"),
        "{none:?}"
    );
}

/// Returns the texts of a picture without the parts that vary between runs.
fn picture(svg: &str) -> Vec<String> {
    let texts = svg.lines().filter(|line| line.starts_with("<text"));
    let plain = |line: &str| {
        let parts = line.split('<').filter_map(|part| part.split_once('>'));
        let text: String = parts.map(|(_, text)| text).collect();
        // The duration, and the I/O mode.
        let text = text.split(" ms;").next().unwrap_or_default().to_owned();
        let text = text.split(" (io:").next().unwrap_or_default().to_owned();
        let is_time = |char: char| char.is_ascii_digit() || char == '.';
        text.trim_end_matches(is_time).to_owned()
    };
    texts.map(plain).collect()
}

#[test]
fn the_picture_of_the_readme_is_what_a_run_prints() {
    let sandbox = Sandbox::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut make = sandbox.hermetic("python3", "");
    make.arg(root.join("docs/demo.py")).args([
        "--ckptfs",
        env!("CARGO_BIN_EXE_ckptfs"),
        "--out",
        "demo.svg",
    ]);
    sandbox.run(make).ok();
    let made = std::fs::read_to_string(sandbox.path.join("demo.svg")).expect("a picture");
    let shown = picture(include_str!("../../../docs/demo.svg"));
    assert!(shown.len() > 20, "{shown:?}");
    assert_eq!(picture(&made), shown, "docs/demo.py regenerates it");
}
