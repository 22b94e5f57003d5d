//! Two lines of one history: checkpoint 1 is the base, checkpoint 2 is merged, and the live tree is
//! the other side.

use std::path::Path;

use serde_json::Value;

use crate::common::command::sh;
use crate::common::tree::{Tree, assert_tree_is};
use crate::common::{MountOpts, Rig, TreeOpts, Variant};

/// Compares contents, attributes and links, but not times, because merged files have the time of
/// the merge.
pub fn opts() -> TreeOpts {
    TreeOpts {
        mtime: false,
        dir_mtime: false,
        ..TreeOpts::default()
    }
}

/// Asserts that the tree equals `expected`.
#[track_caller]
pub fn same(root: &Path, expected: &Tree) {
    assert_tree_is(root, expected, &opts());
}

/// Runs a script in which `e EXPRESSION FILE` edits a file in place, unlike `sed -i`.
pub fn run(root: &Path, script: &str) {
    let edit = "e() { t=$(mktemp); sed \"$1\" \"$2\" > $t; cat $t > \"$2\"; rm $t; }\n";
    sh(root, &format!("{edit}{script}"));
}

/// Returns a tree with the two lines; the guard of the restore between them is checkpoint 3.
pub fn lines(v: Variant, base: &str, theirs: &str, ours: &str) -> Rig {
    lines_with(v, MountOpts::new(v.io), base, theirs, ours)
}

pub fn lines_with(v: Variant, opts: MountOpts, base: &str, theirs: &str, ours: &str) -> Rig {
    let rig = v.start_with(opts, |dir| run(dir, base));
    assert_eq!(rig.mount.checkpoint(), 1);
    run(rig.path(), theirs);
    assert_eq!(rig.mount.checkpoint(), 2);
    rig.mount.restore(1);
    run(rig.path(), ours);
    rig
}

/// Merges checkpoint 2; returns the report and whether it succeeded.
pub fn merge(rig: &Rig, arguments: &[&str]) -> (Value, bool) {
    let all = [&["merge", "2", "--base", "1", "--json"], arguments].concat();
    let output = rig.mount.run(&all);
    let told = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        let said = String::from_utf8_lossy(&output.stderr);
        panic!("merge printed no JSON ({error}): {said}")
    });
    (told, output.status.success())
}

/// Formats each conflict as a line.
pub fn conflicts(merged: &Value) -> Vec<String> {
    let one = |conflict: &Value| {
        let text = |key: &str| conflict[key].as_str().unwrap_or_default().to_owned();
        let by = match text("by") {
            by if by.is_empty() => by,
            by => format!(" by {by}"),
        };
        format!("{}: {}{by}", text("path"), text("what"))
    };
    merged["conflicts"]
        .as_array()
        .expect("a list")
        .iter()
        .map(one)
        .collect()
}

/// Formats each change as a line.
pub fn changes(merged: &Value) -> Vec<String> {
    let one = |change: &Value| {
        let text = |key: &str| change[key].as_str().unwrap_or_default().to_owned();
        match text("from") {
            from if from.is_empty() => format!("{} {}", text("change"), text("path")),
            from => format!("{} {from} {}", text("change"), text("path")),
        }
    };
    merged["changes"]
        .as_array()
        .expect("a list")
        .iter()
        .map(one)
        .collect()
}

/// Merges, and returns whether the merge was made: with conflict markers it is, but exits with
/// failure.
pub fn done_by(rig: &Rig, arguments: &[&str]) -> (Value, bool) {
    let (merged, is_whole) = merge(rig, arguments);
    let done = merged["refused"] == false;
    let marked = merged["conflicts"].to_string().contains("\"marked\":true");
    assert_eq!(is_whole, done && !marked, "{arguments:?}: {merged}");
    (merged, done)
}
