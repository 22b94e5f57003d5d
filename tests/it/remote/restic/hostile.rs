//! Malicious repositories: an attacker with the password can write anything.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};

use super::{PASSWORD, SECONDS, User};
use crate::common::command::{fails, run_limited, stdout_of, wait_limited};
use crate::common::run_dir::script;
use crate::common::tree::names;
use crate::common::{MountOpts, Variant, for_each_variant, has, skip, tool};

/// Returns the Python of tests/tools.sh, or the system's, if it has the package that forging needs.
fn python() -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/python/bin/python3");
    let can = |python: &Path| {
        let mut import = tool(python.to_str()?, &["-c", "import cryptography"]);
        run_limited(&mut import, SECONDS)
            .status
            .success()
            .then(|| python.to_owned())
    };
    (own.exists().then(|| can(&own)).flatten())
        .or_else(|| has("python3").then(|| can(Path::new("python3"))).flatten())
}

/// Adds snapshots of trees of these nodes to the repository and returns their ids. Without a
/// suitable Python, reports the test as skipped and returns `None`.
pub(super) fn forge(user: &User, told: &Value) -> Option<Vec<String>> {
    if python().is_none() {
        skip("no Python has the package cryptography");
    }
    let python = python()?;
    let mut forge = tool(python.to_str()?, &[script("it/remote/restic/forge.py")]);
    let mut child = forge
        .args([user.repository().to_str()?, PASSWORD])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin
        .write_all(told.to_string().as_bytes())
        .expect("written");
    drop(stdin);
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().expect("a pipe"), &mut said)
        .expect("read");
    let limit = std::time::Duration::from_secs(SECONDS);
    assert!(wait_limited(&mut child, limit).is_some_and(|status| status.success()));
    Some(said.lines().map(str::to_owned).collect())
}

fn file(name: &str) -> Value {
    json!({"name": name, "text": "harm"})
}

/// Trees that would write outside the directory, or are malformed.
fn harmful(away: &str) -> Vec<(&'static str, Value)> {
    let link = json!({"name": "a", "type": "symlink", "linktarget": away});
    let dir = json!({"name": "a", "tree": [file("new")]});
    let own = "ab".repeat(32);
    vec![
        ("dots", json!([file("..")])),
        ("a path", json!([file("../outside/new")])),
        ("an absolute path", json!([file("/etc/new")])),
        (
            "a slash that is escaped",
            json!([file("..\\x2foutside\\x2fnew")]),
        ),
        ("a zero", json!([file("a\u{0}b")])),
        ("no name", json!([file("")])),
        ("one name twice", json!([file("a"), file("a")])),
        ("a link, then a directory", json!([link, dir])),
        ("a directory, then a link", json!([dir, link])),
        (
            "a link to a file, then a file",
            json!([{"name": "a", "type": "symlink", "linktarget": format!("{away}/kept")}, file("a")]),
        ),
        (
            "a tree in itself",
            json!([{"name": "a", "number": own, "tree": [{"name": "b", "type": "dir", "subtree": own}]}]),
        ),
        (
            "a store",
            json!([{"name": ".ckptfs", "tree": [file("format")]}]),
        ),
        (
            "an unknown kind",
            json!([{"name": "a", "type": "sym\u{1b}[31m"}]),
        ),
        (
            "a missing tree",
            json!([{"name": "a", "type": "dir", "subtree": "cd".repeat(32)}]),
        ),
        (
            "a link and a file with one inode",
            json!([
                {"name": "a", "text": "", "inode": 5, "device_id": 1, "links": 2},
                {"name": "b", "type": "symlink", "linktarget": "a", "inode": 5, "device_id": 1, "links": 2},
            ]),
        ),
    ]
}

#[test]
fn nothing_is_mounted_from_what_cannot_be() {
    let user = User::new();
    let outside = user.dir.path().join("outside");
    fs::create_dir(&outside).expect("mkdir");
    fs::write(outside.join("kept"), "kept").expect("written");
    let harmful = harmful(outside.to_str().expect("UTF-8"));
    let told: Vec<Value> = harmful
        .iter()
        .map(|(_, tree)| json!({ "tree": tree }))
        .collect();
    let Some(snapshots) = forge(&user, &told.into()) else {
        return;
    };
    for ((what, _), snapshot) in harmful.iter().zip(snapshots) {
        let into = user.dir.path().join(&snapshot);
        let from = format!("home:{snapshot}");
        let mut mount = user.command(user.dir.path(), &["mount", "--from", &from]);
        let said = fails(mount.arg(&into), SECONDS);
        assert!(
            said.contains(&snapshot) || said.contains("the remote: "),
            "{what}: {said}"
        );
        assert!(
            !said.contains("panick") && said.contains("Hint: "),
            "{what}: {said}"
        );
        assert!(
            names(&into).iter().all(|name| name == ".ckptfs"),
            "{what}: {:?}",
            names(&into)
        );
        assert_eq!(names(&outside), ["kept"], "{what}");
    }
}

/// A thread of the library panics after another thread's error was reported; the output must not
/// show the panic.
#[test]
fn damage_is_told_without_a_panic() {
    let user = User::new();
    let odd = json!([{"tree": [{"name": "b", "type": "odd"}, {"name": "c", "tree": []}]}, {"tree": [file("a")]}]);
    if forge(&user, &odd).is_none() {
        return;
    }
    for _ in 0..3 {
        let mut verify = user.command(user.dir.path(), &["verify", "--remote", "home"]);
        let ran = run_limited(&mut verify, SECONDS);
        let said = [ran.stdout, ran.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(
            !ran.status.success() && !said.contains("panicked"),
            "{said}"
        );
    }
}

for_each_variant! { xfs => tags_that_cannot_be_here_are_left_out }

/// Failed before: the whole snapshot was fetched into the branch, and then no checkpoint could be
/// made.
fn tags_that_cannot_be_here_are_left_out(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        fs::write(dir.join("here"), "here").expect("written");
    });
    rig.mount.checkpoint();
    let user = User::new();
    let mut tags: Vec<String> = [
        "ckptfs",
        "store=s",
        "checkpoint=7",
        "latest",
        "a/b",
        "12",
        "..",
        "\u{1b}[31m",
    ]
    .map(str::to_owned)
    .to_vec();
    tags.extend((0..99).map(|n| format!("tag-{n}")));
    let told = json!([{"tags": tags, "tree": [file("there")]}]);
    let Some(snapshots) = forge(&user, &told) else {
        return;
    };
    let pulled = user.json(
        rig.path(),
        &["pull", "home", &snapshots[0], "--branch", "theirs"],
    );
    let path = PathBuf::from(pulled["path"].as_str().expect("a path"));
    assert_eq!(names(&path), ["there"]);
    let log = stdout_of(&mut user.command(&path, &["log", "--json"]), SECONDS);
    let log: Value = serde_json::from_str(&log).expect("JSON");
    let kept = log[0]["tags"].as_array().expect("a list");
    assert!(
        kept.len() == 64 && kept.iter().all(|tag| tag.to_string().contains("tag-")),
        "{log}"
    );
}
