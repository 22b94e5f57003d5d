//! The store's configuration file: ownership checks and reloading.

use std::os::fd::AsFd;

use super::parse::{ConfigError, parse, set};
use super::{Key, Origin, Settings, Value};
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Access, Errno, Kind, Stat, Time};

/// Its name in the store.
pub const STORE_FILE: &str = "ckptfs.toml";
/// Size limit of the file.
pub const FILE_BYTES_MAX: u64 = 64 << 10;

/// Inode, size and times, to detect a change.
type Stamp = (u64, u64, Time, Time);

/// The cached file. Its mutex is a leaf.
#[derive(Debug, Default)]
pub struct StoreFile(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    stamp: Option<Stamp>,
    settings: Settings,
    wrong: Option<String>,
}

impl StoreFile {
    /// Returns the settings of the file in `store`, reading it again after a change. If it is
    /// invalid, returns the previous settings and the error.
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

/// Reads the file in `store`; a missing file is empty.
///
/// # Errors
/// As [`parse`]; the file is unreadable, not regular, larger than [`FILE_BYTES_MAX`], owned by
/// another user, or writable by others.
pub fn read_store(store: impl AsFd) -> Result<Settings, ConfigError> {
    match text_in(store, STORE_FILE) {
        Ok(text) => parse(&text, Origin::Store),
        Err(ReadRefusal::Missing) => Ok(Settings::default()),
        Err(ReadRefusal::Refused(message, hint)) => Err(ConfigError {
            line: 0,
            message,
            hint,
        }),
    }
}

/// Returns the text of the file in `store` with a key set or removed.
///
/// # Errors
/// As for [`read_store`].
pub fn store_with(
    store: impl AsFd,
    key: &Key,
    value: Option<&Value>,
) -> Result<String, ConfigError> {
    match text_in(store, STORE_FILE) {
        Ok(text) => text_with(&text, Origin::Store, key, value),
        Err(ReadRefusal::Missing) => text_with("", Origin::Store, key, value),
        Err(ReadRefusal::Refused(message, hint)) => Err(ConfigError {
            line: 0,
            message,
            hint,
        }),
    }
}

/// Returns the text with a key set or removed, and checks that the result is valid.
///
/// # Errors
/// As for [`parse`].
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

/// Reason why the file has no text.
enum ReadRefusal {
    Missing,
    Refused(String, Option<String>),
}

fn text_in(dir: impl AsFd, name: &str) -> Result<String, ReadRefusal> {
    let refused = |message: &str, hint: Option<&str>| {
        ReadRefusal::Refused(message.to_owned(), hint.map(str::to_owned))
    };
    let failed = |errno: Errno| match errno {
        Errno::ENOENT => ReadRefusal::Missing,
        errno => ReadRefusal::Refused(format!("it cannot be read: {errno}"), None),
    };
    let before = sys::stat_at(&dir, name.as_bytes()).map_err(failed)?;
    if before.kind != Kind::File {
        return Err(refused("it is not a regular file", None));
    }
    let file = sys::open_file_at(&dir, name.as_bytes(), Access::READ).map_err(failed)?;
    let stat = sys::stat_fd(&file).map_err(failed)?;
    check_owner(&stat).map_err(|message| {
        refused(
            message,
            Some("chown it to the daemon's user, and chmod 600"),
        )
    })?;
    if stat.kind != Kind::File || stat.size > FILE_BYTES_MAX {
        return Err(ReadRefusal::Refused(
            format!("it is not a regular file of at most {FILE_BYTES_MAX} bytes"),
            None,
        ));
    }
    let mut bytes = vec![0; usize::try_from(FILE_BYTES_MAX).unwrap_or(0)];
    let read = sys::read_full_at(&file, &mut bytes, 0).map_err(failed)?;
    bytes.truncate(read);
    String::from_utf8(bytes).map_err(|_| refused("it is not UTF-8 text", None))
}

/// Write access to it permits the execution of commands by the daemon.
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
