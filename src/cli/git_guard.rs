//! Keeps git's hands off the store of a project while nothing is mounted. `git clean -fdx` and
//! `git stash --all` remove what is ignored, but leave what is a repository of its own
//! (is_nonbare_repository_dir, git's setup.c). So the store has an empty one in it, and the project's
//! `.git/info/exclude` names the store, without which `git add .` would fail because of that.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;

use crate::sys::{self, Errno, Kind, Open, OpenKind};

/// The project's own ignore list, which is in no commit (gitignore(5)).
const EXCLUDE: &[u8] = b".git/info/exclude";
/// The line in it.
const LINE: &str = "/.ckptfs/";
/// A longer list is left alone.
const EXCLUDE_BYTES_MAX: u64 = 1 << 20;

/// Names the store in the ignore list of the repository whose root a directory is. Whether it is
/// named there; `false` too where there is no repository, or its list is not plainly its own: a
/// link, a file with other names, or one of another user.
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
    let open = OpenKind::File(Open::READ_WRITE);
    sys::open_beneath(root, EXCLUDE, open).map(Into::into)
}

/// Makes the empty repository in a store, if it has none.
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
    match sys::create_file_at(&git, b"HEAD", Open::READ_WRITE, 0o600) {
        Err(Errno::EEXIST) => Ok(()),
        head => head?.write_all(b"ref: refs/heads/ckptfs\n"),
    }
}
