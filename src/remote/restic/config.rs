//! The remotes of a user, from `~/.config/ckptfs/remotes.toml` or a file that the user names; only
//! the user can read it. Names that it lacks are taken from the remotes of the system
//! (`/etc/ckptfs/remotes.toml`, owned by root).
//!
//! They are never in a store: another user may have created the store, and an address or a command
//! in it would be used with the credentials of the user who pushes. The file contains no password,
//! only its source.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use super::backend;
use ckptfs_api::display::word;
use ckptfs_api::{Code, VerbError, VerbResult, hinted, io_error};
use ckptfs_sys as sys;

/// The remotes of the system.
pub const SYSTEM_FILE: &str = "/etc/ckptfs/remotes.toml";

/// Size limit of the file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A remote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteConfig {
    /// Its address.
    pub url: String,
    /// A file of mode 0600 whose first line is the password.
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
    /// Limit of the bytes sent and received per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// It is a remote of the system: root must own the file with the password.
    #[serde(skip)]
    pub system: bool,
}

type ByName = BTreeMap<String, RemoteConfig>;

/// Remotes by name.
#[derive(Debug, Default)]
pub struct RemoteConfigs {
    /// The file to write; `None`: the user has no configuration directory.
    path: Option<PathBuf>,
    by_name: ByName,
    /// The remotes of the system.
    system: ByName,
}

impl RemoteConfigs {
    /// Reads the remotes of one file; a missing file contains none.
    ///
    /// # Errors
    /// `bad-config` if the file cannot be read, or others may write to it.
    pub fn read(file: &Path) -> VerbResult<RemoteConfigs> {
        Ok(RemoteConfigs {
            path: Some(file.to_owned()),
            by_name: read(file, sys::ids().0)?,
            system: ByName::new(),
        })
    }

    /// Reads the remotes of a user and of the system.
    ///
    /// # Errors
    /// `no-directory`: neither file can exist. As [`RemoteConfigs::read`].
    pub fn of_user(file: Option<PathBuf>) -> VerbResult<RemoteConfigs> {
        let system = match read(Path::new(SYSTEM_FILE), 0) {
            // It may be unreadable for other users.
            Err(why) if why.code == Code::NoPermission => ByName::new(),
            system => of_system(system?),
        };
        if file.is_none() && system.is_empty() {
            return Err(no_place());
        }
        let by_name = file.as_deref().map(|file| read(file, sys::ids().0));
        Ok(RemoteConfigs {
            path: file,
            by_name: by_name.transpose()?.unwrap_or_default(),
            system,
        })
    }

    /// Reads the remotes of the system, to change them.
    ///
    /// # Errors
    /// `no-permission`: the user is not root. As [`RemoteConfigs::read`].
    pub fn of_system() -> VerbResult<RemoteConfigs> {
        if sys::ids().0 != 0 {
            return Err(hinted(
                Code::NoPermission,
                format!("only root can change {SYSTEM_FILE}"),
                "leave --system out, for a remote of your own",
            ));
        }
        let file = Path::new(SYSTEM_FILE);
        Ok(RemoteConfigs {
            path: Some(file.to_owned()),
            by_name: of_system(read(file, 0)?),
            system: ByName::new(),
        })
    }

    /// Iterates over all remotes, those of the user first.
    pub fn all(&self) -> impl Iterator<Item = (&str, &RemoteConfig)> {
        let of_system = self.system.iter();
        let of_system = of_system.filter(|(name, _)| !self.by_name.contains_key(*name));
        self.by_name
            .iter()
            .chain(of_system)
            .map(|(name, named)| (name.as_str(), named))
    }

    /// Returns the file of a remote.
    pub fn file_of(&self, named: &RemoteConfig) -> &Path {
        match &self.path {
            Some(path) if !named.system => path,
            _ => Path::new(SYSTEM_FILE),
        }
    }

