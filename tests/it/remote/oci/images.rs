//! Other programs read a pushed image bit for bit, and so does `pull`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::server::{Server, ckptfs, missing, without_logins};
use crate::common::command::{TOOL_SECONDS, sh, stdout_of, succeeds};
use crate::common::run_dir::script;
use crate::common::tree::{NodeKind, Tree, TreeOpts, compare, tree};
use crate::common::{Rig, Variant, fails, for_each_variant, sample_tree, scratch, tool};
use crate::export::support::{copy_at, history};

/// Pushes, and returns the JSON output.
#[track_caller]
pub fn push(rig: &Rig, place: &str, id: &str) -> Value {
    rig.mount.json(&["push", place, id])
}

/// Pulls into a directory, with further arguments.
#[track_caller]
pub fn pull(place: &str, into: &Path, more: &[&str]) -> Value {
    let into = into.to_str().expect("a path");
    let mut command = ckptfs(&[&["pull", place, "--into", into, "--json"], more].concat());
    serde_json::from_str(&stdout_of(&mut command, TOOL_SECONDS)).expect("--json prints JSON")
}

/// Checks that two trees are equal. `links`: compare hard links. Sockets are ignored, because an
/// image has no sockets.
#[track_caller]
pub fn assert_is(found: &Tree, expected: &Tree, links: bool) {
    assert_is_but(found, expected, links, true);
}

