//! Malicious images: pull writes nothing outside the directory, grants no privileges, and detects
//! malformed images before it creates anything.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use super::images::pull;
use super::server::{Server, ckptfs, missing};
use crate::common::command::{TOOL_SECONDS, succeeds, wait_limited};
use crate::common::run_dir::script;
use crate::common::tree::names;
use crate::common::{fails, scratch, tool};

/// Pushes an image with these layers to the registry.
fn put(server: &Server, dir: &Path, name: &str, layers: &Value) {
    let layout = dir.join(name);
    let mut python = tool("python3", &[script("it/remote/oci/image.py")]);
    let mut child = python
        .arg(&layout)
        .stdin(Stdio::piped())
        .spawn()
        .expect("python3 runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin
        .write_all(layers.to_string().as_bytes())
        .expect("written");
    drop(stdin);
    let limit = std::time::Duration::from_secs(TOOL_SECONDS);
    assert!(wait_limited(&mut child, limit).is_some_and(|status| status.success()));
    let (from, to) = (
        format!("oci:{}:x", layout.display()),
        format!("docker://127.0.0.1:{}/{name}", server.port),
    );
    let copy = [
        "copy",
        "--quiet",
        "--insecure-policy",
        "--dest-tls-verify=false",
        &from,
        &to,
    ];
    succeeds(&mut tool("skopeo", &copy), TOOL_SECONDS);
}

fn file(name: &str) -> Value {
    json!({"name": name, "data": "harm"})
}

/// Images that would write to `away`, or are malformed.
fn harmful(away: &str) -> Vec<(&'static str, Value)> {
    let to = |target: &str| json!({"name": "d", "type": "symlink", "link": target});
    vec![
        ("dots", json!([[file("../outside/new")]])),
        ("dots-within", json!([[file("a/../../outside/new")]])),
        ("through-a-link", json!([[to(away), file("d/new")]])),
        (
            "through-a-relative-link",
            json!([[to("../outside"), file("d/new")]]),
        ),
        ("through-a-lower-link", json!([[to(away)], [file("d/new")]])),
        (
            "a-link-to-outside",
            json!([[{"name": "l", "type": "link", "link": "../outside/kept"}]]),
        ),
        (
            "a-link-through-a-link",
            json!([[to(away), {"name": "l", "type": "link", "link": "d/kept"}]]),
        ),
        ("whiteout-of-what-is-above", json!([[file("a/.wh...")]])),
        (
            "whiteout-through-a-link",
            json!([[to(away)], [file("d/.wh.kept"), file("d/x")]]),
        ),
        (
            "no-root",
            json!([[{"name": "./", "type": "file", "data": ""}, file("./")], [{"name": ".", "type": "symlink", "link": away}]]),
        ),
        ("sparse", json!([[{"name": "s", "type": "sparse"}]])),
        (
            "sparse-by-pax",
            json!([[{"name": "s", "data": "1\n", "pax": {"GNU.sparse.major": "1"}}]]),
        ),
        ("no-tar", json!([{"raw": "bm8gdGFyIGF0IGFsbA=="}])),
        (
            "another-layer",
            json!([{"raw": "", "diff_id": format!("sha256:{}", "0".repeat(64))}]),
        ),
        ("below-a-file", json!([[file("f")], [file("f/g")]])),
    ]
}

#[test]
fn nothing_is_written_elsewhere() {
    if missing() {
        return;
    }
    let dir = scratch();
    let server = Server::start(dir.path());
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).expect("mkdir");
    fs::write(outside.join("kept"), "kept").expect("written");
    let away = outside.to_str().expect("a path");
    for (name, layers) in harmful(away) {
        put(&server, dir.path(), name, &layers);
        let into = dir.path().join(format!("into-{name}"));
        let mut command = ckptfs(&[
            "pull",
            &server.place(name),
            "--into",
            into.to_str().expect("a path"),
        ]);
        let said = fails(&mut command, TOOL_SECONDS);
        assert!(
            said.contains("layer") && !said.contains("panick"),
            "{name}: {said}"
        );
        assert!(names(&into).is_empty(), "{name}: {:?}", names(&into));
        assert_eq!(names(&outside), ["kept"], "{name}");
        assert_eq!(
            fs::read_to_string(outside.join("kept")).expect("there"),
            "kept",
            "{name}"
        );
        assert_eq!(
            fs::metadata(outside.join("kept")).expect("there").nlink(),
            1,
            "{name}"
        );
    }
}

/// Absolute names are relative to the directory. Links are created with their targets, and nothing
/// is written through them.
#[test]
fn odd_names_stay_below() {
    if missing() {
        return;
    }
    let dir = scratch();
    let server = Server::start(dir.path());
    let layers = json!([
        [file("/abs/file"), file("./a//b/./c"), {"name": "passwd", "type": "symlink", "link": "/etc/passwd"},
         {"name": "hard", "type": "link", "link": "/abs/file"}, {"name": "dir", "type": "dir", "mode": 0o755}, file("dir/old"), file("gone")],
        [file(".wh.gone"), {"name": "dir", "type": "dir", "mode": 0o700}, file("dir/new"), file("dir/.wh..wh..opq"),
         {"name": "passwd", "type": "file", "data": "mine"}, file(".wh..wh.plnk"), file("sub/dir/x"), file(".wh.abs")],
    ]);
    put(&server, dir.path(), "odd", &layers);
    let into = dir.path().join("into");
    pull(&server.place("odd"), &into, &[]);
    assert_eq!(names(&into), ["a", "dir", "hard", "passwd", "sub"]);
    assert_eq!(names(into.join("dir")), ["new"]);
    assert_eq!(
        fs::read_to_string(into.join("passwd")).expect("there"),
        "mine"
    );
    assert_eq!(
        fs::read_to_string(into.join("hard")).expect("there"),
        "harm"
    );
    assert_eq!(
        fs::read_to_string(into.join("a/b/c")).expect("there"),
        "harm"
    );
    assert_eq!(
        fs::metadata(into.join("dir")).expect("there").mode() & 0o7777,
        0o700
    );
}

