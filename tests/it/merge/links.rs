//! Files with several names of which a side has parted some: an editor writes a new file and
//! renames it over one name. What comes of each name is what git makes of it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::support::{conflicts, run};
use crate::common::{MountOpts, Variant, for_each_variant};

for_each_variant! { reflink => names_that_were_parted_are_merged_one_by_one }

const BASE: &str = "seq 20 > a; ln a b; mkdir d; ln a d/c; ls -lR > /dev/null";
/// `r` edits as an editor that writes a new file; `e` in place.
const REPLACE: &str = "r() { sed \"$1\" \"$2\" > \"$2.new\"; mv \"$2.new\" \"$2\"; }\n";

/// What ours and theirs did; the lines that are other than in the base, of each name; which names
/// are one file after it; what clashes.
type Case = (
    &'static str,
    &'static str,
    [&'static str; 3],
    &'static [&'static [&'static str]],
    &'static [&'static str],
);

const CASES: &[Case] = &[
    // Both parted the same name.
    (
        "r s/^18$/x/ a",
        "r s/^2$/y/ a",
        ["y x", "", ""],
        &[&["b", "d/c"]],
        &[],
    ),
    // Ours changed all of them in place, theirs one by itself; the other way round.
    (
        "e s/^18$/x/ a",
        "r s/^2$/y/ a",
        ["y x", "x", "x"],
        &[&["b", "d/c"]],
        &[],
    ),
    (
        "r s/^18$/x/ d/c",
        "e s/^2$/y/ a",
        ["y", "y", "y x"],
        &[&["a", "b"]],
        &[],
    ),
    // Each parted another name.
    ("r s/^18$/x/ b", "r s/^2$/y/ a", ["y", "x", ""], &[], &[]),
    // Theirs parted all of them, ours one.
    (
        "r s/^18$/x/ a",
        "for f in a b d/c; do r s/^2$/y/ $f; done",
        ["y x", "y", "y"],
        &[],
        &[],
    ),
    // Theirs put a new file with two names in place of two.
    (
        "e s/^18$/x/ a",
        "r s/^2$/y/ a; ln -f a b",
        ["y x", "y x", "x"],
        &[&["a", "b"]],
        &[],
    ),
    // The same lines: the conflict is about the content of one name.
    (
        "r s/^2$/x/ a",
        "r s/^2$/y/ a",
        ["x", "", ""],
        &[&["b", "d/c"]],
        &["a: content"],
    ),
    // A name that only one side parted and nobody else changed.
    ("true", "r s/^2$/y/ a", ["y", "", ""], &[&["b", "d/c"]], &[]),
    ("r s/^2$/y/ a", "true", ["y", "", ""], &[&["b", "d/c"]], &[]),
    // A mode goes with the name that it was given to.
    (
        "e s/^18$/x/ a",
        "r s/^2$/y/ a; chmod 755 a",
        ["y x", "x", "x"],
        &[&["b", "d/c"]],
        &[],
    ),
];

/// Both sides replaced one name: that was a conflict. Where one had replaced it and the other one
/// changed the file in place, that change was lost at the name, and nothing was said.
fn names_that_were_parted_are_merged_one_by_one(v: Variant) {
    for (number, (ours, theirs, lines, one, clashes)) in CASES.iter().enumerate() {
        let rig = v.start_with(MountOpts::new(v.io), |dir| run(dir, BASE));
        let root = rig.path().to_owned();
        rig.mount.ok(&["branch", "create", "fix"]);
        let branch = root.with_file_name("project@fix");
        run(&root, &format!("{REPLACE}{ours}"));
        run(&branch, &format!("{REPLACE}{theirs}"));
        let output = rig.mount.run(&["merge", "fix", "--json"]);
        let merged = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(conflicts(&merged), *clashes, "case {number}: {merged}");
        is_so(&root, number, (lines, one));
        if clashes.is_empty() {
            // Nothing is left to be done, and it is taken back and done again as a whole.
            let again = rig.mount.json(&["merge", "fix"]);
            assert!(again["guard"].is_null(), "case {number}: {again}");
            if merged["guard"].as_u64().is_some() {
                rig.mount.ok(&["undo"]);
                rig.mount.ok(&["redo"]);
            }
            is_so(&root, number, (lines, one));
            let update = rig.mount.json(&["branch", "update", "fix"]);
            assert!(conflicts(&update).is_empty(), "case {number}: {update}");
            is_so(&branch, number, (lines, one));
        }
    }
}

fn is_so(root: &Path, case: usize, (lines, one): (&[&str; 3], &[&[&str]])) {
    let names = ["a", "b", "d/c"];
    for (name, expected) in names.iter().zip(lines) {
        let text = fs::read_to_string(root.join(name)).unwrap();
        let other = text.lines().filter(|line| line.parse::<u32>().is_err());
        let found: Vec<&str> = other.collect();
        assert_eq!(found.join(" "), *expected, "case {case}: {name}");
        assert_eq!(text.lines().count(), 20, "case {case}: {name}");
    }
    let number = |name: &str| fs::metadata(root.join(name)).unwrap().ino();
    let links = |name: &str| fs::metadata(root.join(name)).unwrap().nlink();
    for name in names {
        let with = one.iter().find(|names| names.contains(&name));
        let count = with.map_or(1, |names| names.len() as u64);
        assert_eq!(links(name), count, "case {case}: {name}");
        let mut same = with.into_iter().flat_map(|names| names.iter());
        assert!(
            same.all(|other| number(other) == number(name)),
            "case {case}"
        );
    }
}
