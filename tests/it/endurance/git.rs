//! git: clone, checkout, gc, fsck.

use std::path::Path;
use std::process::Command;

use crate::common::{succeeds, tool};

const GIT_SECONDS: u64 = 240;

fn git(dir: &Path, arguments: &[&str]) -> String {
    let mut command: Command = tool("git", arguments);
    command
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("HOME", "/nonexistent");
    for who in ["AUTHOR", "COMMITTER"] {
        command
            .env(format!("GIT_{who}_NAME"), "A Tester")
            .env(format!("GIT_{who}_EMAIL"), "tester@example.invalid");
    }
    String::from_utf8_lossy(&succeeds(&mut command, GIT_SECONDS).stdout).into_owned()
}

/// Makes a repository of this project's sources, in three commits with the tags v1 to v3.
pub fn make_origin(at: &Path) {
    git(at, &["init", "-q", "-b", "main"]);
    for (part, tag) in [("docs", "v1"), ("tests", "v2"), ("src", "v3")] {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(part);
        succeeds(
            &mut tool("cp", &["-r".as_ref(), from.as_os_str(), at.as_os_str()]),
            GIT_SECONDS,
        );
        git(at, &["add", "-A"]);
        git(at, &["commit", "-q", "-m", tag]);
        git(at, &["tag", tag]);
    }
}

/// Clones it, switches between tags, commits, collects garbage and checks every object.
pub fn clone_gc_fsck(dir: &Path, origin: &Path) {
    git(
        dir,
        &[
            "clone",
            "-q",
            "--no-local",
            &origin.display().to_string(),
            "clone",
        ],
    );
    let work = dir.join("clone");
    for tag in ["v1", "v3"] {
        git(&work, &["checkout", "-q", tag]);
        assert_eq!(git(&work, &["status", "--porcelain"]), "", "{tag}");
    }
    git(&work, &["checkout", "-q", "-b", "topic"]);
    git(&work, &["mv", "src", "moved"]);
    git(&work, &["commit", "-q", "-a", "-m", "moved"]);
    git(&work, &["gc", "-q", "--prune=now"]);
    git(&work, &["fsck", "--strict"]);
    assert_eq!(git(&work, &["status", "--porcelain"]), "");
}
