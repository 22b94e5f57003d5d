//! Protects the store of a project from git while nothing is mounted. `git clean -fdx` and `git
//! stash --all` remove ignored files, but not a nested repository (is_nonbare_repository_dir, git's
//! setup.c). The store therefore contains an empty repository. The project's `.git/info/exclude`
//! names the store, because `git add .` would fail on a nested repository that is not ignored.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;

use ckptfs_sys::{self as sys, Access, Errno, Kind, OpenKind};

/// The local ignore list of a repository, which is never committed (gitignore(5)).
const EXCLUDE: &[u8] = b".git/info/exclude";
/// The line for the store.
const LINE: &str = "/.ckptfs/";
/// A longer list is not changed.
const EXCLUDE_BYTES_MAX: u64 = 1 << 20;

/// Adds the store to the ignore list of the repository at `root`, and returns whether the list
/// names it. Returns `false` without a repository, and for a list that is too long, a link, a file
/// with several names, or a file of another user.
///
/// # Errors
/// Those of reading and writing the list.
pub fn exclude_store(root: impl AsFd) -> io::Result<bool> {
    let repository = match sys::stat_at(&root, b".git") {
        Ok(stat) if stat.kind == Kind::Dir => stat,
        Ok(_) | Err(Errno::ENOENT) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    };
    let mut file = match open_list(&root) {
        Ok(file) => file,
        Err(Errno::ENOENT | Errno::ELOOP | Errno::ENOTDIR) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    };
    let stat = sys::stat_fd(&file)?;
    let is_plain = stat.kind == Kind::File && stat.nlink == 1 && stat.uid == repository.uid;
    if !is_plain || stat.size > EXCLUDE_BYTES_MAX {
        return Ok(false);
    }
    let mut text = Vec::new();
    Read::by_ref(&mut file)
        .take(EXCLUDE_BYTES_MAX)
        .read_to_end(&mut text)?;
    let is_it = |line: &[u8]| line.trim_ascii() == LINE.as_bytes();
    if text.split(|byte| *byte == b'\n').any(is_it) {
        return Ok(true);
    }
    let begin = if text.is_empty() || text.ends_with(b"\n") {
        ""
    } else {
        "\n"
    };
    file.seek(SeekFrom::End(0))?;
    file.write_all(format!("{begin}{LINE}\n").as_bytes())?;
    Ok(true)
}

fn open_list(root: impl AsFd) -> Result<std::fs::File, Errno> {
    let open = OpenKind::File(Access::READ_WRITE);
    sys::open_beneath(root, EXCLUDE, open).map(Into::into)
}

/// Creates the empty repository in a store, if missing.
///
/// # Errors
/// Those of mkdir(2) and write(2).
pub fn make_repository(store: impl AsFd) -> io::Result<()> {
    let make = |dir: &dyn AsFd, name: &[u8]| match sys::mkdir_at(dir.as_fd(), name, 0o700) {
        Err(Errno::EEXIST) => Ok(()),
        made => made,
    };
    make(&store, b".git")?;
    let git = sys::open_dir_at(&store, b".git")?;
    make(&git, b"objects")?;
    make(&git, b"refs")?;
    match sys::create_file_at(&git, b"HEAD", Access::READ_WRITE, 0o600) {
        Err(Errno::EEXIST) => Ok(()),
        head => head?.write_all(b"ref: refs/heads/ckptfs\n"),
    }
}
