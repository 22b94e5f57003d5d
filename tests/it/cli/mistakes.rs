//! Mistakes of a user in a hurry: repeated commands, partial names, Ctrl-C. None of them hides
//! work.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::support::{Ran, Sandbox};
use crate::common::command::write_script;
use crate::common::wait::wait_until;

/// A mounted project with one checkpoint, `v1`, and an edit since.
pub fn edited() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.file("p/a.txt", "one\n");
    sandbox.ckptfs(&["mount", "p"]).ok();
    sandbox
        .ckptfs_in("p", &["checkpoint", "-t", "v1"])
        .is(0, "1\n", "");
    sandbox.file("p/a.txt", "two\n");
    sandbox
}

pub fn run(sandbox: &Sandbox, args: &[&str]) -> Ran {
    sandbox.ckptfs_in("p", args)
}

fn content(sandbox: &Sandbox, name: &str) -> String {
    fs::read_to_string(sandbox.path.join("p").join(name))
        .unwrap_or_else(|error| format!("{name}: {error}"))
}

fn ids(sandbox: &Sandbox) -> Vec<u64> {
    let log = run(sandbox, &["log", "--json"]).ok().json();
    log.as_array()
        .expect("a list")
        .iter()
        .map(|one| one["id"].as_u64().expect("a number"))
        .collect()
}

/// Failed before: a second `restore latest` restored the state that the first one had replaced,
/// because its guard was the latest.
#[test]
fn restore_latest_twice_is_as_once() {
    let sandbox = edited();
    run(&sandbox, &["restore", "latest"]).ok();
    run(&sandbox, &["restore", "latest"]).is(
        0,
        "nothing to restore: everything is the same as in checkpoint 1\n",
        "",
    );
    assert_eq!(
        (content(&sandbox, "a.txt").as_str(), ids(&sandbox)),
        ("one\n", vec![2, 1])
    );
    assert_eq!(
        fs::read_link(sandbox.path.join("p/.snapshots/latest"))
            .expect("a link")
            .to_str(),
        Some("1")
    );
    // The guard exists, by its number and for `undo`.
    assert_eq!(content(&sandbox, ".snapshots/2/a.txt"), "two\n");
    run(&sandbox, &["checkpoint"]).is(0, "3\n", "");
    assert_eq!(
        run(&sandbox, &["show", "latest~1", "--json"]).ok().json()["id"],
        1
    );
    assert_eq!(
        run(&sandbox, &["log", "-n", "1", "--json"]).ok().json()[0]["id"],
        3
    );
    sandbox.file("p/a.txt", "four\n");
    run(&sandbox, &["restore", "1"]).ok();
    run(&sandbox, &["undo"]).ok();
    assert_eq!(content(&sandbox, "a.txt"), "four\n");
}

/// A guard is never the latest, even if no other checkpoint exists.
#[test]
fn where_there_are_only_guards_nothing_is_the_latest() {
    let sandbox = edited();
    run(&sandbox, &["restore", "1"]).ok();
    run(&sandbox, &["delete", "1"]).ok();
    let refused = run(&sandbox, &["restore", "latest"]);
    assert!(
        refused.code == 1 && content(&sandbox, "a.txt") == "one\n",
        "{refused:?}"
    );
    assert!(!sandbox.path.join("p/.snapshots/latest").exists());
}

/// Failed before: after `restore 1`, `status` still compared with 2, and listed all of its files as
/// deleted.
#[test]
fn after_a_restore_status_compares_with_what_was_restored() {
    let sandbox = edited();
    run(&sandbox, &["checkpoint"]).is(0, "2\n", "");
    run(&sandbox, &["restore", "1"]).ok();
    let compared = |sandbox: &Sandbox| {
        let status = run(sandbox, &["status", "--json"]).ok().json();
        (
            status["base"].as_u64(),
            status["latest"].as_u64(),
            status["dirty"].as_array().map_or(0, Vec::len),
        )
    };
    assert_eq!(compared(&sandbox), (Some(1), Some(2), 0));
    assert!(
        run(&sandbox, &["status"])
            .ok()
            .out()
            .contains("nothing changed since checkpoint 1")
    );
    run(&sandbox, &["checkpoint", "--if-changed"]).is(
        0,
        "1\n",
        "nothing has changed since checkpoint 1\n",
    );
    sandbox.kill_daemons();
    sandbox.ckptfs(&["mount", "p"]).ok();
    assert_eq!(
        compared(&sandbox),
        (Some(1), Some(2), 0),
        "the next daemon knows it also"
    );
    // A restore without changes still sets the base.
    sandbox.file("p/a.txt", "two\n");
    run(&sandbox, &["restore", "2"]).ok();
    assert_eq!(compared(&sandbox), (Some(2), Some(2), 0));
    // A restore of paths does not change the base.
    run(&sandbox, &["restore", "1", "a.txt"]).ok();
    assert_eq!(compared(&sandbox), (Some(2), Some(2), 1));
    run(&sandbox, &["checkpoint"]).ok();
    assert_eq!(compared(&sandbox).2, 0);
}

