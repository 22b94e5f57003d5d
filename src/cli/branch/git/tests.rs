//! Tests with real git, in plain directories: a copy of the tree represents a branch.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::*;

fn forget(
    project: &Path,
    branch: &Path,
    name: &str,
    trash: &[PathBuf],
) -> VerbResult<Option<Forgotten>> {
    super::forget(project, branch, name, || Ok(trash.to_vec()))
}

/// A project in its own directory.
struct Project {
    dir: tempfile::TempDir,
}

impl Project {
    /// Creates two commits and some files, one of them changed since and one ignored.
    fn new() -> Project {
        let project = Project::empty();
        for number in 0..20 {
            project.write(&format!("src/file{number}"), "one\n");
        }
        project.write(".gitignore", "ignored\n");
        project.write("ignored", "not in any commit\n");
        project.commit("first");
        project.write("src/file1", "two\n");
        project.commit("second");
        project
    }

    fn empty() -> Project {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let project = Project { dir };
        fs::create_dir(project.root()).expect("mkdir");
        project.git(&["init", "-q", "-b", "main"]);
        project
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("project")
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.root().join(name);
        fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
        fs::write(path, text).expect("write");
    }

    fn git(&self, arguments: &[&str]) -> String {
        git(&self.root(), arguments)
    }

    fn commit(&self, message: &str) {
        commit(&self.root(), message);
    }

    /// Makes a branch: begin, copy, finish.
    fn branch(&self, name: &str) -> (PathBuf, GitState) {
        self.try_branch(name).expect("a branch with git")
    }

    fn try_branch(&self, name: &str) -> VerbResult<(PathBuf, GitState)> {
        branch_of(
            &self.root(),
            &self.dir.path().join(format!("project@{name}")),
            name,
        )
    }

    fn branch_at(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("project@{name}"))
    }

    fn entries(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.root().join(".git/worktrees"))
            .into_iter()
            .flatten()
            .map(|entry| {
                entry
                    .expect("entry")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        names.sort();
        names
    }
}

fn branch_of(project: &Path, at: &Path, name: &str) -> VerbResult<(PathBuf, GitState)> {
    made_of(
        project,
        at,
        begin(project, None, at, name)?.expect("a repository"),
    )
}

fn made_of(project: &Path, at: &Path, begun: WorktreeEntry) -> VerbResult<(PathBuf, GitState)> {
    run(Command::new("cp")
        .args(["-a", "--reflink=auto"])
        .arg(project)
        .arg(at));
    let link = at.join(".git");
    if link.is_dir() {
        fs::remove_dir_all(&link).expect("remove");
    }
    fs::write(link, begun.dot_git()).expect("write");
    // Here the project itself is the view of the base.
    let attached = begun.finish(project)?;
    Ok((at.to_owned(), attached))
}

fn command(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command
        .args(["-c", "user.name=t", "-c", "user.email=t@example.org"])
        .args(arguments)
        .current_dir(dir)
        .env("HOME", dir)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_TERMINAL_PROMPT", "0");
    command
}

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

fn git(dir: &Path, arguments: &[&str]) -> String {
    let output = run(&mut command(dir, arguments));
    String::from_utf8(output.stdout)
        .expect("text")
        .trim_end()
        .to_owned()
}

fn commit(dir: &Path, message: &str) {
    git(dir, &["add", "-A"]);
    git(dir, &["commit", "-q", "--allow-empty", "-m", message]);
}

#[test]
fn an_index_that_was_copied_ahead_is_that_of_the_base() {
    let project = Project::new();
    for (name, changes) in [("same", false), ("other", true)] {
        let at = project.branch_at(name);
        let begun = begin(&project.root(), None, &at, name).expect("it begins");
        let mut begun = begun.expect("a repository");
        begun.copy_ahead();
        assert!(
            matches!(begun.ahead, Some(Ok(Some(_)))),
            "{:?}",
            begun.ahead
        );
        if changes {
            project.write("src/file3", "staged\n");
            project.git(&["add", "src/file3"]);
        }
        made_of(&project.root(), &at, begun).expect("it is made");
        let status = ["status", "--porcelain"];
        assert_eq!(git(&at, &status), project.git(&status), "{name}");
        assert_eq!(git(&at, &status).is_empty(), !changes, "{name}");
    }
}

