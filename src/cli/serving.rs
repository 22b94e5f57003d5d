//! The options of `ckptfs mount` that are also options of its daemon.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as _, FromArgMatches, ValueEnum};

use ckptfs_api::{Code, VerbResult, is_snapdir_name};
use ckptfs_core::engine::config::HooksConfig;
use ckptfs_core::engine::config::{AutoConfig, TripwireConfig};
use ckptfs_core::engine::settings::Settings;
use ckptfs_ui::error::hinted;
use ckptfs_ui::time;

/// Default of the tripwire.
const TRIPWIRE: TripwireConfig = TripwireConfig {
    count: 25,
    within: Duration::from_secs(1),
};
/// Default time limit of a hook.
const HOOK_TIMEOUT: Duration = Duration::from_secs(30);
/// Environment variable with the default of `--auto-absence`.
const ABSENCE_VARIABLE: &str = "CKPTFS_AUTO_ABSENCE";
/// Limit of the operations that the tripwire records.
const TRIPWIRE_MAX: u32 = 10_000;
/// Bounds of spans of time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Options of a served tree.
#[derive(Clone, Debug, clap::Args)]
pub struct ServeOptions {
    /// Who reads and writes files: the kernel itself (passthrough), or the daemon
    #[arg(long, value_enum, value_name = "WHO")]
    pub io: Option<Io>,
    /// Who does this for users other than root, the daemon's user and the owner of DIR, if the
    /// kernel does it for these
    #[arg(long, value_enum, value_name = "WHO")]
    pub others_io: Option<OthersIo>,
    /// Who writes files; with `daemon`, writes wait during a checkpoint, so that every checkpoint
    /// is atomic
    #[arg(long, value_enum, value_name = "WHO")]
    pub writes: Option<Writes>,
    /// Supported extended attributes; with `off` the kernel sends no requests for them, which makes
    /// new files cheaper
    #[arg(long, value_enum, value_name = "WHICH")]
    pub xattrs: Option<Xattrs>,
    /// Whether the root directory lists .snapshots
    #[arg(long, value_enum, value_name = "HOW")]
    pub snapdir: Option<Snapdir>,
    /// Name of the directory .snapshots in this tree from now on, such as .past, for a tree with
    /// its own .snapshots. Later mounts use it without this option
    #[arg(long, value_name = "NAME", value_parser = snapdir_name)]
    pub snapdir_name: Option<String>,
    /// Names of a checkpoint in .snapshots: its number and tags; with `gmt` also its time as
    /// @GMT-2026.02.03-04.05.06, for Samba's shadow_copy2
    #[arg(long, value_enum, value_name = "WHICH")]
    pub snapdir_names: Option<SnapdirNames>,
    /// Work in idle time: with `hash` a deep `verify` finds every flipped bit of captured content
    #[arg(long, value_enum, value_name = "WHAT")]
    pub seal: Option<Seal>,
    /// Permission bits of .snapshots (octal), which control access to the past; those of the root
    /// directory by default
    #[arg(long, value_name = "MODE", value_parser = snapdir_mode)]
    pub snapdir_mode: Option<u32>,
    /// Number of threads that read the kernel's requests [default: one per CPU, from 2 to 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub readers: Option<u8>,
    /// Before a process removes or empties more than N files and directories within T, make a
    /// checkpoint; off: never [default: 25/1s]
    #[arg(long, value_name = "N/T", env = "CKPTFS_TRIPWIRE", value_parser = tripwire)]
    pub tripwire: Option<Tripwire>,
    /// Make a checkpoint at this interval, if something has changed
    #[arg(long, value_name = "TIME", value_parser = pause)]
    pub auto_every: Option<Duration>,
    /// Make a checkpoint after a change, when nothing has been written for this long
    #[arg(long, value_name = "TIME", value_parser = pause)]
    pub auto_quiet: Option<Duration>,
    /// Put changes made while nothing was mounted between two checkpoints of their own [default:
    /// on]
    #[arg(long, value_enum, value_name = "WHETHER", env = ABSENCE_VARIABLE)]
    pub auto_absence: Option<Switch>,
    /// Run the commands pre-checkpoint, post-checkpoint, pre-restore and post-restore in this
    /// directory, as the user of the daemon
    #[arg(long, value_name = "DIR")]
    pub hooks: Option<PathBuf>,
    /// Kill a hook that takes longer; it counts as failed [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = pause)]
    pub hook_timeout: Option<Duration>,
    /// Push each new checkpoint to this remote, or with /TIME the newest at this interval
    /// (REMOTE/15min)
    #[cfg(feature = "remote")]
    #[arg(long, value_name = "REMOTE", value_parser = push_to)]
    pub push: Option<String>,
    /// Of a tree that was mounted from a remote: limit of the fetched content, such as 10G; the
    /// least recently opened is dropped first
    #[arg(long, value_name = "SIZE", value_parser = super::size::parse)]
    pub cache: Option<u64>,
    /// Of a tree that was mounted from a remote: fetch only content that is opened
    #[arg(long)]
    pub no_fetch: bool,
    /// Mount options as in mount(8), separated by commas; nodev, nosuid and exec by default
    #[arg(short, value_enum, value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<MountFlag>,
}

