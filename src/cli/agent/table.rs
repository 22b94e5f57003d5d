//! The agents: where each has its settings, and what stands in them for us.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// What an agent is told of ckptfs.
pub const SKILL: &str = include_str!("text/SKILL.md");
/// opencode has no settings for hooks, but runs what lies in its directory of plugins.
const OPENCODE: &str = include_str!("text/opencode.js");

/// Seconds that a hook may take before the agent goes on without it.
const TIMEOUT_S: u64 = 10;
/// The same for making a second tree, which may have git do it.
const WORKTREE_TIMEOUT_S: u64 = 120;

/// An agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Agent {
    /// Claude Code
    ClaudeCode,
    /// Codex
    Codex,
    /// Gemini CLI
    Gemini,
    /// Cursor
    Cursor,
    /// opencode
    Opencode,
}

/// For whom it is installed.
#[derive(Clone, Debug)]
pub enum Scope {
    /// For everybody who works in this directory.
    Project(PathBuf),
    /// For a user with this home.
    User(PathBuf),
}

/// A file that is the agent's, with entries of ours in it.
pub struct Settings {
    /// Where.
    pub path: PathBuf,
    /// What is needed at the top of it besides: key and value.
    pub top: Option<(&'static str, Value)>,
    /// The key of the object that the entries are in.
    pub key: &'static str,
    /// Key of a list in that, and our entry of the list; or key of an entry of ours.
    pub entries: Vec<(String, Value)>,
    /// The entries are in lists.
    pub lists: bool,
}

/// A file that is ours.
pub struct OwnFile {
    /// Where.
    pub path: PathBuf,
    /// What it holds.
    pub content: String,
}

/// All agents.
pub const ALL: [Agent; 5] = [
    Agent::ClaudeCode,
    Agent::Codex,
    Agent::Gemini,
    Agent::Cursor,
    Agent::Opencode,
];

impl Agent {
    /// Its name on our command line.
    pub fn name(self) -> &'static str {
        match self {
            Agent::ClaudeCode => "claude-code",
            Agent::Codex => "codex",
            Agent::Gemini => "gemini",
            Agent::Cursor => "cursor",
            Agent::Opencode => "opencode",
        }
    }

