//! `ckptfs config`: shows and changes the configuration files.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde::Serialize;

use ckptfs_api::{Client, Code, STORE_NAME, StoreDir, VerbError, VerbResult};
use ckptfs_core::engine::settings::{
    self, ConfigError, FILE_BYTES_MAX, Files, KEYS, Key, Kind, Origin, STORE_FILE, Setting,
    Settings, TIERS, TierSetting, Value, parse, parse_value, read_store,
};
use ckptfs_sys::{self as sys, host};
use ckptfs_ui::context::Context;
use ckptfs_ui::error::{ErrorContext, Failure, Outcome, hinted, io_error};
use ckptfs_ui::locate::{self, TreeLocation};
use ckptfs_ui::output::{Out, Role};

/// Show and change the configuration: .ckptfs/ckptfs.toml of the directory, and the user's
/// ckptfs/config.toml
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Show the settings; the store's file overrides the user's
    Show {
        /// Show the file and line of each setting
        #[arg(long)]
        origin: bool,
        /// Also show the keys that are not set, and the purpose of each
        #[arg(short, long)]
        all: bool,
    },
    /// Print the value of a key; exit status 1 if it is not set
    Get {
        /// A key, such as retention.keep-last
        key: String,
    },
    /// Set a key in the store's file, or the user's, and leave the rest of the file unchanged
    Set {
        /// A key, such as retention.keep-last
        key: String,
        /// Its value; without one the key is unset
        value: Option<String>,
        /// Change the user's file
        #[arg(long)]
        user: bool,
    },
    /// Replace the store's file, which is read-only in a mount, by FILE if that is valid
    Write {
        /// The file to copy (`-`: stdin)
        file: PathBuf,
    },
    /// Check the files for errors
    Check,
}

impl Args {
    /// Reports whether the command can set or unset a key of the store's file with this prefix.
    pub fn sets(&self, prefix: &str) -> bool {
        match &self.what {
            ConfigCommand::Set { key, user, .. } => !user && key.starts_with(prefix),
            ConfigCommand::Write { .. } => true,
            ConfigCommand::Show { .. } | ConfigCommand::Get { .. } | ConfigCommand::Check => false,
        }
    }
}

/// A key or a tier in the output of `config show`.
#[derive(Serialize)]
struct ShownSetting<'a> {
    about: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<Origin>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<serde_json::Value>,
    /// The entry as text.
    #[serde(skip)]
    text: String,
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    match args.what {
        ConfigCommand::Show { origin, all } => show(origin, all, context),
        ConfigCommand::Get { key } => get(known(&key)?, context),
        ConfigCommand::Set { key, value, user } => {
            set(known(&key)?, value.as_deref(), user, context)
        }
        ConfigCommand::Write { file } => write(&file, context),
        ConfigCommand::Check => check(context),
    }
}

/// The configuration files of a directory.
struct ConfigFiles {
    store: Option<(OwnedFd, PathBuf)>,
    /// Connection to the daemon of the store.
    daemon: Option<Client>,
    user: Option<PathBuf>,
}

impl ConfigFiles {
    fn around(dir: Option<&Path>) -> VerbResult<ConfigFiles> {
        let of = |root: PathBuf, store: Option<&StoreDir>| {
            let dir = store
                .map(|store| store.dir().try_clone())
                .transpose()
                .on(root.display())?;
            Ok::<_, VerbError>(dir.map(|dir| (dir, root.join(STORE_NAME).join(STORE_FILE))))
        };
        let (store, daemon) = match locate::locate(locate::start(dir)?)? {
            TreeLocation::Served(served) => {
                (of(served.root, served.client.store())?, Some(served.client))
            }
            TreeLocation::Store { root, store } => (of(root, Some(&store))?, None),
            TreeLocation::Stale { .. }
            | TreeLocation::Foreign { .. }
            | TreeLocation::Nothing { .. } => (None, None),
        };
        Ok(ConfigFiles {
            store,
            daemon,
            user: user_file(),
        })
    }

