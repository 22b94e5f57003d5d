//! Merges with an external merge tool for conflicts.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use super::support::{conflicts, run, same};
use crate::common::command::sh;
use crate::common::mount::VERB_SECONDS;
use crate::common::tree::tree;
use crate::common::wait::wait_until;
use crate::common::{MountOpts, Rig, Variant, for_each_variant, run_limited};

for_each_variant! { xfs =>
    what_the_tool_makes_is_merged, a_tool_that_does_not_do_it_changes_nothing,
    what_was_changed_while_the_tool_ran_is_not_merged, only_content_is_for_the_tool
}

const BASE: &str = "for f in f g h; do seq 5 > $f; done";
const THEIRS: &str = "e s/3/there/ f; e s/3/there/ g; e s/1/one/ h";
const OURS: &str = "e s/3/here/ f; mv g moved.rs; e s/3/here/ moved.rs; e s/5/five/ h";

fn rig(v: Variant) -> Rig {
    let rig = v.start_with(MountOpts::new(v.io), |dir| run(dir, BASE));
    rig.mount.ok(&["branch", "create", "fix"]);
    run(&branch(&rig), THEIRS);
    run(rig.path(), OURS);
    rig
}

fn branch(rig: &Rig) -> std::path::PathBuf {
    rig.path().with_file_name("project@fix")
}

