//! Actual mounts, from the kernel's mount tables.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ckptfs_api::{Code, VerbResult, error, hinted};
use ckptfs_sys::{self as sys, Errno, MountPoint, host};

/// How long to wait for the mounts of a terminated container to go, and the pause between checks.
const ENDING_PATIENCE: Duration = Duration::from_millis(500);
const ENDING_PAUSE: Duration = Duration::from_millis(20);

/// Location of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePlace {
    /// The backing directory.
    pub backing: PathBuf,
    /// The mount point.
    pub point: PathBuf,
    /// The mount point was chosen by ckptfs, not by the user.
    pub chosen: bool,
}

impl VolumePlace {
    /// Returns the place of a branch, which is mounted on its tree.
    pub fn of_branch(path: &Path) -> VolumePlace {
        VolumePlace {
            backing: path.to_owned(),
            point: path.to_owned(),
            chosen: true,
        }
    }
}

/// A mount of a tree other than at our mount point, and a process that sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignMount {
    /// The process.
    pub pid: u32,
    /// The mount point, as the process sees it.
    pub at: PathBuf,
}

/// Returns all mounts in this process's mount table.
///
/// # Errors
/// The table cannot be read.
pub fn table() -> VerbResult<Vec<MountPoint>> {
    sys::mounts().map_err(|cause| error(Code::Io, format!("the table of mounts: {cause}")))
}

/// Returns the topmost mount at `at`, if it is one of ckptfs.
pub fn ours<'a>(table: &'a [MountPoint], at: &Path) -> Option<&'a MountPoint> {
    let top = table.iter().rev().find(|mount| mount.at == at)?;
    top.is_ours().then_some(top)
}

/// Returns the topmost mounts of a whole tree: the one at its own mount point first, then the
/// others, writable ones first, oldest first.
pub fn shown<'a>(table: &'a [MountPoint], place: &VolumePlace) -> Vec<&'a MountPoint> {
    let is_on_top = |mount: &MountPoint| {
        let top = table.iter().rev().find(|other| other.at == mount.at);
        top.is_some_and(|top| top.id == mount.id)
    };
    let whole = |mount: &&MountPoint| {
        mount.root == Path::new("/")
            && mount.at != place.point
            && mount.serves(&place.backing)
            && is_on_top(mount)
    };
    let mut elsewhere: Vec<&MountPoint> = table.iter().filter(whole).collect();
    elsewhere.sort_by_key(|mount| mount.read_only);
    ours(table, &place.point)
        .into_iter()
        .chain(elsewhere)
        .collect()
}

/// Returns a mount point at which a tree is served, preferably its own.
pub fn served(table: &[MountPoint], place: &VolumePlace) -> Option<PathBuf> {
    let all = shown(table, place).into_iter();
    let mut served = all.filter(|mount| serves(table, &mount.at));
    served.next().map(|mount| mount.at.clone())
}

/// Returns the mount point of a branch, including a staged volume; its path if it is not mounted.
pub fn branch_at(path: PathBuf) -> VerbResult<PathBuf> {
    let table = table()?;
    let found = shown(&table, &VolumePlace::of_branch(&path))
        .into_iter()
        .next();
    Ok(found.map_or(path, |mount| mount.at.clone()))
}

/// Whether something is mounted at `at`.
///
/// # Errors
/// The table cannot be read.
pub fn is_mounted(at: &Path) -> VerbResult<bool> {
    Ok(table()?.iter().any(|mount| mount.at == at))
}

/// Whether a ckptfs mount at `at` is served. A dead daemon does not serve; the call blocks while a
/// successor daemon takes over.
pub fn serves(table: &[MountPoint], at: &Path) -> bool {
    let dead = || {
        host::open_dir_path(at)
            .and_then(sys::statfs_fd)
            .is_err_and(|cause| matches!(cause, Errno::ENOTCONN | Errno::ECONNABORTED))
    };
    ours(table, at).is_some() && !dead()
}

/// Mounts of a tree other than at our mount point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignMounts {
    /// In use, mostly by containers.
    pub used: Vec<ForeignMount>,
    /// Copies in other mount namespaces: not in use, but they keep the filesystem alive.
    pub copies: Vec<ForeignMount>,
}