/// `-o`. The later of two opposites applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MountFlag {
    /// Device nodes work (root only)
    Dev,
    /// Device nodes cannot be opened
    Nodev,
    /// Set-id bits and file capabilities take effect (root only)
    Suid,
    /// Set-id bits and file capabilities have no effect
    Nosuid,
    /// Programs can be run
    Exec,
    /// Programs cannot be run
    Noexec,
    /// No writes; checkpoints can still be made
    Ro,
    /// Writable, as permissions allow
    Rw,
}

/// On or off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Yes
    #[default]
    On,
    /// No
    Off,
}

/// Reports whether changes made while nothing was mounted form an epoch of their own, for a process
/// that opens a store without a mount.
pub fn parts_absences(settings: &Settings) -> bool {
    let told = std::env::var(ABSENCE_VARIABLE)
        .ok()
        .or_else(|| settings.text("auto.absence").map(str::to_owned));
    told.and_then(|word| Switch::from_str(&word, false).ok())
        .unwrap_or_default()
        == Switch::On
}

/// `--tripwire`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tripwire(Option<TripwireConfig>);

/// Parses `N/T`, or `off`.
fn tripwire(text: &str) -> Result<Tripwire, String> {
    if text == "off" {
        return Ok(Tripwire(None));
    }
    let parsed = text
        .split_once('/')
        .and_then(|(count, within)| Some((count.parse().ok()?, pause(within).ok()?)));
    match parsed {
        Some((count @ 1..=TRIPWIRE_MAX, within)) => {
            Ok(Tripwire(Some(TripwireConfig { count, within })))
        }
        _ => Err(format!(
            "a number from 1 to {TRIPWIRE_MAX} and a span of time are needed, such as 25/1s, or off"
        )),
    }
}

/// Checks the name of a remote with an optional interval.
#[cfg(feature = "remote")]
fn push_to(text: &str) -> Result<String, String> {
    if let Some((_, every)) = text.split_once('/') {
        pause(every)?;
    }
    Ok(text.to_owned())
}

/// Parses an interval or a time limit.
fn pause(text: &str) -> Result<Duration, String> {
    let span = time::span(text)?;
    if (PAUSE_MIN..=PAUSE_MAX).contains(&span) {
        Ok(span)
    } else {
        Err("a span of time from 100ms to 366 days is needed".to_owned())
    }
}

/// Parses the permission bits of a directory, with or without the sticky bit. Set-id bits have no
/// meaning in a directory where no files are created.
fn snapdir_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o1777 && text.bytes().all(|byte| byte.is_ascii_digit()));
    mode.ok_or_else(|| "an octal mode up to 1777 is needed, such as 0700".to_owned())
}

fn snapdir_name(text: &str) -> Result<String, String> {
    let name = is_snapdir_name(text).then(|| text.to_owned());
    name.ok_or_else(|| {
        "a name with a dot before it is needed, of letters, digits, _ . and -, such as .past"
            .to_owned()
    })
}

/// `--io`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Io {
    /// The kernel, where possible
    #[default]
    Auto,
    /// The kernel, or fail
    Passthrough,
    /// The daemon
    Daemon,
}

/// `--others-io`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OthersIo {
    /// The daemon: no user can keep a file locked
    #[default]
    Daemon,
    /// The kernel: users who can open files are trusted
    Kernel,
}

/// `--writes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Writes {
    /// As with --io
    #[default]
    Auto,
    /// The daemon
    Daemon,
}