#[test]
fn git_takes_a_branch_for_a_working_tree_of_the_repository() {
    let project = Project::new();
    project.write("src/file2", "not committed\n");
    project.write("new", "not added\n");
    project.write("src/file3", "staged\n");
    project.git(&["add", "src/file3"]);
    let before = project.git(&["status", "--porcelain"]);
    let (at, attached) = project.branch("fix-login");
    assert_eq!(
        attached,
        GitState {
            branch: Some("fix-login".into()),
            note: None
        }
    );
    assert_eq!(
        git(&at, &["status", "--porcelain"]),
        before,
        "what was staged is staged"
    );
    assert_eq!(git(&at, &["branch", "--show-current"]), "fix-login");
    assert_eq!(
        git(&at, &["rev-parse", "HEAD"]),
        project.git(&["rev-parse", "main"])
    );
    let listed = project.git(&["worktree", "list", "--porcelain"]);
    let shown = format!("worktree {}\n", at.display());
    assert!(
        listed.contains(&shown) && !listed.contains("prunable") && !listed.contains("locked"),
        "{listed}"
    );
    project.git(&["worktree", "prune"]);
    assert_eq!(project.entries(), ["fix-login"]);
    commit(&at, "in the branch");
    assert_eq!(
        project.git(&["log", "-1", "--format=%s", "fix-login"]),
        "in the branch"
    );
    assert_eq!(project.git(&["log", "-1", "--format=%s"]), "second");
    assert_eq!(
        project.git(&["status", "--porcelain"]),
        before,
        "the parent's index is its own"
    );
    git(&at, &["fsck", "--strict"]);

    fs::remove_dir_all(&at).expect("dropped");
    let forgotten = forget(&project.root(), &at, "x", &[])
        .expect("forget")
        .expect("it was known");
    assert_eq!(
        forgotten,
        Forgotten {
            head: "ref: refs/heads/fix-login".into(),
            locked: false
        }
    );
    assert_eq!(project.git(&["worktree", "list"]).lines().count(), 1);
    assert_eq!(
        project.git(&["log", "-1", "--format=%s", "fix-login"]),
        "in the branch",
        "what was committed stays"
    );
    assert_eq!(
        forget(&project.root(), &at, "x", &[]).expect("forget"),
        None
    );
    project.git(&["fsck", "--strict"]);
}

#[test]
fn four_branches_commit_at_once() {
    let project = Project::new();
    let branches: Vec<PathBuf> = (0..4)
        .map(|n| project.branch(&format!("try-{n}")).0)
        .collect();
    std::thread::scope(|scope| {
        for (number, at) in branches.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..5 {
                    fs::write(at.join(format!("src/file{number}")), format!("{round}\n"))
                        .expect("write");
                    fs::write(at.join(format!("made-{round}")), format!("{number}\n"))
                        .expect("write");
                    commit(at, &format!("{number} {round}"));
                    assert_eq!(git(at, &["status", "--porcelain"]), "");
                }
            });
        }
    });
    for (number, at) in branches.iter().enumerate() {
        let of = format!("try-{number}");
        assert_eq!(
            project.git(&["rev-list", "--count", &format!("main..{of}")]),
            "5"
        );
        assert_eq!(git(at, &["show", "HEAD:made-4"]), number.to_string());
    }
    assert_eq!(project.git(&["fsck", "--strict", "--no-dangling"]), "");
    project.git(&["gc", "-q", "--prune=now"]);
    for at in &branches {
        git(at, &["fsck", "--strict"]);
        assert_eq!(git(at, &["status", "--porcelain"]), "");
    }
    assert_eq!(project.entries(), ["try-0", "try-1", "try-2", "try-3"]);
}

