//! Configuration of a served tree, and its effective values on this filesystem.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::error;
use super::origin::ServedOrigin;
use super::serving::ServingEnv;
use super::succession::WorkerHandover;
use crate::history::base::Base;
pub use crate::live::SealerMode;
use ckptfs_api::{SNAPDIR, VerbResult, noted_snapdir};
use ckptfs_store::Store;
use ckptfs_sys::{self as sys, Errno};

/// I/O path of live files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoChoice {
    /// Passthrough where possible, else the daemon.
    #[default]
    Auto,
    /// Passthrough; mounting fails where it is impossible.
    Passthrough,
    /// The daemon.
    Daemon,
}

/// Configuration of a served tree.
#[derive(Debug)]
pub struct Config {
    /// The backing directory, opened before the mount covers it.
    pub root: OwnedFd,
    /// Its path, for messages.
    pub backing: PathBuf,
    /// The mount point, for messages.
    pub mount: PathBuf,
    /// I/O path.
    pub io: IoChoice,
    /// Passthrough for every user, not only for the owner of the tree (`Passthrough::is_for`).
    pub io_for_all: bool,
    /// Writes pass through the daemon and block during a checkpoint (`--writes=daemon`), so that
    /// every cut is exact.
    pub strict_writes: bool,
    /// List `.snapshots` in the root directory (`--snapdir=visible`).
    pub snapdir_visible: bool,
    /// Another name for `.snapshots` (`--snapdir-name`).
    pub snapdir_name: Option<String>,
    /// List each checkpoint in `.snapshots` by its time also (`--snapdir-names=gmt`).
    pub snapdir_times: bool,
    /// The handover from a previous worker and to the next; `None`: no successor exists.
    pub succession: Option<WorkerHandover>,
    /// Idle-time hashing and captures ahead (`--seal`).
    pub seal: SealerMode,
    /// Permission bits of `.snapshots`; defaults to those of the root directory.
    pub snapdir_mode: Option<u32>,
    /// Automatic checkpoints.
    pub auto: AutoConfig,
    /// Commands around checkpoints and restores.
    pub hooks: Option<HooksConfig>,
    /// Called before an unmount, to release the daemon's own uses of the mount.
    pub before_unmount: Option<fn()>,
    /// For a branch: its base.
    pub base: Option<Arc<Base>>,
    /// For a branch: the parent's settings.
    pub inherits: Option<Inherits>,
    /// The remote with the tree's content, if any.
    pub origin: Option<ServedOrigin>,
}

impl Config {
    /// Returns the configuration of a directory that is unmounted or only inspected: the process
    /// itself does all I/O, and no background work runs.
    pub fn bare(root: OwnedFd, backing: PathBuf) -> Config {
        Config {
            root,
            mount: backing.clone(),
            backing,
            io: IoChoice::Daemon,
            io_for_all: false,
            strict_writes: false,
            snapdir_visible: false,
            snapdir_name: None,
            snapdir_times: false,
            succession: None,
            seal: SealerMode::Off,
            snapdir_mode: None,
            auto: AutoConfig::default(),
            hooks: None,
            before_unmount: None,
            base: None,
            inherits: None,
            origin: None,
        }
    }
}

/// Configuration of automatic checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AutoConfig {
    /// Before bursts of destructive operations; `None`: disabled.
    pub tripwire: Option<TripwireConfig>,
    /// At this interval, if the tree has changed.
    pub every: Option<Duration>,
    /// When the tree has changed, and then not for this time.
    pub quiet: Option<Duration>,
    /// At a mount, around offline changes.
    pub absence: bool,
}

/// Definition of a burst: more than `count` destructive operations of one process tree within a
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TripwireConfig {
    /// The largest number that is not a burst.
    pub count: u32,
    /// The time window.
    pub within: Duration,
}

/// Configuration of hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HooksConfig {
    /// A directory outside of the tree.
    pub dir: PathBuf,
    /// A hook that runs longer is killed and counts as failed.
    pub timeout: Duration,
}

/// The settings that a branch inherits from its parent.
pub struct Inherits(pub(super) Arc<ServingEnv>);

impl std::fmt::Debug for Inherits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inherits")
    }
}

/// The effective configuration of a served tree.
pub(super) struct EffectiveConfig {
    pub(super) backing: PathBuf,
    pub(super) mount: PathBuf,
    pub(super) filesystem: &'static str,
    pub(super) wants_passthrough: bool,
    pub(super) io_for_all: bool,
    pub(super) strict_writes: bool,
    pub(super) snapdir_visible: bool,
    pub(super) snapdir_name: String,
    pub(super) snapdir_times: bool,
    pub(super) seal: SealerMode,
    pub(super) snapdir_mode: Option<u32>,
    pub(super) auto: AutoConfig,
    pub(super) before_unmount: Option<fn()>,
}