/// `--xattrs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Xattrs {
    /// All
    #[default]
    All,
    /// Only user.*: no ACLs, capabilities or labels
    User,
    /// None
    Off,
}

/// `--snapdir`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Snapdir {
    /// Not listed, but accessible
    #[default]
    Hidden,
    /// Listed
    Visible,
}

/// `--snapdir-names`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SnapdirNames {
    /// Number and tags
    #[default]
    Plain,
    /// Number, tags and time
    Gmt,
}

/// `--seal`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Seal {
    /// Nothing
    Off,
    /// Hash captured versions
    #[default]
    Hash,
}

impl ServeOptions {
    /// Returns the options that are set in the environment.
    ///
    /// # Errors
    /// `bad-value`.
    pub fn of_environment() -> VerbResult<ServeOptions> {
        let command = ServeOptions::augment_args(clap::Command::new("mount").no_binary_name(true));
        let found = command
            .try_get_matches_from(std::iter::empty::<OsString>())
            .and_then(|found| ServeOptions::from_arg_matches(&found));
        found.map_err(|cause| hinted(Code::BadValue, cause.to_string(), "fix the variable"))
    }

    /// Returns the arguments for these options.
    pub fn arguments(&self) -> Vec<OsString> {
        fn option<T: ValueEnum>(name: &str, value: Option<&T>) -> Option<OsString> {
            let value = value?
                .to_possible_value()
                .map(|value| value.get_name().to_owned())
                .unwrap_or_default();
            Some(format!("--{name}={value}").into())
        }
        let ms = |span: Duration| format!("{}ms", span.as_millis());
        let mut arguments: Vec<OsString> = option("io", self.io.as_ref()).into_iter().collect();
        arguments.extend(option("others-io", self.others_io.as_ref()));
        arguments.extend(option("writes", self.writes.as_ref()));
        arguments.extend(option("xattrs", self.xattrs.as_ref()));
        arguments.extend(option("snapdir", self.snapdir.as_ref()));
        let named = self.snapdir_name.as_ref();
        arguments.extend(named.map(|name| format!("--snapdir-name={name}").into()));
        arguments.extend(option("snapdir-names", self.snapdir_names.as_ref()));
        arguments.extend(option("seal", self.seal.as_ref()));
        arguments.extend(
            self.readers
                .map(|readers| format!("--readers={readers}").into()),
        );
        let wire = |Tripwire(wire): Tripwire| {
            wire.map_or("off".to_owned(), |wire| {
                format!("{}/{}", wire.count, ms(wire.within))
            })
        };
        arguments.extend(
            self.tripwire
                .map(|tripwire| format!("--tripwire={}", wire(tripwire)).into()),
        );
        arguments.extend(
            self.hook_timeout
                .map(|span| format!("--hook-timeout={}", ms(span)).into()),
        );
        arguments.extend(
            self.auto_every
                .map(|span| format!("--auto-every={}", ms(span)).into()),
        );
        arguments.extend(option("auto-absence", self.auto_absence.as_ref()));
        arguments.extend(
            self.auto_quiet
                .map(|span| format!("--auto-quiet={}", ms(span)).into()),
        );
        #[cfg(feature = "remote")]
        if let Some(to) = &self.push {
            arguments.extend(["--push".into(), to.into()]);
        }
        if let Some(dir) = &self.hooks {
            arguments.extend(["--hooks".into(), dir.clone().into()]);
        }
        arguments.extend(
            self.snapdir_mode
                .map(|mode| format!("--snapdir-mode={mode:o}").into()),
        );
        arguments.extend(self.cache.map(|bytes| format!("--cache={bytes}").into()));
        arguments.extend(self.no_fetch.then(|| "--no-fetch".into()));
        for flag in &self.options {
            arguments.extend([
                "-o".into(),
                flag.to_possible_value()
                    .map(|value| value.get_name().to_owned())
                    .unwrap_or_default()
                    .into(),
            ]);
        }
        arguments
    }

    /// Returns the configuration of automatic checkpoints.
    pub fn auto(&self) -> AutoConfig {
        let Tripwire(tripwire) = self.tripwire.unwrap_or(Tripwire(Some(TRIPWIRE)));
        let absence = self.auto_absence.unwrap_or_default() == Switch::On;
        AutoConfig {
            tripwire,
            every: self.auto_every,
            quiet: self.auto_quiet,
            absence,
        }
    }

