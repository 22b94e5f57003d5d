//! Two concurrent sessions as real processes: a rewind undoes only the changes of one of them.

use std::fs;
use std::process::Command;

use serde_json::json;

use super::support::{Session, get, hook, hook_of, install, label, letters};
use crate::common::command::{has, sh};
use crate::common::tree::assert_tree_is;
use crate::common::wait::wait_until;
use crate::common::{MountOpts, Rig, TreeOpts, Variant, for_each_variant, skip, tree_of};

for_each_variant! { reflink => a_rewind_takes_back_what_one_session_did_and_nothing_else }
for_each_variant! { xfs =>
    rewinds_follow_each_other_and_survive_their_undo,
    an_agent_is_told_what_its_own_command_removed,
    prompts_are_listed_and_named_in_several_ways,
    a_checkpoint_is_made_only_where_something_changed,
    another_session_of_the_same_process_is_named,
    on_a_terminal_a_person_chooses_and_is_asked,
}

fn project(v: Variant) -> Rig {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sh(
            dir,
            "mkdir -p src/deep docs; for f in src/a src/b src/deep/c docs/x docs/y both; do echo $f > $f; done; echo secret > .env",
        );
    });
    install(&rig, "claude-code");
    rig
}

fn a_rewind_takes_back_what_one_session_did_and_nothing_else(v: Variant) {
    let rig = project(v);
    let mut alice = Session::start(rig.path(), "alice");
    let mut bob = Session::start(rig.path(), "bob");
    alice.prompt("Clean up\nand more");
    bob.prompt("Write documentation");
    alice.write("src/new", "by alice\n");
    bob.write("docs/x", "by bob\n");
    bob.write("docs/z", "by bob\n");
    // Changes without an edit tool, in a child process of the agent's shell.
    let told = alice.bash("rm -rf src/deep .env; sh -c 'echo more >> src/a'; mv src/b src/c");
    assert!(told.is_some());
    bob.bash("mkdir made; echo b > made/by-bob; echo also >> both");
    alice.bash("echo also >> both; true");
    alice.stop();
    bob.stop();
    // A change by hand.
    sh(rig.path(), "echo hand > docs/y");
    let before = tree_of(rig.path());

    let planned = rig
        .mount
        .json(&["rewind", "-1", "--session", "alice", "-n"]);
    assert_tree_is(rig.path(), &before, &TreeOpts::default());
    let done = rig.mount.json(&["rewind", "-1", "--session", "alice"]);
    assert_eq!(planned["changes"], done["changes"]);
    assert_eq!(
        letters(&done),
        [
            "A .env",
            "M src/a",
            "R src/b",
            "A src/deep",
            "A src/deep/c",
            "D src/new"
        ]
    );
    assert_eq!(done["shared"][0]["path"], "both");
    for (name, content) in [
        ("src/a", Some("src/a\n")),
        ("src/b", Some("src/b\n")),
        ("src/c", None),
        ("src/new", None),
        ("src/deep/c", Some("src/deep/c\n")),
        (".env", Some("secret\n")),
        ("both", Some("both\nalso\nalso\n")),
        ("docs/x", Some("by bob\n")),
        ("docs/y", Some("hand\n")),
        ("docs/z", Some("by bob\n")),
        ("made/by-bob", Some("b\n")),
    ] {
        assert_eq!(get(&rig, name).as_deref(), content, "{name}");
    }
    // The rewind is one operation, which undo reverses; files get its time.
    rig.mount.ok(&["undo"]);
    let times = TreeOpts {
        mtime: false,
        dir_mtime: false,
        ..TreeOpts::default()
    };
    assert_tree_is(rig.path(), &before, &times);
    // Everything is restored only on request.
    let all = rig
        .mount
        .json(&["rewind", "-1", "--session", "alice", "--code-of", "all"]);
    assert_eq!(get(&rig, "docs/x").as_deref(), Some("docs/x\n"), "{all}");
}

