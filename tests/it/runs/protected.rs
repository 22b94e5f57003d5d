//! `ckptfs run` reports the changes of a command and rolls them back on request.
//! `tests/it/cli/run.rs` tests its output.

use std::fs;

use crate::common::command::sh;
use crate::common::tree::assert_tree_is;
use crate::common::{TreeOpts, Variant, for_each_variant, run_limited, sample_tree, tree_of};

/// After arbitrary changes by a command, a rollback restores the previous tree, and the guard has
/// the changes.
fn a_rollback_takes_back_all_that_a_command_did(variant: Variant) {
    let rig = variant.start();
    sample_tree(rig.path());
    let before = tree_of(rig.path());
    let wreck = "find . -mindepth 1 -maxdepth 1 | head -3 | xargs rm -rf; echo new > new; mkdir -p d/e; echo more > d/e/f; ln -s new link; exit 7";
    let output = run_limited(
        &mut rig.mount.command(&[
            "run",
            "--rollback",
            "on-failure",
            "--json",
            "--",
            "sh",
            "-c",
            wreck,
        ]),
        120,
    );
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(
        output.stdout.is_empty(),
        "stdout has only the output of the command"
    );
    let report: serde_json::Value = serde_json::from_slice(&output.stderr).expect("a report");
    assert_eq!(
        (&report["status"], &report["rolled_back"]),
        (&7.into(), &true.into()),
        "{report}"
    );
    assert!(
        report["changes"]
            .as_array()
            .is_some_and(|changes| changes.len() > 5),
        "{report}"
    );
    assert_tree_is(rig.path(), &before, &TreeOpts::default());
    let guard = report["guard"].as_u64().expect("a guard");
    assert_eq!(
        fs::read_to_string(rig.view(guard).join("d/e/f")).expect("the file made by the command"),
        "more\n"
    );
    // Control: without a rollback the changes remain.
    let output = run_limited(
        &mut rig.mount.command(&["run", "--", "sh", "-c", wreck]),
        120,
    );
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(sh(rig.path(), "cat d/e/f"), "more\n");
}

for_each_variant! { reflink => a_rollback_takes_back_all_that_a_command_did }