    /// The events that it has hooks for, with the tools that are meant, if not all.
    fn events(self) -> &'static [(&'static str, Option<&'static str>)] {
        match self {
            Agent::ClaudeCode => &[
                ("UserPromptSubmit", None),
                ("PreToolUse", Some("Bash|Edit|MultiEdit|Write|NotebookEdit")),
                ("PostToolUse", Some("Bash")),
                ("PostToolUseFailure", Some("Bash")),
                ("Stop", None),
                ("WorktreeCreate", None),
                ("WorktreeRemove", None),
            ],
            Agent::Codex => &[
                ("UserPromptSubmit", None),
                ("PreToolUse", Some("Bash|apply_patch")),
                ("PostToolUse", Some("Bash")),
                ("Stop", None),
            ],
            Agent::Gemini => &[
                ("BeforeAgent", None),
                ("BeforeTool", Some("run_shell_command|write_file|replace")),
                ("AfterTool", Some("run_shell_command")),
                ("AfterAgent", None),
            ],
            Agent::Cursor => &[
                ("beforeSubmitPrompt", None),
                ("preToolUse", Some("Shell|Write|Delete")),
                ("postToolUse", Some("Shell")),
                ("stop", None),
            ],
            Agent::Opencode => &[],
        }
    }

    /// One entry for an event.
    fn entry(self, event: &str, tools: Option<&str>, command: &str) -> Value {
        let timeout = if event == "WorktreeCreate" {
            WORKTREE_TIMEOUT_S
        } else {
            TIMEOUT_S
        };
        let mut entry = match self {
            Agent::Cursor => return cursor_entry(tools, command),
            Agent::Gemini => {
                let hook = json!({ "name": "ckptfs", "type": "command", "command": command, "timeout": timeout * 1000 });
                json!({ "hooks": [hook] })
            }
            Agent::ClaudeCode | Agent::Codex | Agent::Opencode => {
                let hook = json!({ "type": "command", "command": command, "timeout": timeout });
                json!({ "hooks": [hook] })
            }
        };
        if let (Some(tools), Some(entry)) = (tools, entry.as_object_mut()) {
            entry.insert("matcher".to_owned(), tools.into());
        }
        entry
    }

    /// What goes under `hooks` of its settings: for each event our entry of that event's list.
    pub fn hooks(self, command: &str) -> Vec<(String, Value)> {
        let of = |(event, tools): &(&str, Option<&str>)| {
            ((*event).to_owned(), self.entry(event, *tools, command))
        };
        self.events().iter().map(of).collect()
    }

    /// The files that are its own.
    pub fn settings(self, scope: &Scope, command: &str, mcp: Option<Value>) -> Vec<Settings> {
        let (dir, name) = match self {
            Agent::ClaudeCode => (scope.dir(".claude"), "settings.json"),
            Agent::Codex => (scope.codex(), "hooks.json"),
            Agent::Gemini => (scope.dir(".gemini"), "settings.json"),
            Agent::Cursor => (scope.dir(".cursor"), "hooks.json"),
            Agent::Opencode => return Vec::new(),
        };
        let mut all = vec![Settings {
            path: dir.join(name),
            top: (self == Agent::Cursor).then(|| ("version", json!(1))),
            key: "hooks",
            entries: self.hooks(command),
            lists: true,
        }];
        // The one place where `ckptfs mcp` is registered: `.mcp.json` of the project. Claude Code
        // rewrites the user's own file (`~/.claude.json`) while it runs, so nothing is put there.
        if let (Agent::ClaudeCode, Scope::Project(dir), Some(server)) = (self, scope, mcp) {
            all.push(Settings {
                path: dir.join(".mcp.json"),
                top: None,
                key: "mcpServers",
                entries: vec![("ckptfs".to_owned(), server)],
                lists: false,
            });
        }
        all
    }

    /// The files that are ours.
    pub fn own_files(self, scope: &Scope, command: &str) -> Vec<OwnFile> {
        let skills = match (self, scope) {
            (Agent::ClaudeCode, _) => scope.dir(".claude/skills"),
            // Codex reads the skills of a repository, and of a user, there.
            (Agent::Codex, _) => scope.dir(".agents/skills"),
            (Agent::Gemini, _) => scope.dir(".gemini/skills"),
            (Agent::Cursor, _) => scope.dir(".cursor/skills"),
            (Agent::Opencode, _) => scope.opencode().join("skills"),
        };
        let mut all = vec![OwnFile {
            path: skills.join("ckptfs/SKILL.md"),
            content: SKILL.to_owned(),
        }];
        if self == Agent::Opencode {
            let command = Value::from(command).to_string();
            all.push(OwnFile {
                path: scope.opencode().join("plugins/ckptfs.js"),
                content: OPENCODE.replace("\"@COMMAND@\"", &command),
            });
        }
        all
    }
}

fn cursor_entry(tools: Option<&str>, command: &str) -> Value {
    match tools {
        Some(tools) => json!({ "command": command, "matcher": tools }),
        None => json!({ "command": command }),
    }
}

impl Scope {
    /// The directory that it is about.
    pub fn root(&self) -> &Path {
        match self {
            Scope::Project(dir) | Scope::User(dir) => dir,
        }
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    fn codex(&self) -> PathBuf {
        let told = std::env::var_os("CODEX_HOME").map(PathBuf::from);
        match self {
            Scope::User(_) => told.unwrap_or_else(|| self.dir(".codex")),
            Scope::Project(_) => self.dir(".codex"),
        }
    }

    fn opencode(&self) -> PathBuf {
        let told = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
        match self {
            Scope::User(_) => told
                .filter(|dir| dir.is_absolute())
                .unwrap_or_else(|| self.dir(".config"))
                .join("opencode"),
            Scope::Project(_) => self.dir(".opencode"),
        }
    }
}

/// Whether an entry of a list is one of ours, of whatever version: it calls `ckptfs agent hook`.
pub fn is_ours(entry: &Value) -> bool {
    let calls = |hook: &Value| {
        let command = hook.get("command").and_then(Value::as_str);
        command.is_some_and(|command| command.contains("ckptfs") && command.contains(" agent hook"))
    };
    // A group in which somebody has put something else beside ours stays.
    match entry.get("hooks").and_then(Value::as_array) {
        Some(hooks) => !hooks.is_empty() && hooks.iter().all(calls),
        None => calls(entry),
    }
}
