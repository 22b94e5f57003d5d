//! Hard links that one side has split: an editor writes a new file and renames it over one name.
//! The result for each name is that of git.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::support::{conflicts, run};
use crate::common::{MountOpts, Variant, for_each_variant};

for_each_variant! { reflink => names_that_were_parted_are_merged_one_by_one }

const BASE: &str = "seq 20 > a; ln a b; mkdir d; ln a d/c; ls -lR > /dev/null";
/// `r` edits by replacing the file, as editors do; `e` edits in place.
const REPLACE: &str = "r() { sed \"$1\" \"$2\" > \"$2.new\"; mv \"$2.new\" \"$2\"; }\n";

/// The edits of ours and theirs; the resulting changed lines per name; the names that remain
/// linked; the conflicts.
type Case = (
    &'static str,
    &'static str,
    [&'static str; 3],
    &'static [&'static [&'static str]],
    &'static [&'static str],
);

const CASES: &[Case] = &[
    // Both split the same name.
    (
        "r s/^18$/x/ a",
        "r s/^2$/y/ a",
        ["y x", "", ""],
        &[&["b", "d/c"]],
        &[],
    ),
    // Ours changed all names in place, theirs split one; then the reverse.
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
    // Each split another name.
    ("r s/^18$/x/ b", "r s/^2$/y/ a", ["y", "x", ""], &[], &[]),
    // Theirs split all names, ours one.
    (
        "r s/^18$/x/ a",
        "for f in a b d/c; do r s/^2$/y/ $f; done",
        ["y x", "y", "y"],
        &[],
        &[],
    ),
    // Theirs replaced two names by a new file with two names.
    (
        "e s/^18$/x/ a",
        "r s/^2$/y/ a; ln -f a b",
        ["y x", "y x", "x"],
        &[&["a", "b"]],
        &[],
    ),
    // The same lines: the conflict concerns the content of one name.
    (
        "r s/^2$/x/ a",
        "r s/^2$/y/ a",
        ["x", "", ""],
        &[&["b", "d/c"]],
        &["a: content"],
    ),
    // Only one side changed anything, and split a name.
    ("true", "r s/^2$/y/ a", ["y", "", ""], &[&["b", "d/c"]], &[]),
    ("r s/^2$/y/ a", "true", ["y", "", ""], &[&["b", "d/c"]], &[]),
    // A mode applies to the name that received it.
    (
        "e s/^18$/x/ a",
        "r s/^2$/y/ a; chmod 755 a",
        ["y x", "x", "x"],
        &[&["b", "d/c"]],
        &[],
    ),
];

/// Failed before: a name replaced on both sides was a conflict. A name replaced on one side lost
/// the other side's change in place without a report.
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
            // A repeated merge is a no-op, and undo and redo affect the whole merge.
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
