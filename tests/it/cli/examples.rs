//! The examples in the help of each verb succeed, each in its own tree.

use super::support::Sandbox;

/// Verbs that run until killed, or need a terminal (`browse.rs` provides one).
const NOT_RUN: [&str; 2] = ["serve", "browse"];
/// A prompt of an agent, and the change it causes.
const PROMPT: &str = r#"echo '{"hook_event_name":"UserPromptSubmit","session_id":"s","prompt_id":"p","prompt":"Go"}' | ckptfs agent hook --agent claude-code
    echo done > done"#;
/// The first example leaves nothing for the second.
const EACH_IN_ITS_OWN: [&str; 5] = ["mount", "umount", "undo", "redo", "import"];
/// Number of concurrent trees.
const THREADS: usize = 3;

/// Returns the examples at the end of a verb's help.
fn examples(sandbox: &Sandbox, verb: &str) -> Vec<String> {
    let help = sandbox.ckptfs(&[verb, "--help"]).ok().out();
    let end = help.split("\nExamples:\n").nth(1).unwrap_or_default();
    end.lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .map(|line| line.trim().to_owned())
        .collect()
}

/// A project with three checkpoints, a branch, and an undone restore.
fn world() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.file("project/README", "it works\n");
    sandbox.file("project/src/main.rs", "fn main() {}\n");
    sandbox.file("project/build.sh", "echo built > out.bin\n");
    sandbox.file("project/test.sh", "grep -q works README\n");
    sandbox.file("other/file", "another\n");
    sandbox.file(".config/fish/completions/.keep", "");
    sandbox.ckptfs(&["mount", "project"]).ok();
    let verb = |args: &[&str]| sandbox.ckptfs_in("project", args).ok();
    verb(&["checkpoint", "--tag", "v1", "-m", "a start"]);
    sandbox.file("project/README", "it does not\n");
    sandbox.file("project/src/more.rs", "// more\n");
    verb(&["checkpoint", "--tag", "v2"]);
    sandbox.file("project/src/main.rs", "fn main() { main() }\n");
    verb(&["checkpoint", "--tag", "kept"]);
    verb(&["pin", "kept"]);
    verb(&["branch", "create", "fix-login", "--no-git"]);
    sandbox.file("project@fix-login/login", "fixed\n");
    sandbox.file("project/notes", "to do\n");
    let mut shell = sandbox.hermetic("bash", "project");
    shell.args(["-c", PROMPT]);
    sandbox.run(shell).ok();
    verb(&["restore", "v1", "README"]);
    verb(&["restore", "v1", "src"]);
    verb(&["undo"]);
    sandbox
}

/// Adds a remote with a checkpoint.
fn add_remote(sandbox: &Sandbox) {
    sandbox.file(".password", "secret\n");
    let mut shell = sandbox.hermetic("bash", "project");
    shell.args([
        "-c",
        "chmod 600 ~/.password && ckptfs remote add disk ~/repository --password-file ~/.password && ckptfs push disk v1",
    ]);
    sandbox.run(shell).ok();
}

/// Runs examples in sequence.
fn run(examples: &[String]) {
    let sandbox = world();
    if examples.iter().any(|example| example.contains(" disk")) {
        add_remote(&sandbox);
    }
    for example in examples {
        let mut shell = sandbox.hermetic("bash", "project");
        shell
            .args(["-c", example])
            .env("CKPTFS_VOLUMES", sandbox.path.join("volumes"));
        let ran = sandbox.run(shell);
        assert_eq!(ran.code, 0, "{example}\n{}{}", ran.out(), ran.err());
    }
    // A tree may still be in use: a process's branch, or a lazily unmounted tree.
    for at in sandbox.mounts() {
        let at = at.display().to_string();
        sandbox.ckptfs(&["umount", "--lazy", &at]);
    }
}

#[test]
fn two_examples_for_each_verb_do_what_they_say() {
    let sandbox = Sandbox::new();
    let verbs = [sandbox.verbs(), vec!["volumes".to_owned()]].concat();
    assert!(verbs.len() > 30, "{verbs:?}");
    let mut runs = Vec::new();
    for verb in verbs {
        let examples = examples(&sandbox, &verb);
        assert_eq!(examples.len(), 2, "{verb}: {examples:?}");
        assert!(
            examples
                .iter()
                .any(|example| example.contains(&format!(" {verb}"))),
            "{verb}: {examples:?}"
        );
        if EACH_IN_ITS_OWN.contains(&verb.as_str()) {
            runs.extend(examples.into_iter().map(|one| (verb.clone(), vec![one])));
        } else if !NOT_RUN.contains(&verb.as_str()) {
            runs.push((verb, examples));
        }
    }
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let runs = &runs;
            scope.spawn(move || {
                for (_, examples) in runs.iter().skip(thread).step_by(THREADS) {
                    run(examples);
                }
            });
        }
    });
}

#[test]
fn the_words_are_explained() {
    let sandbox = Sandbox::new();
    let said = sandbox.ckptfs(&["help", "concepts"]).ok().out();
    for word in [
        "checkpoint",
        "tag",
        "live",
        "latest",
        "restore",
        "guard",
        "undo",
        "pin",
        "branch",
    ] {
        let is_explained = |line: &str| line.starts_with(&format!("{word} "));
        assert_eq!(
            said.lines().filter(|line| is_explained(line)).count(),
            1,
            "{word}: {said}"
        );
    }
    assert_eq!(sandbox.ckptfs(&["concepts"]).ok().out(), said);
}