/// Images grant no privileges unless `--trusted` is given, and never contain a store.
#[test]
fn nobody_gets_rights() {
    if missing() {
        return;
    }
    let dir = scratch();
    let server = Server::start(dir.path());
    let capability = "\u{1}\u{0}\u{0}\u{2}\u{0} \u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}";
    let layers = json!([[
        {"name": "shell", "data": "#!", "mode": 0o6755},
        {"name": "capable", "data": "#!", "pax": {"SCHILY.xattr.security.capability": capability, "SCHILY.xattr.user.note": "a\nb"}},
        {"name": "null", "type": "char", "major": 1, "minor": 3},
        {"name": "marked", "type": "dir", "mode": 0o755, "pax": {"SCHILY.xattr.user.ckptfs.export": "1 s 5 whole"}},
        file(".ckptfs/format"), file("d/.ckptfs"),
    ]]);
    put(&server, dir.path(), "rights", &layers);
    let into = dir.path().join("into");
    let pulled = pull(&server.place("rights"), &into, &[]);
    assert_eq!(
        (
            &pulled["devices_left_out"],
            &pulled["set_ids_left_out"],
            &pulled["checkpoint"]
        ),
        (&json!(1), &json!(1), &Value::Null),
        "{pulled}"
    );
    assert_eq!(names(&into), ["capable", "d", "marked", "shell"]);
    assert_eq!(names(into.join("d")), [".ckptfs"]);
    assert_eq!(
        fs::metadata(into.join("shell")).expect("there").mode() & 0o7777,
        0o755
    );
    let has = |path: &str, name: &str| {
        rustix::fs::getxattr(into.join(path), name, &mut [0; 64][..]).is_ok()
    };
    assert!(!has("capable", "security.capability") && has("capable", "user.note"));
    assert!(!has("marked", "user.ckptfs.export"));
    let trusted = dir.path().join("trusted");
    pull(&server.place("rights"), &trusted, &["--trusted"]);
    assert_eq!(names(&trusted), ["capable", "d", "marked", "null", "shell"]);
    assert_eq!(
        fs::metadata(trusted.join("shell"))
            .expect("there")
            .permissions()
            .mode()
            & 0o7777,
        0o6755
    );
    assert!(
        fs::metadata(trusted.join("null"))
            .expect("there")
            .file_type()
            .is_char_device()
    );
}

/// Failed before: a path of 2,000 levels became 2,000 directories, each with its whole path.
#[test]
fn directories_within_each_other_have_a_limit() {
    if missing() {
        return;
    }
    let dir = scratch();
    let server = Server::start(dir.path());
    for (levels, is_fine) in [(1024, true), (1025, false)] {
        let name = format!("deep-{levels}");
        let path = format!("{}f", "d/".repeat(levels - 1));
        put(&server, dir.path(), &name, &json!([[file(&path)]]));
        let into = dir.path().join(format!("into-{levels}"));
        let place = server.place(&name);
        if is_fine {
            pull(&place, &into, &[]);
            assert_eq!(names(&into), ["d"]);
            succeeds(
                &mut tool("rm", &["-rf", into.to_str().expect("a path")]),
                TOOL_SECONDS,
            );
            continue;
        }
        let mut command = ckptfs(&["pull", &place, "--into", into.to_str().expect("a path")]);
        let said = fails(&mut command, TOOL_SECONDS);
        assert!(
            said.contains("more than 1024 directories within each other"),
            "{said}"
        );
        assert!(names(&into).is_empty());
    }
}

/// A blob does not match its digest in the manifest.
#[test]
fn a_blob_that_was_changed_in_the_registry() {
    if missing() {
        return;
    }
    let dir = scratch();
    let server = Server::start(dir.path());
    put(&server, dir.path(), "image", &json!([[file("f")]]));
    let blobs = server.blobs().join("docker/registry/v2/blobs/sha256");
    let mut changed = 0;
    for blob in names(&blobs).iter().flat_map(|two| {
        let two = blobs.join(two);
        names(&two)
            .into_iter()
            .map(move |name| two.join(name).join("data"))
    }) {
        let mut bytes = fs::read(&blob).expect("a blob");
        // Only a layer is compressed.
        if bytes.starts_with(&[0x1f, 0x8b]) {
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            fs::write(&blob, bytes).expect("written");
            changed += 1;
        }
    }
    assert_eq!(changed, 1);
    let into = dir.path().join("into");
    let mut command = ckptfs(&[
        "pull",
        &server.place("image"),
        "--into",
        into.to_str().expect("a path"),
    ]);
    let said = fails(&mut command, TOOL_SECONDS);
    assert!(said.contains("is not sha256:"), "{said}");
    assert!(names(&into).is_empty());
}
