//! Two examples for each verb, at the end of its help. `tests/it/cli/examples.rs` runs them.

use std::fmt::Write;

use clap::Command;

/// A command line, and its description.
type Example = (&'static str, &'static str);

/// Examples by verb. `~/project` is mounted, and is the working directory.
const EXAMPLES: &[(&str, [Example; 2])] = &[
    (
        "mount",
        [
            ("ckptfs mount ~/other", "Serve a directory in place"),
            (
                "ckptfs mount ~/other --auto-every 15min",
                "With a checkpoint every 15 minutes, if something changed",
            ),
        ],
    ),
    (
        "umount",
        [
            (
                "ckptfs umount ~/project",
                "A plain directory again; its history stays",
            ),
            (
                "ckptfs umount --lazy ~/project",
                "Even though it is still in use",
            ),
        ],
    ),
    (
        "checkpoint",
        [
            (
                "ckptfs checkpoint -m \"before the refactor\" --tag before",
                "With a note and a name",
            ),
            (
                "ckptfs checkpoint --if-changed",
                "Only if something has changed",
            ),
        ],
    ),
    (
        "status",
        [
            (
                "ckptfs status",
                "What has changed since the newest checkpoint",
            ),
            ("ckptfs status --by process", "Who changed it"),
        ],
    ),
    (
        "log",
        [
            ("ckptfs log -n 5", "The five newest checkpoints"),
            ("ckptfs log src/main.rs", "Every version of a file"),
        ],
    ),
    (
        "tag",
        [
            ("ckptfs tag 2 works", "Give checkpoint 2 a name"),
            (
                "ckptfs tag latest tested reviewed",
                "Give the newest one two",
            ),
        ],
    ),
    (
        "pin",
        [
            ("ckptfs pin v1", "Nobody deletes it, and gc keeps it"),
            (
                "ckptfs pin v1 --reason \"sent to the customer\"",
                "With a reason",
            ),
        ],
    ),
    (
        "show",
        [
            (
                "ckptfs show latest",
                "The newest checkpoint that somebody asked for",
            ),
            ("ckptfs show v1", "The one with this tag"),
        ],
    ),
    (
        "diff",
        [
            ("ckptfs diff v1", "What changed since v1"),
            (
                "ckptfs diff --patch v1 v2",
                "From v1 to v2, as git would show it",
            ),
        ],
    ),
    (
        "restore",
        [
            ("ckptfs restore v1 src", "Restore only src"),
            (
                "ckptfs restore --dry-run v1",
                "What a restore of everything would change",
            ),
        ],
    ),
    (
        "rewind",
        [
            (
                "ckptfs rewind -1 --dry-run",
                "What a rewind to before the last prompt would change",
            ),
            (
                "ckptfs rewind -1 --yes",
                "Take back what the agent did since, and nothing else",
            ),
        ],
    ),
    (
        "agent",
        [
            (
                "ckptfs agent install claude-code --dry-run",
                "What would be added to its settings",
            ),
            ("ckptfs agent status", "Where hooks are installed"),
        ],
    ),
    (
        "merge",
        [
            (
                "ckptfs merge --dry-run fix-login",
                "What would change, and what clashes",
            ),
            (
                "ckptfs merge fix-login --drop",
                "Bring the branch back, and drop it",
            ),
        ],
    ),
    (
        "run",
        [
            (
                "ckptfs run --rollback on-failure -- sh build.sh",
                "Take back what a build did if it fails",
            ),
            (
                "ckptfs run --at v1 -- cat README",
                "Run a command in the past",
            ),
        ],
    ),
    (
        "browse",
        [
            ("ckptfs browse", "Look through the checkpoints"),
            ("ckptfs browse src/main.rs", "The versions of one file"),
        ],
    ),
    (
        "bisect",
        [
            (
                "ckptfs bisect v1 v2 -- sh test.sh",
                "Find the checkpoint that broke a test",
            ),
            (
                "ckptfs bisect --log steps.json v1 v2 -- grep -q works README",
                "And log each step",
            ),
        ],
    ),
    (
        "branch",
        [
            (
                "ckptfs branch create try-it",
                "A second tree at ~/project@try-it",
            ),
            ("ckptfs branch list", "List them, and what each has changed"),
        ],
    ),
    (
        "delete",
        [
            (
                "ckptfs delete v1",
                "Hide it until gc frees it; undo brings it back",
            ),
            ("ckptfs delete --now 2", "Free what only it needs, for good"),
        ],
    ),
    (
        "du",
        [
            ("ckptfs du", "What each checkpoint takes"),
            ("ckptfs du v1", "Only what v1 takes"),
        ],
    ),
    (
        "gc",
        [
            (
                "ckptfs gc --keep-last 10 --dry-run",
                "What would go, and how much comes free",
            ),
            (
                "ckptfs gc --dedup",
                "Have versions with the same content share their space",
            ),
        ],
    ),
    (
        "ops",
        [
            ("ckptfs ops", "What was done to the history"),
            ("ckptfs ops -n 3", "The last three operations"),
        ],
    ),
    (
        "undo",
        [
            ("ckptfs undo", "Take back the last operation"),
            ("ckptfs undo --dry-run", "Show which one that is"),
        ],
    ),
    (
        "redo",
        [
            ("ckptfs redo", "Do again what was undone"),
            ("ckptfs redo --dry-run", "Show what that is"),
        ],
    ),
    (
        "export",
        [
            (
                "ckptfs export latest ~/backup",
                "A copy; the next export copies only what changed",
            ),
            ("ckptfs export v1 - > ~/v1.tar", "A tar file"),
        ],
    ),
    (
        "remote",
        [
            (
                "ckptfs remote add disk ~/repository --password-file ~/.password",
                "A repository that restic reads too",
            ),
            ("ckptfs remote log disk", "The checkpoints that it has"),
        ],
    ),
    (
        "push",
        [
            ("ckptfs push disk", "All checkpoints that it has not"),
            (
                "ckptfs push disk v1 v2 --dry-run",
                "What of these it has not",
            ),
        ],
    ),
    (
        "pull",
        [
            (
                "ckptfs pull disk v1 --into ~/v1",
                "The tree as it was, compared with its hashes",
            ),
            (
                "ckptfs pull disk --into ~/again --mount",
                "The newest checkpoint, mounted when all is there",
            ),
        ],
    ),
    (
        "fork",
        [
            (
                "ckptfs fork v1 ~/v1",
                "An independent tree that begins as v1",
            ),
            (
                "ckptfs fork --mount latest ~/copy",
                "With a history of its own",
            ),
        ],
    ),
    (
        "import",
        [
            (
                "ckptfs import ~/other --into ~/new",
                "A directory becomes a checkpoint of a tree",
            ),
            (
                "ckptfs import --dry-run ~/other --into ~/new",
                "What would be brought in",
            ),
        ],
    ),
    (
        "verify",
        [
            ("ckptfs verify", "Check that no version is missing"),
            (
                "ckptfs verify --deep v1",
                "And does every byte of v1 match its hash?",
            ),
        ],
    ),
    (
        "volumes",
        [
            (
                "ckptfs volumes create pgdata -o keep=4h:1d:2w",
                "A volume for containers that thins out its own history",
            ),
            ("ckptfs volumes ls", "List them"),
        ],
    ),
    (
        "serve",
        [
            (
                "ckptfs serve volumes",
                "To Docker and Podman, where they look for plugins",
            ),
            (
                "ckptfs serve csi --node-id node-1",
                "To the kubelet of this node",
            ),
        ],
    ),
    (
        "mcp",
        [
            (
                "ckptfs mcp",
                "As an agent starts it, in the tree that it works on",
            ),
            (
                "ckptfs -C ~/project mcp",
                "For another tree than that of the working directory",
            ),
        ],
    ),
    (
        "doctor",
        [
            (
                "ckptfs doctor",
                "What this machine and this directory can do",
            ),
            ("ckptfs doctor ~/project", "And another directory"),
        ],
    ),
    (
        "prompt",
        [
            ("ckptfs prompt", "Such as 12*"),
            ("PS1='$(ckptfs prompt) \\w \\$ '", "In the prompt of bash"),
        ],
    ),
    (
        "config",
        [
            (
                "ckptfs config set retention.keep-last 20",
                "Write a setting to the store's file",
            ),
            (
                "ckptfs config show --all",
                "Every setting, and what it is for",
            ),
        ],
    ),
    (
        "completion",
        [
            ("source <(ckptfs completion bash)", "In ~/.bashrc"),
            (
                "ckptfs completion fish > ~/.config/fish/completions/ckptfs.fish",
                "For fish",
            ),
        ],
    ),
];

/// Adds the examples to the help of each verb.
pub fn with_examples(command: Command) -> Command {
    command.mut_subcommands(|verb| match examples(verb.get_name()) {
        Some(text) => verb.after_help(text),
        None => verb,
    })
}

fn examples(verb: &str) -> Option<String> {
    let (_, examples) = EXAMPLES.iter().find(|(name, _)| *name == verb)?;
    let mut text = "Examples:".to_owned();
    for (command, what) in examples {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n  {command}\n      {what}");
    }
    Some(text)
}