/// Whether a mount at `at` of the process `pid` is only a copy of the one at `point`:
/// - at the same path below the same root directory: the namespace was copied from ours;
/// - at the same path below another directory, for a `chosen` place: the process has the whole host
///   below that directory (`-v /:/host`).
pub fn is_copy(point: &Path, chosen: bool, pid: u32, at: &Path) -> bool {
    if at == point {
        // A process whose root directory is not readable is a system process, not a container.
        let root = root_of(&pid.to_string());
        return root.is_none() || root == root_of("self");
    }
    chosen
        && point
            .strip_prefix("/")
            .is_ok_and(|below| at.ends_with(below))
}

/// Returns the mounts of the tree at `place` other than at its own mount point.
pub fn elsewhere(place: &VolumePlace) -> VerbResult<ForeignMounts> {
    let table = table()?;
    // In its own user namespace any user can mount a filesystem with an arbitrary name. The device
    // number identifies a filesystem in all namespaces.
    let device = shown(&table, place).first().map(|mount| mount.dev);
    let all = sys::mounts_of_all(|mount| {
        mount.serves(&place.backing) && device.is_none_or(|device| mount.dev == device)
    });
    let all = all.map_err(|cause| error(Code::Io, format!("the tables of mounts: {cause}")))?;
    // A mount has the same id in the tables of all processes; its copies have other ids.
    let ours: Vec<u64> = table.iter().map(|mount| mount.id).collect();
    let mut seen = ForeignMounts::default();
    for (pid, mount) in all {
        if mount.at == place.point && ours.contains(&mount.id) {
            continue;
        }
        let list = if is_copy(&place.point, place.chosen, pid, &mount.at) {
            &mut seen.copies
        } else {
            &mut seen.used
        };
        list.push(ForeignMount { pid, at: mount.at });
    }
    Ok(seen)
}

/// As [`elsewhere`], after a short wait: the mounts of a container go shortly after its end.
/// Returns a remaining use.
pub fn still_elsewhere(place: &VolumePlace) -> VerbResult<Option<ForeignMount>> {
    let started = Instant::now();
    loop {
        let found = elsewhere(place)?.used.into_iter().next();
        if found.is_none() || started.elapsed() > ENDING_PATIENCE {
            return Ok(found);
        }
        std::thread::sleep(ENDING_PAUSE);
    }
}

/// Rejects an operation on a volume in use.
///
/// # Errors
/// `in-use`.
pub fn refuse_used(name: &str, found: Option<&ForeignMount>) -> VerbResult<()> {
    let Some(ForeignMount { pid, at }) = found else {
        return Ok(());
    };
    let message = format!(
        "volume {name} is mounted at {} of process {pid}",
        at.display()
    );
    Err(hinted(Code::InUse, message, "stop what is using it first"))
}

/// Returns the device and inode of a process's root directory.
fn root_of(pid: &str) -> Option<(u64, u64)> {
    let found = std::fs::metadata(format!("/proc/{pid}/root/")).ok()?;
    Some((found.dev(), found.ino()))
}

/// Returns the limitations of a pool at `root` whose filesystem has no reflink.
pub fn lacks(root: &Path) -> Option<String> {
    let file = || tempfile_in(root);
    let tried = file().and_then(|from| {
        use std::io::Write;
        (&from).write_all(&[1; 4096])?;
        Ok(sys::clone_file(&from, &file()?)?)
    });
    let cause = tried.err()?;
    Some(format!(
        "{} cannot share data between files ({cause}): a volume from another is a copy of all its data, what is changed is copied before, and reads and writes pass \
         a daemon; --pool-image makes a pool that can",
        root.display()
    ))
}

/// Creates an anonymous temporary file.
fn tempfile_in(root: &Path) -> std::io::Result<std::fs::File> {
    let path = root.join(
        format!(
            "staging/.try-{}-{:?}",
            std::process::id(),
            std::time::Instant::now()
        )
        .replace(|char: char| char.is_whitespace(), ""),
    );
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}
