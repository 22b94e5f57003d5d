//! `ckptfs mount`.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;

use super::error::{Outcome, error, hinted, io_error};
use super::holders::{self, Holder};
use super::launch::Ready;
use super::tree_path::{beyond_links, normal};
use super::{Context, changes, daemon, launch, locate, mounts};
use crate::control::{Client, STORE_NAME, Store};
use crate::engine::api::{AbsenceInfo, VerbResult, host_path};
use crate::engine::config::HooksConfig;
use crate::engine::config::{AutoConfig, TripwireConfig};
use crate::engine::settings::Settings;
use crate::engine::word::word;
use crate::sys::{self, MountPoint};
use crate::transfer::import::keep;

/// What trips if nothing else is asked for.
const TRIPWIRE: TripwireConfig = TripwireConfig { count: 25, within: Duration::from_secs(1) };
/// How long a daemon that was killed may take to be gone: the kernel may be writing for it.
const DYING_MAX: Duration = Duration::from_secs(20);
/// How long a hook may take.
const HOOK_TIMEOUT: Duration = Duration::from_secs(30);
/// What `--auto-absence` is unless it is given.
const ABSENCE_VARIABLE: &str = "CKPTFS_AUTO_ABSENCE";
/// The tripwire remembers so many operations.
const TRIPWIRE_MAX: u32 = 10_000;
/// Mounts inside of a directory that are named.
const NESTED_SHOWN_MAX: usize = 5;
/// Spans of time that make sense.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Serve a directory, in place or at another mountpoint, from a daemon in the background
///
/// Returns when the mount serves. A mount whose daemon has died is repaired.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory to serve; its history is kept in DIR/.ckptfs
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Where to mount it; over DIR itself if not given
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: Option<PathBuf>,
    #[command(flatten)]
    serving: Serving,
    /// A daemon that dies leaves a dead mount; else another takes over, and programs go on
    #[arg(long)]
    no_holder: bool,
    /// Stay in the foreground; log to stderr
    #[arg(long)]
    foreground: bool,
    /// Let other users in (permissions are checked all the same); the default where it is permitted
    #[arg(long, overrides_with = "no_allow_other")]
    allow_other: bool,
    /// Let nobody else in, not even root
    #[arg(long)]
    no_allow_other: bool,
}

/// How a tree is served.
#[derive(Clone, Debug, clap::Args)]
pub struct Serving {
    /// Who reads and writes files: the kernel by itself (passthrough), or the daemon
    #[arg(long, value_enum, value_name = "WHO")]
    pub io: Option<Io>,
    /// Who does so for users other than root, the daemon's user and the owner of DIR, where the kernel does it for these
    #[arg(long, value_enum, value_name = "WHO")]
    pub others_io: Option<OthersIo>,
    /// Who writes files; with `daemon` writes wait during a checkpoint, so that every one is of one instant
    #[arg(long, value_enum, value_name = "WHO")]
    pub writes: Option<Writes>,
    /// Which extended attributes are served; with `off` the kernel never asks for one, which makes new files cheaper
    #[arg(long, value_enum, value_name = "WHICH")]
    pub xattrs: Option<Xattrs>,
    /// Whether .snapshots is listed in the root directory
    #[arg(long, value_enum, value_name = "HOW")]
    pub snapdir: Option<Snapdir>,
    /// What is done ahead of need when the machine is idle: `hash` lets a deep `verify` find every changed bit of what was captured
    #[arg(long, value_enum, value_name = "WHAT")]
    pub seal: Option<Seal>,
    /// Permission bits of .snapshots (octal), and so who may see the past; those of the root directory if not given
    #[arg(long, value_name = "MODE", value_parser = snapdir_mode)]
    pub snapdir_mode: Option<u32>,
    /// How many threads read the kernel's requests [default: as many as there are CPUs, from 2 to 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub readers: Option<u8>,
    /// Before a process removes or empties more than N files and directories within T, make a checkpoint; off: never [default: 25/1s]
    #[arg(long, value_name = "N/T", env = "CKPTFS_TRIPWIRE", value_parser = tripwire)]
    pub tripwire: Option<Tripwire>,
    /// Make a checkpoint so often, if something has changed
    #[arg(long, value_name = "TIME", value_parser = pause)]
    pub auto_every: Option<Duration>,
    /// Make a checkpoint when something has changed, and then nothing was written for so long
    #[arg(long, value_name = "TIME", value_parser = pause)]
    pub auto_quiet: Option<Duration>,
    /// Whether what was changed while nothing was mounted is between two checkpoints of its own [default: on]
    #[arg(long, value_enum, value_name = "WHETHER", env = ABSENCE_VARIABLE)]
    pub auto_absence: Option<Switch>,
    /// Run the commands pre-checkpoint, post-checkpoint, pre-restore and post-restore in this directory, as the user of the daemon
    #[arg(long, value_name = "DIR")]
    pub hooks: Option<PathBuf>,
    /// A hook that takes longer is killed and has failed [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = pause)]
    pub hook_timeout: Option<Duration>,
    /// Options of the mount as in mount(8), separated by commas; nodev, nosuid and exec unless told otherwise
    #[arg(short, value_enum, value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<MountFlag>,
}