/// Like [`assert_is`]. `empty`: compare extended attributes with an empty value, which programs in
/// Go do not see.
#[track_caller]
fn assert_is_but(found: &Tree, expected: &Tree, links: bool, empty: bool) {
    let mut expected = expected.clone();
    expected.retain(|_, node| node.kind != NodeKind::Socket);
    if !empty {
        for node in expected.values_mut() {
            node.xattrs.retain(|_, value| !value.is_empty());
        }
    }
    let opts = TreeOpts {
        ignore: Vec::new(),
        links,
        ..TreeOpts::default()
    };
    let differences = compare(found, &expected, &opts);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Compares two directories with diff(1) and rsync(1). diff(1) does not open a FIFO but reports it.
#[track_caller]
pub fn compared(found: &Path, view: &Path, how: &str) {
    let (found, view) = (
        found.to_str().expect("a path"),
        view.to_str().expect("a path"),
    );
    let special = "--exclude=fifo --exclude=socket --exclude=null --exclude=block";
    let script = format!(
        "diff -r --no-dereference {special} '{found}' '{view}'
         rsync {how}nc --filter='-x user.ckptfs.*' --delete --itemize-changes --exclude=socket '{view}/' '{found}/'"
    );
    let said = sh(Path::new("/"), &script);
    assert_eq!(said, "", "{found} differs from {view}");
}

/// The first image has one layer, and each later one adds one, whatever changed. skopeo and umoci
/// unpack each image to the contents of the checkpoint's view, and so does `pull`.
fn a_history_is_read_bit_for_bit(v: Variant) {
    if missing() {
        return;
    }
    let rig = v.start();
    sample_tree(rig.path());
    let dir = scratch();
    let server = Server::start(dir.path());
    let trees = history(&rig);
    for (number, (id, expected)) in trees.iter().enumerate() {
        let pushed = push(
            &rig,
            &server.place(&format!("project:c{id}")),
            &id.to_string(),
        );
        assert_eq!(pushed["layers"], number as u64 + 1, "{pushed}");
        let from = number.checked_sub(1).map(|before| trees[before].0);
        assert_eq!(pushed["from"].as_u64(), from, "{pushed}");
        let image = format!("project:c{id}");
        let aside = dir.path().join(format!("umoci{id}"));
        let found = server.unpacked(&image, &aside);
        assert_is_but(&tree(&found), expected, number == 0, false);
        compared(&found, &rig.view(*id), "-aA");
        let into = dir.path().join(format!("pulled{id}"));
        let pulled = pull(&server.place(&image), &into, &["--trusted"]);
        assert_eq!(pulled["checkpoint"], *id, "{pulled}");
        assert_is(&copy_at(&into), expected, number == 0);
        compared(&into, &rig.view(*id), "-aAX");
    }
    later(&rig, &server, dir.path(), &trees);
    rig.mount.ok(&["verify", "--deep"]);
}

/// A pulled tree is an export: an incremental export or another pull updates it.
fn later(rig: &Rig, server: &Server, dir: &Path, trees: &[(u64, Tree)]) {
    let ((first, _), (last, expected)) = (&trees[0], &trees[trees.len() - 1]);
    let into = dir.join(format!("pulled{first}"));
    let place = server.place(&format!("project:c{last}"));
    pull(&place, &into, &["--trusted"]);
    assert_is(&copy_at(&into), expected, false);
    let (id, path) = (first.to_string(), into.to_str().expect("a path"));
    let exported = rig.mount.json(&["export", &id, path]);
    assert_eq!(exported["from"], *last, "{exported}");
    // The export creates a socket only if the difference contains it.
    assert_is(&without_sockets(copy_at(&into)), &trees[0].1, true);
    let other = dir.join("other");
    fs::create_dir(&other).expect("mkdir");
    fs::write(other.join("mine"), "mine").expect("written");
    let said = fails(
        &mut ckptfs(&["pull", &place, "--into", other.to_str().expect("a path")]),
        TOOL_SECONDS,
    );
    assert!(said.contains("not empty"), "{said}");
    assert_eq!(
        fs::read_to_string(other.join("mine")).expect("there"),
        "mine"
    );
}

fn without_sockets(mut tree: Tree) -> Tree {
    tree.retain(|_, node| node.kind != NodeKind::Socket);
    tree
}

/// A second push sends nothing or, under another tag, the manifest. A checkpoint equal to its
/// predecessor adds no layer.
fn what_is_there_is_not_sent_again(v: Variant) {
    if missing() {
        return;
    }
    let rig = v.start_with(crate::common::MountOpts::new(v.io), |root| {
        fs::write(root.join("f"), vec![7; 3 << 20]).expect("written");
    });
    let dir = scratch();
    let server = Server::start(dir.path());
    let place = |tag: &str| server.place(&format!("project:{tag}"));
    rig.mount.ok(&["checkpoint", "-m", "what it is for"]);
    let first = push(&rig, &place("latest"), "latest");
    assert!(
        first["sent_bytes"].as_u64() > Some(3000) && first["from"].is_null(),
        "{first}"
    );
    let again = push(&rig, &place("latest"), "1");
    assert_eq!(
        (&again["sent_bytes"], &again["digest"]),
        (&Value::from(0), &first["digest"]),
        "{again}"
    );
    let other = push(&rig, &place("other"), "1");
    assert_eq!(other["digest"], first["digest"], "{other}");
    assert!(other["sent_bytes"].as_u64() < Some(2000), "{other}");
    // Pushed to another server, the same tree has the same digest.
    fs::create_dir(dir.path().join("second")).expect("mkdir");
    let second = Server::start(&dir.path().join("second"));
    let elsewhere = push(&rig, &second.place("project"), "1");
    assert_eq!(elsewhere["digest"], first["digest"], "{elsewhere}");
    rig.mount.checkpoint();
    let same = push(&rig, &place("latest"), "latest");
    assert_eq!(
        (&same["layers"], &same["from"]),
        (&Value::from(1), &Value::from(1)),
        "{same}"
    );
    let said = server.inspect("project:latest").expect("a manifest");
    assert_eq!(said["annotations"]["dev.ckptfs.checkpoint"], "2", "{said}");
    let said = server.inspect("project:other").expect("a manifest");
    assert_eq!(
        said["annotations"]["org.opencontainers.image.description"],
        "what it is for"
    );
    // An older checkpoint based on a newer one.
    fs::write(rig.path().join("g"), "g").expect("written");
    rig.mount.checkpoint();
    push(&rig, &place("latest"), "3");
    let back = push(&rig, &place("back"), "2");
    assert_eq!(
        (&back["from"], &back["layers"]),
        (&Value::from(3), &Value::from(3)),
        "{back}"
    );
    let into = dir.path().join("pulled");
    pull(&place("back"), &into, &[]);
    assert_is(&copy_at(&into), &tree(&rig.view(2)), true);
    let dry = rig.mount.json(&["push", "-n", &place("nothing"), "3"]);
    assert!(
        dry["digest"].is_null() && server.inspect("project:nothing").is_none(),
        "{dry}"
    );
}

/// An image that would exceed the layer limit of engines is pushed as one layer.
fn a_hundred_layers_become_one(v: Variant) {
    if missing() {
        return;
    }
    let rig = v.start();
    let dir = scratch();
    let server = Server::start(dir.path());
    let place = server.place("project");
    let next = |number: u64| {
        fs::write(rig.path().join(format!("f{number}")), "x").expect("written");
        rig.mount.checkpoint();
        push(&rig, &place, "latest")
    };
    next(1);
    let (port, script) = (server.port.to_string(), script("it/remote/oci/layers.py"));
    let mut python = tool("python3", &[script]);
    succeeds(python.args([&port, "project", "99"]), TOOL_SECONDS);
    let pushed = next(2);
    assert_eq!(
        (&pushed["layers"], &pushed["from"]),
        (&Value::from(100), &Value::from(1)),
        "{pushed}"
    );
    let into = dir.path().join("pulled");
    pull(&place, &into, &[]);
    assert_is(&copy_at(&into), &tree(rig.path()), true);
    let pushed = next(3);
    assert_eq!(
        (&pushed["layers"], &pushed["from"]),
        (&Value::from(1), &Value::Null),
        "{pushed}"
    );
    pull(&place, &into, &[]);
    assert_is(&copy_at(&into), &tree(rig.path()), true);
}

/// Contents that an image cannot represent are rejected before anything is sent, or omitted and
/// reported.
fn what_cannot_be_said(v: Variant) {
    if missing() {
        return;
    }
    let rig = v.start();
    let dir = scratch();
    let server = Server::start(dir.path());
    fs::create_dir(rig.path().join("d")).expect("mkdir");
    fs::write(rig.path().join("d/.wh.x"), "").expect("written");
    rig.mount.checkpoint();
    let place = server.place("project");
    let said = fails(&mut rig.mount.command(&["push", &place]), TOOL_SECONDS);
    assert!(said.contains("d/.wh.x cannot be in an image"), "{said}");
    assert!(server.inspect("project:latest").is_none());
    fs::remove_file(rig.path().join("d/.wh.x")).expect("removed");
    sh(
        rig.path(),
        "echo x > a; ln a b; setfattr -n user.a=b -v 1 a",
    );
    rig.mount.checkpoint();
    let first = push(&rig, &place, "latest");
    assert_eq!(
        (&first["parted_links"], &first["xattrs_lost"]),
        (&Value::from(0), &Value::from(1)),
        "{first}"
    );
    for (place, why) in [
        (
            server.place(
                "project@sha256:0000000000000000000000000000000000000000000000000000000000000000",
            ),
            "under a tag",
        ),
        ("oci://project".to_owned(), "does not begin with a host"),
        (server.place("Project"), "no place in a registry"),
    ] {
        let said = fails(
            &mut rig.mount.command(&["push", &place, "latest"]),
            TOOL_SECONDS,
        );
        assert!(said.contains(why), "{said}");
    }
    let said = fails(
        &mut rig.mount.command(&["push", &place, "1", "2"]),
        TOOL_SECONDS,
    );
    assert!(said.contains("one checkpoint"), "{said}");
}

/// Credentials come from the environment or from the files of docker and podman. No message
/// contains them, and no credential helper runs.
fn logins(v: Variant) {
    if missing() {
        return;
    }
    let rig = v.start();
    fs::write(rig.path().join("f"), "f").expect("written");
    rig.mount.checkpoint();
    let dir = scratch();
    let server = Server::with(dir.path(), true);
    let place = server.place("project");
    let push = |variables: &[(&str, &str)]| {
        let mut command = rig.mount.command(&["push", &place]);
        without_logins(&mut command).envs(variables.iter().copied());
        command
    };
    let said = fails(&mut push(&[]), TOOL_SECONDS);
    assert!(
        said.contains("does not allow") && said.contains("CKPTFS_REGISTRY_USER"),
        "{said}"
    );
    let wrong = [
        ("CKPTFS_REGISTRY_USER", "user"),
        ("CKPTFS_REGISTRY_PASSWORD", "not-this-one"),
    ];
    let said = fails(push(&wrong).env("CKPTFS_LOG", "debug"), TOOL_SECONDS);
    assert!(
        said.contains("the name or the password is wrong") && !said.contains("not-this-one"),
        "{said}"
    );
    // A credential helper that records its execution.
    let (home, ran) = (dir.path().join("home"), dir.path().join("ran"));
    sh(
        dir.path(),
        &format!(
            "mkdir -p home/.docker bin; printf '#!/bin/sh\\ntouch {}\\n' > bin/docker-credential-x; chmod 755 bin/*",
            ran.display()
        ),
    );
    let config = home.join(".docker/config.json");
    fs::write(&config, r#"{"credsStore": "x"}"#).expect("written");
    let home = home.to_str().expect("a path").to_owned();
    let path = format!(
        "{}/bin:{}",
        dir.path().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let with_home = [("HOME", home.as_str()), ("PATH", &path)];
    let said = fails(&mut push(&with_home), TOOL_SECONDS);
    assert!(
        said.contains("credential helper is not asked") && !ran.exists(),
        "{said}"
    );
    // base64 of user:secret.
    let auth = format!(
        r#"{{"auths": {{"127.0.0.1:{}": {{"auth": "dXNlcjpzZWNyZXQ="}}}}}}"#,
        server.port
    );
    fs::write(&config, auth).expect("written");
    let output = succeeds(push(&with_home).env("CKPTFS_LOG", "debug"), TOOL_SECONDS);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("dXNlcjpzZWNyZXQ"));
    let right = [
        ("CKPTFS_REGISTRY_USER", "user"),
        ("CKPTFS_REGISTRY_PASSWORD", "secret"),
    ];
    let into = dir.path().join("pulled");
    let mut pull = ckptfs(&["pull", &place, "--into", into.to_str().expect("a path")]);
    succeeds(pull.envs(right), TOOL_SECONDS);
    assert_is(&copy_at(&into), &tree(rig.path()), true);
    assert!(!has_store(&into), "{}", into.display());
}

fn has_store(dir: &Path) -> bool {
    dir.join(".ckptfs").exists()
}

for_each_variant! { xfs => a_history_is_read_bit_for_bit, what_is_there_is_not_sent_again, a_hundred_layers_become_one, what_cannot_be_said, logins }
