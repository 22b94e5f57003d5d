//! Naming, finding and reading checkpoints.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Stdio;

use super::patches::{lines, patched};
use super::support::{Ran, Sandbox};

/// A mounted project with three checkpoints: v1, one without a tag, and v2.
pub fn three() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.file("p/a.txt", "one\n");
    sandbox.file("p/sub/deep/b.txt", "b\n");
    sandbox.ckptfs(&["mount", "p"]).ok();
    sandbox
        .ckptfs_in("p", &["checkpoint", "-t", "v1", "-m", "The first"])
        .is(0, "1\n", "");
    sandbox.file("p/a.txt", "one\ntwo\n");
    sandbox
        .ckptfs_in("p", &["checkpoint", "-m", "second\n\nticket: 17\n"])
        .is(0, "2\n", "");
    sandbox.file("p/sub/deep/b.txt", "B\n");
    sandbox
        .ckptfs_in("p", &["checkpoint", "-t", "v2", "-t", "release"])
        .is(0, "3\n", "");
    sandbox
}

fn with_stdin(sandbox: &Sandbox, dir: &str, args: &[&str], input: &str) -> Ran {
    sandbox.file("out/stdin", input);
    let mut command = sandbox.command(dir);
    command.args(args).stdin(Stdio::from(
        fs::File::open(sandbox.path.join("out/stdin")).expect("stdin"),
    ));
    sandbox.run(command)
}

fn ids(ran: Ran) -> Vec<u64> {
    ran.json()
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["id"].as_u64().expect("a number"))
        .collect()
}

#[test]
fn a_checkpoint_is_found_by_whatever_names_it() {
    let sandbox = three();
    let id = |name: &str| {
        sandbox
            .ckptfs_in("p", &["show", "--json", name])
            .ok()
            .json()["id"]
            .as_u64()
            .expect("a number")
    };
    assert_eq!(
        [
            "1",
            "v1",
            "latest",
            "latest~1",
            "latest~2",
            "rel",
            "release~1",
            "@{now}"
        ]
        .map(id),
        [1, 1, 3, 2, 1, 3, 2, 3]
    );
    assert_eq!(id("2100-01-01T00:00:00Z"), 3);
    let made = sandbox.ckptfs_in("p", &["show", "--json", "2"]).ok().json()["created"]
        .as_str()
        .expect("a time")
        .to_owned();
    assert_eq!((id(&made), id(&format!("@{{{made}}}"))), (2, 2));
    let refused = |name: &str, code: i32, says: &str| {
        let ran = sandbox.ckptfs_in("p", &["show", name]);
        assert!(
            ran.code == code && ran.err().contains(says),
            "{name}: {ran:?}"
        );
    };
    refused(
        "v",
        1,
        "\"v\" can mean more than one checkpoint: \"v1\", \"v2\"",
    );
    refused(
        "latest~3",
        1,
        "there are only 2 checkpoints before \"latest\"",
    );
    refused("@{1h ago}", 1, "no checkpoint is as old as");
    refused("@{soon}", 1, "\"soon\" is not a time");
    refused("realease", 1, "did you mean \"release\"?");
    // Also without a daemon.
    sandbox.ckptfs(&["umount", "p"]).ok();
    assert_eq!(
        ["1", "v1", "latest~1", "rel", &made].map(id),
        [1, 1, 2, 3, 2]
    );
    refused("latest~3", 1, "there are only 2 checkpoints before");
}

