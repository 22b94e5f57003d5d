//! Branches and git, commands that run in a branch at the path of the project, and requests to the
//! wrong tree.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::support::{Ran, Sandbox};

/// A mounted project with a repository of one commit, an ignored file and a modified one.
fn project() -> Sandbox {
    let sandbox = Sandbox::new();
    for number in 0..30 {
        sandbox.file(format!("p/src/f{number}"), &format!("{number}\n"));
    }
    sandbox.file("p/.gitignore", "ignored\n");
    sandbox.file("p/ignored", "as it was\n");
    git(&sandbox, "p", &["init", "-q", "-b", "main"]);
    git(&sandbox, "p", &["config", "user.name", "t"]);
    git(&sandbox, "p", &["config", "user.email", "t@example.org"]);
    commit(&sandbox, "p", "first");
    sandbox.file("p/src/f1", "changed\n");
    sandbox.ckptfs(&["mount", "p"]).ok();
    sandbox
}

fn command(sandbox: &Sandbox, dir: &str, arguments: &[&str]) -> Command {
    let mut command = sandbox.hermetic("git", dir);
    command.args(arguments);
    command
}

fn git(sandbox: &Sandbox, dir: &str, arguments: &[&str]) -> String {
    said(&sandbox.run(command(sandbox, dir, arguments)).ok())
}

fn said(ran: &Ran) -> String {
    ran.out().trim_end().to_owned()
}

fn commit(sandbox: &Sandbox, dir: &str, message: &str) {
    git(sandbox, dir, &["add", "-A"]);
    git(sandbox, dir, &["commit", "-q", "-m", message]);
}

