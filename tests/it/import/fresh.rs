//! Import into a new directory.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::support::ImportRig;
use crate::common::command::{fails, sh};
use crate::common::tree::{NodeKind, assert_same, tree};
use crate::common::{Variant, for_each_variant, sample_tree};

fn a_tree_of_all_kinds_becomes_a_checkpoint(v: Variant) {
    let place = ImportRig::new(v);
    sample_tree(&place.project());
    let made = place.bring();
    assert_eq!(
        (
            &made["checkpoint"],
            &made["unchanged"],
            made["left_out"].as_array().map(Vec::len)
        ),
        (&1.into(), &false.into(), Some(0)),
        "{made}"
    );
    place.assert_equal();
    // An independent count.
    let project = tree(&place.project());
    let count =
        |wanted: fn(&NodeKind) -> bool| project.values().filter(|node| wanted(&node.kind)).count();
    let files = count(|kind| matches!(kind, NodeKind::File { .. }));
    let dirs = count(|kind| *kind == NodeKind::Dir);
    let bytes: u64 = project
        .values()
        .filter(|node| matches!(node.kind, NodeKind::File { .. }))
        .map(|node| node.size)
        .sum();
    assert_eq!(
        [&made["files"], &made["dirs"], &made["others"]],
        [files, dirs, project.len() - files - dirs],
        "{made}"
    );
    assert_eq!(made["bytes"], bytes, "{made}");
    // A file with several names is imported once.
    let once: u64 = project
        .values()
        .filter(|node| node.linked_to.is_none() && matches!(node.kind, NodeKind::File { .. }))
        .map(|node| node.size)
        .sum();
    let (shared, copied) = if v.fs.has_reflink() {
        (once, 0)
    } else {
        (0, once)
    };
    assert_eq!(
        (&made["shared_bytes"], &made["copied_bytes"]),
        (&shared.into(), &copied.into()),
        "{made}"
    );
    assert_eq!(
        made["copied_because"].as_str(),
        (copied > 0).then_some("the filesystem cannot share extents")
    );
    let blocks = |path: &str| {
        std::fs::metadata(place.image.path().join(path).join("sparse"))
            .expect("sparse")
            .blocks()
    };
    assert!(
        blocks("tree") < 4096 && blocks("project") < 4096,
        "holes are preserved"
    );
    let mount = place.mount();
    assert_same(&tree(&mount.view(1)), &tree(&place.project()));
    let found = mount.json(&[
        "log",
        "--label",
        &format!("Imported={}", place.project().display()),
    ]);
    assert_eq!(found[0]["id"], 1);
}

fn each_directory_is_a_checkpoint_in_the_order_given(v: Variant) {
    let place = ImportRig::new(v);
    sh(
        place.image.path(),
        "mkdir -p b/sub a; echo 1 > b/sub/f; ln b/sub/f b/g; echo same > b/same
         cp -a b/same a/same; echo 2 > a/sub; mkfifo a/g; echo b > a/more",
    );
    let told = place.import(&[
        "b",
        "a",
        "b",
        "--into",
        "tree",
        "--tag",
        "v3",
        "--threads",
        "1",
    ]);
    let ids: Vec<_> = told["checkpoints"]
        .as_array()
        .expect("array")
        .iter()
        .map(|made| made["checkpoint"].clone())
        .collect();
    assert_eq!(ids, [1, 2, 3], "{told}");
    let mount = place.mount();
    for (id, from) in [(1, "b"), (2, "a"), (3, "b")] {
        assert_same(
            &tree(&mount.view(id)),
            &tree(&place.image.path().join(from)),
        );
    }
    let log = mount.log_json();
    let tags: Vec<_> = log
        .as_array()
        .expect("log")
        .iter()
        .map(|checkpoint| checkpoint["tags"].clone())
        .collect();
    assert_eq!(
        serde_json::json!(tags),
        serde_json::json!([["v3"], [], []]),
        "{log}"
    );
    assert_eq!(mount.json(&["verify", "--deep"])["ok"], true);
}