#[test]
fn tags_come_go_and_move() {
    let sandbox = three();
    sandbox.ckptfs_in("p", &["tag", "2", "mid", "second"]).is(
        0,
        "checkpoint 2 is tagged mid, second\n",
        "",
    );
    sandbox.ckptfs_in("p", &["tag", "1", "mid"]).is(
        1,
        "",
        "Error: the tag \"mid\" belongs to checkpoint 2\nHint: choose another tag, or remove that one first: ckptfs tag -d mid\n",
    );
    sandbox
        .ckptfs_in("p", &["tag", "--force", "1", "mid", "first"])
        .is(0, "checkpoint 1 is tagged first, mid, v1\n", "");
    assert_eq!(
        sandbox.ckptfs_in("p", &["show", "--json", "2"]).ok().json()["tags"],
        serde_json::json!(["second"])
    );
    sandbox.ckptfs_in("p", &["tag", "-m", "mid", "middle"]).is(
        0,
        "checkpoint 1 is tagged first, middle, v1\n",
        "",
    );
    sandbox.ckptfs_in("p", &["tag", "-m", "middle", "latest"]).is(
        1,
        "",
        "Error: \"latest\" cannot be a tag\nHint: a tag has 1 to 100 bytes and no '/'; it does not begin with '-' or '!incomplete-', and is not a number, 'latest' or 'live'\n",
    );
    assert!(
        sandbox.path.join("p/.snapshots/middle/a.txt").exists()
            && !sandbox.path.join("p/.snapshots/mid").exists()
    );
    sandbox
        .ckptfs_in("p", &["tag", "-d", "second", "middle"])
        .is(
            0,
            "checkpoint 2 has no tag\ncheckpoint 1 is tagged first, v1\n",
            "",
        );
    let unknown = sandbox.ckptfs_in("p", &["tag", "-d", "middle"]);
    assert!(
        unknown.code == 1 && unknown.err().contains("no checkpoint \"middle\""),
        "{unknown:?}"
    );
    // Acknowledged tags survive kill -9.
    for pid in sandbox.daemons() {
        // The worker may have ended already, because it ends with its holder.
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_raw(pid.cast_signed()).expect("a pid"),
            rustix::process::Signal::KILL,
        );
    }
    sandbox.ckptfs(&["mount", "p"]).ok();
    assert_eq!(
        sandbox.ckptfs_in("p", &["show", "--json", "1"]).ok().json()["tags"],
        serde_json::json!(["first", "v1"])
    );
}

#[test]
fn what_is_asked_for_is_found() {
    let sandbox = three();
    let found = |args: &[&str]| ids(sandbox.ckptfs_in("p", &[&["log", "--json"], args].concat()));
    assert_eq!(found(&[]), [3, 2, 1]);
    assert_eq!(
        (
            found(&["--tag", "v*"]),
            found(&["--tag", "release"]),
            found(&["-n", "2"])
        ),
        (vec![3, 1], vec![3], vec![3, 2])
    );
    assert_eq!(
        (
            found(&["--note", "FIRST"]),
            found(&["--label", "ticket=17"]),
            found(&["--label", "ticket=1"])
        ),
        (vec![1], vec![2], vec![])
    );
    assert_eq!(
        (found(&["--since", "1h"]), found(&["--until", "1h ago"])),
        (vec![3, 2, 1], vec![])
    );
    // The first checkpoint counts as changing every path.
    assert_eq!(
        (
            found(&["--changed", "a.txt"]),
            found(&["--changed", "sub"]),
            found(&["--tag", "v2", "--changed", "sub/deep/b.txt"])
        ),
        (vec![2, 1], vec![3, 1], vec![3])
    );
    sandbox.ckptfs_in("p", &["log", "--tag", "no"]).is(
        1,
        "",
        "Error: no checkpoint matches\nHint: to list all of them: ckptfs log\n",
    );
    let wrong = sandbox.ckptfs_in("p", &["log", "--since", "whenever"]);
    assert!(
        wrong.code == 1 && wrong.err().contains("\"whenever\" is not a time"),
        "{wrong:?}"
    );
    sandbox.ckptfs(&["umount", "p"]).ok();
    assert_eq!(found(&["--tag", "v*"]), [3, 1]);
    assert!(
        sandbox
            .ckptfs_in("p", &["log", "--changed", "a.txt"])
            .err()
            .contains("ckptfs mount")
    );
}