/// Failed before: guards accumulated, or displaced checkpoints from `--keep-last`.
#[test]
fn guards_are_not_counted_by_gc_and_stay_while_undo_needs_them() {
    let sandbox = edited();
    run(&sandbox, &["checkpoint"]).is(0, "2\n", "");
    for round in 0..3 {
        sandbox.file("p/a.txt", &format!("round {round}\n"));
        run(&sandbox, &["restore", "2"]).ok();
    }
    assert_eq!(ids(&sandbox), [5, 4, 3, 2, 1]);
    let report = run(&sandbox, &["gc", "--yes", "--keep-last", "2", "--json"])
        .ok()
        .json();
    let rules: Vec<_> = report["kept"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| (one["id"].clone(), one["rules"][0].clone()))
        .collect();
    assert_eq!(
        serde_json::json!(rules),
        serde_json::json!([
            [1, "tagged"],
            [2, "newest"],
            [3, "undo"],
            [4, "undo"],
            [5, "undo"]
        ])
    );
    run(&sandbox, &["undo"]).ok();
    assert_eq!(content(&sandbox, "a.txt"), "round 2\n");
}

/// Failed before: `undo` after a mistake silently deleted the last checkpoint and did not change
/// the tree.
#[test]
fn undo_hides_no_checkpoint_unless_it_is_told_to() {
    let sandbox = edited();
    run(&sandbox, &["restore", "1"]).ok();
    run(&sandbox, &["checkpoint", "-t", "mine"]).is(0, "3\n", "");
    let refused = run(&sandbox, &["undo"]);
    assert!(
        refused.code == 1
            && refused.err().contains("made checkpoint 3")
            && refused.err().contains("ckptfs undo --force"),
        "{refused:?}"
    );
    assert_eq!(ids(&sandbox), [3, 2, 1]);
    assert_eq!(run(&sandbox, &["undo", "--dry-run"]).code, 1);
    run(&sandbox, &["undo", "--skip"]).ok();
    assert_eq!(
        (
            content(&sandbox, "a.txt").as_str(),
            ids(&sandbox).contains(&3)
        ),
        ("two\n", true)
    );
    run(&sandbox, &["redo"]).ok();
    run(&sandbox, &["undo", "--force", "2"]).ok();
    assert!(!ids(&sandbox).contains(&3), "{:?}", ids(&sandbox));
}

/// The documented behavior: everything returns to its state right after that operation. Failed
/// before: the tree did not change.
#[test]
fn undo_to_an_operation_makes_the_tree_what_it_was_then() {
    let sandbox = edited();
    run(&sandbox, &["checkpoint"]).is(0, "2\n", "");
    sandbox.file("p/a.txt", "three\n");
    let dry = run(&sandbox, &["undo", "--to", "1", "-n"]).ok().out();
    assert!(
        dry.contains("would be undone: 2 checkpoint 2") && content(&sandbox, "a.txt") == "three\n",
        "{dry}"
    );
    run(&sandbox, &["undo", "--to", "1"]).ok();
    assert_eq!(content(&sandbox, "a.txt"), "one\n");
    let guard = ids(&sandbox)[0];
    assert_eq!(
        content(&sandbox, &format!(".snapshots/{guard}/a.txt")),
        "three\n",
        "nothing is lost"
    );
    run(&sandbox, &["undo", "--to", "2"]).ok();
    assert_eq!(content(&sandbox, "a.txt"), "two\n");
}