fn only_looking_changes_nothing(v: Variant) {
    let place = ImportRig::new(v);
    sample_tree(&place.project());
    let told = place.import(&["-n", "project", "--into", "tree"]);
    assert!(
        !place.tree().exists()
            && told["dry_run"] == true
            && told["checkpoints"][0]["made"].as_u64() > Some(300),
        "{told}"
    );
    place.bring();
    sh(&place.project(), "echo more > new; rm plain.txt");
    let before = (
        tree(&place.tree()),
        sh(
            &place.tree(),
            "cat .ckptfs/imported .ckptfs/imported-as .ckptfs/journal/* | sha256sum",
        ),
    );
    let told = place.import(&["-n", "project", "--into", "tree"])["checkpoints"][0].clone();
    // The new file, the root, the remaining names of plain.txt, and their directory.
    assert_eq!(
        (&told["removed"], &told["unchanged"]),
        (&1.into(), &false.into()),
        "{told}"
    );
    assert!(told["made"].as_u64() >= Some(2), "{told}");
    assert_eq!(
        before,
        (
            tree(&place.tree()),
            sh(
                &place.tree(),
                "cat .ckptfs/imported .ckptfs/imported-as .ckptfs/journal/* | sha256sum"
            )
        )
    );
}

fn of_a_tree_of_ours_the_files_are_imported_and_not_the_history(v: Variant) {
    let place = ImportRig::new(v);
    sh(&place.project(), "echo 1 > f; mkdir sub");
    let ckptfs = env!("CARGO_BIN_EXE_ckptfs");
    sh(
        &place.project(),
        &format!("{ckptfs} mount . >/dev/null; {ckptfs} checkpoint; echo 2 > f"),
    );
    // First mounted, then unmounted.
    for (into, left) in [("one", 0), ("two", 1)] {
        let told = place.import(&["project", "--into", into])["checkpoints"][0].clone();
        let paths: Vec<_> = told["left_out"]
            .as_array()
            .expect("array")
            .iter()
            .map(|left| (left["path"].clone(), left["why"].clone()))
            .collect();
        assert_eq!(
            paths,
            vec![(".ckptfs".into(), "history".into()); left],
            "{told}"
        );
        assert_same(
            &tree(&place.image.path().join(into)),
            &tree(&place.project()),
        );
        let log = sh(
            place.image.path(),
            &format!("{ckptfs} -C {into} log --json"),
        );
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&log)
                .expect("json")
                .as_array()
                .map(Vec::len),
            Some(1),
            "its own history begins"
        );
        sh(
            place.image.path(),
            &format!("{ckptfs} umount project >/dev/null 2>&1 || true"),
        );
    }
}

fn what_is_no_place_for_a_tree_is_refused(v: Variant) {
    let place = ImportRig::new(v);
    sh(
        place.image.path(),
        "echo 1 > project/f; mkdir full; echo mine > full/mine",
    );
    let refused = |arguments: &[&str], code: &str| {
        let error: serde_json::Value =
            serde_json::from_str(&fails(&mut place.command(arguments), 60)).expect("json");
        assert_eq!(error["error"]["code"], code, "{error}");
        assert!(error["error"]["hint"].is_string(), "{error}");
    };
    refused(&["project", "--into", "full"], "not-empty");
    refused(&["project", "--into", "project/sub"], "bad-destination");
    refused(&["full", "project", "--into", "project"], "bad-destination");
    refused(&["project", "full"], "usage");
    refused(&["project/f", "--into", "tree"], "not-a-directory");
    refused(&["project", "--series", "--into", "tree"], "not-found");
    assert_eq!(sh(&place.project(), "ls -A"), "f\n");
    assert!(!place.tree().exists());
    assert!(Path::new(&place.image.path().join("full/mine")).exists());
    // Without `--into` the tree is made next to the source; `--tree` overrides the detection of a
    // series of dated directories.
    sh(
        place.image.path(),
        "mkdir -p 2026/2026-01-01 2026/2026-01-02",
    );
    assert_eq!(
        place.import(&["--tree", "2026"])["checkpoints"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    assert!(place.image.path().join("2026-history/2026-01-02").is_dir());
}

for_each_variant! { xfs => each_directory_is_a_checkpoint_in_the_order_given, of_a_tree_of_ours_the_files_are_imported_and_not_the_history }
for_each_variant! { all => a_tree_of_all_kinds_becomes_a_checkpoint }

#[test]
fn only_looking_changes_nothing_on_xfs() {
    on_xfs(only_looking_changes_nothing);
}

#[test]
fn what_is_no_place_for_a_tree_is_refused_on_xfs() {
    on_xfs(what_is_no_place_for_a_tree_is_refused);
}

fn on_xfs(test: fn(Variant)) {
    let variant = Variant {
        fs: crate::common::Fs::Xfs,
        io: crate::common::Io::Daemon,
    };
    match variant.unavailable() {
        Some(reason) => crate::common::skip(&reason),
        None => test(variant),
    }
}