/// `-o`. Of two opposites the later one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MountFlag {
    /// Device nodes work (root only)
    Dev,
    /// Device nodes cannot be opened
    Nodev,
    /// Set-id bits and file capabilities count (root only)
    Suid,
    /// They do not
    Nosuid,
    /// Programs can be run
    Exec,
    /// They cannot
    Noexec,
    /// Nobody can write; checkpoints are made all the same
    Ro,
    /// Whoever may can
    Rw,
}

/// Something is done, or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Yes
    #[default]
    On,
    /// No
    Off,
}

/// Whether what was changed while nothing was mounted is an epoch of its own where nothing is mounted now either.
pub fn parts_absences(settings: &Settings) -> bool {
    let told = std::env::var(ABSENCE_VARIABLE).ok().or_else(|| settings.text("auto.absence").map(str::to_owned));
    told.and_then(|word| Switch::from_str(&word, false).ok()).unwrap_or_default() == Switch::On
}

/// `--tripwire`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tripwire(Option<TripwireConfig>);

/// `N/T`, or `off`.
fn tripwire(text: &str) -> Result<Tripwire, String> {
    if text == "off" {
        return Ok(Tripwire(None));
    }
    let parsed = text.split_once('/').and_then(|(count, within)| Some((count.parse().ok()?, pause(within).ok()?)));
    match parsed {
        Some((count @ 1..=TRIPWIRE_MAX, within)) => Ok(Tripwire(Some(TripwireConfig { count, within }))),
        _ => Err(format!("a number from 1 to {TRIPWIRE_MAX} and a span of time are needed, such as 25/1s, or off")),
    }
}

/// A span of time that something waits, or takes at most.
fn pause(text: &str) -> Result<Duration, String> {
    let span = super::time::span(text)?;
    if (PAUSE_MIN..=PAUSE_MAX).contains(&span) { Ok(span) } else { Err("a span of time from 100ms to 366 days is needed".to_owned()) }
}

/// The permission bits of a directory, with or without the sticky bit: set-id bits would mean nothing on one that nobody makes files in.
fn snapdir_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o1777 && text.bytes().all(|byte| byte.is_ascii_digit()));
    mode.ok_or_else(|| "an octal mode up to 1777 is needed, such as 0700".to_owned())
}

/// `--io`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Io {
    /// The kernel where it can
    #[default]
    Auto,
    /// The kernel, or not at all
    Passthrough,
    /// The daemon
    Daemon,
}

/// `--others-io`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OthersIo {
    /// The daemon: nobody can keep a file locked
    #[default]
    Daemon,
    /// The kernel, for who can open files is trusted
    Kernel,
}

/// `--writes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Writes {
    /// As --io says
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
    /// Those of programs: no access lists, capabilities and labels
    User,
    /// None
    Off,
}

/// `--snapdir`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Snapdir {
    /// It is there and not listed
    #[default]
    Hidden,
    /// It is listed
    Visible,
}

/// `--seal`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Seal {
    /// Nothing
    Off,
    /// Captured versions are hashed
    #[default]
    Hash,
    /// And what changed in closed epochs is captured ahead, where files can share extents: changes made while nothing is mounted do not touch its past
    Full,
}