/// Failed before: `restore rel` meant `release-1`, until a `release-2` existed.
#[test]
fn what_restores_or_deletes_wants_the_whole_tag() {
    let sandbox = edited();
    run(&sandbox, &["tag", "1", "release-1"]).ok();
    let refused = "Error: \"rel\" is only the beginning of the tag \"release-1\"\nHint: restore and delete need the whole tag, or a number\n";
    for verb in [
        &["restore", "rel"][..],
        &["restore", "rel", "a.txt"],
        &["restore", "-n", "rel"],
        &["delete", "rel"],
        &["delete", "--now", "-y", "rel"],
    ] {
        run(&sandbox, verb).is(1, "", refused);
    }
    assert_eq!(run(&sandbox, &["restore", "--only-by", "1", "rel"]).code, 1);
    run(&sandbox, &["checkpoint"]).is(0, "2\n", "");
    assert_eq!(run(&sandbox, &["delete", "rel~0"]).code, 1);
    assert_eq!(
        (content(&sandbox, "a.txt").as_str(), ids(&sandbox)),
        ("two\n", vec![2, 1])
    );
    // Read-only verbs accept the prefix.
    assert_eq!(
        run(&sandbox, &["show", "rel", "--json"]).ok().json()["id"],
        1
    );
    run(&sandbox, &["restore", "release-1", "a.txt"]).ok();
    run(&sandbox, &["delete", "release-1"]).ok();
}

/// Failed before: the tag was dropped silently.
#[test]
fn a_tag_that_was_not_given_is_told() {
    let sandbox = edited();
    run(&sandbox, &["restore", "v1"]).ok();
    let says = "nothing has changed since checkpoint 1, which is left as it is: it was not given the tag done and the note\n";
    run(
        &sandbox,
        &["checkpoint", "--if-changed", "-t", "done", "-m", "it works"],
    )
    .is(0, "1\n", says);
    run(&sandbox, &["checkpoint", "--if-changed", "-t", "v1"]).is(
        0,
        "1\n",
        "nothing has changed since checkpoint 1\n",
    );
}

/// Starts a restore, runs `after`, sends the signal, runs `then`, and waits for the end of the
/// restore.
fn interrupted(
    sandbox: &Sandbox,
    args: &[&str],
    after: impl FnOnce(),
    signal: &str,
    then: impl FnOnce(),
) -> (Option<i32>, String) {
    let out = sandbox.path.join("out/interrupted");
    let mut command = sandbox.command("p");
    command
        .args(args)
        .stdout(Stdio::null())
        .stderr(File::create(&out).expect("a file"));
    let mut child = command.spawn().expect("spawn");
    after();
    let mut kill = sandbox.hermetic("kill", "");
    kill.args([signal, &child.id().to_string()])
        .stderr(Stdio::null());
    kill.status().expect("kill");
    then();
    let status = wait_until("it ends", || child.try_wait().expect("wait"));
    (
        status.code(),
        fs::read_to_string(out).expect("its output can be read"),
    )
}

/// Failed before: Ctrl-C ended the client, but the daemon restored.
#[test]
fn a_restore_that_has_not_begun_is_given_up_with_whoever_asked() {
    let sandbox = Sandbox::new();
    sandbox.file("p/a.txt", "one\n");
    let hook = sandbox.path.join("hooks/pre-restore");
    fs::create_dir(sandbox.path.join("hooks")).expect("a directory");
    // The hook creates the file `begun` and waits for the file `go`.
    let [begun, go] = ["begun", "go"].map(|name| sandbox.path.join("hooks").join(name));
    let script = format!(
        "#!/bin/sh\n: > {}\nwhile [ ! -e {} ]; do sleep 0.05; done\n",
        begun.display(),
        go.display()
    );
    write_script(&hook, &script);
    sandbox
        .ckptfs(&[
            "mount",
            "--hooks",
            sandbox.path.join("hooks").to_str().expect("a path"),
            "p",
        ])
        .ok();
    run(&sandbox, &["checkpoint"]).ok();
    sandbox.file("p/a.txt", "two\n");
    for (signal, status) in [
        ("-INT", Some(130)),
        ("-TERM", Some(143)),
        ("-HUP", Some(129)),
        ("-KILL", None),
    ] {
        let _ = fs::remove_file(&go);
        let _ = fs::remove_file(&begun);
        let in_hook = || wait_until("the hook has begun", || begun.exists());
        // The client has time to cancel.
        let goes_on = || {
            std::thread::sleep(Duration::from_millis(1500));
            fs::write(&go, "").expect("the file can be written");
        };
        let (code, said) = interrupted(&sandbox, &["restore", "1"], in_hook, signal, goes_on);
        assert_eq!(code, status, "{signal}: {said}");
        assert!(
            signal == "-KILL" || said == "cancelled: nothing was changed\n",
            "{signal}: {said}"
        );
        std::thread::sleep(Duration::from_millis(600));
        assert_eq!(
            (content(&sandbox, "a.txt").as_str(), ids(&sandbox)),
            ("two\n", vec![1]),
            "{signal}"
        );
    }
    run(&sandbox, &["restore", "1"]).ok();
    assert_eq!(
        content(&sandbox, "a.txt"),
        "one\n",
        "the next restore is not cancelled"
    );
}

