//! Volumes shown at places that somebody else names (mount(8), `--bind`).
//!
//! What is shown where is what the kernel's table says; nothing of it is recorded.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::error::{On, error, hinted, io_error};
use super::facts::{self, Place};
use super::files::make_dir;
use super::tool::tool;
use crate::engine::api::{Code, VerbError, VerbResult};
use crate::sys::{self, Errno};

/// Mode of the directories that are made.
const MODE: u32 = 0o750;
/// How long somebody may be in a mount who only looks at it, and how often to see.
const LOOKED_AT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// What is at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum There {
    /// Nothing is mounted.
    Nothing,
    /// The volume, served.
    Volume {
        /// Nobody can write there.
        read_only: bool,
    },
    /// What was the volume, and answers no more: its daemon and its holder are gone.
    Dead,
    /// Something else.
    Other,
}

/// The path as the kernel's table has it: without links, but for the last name, which may be a
/// mount that does not answer.
///
/// # Errors
/// Its directory is not there; it is not absolute.
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

/// What is at `at`, with respect to the volume in `place`.
///
/// # Errors
/// The table of mounts cannot be read.
pub fn there(place: &Place, at: &Path) -> VerbResult<There> {
    let table = facts::table()?;
    let Some(top) = table.iter().rev().find(|mount| mount.at == at) else {
        return Ok(There::Nothing);
    };
    Ok(match top.serves(&place.backing) {
        false => There::Other,
        true if facts::serves(&table, at) => There::Volume {
            read_only: top.read_only,
        },
        true => There::Dead,
    })
}

/// The places where the volume is shown besides its own.
///
/// # Errors
/// The table of mounts cannot be read.
pub fn shown(place: &Place) -> VerbResult<Vec<PathBuf>> {
    let table = facts::table()?;
    let all = facts::shown(&table, place).into_iter();
    let elsewhere = all.filter(|mount| mount.at != place.point);
    Ok(elsewhere.map(|mount| mount.at.clone()).collect())
}

/// Shows the volume at `at`, which is made if it is not there. `options` are those of mount(8).
/// What is shown there alike is left as it is.
///
/// # Errors
/// `other-mount`: something else is mounted there, or the volume with other rights.
pub fn bind(place: &Place, at: &Path, read_only: bool, options: &[&str]) -> VerbResult<()> {
    match there(place, at)? {
        There::Nothing => {}
        There::Dead => sys::unmount(at, true).on(at.display())?,
        There::Volume {
            read_only: as_it_is,
        } if as_it_is == read_only => return Ok(()),
        There::Volume { .. } => {
            return Err(error(
                Code::OtherMount,
                format!(
                    "the volume is mounted at {} with other permissions",
                    at.display()
                ),
            ));
        }
        There::Other => {
            return Err(error(
                Code::OtherMount,
                format!("something else is mounted at {}", at.display()),
            ));
        }
    }
    let from = facts::served(&facts::table()?, place).ok_or_else(|| not_mounted(place))?;
    make_dir(at, MODE)?;
    // Both calls of it, the bind and its flags, are done by mount(8), whatever becomes of us
    // meanwhile.
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
    // The mount at `from` may have ended since: then the directory below it was bound.
    let is_shown = done.is_ok() && matches!(there(place, at)?, There::Volume { .. } | There::Dead);
    if !is_shown {
        // Nothing half done is taken for what was asked.
        let _ = sys::unmount(at, true);
        done?;
        return Err(not_mounted(place));
    }
    Ok(())
}

fn not_mounted(place: &Place) -> VerbError {
    hinted(
        Code::NotMounted,
        format!("{} is not mounted", place.backing.display()),
        "try again",
    )
}

/// Takes away whatever is shown of the volume at `at`; nothing else. Who looks at all mounts there
/// are is in each for a moment: that is waited for.
///
/// # Errors
/// It is in use.
pub fn unbind(place: &Place, at: &Path) -> VerbResult<()> {
    let until = Instant::now() + LOOKED_AT;
    loop {
        let lazy = match there(place, at)? {
            There::Nothing | There::Other => return Ok(()),
            There::Volume { .. } => false,
            There::Dead => true,
        };
        match sys::unmount(at, lazy) {
            // Somebody else was faster.
            Ok(()) | Err(Errno::EINVAL) => {}
            Err(Errno::EBUSY) if Instant::now() < until => std::thread::sleep(PAUSE),
            Err(cause) => return Err(io_error(at.display(), cause)),
        }
    }
}

/// Removes the directory that was made, if it is there.
///
/// # Errors
/// There is something in it, or it is mounted.
pub fn remove_target(at: &Path) -> VerbResult<()> {
    match fs::remove_dir(at) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
            Err(io_error(at.display(), cause))
        }
        _ => Ok(()),
    }
}