#[test]
fn head_is_a_commit_where_a_branch_of_this_name_cannot_be_had() {
    let project = Project::new();
    let detached = |name: &str, why: &str| {
        let (at, attached) = project.branch(name);
        assert!(
            attached.branch.is_none() && attached.note.expect("why").contains(why),
            "{name}"
        );
        assert_eq!(
            git(&at, &["rev-parse", "HEAD"]),
            project.git(&["rev-parse", "HEAD"])
        );
        assert_eq!(git(&at, &["status", "--porcelain"]), "", "{name}");
        let shown = git(&at, &["rev-parse", "--symbolic-full-name", "HEAD"]);
        assert_eq!(shown, "HEAD", "{name}");
    };
    project.git(&["branch", "same"]);
    project.git(&["branch", "other", "HEAD~1"]);
    project.git(&["branch", "above/below"]);
    project.git(&["pack-refs", "--all"]);
    assert_eq!(
        project.branch("same").1.branch.as_deref(),
        Some("same"),
        "packed, and the same commit"
    );
    detached("other", "other commits");
    detached("above", "below it");
    detached("main", "checked out");
    detached("a..b", "valid name");
    detached("x.lock", "valid name");
    assert_eq!(
        project.git(&["rev-parse", "other"]),
        project.git(&["rev-parse", "HEAD~1"])
    );
    // The same from a HEAD that is a commit.
    project.git(&["checkout", "-q", "--detach", "HEAD~1"]);
    let (at, attached) = project.branch("from-commit");
    assert_eq!(attached.branch.as_deref(), Some("from-commit"));
    assert_eq!(
        git(&at, &["rev-parse", "from-commit"]),
        project.git(&["rev-parse", "main~1"])
    );
    project.git(&["fsck", "--strict"]);
}

#[test]
fn a_repository_without_commits_has_branches_without_commits() {
    let project = Project::empty();
    project.write("a", "a\n");
    project.git(&["add", "a"]);
    let (at, attached) = project.branch("first");
    assert_eq!(attached.branch.as_deref(), Some("first"));
    assert_eq!(git(&at, &["status", "--porcelain"]), "A  a");
    commit(&at, "the first");
    assert_eq!(project.git(&["log", "--format=%s", "first"]), "the first");
    let refused = project.try_branch("main").expect_err("it is checked out");
    assert_eq!(refused.code, Code::Busy);
    assert_eq!(project.entries(), ["first"], "nothing stays of it");
}

#[test]
fn working_trees_and_submodules_have_branches_too() {
    let project = Project::new();
    let (first, _) = project.branch("one");
    let (second, attached) = branch_of(&first, &project.branch_at("two"), "two").expect("nested");
    assert_eq!(attached.branch.as_deref(), Some("two"));
    commit(&second, "deep");
    assert_eq!(project.git(&["log", "-1", "--format=%s", "two"]), "deep");
    assert_eq!(project.entries(), ["one", "two"]);

    let outer = Project::empty();
    let origin = project.root().display().to_string();
    outer.git(&[
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "add",
        "-q",
        &origin,
        "sub",
    ]);
    outer.commit("with a submodule");
    let (at, attached) = branch_of(&outer.root().join("sub"), &outer.root().join("sub@x"), "x")
        .expect("of a submodule");
    assert_eq!(attached.branch.as_deref(), Some("x"));
    assert_eq!(git(&at, &["status", "--porcelain"]), "");
    commit(&at, "in the copy");
    let sub = outer.root().join("sub");
    assert_eq!(git(&sub, &["log", "-1", "--format=%s", "x"]), "in the copy");
    assert_eq!(git(&sub, &["log", "-1", "--format=%s"]), "second");
}

