//! Calls on files of a pool, where what is there already, or gone already, is as good as done.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::error::io_error;
use crate::engine::api::VerbResult;

/// Makes a directory, if it is not there.
pub fn make_dir(dir: &Path, mode: u32) -> VerbResult<()> {
    unless(
        DirBuilder::new().mode(mode).create(dir),
        ErrorKind::AlreadyExists,
        dir,
    )
    .map(drop)
}

/// Removes a tree, if it is there.
pub fn remove_tree(dir: &Path) -> VerbResult<()> {
    unless(fs::remove_dir_all(dir), ErrorKind::NotFound, dir).map(drop)
}

/// Removes a file, if it is there; whether it was.
pub fn remove_file(path: &Path) -> VerbResult<bool> {
    unless(fs::remove_file(path), ErrorKind::NotFound, path)
}

/// Renames, if there is something; whether there was.
pub fn move_away(from: &Path, to: &Path) -> VerbResult<bool> {
    unless(fs::rename(from, to), ErrorKind::NotFound, from)
}

/// Whether it was done; `already` is as good.
fn unless(done: io::Result<()>, already: ErrorKind, path: &Path) -> VerbResult<bool> {
    match done {
        Err(cause) if cause.kind() != already => Err(io_error(path.display(), cause)),
        done => Ok(done.is_ok()),
    }
}

/// A name in `dir` that nothing has.
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

/// Writes a file whole: under another name, synced, renamed, and the directory synced.
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
        // What stays does nothing there, and the next one takes its place.
        let _ = fs::remove_file(new);
    }
    written
}

/// Brings a change of names to the disk.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}
