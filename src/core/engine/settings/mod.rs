//! Configuration: keys, files, and the origin of each value.
//!
//! Two files exist. `.ckptfs/ckptfs.toml` belongs to the store; the daemon and every verb read it.
//! `~/.config/ckptfs/config.toml` belongs to a user. Only programs started by that user read it,
//! and it is limited to keys that have a command-line option ([`Files::Both`]). A user's file
//! therefore never affects another user's daemon. The command line overrides the store's file,
//! which overrides the user's.
//!
//! The daemon checks its file whenever it needs a value, and reads it again after a change (of
//! inode, size, mtime or ctime). It only reads a regular file of its own user that is not writable
//! by others. An invalid file has no effect: the previous settings remain, and `status` reports the
//! error.

mod parse;
mod store_file;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Serialize, Serializer};

use ckptfs_api::Tier;
use ckptfs_api::display::word;
pub use parse::{ConfigError, TIERS, bytes, parse, parse_value};
pub use store_file::{FILE_BYTES_MAX, STORE_FILE, StoreFile, read_store, store_with, text_with};

/// The files that may contain a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// The store's and the user's.
    Both,
    /// The store's only, because the daemon uses it.
    Store,
}

/// Type of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A non-negative integer.
    Count,
    /// A size: a number of bytes, or a string such as "10G".
    Bytes,
    /// A duration: a string such as "30d" or "1h 30m".
    Span,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Permission bits as an octal string.
    Mode,
    /// `true` or `false`.
    Flag,
}

impl Kind {
    /// Returns a description for messages.
    pub fn wanted(self) -> String {
        match self {
            Kind::Count => "a whole number".into(),
            Kind::Bytes => "a size such as \"10G\" or 1048576".into(),
            Kind::Span => "a length of time such as \"30d\" or \"1h 30m\"".into(),
            Kind::Word(words) => format!(
                "one of {}",
                words
                    .iter()
                    .map(|word| format!("{word:?}"))
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
            Kind::Flag => "true or false".into(),
            Kind::Mode => "an octal mode up to 1777 as text, such as \"0700\"".into(),
        }
    }

    /// Returns a valid example.
    pub fn example(self) -> &'static str {
        match self {
            Kind::Count => "7",
            Kind::Bytes => "10G",
            Kind::Span => "30d",
            Kind::Word(words) => words.first().copied().unwrap_or_default(),
            Kind::Flag => "true",
            Kind::Mode => "0700",
        }
    }
}

/// A key of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// `table.name`.
    pub name: &'static str,
    /// Type of its values.
    pub kind: Kind,
    /// The files that may contain it.
    pub files: Files,
    /// Description.
    pub about: &'static str,
}

impl Key {
    /// Returns the hint after an invalid value: a command that sets a valid one.
    pub fn hint(&self) -> String {
        format!(
            "for example: ckptfs config set {} {}",
            word(self.name),
            word(self.kind.example())
        )
    }
}

macro_rules! keys {
    ($($name:literal, $kind:expr, $files:ident: $about:literal;)*) => {
        &[$(Key { name: $name, kind: $kind, files: Files::$files, about: $about },)*]
    };
}

/// All keys, in the order of `config show`.
pub const KEYS: &[Key] = keys! {
    "retention.keep-last", Kind::Count, Both: "keep this many of the newest checkpoints";
    "retention.keep-within", Kind::Span, Both: "keep checkpoints no older than this";
    "retention.keep-hourly", Kind::Count, Both: "keep one per hour, for this many hours that have one";
    "retention.keep-daily", Kind::Count, Both: "keep one per day, for this many days that have one";
    "retention.keep-weekly", Kind::Count, Both: "keep one per week, for this many weeks that have one";
    "retention.max-size", Kind::Bytes, Both: "free the oldest until the history takes no more than this";
    "retention.auto", Kind::Span, Store: "how often the daemon runs gc by itself";
    "retention.manual", Kind::Flag, Store:
        "the daemon's own gc counts and removes checkpoints made on request too (false)";
    "retention.keep-undone", Kind::Span, Store:
        "how long the daemon keeps what undo and redo need, and checkpoints that it expired (1d)";
    "tripwire.count", Kind::Count, Store:
        "number of removals by one process tree that triggers a checkpoint; 0: never";
    "tripwire.within", Kind::Span, Store: "the time within which they count";
    "tripwire.keep", Kind::Span, Store: "how long that checkpoint is kept in any case (1h)";
    "auto.every", Kind::Span, Store: "make a checkpoint this often, if something changed";
    "auto.quiet", Kind::Span, Store: "make a checkpoint when nothing was written for this long";
    "auto.absence", Kind::Word(&["on", "off"]), Store:
        "put changes made while nothing was mounted between two checkpoints of their own (on)";
    "snapdir.per-user", Kind::Count, Store:
        "how many checkpoints a user may have made by mkdir in .snapshots; four times as many for all users together";
    "snapdir.per-minute", Kind::Count, Store: "how many of them per minute";
    "hooks.timeout", Kind::Span, Store: "how long a hook may take";
    "umount.keep", Kind::Word(&["some", "none", "all"]), Store:
        "how much content an unmount saves against changes while nothing is mounted: what can be cloned in two seconds (some), none, or all";
    "mount.io", Kind::Word(&["auto", "passthrough", "daemon"]), Both: "mount --io";
    "mount.others-io", Kind::Word(&["daemon", "kernel"]), Both: "mount --others-io";
    "mount.writes", Kind::Word(&["auto", "daemon"]), Both: "mount --writes";
    "mount.xattrs", Kind::Word(&["all", "user", "off"]), Both: "mount --xattrs";
    "mount.snapdir", Kind::Word(&["hidden", "visible"]), Both: "mount --snapdir";
    "mount.snapdir-names", Kind::Word(&["plain", "gmt"]), Both: "mount --snapdir-names";
    "mount.snapdir-mode", Kind::Mode, Both: "mount --snapdir-mode";
    "mount.seal", Kind::Word(&["off", "hash"]), Both: "mount --seal";
    "mount.readers", Kind::Count, Both: "mount --readers";
    "mount.cache", Kind::Bytes, Both: "mount --cache";
    "mount.fetch", Kind::Word(&["on", "off"]), Both:
        "of a tree that was mounted from a remote: fetch what nobody has opened (on); off: mount --no-fetch";
};