#[test]
fn every_version_of_a_path_is_told() {
    let sandbox = three();
    let versions = |dir: &str, path: &str| -> Vec<(Option<u64>, String, Option<u64>)> {
        let list = sandbox.ckptfs_in(dir, &["log", "--json", path]).ok().json();
        let one = |version: &serde_json::Value| {
            (
                version["checkpoint"]["id"].as_u64(),
                version["change"].as_str().expect("a letter").to_owned(),
                version["size"].as_u64(),
            )
        };
        list.as_array().expect("a list").iter().map(one).collect()
    };
    let told =
        |list: &[(Option<u64>, &str, Option<u64>)]| -> Vec<(Option<u64>, String, Option<u64>)> {
            list.iter()
                .map(|(id, letter, size)| (*id, (*letter).to_owned(), *size))
                .collect()
        };
    assert_eq!(
        versions("p", "a.txt"),
        told(&[(Some(2), "M", Some(8)), (Some(1), "A", Some(4))])
    );
    // A rewrite of the same length with the old mtime is a version; one with the same content is
    // not.
    let path = sandbox.path.join("p/a.txt");
    let before = fs::metadata(&path).expect("stat");
    for number in ["4\n", "5\n"] {
        fs::write(&path, "one\nTWO\n").expect("write");
        let file = fs::File::options().write(true).open(&path).expect("open");
        file.set_modified(before.modified().expect("mtime"))
            .expect("utimens");
        sandbox.ckptfs_in("p", &["checkpoint"]).is(0, number, "");
    }
    fs::remove_file(&path).expect("rm");
    sandbox.ckptfs_in("p", &["checkpoint"]).is(0, "6\n", "");
    fs::create_dir(&path).expect("mkdir");
    sandbox.ckptfs_in("p", &["checkpoint"]).is(0, "7\n", "");
    fs::remove_dir(&path).expect("rmdir");
    fs::write(&path, "x").expect("write");
    let all = [
        (None, "T"),
        (Some(7), "A"),
        (Some(6), "D"),
        (Some(4), "M"),
        (Some(2), "M"),
        (Some(1), "A"),
    ];
    let found = versions("p", "a.txt");
    let found: Vec<_> = found
        .iter()
        .map(|(id, letter, _)| (*id, letter.as_str()))
        .collect();
    assert_eq!(found, all);
    // For a directory: changes below it. Paths are relative to the working directory.
    assert_eq!(
        versions("p", "sub")
            .iter()
            .map(|version| version.0)
            .collect::<Vec<_>>(),
        [Some(3), Some(1)]
    );
    assert_eq!(
        versions("p/sub", "deep/b.txt"),
        told(&[(Some(3), "M", Some(2)), (Some(1), "A", Some(2))])
    );
    versions_are_lines(&sandbox);
}

/// The text output, which ends with the oldest version requested.
fn versions_are_lines(sandbox: &Sandbox) {
    let log = sandbox
        .ckptfs_in("p", &["log", "a.txt", "-n", "2"])
        .ok()
        .out();
    let lines: Vec<&str> = log.lines().collect();
    assert!(
        lines.len() == 2
            && lines[0].starts_with("live  ")
            && lines[0].ends_with("  T  1 B")
            && lines[1].starts_with("   7  ")
            && lines[1].ends_with("  A"),
        "{log}"
    );
    let never = sandbox.ckptfs_in("p", &["log", "nothing"]);
    assert!(
        never.code == 1
            && never
                .err()
                .contains("nothing is neither in the tree nor in any checkpoint"),
        "{never:?}"
    );
}

#[test]
fn past_files_and_directories_are_read_by_state_and_path() {
    let sandbox = three();
    let run = |dir: &str, args: &[&str]| sandbox.ckptfs_in(dir, args);
    run("p", &["show", "1:a.txt"]).is(0, "one\n", "");
    run("p", &["show", "live:a.txt"]).is(0, "one\ntwo\n", "");
    run("p/sub", &["show", "v1:deep/b.txt"]).is(0, "b\n", "");
    run("p/sub", &["show", "latest~1:../a.txt"]).is(0, "one\ntwo\n", "");
    run("p", &["show", "@{2100-01-01 10:00}:a.txt"]).is(0, "one\ntwo\n", "");
    run("p", &["show", "2100-01-01T10:00:00Z:sub/deep/b.txt"]).is(0, "B\n", "");
    run("p", &["show", "1:"]).is(0, "a.txt\nsub\n", "");
    run("p/sub", &["show", "1:deep"]).is(0, "b.txt\n", "");
    run("p", &["show", "-z", "live:"]).is(0, "a.txt\0sub\0", "");
    symlink("/etc/passwd", sandbox.path.join("p/out")).expect("link");
    symlink("sub", sandbox.path.join("p/in")).expect("link");
    fs::set_permissions(
        sandbox.path.join("p/a.txt"),
        fs::Permissions::from_mode(0o4751),
    )
    .expect("chmod");
    run("p", &["checkpoint"]).is(0, "4\n", "");
    let long = run("p", &["show", "-l", "4:"]).ok().out();
    let first: Vec<&str> = long.split_whitespace().take(2).collect();
    assert_eq!(first, ["-rwsr-x--x", "8"]);
    assert!(long.contains("out -> /etc/passwd\n"), "{long}");
    let stat = run("p", &["show", "-l", "--json", "4:a.txt"]).ok().json()[0].clone();
    assert_eq!(
        (&stat["kind"], &stat["mode"], &stat["size"], &stat["nlink"]),
        (&"file".into(), &"4751".into(), &8.into(), &1.into())
    );
    assert_ne!(
        stat["ino"].as_u64(),
        Some(
            fs::metadata(sandbox.path.join("p/a.txt"))
                .expect("stat")
                .ino()
        )
    );
    let refused = |args: &[&str], says: &str| {
        let ran = run("p", args);
        assert!(
            ran.code == 1 && ran.out().is_empty() && ran.err().contains(says),
            "{args:?}: {ran:?}"
        );
    };
    refused(&["show", "4:out"], "4:out is not a regular file");
    refused(&["show", "4:in/deep/b.txt"], "goes through a symbolic link");
    refused(&["show", "4:none"], "4:none does not exist");
    refused(&["show", "9:a.txt"], "there is no checkpoint \"9\"");
    refused(&["show", "a.txt"], "there is no checkpoint \"a.txt\"");
    refused(&["show", "4:../x"], "outside of the tree");
}

