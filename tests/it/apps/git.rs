//! git: clone, checkout of an old tag, status, commit, gc.

use std::fs;
use std::path::{Path, PathBuf};

use crate::apps::support::{PROGRAM_SECONDS, ReferenceCopy, crates, missing, program, variants};
use crate::common::{Variant, skip, succeeds};

/// Runs git in `dir` without the user's settings, and returns its stdout.
fn git(dir: &Path, arguments: &[&str]) -> String {
    let mut command = program(dir, "git", arguments);
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("HOME", "/nonexistent");
    for who in ["AUTHOR", "COMMITTER"] {
        command
            .env(format!("GIT_{who}_NAME"), "A Tester")
            .env(format!("GIT_{who}_EMAIL"), "tester@example.invalid");
    }
    String::from_utf8_lossy(&succeeds(&mut command, PROGRAM_SECONDS).stdout).into_owned()
}

/// Makes a repository of real sources with the tags v1, v2 and v3, in an unmounted directory.
fn origin(at: &Path, sources: &[PathBuf]) {
    fs::create_dir(at).unwrap();
    let add = |source: &Path, name: &str| {
        succeeds(
            &mut program(
                at,
                "cp",
                &["-r".as_ref(), source.as_os_str(), name.as_ref()],
            ),
            PROGRAM_SECONDS,
        )
    };
    let commit = |tag: &str| {
        git(at, &["add", "-A"]);
        git(at, &["commit", "-q", "-m", tag]);
        git(at, &["tag", tag]);
    };
    git(at, &["init", "-q", "-b", "main"]);
    add(&sources[0], "first");
    add(&sources[1], "second");
    commit("v1");
    succeeds(
        &mut program(
            at,
            "bash",
            &[
                "-c",
                "grep -rl unsafe first | head -60 | xargs sed -i 's/unsafe/UNSAFE/g'",
            ],
        ),
        PROGRAM_SECONDS,
    );
    fs::remove_dir_all(at.join("second/src")).unwrap();
    add(&sources[2], "third");
    commit("v2");
    fs::rename(at.join("first"), at.join("renamed")).unwrap();
    std::os::unix::fs::symlink("renamed/src", at.join("link")).unwrap();
    add(&sources[3], "second/src");
    commit("v3");
}

fn clone_checkout_gc(v: Variant) {
    let Some(sources) = crates(4) else {
        return skip("cargo has fetched no crates to make a repository of");
    };
    if let Some(reason) = missing(&["git"]) {
        return skip(&reason);
    }
    let rig = v.start();
    let from = rig.image.path().join("origin");
    origin(&from, &sources);
    git(
        rig.path(),
        &["clone", "-q", "--no-local", from.to_str().unwrap(), "work"],
    );
    let work = rig.path().join("work");
    assert_eq!(git(&work, &["status", "--porcelain"]), "");
    let cloned = ReferenceCopy::now(&rig, "cloned");

    git(&work, &["checkout", "-q", "v1"]);
    assert_eq!(git(&work, &["status", "--porcelain"]), "");
    assert_eq!(git(&work, &["diff", "--stat", "v1"]), "");
    let old = ReferenceCopy::now(&rig, "old");

    git(&work, &["checkout", "-q", "-b", "topic", "v2"]);
    succeeds(
        &mut program(
            &work,
            "bash",
            &[
                "-c",
                "grep -rl fn third | head -40 | xargs sed -i 's/fn /FN /'",
            ],
        ),
        PROGRAM_SECONDS,
    );
    git(&work, &["commit", "-q", "-a", "-m", "a change"]);
    git(&work, &["gc", "-q", "--prune=now"]);
    git(&work, &["fsck", "--strict"]);
    let collected = ReferenceCopy::now(&rig, "collected");

    fs::remove_dir_all(work.join("third")).unwrap();
    fs::remove_dir_all(work.join(".git/objects")).unwrap();
    for (moment, head) in [(&cloned, "v3"), (&old, "v1"), (&collected, "topic")] {
        moment.restore(&rig);
        assert_eq!(git(&work, &["status", "--porcelain"]), "", "at {head}");
        assert_eq!(
            git(&work, &["rev-parse", "HEAD"]),
            git(&work, &["rev-parse", head])
        );
        git(&work, &["fsck", "--strict"]);
    }
    for moment in [cloned, old, collected] {
        moment.is_seen(&rig);
    }
}

variants! { clone_checkout_gc => xfs_passthrough, btrfs_daemon }