    fn path(&self, origin: Origin) -> String {
        match origin {
            Origin::Store => self
                .store
                .as_ref()
                .map(|(_, path)| path.display().to_string()),
            Origin::User => self.user.as_ref().map(|path| path.display().to_string()),
        }
        .unwrap_or_default()
    }

    /// Returns the store, open for changes, and the path of its file.
    fn store_to_change(self) -> VerbResult<(OwnedFd, PathBuf)> {
        let (store, path) = self.store.ok_or_else(|| {
            hinted(
                Code::NotMounted,
                "there is no store here",
                "ckptfs mount DIR makes one; --user sets it for all your trees",
            )
        })?;
        match self.daemon {
            Some(mut daemon) => Ok((daemon.open_store()?, path)),
            None => Ok((store, path)),
        }
    }

    fn of_store(&self) -> VerbResult<Settings> {
        let Some((store, path)) = &self.store else {
            return Ok(Settings::default());
        };
        read_store(store).map_err(|error| bad(path, &error))
    }

    fn of_user(&self) -> VerbResult<Settings> {
        let Some(path) = &self.user else {
            return Ok(Settings::default());
        };
        match read_text(path)? {
            Some(text) => parse(&text, Origin::User).map_err(|error| bad(path, &error)),
            None => Ok(Settings::default()),
        }
    }
}

/// Returns the settings for `dir`; the store's file overrides the user's.
pub fn settings(dir: Option<&Path>) -> VerbResult<Settings> {
    let found = ConfigFiles::around(dir)?;
    Ok(found.of_store()?.or(found.of_user()?))
}

/// Returns the settings of the next run of `gc`: only the store's file if that has
/// `retention.auto`, because the daemon reads no other, else as [`settings()`].
pub fn retention_settings(dir: Option<&Path>) -> VerbResult<Settings> {
    let found = ConfigFiles::around(dir)?;
    let of_store = found.of_store()?;
    match of_store.get("retention.auto") {
        Some(_) => Ok(of_store),
        None => Ok(of_store.or(found.of_user()?)),
    }
}

/// Like [`settings()`], for the backing directory of a tree that will be mounted.
pub fn settings_of(backing: &Path) -> VerbResult<Settings> {
    let store = StoreDir::of(backing)
        .ok()
        .flatten()
        .and_then(|store| store.dir().try_clone().ok());
    let store = store.map(|store| (store, backing.join(STORE_NAME).join(STORE_FILE)));
    let found = ConfigFiles {
        store,
        daemon: None,
        user: user_file(),
    };
    Ok(found.of_store()?.or(found.of_user()?))
}

/// Returns `$XDG_CONFIG_HOME/ckptfs/config.toml`, or the same in `~/.config`. Relative paths are
/// ignored, as the XDG Base Directory Specification requires.
pub fn user_file() -> Option<PathBuf> {
    let of = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let home = of("XDG_CONFIG_HOME").or_else(|| of("HOME").map(|home| home.join(".config")))?;
    Some(home.join("ckptfs/config.toml"))
}

fn read_text(path: &Path) -> VerbResult<Option<String>> {
    match fs::metadata(path) {
        Err(cause)
            if matches!(
                cause.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        Err(cause) => return Err(io_error(path.display(), cause)),
        Ok(found) if !found.is_file() || found.len() > FILE_BYTES_MAX => {
            return Err(hinted(
                Code::BadConfig,
                format!(
                    "{} is not a regular file of at most {FILE_BYTES_MAX} bytes",
                    path.display()
                ),
                "remove it",
            ));
        }
        Ok(_) => {}
    }
    fs::read_to_string(path).map(Some).on(path.display())
}

fn bad(path: &Path, error: &ConfigError) -> VerbError {
    let at = if error.line == 0 {
        path.display().to_string()
    } else {
        format!("{}:{}", path.display(), error.line)
    };
    let hint = error
        .hint
        .clone()
        .unwrap_or_else(|| "fix the file; `ckptfs config show --all` lists every key".into());
    hinted(Code::BadConfig, format!("{at}: {}", error.message), hint)
}

fn known(name: &str) -> VerbResult<&'static Key> {
    settings::find(name).ok_or_else(|| {
        if name == TIERS || name.starts_with("tiers.") {
            return hinted(
                Code::UnknownKey,
                "tiers are tables and cannot be set as keys",
                "add [[tiers]] to a copy of the file, and `ckptfs config write COPY`; `ckptfs config show` prints them",
            );
        }
        let hint = match settings::nearest(name) {
            Some(near) => format!("did you mean {near}?"),
            None => "`ckptfs config show --all` lists every key".into(),
        };
        hinted(Code::UnknownKey, format!("there is no key {name:?}"), hint)
    })
}

