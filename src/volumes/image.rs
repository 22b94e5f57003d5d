//! Filesystems in files: a pool where there is no reflink-capable filesystem, and volumes of a
//! certain size (docs/adr/0018-volumes.md).
//!
//! The file is sparse: it takes what was written. An image is formatted under another name and
//! renamed when that is done.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use super::error::On;
use super::facts;
use super::files::sync_parent;
use super::tool::tool;
use crate::engine::api::VerbResult;

/// How often a loop device is asked for, and how long after each other.
const LOOP_TRIES: u32 = 8;
const LOOP_PAUSE: Duration = Duration::from_millis(50);

/// Makes an image of `bytes` with an empty XFS, if there is none.
///
/// # Errors
/// No room, no mkfs.xfs.
pub fn make(image: &Path, bytes: u64) -> VerbResult<()> {
    if image.exists() {
        return Ok(());
    }
    let new = image.with_extension("new");
    let made = File::create(&new)
        .and_then(|file| file.set_len(bytes))
        .on(new.display());
    let options = ["-q", "-f", "-K", "-m", "reflink=1"].map(OsStr::new);
    let formatted =
        made.and_then(|()| tool("mkfs.xfs", &[&options[..], &[new.as_os_str()]].concat()));
    let in_place = formatted.and_then(|()| {
        let renamed = File::open(&new)
            .and_then(|file| file.sync_all())
            .and_then(|()| fs::rename(&new, image))
            .and_then(|()| sync_parent(image));
        renamed.on(image.display())
    });
    if in_place.is_err() {
        let _ = fs::remove_file(&new);
    }
    in_place
}

/// Mounts an image at a directory, if nothing is mounted there.
///
/// # Errors
/// No loop device, no permission, a damaged filesystem.
pub fn mount(image: &Path, at: &Path) -> VerbResult<()> {
    if facts::is_mounted(at)? {
        return Ok(());
    }
    let arguments = [
        OsStr::new("-t"),
        OsStr::new("xfs"),
        OsStr::new("-o"),
        OsStr::new("loop,nodev"),
        image.as_os_str(),
        at.as_os_str(),
    ];
    for _ in 1..LOOP_TRIES {
        match tool("mount", &arguments) {
            // Somebody else was faster to take the device that was free.
            Err(error) if error.message.contains("loop device") => std::thread::sleep(LOOP_PAUSE),
            done => return done,
        }
    }
    tool("mount", &arguments)
}

/// Makes the filesystem in an image larger: it has `bytes` then, mounted at `at` or not. One that
/// has them already stays as it is.
///
/// # Errors
/// No room, no xfs_growfs.
pub fn grow(image: &Path, at: &Path, bytes: u64) -> VerbResult<()> {
    let file = File::options()
        .write(true)
        .open(image)
        .on(image.display())?;
    let has = file.metadata().on(image.display())?.len();
    if has < bytes {
        file.set_len(bytes)
            .and_then(|()| file.sync_all())
            .on(image.display())?;
    }
    let mounted = facts::table()?
        .into_iter()
        .rev()
        .find(|mount| mount.at == at);
    let rests = mounted.is_none();
    match mounted {
        Some(mounted) => tool("losetup", &[OsStr::new("-c"), OsStr::new(&mounted.source)])?,
        None => mount(image, at)?,
    }
    let grown = tool("xfs_growfs", &[OsStr::new("-d"), at.as_os_str()]);
    if rests { grown.and(unmount(at)) } else { grown }
}

/// Unmounts what [`mount`] has mounted; the loop device goes with it.
///
/// # Errors
/// It is in use.
pub fn unmount(at: &Path) -> VerbResult<()> {
    if facts::is_mounted(at)? {
        tool("umount", &[at.as_os_str()])
    } else {
        Ok(())
    }
}
