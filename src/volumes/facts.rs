//! What is really mounted, as the kernel's tables say.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::error::{error, hinted};
use crate::engine::api::{Code, VerbResult};
use crate::sys::{self, Errno, MountPoint, host};

/// How long a container that has ended may take to be gone, and how often to see.
const ENDING_PATIENCE: Duration = Duration::from_millis(500);
const ENDING_PAUSE: Duration = Duration::from_millis(20);

/// Where a volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The directory that is served.
    pub backing: PathBuf,
    /// Where it is seen.
    pub point: PathBuf,
    /// We have chosen where that is, and nobody who uses it.
    pub chosen: bool,
}

impl Place {
    /// Of a branch, which is mounted where its tree is.
    pub fn of_branch(path: &Path) -> Place {
        Place {
            backing: path.to_owned(),
            point: path.to_owned(),
            chosen: true,
        }
    }
}

/// A place where a tree is mounted besides the one where we put it, and a process that sees it
/// there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// The process.
    pub pid: u32,
    /// The place, as that process sees it.
    pub at: PathBuf,
}

/// All mounts that this process sees.
///
/// # Errors
/// The table cannot be read.
pub fn table() -> VerbResult<Vec<MountPoint>> {
    sys::mounts().map_err(|cause| error(Code::Io, format!("the table of mounts: {cause}")))
}

/// What is on top at `at`, if that is a mount of ours.
pub fn ours<'a>(table: &'a [MountPoint], at: &Path) -> Option<&'a MountPoint> {
    let top = table.iter().rev().find(|mount| mount.at == at)?;
    top.is_ours().then_some(top)
}

/// Where a tree is mounted as a whole, and on top: at its own place first, then at the others, the
/// writable ones before the rest and the oldest first.
pub fn shown<'a>(table: &'a [MountPoint], place: &Place) -> Vec<&'a MountPoint> {
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

/// Where a tree is mounted and served, at its own place if it is there.
pub fn served(table: &[MountPoint], place: &Place) -> Option<PathBuf> {
    let all = shown(table, place).into_iter();
    let mut served = all.filter(|mount| serves(table, &mount.at));
    served.next().map(|mount| mount.at.clone())
}

/// Where a branch is mounted, one that is a staged volume too; its path if it is not mounted.
pub fn branch_at(path: PathBuf) -> VerbResult<PathBuf> {
    let table = table()?;
    let found = shown(&table, &Place::of_branch(&path)).into_iter().next();
    Ok(found.map_or(path, |mount| mount.at.clone()))
}

/// Whether something is mounted at `at`.
///
/// # Errors
/// The table cannot be read.
pub fn is_mounted(at: &Path) -> VerbResult<bool> {
    Ok(table()?.iter().any(|mount| mount.at == at))
}

/// Whether a mount of ours at `at` serves. One whose daemon is gone does not; one that is waiting
/// for the next daemon is waited for.
pub fn serves(table: &[MountPoint], at: &Path) -> bool {
    let dead = || {
        host::open_dir_path(at)
            .and_then(sys::statfs_fd)
            .is_err_and(|cause| matches!(cause, Errno::ENOTCONN | Errno::ECONNABORTED))
    };
    ours(table, at).is_some() && !dead()
}

/// Where a tree is mounted besides where we put it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// In containers, mostly: in use.
    pub used: Vec<Elsewhere>,
    /// In copies of the table of mounts that this process goes by: nobody has asked for it there,
    /// but the filesystem lives as long as they do.
    pub copies: Vec<Elsewhere>,
}

/// Whether a mount at `at` of the process `pid` is a copy of the one at `point`, and nobody has asked
/// for it there:
/// - at the same place below the same root directory: the namespace was copied from ours;
/// - at the same place below another directory, of a place that we have `chosen`: somebody has the
///   whole host below that directory (`-v /:/host`).
pub fn is_copy(point: &Path, chosen: bool, pid: u32, at: &Path) -> bool {
    if at == point {
        // Whose root directory may not be looked at is a process of the system, and no container.
        let root = root_of(&pid.to_string());
        return root.is_none() || root == root_of("self");
    }
    chosen
        && point
            .strip_prefix("/")
            .is_ok_and(|below| at.ends_with(below))
}

/// Where the tree in `place` is mounted besides its own place there.
pub fn elsewhere(place: &Place) -> VerbResult<Seen> {
    let table = table()?;
    // In a user namespace of their own anybody mounts as its root, and calls it what they like. A
    // device is one filesystem's, in all of them.
    let device = shown(&table, place).first().map(|mount| mount.dev);
    let all = sys::mounts_of_all(|mount| {
        mount.serves(&place.backing) && device.is_none_or(|device| mount.dev == device)
    });
    let all = all.map_err(|cause| error(Code::Io, format!("the tables of mounts: {cause}")))?;
    // A mount has one number, in whichever process's table it is; its copies have others.
    let ours: Vec<u64> = table.iter().map(|mount| mount.id).collect();
    let mut seen = Seen::default();
    for (pid, mount) in all {
        if mount.at == place.point && ours.contains(&mount.id) {
            continue;
        }
        let list = if is_copy(&place.point, place.chosen, pid, &mount.at) {
            &mut seen.copies
        } else {
            &mut seen.used
        };
        list.push(Elsewhere { pid, at: mount.at });
    }
    Ok(seen)
}

/// Where it is mounted besides, when a moment has passed: a container that has just ended takes its
/// mounts with it a little later.
pub fn still_elsewhere(place: &Place) -> VerbResult<Option<Elsewhere>> {
    let started = Instant::now();
    loop {
        let found = elsewhere(place)?.used.into_iter().next();
        if found.is_none() || started.elapsed() > ENDING_PATIENCE {
            return Ok(found);
        }
        std::thread::sleep(ENDING_PAUSE);
    }
}

/// Refuses what cannot be done to a volume that somebody has.
///
/// # Errors
/// `in-use`.
pub fn refuse_used(name: &str, found: Option<&Elsewhere>) -> VerbResult<()> {
    let Some(Elsewhere { pid, at }) = found else {
        return Ok(());
    };
    let message = format!(
        "volume {name} is mounted at {} of process {pid}",
        at.display()
    );
    Err(hinted(Code::InUse, message, "stop what is using it first"))
}

/// A process's root directory.
fn root_of(pid: &str) -> Option<(u64, u64)> {
    let found = std::fs::metadata(format!("/proc/{pid}/root/")).ok()?;
    Some((found.dev(), found.ino()))
}

/// What a pool at `root` costs, if its filesystem cannot share data between files.
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

/// A file that is gone when it is closed.
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