#[test]
fn settings_of_one_working_tree_and_parts_of_an_index_come_along() {
    let project = Project::new();
    project.git(&["config", "extensions.worktreeConfig", "true"]);
    project.git(&["config", "--worktree", "test.own", "yes"]);
    project.git(&["update-index", "--split-index"]);
    project.git(&["sparse-checkout", "set", "--no-cone", "/*", "!/src/file7"]);
    assert!(!project.root().join("src/file7").exists());
    let (at, _) = project.branch("sparse");
    assert_eq!(git(&at, &["config", "test.own"]), "yes");
    assert_eq!(git(&at, &["status", "--porcelain"]), "");
    assert_eq!(git(&at, &["ls-files"]).lines().count(), 21);
    project.git(&["config", "--worktree", "core.worktree", "/elsewhere"]);
    let refused = project
        .try_branch("no")
        .expect_err("it says where the tree is");
    assert_eq!(refused.code, Code::BadConfig);
    assert_eq!(project.entries(), ["sparse"]);
}

#[test]
fn what_git_cannot_be_told_of_is_refused_with_the_reason() {
    let without = tempfile::tempdir().expect("directory");
    assert!(
        begin(without.path(), None, Path::new("/x"), "x")
            .expect("no repository")
            .is_none()
    );

    let project = Project::new();
    let root = project.root();
    let refused = |code: Code, why: &str| {
        let error = begin(&root, None, Path::new("/x"), "x").expect_err(why);
        assert!(
            error.code == code && error.message.contains(why) && error.hint.is_some(),
            "{error:?}"
        );
        assert!(project.entries().is_empty());
    };
    project.git(&["config", "core.repositoryFormatVersion", "1"]);
    project.git(&["config", "extensions.refStorage", "reftable"]);
    refused(Code::NewerFormat, "`reftable`");
    let config = root.join(".git/config");
    let text = fs::read_to_string(&config).expect("config");
    fs::write(&config, text.replace("reftable", "files")).expect("config");
    fs::write(&config, text.replace("refStorage", "ofTomorrow")).expect("config");
    refused(Code::NewerFormat, "`oftomorrow`");
    fs::rename(root.join(".git"), root.join("../real")).expect("rename");
    symlink("../real", root.join(".git")).expect("symlink");
    refused(Code::NotADirectory, "neither a directory nor a file");
    fs::remove_file(root.join(".git")).expect("remove");
    fs::write(root.join(".git"), "hello\n").expect("write");
    refused(Code::NotADirectory, "leads to no repository");
}

#[test]
fn a_repository_of_somebody_else_is_written_to_as_its_owner_and_no_further() {
    use std::os::unix::fs::{MetadataExt, chown};
    if sys::ids().0 != 0 {
        return;
    }
    let project = Project::new();
    let root = project.root();
    let own = |path: &Path, user: u32| {
        run(Command::new("chown")
            .args(["-R", &format!("{user}:{user}")])
            .arg(path))
    };
    own(project.dir.path(), 4001);
    let begun = begin(&root, None, &project.branch_at("x"), "x")
        .expect("as the owner")
        .expect("one");
    let entry = root.join(".git/worktrees/x");
    assert_eq!(fs::metadata(&entry).expect("entry").uid(), 4001);
    let attached = begun.finish(&root).expect("finished");
    assert_eq!(attached.branch.as_deref(), Some("x"));
    for made in ["index", "HEAD", "gitdir"] {
        assert_eq!(
            fs::metadata(entry.join(made)).expect("made").uid(),
            4001,
            "{made}"
        );
    }
    assert_eq!(
        fs::metadata(root.join(".git/refs/heads/x"))
            .expect("made")
            .uid(),
        4001
    );
    // The file of another user leads to a repository with a different owner.
    let other = Project::new();
    fs::remove_dir_all(root.join(".git")).expect("remove");
    fs::write(
        root.join(".git"),
        format!("gitdir: {}\n", other.root().join(".git").display()),
    )
    .expect("write");
    chown(root.join(".git"), Some(4001), Some(4001)).expect("chown");
    let refused = begin(&root, None, Path::new("/x"), "x").expect_err("not theirs");
    assert_eq!(refused.code, Code::NoPermission);
    assert!(other.entries().is_empty());
}