impl Serving {
    /// The arguments that give this again.
    pub fn arguments(&self) -> Vec<OsString> {
        fn option<T: ValueEnum>(name: &str, value: Option<&T>) -> Option<OsString> {
            let value = value?.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
            Some(format!("--{name}={value}").into())
        }
        let ms = |span: Duration| format!("{}ms", span.as_millis());
        let mut arguments: Vec<OsString> = option("io", self.io.as_ref()).into_iter().collect();
        arguments.extend(option("others-io", self.others_io.as_ref()));
        arguments.extend(option("writes", self.writes.as_ref()));
        arguments.extend(option("xattrs", self.xattrs.as_ref()));
        arguments.extend(option("snapdir", self.snapdir.as_ref()));
        arguments.extend(option("seal", self.seal.as_ref()));
        arguments.extend(self.readers.map(|readers| format!("--readers={readers}").into()));
        let wire = |Tripwire(wire): Tripwire| wire.map_or("off".to_owned(), |wire| format!("{}/{}", wire.count, ms(wire.within)));
        arguments.extend(self.tripwire.map(|tripwire| format!("--tripwire={}", wire(tripwire)).into()));
        arguments.extend(self.hook_timeout.map(|span| format!("--hook-timeout={}", ms(span)).into()));
        arguments.extend(self.auto_every.map(|span| format!("--auto-every={}", ms(span)).into()));
        arguments.extend(option("auto-absence", self.auto_absence.as_ref()));
        arguments.extend(self.auto_quiet.map(|span| format!("--auto-quiet={}", ms(span)).into()));
        if let Some(dir) = &self.hooks {
            arguments.extend(["--hooks".into(), dir.clone().into()]);
        }
        arguments.extend(self.snapdir_mode.map(|mode| format!("--snapdir-mode={mode:o}").into()));
        for flag in &self.options {
            arguments.extend(["-o".into(), flag.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default().into()]);
        }
        arguments
    }

    /// The checkpoints that the daemon makes by itself.
    pub fn auto(&self) -> AutoConfig {
        let Tripwire(tripwire) = self.tripwire.unwrap_or(Tripwire(Some(TRIPWIRE)));
        let absence = self.auto_absence.unwrap_or_default() == Switch::On;
        AutoConfig { tripwire, every: self.auto_every, quiet: self.auto_quiet, absence }
    }

    /// The commands around checkpoints and restores.
    pub fn hooks(&self) -> Option<HooksConfig> {
        self.hooks.clone().map(|dir| HooksConfig { dir, timeout: self.hook_timeout.unwrap_or(HOOK_TIMEOUT) })
    }

    /// What was not asked for is as the configuration says.
    fn or(self, settings: &Settings) -> VerbResult<Serving> {
        fn word<T: ValueEnum>(settings: &Settings, name: &str) -> Option<T> {
            T::from_str(settings.text(name)?, false).ok()
        }
        let bad = |what: String| hinted("bad-config", what, "ckptfs config show --origin tells where it is set");
        let readers = settings.number("mount.readers");
        if readers.is_some_and(|readers| !(1..=64).contains(&readers)) {
            return Err(bad("mount.readers is not in 1..=64".to_owned()));
        }
        let span = |name: &str| match settings.span(name) {
            Some(span) if !(PAUSE_MIN..=PAUSE_MAX).contains(&span) => Err(bad(format!("{name} is not from 100ms to 366 days"))),
            span => Ok(span),
        };
        let (every, quiet, within, timeout) = (span("auto.every")?, span("auto.quiet")?, span("tripwire.within")?, span("hooks.timeout")?);
        let tripwire = match settings.number("tripwire.count") {
            None if within.is_none() => None,
            Some(0) => Some(Tripwire(None)),
            count => match count.map_or(Ok(TRIPWIRE.count), u32::try_from) {
                Ok(count @ 1..=TRIPWIRE_MAX) => Some(Tripwire(Some(TripwireConfig { count, within: within.unwrap_or(TRIPWIRE.within) }))),
                _ => return Err(bad(format!("tripwire.count is more than {TRIPWIRE_MAX}"))),
            },
        };
        Ok(Serving {
            io: self.io.or_else(|| word(settings, "mount.io")),
            others_io: self.others_io.or_else(|| word(settings, "mount.others-io")),
            writes: self.writes.or_else(|| word(settings, "mount.writes")),
            xattrs: self.xattrs.or_else(|| word(settings, "mount.xattrs")),
            snapdir: self.snapdir.or_else(|| word(settings, "mount.snapdir")),
            seal: self.seal.or_else(|| word(settings, "mount.seal")),
            snapdir_mode: self.snapdir_mode.or_else(|| snapdir_mode(settings.text("mount.snapdir-mode")?).ok()),
            readers: self.readers.or_else(|| u8::try_from(readers?).ok()),
            tripwire: self.tripwire.or(tripwire),
            auto_every: self.auto_every.or(every),
            auto_quiet: self.auto_quiet.or(quiet),
            auto_absence: self.auto_absence.or_else(|| word(settings, "auto.absence")),
            hook_timeout: self.hook_timeout.or(timeout),
            hooks: self.hooks,
            options: self.options,
        })
    }

