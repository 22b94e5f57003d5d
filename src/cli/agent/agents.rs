//! The agents: the places of their settings, and our entries in them.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// The skill by which agents learn about ckptfs.
pub const SKILL: &str = include_str!("text/SKILL.md");
/// opencode has no settings for hooks, but runs the files in its directory of plugins.
const OPENCODE: &str = include_str!("text/opencode.js");

/// Time limit of a hook in seconds, after which the agent continues without it.
const TIMEOUT_S: u64 = 10;
/// The same for the creation of a second tree, which may run git.
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

/// Scope of an installation.
#[derive(Clone, Debug)]
pub enum Scope {
    /// All users of this directory.
    Project(PathBuf),
    /// The user with this home.
    User(PathBuf),
}

/// A file of the agent, with our entries.
pub struct Settings {
    /// Its path.
    pub path: PathBuf,
    /// A required key and value at its top level.
    pub top: Option<(&'static str, Value)>,
    /// Key of the object with the entries.
    pub key: &'static str,
    /// Key of a list in that object, and our element of it; or key and value of our entry.
    pub entries: Vec<(String, Value)>,
    /// The entries are elements of lists.
    pub lists: bool,
}

/// A file that belongs to ckptfs.
pub struct OwnFile {
    /// Its path.
    pub path: PathBuf,
    /// Its content.
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
    /// Returns its name on our command line.
    pub fn name(self) -> &'static str {
        match self {
            Agent::ClaudeCode => "claude-code",
            Agent::Codex => "codex",
            Agent::Gemini => "gemini",
            Agent::Cursor => "cursor",
            Agent::Opencode => "opencode",
        }
    }

    /// Returns the events with hooks, and the tools that they are for, if not all.
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

    /// Returns the entry for an event.
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

    /// Returns the content of `hooks` in its settings: for each event our element of the list.
    pub fn hooks(self, command: &str) -> Vec<(String, Value)> {
        let of = |(event, tools): &(&str, Option<&str>)| {
            ((*event).to_owned(), self.entry(event, *tools, command))
        };
        self.events().iter().map(of).collect()
    }

    /// Returns the files of the agent with our entries.
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
        // `ckptfs mcp` is registered only in `.mcp.json` of the project. Claude Code rewrites the
        // user's own file (`~/.claude.json`) while it runs, so that file is left unchanged.
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

    /// Returns the files that belong to ckptfs.
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
    /// Returns the directory of the scope.
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

/// Reports whether an element of a list is ours, of any version: it calls `ckptfs agent hook`.
pub fn is_ours(entry: &Value) -> bool {
    let calls = |hook: &Value| {
        let command = hook.get("command").and_then(Value::as_str);
        command.is_some_and(|command| command.contains("ckptfs") && command.contains(" agent hook"))
    };
    // A group that also contains hooks of others stays.
    match entry.get("hooks").and_then(Value::as_array) {
        Some(hooks) => !hooks.is_empty() && hooks.iter().all(calls),
        None => calls(entry),
    }
}