#[test]
fn nothing_stays_of_what_was_begun_only_and_a_killed_one_is_cleared_up() {
    let project = Project::new();
    drop(
        begin(&project.root(), None, &project.branch_at("x"), "x")
            .expect("begin")
            .expect("one"),
    );
    assert!(project.entries().is_empty());
    let begun = begin(&project.root(), None, &project.branch_at("x"), "x")
        .expect("begin")
        .expect("one");
    project.git(&["worktree", "prune"]);
    assert_eq!(project.entries(), ["x"], "it is locked meanwhile");
    std::mem::forget(begun);
    let (at, _) = project.branch("x");
    assert_eq!(project.entries(), ["x1"], "that of the killed one has gone");
    assert_eq!(git(&at, &["branch", "--show-current"]), "x");
    git(
        &project.root(),
        &["worktree", "lock", &at.display().to_string()],
    );
    let kept = forget(&project.root(), &at, "x", &[])
        .expect("forget")
        .expect("known");
    assert!(
        kept.locked && project.entries() == ["x1"],
        "who locked it wants it"
    );
}

#[test]
fn a_branch_that_comes_back_from_the_trash_has_its_index_and_head_again() {
    let project = Project::new();
    let (at, _) = project.branch("x");
    fs::write(at.join("src/file5"), "committed\n").expect("write");
    commit(&at, "in the branch");
    fs::write(at.join("src/file6"), "staged\n").expect("write");
    git(&at, &["add", "src/file6"]);
    let before = git(&at, &["status", "--porcelain"]);
    let trash = project.dir.path().join("trash");
    fs::rename(&at, &trash).expect("dropped");
    let all = [at.clone()];
    forget(&project.root(), &at, "x", &all)
        .expect("forget")
        .expect("known");
    assert!(project.entries().is_empty());
    project.git(&["fsck", "--strict"]);
    // Another branch of this name is made and dropped, and one more is dropped.
    let (again, attached) = project.branch("x");
    assert!(
        attached.branch.is_none(),
        "there are other commits: {attached:?}"
    );
    fs::rename(&again, project.dir.path().join("gone")).expect("dropped");
    forget(&project.root(), &again, "x", &all)
        .expect("forget")
        .expect("known");
    let (other, _) = project.branch("other");
    fs::remove_dir_all(&other).expect("dropped");
    forget(&project.root(), &other, "other", &all)
        .expect("forget")
        .expect("known");
    fs::rename(project.dir.path().join("gone"), &at).expect("back");
    assert!(recall(&project.root(), &at).expect("recall"));
    assert_eq!(
        git(&at, &["rev-parse", "--symbolic-full-name", "HEAD"]),
        "HEAD"
    );
    fs::rename(&at, project.dir.path().join("gone")).expect("moved");
    project.git(&["worktree", "prune"]);
    // The first branch, whose name another has by now.
    fs::create_dir(project.root().join(".git/worktrees")).expect("mkdir");
    fs::create_dir(project.root().join(".git/worktrees/x")).expect("mkdir");
    fs::rename(&trash, &at).expect("back");
    assert!(recall(&project.root(), &at).expect("recall"));
    assert_eq!(project.entries(), ["x", "x1"]);
    assert_eq!(git(&at, &["status", "--porcelain"]), before);
    assert_eq!(git(&at, &["branch", "--show-current"]), "x");
    assert!(
        !recall(&project.root(), &at).expect("recall"),
        "there is no other"
    );
    // Entries of branches that are not in the trash are freed.
    forget(&project.root(), &at, "x", &[])
        .expect("forget")
        .expect("known");
    let kept = fs::read_dir(project.root().join(".git").join(DROPPED)).expect("a directory");
    assert_eq!(kept.count(), 1);
}
