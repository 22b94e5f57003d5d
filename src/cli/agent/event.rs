//! Events of agents, in any format.
//!
//! The names of events and fields of Claude Code, Codex, Gemini CLI, Cursor and our plugin for
//! opencode do not clash, so the name of an event determines its kind. Unknown fields are skipped,
//! and a field with a value of another type counts as absent.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::super::hook::{one_line, subject};
use ckptfs_api::{Code, VerbResult};
use ckptfs_ui::error::error;

/// Limit of a prompt's first line, or of a tool's subject, in characters.
const SUBJECT_CHARS_MAX: usize = 200;
/// Limit of the value of a label, in characters.
const LABEL_CHARS_MAX: usize = 100;

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentEventKind {
    /// The user has sent a prompt to the agent.
    Prompt,
    /// A tool is about to run.
    Before,
    /// A tool has run.
    After,
    /// The agent has ended its turn.
    Stop,
    /// A second tree is requested.
    WorktreeCreate,
    /// The second tree is no longer needed.
    WorktreeRemove,
    /// An event without an action.
    Other,
}

/// Names of tools that run commands.
const SHELLS: [&str; 7] = [
    "Bash",
    "PowerShell",
    "bash",
    "Shell",
    "run_shell_command",
    "shell",
    "exec_command",
];

/// An event.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Event {
    #[serde(rename = "hook_event_name", deserialize_with = "text")]
    name: Option<String>,
    #[serde(rename = "session_id", deserialize_with = "text")]
    pub session: Option<String>,
    #[serde(deserialize_with = "text")]
    conversation_id: Option<String>,
    #[serde(deserialize_with = "text")]
    prompt: Option<String>,
    #[serde(deserialize_with = "text")]
    prompt_id: Option<String>,
    #[serde(deserialize_with = "text")]
    turn_id: Option<String>,
    #[serde(deserialize_with = "text")]
    generation_id: Option<String>,
    #[serde(rename = "tool_name", deserialize_with = "text")]
    tool: Option<String>,
    tool_input: Option<Value>,
    #[serde(rename = "tool_use_id", deserialize_with = "text")]
    pub tool_use: Option<String>,
    #[serde(deserialize_with = "text")]
    cwd: Option<String>,
    #[serde(deserialize_with = "texts")]
    workspace_roots: Vec<String>,
    #[serde(rename = "name", deserialize_with = "text")]
    worktree: Option<String>,
    #[serde(deserialize_with = "text")]
    worktree_name: Option<String>,
    #[serde(deserialize_with = "text")]
    worktree_path: Option<String>,
}

fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(value
        .as_str()
        .filter(|text| !text.is_empty())
        .map(str::to_owned))
}

fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let all = value.as_array().into_iter().flatten();
    Ok(all.filter_map(Value::as_str).map(str::to_owned).collect())
}

impl Event {
    /// Parses an event. Input after the object is ignored.
    ///
    /// # Errors
    /// `bad-hook` if it is not a JSON object.
    pub fn read(said: &[u8]) -> VerbResult<Event> {
        let first = said.trim_ascii_start().first();
        if first.is_some_and(|first| *first != b'{') {
            return Err(error(
                Code::BadHook,
                "stdin does not hold an event: it is not a JSON object",
            ));
        }
        let mut all = serde_json::Deserializer::from_slice(said).into_iter::<Event>();
        let event = all
            .next()
            .ok_or_else(|| error(Code::BadHook, "nothing came on stdin"))?;
        let mut event = event.map_err(|cause| {
            error(
                Code::BadHook,
                format!("stdin does not hold an event: {cause}"),
            )
        })?;
        event.session = event.session.or(event.conversation_id.take());
        Ok(event)
    }

