//! Helpers for tests of branches.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::mount::{VERB_SECONDS, minor_of};
use crate::common::{Rig, run_limited, stdout_of, tool};

/// Returns the default path of a branch.
pub fn place(rig: &Rig, name: &str) -> PathBuf {
    rig.path().with_file_name(format!("project@{name}"))
}

/// Creates a branch and returns its path.
pub fn create(rig: &Rig, name: &str) -> PathBuf {
    let said = rig.mount.ok(&["branch", "create", name]);
    let path = PathBuf::from(said.trim_end());
    assert_eq!(path, place(rig, name), "the printed path is its path");
    path
}

/// Returns the entry of a branch in `branch list`.
pub fn listed(rig: &Rig, name: &str) -> Option<Value> {
    let all = rig.mount.json(&["branch", "list"]);
    let all = all.as_array().expect("an array");
    all.iter().find(|one| one["name"] == name).cloned()
}

/// Reports whether a ckptfs mount exists at the path.
pub fn is_mounted(path: &Path) -> bool {
    minor_of(path).is_some()
}

/// Runs `ckptfs -C DIR ...` and returns whether it succeeded, and its output.
pub fn verb(rig: &Rig, arguments: &[&str]) -> (bool, String) {
    let output = rig.mount.run(arguments);
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

/// As [`verb`], for a verb that must be refused with this code; returns the message.
pub fn refused(rig: &Rig, arguments: &[&str], code: &str) -> String {
    let output = rig.mount.run(&[&["--json"], arguments].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{arguments:?} succeeded");
    let error: Value = serde_json::from_str(said.lines().last().unwrap_or_default())
        .unwrap_or_else(|_| panic!("{arguments:?}: {said}"));
    assert_eq!(error["error"]["code"], code, "{arguments:?}: {said}");
    error["error"]["message"].as_str().unwrap().to_owned()
}

/// Runs `ckptfs -C DIR ...` in a branch and returns its output.
pub fn inside(dir: &Path, arguments: &[&str]) -> String {
    let mut command = tool(env!("CARGO_BIN_EXE_ckptfs"), &[] as &[&str]);
    stdout_of(command.arg("-C").arg(dir).args(arguments), VERB_SECONDS)
}

/// Checks that `verify` reports no damage. Two findings are expected: an unsynced checkpoint that
/// is incomplete after a power cut, and a branch root that was moved to the trash and back while
/// unmounted.
pub fn verified(dir: &Path) {
    let mut verify = tool(env!("CARGO_BIN_EXE_ckptfs"), &["-C"]);
    verify.arg(dir).arg("verify");
    let output = run_limited(&mut verify, VERB_SECONDS);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let known = |line: &str| {
        let named = ["checkpoint-incomplete ", "changed-unseen  the tree    in "];
        named.iter().any(|one| line.starts_with(one)) || line.contains(" journal record")
    };
    let wrong: Vec<&str> = said.lines().filter(|line| !known(line)).collect();
    let answered = matches!(output.status.code(), Some(0 | 4));
    assert!(
        answered && wrong.is_empty(),
        "{}: {output:?}",
        dir.display()
    );
}
