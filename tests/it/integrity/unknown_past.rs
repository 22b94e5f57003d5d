//! Paths whose past state is unknown, because they changed while unmounted or their version is
//! lost. Every verb names them with the reason and processes the rest. Those that compare, restore
//! or copy exit with 1, `verify` with 4, as for any damage.
//!
//! Failed before: `diff` was empty, `verify` found nothing, and `export` wrote no file at all.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::json;

use crate::common::command::sh;
use crate::common::{Fs, Io, Mount, OpenStore, Rig, Variant, run_limited, scratch};

const VARIANT: Variant = Variant {
    fs: Fs::Xfs,
    io: Io::Daemon,
};

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .concat()
}

/// Asserts that the verb exits with `status` and prints each of `words`.
fn tells(mount: &Mount, verb: &[&str], status: i32, words: &[&str]) -> Output {
    let output = run_limited(&mut mount.command(verb), 60);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(status), "{verb:?}: {text}");
    for word in words {
        assert!(text.contains(word), "{verb:?} does not name {word}: {text}");
    }
    output
}

fn put(path: PathBuf, content: &str) {
    fs::write(path, content).expect("write");
}

fn get(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()))
}

/// Failed before: a change past the mount was detected by ctime alone, and the next change through
/// the mount hid it, because the open epoch already had a record.
#[test]
fn what_is_changed_before_and_after_hides_nothing() {
    let mut rig = VARIANT.start_with(crate::common::MountOpts::new(VARIANT.io), |dir| {
        fs::create_dir(dir.join("d")).unwrap();
        ["d/moved", "d/stays", "a"]
            .iter()
            .for_each(|path| put(dir.join(path), "one"));
    });
    let root = rig.path().to_owned();
    let touch = |number: u32| {
        put(root.join(format!("d/new{number}")), "new");
        fs::set_permissions(root.join("a"), Permissions::from_mode(0o600 + number)).unwrap();
    };
    let first = rig.mount.checkpoint();
    touch(0);
    let second = rig.mount.checkpoint();
    for number in 1..3 {
        touch(number);
        rig.mount.umount();
        fs::remove_file(root.join(".ckptfs/baseline")).unwrap();
        let _ = fs::remove_dir_all(root.join(".ckptfs/kept"));
        fs::rename(root.join("d/moved"), root.join("d/other")).unwrap();
        put(root.join("a"), "changed");
        rig.mount.remount();
        touch(number + 2);
        for id in [first, second] {
            let view = rig.mount.view(id);
            let listed = fs::read_dir(view.join("d"))
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map(|names| names.len());
            assert_eq!(
                listed.map_err(|error| error.raw_os_error()),
                Err(Some(libc::EIO)),
                "{number}: names at checkpoint {id}"
            );
            assert_eq!(
                fs::read(view.join("a")).map_err(|error| error.raw_os_error()),
                Err(Some(libc::EIO)),
                "{number}: content at checkpoint {id}"
            );
        }
        fs::rename(root.join("d/other"), root.join("d/moved")).unwrap();
    }
    let third = rig.mount.checkpoint();
    touch(5);
    assert_eq!(
        fs::read_dir(rig.mount.view(third).join("d"))
            .unwrap()
            .count(),
        7
    );
    assert_eq!(get(&rig.mount.view(third).join("a")), "changed");
}

