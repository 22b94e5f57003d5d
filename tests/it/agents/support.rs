//! Scripted agents without a model, and manual calls of hooks.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::command::wait_limited;
use crate::common::{Rig, run_limited, scratch};

/// The agent's script.
pub const AGENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/agents/agent.py");
/// Time limit of a hook, in seconds.
const SECONDS: u64 = 60;

/// Returns a `ckptfs` command in a working directory.
pub fn ckptfs(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ckptfs"));
    command
        .current_dir(dir)
        .args(arguments)
        .env("NO_COLOR", "1")
        .env_remove("CLAUDE_PROJECT_DIR");
    command
}

/// Returns the letters and paths of a list of changes.
pub fn letters(rewound: &Value) -> Vec<String> {
    let all = rewound["changes"].as_array().expect("changes");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    all.iter()
        .map(|change| format!("{} {}", text(&change["change"]), text(&change["path"])))
        .collect()
}

/// Runs the hook with this input.
pub fn hook(dir: &Path, said: &[u8]) -> Output {
    hook_of(ckptfs(dir, &["agent", "hook", "--agent", "test"]), said)
}

/// Runs a hook's command with this input.
pub fn hook_of(mut command: Command, said: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("stdin");
    // A hook that does not read all of it closes the pipe.
    let _ = stdin.write_all(said);
    drop(stdin);
    wait_limited(&mut child, Duration::from_secs(SECONDS)).expect("a hook ends");
    child.wait_with_output().expect("its output can be read")
}

/// A session of an agent: a separate process, which calls the hooks around its actions.
pub struct Session {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    pub id: &'static str,
    prompts: u32,
    scratch: Option<tempfile::TempDir>,
}

impl Session {
    /// Starts a session with a separate directory for temporary files, because other tests use the
    /// same session names.
    pub fn start(dir: &Path, id: &'static str) -> Session {
        let scratch = scratch();
        let mut command = Command::new("/usr/bin/python3");
        command
            .env("TMPDIR", scratch.path())
            .env_remove("XDG_RUNTIME_DIR");
        let mut session = Session::with(command, Path::new(AGENT), dir, id);
        session.scratch = Some(scratch);
        session
    }

    /// Starts a session with the given command, from a copy of the script.
    pub fn with(mut command: Command, script: &Path, dir: &Path, id: &'static str) -> Session {
        let mut child = command
            .arg(script)
            .arg(id)
            .current_dir(dir)
            .env_remove("CLAUDE_PROJECT_DIR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python starts");
        let (stdin, stdout) = (
            child.stdin.take().expect("stdin"),
            BufReader::new(child.stdout.take().expect("stdout")),
        );
        Session {
            child,
            stdin: Some(stdin),
            stdout,
            id,
            prompts: 0,
            scratch: None,
        }
    }

    fn does(&mut self, what: &Value) -> Value {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        writeln!(stdin, "{what}").expect("it listens");
        let mut said = String::new();
        self.stdout.read_line(&mut said).expect("it answers");
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{what}: {error}: {said}"))
    }

    /// Submits a prompt.
    #[track_caller]
    pub fn prompt(&mut self, text: &str) {
        self.prompts += 1;
        let id = format!("{}-p{}", self.id, self.prompts);
        silent(&self.does(&json!({ "do": "prompt", "text": text, "id": id })));
    }

    /// Submits a prompt for which no checkpoint can be made; returns the hook's stderr.
    #[track_caller]
    pub fn prompt_refused(&mut self, text: &str) -> String {
        let answer = self.does(&json!({ "do": "prompt", "text": text, "id": "refused" }));
        assert!(answer["status"] == 1 && answer["stdout"] == "", "{answer}");
        answer["stderr"].as_str().expect("text").to_owned()
    }

    /// Writes a file with the edit tool.
    #[track_caller]
    pub fn write(&mut self, path: &str, text: &str) {
        let done = self.does(&json!({ "do": "write", "path": path, "text": text }));
        silent(&done["before"]);
    }

    /// Runs a command; returns the hook's report of it.
    #[track_caller]
    pub fn bash(&mut self, command: &str) -> Option<String> {
        let done = self.does(&json!({ "do": "bash", "command": command }));
        silent(&done["before"]);
        let after = &done["after"];
        assert_eq!(
            (after["status"].as_i64(), after["stderr"].as_str()),
            (Some(0), Some("")),
            "{after}"
        );
        let said = after["stdout"].as_str().expect("text");
        if said.is_empty() {
            return None;
        }
        let said: Value = serde_json::from_str(said).expect("JSON");
        let told = &said["hookSpecificOutput"];
        assert!(
            ["PostToolUse", "PostToolUseFailure"]
                .contains(&told["hookEventName"].as_str().expect("an event")),
            "{said}"
        );
        Some(told["additionalContext"].as_str().expect("text").to_owned())
    }

    /// Ends the turn.
    #[track_caller]
    pub fn stop(&mut self) {
        silent(&self.does(&json!({ "do": "stop" })));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asserts that a hook exited with 0 and without output.
#[track_caller]
pub fn silent(answer: &Value) {
    assert_eq!(answer, &json!({ "status": 0, "stdout": "", "stderr": "" }));
}

/// Installs the hooks in an agent's settings of a mounted tree.
pub fn install(rig: &Rig, agent: &str) {
    let mut command = ckptfs(rig.path(), &["agent", "install", agent, "--project"]);
    let ran = run_limited(&mut command, SECONDS);
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

/// Returns `payloads.json`: an example of each documented event.
pub fn payloads() -> Vec<Value> {
    let all: Value =
        serde_json::from_str(include_str!("payloads.json")).expect("payloads.json is JSON");
    all.as_array().expect("a list").clone()
}

/// Returns a payload for a tree.
pub fn said_in(payload: &Value, tree: &Path) -> Vec<u8> {
    let text = payload.to_string();
    text.replace("@TREE@", &tree.display().to_string())
        .into_bytes()
}

/// Returns the content of a file of the tree, if it exists.
pub fn get(rig: &Rig, name: &str) -> Option<String> {
    std::fs::read_to_string(rig.path().join(name)).ok()
}

/// Returns a label of a checkpoint's note.
pub fn label<'a>(checkpoint: &'a Value, key: &str) -> Option<&'a str> {
    let note = checkpoint["note"].as_str()?;
    note.lines()
        .skip(1)
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
}

/// Makes a directory outside every tree.
pub fn nowhere() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::Builder::new()
        .prefix("ckptfs-agents-")
        .tempdir_in("/var/tmp")
        .expect("a directory");
    let path = dir.path().canonicalize().expect("its path");
    (dir, path)
}