/// Restored changes still belong to the session: a rewind, or its undo, does not count as a change
/// by another writer.
fn rewinds_follow_each_other_and_survive_their_undo(v: Variant) {
    let rig = project(v);
    let mut alice = Session::start(rig.path(), "alice");
    for n in 1..=3 {
        alice.prompt(&format!("Step {n}"));
        alice.bash(&format!(
            "echo {n} > src/a; echo {n} > made-{n}; mkdir -p dir-{n}/sub; echo {n} > dir-{n}/sub/f"
        ));
    }
    let made =
        |n: u32| [format!("made-{n}"), format!("dir-{n}/sub/f")].map(|name| get(&rig, &name));
    rig.mount.ok(&["rewind", "-1"]);
    assert_eq!(get(&rig, "src/a").as_deref(), Some("2\n"));
    rig.mount.ok(&["undo"]);
    assert_eq!(get(&rig, "src/a").as_deref(), Some("3\n"));
    // A change by hand in a restored directory.
    sh(rig.path(), "echo hand > dir-3/hand");
    rig.mount.ok(&["rewind", "-1"]);
    assert_eq!(
        (get(&rig, "src/a").as_deref(), made(3)),
        (Some("2\n"), [None, None])
    );
    assert_eq!(get(&rig, "dir-3/hand").as_deref(), Some("hand\n"));
    rig.mount.ok(&["rewind", "-2"]);
    assert_eq!(
        (get(&rig, "src/a").as_deref(), made(2)),
        (Some("1\n"), [None, None])
    );
    assert!(!rig.path().join("dir-2").exists());
    // The session continues in another process.
    drop(alice);
    let mut again = Session::start(rig.path(), "alice");
    again.prompt("Step 4");
    again.bash("echo 4 >> src/a; echo 4 > made-4");
    rig.mount.ok(&["rewind", "--session", "alice"]);
    assert_eq!(get(&rig, "src/a").as_deref(), Some("src/a\n"));
    assert!((1..=4).all(|n| get(&rig, &format!("made-{n}")).is_none()));
    // No changes are left to undo.
    let said = rig.mount.ok(&["rewind", "--session", "alice"]);
    assert_eq!(said, "nothing to take back\n");
    // A merge, or a manual restore, counts as another writer's change.
    again.prompt("Step 5");
    again.bash("echo 5 > docs/x; echo 5 > docs/y");
    let id = rig.mount.log_json()[0]["id"].to_string();
    rig.mount.ok(&["restore", &id, "docs/x"]);
    sh(rig.path(), "echo hand >> docs/y");
    rig.mount.ok(&["rewind", "-1"]);
    assert_eq!(get(&rig, "docs/y").as_deref(), Some("5\nhand\n"));
}

fn an_agent_is_told_what_its_own_command_removed(v: Variant) {
    let rig = project(v);
    let mut alice = Session::start(rig.path(), "alice");
    let mut bob = Session::start(rig.path(), "bob");
    alice.prompt("Clean up");
    assert_eq!(alice.bash("ls; cat src/a; false"), None);
    assert_eq!(alice.bash("echo new > new; echo more >> src/a"), None);
    let told = alice
        .bash("rm -rf src; echo x >> .env")
        .expect("files were removed");
    let id = rig.mount.log_json()[0]["id"].to_string();
    let rest = format!(
        ". The tree before it is checkpoint {id}: `ckptfs diff {id}` compares, `ckptfs restore {id} PATH` brings back."
    );
    assert_eq!(
        told,
        format!("This command changed: D src/ (3 files), M .env{rest}")
    );
    // A failed command may also have deleted files.
    let told = alice.bash("rm both; false").expect("a file was removed");
    assert!(told.starts_with("This command changed: D both."), "{told}");
    // Concurrent deletions by another session, with its own checkpoints in between, are not
    // reported.
    bob.prompt("Other work");
    let (begin, go) = (rig.path().join("begin"), rig.path().join("go"));
    let waits = "touch begin; while [ ! -e go ]; do sleep 0.01; done; rm begin";
    let told = std::thread::scope(|scope| {
        let alice = scope.spawn(|| alice.bash(waits));
        wait_until("the command has begun", || begin.exists());
        assert!(bob.bash("rm -r docs").is_some());
        bob.write("go", "");
        assert!(go.exists());
        alice.join().expect("alice")
    });
    assert_eq!(told, None);
    // Many changes are reported even without a deletion.
    let told = alice.bash("mkdir many; for n in $(seq 20); do echo $n > many/$n; done");
    assert!(
        told.as_ref()
            .is_some_and(|told| told.contains("A many/ (20 files)")),
        "{told:?}"
    );
}

fn prompts_are_listed_and_named_in_several_ways(v: Variant) {
    let rig = project(v);
    let none = rig.mount.run(&["rewind"]);
    assert_eq!(none.status.code(), Some(1));
    let mut alice = Session::start(rig.path(), "session-a");
    let mut bob = Session::start(rig.path(), "session-b");
    alice.prompt("  First\tthing \nmore");
    alice.write("one", "1");
    bob.prompt("Second \u{1b}[31mthing");
    bob.write("two", "2");
    let listed = rig.mount.run(&["rewind"]);
    let (out, err) = (
        String::from_utf8_lossy(&listed.stdout).into_owned(),
        String::from_utf8_lossy(&listed.stderr).into_owned(),
    );
    assert_eq!(listed.status.code(), Some(2), "{out}{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(
        lines.len() == 2 && lines[1].ends_with("First thing") && lines[1].contains("claude-code"),
        "{out}"
    );
    assert!(err.contains("ckptfs rewind NUMBER"), "{err}");
    // The session of the last prompt is ambiguous.
    for (arguments, status, said) in [
        (
            &["rewind", "-1"] as &[&str],
            2,
            "choose one: ckptfs rewind -1 --session session-b",
        ),
        (
            &["rewind", "-9", "--session", "session-a"],
            1,
            "there is no prompt \"-9\"",
        ),
        (&["rewind", "gone"], 1, "there is no prompt \"gone\""),
        (
            &["rewind", "--session", "session-"],
            1,
            "sessions: session-b, session-a",
        ),
    ] {
        let ran = rig.mount.run(arguments);
        let err = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(
            ran.status.code() == Some(status) && err.contains(said),
            "{arguments:?}: {err}"
        );
    }
    // By the prompt's ID, and by the number of its checkpoint.
    let done = rig.mount.json(&["rewind", "session-a-p1"]);
    assert_eq!(letters(&done), ["D one"]);
    assert_eq!(done["prompt"]["text"], "First thing");
    let number = lines[0].split_whitespace().next().expect("a number");
    let said = rig.mount.ok(&["rewind", number]);
    assert!(
        said.starts_with("D two\nrewound to before \"Second"),
        "{said}"
    );
    assert!(get(&rig, "two").is_none());
}

