//! The note of an agent's checkpoint: a first line for the user, and labels (lines `KEY: VALUE` at
//! its end). The name of a checkpoint made by mkdir(2) contains the same.

use ckptfs_api::{CheckpointInfo, Reason};
use ckptfs_sys as sys;

/// Prefix of the name of a checkpoint made for a prompt by mkdir(2).
const DIR_PREFIX: &str = "prompt.";
/// Limit of a session's name in such a name, in characters.
const SESSION_CHARS_MAX: usize = 40;

/// A checkpoint for a prompt of an agent.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Prompt {
    /// The checkpoint.
    pub checkpoint: u64,
    /// Time of its creation: RFC 3339.
    pub created: String,
    /// The other user who made it, by mkdir(2), and may have given it any name. `None`: it was made
    /// by a request to the daemon, or by this user or root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_user: Option<u32>,
    /// The agent's name for the session.
    pub session: String,
    /// The prompt's id, or its time in milliseconds.
    pub prompt: String,
    /// The agent, if known.
    pub agent: Option<String>,
    /// The agent's process, as `PID@START`, if known.
    pub process: Option<String>,
    /// First line of the prompt.
    pub text: String,
}

/// Returns the value of the last line of a note with this key. The first line is not a label.
pub fn label<'a>(note: &'a str, key: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(key)?.strip_prefix(": ");
    note.lines().skip(1).filter_map(value).last()
}

/// Returns the prompt that a checkpoint was made for. Only users who may use the daemon write
/// notes; imported checkpoints have the notes of others, and do not count.
pub fn prompt(made: &CheckpointInfo) -> Option<Prompt> {
    match &made.reason {
        Reason::Asked => of_note(made),
        Reason::Directory { name } => of_dir(made, name),
        _ => None,
    }
}

fn of_note(made: &CheckpointInfo) -> Option<Prompt> {
    let of = |key| label(&made.note, key).map(str::to_owned);
    Some(Prompt {
        checkpoint: made.id.0,
        created: made.created.clone(),
        of_user: None,
        session: of("session")?,
        prompt: of("prompt")?,
        agent: of("agent"),
        process: of("process").filter(|process| is_process(process)),
        text: made.note.lines().next().unwrap_or_default().to_owned(),
    })
}

fn of_dir(made: &CheckpointInfo, name: &str) -> Option<Prompt> {
    let mut parts = name.strip_prefix(DIR_PREFIX)?.split('.');
    let (session, process, prompt) = (parts.next()?, parts.next()?, parts.next()?);
    let user = made.by.as_ref()?.uid;
    Some(Prompt {
        checkpoint: made.id.0,
        created: made.created.clone(),
        of_user: (!sys::is_trusted(user)).then_some(user),
        session: session.to_owned(),
        prompt: prompt.to_owned(),
        agent: None,
        process: is_process(process).then(|| process.to_owned()),
        text: String::new(),
    })
}

/// Reports whether the text identifies a process: `PID@START`.
fn is_process(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let parts = text.split_once('@');
    parts.is_some_and(|(pid, start)| is_number(pid) && is_number(start))
}

impl Prompt {
    /// Reports whether both have the same session and user.
    pub fn is_of_session_of(&self, other: &Prompt) -> bool {
        (self.of_user, &self.session) == (other.of_user, &other.session)
    }

    /// Formats its session.
    pub fn session_told(&self) -> String {
        match self.of_user {
            Some(user) => format!("{} of user {user}", self.session),
            None => self.session.clone(),
        }
    }
}

/// Returns the name of a checkpoint for a prompt, made by mkdir(2).
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