impl<'a> ShownSetting<'a> {
    fn unset(key: &'a str, about: &'a str, text: String) -> ShownSetting<'a> {
        let (file, line, origin, value) = (None, None, None, None);
        ShownSetting {
            about,
            file,
            key,
            line,
            origin,
            value,
            text,
        }
    }

    fn key(key: &'a Key, set: Option<&Setting>, found: &ConfigFiles) -> ShownSetting<'a> {
        let Some(set) = set else {
            let whose = match key.files {
                Files::Store => "; the store's file only",
                _ => "",
            };
            let text = format!("# {}: {}{whose}", key.name, key.about);
            return ShownSetting::unset(key.name, key.about, text);
        };
        ShownSetting {
            file: Some(found.path(set.origin)),
            line: Some(set.line),
            origin: Some(set.origin),
            value: serde_json::to_value(&set.value).ok(),
            ..ShownSetting::unset(
                key.name,
                key.about,
                format!("{} = {}", key.name, written(key, &set.value)),
            )
        }
    }

    fn tier(set: &TierSetting, found: &ConfigFiles) -> ShownSetting<'a> {
        let (paths, keep) = (&set.tier.paths, &set.keep);
        let text = format!("[[tiers]] paths = {paths:?} keep = {keep:?}");
        ShownSetting {
            file: Some(found.path(set.origin)),
            line: Some(set.line),
            origin: Some(set.origin),
            value: Some(serde_json::json!({"paths": paths, "keep": keep})),
            ..ShownSetting::unset(TIERS, TIERS_ABOUT, text)
        }
    }

    /// Formats a setting; `origin` adds its file and line.
    fn told(&self, origin: bool, out: &Out) -> String {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => {
                let at = if origin {
                    format!("  # {file}:{line}")
                } else {
                    String::new()
                };
                format!(
                    "{}{}",
                    out.text(&self.text),
                    out.paint(Role::Faint, &out.text(&at))
                )
            }
            _ => out.paint(Role::Faint, &self.text),
        }
    }
}

fn show(origin: bool, all: bool, context: &mut Context) -> Outcome {
    let found = ConfigFiles::around(context.dir())?;
    let settings = found.of_store()?.or(found.of_user()?);
    let mut shown: Vec<ShownSetting<'_>> = KEYS
        .iter()
        .map(|key| ShownSetting::key(key, settings.get(key.name), &found))
        .filter(|one| all || one.value.is_some())
        .collect();
    shown.extend(
        settings
            .tiers
            .iter()
            .map(|set| ShownSetting::tier(set, &found)),
    );
    context.out.answer(&shown, |out| {
        for one in &shown {
            out.line(&one.told(origin, out))?;
        }
        if all && settings.tiers.is_empty() {
            let text = format!("# [[tiers]] paths, keep: {TIERS_ABOUT}");
            out.line(&out.paint(Role::Faint, &text))?;
        }
        Ok(())
    })
}

/// Description of the key `tiers`.
const TIERS_ABOUT: &str = "all versions of these paths are kept for this long; then `ckptfs gc` drops their content from older checkpoints";