impl EffectiveConfig {
    pub(super) fn new(
        config: &Config,
        store: &Store,
        (reflink, exact_times): (bool, bool),
    ) -> VerbResult<EffectiveConfig> {
        let filesystem = sys::statfs_fd(&config.root)
            .map(|info| sys::fs_name(info.fs_type))
            .unwrap_or("unknown");
        let possible = reflink && exact_times && sys::has_sys_admin() && !config.strict_writes;
        if config.io == IoChoice::Passthrough && !possible {
            let why = if !reflink {
                format!(
                    "{filesystem} has no reflink, and a plain copy of a file while the kernel writes to it is not consistent"
                )
            } else if config.strict_writes {
                "--writes=daemon says the opposite".to_owned()
            } else if !exact_times {
                "the times of files are too coarse to show every change (Linux 6.13 has finer ones on xfs and btrfs)".to_owned()
            } else {
                "CAP_SYS_ADMIN is needed".to_owned()
            };
            return Err(error::hinted(
                error::Code::NoPassthrough,
                format!("passthrough is not possible here: {why}"),
                "use --io auto or --io daemon",
            ));
        }
        // A branch uses its parent's name.
        let of_parent = config.inherits.as_ref();
        let of_parent = of_parent.map(|parent| parent.0.config.snapdir_name.clone());
        let noted = || noted_snapdir(store.layout.dir());
        let name = of_parent.or(config.snapdir_name.clone()).or_else(noted);
        Ok(EffectiveConfig {
            backing: config.backing.clone(),
            mount: config.mount.clone(),
            filesystem,
            wants_passthrough: possible && config.io != IoChoice::Daemon,
            io_for_all: config.io_for_all,
            strict_writes: config.strict_writes,
            snapdir_visible: config.snapdir_visible,
            snapdir_name: name.unwrap_or_else(|| SNAPDIR.to_owned()),
            snapdir_times: config.snapdir_times,
            seal: config.seal,
            snapdir_mode: config.snapdir_mode,
            auto: config.auto,
            before_unmount: config.before_unmount,
        })
    }
}

/// Tests whether the filesystem supports reflink, by a clone. Returns EXDEV if files are on another
/// device than their directory.
pub(super) fn probe_reflink(store: &Store) -> ckptfs_sys::SysResult<bool> {
    match probe_reflink_in_tmp(store) {
        Err(errno) if errno.is_no_room() => {}
        probed => return probed,
    }
    // The filesystem is full.
    Ok(sys::can_share(
        store.layout.lock_file().map_err(|error| error.errno())?,
    ))
}

fn probe_reflink_in_tmp(store: &Store) -> ckptfs_sys::SysResult<bool> {
    let tmp = store.layout.tmp_dir().map_err(|error| error.errno())?;
    for name in [b"probe-a".as_slice(), b"probe-b"] {
        let _ = sys::unlink_at(tmp, name);
    }
    let source = sys::create_file_at(tmp, b"probe-a", sys::Access::READ_WRITE, 0o600)?;
    if sys::stat_fd(&source)?.dev != sys::stat_fd(tmp)?.dev {
        let _ = sys::unlink_at(tmp, b"probe-a");
        return Err(Errno::EXDEV);
    }
    sys::write_all_at(&source, &[1; 4096], 0)?;
    let cloned = sys::clone_to(&source, tmp, b"probe-b");
    let _ = sys::unlink_at(tmp, b"probe-a");
    let _ = sys::unlink_at(tmp, b"probe-b");
    match cloned {
        Err(errno) if errno.is_no_room() => Err(errno),
        cloned => Ok(cloned.is_ok()),
    }
}

/// Tests whether every change after a stat is visible in the ctime, as the cut and the detection of
/// changes without a request require. With coarse timestamps, as before Linux 6.13, several writes
/// fall into one tick.
pub(super) fn probe_times(store: &Store) -> ckptfs_sys::SysResult<bool> {
    let tmp = store.layout.tmp_dir().map_err(|error| error.errno())?;
    let _ = sys::unlink_at(tmp, b"probe-times");
    let file = sys::create_file_at(tmp, b"probe-times", sys::Access::READ_WRITE, 0o600);
    let _ = sys::unlink_at(tmp, b"probe-times");
    match file.and_then(|file| shows_every(&file, || sys::write_all_at(&file, &[1], 0))) {
        Err(errno) if errno.is_no_room() => {}
        probed => return probed,
    }
    let lock = store.layout.lock_file().map_err(|error| error.errno())?;
    let probe = || shows_every(lock, || sys::set_file_mode(lock, 0o600));
    store.reserve.with_last_room(probe, |errno| *errno)
}

fn shows_every(
    file: &std::fs::File,
    change: impl Fn() -> ckptfs_sys::SysResult<()>,
) -> ckptfs_sys::SysResult<bool> {
    const CHANGES: u64 = 16;
    for _ in 0..CHANGES {
        let before = sys::stat_fd(file)?;
        change()?;
        if sys::stat_fd(file)?.ctime == before.ctime {
            return Ok(false);
        }
    }
    Ok(true)
}
