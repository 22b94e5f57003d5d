//! What an agent's hook says on stdin: one JSON object about what the agent is about to do. It
//! becomes a note and labels (lines `KEY: VALUE` at the note's end, which `ckptfs log --label`
//! finds).

use std::io::Read;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use ckptfs_api::{Code, VerbResult};
use ckptfs_ui::error::{ErrorContext, error, hinted};

/// Limit of a hook's message.
const INPUT_BYTES_MAX: u64 = 16 << 20;
/// Limit of the subject, in characters.
const SUBJECT_CHARS_MAX: usize = 200;
/// Limit of the value of a label, in characters.
const LABEL_CHARS_MAX: usize = 100;

/// Options of a checkpoint for a hook.
#[derive(Debug, PartialEq, Eq)]
pub struct Hook {
    /// A subject line, and labels.
    pub note: String,
    /// Working directory of the agent.
    pub dir: Option<PathBuf>,
}

/// The fields in use; agents send more.
#[derive(Deserialize)]
struct Message {
    session_id: Option<String>,
    #[serde(alias = "event")]
    hook_event_name: Option<String>,
    #[serde(alias = "tool")]
    tool_name: Option<String>,
    tool_input: Option<Value>,
    prompt: Option<String>,
    cwd: Option<PathBuf>,
}

/// Reads a hook's message.
///
/// # Errors
/// `bad-hook` if it is not a JSON object.
pub fn read(input: impl Read) -> VerbResult<Hook> {
    let mut text = Vec::new();
    input
        .take(INPUT_BYTES_MAX)
        .read_to_end(&mut text)
        .on("stdin")?;
    if text.trim_ascii().is_empty() {
        return Err(hinted(
            Code::BadHook,
            "nothing came on stdin",
            "--from-hook reads the JSON that an agent gives its hooks",
        ));
    }
    let message: Message = serde_json::from_slice(&text).map_err(|cause| {
        error(
            Code::BadHook,
            format!("stdin does not hold a hook's message: {cause}"),
        )
    })?;
    Ok(hook(message))
}

fn hook(message: Message) -> Hook {
    let what = message
        .prompt
        .or_else(|| message.tool_input.as_ref().and_then(subject))
        .unwrap_or_default();
    let head: Vec<&str> = [&message.hook_event_name, &message.tool_name]
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
    let head = if head.is_empty() {
        "hook".to_owned()
    } else {
        head.join(" ")
    };
    let what = one_line(&what, SUBJECT_CHARS_MAX);
    let mut note = if what.is_empty() {
        head
    } else {
        format!("{head}: {what}")
    };
    let labels = [
        ("event", &message.hook_event_name),
        ("tool", &message.tool_name),
        ("session", &message.session_id),
    ];
    let mut separator = "\n\n";
    for (key, value) in labels {
        if let Some(value) = value
            .as_ref()
            .map(|value| one_line(value, LABEL_CHARS_MAX))
            .filter(|value| !value.is_empty())
        {
            note.push_str(&format!("{separator}{key}: {value}"));
            separator = "\n";
        }
    }
    Hook {
        note,
        dir: message.cwd,
    }
}

/// Returns the subject of a tool call: a command, a file, or its first text.
pub fn subject(input: &Value) -> Option<String> {
    let known = [
        "command",
        "file_path",
        "path",
        "notebook_path",
        "pattern",
        "url",
    ];
    let text = |key: &str| input.get(key)?.as_str().map(str::to_owned);
    let first = || {
        input
            .as_object()?
            .values()
            .find_map(|value| value.as_str().map(str::to_owned))
    };
    known.into_iter().find_map(text).or_else(first)
}

/// Returns the first characters, with white space collapsed.
pub fn one_line(text: &str, chars: usize) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    match line.char_indices().nth(chars) {
        Some((end, _)) => format!("{}...", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_s_command_and_its_labels() {
        let said = r#"{"session_id":"7f","cwd":"/p","hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":{"description":"x","command":"rm -rf\n build"},"new":1}"#;
        let hook = read(said.as_bytes()).unwrap();
        assert_eq!(
            hook.note,
            "PreToolUse Bash: rm -rf build\n\nevent: PreToolUse\ntool: Bash\nsession: 7f"
        );
        assert_eq!(hook.dir, Some("/p".into()));
    }

    #[test]
    fn a_prompt_and_nothing() {
        let prompt = format!(
            r#"{{"hook_event_name":"UserPromptSubmit","prompt":"{}"}}"#,
            "é".repeat(300)
        );
        let note = read(prompt.as_bytes()).unwrap().note;
        assert_eq!(
            note,
            format!(
                "UserPromptSubmit: {}...\n\nevent: UserPromptSubmit",
                "é".repeat(200)
            )
        );
        assert_eq!(
            read("{}".as_bytes()).unwrap(),
            Hook {
                note: "hook".into(),
                dir: None
            }
        );
        assert!(
            ["", " \n", "[1]", "{", "no"]
                .into_iter()
                .all(|text| read(text.as_bytes()).is_err_and(|error| error.code == Code::BadHook))
        );
    }
}
