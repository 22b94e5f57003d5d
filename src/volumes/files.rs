//! Idempotent file operations of a pool: a target already created or removed is not an error.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use ckptfs_api::{VerbResult, io_error};

/// Creates a directory unless it exists.
pub fn make_dir(dir: &Path, mode: u32) -> VerbResult<()> {
    unless(
        DirBuilder::new().mode(mode).create(dir),
        ErrorKind::AlreadyExists,
        dir,
    )
    .map(drop)
}

/// Removes a tree, if it exists.
pub fn remove_tree(dir: &Path) -> VerbResult<()> {
    unless(fs::remove_dir_all(dir), ErrorKind::NotFound, dir).map(drop)
}

/// Removes a file; returns whether it existed.
pub fn remove_file(path: &Path) -> VerbResult<bool> {
    unless(fs::remove_file(path), ErrorKind::NotFound, path)
}

/// Renames a file; returns whether it existed.
pub fn move_away(from: &Path, to: &Path) -> VerbResult<bool> {
    unless(fs::rename(from, to), ErrorKind::NotFound, from)
}

/// Returns whether a call succeeded; `already` is not an error.
fn unless(done: io::Result<()>, already: ErrorKind, path: &Path) -> VerbResult<bool> {
    match done {
        Err(cause) if cause.kind() != already => Err(io_error(path.display(), cause)),
        done => Ok(done.is_ok()),
    }
}

/// Returns a name in `dir` that is not in use.
pub fn free_name(dir: &Path, name: &str) -> PathBuf {
    let mut path = dir.join(name);
    for number in 1.. {
        if fs::symlink_metadata(&path).is_err() {
            break;
        }
        path = dir.join(format!("{name}.{number}"));
    }
    path
}

/// Writes a file atomically: to a temporary name, synced, renamed, and the directory synced.
pub fn write_whole(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = Path::new(&new);
    let written = (|| {
        let mut file = File::create(new)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(new, path)?;
        sync_parent(path)
    })();
    if written.is_err() {
        // A remaining temporary file is harmless and is overwritten by the next write.
        let _ = fs::remove_file(new);
    }
    written
}

/// Syncs the parent directory, so that a change of names is durable.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}
