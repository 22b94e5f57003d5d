//! Filesystem images: for a pool without a reflink-capable filesystem, and for volumes with a size
//! (docs/adr/0018-volumes.md).
//!
//! The file is sparse. An image is formatted under a temporary name and then renamed.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use super::files::sync_parent;
use super::mount_facts;
use super::tool::tool;
use ckptfs_api::{ErrorContext, VerbResult};

/// Number of attempts to get a loop device, and the pause between them.
const LOOP_TRIES: u32 = 8;
const LOOP_PAUSE: Duration = Duration::from_millis(50);

/// Creates an image of `bytes` with an empty XFS, unless it exists.
///
/// # Errors
/// No space; mkfs.xfs is missing.
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

/// Mounts an image at a directory, unless something is mounted there.
///
/// # Errors
/// No loop device, no permission, or a damaged filesystem.
pub fn mount(image: &Path, at: &Path) -> VerbResult<()> {
    if mount_facts::is_mounted(at)? {
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
            // The free loop device was taken concurrently.
            Err(error) if error.message.contains("loop device") => std::thread::sleep(LOOP_PAUSE),
            done => return done,
        }
    }
    tool("mount", &arguments)
}

/// Grows the filesystem in an image to `bytes`, whether or not it is mounted at `at`. It is never
/// shrunk.
///
/// # Errors
/// No space; xfs_growfs is missing.
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
    let mounted = mount_facts::table()?
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

/// Unmounts an image mounted by [`mount`]; this also frees the loop device.
///
/// # Errors
/// The image is in use.
pub fn unmount(at: &Path) -> VerbResult<()> {
    if mount_facts::is_mounted(at)? {
        tool("umount", &[at.as_os_str()])
    } else {
        Ok(())
    }
}
