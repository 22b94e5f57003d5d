//! Bind mounts of volumes at paths given by the caller (mount(8), `--bind`).
//!
//! The kernel's mount table is the only source; nothing is recorded.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::files::make_dir;
use super::mount_facts::{self, VolumePlace};
use super::tool::tool;
use ckptfs_api::{Code, ErrorContext, VerbError, VerbResult, error, hinted, io_error};
use ckptfs_sys::{self as sys, Errno};

/// Mode of created directories.
const MODE: u32 = 0o750;
/// How long to retry an unmount while another process inspects the mount, and the pause between
/// tries.
const LOOKED_AT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// State of a mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindState {
    /// Nothing is mounted.
    Nothing,
    /// The volume is mounted and served.
    Volume {
        /// The mount is read-only.
        read_only: bool,
    },
    /// The volume is mounted, but its daemon and its holder are gone.
    Dead,
    /// Something else is mounted.
    Other,
}

/// Returns the path as in the kernel's mount table: without symbolic links, except in the last
/// component, which may be a mount that does not answer.
///
/// # Errors
/// The directory does not exist, or the path is not absolute.
pub fn real(path: &Path) -> VerbResult<PathBuf> {
    let (Some(parent), Some(name), true) = (path.parent(), path.file_name(), path.is_absolute())
    else {
        return Err(error(
            Code::BadPath,
            format!("{} is not an absolute path of a directory", path.display()),
        ));
    };
    let parent = parent.canonicalize().on(parent.display())?;
    Ok(parent.join(name))
}

/// Returns the state of `at` with respect to the volume at `place`.
///
/// # Errors
/// The mount table cannot be read.
pub fn there(place: &VolumePlace, at: &Path) -> VerbResult<BindState> {
    let table = mount_facts::table()?;
    let Some(top) = table.iter().rev().find(|mount| mount.at == at) else {
        return Ok(BindState::Nothing);
    };
    Ok(match top.serves(&place.backing) {
        false => BindState::Other,
        true if mount_facts::serves(&table, at) => BindState::Volume {
            read_only: top.read_only,
        },
        true => BindState::Dead,
    })
}

/// Returns the mount points of the volume other than its own.
///
/// # Errors
/// The mount table cannot be read.
pub fn shown(place: &VolumePlace) -> VerbResult<Vec<PathBuf>> {
    let table = mount_facts::table()?;
    let all = mount_facts::shown(&table, place).into_iter();
    let elsewhere = all.filter(|mount| mount.at != place.point);
    Ok(elsewhere.map(|mount| mount.at.clone()).collect())
}

/// Binds the volume to `at`, which is created if missing. `options` are those of mount(8). An equal
/// mount there is left unchanged.
///
/// # Errors
/// `other-mount`: something else is mounted there, or the volume with other permissions.
pub fn bind(place: &VolumePlace, at: &Path, read_only: bool, options: &[&str]) -> VerbResult<()> {
    match there(place, at)? {
        BindState::Nothing => {}
        BindState::Dead => sys::unmount(at, true).on(at.display())?,
        BindState::Volume {
            read_only: as_it_is,
        } if as_it_is == read_only => return Ok(()),
        BindState::Volume { .. } => {
            return Err(error(
                Code::OtherMount,
                format!(
                    "the volume is mounted at {} with other permissions",
                    at.display()
                ),
            ));
        }
        BindState::Other => {
            return Err(error(
                Code::OtherMount,
                format!("something else is mounted at {}", at.display()),
            ));
        }
    }
    let from =
        mount_facts::served(&mount_facts::table()?, place).ok_or_else(|| not_mounted(place))?;
    make_dir(at, MODE)?;
    // mount(8) makes both calls, the bind and its flags, and completes them even if this process
    // dies.
    let mut all = options.to_vec();
    all.extend([if read_only { "ro" } else { "rw" }, "bind"]);
    let all = all.join(",");
    let done = tool(
        "mount",
        &[
            OsStr::new("-o"),
            OsStr::new(&all),
            from.as_os_str(),
            at.as_os_str(),
        ],
    );
    // If the mount at `from` has ended since, the directory below it was bound.
    let is_shown = done.is_ok()
        && matches!(
            there(place, at)?,
            BindState::Volume { .. } | BindState::Dead
        );
    if !is_shown {
        // A partial mount is undone.
        let _ = sys::unmount(at, true);
        done?;
        return Err(not_mounted(place));
    }
    Ok(())
}

fn not_mounted(place: &VolumePlace) -> VerbError {
    hinted(
        Code::NotMounted,
        format!("{} is not mounted", place.backing.display()),
        "try again",
    )
}

/// Unmounts the volume at `at`, and nothing else. A process that inspects all mounts keeps each one
/// busy for a moment, so EBUSY is retried.
///
/// # Errors
/// The volume is in use.
pub fn unbind(place: &VolumePlace, at: &Path) -> VerbResult<()> {
    let until = Instant::now() + LOOKED_AT;
    loop {
        let lazy = match there(place, at)? {
            BindState::Nothing | BindState::Other => return Ok(()),
            BindState::Volume { .. } => false,
            BindState::Dead => true,
        };
        match sys::unmount(at, lazy) {
            // Unmounted concurrently.
            Ok(()) | Err(Errno::EINVAL) => {}
            Err(Errno::EBUSY) if Instant::now() < until => std::thread::sleep(PAUSE),
            Err(cause) => return Err(io_error(at.display(), cause)),
        }
    }
}

/// Removes the created directory, if it exists.
///
/// # Errors
/// The directory is not empty, or is a mount point.
pub fn remove_target(at: &Path) -> VerbResult<()> {
    match fs::remove_dir(at) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
            Err(io_error(at.display(), cause))
        }
        _ => Ok(()),
    }
}
