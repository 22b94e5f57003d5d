//! What the note of an agent's checkpoint says of it: a first line for people, and labels (lines
//! `KEY: VALUE` at its end). Where the checkpoint was made by mkdir(2) its name says the same.

use crate::engine::api::CheckpointInfo;
use crate::store::record::Reason;

/// The first word of the name of a checkpoint that was made for a prompt by mkdir(2).
const DIR_PREFIX: &str = "prompt.";
/// Characters of a session's name in such a name.
const SESSION_CHARS_MAX: usize = 40;

/// A checkpoint that an agent's prompt has made.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Prompt {
    /// The checkpoint.
    pub checkpoint: u64,
    /// When it was made: RFC 3339.
    pub created: String,
    /// The session, as the agent names it.
    pub session: String,
    /// The prompt's id, or the time when it came, in milliseconds.
    pub prompt: String,
    /// Which agent it is, if that was told.
    pub agent: Option<String>,
    /// The agent's process, as `PID@START`, if that could be told.
    pub process: Option<String>,
    /// The prompt's first line.
    pub text: String,
}

/// The last line of a note that begins with this key, without it. The first line is for people.
pub fn label<'a>(note: &'a str, key: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(key)?.strip_prefix(": ");
    note.lines().skip(1).filter_map(value).last()
}

/// The prompt that a checkpoint was made for, if it was made for one.
pub fn prompt(made: &CheckpointInfo) -> Option<Prompt> {
    let of_dir = || {
        let Reason::Directory { name } = &made.reason else {
            return None;
        };
        let mut parts = name.strip_prefix(DIR_PREFIX)?.split('.');
        let (session, process, prompt) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Prompt {
            checkpoint: made.id.0,
            created: made.created.clone(),
            session: session.to_owned(),
            prompt: prompt.to_owned(),
            agent: None,
            process: process.contains('@').then(|| process.to_owned()),
            text: String::new(),
        })
    };
    let of_note = || {
        let of = |key| label(&made.note, key).map(str::to_owned);
        Some(Prompt {
            checkpoint: made.id.0,
            created: made.created.clone(),
            session: of("session")?,
            prompt: of("prompt")?,
            agent: of("agent"),
            process: of("process"),
            text: made.note.lines().next().unwrap_or_default().to_owned(),
        })
    };
    of_note().or_else(of_dir)
}

/// The name of a checkpoint for a prompt that is made by mkdir(2).
pub fn dir_name(session: &str, process: Option<&str>, prompt: &str) -> String {
    let safe = |text: &str| -> String {
        text.chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || "-_@".contains(c) {
                    c
                } else {
                    '_'
                }
            })
            .take(SESSION_CHARS_MAX)
            .collect()
    };
    let process = process.map_or_else(|| "unknown".to_owned(), safe);
    let prompt: String = safe(prompt).chars().take(20).collect();
    format!("{DIR_PREFIX}{}.{process}.{prompt}", safe(session))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_label_counts_and_the_first_line_is_none() {
        let note = "session: mine\n\nsession: a\nsession: b: c";
        assert_eq!(label(note, "session"), Some("b: c"));
        assert_eq!(label("session: x", "session"), None);
    }

    #[test]
    fn a_name_for_mkdir_is_a_tag_whatever_it_is_made_of() {
        let name = dir_name(&"ä/../".repeat(100), Some("7@99"), "1/2");
        assert!(
            name.len() <= 100 && !name.contains('/') && name.starts_with(DIR_PREFIX),
            "{name}"
        );
        assert!(name.ends_with(".7@99.1_2"), "{name}");
    }
}
