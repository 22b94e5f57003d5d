//! Inode numbers reused while the tree is not mounted: the new inode is neither a changed nor a
//! moved version of the old one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::story::Random;
use crate::common::command::{check, sh};
use crate::common::{
    Fs, MountOpts, Rig, TreeOpts, Variant, assert_same_tree, copy_tree, for_each_variant,
};

for_each_variant! { all => another_inode_with_a_number_is_another, what_was_there_is_known_whatever_is_done_meanwhile }

type Case = (&'static str, &'static str, &'static str, &'static str);

/// For each directory: the commands that make an inode, remove it, and make another one.
const CASES: [Case; 12] = [
    ("file", "echo was > old", "rm old", "echo is > new"),
    ("same-size", "echo was > old", "rm old", "echo now > new"),
    (
        "below",
        "mkdir d; echo was > old",
        "rm old",
        "echo is > d/new",
    ),
    (
        "new-below",
        "echo was > old",
        "rm old",
        "mkdir d; echo is > d/new",
    ),
    (
        "out",
        "mkdir d; echo was > d/old",
        "rm -r d",
        "echo is > new",
    ),
    (
        "to-dir",
        "echo was > old",
        "rm old",
        "mkdir new; echo is > new/file",
    ),
    (
        "from-dir",
        "mkdir old; echo was > old/file",
        "rm -r old",
        "echo is > new; echo is > new2",
    ),
    (
        "dir",
        "mkdir old; echo was > old/file",
        "rm -r old",
        "mkdir new; echo is > new/file; echo is > new/other",
    ),
    (
        "dir-in-dir",
        "mkdir -p d/old/x; echo was > d/old/x/f",
        "rm -r d",
        "mkdir new; mkdir new/d; mkdir new/d/x; echo is > new/d/x/f",
    ),
    ("symlink", "ln -s was old", "rm old", "ln -s is new"),
    ("to-symlink", "echo was > old", "rm old", "ln -s is new"),
    (
        "same-name",
        "echo was > old; echo was > other",
        "rm old other",
        "echo is > other; echo is > old",
    ),
];

/// Returns the path and inode number of every file.
fn numbers(root: &Path) -> BTreeMap<String, u64> {
    let said = sh(
        root,
        "find . -mindepth 1 -not -path './.ckptfs*' -not -path './.snapshots*' -printf '%P %i\\n'",
    );
    said.lines()
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(path, number)| (path.to_owned(), number.parse().expect("a number")))
        .collect()
}

/// Returns the changes that `status` reports, by path.
fn told(rig: &Rig) -> BTreeMap<String, String> {
    let status = rig.mount.status_json();
    let all = status["dirty"]
        .as_array()
        .expect("an array")
        .iter()
        .map(|entry| {
            (
                entry["path"].as_str().expect("text").to_owned(),
                entry["change"].as_str().unwrap_or("?").to_owned(),
            )
        });
    all.collect()
}

/// XFS frees inodes in the background; a freeze waits for that (xfs_inodegc_flush).
fn free_inodes(v: Variant, rig: &Rig) {
    if v.fs == Fs::Xfs {
        let image = rig.image.path();
        sh(image, "fsfreeze -f . && fsfreeze -u .");
    }
}

