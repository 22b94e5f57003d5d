//! What is really mounted, as the kernel's tables say.

use std::path::{Path, PathBuf};

use super::error::error;
use crate::engine::api::VerbResult;
use crate::fuse::{SOURCE_PREFIX, escape_source};
use crate::sys::{self, Errno, MountPoint, host};

/// A place where a tree is mounted besides the one where we put it, and a process that sees it there.
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
    sys::mounts().map_err(|cause| error("io", format!("the table of mounts: {cause}")))
}

/// What is on top at `at`, if that is a mount of ours.
pub fn ours<'a>(table: &'a [MountPoint], at: &Path) -> Option<&'a MountPoint> {
    let top = table.iter().rev().find(|mount| mount.at == at)?;
    (top.fs_type.contains("fuse") && top.source.starts_with(SOURCE_PREFIX)).then_some(top)
}

/// Whether something is mounted at `at`.
///
/// # Errors
/// The table cannot be read.
pub fn is_mounted(at: &Path) -> VerbResult<bool> {
    Ok(table()?.iter().any(|mount| mount.at == at))
}

/// Whether a mount of ours at `at` serves. One whose daemon is gone does not; one that is waiting for the next daemon is waited for.
pub fn serves(table: &[MountPoint], at: &Path) -> bool {
    let dead = || host::open_dir_path(at).and_then(sys::statfs_fd).is_err_and(|cause| matches!(cause, Errno::ENOTCONN | Errno::ECONNABORTED));
    ours(table, at).is_some() && !dead()
}

/// Where the tree in `backing` is mounted besides `mountpoint`: in containers, mostly. A namespace that was copied from ours has it at the same place, and
/// does not count: nobody has asked for it there.
pub fn elsewhere(backing: &Path, mountpoint: &Path) -> VerbResult<Vec<Elsewhere>> {
    let mut source = std::ffi::OsString::from(SOURCE_PREFIX);
    source.push(backing);
    let source = escape_source(&source);
    let found = sys::mounts_of_all(|mount| mount.fs_type.contains("fuse") && mount.source == source && mount.at != mountpoint);
    let found = found.map_err(|cause| error("io", format!("the tables of mounts: {cause}")))?;
    Ok(found.into_iter().map(|(pid, mount)| Elsewhere { pid, at: mount.at }).collect())
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
    let path =
        root.join(format!("staging/.try-{}-{:?}", std::process::id(), std::time::Instant::now()).replace(|char: char| char.is_whitespace(), ""));
    let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}
