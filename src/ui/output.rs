//! stdout and stderr: JSON, colors, and escaped names.

use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use clap::ValueEnum;
use serde::Serialize;

use crate::error::{Failure, Outcome};
use crate::pager::{self, Pager};
use ckptfs_sys::{self as sys, lock::Mutex};

/// Width of the column of labels.
const LABEL_WIDTH: usize = 8;

/// When to use colors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// If stdout is a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The meaning of a piece of text, which determines its color.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A checkpoint's number.
    Id,
    /// A tag.
    Tag,
    /// Something new, or correct.
    Good,
    /// Something changed, or notable.
    Notice,
    /// Something removed, or wrong.
    Bad,
    /// An added part of a line.
    GoodPart,
    /// A removed part of a line.
    BadPart,
    /// A heading.
    Strong,
    /// Something secondary.
    Faint,
}

impl Role {
    /// The SGR parameters (ECMA-48, 8.3.117).
    fn sgr(self) -> &'static str {
        match self {
            Role::Id => "33",
            Role::Tag => "36",
            Role::Good => "32",
            Role::Notice => "34",
            Role::Bad => "31",
            Role::GoodPart => "32;7",
            Role::BadPart => "31;7",
            Role::Strong => "1",
            Role::Faint => "2",
        }
    }
}

/// Destination of data.
#[derive(Debug)]
enum Sink {
    Stdout(BufWriter<Stdout>),
    Pager(Pager),
    Memory { bytes: Vec<u8>, bytes_max: usize },
}

impl Write for Sink {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self {
            Sink::Stdout(stdout) => stdout.write(data),
            Sink::Pager(pager) => pager.write(data),
            Sink::Memory { bytes, bytes_max } => {
                let room = bytes_max.saturating_sub(bytes.len()).min(data.len());
                bytes.extend_from_slice(data.get(..room).unwrap_or_default());
                Ok(room)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Sink::Stdout(stdout) => stdout.flush(),
            Sink::Pager(pager) => pager.flush(),
            Sink::Memory { .. } => Ok(()),
        }
    }
}

/// stdout for data and stderr for messages, or memory for both.
#[derive(Debug)]
pub struct Out {
    writer: Sink,
    /// Print data as JSON.
    pub json: bool,
    /// stdout is a terminal.
    pub terminal: bool,
    color: bool,
    talk_terminal: bool,
    talk_color: bool,
    /// The messages, if they do not go to stderr.
    said: Option<Mutex<Vec<String>>>,
    /// A pager is permitted.
    may_page: bool,
    /// Messages that are deferred while a pager has the terminal.
    held_back: Mutex<Vec<String>>,
}

impl Out {
    /// Returns an output to memory; [`Out::kept`] returns its content. Data beyond `bytes_max`
    /// fails with `WriteZero`.
    pub fn to_memory(bytes_max: usize) -> Out {
        Out {
            writer: Sink::Memory {
                bytes: Vec::new(),
                bytes_max,
            },
            json: false,
            terminal: false,
            color: false,
            talk_terminal: false,
            talk_color: false,
            said: Some(Mutex::default()),
            may_page: false,
            held_back: Mutex::default(),
        }
    }

    /// Returns the data and the messages of an output to memory.
    pub fn kept(self) -> (Vec<u8>, Vec<String>) {
        let data = match self.writer {
            Sink::Stdout(_) | Sink::Pager(_) => Vec::new(),
            Sink::Memory { bytes, .. } => bytes,
        };
        let said = self.said.map(|said| std::mem::take(&mut *said.lock()));
        let said = said.unwrap_or_default();
        (data, said)
    }

