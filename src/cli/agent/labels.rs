//! What the note of an agent's checkpoint says of it: a first line for people, and labels (lines
//! `KEY: VALUE` at its end). Where the checkpoint was made by mkdir(2) its name says the same.

use crate::engine::api::CheckpointInfo;
use crate::store::record::Reason;
use crate::sys;

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
    /// Another user made it, by mkdir(2), and may have given it any name: this one. `None`: who may
    /// ask the daemon made it, or this user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_user: Option<u32>,
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

/// The prompt that a checkpoint was made for, if it was made for one. Only who may ask the daemon
/// writes notes; what was imported has those of somebody else.
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

/// Whether this names one process: `PID@START`.
fn is_process(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let parts = text.split_once('@');
    parts.is_some_and(|(pid, start)| is_number(pid) && is_number(start))
}

impl Prompt {
    /// Both are of one session: of one name, and of one user.
    pub fn is_of_session_of(&self, other: &Prompt) -> bool {
        (self.of_user, &self.session) == (other.of_user, &other.session)
    }

    /// Its session, for people.
    pub fn session_told(&self) -> String {
        match self.of_user {
            Some(user) => format!("{} of user {user}", self.session),
            None => self.session.clone(),
        }
    }
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