    /// Returns the configuration of the commands around checkpoints and restores.
    pub fn hooks(&self) -> Option<HooksConfig> {
        self.hooks.clone().map(|dir| HooksConfig {
            dir,
            timeout: self.hook_timeout.unwrap_or(HOOK_TIMEOUT),
        })
    }

    /// Adds the configuration for options that are not given.
    pub fn or(self, settings: &Settings) -> VerbResult<ServeOptions> {
        fn word<T: ValueEnum>(settings: &Settings, name: &str) -> Option<T> {
            T::from_str(settings.text(name)?, false).ok()
        }
        let bad = |what: String| {
            hinted(
                Code::BadConfig,
                what,
                "ckptfs config show --origin shows where it is set",
            )
        };
        let readers = settings.number("mount.readers");
        if readers.is_some_and(|readers| !(1..=64).contains(&readers)) {
            return Err(bad("mount.readers is not in 1..=64".to_owned()));
        }
        let span = |name: &str| match settings.span(name) {
            Some(span) if !(PAUSE_MIN..=PAUSE_MAX).contains(&span) => {
                Err(bad(format!("{name} is not from 100ms to 366 days")))
            }
            span => Ok(span),
        };
        let (every, quiet, within, timeout) = (
            span("auto.every")?,
            span("auto.quiet")?,
            span("tripwire.within")?,
            span("hooks.timeout")?,
        );
        let tripwire = match settings.number("tripwire.count") {
            None if within.is_none() => None,
            Some(0) => Some(Tripwire(None)),
            count => match count.map_or(Ok(TRIPWIRE.count), u32::try_from) {
                Ok(count @ 1..=TRIPWIRE_MAX) => Some(Tripwire(Some(TripwireConfig {
                    count,
                    within: within.unwrap_or(TRIPWIRE.within),
                }))),
                _ => return Err(bad(format!("tripwire.count is more than {TRIPWIRE_MAX}"))),
            },
        };
        Ok(ServeOptions {
            io: self.io.or_else(|| word(settings, "mount.io")),
            others_io: self.others_io.or_else(|| word(settings, "mount.others-io")),
            writes: self.writes.or_else(|| word(settings, "mount.writes")),
            xattrs: self.xattrs.or_else(|| word(settings, "mount.xattrs")),
            snapdir: self.snapdir.or_else(|| word(settings, "mount.snapdir")),
            snapdir_name: self.snapdir_name,
            snapdir_names: self
                .snapdir_names
                .or_else(|| word(settings, "mount.snapdir-names")),
            seal: self.seal.or_else(|| word(settings, "mount.seal")),
            snapdir_mode: self
                .snapdir_mode
                .or_else(|| snapdir_mode(settings.text("mount.snapdir-mode")?).ok()),
            readers: self.readers.or_else(|| u8::try_from(readers?).ok()),
            tripwire: self.tripwire.or(tripwire),
            auto_every: self.auto_every.or(every),
            auto_quiet: self.auto_quiet.or(quiet),
            auto_absence: self.auto_absence.or_else(|| word(settings, "auto.absence")),
            hook_timeout: self.hook_timeout.or(timeout),
            hooks: self.hooks,
            #[cfg(feature = "remote")]
            push: self.push,
            cache: self.cache.or_else(|| settings.number("mount.cache")),
            no_fetch: self.no_fetch || settings.text("mount.fetch") == Some("off"),
            options: self.options,
        })
    }

    /// Returns whether the later of the options `on` and `off` is `on`; `otherwise` if none is
    /// given.
    fn flag(&self, on: MountFlag, off: MountFlag, otherwise: bool) -> bool {
        self.options
            .iter()
            .rev()
            .find(|flag| [on, off].contains(flag))
            .map_or(otherwise, |flag| *flag == on)
    }

    /// Reports whether device nodes can be opened.
    pub fn dev(&self) -> bool {
        self.flag(MountFlag::Dev, MountFlag::Nodev, false)
    }

    /// Reports whether set-id bits take effect.
    pub fn suid(&self) -> bool {
        self.flag(MountFlag::Suid, MountFlag::Nosuid, false)
    }

    /// Reports whether the mount is read-only.
    pub fn read_only(&self) -> bool {
        self.flag(MountFlag::Ro, MountFlag::Rw, false)
    }

    /// Reports whether programs can be run.
    pub fn exec(&self) -> bool {
        self.flag(MountFlag::Exec, MountFlag::Noexec, true)
    }
}
