//! The store's file: whose it must be, and when it is read again.

use std::os::fd::AsFd;

use super::parse::{ConfigError, parse, set};
use super::{Key, Origin, Settings, Value};
use crate::sys::lock::Mutex;
use crate::sys::{self, Errno, Kind, Open, Stat, Time};

/// Its name in the store.
pub const STORE_FILE: &str = "ckptfs.toml";
/// A longer file is refused.
pub const FILE_BYTES_MAX: u64 = 64 << 10;

/// What tells that a file was changed.
type Stamp = (u64, u64, Time, Time);

/// What the daemon knows of it. Its mutex is a leaf.
#[derive(Debug, Default)]
pub struct StoreFile(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    stamp: Option<Stamp>,
    settings: Settings,
    wrong: Option<String>,
}

impl StoreFile {
    /// What the file in `store` says now, and what is wrong with it, if something is: then what it
    /// said before goes on to count.
    pub fn look(&self, store: impl AsFd) -> (Settings, Option<String>) {
        let stamp = match sys::stat_at(&store, STORE_FILE.as_bytes()) {
            Ok(stat) => Some((stat.ino, stat.size, stat.mtime, stat.ctime)),
            Err(_) => None,
        };
        let mut known = self.0.lock();
        if known.stamp.is_none() || known.stamp != stamp {
            match read_store(&store) {
                Ok(settings) => (known.settings, known.wrong) = (settings, None),
                Err(error) => {
                    let next = "the previous settings stay in effect; see `ckptfs config check`";
                    known.wrong = Some(format!("{STORE_FILE}: {error}; {next}"));
                }
            }
            known.stamp = stamp;
        }
        (known.settings.clone(), known.wrong.clone())
    }
}

/// What the file in `store` says; nothing if there is none.
///
/// # Errors
/// As [`parse`]; a file that cannot be read, is no regular file, is somebody else's, can be written
/// by others, or is too long.
pub fn read_store(store: impl AsFd) -> Result<Settings, ConfigError> {
    match text_in(store, STORE_FILE) {
        Ok(text) => parse(&text, Origin::Store),
        Err(Unread::Missing) => Ok(Settings::default()),
        Err(Unread::Refused(message, hint)) => Err(ConfigError {
            line: 0,
            message,
            hint,
        }),
    }
}

/// The text of the file in `store` with a key set, or set no more.
///
/// # Errors
/// As of [`read_store`].
pub fn store_with(
    store: impl AsFd,
    key: &Key,
    value: Option<&Value>,
) -> Result<String, ConfigError> {
    match text_in(store, STORE_FILE) {
        Ok(text) => text_with(&text, Origin::Store, key, value),
        Err(Unread::Missing) => text_with("", Origin::Store, key, value),
        Err(Unread::Refused(message, hint)) => Err(ConfigError {
            line: 0,
            message,
            hint,
        }),
    }
}

/// A text with a key set, or set no more; it must be one that is read again.
///
/// # Errors
/// As of [`parse`].
pub fn text_with(
    text: &str,
    origin: Origin,
    key: &Key,
    value: Option<&Value>,
) -> Result<String, ConfigError> {
    parse(text, origin)?;
    let text = set(text, key, value)?;
    parse(&text, origin).map(|_| text)
}

/// Why there is no text.
enum Unread {
    Missing,
    Refused(String, Option<String>),
}

fn text_in(dir: impl AsFd, name: &str) -> Result<String, Unread> {
    let refused = |message: &str, hint: Option<&str>| {
        Unread::Refused(message.to_owned(), hint.map(str::to_owned))
    };
    let failed = |errno: Errno| match errno {
        Errno::ENOENT => Unread::Missing,
        errno => Unread::Refused(format!("it cannot be read: {errno}"), None),
    };
    let before = sys::stat_at(&dir, name.as_bytes()).map_err(failed)?;
    if before.kind != Kind::File {
        return Err(refused("it is not a regular file", None));
    }
    let file = sys::open_file_at(&dir, name.as_bytes(), Open::READ).map_err(failed)?;
    let stat = sys::stat_fd(&file).map_err(failed)?;
    check_owner(&stat).map_err(|message| {
        refused(
            message,
            Some("chown it to the daemon's user, and chmod 600"),
        )
    })?;
    if stat.kind != Kind::File || stat.size > FILE_BYTES_MAX {
        return Err(Unread::Refused(
            format!("it is not a regular file of at most {FILE_BYTES_MAX} bytes"),
            None,
        ));
    }
    let mut bytes = vec![0; usize::try_from(FILE_BYTES_MAX).unwrap_or(0)];
    let read = sys::read_full_at(&file, &mut bytes, 0).map_err(failed)?;
    bytes.truncate(read);
    String::from_utf8(bytes).map_err(|_| refused("it is not UTF-8 text", None))
}

/// Whoever can write it makes the daemon run commands.
fn check_owner(stat: &Stat) -> Result<(), &'static str> {
    let (us, _) = sys::ids();
    if stat.uid != us && stat.uid != 0 {
        return Err("it belongs to another user");
    }
    if stat.mode & 0o022 != 0 {
        return Err("it is writable by others");
    }
    Ok(())
}