/// Whenever the signal arrives, the message states the outcome of the restore correctly.
#[test]
fn one_that_has_begun_is_finished_and_says_so() {
    const FILES: usize = 600;
    const TRIES_MAX: u32 = 80;
    let sandbox = Sandbox::new();
    let write = |sandbox: &Sandbox, text: &str| {
        (0..FILES).for_each(|n| sandbox.file(format!("p/f{n}"), text))
    };
    write(&sandbox, "one\n");
    sandbox.ckptfs(&["mount", "p"]).ok();
    run(&sandbox, &["checkpoint"]).ok();
    write(&sandbox, "two\n");
    let began = Instant::now();
    run(&sandbox, &["restore", "1"]).ok();
    let took = u64::try_from(began.elapsed().as_millis()).expect("milliseconds");
    let (mut finished, mut given_up) = (0, 0);
    // Content is prepared before anything is changed, so a restore changes the tree only near its
    // end: after the latest cancelled attempt and before the earliest completed one.
    let (mut early, mut late) = (1, took * 4);
    for _ in 0..TRIES_MAX {
        if finished > 0 && given_up > 0 {
            break;
        }
        if late < early + 2 {
            (early, late) = (early * 3 / 4, late * 5 / 4 + 2);
        }
        let after_ms = early.midpoint(late).max(5);
        write(&sandbox, "two\n");
        let guards = ids(&sandbox).len();
        let (code, said) = interrupted(
            &sandbox,
            &["restore", "1"],
            || std::thread::sleep(Duration::from_millis(after_ms)),
            "-INT",
            || {},
        );
        let now: Vec<String> = (0..FILES)
            .map(|n| content(&sandbox, &format!("f{n}")))
            .collect();
        let all = |text: &str| now.iter().all(|content| content == text);
        match code {
            // It was complete, or (`None`) had no signal handler yet.
            Some(0) => {
                late = after_ms;
                assert!(all("one\n"), "{said}");
            }
            None => assert!(all("two\n") && ids(&sandbox).len() == guards, "{said}"),
            _ if said.contains("cancelled: nothing was changed") => {
                given_up += 1;
                early = after_ms;
                assert!(
                    all("two\n") && ids(&sandbox).len() == guards && code == Some(130),
                    "{said}"
                );
            }
            _ => {
                finished += 1;
                assert!(
                    all("one\n") && ids(&sandbox).len() == guards + 1 && code == Some(130),
                    "{code:?} {said}"
                );
                assert!(
                    said.contains("was finished; to take it back: ckptfs undo"),
                    "{said}"
                );
            }
        }
    }
    println!("finished {finished}, cancelled {given_up}");
    assert!(finished > 0, "no signal arrived during the change");
}

/// Failed before: a source restored with its old mtime was older than the output of the other
/// version, so `make` and `cargo` did not rebuild. A restore of paths therefore sets the current
/// time.
#[test]
fn what_is_made_from_restored_paths_is_made_again() {
    let sandbox = Sandbox::new();
    sandbox.file("p/src/a.c", "A");
    sandbox.file("p/src/same.c", "same");
    sandbox.file("p/src/gone.c", "gone");
    sandbox.file("p/src/named.c", "named");
    let mut touch = sandbox.hermetic("touch", "p/src");
    touch.args(["-d", "2020-01-01", "a.c", "same.c", "gone.c", "named.c"]);
    assert_eq!(sandbox.run(touch).code, 0);
    sandbox.ckptfs(&["mount", "p"]).ok();
    run(&sandbox, &["checkpoint"]).ok();
    let time = |name: &str| {
        fs::metadata(sandbox.path.join("p").join(name))
            .expect(name)
            .modified()
            .expect("a time")
    };
    let old = time("src/same.c");
    let spoil = || {
        sandbox.file("p/src/a.c", "B");
        let _ = fs::remove_file(sandbox.path.join("p/src/gone.c"));
        let _ = fs::rename(
            sandbox.path.join("p/src/named.c"),
            sandbox.path.join("p/src/other.c"),
        );
        sandbox.file("p/out", "of B");
        std::thread::sleep(Duration::from_millis(20));
    };
    spoil();
    run(&sandbox, &["restore", "1", "src"]).ok();
    for name in ["src/a.c", "src/gone.c", "src/named.c"] {
        assert!(
            time(name) > time("out"),
            "{name} is newer than the output made from the other one"
        );
    }
    assert_eq!(
        (content(&sandbox, "src/a.c").as_str(), time("src/same.c")),
        ("A", old),
        "unchanged files are not touched"
    );
    // Nothing differs but the time.
    run(&sandbox, &["restore", "1", "src"]).is(
        0,
        "nothing to restore: everything is the same as in checkpoint 1\n",
        "",
    );
    // Undo behaves in the same way.
    sandbox.file("p/out", "of A");
    std::thread::sleep(Duration::from_millis(20));
    run(&sandbox, &["undo"]).ok();
    assert!(content(&sandbox, "src/a.c") == "B" && time("src/a.c") > time("out"));
    // `--times kept` preserves the old times. A restore of the whole tree does so by default,
    // because it also restores outputs.
    run(&sandbox, &["restore", "--times", "kept", "1", "src/a.c"]).ok();
    assert_eq!(
        (content(&sandbox, "src/a.c").as_str(), time("src/a.c")),
        ("A", old)
    );
    spoil();
    run(&sandbox, &["restore", "1"]).ok();
    assert_eq!(["src/a.c", "src/gone.c", "src/named.c"].map(time), [old; 3]);
    spoil();
    run(&sandbox, &["restore", "--times=now", "1"]).ok();
    assert!(time("src/a.c") > old && content(&sandbox, "src/a.c") == "A");
}