    /// Whether a thing is on that `on` turns on and `off` turns off; `otherwise` if neither is asked for.
    fn flag(&self, on: MountFlag, off: MountFlag, otherwise: bool) -> bool {
        self.options.iter().rev().find(|flag| [on, off].contains(flag)).map_or(otherwise, |flag| *flag == on)
    }

    /// Device nodes work.
    pub fn dev(&self) -> bool {
        self.flag(MountFlag::Dev, MountFlag::Nodev, false)
    }

    /// Set-id bits count.
    pub fn suid(&self) -> bool {
        self.flag(MountFlag::Suid, MountFlag::Nosuid, false)
    }

    /// Nobody can write.
    pub fn read_only(&self) -> bool {
        self.flag(MountFlag::Ro, MountFlag::Rw, false)
    }

    /// Programs can be run.
    pub fn exec(&self) -> bool {
        self.flag(MountFlag::Exec, MountFlag::Noexec, true)
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Mounted<'a> {
    #[serde(serialize_with = "host_path::serialize")]
    mount: &'a Path,
    #[serde(serialize_with = "host_path::serialize")]
    backing: &'a Path,
    #[serde(serialize_with = "host_path::serialize")]
    store: &'a Path,
    io: &'a str,
    writes: &'a str,
    pid: u32,
    repaired: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    absence: Option<&'a AbsenceInfo>,
    warnings: &'a [String],
    /// Who has something of the directory below the mount.
    below: &'a [Holder],
}

pub fn run(args: Args, context: &mut Context) -> Outcome {
    let cwd = locate::start(context.dir())?;
    let mut repaired = 0;
    let backing = directory(&cwd.join(&args.dir), &args.dir, &mut repaired)?;
    let mountpoint = match &args.mountpoint {
        Some(mountpoint) => directory(&cwd.join(mountpoint), mountpoint, &mut repaired)?,
        None => backing.clone(),
    };
    check_mounts(&backing, &mountpoint, &mut repaired)?;
    let not_served = not_served(&backing, &mountpoint)?;
    check_store(&backing)?;
    if has_old_mark(&backing) {
        context.out.warn("this directory has the mark of an import that an older ckptfs has not finished: something may be missing in it");
    }
    check_flags(&args.serving)?;
    let allow_other = allow_other(&args)?;
    let mut args = args;
    args.serving.hooks = args.serving.hooks.map(|dir| hooks_dir(&cwd.join(&dir), &[&backing, &mountpoint])).transpose()?;
    let serving = args.serving.or(&super::config::settings_of(&backing)?)?;
    let (foreground, no_holder) = (args.foreground, args.no_holder);
    let daemon = daemon::Args { backing, mountpoint, serving, allow_other, foreground, no_holder, worker: false };
    if repaired > 0 {
        context.out.talk(&format!("took away {repaired} dead mount{} first", if repaired == 1 { "" } else { "s" }));
    }
    if args.foreground {
        not_served.iter().for_each(|text| context.out.warn(text));
        return daemon::run(daemon);
    }
    let mut ready = launch_patiently(&daemon)?;
    ready.warnings.extend(not_served);
    report(&daemon, &ready, repaired, context)
}

/// Starts the daemon. One that was killed and is not gone yet has the store's lock, and is waited for: it answers nobody any more.
fn launch_patiently(daemon: &daemon::Args) -> VerbResult<Ready> {
    let began = Instant::now();
    let answers = || matches!(Store::of(&daemon.backing), Ok(Some(store)) if Client::of(&store).is_ok());
    loop {
        match launch::launch(daemon.arguments()) {
            Err(error) if error.code == "in-use" && began.elapsed() < DYING_MAX && !answers() => {}
            launched => return launched,
        }
    }
}

/// The real path of the directory that somebody named, dead mounts on the way taken away.
fn directory(path: &Path, shown: &Path, repaired: &mut usize) -> VerbResult<PathBuf> {
    let shown = shown.display();
    let unlinked = normal(path);
    let real = beyond_links(&unlinked).unwrap_or(unlinked);
    *repaired += mounts::repair_above(&real)?;
    let mut found = std::fs::metadata(path);
    if found.as_ref().is_err_and(locate::is_disconnected) {
        // Its daemon has died since.
        *repaired += mounts::repair_above(&real)?;
        found = std::fs::metadata(path);
    }
    match found {
        Ok(metadata) if metadata.is_dir() => path.canonicalize().map_err(|cause| io_error(&shown, cause)),
        Ok(_) => Err(error("not-a-directory", format!("{shown} is not a directory"))),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
            Err(hinted("not-found", format!("{shown} does not exist"), format!("mkdir {}", word(shown))))
        }
        Err(cause) => Err(io_error(&shown, cause)),
    }
}

