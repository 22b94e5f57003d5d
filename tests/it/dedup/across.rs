//! Deduplication across projects, mounted or not.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::story::{assert_whole, came_free, place, rewrite, trees};
use serde_json::Value;

use crate::common::space::{free, noise};
use crate::common::{
    Mount, MountOpts, NodeInfo, Rig, Variant, command::sh, for_each_variant, tree_of,
};

for_each_variant! { reflink => projects_share_what_they_have_in_common }

const PACKAGES: u64 = 20;

/// Makes a project with the packages, and one file of its own.
fn fill(root: &Path, own: u64) {
    fs::create_dir_all(root.join("packages")).unwrap();
    for number in 0..PACKAGES {
        rewrite(
            &root.join(format!("packages/{number}")),
            &noise(30_000 + 13 * number as usize, number),
        );
    }
    rewrite(&root.join("own"), &noise(50_000, 1000 + own));
}

/// Replaces the packages by other versions.
fn change(root: &Path) {
    for number in 0..PACKAGES {
        rewrite(
            &root.join(format!("packages/{number}")),
            &noise(30_000 + 17 * number as usize, 100 + number),
        );
    }
}

/// Returns the number of files shared with another project.
fn across(report: &Value) -> u64 {
    let projects = report["projects"].as_array().unwrap();
    let shared = |one: &Value| one["across"]["shared"]["files"].as_u64().unwrap();
    projects.iter().map(shared).sum()
}

fn projects_share_what_they_have_in_common(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| fill(dir, 1));
    let (dir, unserved, plain) = (
        rig.image.dir("other"),
        rig.image.dir("unserved"),
        rig.image.dir("plain"),
    );
    fill(&dir, 2);
    let other = Mount::start(&dir, &MountOpts::new(v.io));
    fill(&unserved, 3);
    let mut third = Mount::start(&unserved, &MountOpts::new(v.io));
    for mount in [&rig.mount, &other, &third] {
        mount.checkpoint();
        change(mount.path());
        mount.checkpoint();
        // The last epoch's content is captured in a closed one.
        rewrite(&mount.path().join("packages/0"), b"and on");
    }
    third.umount();
    fill(&plain, 4);
    let before = (
        trees(&rig.mount),
        trees(&other),
        but_kept(&unserved),
        tree_of(&plain),
    );
    let with = [&dir, &unserved, &plain].map(|dir| format!("--with={}", dir.display()));
    let dedup = |dry: &[&str]| {
        let mut arguments = vec!["gc", "--dedup", "--live"];
        arguments.extend(dry);
        arguments.extend(with.iter().map(String::as_str));
        rig.mount.json(&arguments)
    };
    let plan = dedup(&["--dry-run"]);
    let space = free(rig.image.path());
    let done = dedup(&[]);
    assert_eq!(done["projects"].as_array().map(Vec::len), Some(4), "{done}");
    // Each project except the sources shares its old and new packages.
    let (shared, planned) = (across(&done), across(&plan));
    assert!(shared >= 3 * PACKAGES && shared == planned, "{plan} {done}");
    let told = done["freed_bytes"].as_u64().unwrap();
    assert!(told > 60 * 30_000, "{done}");
    came_free(rig.image.path(), space, told);
    assert_eq!(
        (
            trees(&rig.mount),
            trees(&other),
            but_kept(&unserved),
            tree_of(&plain)
        ),
        before
    );
    let again = dedup(&[]);
    assert_eq!(again["shared"]["files"], 0, "{again}");
    third.remount();
    [&rig.mount, &other, &third]
        .into_iter()
        .for_each(assert_whole);
    // A package rewritten in one project leaves the others unchanged.
    rewrite(&plain.join("packages/3"), b"changed");
    let one = sh(rig.path(), "ls .ckptfs/layers/*/objects/* | head -1");
    assert!(place(&rig.path().join(one.trim())).0.is_some());
    assert_eq!((trees(&rig.mount), trees(&other)), (before.0, before.1));
    refused_twice(&rig);
}

/// The same project under two names is refused.
fn refused_twice(rig: &Rig) {
    let refused = rig
        .mount
        .run(&["gc", "--dedup", "--with", rig.path().to_str().unwrap()]);
    assert!(
        !refused.status.success()
            && String::from_utf8_lossy(&refused.stderr).contains("is named twice")
    );
}

/// Returns a tree without the clones of its last unmount, which are dropped because they have the
/// old extents of the files.
fn but_kept(dir: &Path) -> BTreeMap<PathBuf, NodeInfo> {
    let mut tree = tree_of(dir);
    tree.retain(|path, _| !path.starts_with(".ckptfs/kept") && path != Path::new(".ckptfs"));
    tree
}