/// Two sessions in one process are one writer. Failed before: only a session with a later last
/// prompt was named.
fn another_session_of_the_same_process_is_named(v: Variant) {
    let rig = project(v);
    let prompt = |session: &str| {
        let said = json!({
            "hook_event_name": "UserPromptSubmit", "session_id": session, "prompt": "Go on",
            "cwd": rig.path(), "prompt_id": format!("{session}-1"),
        });
        assert!(
            hook(rig.path(), said.to_string().as_bytes())
                .status
                .success()
        );
    };
    prompt("earlier");
    fs::write(rig.path().join("docs/x"), "earlier, before").unwrap();
    prompt("later");
    fs::write(rig.path().join("docs/y"), "later").unwrap();
    fs::write(rig.path().join("docs/x"), "earlier, after").unwrap();
    let ran = rig.mount.run(&["rewind", "-1", "--session", "later"]);
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{said}");
    assert!(
        said.contains("session earlier ran in the same process"),
        "{said}"
    );
    assert_eq!(get(&rig, "docs/x").as_deref(), Some("earlier, before"));
}

fn a_checkpoint_is_made_only_where_something_changed(v: Variant) {
    let rig = project(v);
    let mut alice = Session::start(rig.path(), "alice");
    alice.prompt("Look");
    alice.prompt("Look again");
    let all = rig.mount.log_json();
    let all = all.as_array().expect("checkpoints");
    assert_eq!(all.len(), 2, "one per prompt: {all:?}");
    assert_eq!(
        (
            all[0]["note"].as_str().map(|note| note.lines().next()),
            label(&all[0], "prompt"),
            label(&all[0], "event")
        ),
        (
            Some(Some("Look again")),
            Some("alice-p2"),
            Some("UserPromptSubmit")
        )
    );
    let process = label(&all[0], "process").expect("a process").to_owned();
    alice.bash("cat src/a");
    alice.stop();
    assert_eq!(rig.mount.log_json().as_array().map(Vec::len), Some(2));
    alice.write("one", "1");
    assert_eq!(rig.mount.log_json().as_array().map(Vec::len), Some(2));
    alice.bash("true");
    alice.write("two", "2");
    alice.stop();
    let all = rig.mount.log_json();
    let all = all.as_array().expect("checkpoints");
    assert_eq!(
        all.len(),
        4,
        "one before the next tool, and one at the end: {all:?}"
    );
    assert_eq!(label(&all[1], "tool"), Some("Bash"));
    assert!(
        all.iter()
            .all(|one| label(one, "process") == Some(&process))
    );
    // The process is the agent, not an intermediate shell.
    let pid: u32 = process
        .split('@')
        .next()
        .and_then(|pid| pid.parse().ok())
        .expect("a number");
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).expect("it is alive");
    assert!(name.starts_with("python3"), "{name}");
}

fn on_a_terminal_a_person_chooses_and_is_asked(v: Variant) {
    if !has("script") {
        return skip("script is not installed");
    }
    let rig = project(v);
    let mut alice = Session::start(rig.path(), "alice");
    alice.prompt("Clean up");
    alice.write("one", "1");
    let program = env!("CARGO_BIN_EXE_ckptfs");
    let line = format!("{program} -C {} rewind", rig.path().display());
    for (answers, status, said, stays) in [
        ("\n", 1, "nothing was changed", true),
        ("77\n", 1, "no prompt", true),
        ("1\nn\n", 1, "nothing was changed", true),
        ("1\ny\n", 0, "rewound to before", false),
    ] {
        let mut terminal = Command::new("script");
        terminal.args(["-qec", &line, "/dev/null"]);
        let ran = hook_of(terminal, answers.as_bytes());
        let out = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert_eq!(ran.status.code(), Some(status), "{answers:?}: {out}");
        assert!(
            out.contains("Clean up") && out.contains(said),
            "{answers:?}: {out}"
        );
        assert_eq!(get(&rig, "one").is_some(), stays, "{answers:?}: {out}");
    }
}
