//! git leaves the store of an unmounted project alone. Failed before: the store was an ignored
//! directory, which `git clean -fdx` and `git stash --all` removed.

use super::support::Sandbox;

#[test]
fn git_leaves_the_store_of_an_unmounted_project() {
    let sandbox = Sandbox::new();
    let git = |line: &str| {
        let mut git = sandbox.hermetic("git", "p");
        git.args(["-c", "user.name=n", "-c", "user.email=e@x"])
            .args(line.split(' '));
        sandbox.run(git)
    };
    sandbox.file("p/f", "1\n");
    sandbox.file("p/.gitignore", "built\n");
    git("init -q").ok();
    git("add .").ok();
    git("commit -qm one").ok();
    sandbox.ckptfs(&["mount", "p"]).ok();
    sandbox.ckptfs_in("p", &["checkpoint"]).is(0, "1\n", "");
    sandbox.file("p/f", "2\n");
    sandbox.ckptfs(&["umount", "p"]).ok();
    sandbox.file("p/built", "");
    for line in ["clean -fdxn", "clean -fdx", "clean -fdX"] {
        let said = git(line).ok().out();
        assert!(
            !said.contains("Removing .ckptfs") && !said.contains("Would remove .ckptfs"),
            "{said}"
        );
    }
    assert!(!sandbox.path.join("p/built").exists());
    // Whether git stashes or refuses, the history stays.
    sandbox.file("p/built", "");
    assert_eq!(git("status --porcelain").ok().out(), " M f\n");
    git("add .").ok();
    git("stash --all");
    assert_eq!(git("status --porcelain").ok().out(), "");
    sandbox.ckptfs(&["mount", "p"]).ok();
    sandbox.ckptfs_in("p", &["restore", "1"]).ok();
    assert_eq!(
        std::fs::read_to_string(sandbox.path.join("p/f")).unwrap(),
        "1\n"
    );
    let status = sandbox.ckptfs_in("p", &["verify"]);
    status.ok();
    // The store does not appear in the repository.
    assert_eq!(git("status --porcelain").ok().out(), "");
}