    /// Returns the output of the process.
    pub fn new(json: bool, color: Color) -> Out {
        let terminal = io::stdout().is_terminal();
        let talk_terminal = io::stderr().is_terminal();
        let colored = |terminal: bool| match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            }
        };
        Out {
            writer: Sink::Stdout(BufWriter::new(io::stdout())),
            json,
            terminal,
            color: colored(terminal),
            talk_terminal,
            talk_color: colored(talk_terminal),
            said: None,
            may_page: false,
            held_back: Mutex::default(),
        }
    }

    /// Reports whether data goes to a file or a program, not to a terminal or the answer to an
    /// agent.
    pub fn is_for_programs(&self) -> bool {
        !self.terminal && matches!(self.writer, Sink::Stdout(_))
    }

    /// Permits a pager for the verbs that request one ([`Out::page`]).
    pub fn with_pager(self, may_page: bool) -> Out {
        Out { may_page, ..self }
    }

    /// Sends all further output to the user's pager, if stdout is a terminal. Not for a verb that
    /// asks a question.
    pub fn page(&mut self) {
        let is_direct = matches!(self.writer, Sink::Stdout(_));
        let may = self.may_page && self.terminal && !self.json && is_direct;
        if let Some(command) = may.then(pager::wanted).flatten() {
            self.writer = Sink::Pager(Pager::new(command));
        }
    }

    /// Returns the number of lines of the terminal; `None` without a terminal, and with a pager.
    pub fn rows(&self) -> Option<usize> {
        let direct = self.terminal && matches!(self.writer, Sink::Stdout(_));
        sys::terminal_rows(io::stdout()).filter(|_| direct)
    }

    /// Waits until the user leaves the pager, and then prints the deferred messages.
    pub fn end_page(&mut self) {
        if !matches!(self.writer, Sink::Pager(_)) {
            return;
        }
        let stdout = Sink::Stdout(BufWriter::new(io::stdout()));
        if let Sink::Pager(pager) = std::mem::replace(&mut self.writer, stdout) {
            let missing = pager.end();
            for line in std::mem::take(&mut *self.held_back.lock()) {
                tell(&line);
            }
            if let Some(missing) = missing {
                self.warn(&missing);
            }
        }
    }

    /// Prints `value` as JSON on one line.
    pub fn json<T: Serialize>(&mut self, value: &T) -> io::Result<()> {
        serde_json::to_writer(&mut self.writer, value)?;
        self.writer.write_all(b"\n")
    }

    /// Prints a line.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        self.writer.write_all(text.as_bytes())?;
        self.writer.write_all(b"\n")
    }

    /// Prints a line with a text of another user, escaped on a terminal.
    pub fn text_line(&mut self, text: &str) -> io::Result<()> {
        let text = self.text(text).into_owned();
        self.line(&text)
    }

    /// Prints a label and a text, escaped on a terminal.
    pub fn labelled(&mut self, label: &str, text: &str) -> io::Result<()> {
        let line = format!(
            "{} {}",
            self.paint(Role::Faint, &format!("{label:<LABEL_WIDTH$}")),
            self.text(text)
        );
        self.line(&line)
    }

    /// Prints `value` as JSON with `--json`, and otherwise with `print`.
    pub fn answer<T: Serialize>(
        &mut self,
        value: &T,
        print: impl FnOnce(&mut Out) -> io::Result<()>,
    ) -> Outcome {
        Ok(if self.json {
            self.json(value)
        } else {
            print(self)
        }?)
    }

    /// Asks for confirmation, on a terminal and unless `yes` is set.
    ///
    /// # Errors
    /// `Failure::No` if the answer is no; `otherwise` is printed.
    pub fn go_on(&self, yes: bool, question: &str, otherwise: &str) -> Outcome {
        if !yes && can_ask() && !confirmed(&self.talk_text(question))? {
            self.talk(otherwise);
            return Err(Failure::No);
        }
        Ok(())
    }

    /// Prints bytes unchanged.
    pub fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes)
    }

    /// Flushes the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }

    /// Returns `text` in the color of `role`.
    pub fn paint(&self, role: Role, text: &str) -> String {
        if self.color {
            format!("\x1b[{}m{text}\x1b[0m", role.sgr())
        } else {
            text.to_owned()
        }
    }

    /// Returns `bytes` in the color of a role, if given.
    pub fn painted(&self, role: Option<Role>, bytes: &[u8]) -> Vec<u8> {
        match role.filter(|_| self.color && !bytes.is_empty()) {
            Some(role) => [b"\x1b[", role.sgr().as_bytes(), b"m", bytes, b"\x1b[0m"].concat(),
            None => bytes.to_vec(),
        }
    }

    /// Reports whether stdout is colored.
    pub fn has_color(&self) -> bool {
        self.color
    }

    /// Returns a piece of a file's line for stdout: unchanged, but escaped on a terminal.
    pub fn content<'a>(&self, text: &'a [u8]) -> Cow<'a, [u8]> {
        if !self.terminal {
            return Cow::Borrowed(text);
        }
        let cells: Vec<String> = text.split(|byte| *byte == b'\t').map(escape).collect();
        Cow::Owned(cells.join("\t").into_bytes())
    }

    /// Returns a name or path for stdout: unchanged, but escaped on a terminal.
    pub fn name<'a>(&self, name: &'a [u8]) -> Cow<'a, [u8]> {
        if self.terminal {
            Cow::Owned(escape(name).into_bytes())
        } else {
            Cow::Borrowed(name)
        }
    }

    /// Returns a text of another user (a note, a tag) for stdout: unchanged, but escaped on a
    /// terminal.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.terminal {
            Cow::Owned(escape(text.as_bytes()))
        } else {
            Cow::Borrowed(text)
        }
    }

    /// Returns a text for stderr, escaped on a terminal.
    pub fn talk_text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.talk_terminal {
            Cow::Owned(escape(text.as_bytes()))
        } else {
            Cow::Borrowed(text)
        }
    }

    /// Returns `Error:`, `Hint:` or `Warning:` for stderr, in color.
    pub fn talk_label(&self, label: &str) -> String {
        let sgr = match label {
            "Error:" => "1;31",
            "Warning:" => "1;33",
            _ => "1;36",
        };
        if self.talk_color {
            format!("\x1b[{sgr}m{label}\x1b[0m")
        } else {
            label.to_owned()
        }
    }

    /// Reports whether messages appear on a terminal.
    pub fn talks_to_terminal(&self) -> bool {
        self.talk_terminal && !self.json
    }

    /// Prints a message on stderr; not with `--json`, whose users read data only.
    pub fn talk(&self, text: &str) {
        if let Some(said) = &self.said {
            said.lock().push(text.to_owned());
        } else if !self.json {
            self.say(self.talk_text(text).into_owned());
        }
    }

    /// Prints a line now, or after the pager that has the terminal.
    fn say(&self, line: String) {
        match &self.writer {
            Sink::Pager(pager) if self.talk_terminal && pager.is_running() => {
                self.held_back.lock().push(line);
            }
            _ => tell(&line),
        }
    }

    /// Returns a function that prints warnings on stderr from another thread.
    pub fn warner(&self) -> impl Fn(&str) + Send + 'static {
        let (label, terminal) = (self.talk_label("Warning:"), self.talk_terminal);
        move |text| match terminal {
            true => tell(&format!("{label} {}", escape(text.as_bytes()))),
            false => tell(&format!("{label} {text}")),
        }
    }

    /// Prints a warning on stderr.
    pub fn warn(&self, text: &str) {
        if let Some(said) = &self.said {
            said.lock().push(text.to_owned());
        } else if !self.json {
            self.say(format!(
                "{} {}",
                self.talk_label("Warning:"),
                self.talk_text(text)
            ));
        }
    }
}

