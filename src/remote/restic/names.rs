//! The remotes of a user: `~/.config/ckptfs/remotes.toml`, or a file that they name, which only they
//! may read.
//!
//! They are never in a store: somebody else may have made it, and an address or a command in it
//! would be followed with the rights of whoever pushes. No password is in the file, only where one
//! is read.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use super::backend;
use crate::engine::api::{Code, VerbError, VerbResult, hinted, io_error};
use crate::sys;

/// A larger file is none of ours.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A remote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Where it is.
    pub url: String,
    /// A file of 0600 whose first line is the password.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "password-file"
    )]
    pub password_file: Option<PathBuf>,
    /// A command for sh(1) that prints the password.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "password-command"
    )]
    pub password_command: Option<String>,
    /// Bytes that may be sent and received in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// All remotes of a user, by name.
#[derive(Debug, Default)]
pub struct Names {
    path: PathBuf,
    by_name: BTreeMap<String, Named>,
}

impl Names {
    /// Reads them; none, if the file is not there.
    ///
    /// # Errors
    /// `bad-config` if the file cannot be read, or others may write to it.
    pub fn read(file: &Path) -> VerbResult<Names> {
        let path = file.to_owned();
        let bad = |why: &str, hint: &str| {
            hinted(
                Code::BadConfig,
                format!("{}: {why}", path.display()),
                hint.to_owned(),
            )
        };
        let found = match fs::metadata(&path) {
            Ok(found) => found,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Names {
                    path,
                    by_name: BTreeMap::new(),
                });
            }
            Err(cause) => return Err(io_error(path.display(), cause)),
        };
        if !found.is_file() || found.len() > FILE_BYTES_MAX {
            return Err(bad(
                "it is not a regular file of at most 1 MiB",
                "remove it",
            ));
        }
        if found.mode() & 0o022 != 0 || (found.uid() != sys::ids().0 && found.uid() != 0) {
            return Err(bad(
                "others may write to it, and it says which commands are run",
                "chmod 600 it, if it is yours",
            ));
        }
        let text = fs::read_to_string(&path).map_err(|cause| io_error(path.display(), cause))?;
        let by_name = toml_edit::de::from_str(&text)
            .map_err(|cause| bad(cause.message(), "mend or remove it"))?;
        Ok(Names { path, by_name })
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Named)> {
        self.by_name
            .iter()
            .map(|(name, named)| (name.as_str(), named))
    }

    /// The one with a name.
    ///
    /// # Errors
    /// `unknown-remote`.
    pub fn get(&self, name: &str) -> VerbResult<&Named> {
        self.by_name.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.by_name.keys().map(String::as_str).collect();
            let hint = if known.is_empty() {
                "ckptfs remote add NAME URL adds one".to_owned()
            } else {
                format!("there are: {}", known.join(", "))
            };
            hinted(
                Code::UnknownRemote,
                format!("no remote is named {name}"),
                hint,
            )
        })
    }

    /// Adds one, or with `force` replaces one, and writes the file. When it returns it is on disk.
    ///
    /// # Errors
    /// `bad-name`, `bad-remote`, `remote-exists`; those of writing.
    pub fn add(&mut self, name: &str, named: Named, force: bool) -> VerbResult<()> {
        self.check(name, &named, force)?;
        self.by_name.insert(name.to_owned(), named);
        self.write()
    }

    /// What [`Names::add`] checks before it does anything.
    ///
    /// # Errors
    /// `bad-name`, `bad-remote`, `remote-exists`.
    pub fn check(&self, name: &str, named: &Named, force: bool) -> VerbResult<()> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > 64 || !name.bytes().all(fits) {
            return Err(hinted(
                Code::BadName,
                format!("{name} cannot be the name of a remote"),
                "use letters, digits, - _ and .",
            ));
        }
        backend::check(&named.url)?;
        if named.limit == Some(0) {
            return Err(hinted(
                Code::BadRemote,
                "a limit of 0 would let nothing through",
                "leave it out, or name one such as 2M",
            ));
        }
        if !force && self.by_name.get(name).is_some_and(|old| old != named) {
            return Err(hinted(
                Code::RemoteExists,
                format!("there is a remote {name} already"),
                "--force replaces it; what is stored there stays",
            ));
        }
        Ok(())
    }

    /// Forgets one; what is stored there stays.
    ///
    /// # Errors
    /// `unknown-remote`; those of writing.
    pub fn remove(&mut self, name: &str) -> VerbResult<()> {
        self.get(name)?;
        self.by_name.remove(name);
        self.write()
    }

    fn write(&self) -> VerbResult<()> {
        let text = toml_edit::ser::to_string_pretty(&self.by_name)
            .map_err(|cause| io_error(self.path.display(), std::io::Error::other(cause)))?;
        let new = self.path.with_extension("toml.new");
        let write = || {
            if let Some(dir) = self.path.parent() {
                DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            }
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&new)?;
            file.set_permissions(Permissions::from_mode(0o600))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &self.path)
        };
        write().map_err(|cause| io_error(self.path.display(), cause))
    }
}

impl Named {
    /// The password: of the environment (`CKPTFS_REMOTE_PASSWORD`), of the file, of the command;
    /// `None`: none of them is there, and a person is to be asked.
    ///
    /// # Errors
    /// `bad-password` if the file is open to others, or the command fails.
    pub fn password(&self) -> VerbResult<Option<String>> {
        if let Ok(password) = std::env::var("CKPTFS_REMOTE_PASSWORD") {
            return Ok(Some(password));
        }
        let read = match (&self.password_file, &self.password_command) {
            (Some(file), _) => of_file(file)?,
            (None, Some(command)) => of_command(command)?,
            (None, None) => return Ok(None),
        };
        Ok(Some(read.lines().next().unwrap_or_default().to_owned()))
    }
}

fn no_password(message: String, hint: &str) -> VerbError {
    hinted(Code::BadPassword, message, hint.to_owned())
}

fn of_file(file: &Path) -> VerbResult<String> {
    let found = fs::metadata(file).map_err(|cause| io_error(file.display(), cause))?;
    if !found.is_file() || found.len() > FILE_BYTES_MAX {
        return Err(no_password(
            format!("{} is not a file with a password", file.display()),
            "ckptfs remote add NAME URL --force --password-file FILE gives another",
        ));
    }
    if found.mode() & 0o077 != 0 {
        return Err(no_password(
            format!("others may read the password in {}", file.display()),
            "chmod 600 it",
        ));
    }
    fs::read_to_string(file).map_err(|cause| io_error(file.display(), cause))
}

fn of_command(command: &str) -> VerbResult<String> {
    let output = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::inherit())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|cause| io_error("sh", cause))?;
    if !output.status.success() {
        return Err(no_password(
            format!("the password command failed ({})", output.status),
            "ckptfs remote shows it",
        ));
    }
    String::from_utf8(output.stdout)
        .map_err(|_| no_password("the password is not UTF-8".to_owned(), "change it"))
}
