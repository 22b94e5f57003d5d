//! Worktrees for isolated agents.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::support::{hook, nowhere};
use crate::common::command::sh;
use crate::common::{MountOpts, Variant, for_each_variant};

for_each_variant! { xfs => a_branch_is_made_and_dropped }

fn create(cwd: &Path, name: &str) -> (Option<i32>, String) {
    let said = json!({ "hook_event_name": "WorktreeCreate", "session_id": "s", "transcript_path": "/t", "cwd": cwd, "name": name });
    let ran = hook(Path::new("/"), said.to_string().as_bytes());
    (
        ran.status.code(),
        String::from_utf8(ran.stdout).expect("UTF-8"),
    )
}

fn remove(cwd: &Path, path: &Path) -> (Option<i32>, String) {
    let said = json!({ "hook_event_name": "WorktreeRemove", "session_id": "s", "cwd": cwd, "worktree_path": path });
    let ran = hook(Path::new("/"), said.to_string().as_bytes());
    assert!(ran.stdout.is_empty());
    (
        ran.status.code(),
        String::from_utf8_lossy(&ran.stderr).into_owned(),
    )
}

/// Returns the printed line, an absolute path.
#[track_caller]
fn path_of((status, said): (Option<i32>, String)) -> PathBuf {
    assert_eq!(status, Some(0), "{said}");
    let path = said.strip_suffix('\n').expect("a line");
    assert!(path.starts_with('/') && !path.contains('\n'), "{said:?}");
    PathBuf::from(path)
}

fn a_branch_is_made_and_dropped(v: Variant) {
    let rig = v.start_with(MountOpts::new(v.io), |dir| {
        sh(dir, "git init -q; echo 1 > f; git add f; git -c user.name=t -c user.email=t@t commit -qm 1; echo ignored > data");
    });
    let path = path_of(create(rig.path(), "bold/oak"));
    assert_eq!(
        std::fs::read_to_string(path.join("data")).expect("the branch also has ignored files"),
        "ignored\n"
    );
    // A resumed session gets its existing branch.
    assert_eq!(path_of(create(rig.path(), "bold/oak")), path);
    sh(&path, "echo work > only-here");
    // The event may come from any working directory.
    assert_eq!(remove(Path::new("/"), &path), (Some(0), String::new()));
    assert!(!path.exists());
    let name = rig.mount.json(&["branch", "list", "--dropped"])[0]["name"].clone();
    rig.mount
        .ok(&["branch", "restore", name.as_str().expect("a name")]);
    assert_eq!(
        std::fs::read_to_string(path.join("only-here")).expect("nothing is lost"),
        "work\n"
    );
}

/// The hook replaces Claude Code's own worktree creation, so it must do the same outside a tree.
#[test]
fn elsewhere_it_is_a_git_worktree() {
    let (_dir, outside) = nowhere();
    sh(
        &outside,
        "git init -q; echo 1 > f; git add f; git -c user.name=t -c user.email=t@t commit -qm 1; mkdir sub",
    );
    let path = path_of(create(&outside.join("sub"), "fix"));
    assert_eq!(path, outside.join(".claude/worktrees/fix"));
    assert!(path.join("f").exists());
    assert_eq!(path_of(create(&outside, "fix")), path);
    sh(&path, "echo work > only-here");
    let (status, said) = remove(Path::new("/"), &path);
    assert!(
        status == Some(1) && path.join("only-here").exists(),
        "{said}"
    );
    sh(&path, "rm only-here");
    assert_eq!(remove(Path::new("/"), &path).0, Some(0));
    assert!(!path.exists());
}

#[test]
fn where_there_is_nothing_to_make_one_of_it_fails_and_says_so() {
    let (_dir, outside) = nowhere();
    let ran = hook(
        Path::new("/"),
        json!({ "hook_event_name": "WorktreeCreate", "cwd": outside, "name": "x" })
            .to_string()
            .as_bytes(),
    );
    assert!(
        ran.status.code() == Some(1) && ran.stdout.is_empty() && !ran.stderr.is_empty(),
        "{ran:?}"
    );
}
