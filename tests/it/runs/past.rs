//! `ckptfs run --at` and `ckptfs bisect`: commands in the tree of a checkpoint.

use std::fs;
use std::path::Path;

use crate::common::command::sh;
use crate::common::tree::assert_tree_is;
use crate::common::user::{self, USER};
use crate::common::{
    Fs, Image, Rig, TreeOpts, Variant, for_each_variant, run_limited, sample_tree, scratch, tree_of,
};

/// Runs a shell script at a checkpoint.
fn at(rig: &Rig, id: u64, script: &str) -> String {
    rig.mount
        .ok(&["run", "--at", &id.to_string(), "--", "bash", "-euc", script])
}

/// A command sees the checkpoint at the original path and can change it; no other process sees the
/// changes.
fn a_command_works_in_the_tree_as_it_was(variant: Variant) {
    let rig = variant.start();
    sample_tree(rig.path());
    fs::create_dir_all(rig.path().join("work/dir")).unwrap();
    fs::write(rig.path().join("work/dir/file"), "then\n").unwrap();
    let copies = scratch();
    let then = tree_of(rig.path());
    let id = rig.mount.checkpoint();
    sh(
        rig.path(),
        "echo now > work/dir/file; find . -mindepth 1 -maxdepth 1 -not -name work | head -2 | xargs rm -rf; echo > later",
    );
    let now = tree_of(rig.path());
    let seen = copies.path().join("seen");
    at(
        &rig,
        id,
        &format!("cp -a --reflink=never . {}", seen.display()),
    );
    assert_tree_is(
        &seen,
        &then,
        &TreeOpts {
            xattrs: false,
            dir_mtime: false,
            ..TreeOpts::default()
        },
    );
    let change = "cat work/dir/file; mv work/dir work/moved; echo mine > work/moved/file; rm -rf .git* [a-k]*; test ! -e later; touch new; pwd";
    let said = at(&rig, id, change);
    assert_eq!(said, format!("then\n{}\n", rig.path().display()));
    assert_tree_is(rig.path(), &now, &TreeOpts::default());
    assert_tree_is(&rig.view(id), &then, &TreeOpts::default());
    assert_eq!(
        at(&rig, id, "cat work/dir/file"),
        "then\n",
        "no change remains"
    );
    assert_eq!(sh(rig.path(), "cat work/dir/file"), "now\n");
}

fn what_is_changed_in_the_past_can_be_kept(variant: Variant) {
    let rig = variant.start();
    fs::write(rig.path().join("a"), "then\n").unwrap();
    let id = rig.mount.checkpoint().to_string();
    let copies = scratch();
    let keep = copies.path().join("keep");
    let keep = keep.to_str().unwrap();
    rig.mount.ok(&[
        "run",
        "--at",
        &id,
        "--keep-changes",
        keep,
        "--",
        "sh",
        "-c",
        "echo more >> a; echo b > b",
    ]);
    assert_eq!(
        sh(Path::new(keep), "cat a b; ls -A .."),
        "then\nmore\nb\nkeep\n"
    );
    let inside = rig.path().join("keep");
    let refused = run_limited(
        &mut rig.mount.command(&[
            "run",
            "--at",
            &id,
            "--keep-changes",
            inside.to_str().unwrap(),
            "--",
            "true",
        ]),
        60,
    );
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
}

/// The search includes files ignored by version control, and leaves the tree unchanged.
fn the_first_checkpoint_in_which_a_test_fails_is_found(variant: Variant) {
    let rig = variant.start();
    let mut ids = Vec::new();
    for n in 0..12 {
        fs::write(rig.path().join("state"), format!("{n}\n")).unwrap();
        fs::write(
            rig.path().join(".ignored"),
            if n < 7 { "well" } else { "broken" },
        )
        .unwrap();
        ids.push(rig.mount.checkpoint());
    }
    let (good, bad) = (ids[0].to_string(), ids[11].to_string());
    let bisect = |test: &str| {
        let output = run_limited(
            &mut rig
                .mount
                .command(&["bisect", &good, &bad, "--json", "--", "sh", "-c", test]),
            120,
        );
        (
            output.status.code(),
            serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap_or_default(),
        )
    };
    let (code, found) = bisect("echo noise; touch made-by-test; ! grep -q broken .ignored");
    assert_eq!(
        (code, &found["first_bad"]["id"]),
        (Some(0), &ids[7].into()),
        "{found}"
    );
    assert!(
        found["steps"]
            .as_array()
            .is_some_and(|steps| (3..=6).contains(&steps.len())),
        "{found}"
    );
    let (code, found) =
        bisect("n=$(cat state); if [ $n -ge 5 ] && [ $n -le 7 ]; then exit 125; fi; [ $n -lt 6 ]");
    assert_eq!(
        (code, &found["first_bad"]),
        (Some(1), &serde_json::Value::Null),
        "{found}"
    );
    assert_eq!(
        found["candidates"],
        serde_json::json!([ids[5], ids[6], ids[7], ids[8]])
    );
    assert_eq!(bisect("exit 200").0, Some(1), "it ends");
    // Failed before: `bisect` assumed the given ends and named the last checkpoint whatever the
    // test returned.
    assert_eq!((bisect("true").0, bisect("false").0), (Some(1), Some(1)));
    guards_are_passed_over(&rig, &bad, ids[5]);
    assert!(!rig.path().join("made-by-test").exists());
}

/// `bisect` skips guard checkpoints, which the daemon makes before a restore.
fn guards_are_passed_over(rig: &Rig, bad: &str, to: u64) {
    fs::write(rig.path().join("state"), "5\n").unwrap();
    rig.mount.restore(to);
    let last = rig.mount.checkpoint();
    let mut command = rig.mount.command(&[
        "bisect",
        bad,
        &last.to_string(),
        "--json",
        "--",
        "sh",
        "-c",
        "grep -q broken .ignored",
    ]);
    let found: serde_json::Value =
        serde_json::from_slice(&run_limited(&mut command, 120).stdout).unwrap();
    assert_eq!(
        (
            &found["first_bad"]["id"],
            found["steps"].as_array().map(Vec::len)
        ),
        (&last.into(), Some(2)),
        "{found}"
    );
}

for_each_variant! { xfs => what_is_changed_in_the_past_can_be_kept, the_first_checkpoint_in_which_a_test_fails_is_found }
for_each_variant! { reflink => a_command_works_in_the_tree_as_it_was }

const STORY: &str = r#"
set -eu
ckptfs=$1 dir=$2
trap '$ckptfs umount "$dir" >/dev/null 2>&1 || $ckptfs umount -l "$dir" >/dev/null 2>&1 || true' EXIT
$ckptfs mount "$dir"
cd "$dir"
echo then > a
$ckptfs checkpoint > /dev/null
echo now > a
$ckptfs run --at 1 -- sh -c 'cat a; echo changed > a; rm b; id -u; cat a; ls'
cat a b
echo done
"#;

/// An ordinary user gets a user namespace, where permitted.
#[test]
fn an_ordinary_user_works_in_the_past() {
    if !user::can_have_a_namespace() {
        return;
    }
    let image = Image::of(Fs::Tmpfs);
    let (home, dir) = (user::home(&image), image.dir("home/project"));
    fs::write(dir.join("b"), "b\n").unwrap();
    for path in [&dir, &dir.join("b")] {
        user::own(path);
    }
    let output = user::runs(STORY, &home, &dir);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        said,
        format!("then\n{USER}\nchanged\na\nnow\nb\ndone\n"),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
