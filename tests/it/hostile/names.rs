//! Misleading names, and mounts whose path is not UTF-8.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::support::{put, tree};
use crate::common::{Fs, Image, Io, Mount, MountOpts, Variant, for_each_variant, skip, succeeds};

for_each_variant! { xfs => every_odd_name_is_a_name }

/// Names that a careless program takes for a parent directory, an option, two names, a terminal
/// escape, or invalid text.
fn odd_names() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = [
        &b"..."[..],
        b"..a",
        b"a..",
        b".. ",
        b"-rf",
        b"--all",
        b" ",
        b"a\nb",
        b"\n",
        b"\x1b[31mred",
        b"\x1b]0;title\x07",
        b"back\\slash",
        b"quo\"te",
        b"$(id)",
        b"%s%n",
        b"\xff",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\x7f",
        "evil\u{202e}txt.exe".as_bytes(),
        b"1",
        b"latest",
        b".snapshots2",
    ]
    .map(<[u8]>::to_vec)
    .to_vec();
    names.push(vec![0xff; 255]);
    names.push((1..=255).filter(|byte| *byte != b'/').collect());
    names
}

/// Decodes a path in JSON into its bytes, as a program that reads `--json` does.
pub fn path_of(value: &Value) -> Vec<u8> {
    use base64::Engine;
    match value {
        Value::String(text) => text.clone().into_bytes(),
        other => base64::engine::general_purpose::STANDARD
            .decode(other["base64"].as_str().expect("base64"))
            .expect("base64"),
    }
}

fn every_odd_name_is_a_name(v: Variant) {
    let rig = v.start();
    let root = rig.path();
    let names = odd_names();
    for name in &names {
        put(root.join(OsStr::from_bytes(name)), name);
    }
    let id = rig.mount.checkpoint();
    let was = tree(root);
    for name in &names {
        put(root.join(OsStr::from_bytes(name)), b"changed");
    }
    let mut sorted = names.clone();
    sorted.sort();
    let changes = rig.mount.diff_json(&id.to_string(), None);
    let told: Vec<Vec<u8>> = changes
        .as_array()
        .expect("a list")
        .iter()
        .map(|change| path_of(&change["path"]))
        .collect();
    assert_eq!(told, sorted, "--json prints every name, byte for byte");
    let listed = rig
        .mount
        .run(&["diff", &id.to_string(), "--name-only", "-z"])
        .stdout;
    let listed: Vec<&[u8]> = listed
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .collect();
    assert_eq!(listed, sorted, "and so does -z");
    for name in &names {
        let path = OsStr::from_bytes(name);
        assert_eq!(
            &fs::read(rig.view(id).join(path)).expect("in the view"),
            name
        );
        succeeds(
            rig.mount
                .command(&["restore", "--times=kept", &id.to_string(), "--"])
                .arg(root.join(path)),
            60,
        );
        assert_eq!(&fs::read(root.join(path)).expect("in the tree"), name);
    }
    crate::common::tree::assert_tree_is(
        root,
        &was,
        &crate::common::TreeOpts {
            dir_mtime: false,
            ..Default::default()
        },
    );
}

/// Failed before: `status` encoded the path of the mount as text, and failed; two such directories
/// had the same source in the mount table.
#[test]
fn a_mount_whose_path_is_no_text_is_a_mount() {
    if let Some(reason) = Fs::Xfs.unavailable() {
        return skip(&reason);
    }
    let image = Image::of(Fs::Xfs);
    let dirs: Vec<PathBuf> = [&b"p\xff\x1b[31m\n,x"[..], b"p\xfe\x1b[31m\n,x"]
        .iter()
        .map(|name| image.path().join(OsStr::from_bytes(name)))
        .collect();
    for dir in &dirs {
        fs::create_dir(dir).expect("mkdir");
    }
    let is = |value: &Value, path: &Path| assert_eq!(path_of(value), path.as_os_str().as_bytes());
    for dir in &dirs {
        let output = Mount::try_start(dir, &MountOpts::new(Io::Daemon).arg("--json"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        is(
            &serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["mount"],
            dir,
        );
    }
    let ckptfs = || crate::common::tool(env!("CARGO_BIN_EXE_ckptfs"), &[] as &[&str]);
    for dir in &dirs {
        let ask = |verb: &str| -> Value {
            let output = succeeds(ckptfs().arg("-C").arg(dir).args([verb, "--json"]), 60);
            serde_json::from_slice(&output.stdout).expect("JSON")
        };
        is(&ask("status")["backing"], dir);
        assert_eq!(ask("checkpoint")["id"], 1);
        let doctor = crate::common::run_limited(ckptfs().arg("doctor").arg(dir).arg("--json"), 60);
        is(
            &serde_json::from_slice::<Value>(&doctor.stdout).expect("JSON")["directory"],
            dir,
        );
        let output = succeeds(ckptfs().arg("umount").arg(dir).arg("--json"), 60);
        is(
            &serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["unmounted"],
            dir,
        );
    }
}