#[test]
fn notes_come_from_files_and_hooks() {
    let sandbox = three();
    sandbox.file("note", "From a file\n\nowner: me\n\n");
    sandbox
        .ckptfs_in("p", &["checkpoint", "-F", "../note"])
        .is(0, "4\n", "");
    with_stdin(&sandbox, "p", &["checkpoint", "-F", "-"], "From stdin\n").is(0, "5\n", "");
    let project = sandbox.path.join("p").display().to_string();
    let hook = serde_json::json!({"session_id": "s1", "cwd": project, "hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "rm -rf x"}});
    // A hook may run anywhere.
    with_stdin(
        &sandbox,
        "",
        &["checkpoint", "--from-hook"],
        &hook.to_string(),
    )
    .is(0, "", "");
    with_stdin(
        &sandbox,
        "",
        &["checkpoint", "--from-hook", "--if-changed"],
        &hook.to_string(),
    )
    .is(0, "", "nothing has changed since checkpoint 6\n");
    let notes: Vec<serde_json::Value> = sandbox
        .ckptfs_in("p", &["log", "--json", "-n", "3"])
        .ok()
        .json()
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| one["note"].clone())
        .collect();
    assert_eq!(
        notes,
        [
            "PreToolUse Bash: rm -rf x\n\nevent: PreToolUse\ntool: Bash\nsession: s1",
            "From stdin",
            "From a file\n\nowner: me"
        ]
    );
    assert_eq!(
        ids(sandbox.ckptfs_in("p", &["log", "--json", "--label", "session=s1"])),
        [6]
    );
    let wrong = with_stdin(&sandbox, "p", &["checkpoint", "--from-hook"], "not json");
    assert!(
        wrong.code == 1 && wrong.err().contains("stdin does not hold a hook's message"),
        "{wrong:?}"
    );
}

#[test]
fn nothing_new_makes_no_checkpoint() {
    let sandbox = three();
    let same = || {
        sandbox.ckptfs_in("p", &["checkpoint", "--if-changed"]).is(
            0,
            "3\n",
            "nothing has changed since checkpoint 3\n",
        )
    };
    same();
    // A file opened without a write, and one renamed and renamed back.
    drop(
        fs::File::options()
            .append(true)
            .open(sandbox.path.join("p/a.txt"))
            .expect("open"),
    );
    fs::rename(sandbox.path.join("p/a.txt"), sandbox.path.join("p/z")).expect("rename");
    fs::rename(sandbox.path.join("p/z"), sandbox.path.join("p/a.txt")).expect("rename");
    same();
    assert_eq!(
        sandbox
            .ckptfs_in("p", &["checkpoint", "--if-changed", "--json"])
            .ok()
            .json()["unchanged"],
        true
    );
    fs::set_permissions(
        sandbox.path.join("p/a.txt"),
        fs::Permissions::from_mode(0o600),
    )
    .expect("chmod");
    sandbox
        .ckptfs_in("p", &["checkpoint", "--if-changed"])
        .is(0, "4\n", "");
}

/// git apply accepts the patch between two states, with every kind of change that git supports.
#[test]
fn a_patch_is_taken_by_git_apply() {
    let sandbox = Sandbox::new();
    let p = |name: &str| sandbox.path.join("p").join(name);
    for (name, content) in [
        ("long", lines(0, 100)),
        ("gone", "x\n".into()),
        ("old name", lines(0, 50)),
        ("no newline", "a\nb".into()),
        ("mode", "m\n".into()),
    ] {
        sandbox.file(format!("p/{name}"), &content);
    }
    sandbox.file("p/file to link", "text\n");
    sandbox.file("p/sub/\"quoted\"\té", "q\n");
    symlink("here", p("link")).expect("link");
    // Failed before: git rejected the whole patch because of a binary file.
    let noise = |seed: u32, bytes: u32| -> Vec<u8> {
        let byte = |at: u32| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8;
        (0..bytes).map(byte).chain([0]).collect()
    };
    for (name, bytes) in [("logo.png", 3000), ("gone.bin", 70), ("moved.bin", 5)] {
        fs::write(p(name), noise(1, bytes)).expect("write");
    }
    sandbox.ckptfs(&["mount", "p"]).ok();
    sandbox.ckptfs_in("p", &["checkpoint"]).is(0, "1\n", "");
    fs::write(
        p("long"),
        format!("new first\n{}{}new last", lines(0, 40), lines(41, 100)),
    )
    .expect("write");
    fs::remove_file(p("gone")).expect("rm");
    fs::rename(p("old name"), p("new name")).expect("mv");
    fs::write(p("no newline"), "a\nb\n").expect("write");
    fs::set_permissions(p("mode"), fs::Permissions::from_mode(0o755)).expect("chmod");
    fs::remove_file(p("file to link")).expect("rm");
    symlink("no newline", p("file to link")).expect("link");
    fs::remove_file(p("link")).expect("rm");
    symlink("there", p("link")).expect("link");
    fs::write(p("sub/\"quoted\"\té"), "Q\n").expect("write");
    fs::create_dir(p("newdir")).expect("mkdir");
    fs::write(p("newdir/empty"), "").expect("write");
    fs::write(p("newdir/full"), "full\n").expect("write");
    fs::write(p("logo.png"), noise(2, 200_000)).expect("write");
    fs::remove_file(p("gone.bin")).expect("rm");
    fs::rename(p("moved.bin"), p("newdir/moved.bin")).expect("mv");
    fs::write(p("newdir/new.bin"), noise(3, 51)).expect("write");
    sandbox.ckptfs_in("p", &["checkpoint"]).is(0, "2\n", "");
    for (from, to) in [("1", "2"), ("2", "1")] {
        let (copy, _) = patched(&sandbox, from, to);
        let mut diff = sandbox.hermetic("diff", "");
        diff.args(["-r", "--no-dereference"])
            .arg(p(&format!(".snapshots/{to}")))
            .arg(&copy);
        sandbox.run(diff).is(0, "", "");
    }
    sizes_are_told(&sandbox);
}

/// `diff` prints sizes, also of binary files.
fn sizes_are_told(sandbox: &Sandbox) {
    let p = |name: &str| sandbox.path.join("p").join(name);
    fs::write(p("binary"), b"\0\x01").expect("write");
    let patch = sandbox.ckptfs_in("p", &["diff", "-p", "latest"]).ok().out();
    assert!(
        patch.contains("diff --git a/binary b/binary\n") && patch.contains("\nliteral 2\n"),
        "{patch}"
    );
    let stat = sandbox
        .ckptfs_in("p", &["diff", "--stat", "1", "2"])
        .ok()
        .out();
    assert!(
        stat.contains("  M long\n") && stat.contains("790 -> ") && stat.contains("-2  D gone\n"),
        "{stat}"
    );
    assert!(
        stat.lines()
            .last()
            .is_some_and(|sum| sum.contains(" bytes more, ")),
        "{stat}"
    );
    let long = &sandbox
        .ckptfs_in("p", &["diff", "1", "2", "--json"])
        .ok()
        .json();
    let long = long
        .as_array()
        .expect("a list")
        .iter()
        .find(|change| change["path"] == "long")
        .expect("long");
    assert_eq!(
        (long["old_size"].as_u64(), long["size"].as_u64()),
        (
            Some(790),
            Some(fs::metadata(p("long")).expect("stat").len())
        )
    );
}