/// Refuses what cannot be mounted there because of what is mounted already.
fn check_mounts(backing: &Path, mountpoint: &Path, repaired: &mut usize) -> VerbResult<()> {
    if [backing, mountpoint].contains(&Path::new("/")) {
        let message = "/ cannot be mounted over: whatever runs would go on below the mount";
        return Err(hinted("bad-mountpoint", message, "mount the directories that are to have checkpoints"));
    }
    let table = mounts::all()?;
    for mount in table.iter().filter(|mount| mount.serves(backing)) {
        let dead = mounts::repair(&mount.at)?;
        *repaired += dead;
        if dead == 0 && mounts::top(&mounts::all()?, &mount.at).is_some_and(|top| top.serves(backing)) {
            let at = mount.at.display();
            let message =
                if mount.at == backing { format!("{at} is already mounted") } else { format!("{} is already mounted at {at}", backing.display()) };
            return Err(hinted("already-mounted", message, format!("what it is: ckptfs -C {0} status; end it: ckptfs umount {0}", word(at))));
        }
    }
    let table = mounts::all()?;
    for path in [backing, mountpoint] {
        if let Some(mount) = mounts::containing(&table, path).filter(|mount| mount.is_ours()) {
            let (path, at) = (path.display(), mount.at.display());
            let message =
                format!("{path} is inside of the mount at {at}, whose checkpoints have it: a restore there would change what is stored here");
            return Err(hinted("already-mounted", message, format!("unmount it first: ckptfs umount {}", word(at))));
        }
    }
    if let Some(nested) = [backing, mountpoint].iter().find_map(|dir| nested(&table, dir).find(|mount| mount.is_ours())) {
        let at = nested.at.display();
        let message = format!("{at} is mounted inside of {}: it would be out of sight, and its own history with it", backing.display());
        return Err(hinted("already-mounted", message, format!("unmount it first: ckptfs umount {}", word(at))));
    }
    if mountpoint != backing && mountpoint.starts_with(backing) {
        let message = format!("the mountpoint {} is inside of {}: the tree would contain itself", mountpoint.display(), backing.display());
        return Err(hinted("bad-mountpoint", message, format!("mount it in place: ckptfs mount {}", word(backing.display()))));
    }
    Ok(())
}

/// What is mounted inside of a directory.
fn nested<'a>(table: &'a [MountPoint], dir: &Path) -> impl Iterator<Item = &'a MountPoint> {
    table.iter().filter(move |mount| mount.at != dir && mount.at.starts_with(dir))
}

/// Names what is mounted inside of the directory, and so is another filesystem that is not served.
fn not_served(backing: &Path, mountpoint: &Path) -> VerbResult<Option<String>> {
    let table = mounts::all()?;
    let mut places: Vec<String> = nested(&table, backing).map(|mount| mount.at.display().to_string()).collect();
    places.dedup();
    let (count, first) = (places.len(), places.iter().take(NESTED_SHOWN_MAX).cloned().collect::<Vec<_>>().join(", "));
    let more = if count > NESTED_SHOWN_MAX { format!(" and {} more", count - NESTED_SHOWN_MAX) } else { String::new() };
    let hidden = if mountpoint == backing { ", and cannot be reached until it is unmounted" } else { "" };
    Ok((count > 0).then(|| format!("what is mounted inside of the directory is not served{hidden}: {first}{more}")))
}