/// Returns the key of this name.
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Returns the most similar name, if one is close.
pub fn nearest_of<'a>(name: &str, known: &'a [String]) -> Option<&'a str> {
    super::error::nearest(name, known).map(String::as_str)
}

/// Returns the most similar key, if one is close.
pub fn nearest(name: &str) -> Option<&'static str> {
    let names: Vec<String> = KEYS.iter().map(|key| key.name.to_owned()).collect();
    let found = super::error::nearest(name, &names)
        .map(String::as_str)
        .or_else(|| {
            // The last component in another table, or in none.
            let last = name.rsplit('.').next().unwrap_or(name);
            names
                .iter()
                .find(|known| known.rsplit('.').next() == Some(last))
                .map(String::as_str)
        });
    found.and_then(find).map(|key| key.name)
}

/// A parsed value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// For [`Kind::Count`] and [`Kind::Bytes`].
    Number(u64),
    /// For [`Kind::Span`], with its original text.
    Span(Duration, String),
    /// For [`Kind::Flag`].
    Flag(bool),
    /// For the others.
    Text(String),
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Number(number) => write!(f, "{number}"),
            Value::Flag(flag) => write!(f, "{flag}"),
            Value::Span(_, text) | Value::Text(text) => f.write_str(text),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Number(number) => serializer.serialize_u64(*number),
            Value::Flag(flag) => serializer.serialize_bool(*flag),
            Value::Span(_, text) | Value::Text(text) => serializer.serialize_str(text),
        }
    }
}

/// Origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The user's file.
    User,
    /// The store's file.
    Store,
}

/// A value and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The value.
    pub value: Value,
    /// The file.
    pub origin: Origin,
    /// Line, from 1.
    pub line: usize,
}

/// A tier and the position of its first line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierSetting {
    /// The tier.
    pub tier: Tier,
    /// The retention time as written.
    pub keep: String,
    /// The file.
    pub origin: Origin,
    /// Line, from 1.
    pub line: usize,
}

/// The settings of one or more files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    keys: BTreeMap<&'static str, Setting>,
    /// The tiers, in order of precedence.
    pub tiers: Vec<TierSetting>,
}

impl Settings {
    /// Returns the setting of a key.
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.keys.get(name)
    }

    /// Returns a number, or a size in bytes.
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.get(name)?.value {
            Value::Number(number) => Some(number),
            _ => None,
        }
    }

    /// Returns a duration.
    pub fn span(&self, name: &str) -> Option<Duration> {
        match self.get(name)?.value {
            Value::Span(span, _) => Some(span),
            _ => None,
        }
    }

    /// Returns whether a flag is set to `true`.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name)
            .is_some_and(|setting| setting.value == Value::Flag(true))
    }

    /// Returns a string.
    pub fn text(&self, name: &str) -> Option<&str> {
        match &self.get(name)?.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Merges these with `other`: these take precedence, also in the order of tiers.
    pub fn or(mut self, other: Settings) -> Settings {
        for (name, setting) in other.keys {
            self.keys.entry(name).or_insert(setting);
        }
        self.tiers.extend(other.tiers);
        self
    }

    /// Returns the settings that a branch inherits: all except retention, which belongs to one
    /// history.
    pub fn inherited(mut self) -> Settings {
        self.keys.retain(|name, _| !name.starts_with("retention."));
        self.tiers.clear();
        self
    }

    fn insert(&mut self, key: &'static Key, setting: Setting) {
        self.keys.insert(key.name, setting);
    }
}

#[cfg(test)]
mod tests;