#[test]
fn what_was_changed_while_nothing_was_mounted() {
    let mut rig = VARIANT.start_with(crate::common::MountOpts::new(VARIANT.io), |dir| {
        fs::create_dir_all(dir.join("d/e")).unwrap();
        for path in ["a", "b", "d/gone", "d/known", "d/e/deep"] {
            put(dir.join(path), "one");
        }
    });
    let root = rig.path().to_owned();
    rig.mount.checkpoint();
    put(root.join("b"), "two, seen");
    rig.mount.umount();
    // As after a kill or a power cut: no record of the previous state exists.
    fs::remove_file(root.join(".ckptfs/baseline")).unwrap();
    fs::remove_dir_all(root.join(".ckptfs/kept")).unwrap();
    put(root.join("a"), "two, unseen");
    put(root.join("d/new"), "unseen");
    fs::remove_file(root.join("d/gone")).unwrap();
    rig.mount.remount();
    what_compares_tells(&rig);
    copies_have_what_is_known(&rig);
    // A checkpoint is made when it is unknown whether anything changed.
    let checkpoint = rig.mount.json(&["checkpoint", "--if-changed"]);
    assert_eq!(checkpoint["id"], 2);
    // Between two checkpoints made later, nothing is unknown.
    put(root.join("a"), "three");
    let third = rig.mount.checkpoint();
    tells(&rig.mount, &["diff", "2", &third.to_string()], 0, &["M a"]);
    tells(
        &rig.mount,
        &["diff", "1", &third.to_string()],
        1,
        &["? a", "M b"],
    );
    tells(
        &rig.mount,
        &["restore", "-n", "1"],
        1,
        &["the state of a in checkpoint 1 is not known", "M b"],
    );
    tells(&rig.mount, &["restore", "1", "b"], 0, &["M b"]);
    tells(&rig.mount, &["restore", "1", "a"], 1, &["is not known"]);
    put(root.join("b"), "four");
    tells(
        &rig.mount,
        &["restore", "1", "a", "b"],
        1,
        &["the state of a in checkpoint 1 is not known", "M b"],
    );
    assert_eq!(
        (get(&root.join("a")), get(&root.join("b"))),
        ("three".into(), "one".into())
    );
    put(root.join("b"), "five");
    tells(
        &rig.mount,
        &["restore", "1"],
        1,
        &["the state of a in checkpoint 1 is not known", "M b"],
    );
    assert_eq!(
        (
            get(&root.join("a")),
            get(&root.join("b")),
            get(&root.join("d/new"))
        ),
        ("three".into(), "one".into(), "unseen".into())
    );
}

/// Commands that compare report unknown states with the reason.
fn what_compares_tells(rig: &Rig) {
    let why = "changed while nothing was mounted";
    tells(
        &rig.mount,
        &["status"],
        0,
        &["? a", "? d\n", "? d/new", "M b"],
    );
    tells(
        &rig.mount,
        &["diff", "1"],
        1,
        &["? a", "? d/new", "M b", why],
    );
    tells(
        &rig.mount,
        &["diff", "1", "--name-only"],
        1,
        &["a\n", "b\n"],
    );
    tells(&rig.mount, &["diff", "1", "--stat"], 1, &["? a"]);
    tells(
        &rig.mount,
        &["diff", "1", "--patch"],
        1,
        &["-one", "+two, seen", "a is not in the patch"],
    );
    let changes: serde_json::Value =
        serde_json::from_slice(&tells(&rig.mount, &["--json", "diff", "1"], 1, &[]).stdout)
            .unwrap();
    let of = |path: &str| {
        changes
            .as_array()
            .unwrap()
            .iter()
            .find(|change| change["path"] == path)
            .cloned()
            .unwrap()
    };
    assert_eq!(
        (&of("a")["change"], &of("a")["why"]),
        (&json!("?"), &json!("changed-unseen"))
    );
    assert_eq!(of("b")["change"], "M");
    tells(&rig.mount, &["verify"], 4, &["a", "changed-unseen"]);
    tells(&rig.mount, &["log", "a"], 0, &["?"]);
}

/// A copy contains exactly the files whose state is known.
fn copies_have_what_is_known(rig: &Rig) {
    let dest = scratch();
    let copy = dest.path().join("copy");
    tells(
        &rig.mount,
        &["export", "1", copy.to_str().unwrap()],
        1,
        &["a: ", "d: ", "d/new: "],
    );
    assert_eq!(
        (
            get(&copy.join("b")),
            get(&copy.join("d/known")),
            get(&copy.join("d/e/deep"))
        ),
        ("one".into(), "one".into(), "one".into())
    );
    assert!(!copy.join("a").exists() && !copy.join("d/new").exists());
    let tar = tells(&rig.mount, &["export", "1", "-"], 1, &[]);
    fs::write(dest.path().join("t"), &tar.stdout).unwrap();
    let listed = sh(
        dest.path(),
        "mkdir x && tar -x -C x -f t && find x -type f | sort",
    );
    assert_eq!(listed.trim(), "x/b\nx/d/e/deep\nx/d/known");
    let fork = rig.image.path().join("fork");
    tells(
        &rig.mount,
        &["fork", "1", fork.to_str().unwrap()],
        1,
        &["a: "],
    );
    assert_eq!(get(&fork.join("b")), "one");
}