/// Refuses a store that cannot work, before a daemon is started.
pub fn check_store(backing: &Path) -> VerbResult<()> {
    let trusted = Store::of(backing).map_err(|cause| io_error(backing.join(STORE_NAME).display(), cause))?;
    if trusted.is_some_and(|store| keep::is_unfinished(store.dir())) {
        let message = format!("an import into {} has not come to its end", backing.display());
        return Err(hinted("unfinished", message, "run the same ckptfs import again: it is finished then; or remove the directory"));
    }
    let store = backing.join(STORE_NAME);
    let found = match std::fs::symlink_metadata(&store) {
        Ok(found) => found,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(io_error(store.display(), cause)),
    };
    if !found.is_dir() {
        let hint = "the history is kept under this name: move what is there away";
        return Err(hinted("bad-store", format!("{} is not a directory", store.display()), hint));
    }
    let root = std::fs::metadata(backing).map_err(|cause| io_error(backing.display(), cause))?;
    if root.dev() != found.dev() {
        let message = format!("the store {} is on another filesystem than {}", store.display(), backing.display());
        let hint = format!("versions are kept by reflink and rename, within one filesystem: unmount {}", store.display());
        return Err(hinted("store-elsewhere", message, hint));
    }
    Ok(())
}

/// Whether a directory without a history has the mark that was set by an import until it ended, before that was noted in the store. Anybody who may write
/// to the directory can set it: it forbids nothing.
fn has_old_mark(backing: &Path) -> bool {
    !backing.join(STORE_NAME).exists() && sys::open_root(backing).and_then(|dir| sys::getxattr(&dir, b"user.ckptfs.import")).is_ok()
}

/// The real path of the directory of hooks, which is not in the tree: whoever may write there must not choose what the daemon runs.
fn hooks_dir(path: &Path, trees: &[&Path]) -> VerbResult<PathBuf> {
    let real = path.canonicalize().map_err(|cause| io_error(path.display(), cause))?;
    if trees.iter().any(|tree| real.starts_with(tree)) {
        let message = format!("the directory of hooks {} is in the tree, where others may write", real.display());
        return Err(hinted("bad-hooks", message, "name a directory outside of it"));
    }
    if !real.is_dir() {
        return Err(error("not-a-directory", format!("{} is not a directory", path.display())));
    }
    Ok(real)
}

/// Refuses what the kernel lets root alone have: fusermount would leave it out with a warning, and the mount not be what was asked for.
fn check_flags(serving: &Serving) -> VerbResult<()> {
    if (serving.dev() || serving.suid()) && sys::ids().0 != 0 {
        let message = "only root may mount with device nodes (dev) or set-id bits (suid)";
        return Err(hinted("no-permission", message, "leave the option away, or mount as root"));
    }
    Ok(())
}

/// Whether other users are let in.
fn allow_other(args: &Args) -> VerbResult<bool> {
    let permitted = sys::ids().0 == 0 || user_allow_other();
    match (args.allow_other, args.no_allow_other) {
        (true, _) if !permitted => Err(hinted(
            "no-permission",
            "an ordinary user may not let others into a FUSE mount on this machine",
            "root can permit it: echo user_allow_other >> /etc/fuse.conf",
        )),
        (true, _) => Ok(true),
        (false, true) => Ok(false),
        (false, false) => Ok(permitted),
    }
}

/// Whether fuse.conf(5) lets ordinary users use `allow_other`.
pub fn user_allow_other() -> bool {
    std::fs::read_to_string("/etc/fuse.conf").is_ok_and(|conf| conf.lines().any(|line| line.trim() == "user_allow_other"))
}

/// Tells what is mounted now.
fn report(daemon: &daemon::Args, ready: &Ready, repaired: usize, context: &mut Context) -> Outcome {
    let (mount, backing, store) = (&daemon.mountpoint, &daemon.backing, &daemon.backing.join(STORE_NAME));
    let Ready { pid, io, writes, absence, warnings, below } = ready;
    let out = &mut context.out;
    let below: Vec<Holder> = below.iter().filter(|holder| holder.pid != std::process::id()).cloned().collect();
    if out.json {
        let absence = absence.as_ref();
        return Ok(out.json(&Mounted { mount, backing, store, io, writes, pid: *pid, repaired, absence, warnings, below: &below })?);
    }
    out.talk(&format!("{} is mounted (io: {io}, writes: {writes})", mount.display()));
    if let Some(absence) = absence {
        out.talk(&changes::absence(absence));
    }
    for warning in warnings {
        out.warn(warning);
    }
    holders::warn(&below, out);
    let inside = std::env::current_dir().is_ok_and(|cwd| cwd.starts_with(mount));
    if inside {
        out.warn("the working directory of this shell is still the directory below the mount; enter the mount: cd .");
    }
    Ok(())
}