/// Failed before: after a restore of `node_modules`, whose files are hard links to a package store,
/// each file existed twice without a warning.
#[test]
fn a_file_that_has_other_names_outside_stays_one_or_is_named() {
    let sandbox = Sandbox::new();
    for name in ["p/store/x", "p/store/y", "p/store/z"] {
        sandbox.file(name, name);
    }
    let at = |name: &str| sandbox.path.join("p").join(name);
    fs::create_dir(at("modules")).expect("a directory");
    for name in ["x", "y"] {
        fs::hard_link(at(&format!("store/{name}")), at(&format!("modules/{name}")))
            .expect("a link");
        fs::hard_link(
            at(&format!("store/{name}")),
            at(&format!("modules/{name}2")),
        )
        .expect("a link");
    }
    sandbox.file("p/modules/moved", "alone");
    sandbox.ckptfs(&["mount", "p"]).ok();
    run(&sandbox, &["checkpoint"]).ok();
    // Only names that were looked up are known; the tree is not searched for others.
    let _ = [fs::metadata(at("store/x")), fs::metadata(at("store/y"))];
    fs::rename(at("modules/moved"), at("store/moved")).expect("the call succeeds");
    fs::remove_dir_all(at("modules")).expect("the call succeeds");
    sandbox.file("p/store/y", "changed");
    let restored = run(&sandbox, &["restore", "1", "modules"]).ok();
    let ino = |name: &str| fs::metadata(at(name)).expect(name).ino();
    assert_eq!(
        [ino("modules/x"), ino("modules/x2")],
        [ino("store/x"); 2],
        "one file again"
    );
    // A file modified under its outside name keeps its content there.
    assert_eq!(
        (
            content(&sandbox, "store/y").as_str(),
            content(&sandbox, "modules/y").as_str()
        ),
        ("changed", "p/store/y")
    );
    assert!(ino("modules/y") == ino("modules/y2") && ino("modules/y") != ino("store/y"));
    assert!(
        restored
            .err()
            .contains("modules/y is no longer a hard link to names")
            && !restored.err().contains("modules/x"),
        "{}",
        restored.err()
    );
    // A file that was only renamed is restored as a separate file, because it had no other name
    // then.
    assert_ne!(ino("modules/moved"), ino("store/moved"));
    assert_eq!(content(&sandbox, "modules/moved"), "alone");
}

/// A process that has a replaced file open, such as a database, keeps writing to the old inode.
#[test]
fn who_holds_replaced_files_open_is_named() {
    let sandbox = edited();
    sandbox.file("p/other", "o");
    let mut holder = {
        let mut sleep = sandbox.hermetic("sleep", "p");
        sleep.arg("600").stdin(
            File::options()
                .append(true)
                .open(sandbox.path.join("p/a.txt"))
                .expect("a.txt"),
        );
        sleep.spawn().expect("spawn")
    };
    let restored = run(&sandbox, &["restore", "1"]);
    let other = run(&sandbox, &["restore", "-n", "1"]);
    holder.kill().expect("kill");
    holder.wait().expect("wait");
    let says = format!(
        "Warning: sleep (pid {}) has [DIR]/p/a.txt open, in its old version",
        holder.id()
    );
    assert!(
        restored.code == 0 && restored.err().starts_with(&says),
        "{}",
        restored.err()
    );
    assert_eq!(other.err(), "");
}
