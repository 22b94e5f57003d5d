//! Operations and their text: one per line, with verb, paths and numbers. Failing lists are
//! printed, replayed and stored in this form.

use std::fmt;
use std::str::FromStr;

/// The type of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// No operation; sets the properties of the run (`setup.rs`).
    With,
    Create,
    Put,
    Write,
    Append,
    Truncate,
    Unlink,
    Mkdir,
    Rmdir,
    Rename,
    RenameNoReplace,
    Exchange,
    Link,
    Symlink,
    Mkfifo,
    Mksock,
    Chmod,
    Chown,
    Utimens,
    SetXattr,
    RemoveXattr,
    Punch,
    Copy,
    Open,
    HandleWrite,
    HandleTruncate,
    HandleRead,
    HandleChmod,
    HandleUtimens,
    OpenView,
    ReadView,
    Fsync,
    Close,
    Map,
    Store,
    Unmap,
    Checkpoint,
    /// `checkpoint --sync`.
    SyncedCheckpoint,
    NamedCheckpoint,
    /// mkdir(2) by a caller subject to `snapdir.per-user`.
    LimitedCheckpoint,
    Restore,
    RestorePaths,
    Delete,
    /// Frees a checkpoint in one of the ways of `frees.rs`.
    Free,
    Verify,
    /// Checks the state after a power cut, on a disk that can be copied.
    Cut,
    Remount,
    /// Unmounts. Subsequent path operations apply to the ordinary directory; any other operation
    /// mounts again.
    Leave,
    Kill,
    KillWorker,
    Idle,
    ListSnapshots,
    DryRestore,
    CheckLive,
    CheckViews,
    CheckStatus,
    CheckDiff,
}

use Verb::*;

const WORDS: &[(&str, Verb)] = &[
    ("create", Create),
    ("put", Put),
    ("write", Write),
    ("append", Append),
    ("truncate", Truncate),
    ("unlink", Unlink),
    ("mkdir", Mkdir),
    ("rmdir", Rmdir),
    ("rename", Rename),
    ("rename-noreplace", RenameNoReplace),
    ("exchange", Exchange),
    ("link", Link),
    ("symlink", Symlink),
    ("mkfifo", Mkfifo),
    ("mksock", Mksock),
    ("chmod", Chmod),
    ("chown", Chown),
    ("utimens", Utimens),
    ("setxattr", SetXattr),
    ("removexattr", RemoveXattr),
    ("punch", Punch),
    ("copy", Copy),
    ("open", Open),
    ("hwrite", HandleWrite),
    ("htruncate", HandleTruncate),
    ("hread", HandleRead),
    ("hchmod", HandleChmod),
    ("hutimens", HandleUtimens),
    ("open-view", OpenView),
    ("read-view", ReadView),
    ("fsync", Fsync),
    ("close", Close),
    ("map", Map),
    ("store", Store),
    ("unmap", Unmap),
    ("with", With),
    ("checkpoint", Checkpoint),
    ("synced-checkpoint", SyncedCheckpoint),
    ("named-checkpoint", NamedCheckpoint),
    ("limited-checkpoint", LimitedCheckpoint),
    ("restore", Restore),
    ("restore-paths", RestorePaths),
    ("delete", Delete),
    ("free", Free),
    ("verify", Verify),
    ("cut", Cut),
    ("remount", Remount),
    ("leave", Leave),
    ("kill", Kill),
    ("kill-worker", KillWorker),
    ("idle", Idle),
    ("list-snapshots", ListSnapshots),
    ("dry-restore", DryRestore),
    ("check-live", CheckLive),
    ("check-views", CheckViews),
    ("check-status", CheckStatus),
    ("check-diff", CheckDiff),
];

impl Verb {
    /// Reports whether the operation names its targets by path and needs no mount.
    pub fn is_by_path(self) -> bool {
        WORDS.iter().position(|(_, verb)| *verb == self)
            < WORDS.iter().position(|(_, verb)| *verb == Open)
    }

    fn word(self) -> &'static str {
        WORDS
            .iter()
            .find(|(_, verb)| *verb == self)
            .expect("every verb has a name")
            .0
    }
}

/// One operation. The code that performs it (`world.rs`) defines its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    pub verb: Verb,
    pub paths: Vec<String>,
    pub numbers: Vec<u64>,
}

impl Op {
    pub fn new(verb: Verb, paths: &[&str], numbers: &[u64]) -> Op {
        Op {
            verb,
            paths: paths.iter().map(|path| (*path).to_owned()).collect(),
            numbers: numbers.to_vec(),
        }
    }

    /// Returns a path, or `.` if a handwritten list lacks it.
    pub fn path(&self, index: usize) -> &str {
        self.paths.get(index).map_or(".", String::as_str)
    }

    /// Returns a number, or 0 if a handwritten list lacks it.
    pub fn number(&self, index: usize) -> u64 {
        self.numbers.get(index).copied().unwrap_or(0)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.verb.word())?;
        self.paths
            .iter()
            .try_for_each(|path| write!(f, " {path}"))?;
        self.numbers
            .iter()
            .try_for_each(|number| write!(f, " {number}"))
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(line: &str) -> Result<Op, String> {
        let mut tokens = line.split_whitespace();
        let word = tokens.next().ok_or("an empty line")?;
        let verb = WORDS
            .iter()
            .find(|(known, _)| *known == word)
            .ok_or_else(|| format!("unknown operation: {word}"))?
            .1;
        let mut op = Op {
            verb,
            paths: Vec::new(),
            numbers: Vec::new(),
        };
        for token in tokens {
            match token.parse() {
                Ok(number) => op.numbers.push(number),
                Err(_) => op.paths.push(token.to_owned()),
            }
        }
        Ok(op)
    }
}

/// Parses a list; `#` starts a comment.
pub fn parse(text: &str) -> Vec<Op> {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty());
    lines
        .map(|line| line.parse().unwrap_or_else(|problem| panic!("{problem}")))
        .collect()
}

/// Formats a list.
pub fn text(ops: &[Op]) -> String {
    ops.iter().map(|op| format!("{op}\n")).collect()
}

/// Decodes a path: `odd` and `long` stand for names that a list cannot contain.
pub fn bytes(path: &str) -> Vec<u8> {
    let names: Vec<Vec<u8>> = path.split('/').map(name_bytes).collect();
    names.join(&b'/')
}

fn name_bytes(name: &str) -> Vec<u8> {
    match name {
        "odd" => b"o\xff\x80\n\"\\d ".to_vec(),
        "long" => vec![b'l'; 255],
        "toolong" => vec![b'l'; 256],
        other => other.as_bytes().to_vec(),
    }
}