    /// Returns its kind.
    pub fn what(&self) -> AgentEventKind {
        match self.name.as_deref().unwrap_or_default() {
            "UserPromptSubmit" | "BeforeAgent" | "beforeSubmitPrompt" => AgentEventKind::Prompt,
            "PreToolUse" | "BeforeTool" | "preToolUse" | "beforeShellExecution" => {
                AgentEventKind::Before
            }
            "PostToolUse" | "PostToolUseFailure" | "AfterTool" | "postToolUse" => {
                AgentEventKind::After
            }
            "Stop" | "AfterAgent" | "stop" => AgentEventKind::Stop,
            "WorktreeCreate" => AgentEventKind::WorktreeCreate,
            "WorktreeRemove" => AgentEventKind::WorktreeRemove,
            _ => AgentEventKind::Other,
        }
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// Reports whether the tool runs commands.
    pub fn is_command(&self) -> bool {
        self.tool
            .as_deref()
            .is_some_and(|tool| SHELLS.contains(&tool))
    }

    /// Returns the requested name of the second tree.
    pub fn worktree_name(&self) -> Option<&str> {
        self.worktree.as_deref().or(self.worktree_name.as_deref())
    }

    /// Returns the path of the second tree.
    pub fn worktree_path(&self) -> Option<&Path> {
        self.worktree_path.as_deref().map(Path::new)
    }

    /// Returns the id of the prompt; without one, the time in milliseconds.
    pub fn prompt_id(&self) -> String {
        let told = [&self.prompt_id, &self.turn_id, &self.generation_id];
        let told = told.into_iter().flatten().next();
        told.map_or_else(
            || {
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                now.unwrap_or_default().as_millis().to_string()
            },
            |id| one_line(id, LABEL_CHARS_MAX),
        )
    }

    /// Returns the directories and files of the event, the most specific first.
    pub fn paths(&self) -> Vec<PathBuf> {
        let input = |key: &str| self.tool_input.as_ref()?.get(key)?.as_str();
        let file = ["file_path", "notebook_path", "path", "filePath"]
            .into_iter()
            .find_map(input);
        let cwd = self.cwd.as_deref().map(PathBuf::from);
        let here = || std::env::current_dir().unwrap_or_default();
        let base = cwd.clone().unwrap_or_else(here);
        // The file may not exist yet.
        let file = file.map(|file| base.join(file));
        let roots = self.workspace_roots.iter().map(PathBuf::from);
        file.into_iter()
            .chain(cwd)
            .chain(roots)
            .chain([here()])
            .filter(|path| path.is_absolute())
            .collect()
    }

    /// Returns the note of a checkpoint for the event.
    pub fn note(&self, agent: Option<&str>, process: Option<&str>) -> String {
        let prompt = (self.what() == AgentEventKind::Prompt).then(|| self.prompt_id());
        let mut note = self.first_line();
        let labels = [
            ("event", self.name.as_deref()),
            ("tool", self.tool.as_deref()),
            ("agent", agent),
            ("session", self.session.as_deref()),
            ("prompt", prompt.as_deref()),
            ("process", process),
        ];
        let mut separator = "\n\n";
        for (key, value) in labels {
            let value = value.map(|value| one_line(value, LABEL_CHARS_MAX));
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                note.push_str(&format!("{separator}{key}: {value}"));
                separator = "\n";
            }
        }
        note
    }

    /// Returns the first line of a prompt, and of another event its name, its tool and the subject.
    fn first_line(&self) -> String {
        if self.what() == AgentEventKind::Prompt {
            let lines = self.prompt.iter().flat_map(|prompt| prompt.lines());
            let first = lines.map(|line| one_line(line, SUBJECT_CHARS_MAX));
            return first
                .into_iter()
                .find(|line| !line.is_empty())
                .unwrap_or_else(|| "a prompt".to_owned());
        }
        let tool = self.tool.as_deref().map(|tool| format!(" {tool}"));
        let head = format!("{}{}", self.name(), tool.unwrap_or_default());
        let what = self.tool_input.as_ref().and_then(subject);
        match what.map(|what| one_line(&what, SUBJECT_CHARS_MAX)) {
            Some(what) if !what.is_empty() => format!("{head}: {what}"),
            _ => head,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_another_kind_are_absent_and_what_follows_is_not_read() {
        let said = br#"{"hook_event_name":"Stop","session_id":7,"cwd":null,"workspace_roots":{},"tool_input":[1],"new":{}} and more"#;
        let event = Event::read(said).expect("an event");
        assert_eq!(
            (event.what(), event.session.as_deref()),
            (AgentEventKind::Stop, None)
        );
        for bad in [
            "",
            " ",
            "[1]",
            "{",
            "no",
            "{\"session_id\":\"a\",\"session_id\":\"b\"}",
        ] {
            let code = Event::read(bad.as_bytes()).expect_err(bad).code;
            assert_eq!(code, Code::BadHook, "{bad}");
        }
    }

    #[test]
    fn a_prompt_s_note_is_its_first_line_and_labels() {
        let said = br#"{"hook_event_name":"UserPromptSubmit","session_id":"s1","prompt_id":"p1","prompt":"\n  Fix the\tlogin \nsession: no"}"#;
        let note = Event::read(said)
            .expect("an event")
            .note(Some("claude-code"), Some("7@9"));
        assert_eq!(
            note,
            "Fix the login\n\nevent: UserPromptSubmit\nagent: claude-code\nsession: s1\nprompt: p1\nprocess: 7@9"
        );
    }
}