fn tell(line: &str) {
    // stderr may be closed.
    let _ = writeln!(io::stderr(), "{line}");
}

/// Returns the width of a column.
pub fn width<T>(all: &[T], text: impl Fn(&T) -> String) -> usize {
    all.iter().map(|one| text(one).len()).max().unwrap_or(0)
}

/// Reports whether the user can be asked.
pub fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks a question on the terminal; returns whether the answer is yes.
pub fn confirmed(question: &str) -> io::Result<bool> {
    write!(io::stderr(), "{question} [y/N] ")?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Copies the output of another process to stderr, escaped on a terminal, because that process
/// wrote to a pipe.
pub fn hand_on(said: &[u8]) {
    let mut stderr = io::stderr().lock();
    let harmless = if stderr.is_terminal() {
        said.split_inclusive(|byte| *byte == b'\n')
            .fold(String::new(), |text, line| {
                let end = if line.ends_with(b"\n") { "\n" } else { "" };
                text + &escape(line.strip_suffix(b"\n").unwrap_or(line)) + end
            })
    } else {
        String::new()
    };
    // stderr may be closed.
    let _ = stderr.write_all(if harmless.is_empty() {
        said
    } else {
        harmless.as_bytes()
    });
}

/// Escapes everything in `bytes` that a terminal may interpret or cannot show: control characters,
/// bytes that are not UTF-8, and the marks that change the direction of the text around them.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '\n' | '\r' | '\t' => text.extend(char.escape_default()),
                _ if char.is_ascii_control() => {
                    text.push_str(&format!("\\x{:02x}", u32::from(char)))
                }
                '\u{80}'..='\u{9f}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}' => {
                    text.extend(char.escape_unicode());
                }
                _ => text.push(char),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Out, escape};

    #[test]
    fn what_is_kept_in_memory_has_an_end() {
        let mut out = Out::to_memory(5);
        out.bytes(b"abc").expect("room");
        let full = out.bytes(b"defg").expect_err("no room");
        assert_eq!(full.kind(), std::io::ErrorKind::WriteZero);
        out.warn("careful");
        assert_eq!(out.kept(), (b"abcde".to_vec(), vec!["careful".to_owned()]));
    }

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_the_rest_is_not() {
        assert_eq!(escape("a b/ü/日本".as_bytes()), "a b/ü/日本");
        assert_eq!(escape(b"\x1b[31mred\n\x7f\0"), r"\x1b[31mred\n\x7f\x00");
        assert_eq!(escape(b"\xff-\xc3"), r"\xff-\xc3");
        assert_eq!(
            escape("evil\u{202e}txt.exe".as_bytes()),
            r"evil\u{202e}txt.exe"
        );
        assert_eq!(escape("\u{9b}31m".as_bytes()), r"\u{9b}31m");
    }
}