fn entries(sandbox: &Sandbox) -> Vec<String> {
    let all = fs::read_dir(sandbox.path.join("p/.git/worktrees"));
    let names = all.into_iter().flatten().flatten();
    let mut names: Vec<String> = names
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_branch_is_a_working_tree_of_the_repository() {
    let sandbox = project();
    let made = sandbox.ckptfs_in("p", &["branch", "create", "fix"]);
    made.is(0, "[DIR]/p@fix\n", "");
    assert_eq!(
        git(&sandbox, "p@fix", &["status", "--porcelain"]),
        " M src/f1"
    );
    assert_eq!(git(&sandbox, "p@fix", &["branch", "--show-current"]), "fix");
    assert_eq!(
        fs::read_to_string(sandbox.path.join("p@fix/ignored")).expect("it is in the new tree"),
        "as it was\n"
    );
    let json = sandbox
        .ckptfs_in("p", &["branch", "create", "other", "--json"])
        .ok()
        .json();
    assert_eq!(json["git"]["branch"], "other", "{json}");
    commit(&sandbox, "p@fix", "in the branch");
    assert_eq!(
        git(&sandbox, "p", &["log", "-1", "--format=%s", "fix"]),
        "in the branch"
    );
    assert_eq!(git(&sandbox, "p", &["worktree", "list"]).lines().count(), 3);
    git(&sandbox, "p", &["worktree", "prune"]);
    assert_eq!(entries(&sandbox), ["fix", "other"]);
    sandbox.ckptfs_in("p", &["branch", "drop", "fix"]).ok();
    assert_eq!(entries(&sandbox), ["other"]);
    assert_eq!(
        git(&sandbox, "p", &["log", "-1", "--format=%s", "fix"]),
        "in the branch"
    );
    sandbox.ckptfs_in("p", &["branch", "restore", "fix"]).ok();
    assert_eq!(git(&sandbox, "p@fix", &["status", "--porcelain"]), "");
    // Failed before: undo and redo of a drop or restore did not update git.
    sandbox.ckptfs_in("p", &["undo"]).ok();
    assert_eq!(entries(&sandbox), ["other"]);
    sandbox.ckptfs_in("p", &["redo"]).ok();
    assert_eq!(entries(&sandbox), ["fix", "other"]);
    assert_eq!(git(&sandbox, "p@fix", &["status", "--porcelain"]), "");
    assert_eq!(git(&sandbox, "p@fix", &["branch", "--show-current"]), "fix");
    assert_eq!(git(&sandbox, "p", &["fsck", "--strict"]), "");
}

/// Returns the files of the working tree that a command opened.
fn opened(sandbox: &Sandbox, dir: &str, arguments: &[&str]) -> Vec<String> {
    let mut traced = sandbox.hermetic("strace", dir);
    traced
        .args(["-f", "-e", "trace=openat", "git"])
        .args(arguments);
    let ran = sandbox.run(traced).ok();
    ran.err()
        .lines()
        .filter(|line| {
            line.contains("\"src/") && !line.contains("O_DIRECTORY") && !line.contains("ENOENT")
        })
        .map(str::to_owned)
        .collect()
}

#[test]
fn git_opens_no_file_of_a_new_branch() {
    if !Path::new("/usr/bin/strace").exists() {
        eprintln!("skipped: strace is not installed");
        return;
    }
    let sandbox = project();
    commit(&sandbox, "p", "second");
    // git checks files again that are as new as its index.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    git(&sandbox, "p", &["update-index", "--refresh"]);
    sandbox.file("p/.git/info/exclude", "");
    fs::remove_file(sandbox.path.join("p/.git/index")).expect("remove");
    git(&sandbox, "p", &["reset", "-q"]);
    sandbox.ckptfs_in("p", &["branch", "create", "fix"]).ok();
    assert_eq!(
        opened(
            &sandbox,
            "p@fix",
            &["--no-optional-locks", "status", "--porcelain"]
        ),
        Vec::<String>::new()
    );
    fs::write(sandbox.path.join("p@fix/src/f2"), "3\n").expect("write");
    let all = opened(
        &sandbox,
        "p@fix",
        &["--no-optional-locks", "status", "--porcelain"],
    );
    assert!(all.len() <= 1, "{all:?}");
}

#[test]
fn four_branches_commit_at_once() {
    let sandbox = project();
    let names: Vec<String> = (0..4).map(|number| format!("try-{number}")).collect();
    for name in &names {
        sandbox.ckptfs_in("p", &["branch", "create", name]).ok();
    }
    let script = "for round in 1 2 3 4 5; do echo $round > src/f3 && echo $round > made-$round && git add -A && git commit -q -m \"$round\" || exit 1; done; test -z \"$(git status --porcelain)\"";
    let children: Vec<_> = names
        .iter()
        .map(|name| {
            let mut shell = sandbox.hermetic("sh", &format!("p@{name}"));
            shell.args(["-c", script]).spawn().expect("spawn")
        })
        .collect();
    for mut child in children {
        assert!(child.wait().expect("wait").success());
    }
    for name in &names {
        assert_eq!(
            git(
                &sandbox,
                "p",
                &["rev-list", "--count", &format!("main..{name}")]
            ),
            "5"
        );
    }
    git(&sandbox, "p", &["gc", "-q", "--prune=now"]);
    assert_eq!(git(&sandbox, "p", &["fsck", "--strict"]), "");
    for name in &names {
        let dir = format!("p@{name}");
        assert_eq!(git(&sandbox, &dir, &["status", "--porcelain"]), "");
        git(&sandbox, &dir, &["fsck", "--strict"]);
    }
    assert_eq!(git(&sandbox, "p", &["status", "--porcelain"]), " M src/f1");
}

#[test]
fn without_git_the_branch_has_a_repository_of_its_own() {
    let sandbox = project();
    let made = sandbox.ckptfs_in("p", &["branch", "create", "alone", "--no-git"]);
    made.is(0, "[DIR]/p@alone\n", "");
    assert!(sandbox.path.join("p@alone/.git").is_dir() && entries(&sandbox).is_empty());
    commit(&sandbox, "p@alone", "alone");
    assert_eq!(
        git(&sandbox, "p", &["log", "-1", "--format=%s", "--all"]),
        "first"
    );
    // A repository that git support cannot handle causes a warning or, with `--git`, an error.
    git(
        &sandbox,
        "p",
        &["config", "core.repositoryFormatVersion", "1"],
    );
    git(
        &sandbox,
        "p",
        &["config", "extensions.refStorage", "reftable"],
    );
    let refused = sandbox.ckptfs_in("p", &["branch", "create", "refused", "--git"]);
    assert_eq!(
        (refused.code, sandbox.path.join("p@refused").exists()),
        (1, false)
    );
    assert!(
        refused
            .err()
            .contains("stores its references as `reftable`"),
        "{refused:?}"
    );
    let made = sandbox.ckptfs_in("p", &["branch", "create", "warned"]).ok();
    assert!(
        made.err()
            .starts_with("Warning: the branch is not set up in git"),
        "{made:?}"
    );
    assert!(sandbox.path.join("p@warned/.git").is_dir());
}

#[test]
fn a_branch_that_is_not_made_leaves_nothing_with_git() {
    let sandbox = project();
    sandbox.ckptfs_in("p", &["branch", "create", "one"]).ok();
    assert_eq!(
        sandbox
            .ckptfs_in("p", &["branch", "create", "one", "--path", "../elsewhere"])
            .code,
        1
    );
    assert!(!sandbox.path.join("elsewhere").exists());
    assert_eq!(entries(&sandbox), ["one"]);
    sandbox.file("there/.git", "gitdir: /nowhere\n");
    let refused = sandbox.ckptfs_in("p", &["branch", "create", "two", "--path", "../there"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert_eq!(
        fs::read_to_string(sandbox.path.join("there/.git")).expect("kept"),
        "gitdir: /nowhere\n"
    );
    assert_eq!(entries(&sandbox), ["one"]);
}

/// One process creates the branch. Failed before: the others also printed `.git: File exists`, or
/// that another process works on it. A process whose `.git` existed first could make all of them
/// fail.
#[test]
fn several_make_one_branch_at_once() {
    let sandbox = project();
    for name in ["fix", "other", "third"] {
        let tries: Vec<_> = (0..4)
            .map(|_| {
                let mut create = sandbox.hermetic(env!("CARGO_BIN_EXE_ckptfs"), "p");
                create.args(["branch", "create", name]);
                create.stdout(Stdio::piped()).stderr(Stdio::piped());
                create.spawn().expect("spawn")
            })
            .collect();
        let ended = tries.into_iter().map(|one| one.wait_with_output());
        let ended: Vec<_> = ended.map(|ended| ended.expect("its status")).collect();
        let made = ended.iter().filter(|ended| ended.status.success());
        assert_eq!(made.count(), 1, "{ended:?}");
        for lost in ended.iter().filter(|ended| !ended.status.success()) {
            let said = String::from_utf8_lossy(&lost.stderr).into_owned();
            let errors: Vec<&str> = said
                .lines()
                .filter(|line| line.starts_with("Error: ") || line.starts_with("Warning: "))
                .collect();
            assert!(
                errors.len() == 1 && errors[0].contains(&format!("branch {name}")),
                "{said}"
            );
        }
        git(&sandbox, &format!("p@{name}"), &["status"]);
    }
    // The first worktree registered in git may belong to a process that lost; then the entry is
    // NAME1, as git names it.
    let entries = entries(&sandbox);
    for name in ["fix", "other", "third"] {
        let of = entries.iter().filter(|entry| entry.starts_with(name));
        assert_eq!(of.count(), 1, "{entries:?}");
    }
}

#[test]
fn a_command_runs_in_the_branch_at_the_project_s_path() {
    let sandbox = project();
    let run = |dir: &str, name: &str, script: &str| {
        sandbox.ckptfs_in(dir, &["branch", "run", name, "--", "sh", "-c", script])
    };
    let ran = run(
        "p/src",
        "try",
        "pwd; echo $CKPTFS_BRANCH; cat f0; echo inside > f0; rm f2; git status --porcelain; exit 7",
    );
    assert_eq!(
        (ran.code, ran.out().as_str()),
        (7, "[DIR]/p/src\ntry\n0\n M src/f0\n M src/f1\n D src/f2\n")
    );
    assert!(
        ran.err().contains(
            "branch try: 2 changes since checkpoint 1; to see it: ckptfs branch diff try"
        ),
        "{ran:?}"
    );
    let text = |path: &str| fs::read_to_string(sandbox.path.join(path)).expect(path);
    assert_eq!(
        (text("p/src/f0"), text("p@try/src/f0")),
        ("0\n".into(), "inside\n".into())
    );
    assert!(sandbox.path.join("p/src/f2").exists());
    // Again in the same branch, with git: a commit, and every command that checks working trees.
    let ran = run(
        "p",
        "try",
        "git add -A && git commit -qm inside && git worktree prune && git worktree list && git fsck --strict && git gc -q && git log --format=%s && git -C ../p@try log -1 --format=%s",
    );
    let out = ran.ok().out();
    assert!(
        out.ends_with("inside\nfirst\ninside\n") && out.contains("[DIR]/p@try "),
        "{out}"
    );
    assert_eq!(
        git(&sandbox, "p", &["log", "-1", "--format=%s", "try"]),
        "inside"
    );
    assert_eq!(git(&sandbox, "p@try", &["status", "--porcelain"]), "");
    assert_eq!(git(&sandbox, "p", &["branch", "--show-current"]), "main");
    // The verbs act on the branch, and its checkpoints belong to it alone.
    let ran = run(
        "p",
        "try",
        "ckptfs checkpoint -m x && ckptfs status | head -n 1",
    );
    assert_eq!(ran.ok().out(), "2\nmount    [DIR]/p@try\n");
    assert_eq!(run("p", "try", "kill -TERM $$").code, 143);
    assert_eq!(
        sandbox
            .ckptfs_in("p", &["branch", "run", "try", "--", "./none"])
            .code,
        127
    );
    assert_eq!(run("p", "-x", "true").code, 2);
    assert_eq!(run("p", "a/b", "true").code, 125);
}

#[test]
fn a_directory_that_the_branch_has_not_cannot_be_started_from() {
    let sandbox = project();
    sandbox.ckptfs_in("p", &["branch", "create", "old"]).ok();
    fs::create_dir(sandbox.path.join("p/later")).expect("mkdir");
    let ran = sandbox.ckptfs_in("p/later", &["branch", "run", "old", "--", "true"]);
    assert_eq!(ran.code, 125);
    assert!(
        ran.err()
            .contains("cannot be entered as it is in the branch old"),
        "{ran:?}"
    );
    let mounts: Vec<PathBuf> = sandbox.mounts();
    assert_eq!(
        mounts.len(),
        2,
        "nothing is mounted outside of the namespace: {mounts:?}"
    );
}

/// Failed before: commands for the parent, run in the branch `fix`, suggested creating a branch
/// `fix`.
#[test]
fn what_is_meant_for_the_parent_is_told_so() {
    let sandbox = Sandbox::new();
    sandbox.file("p/f", "f");
    sandbox.ckptfs(&["mount", "p"]).ok();
    sandbox.ckptfs_in("p", &["branch", "create", "fix"]).ok();
    let itself = "Error: this tree is the branch fix itself, and has no branch of that name\nHint: run it in the parent tree: ckptfs -C [DIR]/p\n";
    for asked in [
        &["merge", "fix"][..],
        &["branch", "update", "fix"],
        &["branch", "diff", "fix"],
        &["branch", "rm", "fix"],
    ] {
        sandbox.ckptfs_in("p@fix", asked).is(1, "", itself);
    }
    sandbox.ckptfs_in("p", &["umount", "../p@fix"]).ok();
    let not_mounted = "Error: the branch fix is not mounted\nHint: ckptfs branch mount fix\n";
    for asked in [
        &["merge", "fix"][..],
        &["branch", "update", "fix"],
        &["branch", "diff", "fix"],
    ] {
        sandbox.ckptfs_in("p", asked).is(1, "", not_mounted);
    }
    let no_more = "Error: no branch \"fix\" was dropped, or gc has emptied the trash since\nHint: `ckptfs branch list --dropped` lists all\n";
    sandbox
        .ckptfs_in("p", &["branch", "restore", "fix"])
        .is(1, "", no_more);
    let none = "Error: there is no branch \"fix\"\nHint: there is none yet: `ckptfs branch create NAME` makes one\n";
    sandbox.ckptfs_in("p", &["branch", "drop", "fix"]).ok();
    sandbox.ckptfs_in("p", &["merge", "fix"]).is(1, "", none);
}