/// Returns a directory for the tool's files and for scripts, which must be empty afterwards.
fn temporary(rig: &Rig) -> std::path::PathBuf {
    let dir = rig.image.path().join("temporary");
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn command(rig: &Rig, tool: &str, more: &[&str]) -> Command {
    let all = [&["merge", "fix", "--tool", tool], more].concat();
    let mut command = rig.mount.command(&all);
    command.env("TMPDIR", temporary(rig));
    command
}

fn merge(rig: &Rig, tool: &str, more: &[&str]) -> Output {
    let output = run_limited(&mut command(rig, tool, more), VERB_SECONDS);
    let left = fs::read_dir(temporary(rig)).unwrap().count();
    assert_eq!(left, 0, "copies are left: {output:?}");
    output
}

/// Asserts the exit status of a refused merge and a part of its output.
#[track_caller]
fn refused(output: &Output, status: i32, said: &str) {
    let all = [&output.stdout[..], &output.stderr].concat();
    let all = String::from_utf8_lossy(&all).into_owned();
    assert_eq!(output.status.code(), Some(status), "{all}");
    assert!(all.contains(said), "{all}");
}

fn log(rig: &Rig, name: &str) -> String {
    fs::read_to_string(rig.image.path().join(name)).unwrap_or_default()
}

fn what_the_tool_makes_is_merged(v: Variant) {
    let rig = rig(v);
    let before = tree(rig.path());
    // Records the tool's arguments and input files.
    let told = rig.image.path().join("told");
    let tool = format!(
        "printf '%%s\\n' %P %L %S %X %Y \"$(sed -n 3p %O)\" \"$(sed -n 3p %A)\" \"$(sed -n 3p %B)\" \
         \"$(stat -c %%a $(dirname %A))\" %A >> {told}; sed -i s/here/both/ %A",
        told = told.display()
    );
    let would = merge(&rig, &tool, &["-n"]);
    let said = String::from_utf8_lossy(&would.stdout).into_owned();
    assert!(
        would.status.success()
            && said.contains("! f: content changed here and there (left to the tool)\n")
            && said.contains("! moved.rs: content changed here and there (left to the tool)\n"),
        "{said}"
    );
    assert_eq!(log(&rig, "told"), "", "a dry run runs nothing");
    same(rig.path(), &before);
    let merged = merge(&rig, &tool, &["--json"]);
    let merged: Value = serde_json::from_slice(&merged.stdout).unwrap();
    assert_eq!(conflicts(&merged), ["f: content", "moved.rs: content"]);
    assert_eq!(merged["conflicts"][0]["settled"], true, "{merged}");
    assert_eq!(
        sh(rig.path(), "sed -s -n 3p f moved.rs; cat h"),
        "both\nboth\none\n2\n3\n4\nfive\n"
    );
    let told = log(&rig, "told");
    let lines: Vec<&str> = told.lines().collect();
    let (base, same_of) = (lines[2], |at: usize| &lines[at..at + 9]);
    assert!(base.starts_with("checkpoint "), "{told}");
    let rest = ["7", base, "live", "fix", "3", "here", "there", "700"];
    assert_eq!(same_of(0), [&["f"][..], &rest].concat());
    assert_eq!(same_of(10), [&["moved.rs"][..], &rest].concat());
    assert!(lines[19].ends_with(".rs"), "the suffix shows the language");
    // The merge is a single operation.
    rig.mount.ok(&["undo"]);
    same(rig.path(), &before);
    // git's own merge driver either leaves markers and fails, or takes one side.
    refused(
        &merge(&rig, "git merge-file -q %A %O %B", &[]),
        1,
        "nothing was changed: 2 conflicts",
    );
    same(rig.path(), &before);
    let done = merge(&rig, "git merge-file --union %A %O %B", &["--drop"]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(sh(rig.path(), "sed -n 3,4p f"), "here\nthere\n");
    assert!(!branch(&rig).exists());
}

fn a_tool_that_does_not_do_it_changes_nothing(v: Variant) {
    let rig = rig(v);
    let before = tree(rig.path());
    let nothing = |tool: &str, said: &str| {
        refused(&merge(&rig, tool, &[]), 1, said);
        same(rig.path(), &before);
    };
    // One of two conflicts is resolved; it is not applied alone.
    nothing(
        "test %P = f || exit 1; echo x > %A",
        "nothing was changed: 1 conflict",
    );
    nothing("echo x > %A; exit 127", "nothing was changed: 2 conflicts");
    nothing("echo x > %A; exit 128", "the tool failed on \"f\"");
    nothing("echo x > %A; exit 255", "the tool failed on \"f\"");
    nothing("echo x > %A; kill -9 $$", "signal: 9");
    nothing("rm %A", "its result cannot be read");
    nothing("ln -sf /etc/passwd %A", "its result is not a regular file");
    nothing("rm %A; mkfifo %A", "its result is not a regular file");
    nothing("truncate -s 9M %A", "its result has more than");
    refused(&merge(&rig, "true", &[]), 2, "does not contain %A");
    refused(
        &merge(&rig, "true %A", &["--ours"]),
        2,
        "cannot be used with",
    );
    // A signal ends the merge and the tool.
    let started = rig.image.path().join("started");
    let tool = format!("touch {}; : %A; exec sleep 600", started.display());
    let mut child = command(&rig, &tool, &[]).spawn().expect("it starts");
    wait_until("the tool runs", || started.exists());
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is alive");
    let mut ended = None;
    wait_until("it ends", || {
        ended = child.try_wait().expect("a child");
        ended.is_some()
    });
    assert_eq!(ended.and_then(|status| status.code()), Some(128 + 15));
    assert_eq!(fs::read_dir(temporary(&rig)).unwrap().count(), 0);
    same(rig.path(), &before);
}

fn what_was_changed_while_the_tool_ran_is_not_merged(v: Variant) {
    let rig = rig(v);
    let changing =
        |dir: &Path, script: &str| format!("echo merged > %A; cd {} && {script}", dir.display());
    let outdated = "was changed, here or there, after the tool had merged it";
    for (dir, script) in [
        (rig.path().to_owned(), "echo late >> f"),
        (branch(&rig), "echo late >> f"),
        // The conflict has vanished; the tool's result is not discarded silently.
        (rig.path().to_owned(), "seq 5 > moved.rs"),
        (branch(&rig), "rm -f f"),
    ] {
        let before = (tree(rig.path()), tree(&branch(&rig)));
        refused(&merge(&rig, &changing(&dir, script), &[]), 1, outdated);
        let (here, there) = (tree(rig.path()), tree(&branch(&rig)));
        assert!(
            (here == before.0) != (there == before.1),
            "only the script changed something"
        );
        let after = "seq 5 > f; e s/3/here/ f; seq 5 > moved.rs; e s/3/here/ moved.rs";
        run(rig.path(), after);
        run(&branch(&rig), "seq 5 > f; e s/3/there/ f");
    }
    // Concurrent changes of other files are merged in their current state.
    let tool = changing(rig.path(), "echo late > other");
    let merged = merge(&rig, &tool, &[]);
    assert!(merged.status.success(), "{merged:?}");
    assert_eq!(
        sh(rig.path(), "cat f moved.rs other"),
        "merged\nmerged\nlate\n"
    );
}

fn only_content_is_for_the_tool(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        run(dir, "seq 5 > f; seq 5 > gone; printf 'a\\0b' > binary")
    });
    rig.mount.ok(&["branch", "create", "fix"]);
    run(
        &branch(&rig),
        "e s/3/there/ f; echo there >> gone; printf 'a\\0there' > binary",
    );
    run(
        rig.path(),
        "e s/3/here/ f; rm gone; printf 'a\\0here' > binary",
    );
    let before = tree(rig.path());
    let ran = rig.image.path().join("ran");
    let tool = format!("echo %P >> {}; cat %B > %A", ran.display());
    // The tool cannot resolve this conflict.
    refused(
        &merge(&rig, &tool, &[]),
        1,
        "! gone: removed here, changed there",
    );
    refused(
        &merge(&rig, &tool, &["-n"]),
        1,
        "! gone: removed here, changed there",
    );
    assert_eq!(log(&rig, "ran"), "");
    same(rig.path(), &before);
    // The tool also resolves conflicts of binary files.
    let merged = merge(&rig, &tool, &["f", "binary"]);
    assert!(merged.status.success(), "{merged:?}");
    assert_eq!(log(&rig, "ran"), "binary\nf\n");
    assert_eq!(fs::read(rig.path().join("binary")).unwrap(), b"a\0there");
    assert_eq!(sh(rig.path(), "sed -n 3p f; ls"), "there\nbinary\nf\n");
}