/// One version is missing from the store, and another is truncated.
#[test]
fn what_was_lost_from_the_store() {
    let mut rig = VARIANT.start_with(crate::common::MountOpts::new(VARIANT.io), |dir| {
        fs::create_dir(dir.join("d")).unwrap();
        for path in ["a", "b", "d/gone", "d/removed", "same", "short"] {
            put(dir.join(path), path);
        }
    });
    let root = rig.path().to_owned();
    rig.mount.checkpoint();
    changed_and_damaged(&rig);
    let why = "a version of it is lost or damaged";
    // A file of another size differs for certain; one with the same size and times is unknown.
    tells(
        &rig.mount,
        &["diff", "1"],
        1,
        &[
            "M a",
            "M b",
            "M d/gone",
            "D d/removed",
            "M short",
            "? same",
            why,
        ],
    );
    tells(
        &rig.mount,
        &["verify"],
        4,
        &["object-missing", "object-size"],
    );
    for path in ["a", "b", "d/gone"] {
        tells(&rig.mount, &["log", path], 0, &[]);
    }
    tells(&rig.mount, &["du"], 0, &[]);
    let dest = scratch();
    let copy = dest.path().join("copy");
    tells(
        &rig.mount,
        &["export", "1", copy.to_str().unwrap()],
        1,
        &["a: ", "d/gone: ", "same: ", "short: "],
    );
    assert_eq!(
        (get(&copy.join("b")), get(&copy.join("d/removed"))),
        ("b".into(), "d/removed".into())
    );
    let restored = tells(&rig.mount, &["--json", "restore", "1"], 1, &[]);
    let restored: serde_json::Value = serde_json::from_slice(&restored.stdout).unwrap();
    assert_eq!(restored["unknown"], json!(["a", "d/gone", "same", "short"]));
    let now = |path: &str| get(&root.join(path));
    assert_eq!(
        (now("b"), now("d/removed")),
        ("b".into(), "d/removed".into()),
        "all other files are restored"
    );
    assert_eq!(
        (now("a"), now("short"), now("d/gone")),
        (
            "later, and longer".into(),
            "later, and longer".into(),
            "another".into()
        )
    );
    rig.mount.umount();
}

/// Makes changes and a checkpoint, then damages the versions of these files.
fn changed_and_damaged(rig: &Rig) {
    let root = rig.path().to_owned();
    let ino =
        |path: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(root.join(path)).unwrap());
    let (a, gone, short, same) = (ino("a"), ino("d/gone"), ino("short"), ino("same"));
    sh(
        &root,
        "cp -p same ../stamp; echo -n SAME > same; touch -r ../stamp same",
    );
    for path in ["a", "b", "short"] {
        put(root.join(path), "later, and longer");
    }
    fs::remove_file(root.join("d/gone")).unwrap();
    fs::remove_file(root.join("d/removed")).unwrap();
    put(root.join("d/gone"), "another");
    rig.mount.checkpoint();
    let store = OpenStore::of(&root);
    let objects = store.file("layers/2/objects");
    for entry in fs::read_dir(&objects)
        .unwrap()
        .map(|entry| entry.unwrap().path())
    {
        let name = entry.file_name().unwrap().to_string_lossy().into_owned();
        if [a, gone, same]
            .iter()
            .any(|slot| name.starts_with(&format!("{slot}-")))
        {
            fs::remove_file(&entry).unwrap();
        } else if name.starts_with(&format!("{short}-")) {
            fs::OpenOptions::new()
                .write(true)
                .open(&entry)
                .unwrap()
                .set_len(2)
                .unwrap();
        }
    }
}