fn another_inode_with_a_number_is_another(v: Variant) {
    let each = |root: &Path, what: &dyn Fn(&Case) -> String| {
        for case in &CASES {
            sh(&root.join(case.0), &what(case));
        }
    };
    let mut rig = v.start_with(MountOpts::new(v.io), |root| {
        for case in &CASES {
            fs::create_dir(root.join(case.0)).unwrap();
        }
        each(root, &|case| case.1.to_owned());
    });
    let root = rig.path().to_owned();
    let copy = |name: &str, root: &Path| {
        let copy = rig.image.path().join(name);
        copy_tree(root, &copy);
        copy
    };
    let was = copy("was", &root);
    assert_eq!(rig.mount.checkpoint(), 1);
    let before = numbers(&root);
    rig.mount.umount();
    for case in &CASES {
        sh(&root.join(case.0), case.2);
        free_inodes(v, &rig);
        sh(&root.join(case.0), case.3);
    }
    let after = numbers(&root);
    let had = |number: &u64, path: &String| {
        let mut known = before.iter();
        known.any(|(was, had)| had == number && was != path)
    };
    let given = after.iter().filter(|(path, number)| had(number, path));
    let given: Vec<&String> = given.map(|(path, _)| path).collect();
    println!("reused: {given:?}");
    assert!(
        matches!(v.fs, Fs::Btrfs | Fs::Tmpfs) || given.len() >= 6,
        "reused inode numbers: {given:?}"
    );
    rig.mount.remount();
    let is = copy("is", &root);
    assert_told(&rig, &before, &after);
    assert_same_tree(&rig.view(1), &was, &TreeOpts::default());
    assert_eq!(rig.mount.checkpoint(), 2);
    // Changes of the new inodes must not affect the old ones.
    each(&root, &|case| {
        format!(
            "for f in $(find . -type f); do echo later >> $f; done; mkdir later; touch {}-later",
            case.0
        )
    });
    rig.mount.kill();
    rig.mount.remount();
    assert_same_tree(&rig.view(1), &was, &TreeOpts::default());
    assert_same_tree(&rig.view(2), &is, &TreeOpts::default());
    for (id, tree) in [(1, &was), (2, &is)] {
        rig.mount.restore(id);
        assert_same_tree(
            &root,
            tree,
            &TreeOpts {
                dir_mtime: false,
                ..TreeOpts::default()
            },
        );
    }
    assert_same_tree(&rig.view(1), &was, &TreeOpts::default());
    assert_eq!(check(&root, &["verify", "--deep"]).0, 0);
}

/// Asserts that `status` reports the added and removed paths, and the two replaced files under
/// their old names.
fn assert_told(rig: &Rig, before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) {
    let expected: BTreeMap<String, String> = {
        let gone = before
            .keys()
            .filter(|path| !after.contains_key(*path))
            .map(|path| (path.clone(), "D".to_owned()));
        let made = after
            .keys()
            .filter(|path| !before.contains_key(*path))
            .map(|path| (path.clone(), "A".to_owned()));
        let other =
            ["same-name/old", "same-name/other"].map(|path| (path.to_owned(), "M".to_owned()));
        gone.chain(made).chain(other).collect()
    };
    let told = told(rig);
    let differ: Vec<_> = told
        .iter()
        .filter(|one| expected.get(one.0) != Some(one.1))
        .chain(expected.iter().filter(|one| told.get(one.0) != Some(one.1)))
        .collect();
    assert!(differ.is_empty(), "{differ:?}");
}

/// Few names and many removals, so that numbers move between file types and directories.
fn random_changes(random: &mut Random, root: &Path, count: usize) {
    let mut script = String::from("set +e; exec 2>/dev/null;");
    for number in 0..count {
        let path = |random: &mut Random| {
            (0..=random.below(3))
                .map(|_| format!("n{}", random.below(4)))
                .collect::<Vec<_>>()
                .join("/")
        };
        let (path, other) = (path(random), path(random));
        script += &match random.below(8) {
            0 | 1 => format!("mkdir -p {path};"),
            2 => format!("echo {number} > {path};"),
            3 => format!("rm -rf {path}; echo {number} > {other};"),
            4 => format!("rm -rf {path}; mkdir {other}; echo {number} > {other}/n0;"),
            5 => format!("mv -T {path} {other};"),
            6 => format!("sed -i s/1/{number}/ {path};"),
            _ => format!("rm -rf {path}; ln -s {number} {other} || ln {other} {path};"),
        };
    }
    sh(root, &(script + "true"));
}

fn what_was_there_is_known_whatever_is_done_meanwhile(v: Variant) {
    let mut rig = v.start_with(MountOpts::new(v.io), |_| {});
    let root = rig.path().to_owned();
    let mut random = Random::new("numbers");
    let mut copies = Vec::new();
    for round in 0..5 {
        random_changes(&mut random, &root, 20);
        let id = rig.mount.checkpoint();
        let copy = rig.image.path().join(format!("copy-{id}"));
        copy_tree(&root, &copy);
        copies.push((id, copy));
        random_changes(&mut random, &root, 8);
        rig.mount.umount();
        random_changes(&mut random, &root, 25);
        rig.mount.remount();
        for (id, copy) in &copies {
            println!("round {round}, checkpoint {id}");
            assert_same_tree(&rig.view(*id), copy, &TreeOpts::default());
        }
        if round % 3 == 2 {
            rig.mount.kill();
            rig.mount.remount();
        }
    }
}