    /// Returns the remote of this name.
    ///
    /// # Errors
    /// `unknown-remote`.
    pub fn get(&self, name: &str) -> VerbResult<&RemoteConfig> {
        let named = self.by_name.get(name).or_else(|| self.system.get(name));
        named.ok_or_else(|| {
            let known: Vec<&str> = self.all().map(|(name, _)| name).collect();
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

    /// Adds a remote, or with `force` replaces one, and writes the file. Durable on return.
    ///
    /// # Errors
    /// `bad-name`, `bad-remote`, `remote-exists`; errors of writing.
    pub fn add(&mut self, name: &str, named: RemoteConfig, force: bool) -> VerbResult<()> {
        self.check(name, &named, force)?;
        self.by_name.insert(name.to_owned(), named);
        self.write()
    }

    /// Performs the checks of [`RemoteConfigs::add`].
    ///
    /// # Errors
    /// `bad-name`, `bad-remote`, `remote-exists`.
    pub fn check(&self, name: &str, named: &RemoteConfig, force: bool) -> VerbResult<()> {
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

    /// Removes a remote from the file. Its repository is not affected.
    ///
    /// # Errors
    /// `unknown-remote`; errors of writing.
    pub fn remove(&mut self, name: &str) -> VerbResult<()> {
        self.get(name)?;
        if self.by_name.remove(name).is_none() {
            return Err(hinted(
                Code::UnknownRemote,
                format!("{name} is a remote of the system, in {SYSTEM_FILE}"),
                format!("as root: ckptfs remote remove --system {}", word(name)),
            ));
        }
        self.write()
    }

    fn write(&self) -> VerbResult<()> {
        let path = self.path.as_deref().ok_or_else(no_place)?;
        let text = toml_edit::ser::to_string_pretty(&self.by_name)
            .map_err(|cause| io_error(path.display(), std::io::Error::other(cause)))?;
        let new = path.with_extension("toml.new");
        let write = || {
            if let Some(dir) = path.parent() {
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
            fs::rename(&new, path)
        };
        write().map_err(|cause| io_error(path.display(), cause))
    }
}

impl RemoteConfig {
    /// Returns the password: from the environment (`CKPTFS_REMOTE_PASSWORD`), the file, or the
    /// command; `None`: none of these is set, and the user must be asked.
    ///
    /// # Errors
    /// `bad-password` if others can read the file, or the command fails.
    pub fn password(&self) -> VerbResult<Option<String>> {
        if let Ok(password) = std::env::var("CKPTFS_REMOTE_PASSWORD") {
            return Ok(Some(password));
        }
        let read = match (&self.password_file, &self.password_command) {
            (Some(file), _) => of_file(file, self.system)?,
            (None, Some(command)) => of_command(command)?,
            (None, None) => return Ok(None),
        };
        Ok(Some(read.lines().next().unwrap_or_default().to_owned()))
    }
}

fn of_system(mut by_name: ByName) -> ByName {
    by_name.values_mut().for_each(|named| named.system = true);
    by_name
}

fn no_place() -> VerbError {
    hinted(
        Code::NoDirectory,
        "your remotes cannot be found",
        "set HOME or XDG_CONFIG_HOME; or, as root, name a remote for the whole system: ckptfs remote add --system NAME URL",
    )
}

/// Reads the remotes of a file owned by this user or root; a missing file contains none.
///
/// # Errors
/// `bad-config` if the file cannot be read, or others may write to it.
fn read(path: &Path, owner: u32) -> VerbResult<ByName> {
    let bad = |why: &str, hint: &str| {
        hinted(
            Code::BadConfig,
            format!("{}: {why}", path.display()),
            hint.to_owned(),
        )
    };
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(ByName::new()),
        Err(cause) => return Err(io_error(path.display(), cause)),
    };
    if !found.is_file() || found.len() > FILE_BYTES_MAX {
        return Err(bad(
            "it is not a regular file of at most 1 MiB",
            "remove it",
        ));
    }
    let (mut file, found) = opened(path)?;
    if found.mode() & 0o022 != 0 || (found.uid() != owner && found.uid() != 0) {
        let hint = match owner {
            0 => "chown root it and chmod 600 it, if what it says is right",
            _ => "chmod 600 it, if it is yours",
        };
        return Err(bad(
            "others may write to it, and it says which commands are run",
            hint,
        ));
    }
    let mut text = String::new();
    let read = file.read_to_string(&mut text);
    read.map_err(|cause| io_error(path.display(), cause))?;
    toml_edit::de::from_str(&text).map_err(|cause| bad(cause.message(), "mend or remove it"))
}

/// Opens a file and returns its metadata. The path may lead to another one than at the check
/// before.
fn opened(path: &Path) -> VerbResult<(File, Metadata)> {
    let failed = |cause| io_error(path.display(), cause);
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    Ok((file, found))
}

fn no_password(message: String, hint: &str) -> VerbError {
    hinted(Code::BadPassword, message, hint.to_owned())
}

fn of_file(path: &Path, system: bool) -> VerbResult<String> {
    let found = fs::metadata(path).map_err(|cause| io_error(path.display(), cause))?;
    if !found.is_file() || found.len() > FILE_BYTES_MAX {
        return Err(no_password(
            format!("{} is not a file with a password", path.display()),
            "ckptfs remote add NAME URL --force --password-file FILE gives another",
        ));
    }
    let (mut file, found) = opened(path)?;
    if found.mode() & 0o077 != 0 {
        return Err(no_password(
            format!("others may read the password in {}", path.display()),
            "chmod 600 it",
        ));
    }
    if system && found.uid() != 0 {
        return Err(no_password(
            format!(
                "{} has the password of a remote of the system, and belongs to another user than root",
                path.display()
            ),
            "chown root it, if the password in it is right",
        ));
    }
    let mut text = String::new();
    let read = file.read_to_string(&mut text);
    read.map_err(|cause| io_error(path.display(), cause))?;
    Ok(text)
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