/// Formats a value as in a file.
fn written(key: &Key, value: &Value) -> String {
    match (key.kind, value) {
        (Kind::Count | Kind::Bytes, Value::Number(number)) => number.to_string(),
        (_, Value::Flag(flag)) => flag.to_string(),
        (_, value) => format!("{:?}", value.to_string()),
    }
}

fn get(key: &Key, context: &mut Context) -> Outcome {
    let settings = settings(context.dir())?;
    let set = settings.get(key.name);
    let out = &mut context.out;
    match set {
        Some(set) if out.json => Ok(out.json(&set.value)?),
        Some(set) => Ok(out.text_line(&set.value.to_string())?),
        None => {
            out.talk(&format!("{} is not set", key.name));
            Err(Failure::No)
        }
    }
}

fn set(key: &Key, value: Option<&str>, user: bool, context: &mut Context) -> Outcome {
    let value = value.map(|text| parse_value(key, text)).transpose();
    let value = value.map_err(|why| {
        let hint = key.hint();
        hinted(Code::BadValue, format!("{}: {why}", key.name), hint)
    })?;
    let found = ConfigFiles::around(context.dir())?;
    if user {
        if key.files == Files::Store {
            let hint = format!(
                "it is the daemon's setting: run ckptfs config set {} VALUE in the directory",
                key.name
            );
            return Err(hinted(
                Code::BadConfig,
                format!("{} can only be set in the store's file", key.name),
                hint,
            )
            .into());
        }
        let path = found.user.ok_or_else(|| {
            hinted(
                Code::NotFound,
                "there is no home directory",
                "set HOME or XDG_CONFIG_HOME",
            )
        })?;
        let dir = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(dir).on(dir.display())?;
        let text = read_text(&path)?.unwrap_or_default();
        let text = settings::text_with(&text, Origin::User, key, value.as_ref())
            .map_err(|error| bad(&path, &error))?;
        let fd = host::open_dir_path(dir).on(dir.display())?;
        sys::replace_file(&fd, "config.toml", text.as_bytes()).on(path.display())?;
    } else {
        let (store, path) = found.store_to_change()?;
        let text = settings::store_with(&store, key, value.as_ref())
            .map_err(|error| bad(&path, &error))?;
        sys::replace_file(&store, STORE_FILE, text.as_bytes()).on(path.display())?;
    }
    match value {
        Some(value) => context
            .out
            .talk(&format!("{} = {}", key.name, written(key, &value))),
        None => context.out.talk(&format!("{} is no longer set", key.name)),
    }
    Ok(())
}

fn write(file: &Path, context: &mut Context) -> Outcome {
    let mut text = String::new();
    let (from, name): (Box<dyn Read>, _) = if file == Path::new("-") {
        (Box::new(std::io::stdin()), Path::new("stdin"))
    } else {
        (Box::new(fs::File::open(file).on(file.display())?), file)
    };
    let shown = name.display();
    from.take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .on(&shown)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(hinted(
            Code::BadConfig,
            format!("{shown} has more than {FILE_BYTES_MAX} bytes"),
            "a configuration is shorter; name its file",
        )
        .into());
    }
    parse(&text, Origin::Store).map_err(|error| bad(name, &error))?;
    let (store, path) = ConfigFiles::around(context.dir())?.store_to_change()?;
    sys::replace_file(&store, STORE_FILE, text.as_bytes()).on(path.display())?;
    Ok(())
}

fn check(context: &mut Context) -> Outcome {
    let found = ConfigFiles::around(context.dir())?;
    let wrong: Vec<VerbError> = [found.of_store(), found.of_user()]
        .into_iter()
        .filter_map(Result::err)
        .collect();
    let out = &mut context.out;
    if out.json {
        out.json(&wrong)?;
    } else if wrong.is_empty() {
        out.line("nothing is wrong")?;
    } else {
        for error in &wrong {
            let text = format!(
                "{}{}",
                error.message,
                error
                    .hint
                    .as_ref()
                    .map(|hint| format!(" ({hint})"))
                    .unwrap_or_default()
            );
            out.text_line(&text)?;
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(Failure::No)
    }
}
