//! Directories below a destination, by path, and removal of trees.

use std::os::fd::{AsFd, OwnedFd};

use ckptfs_sys::{self as sys, Errno, Kind, OpenKind, SysResult};

/// Longer paths are opened in steps: the kernel's limit is 4,096 bytes (`PATH_MAX`).
const STEP_BYTES: usize = 2048;

/// Splits a path into its directory and the name in it; `None` for the root.
pub fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.is_empty() {
        return None;
    }
    Some(match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (path.get(..slash)?, path.get(slash + 1..)?),
        None => (b"", path),
    })
}

/// Opens a path below `root`; no symbolic link is followed.
///
/// # Errors
/// Those of openat2(2).
pub fn open_below(root: impl AsFd, path: &[u8], kind: OpenKind) -> SysResult<OwnedFd> {
    if path.is_empty() {
        return sys::open_beneath(root, b".", kind);
    }
    let mut rest = path;
    let mut at: Option<OwnedFd> = None;
    while rest.len() > STEP_BYTES {
        let Some(cut) = rest
            .get(..STEP_BYTES)
            .and_then(|head| head.iter().rposition(|byte| *byte == b'/'))
        else {
            break;
        };
        let head = rest.get(..cut).unwrap_or_default();
        let next = match &at {
            Some(dir) => sys::open_beneath(dir, head, OpenKind::Dir)?,
            None => sys::open_beneath(&root, head, OpenKind::Dir)?,
        };
        at = Some(next);
        rest = rest.get(cut + 1..).unwrap_or_default();
    }
    match at {
        Some(dir) => sys::open_beneath(dir, rest, kind),
        None => sys::open_beneath(root, rest, kind),
    }
}

/// Opens a directory below `root`, creating it and missing parents with mode 0700.
///
/// # Errors
/// ENOTDIR or ELOOP if a component is not a directory.
pub fn make_dirs(root: impl AsFd, path: &[u8]) -> SysResult<OwnedFd> {
    match open_below(&root, path, OpenKind::Dir) {
        Err(Errno::ENOENT) => {}
        opened => return opened,
    }
    let mut at = open_below(&root, b"", OpenKind::Dir)?;
    for name in path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
    {
        match sys::mkdir_at(&at, name, 0o700) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
        at = sys::open_dir_at(&at, name)?;
    }
    Ok(at)
}

/// Removes `name` from `dir` with everything below it; succeeds if it does not exist.
///
/// # Errors
/// Those of unlinkat(2).
pub fn remove_tree(dir: impl AsFd, name: &[u8]) -> SysResult<()> {
    match sys::unlink_at(&dir, name) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::EISDIR | Errno::EPERM) => {}
        Err(errno) => return Err(errno),
    }
    let open = |dir: &dyn AsFd, name: &[u8]| -> SysResult<OwnedFd> {
        let fd = sys::open_path_at(dir.as_fd(), name)?;
        // The caller may lack access but still own the directory.
        if sys::stat_fd(&fd)?.mode & 0o700 != 0o700 {
            sys::chmod_fd(&fd, 0o700)?;
        }
        sys::open_dir_at(dir.as_fd(), name)
    };
    // Depth first, without recursion. Each level has the name of an open directory, its descriptor,
    // and the subdirectories still to be emptied.
    let mut levels = vec![empty_files(name.to_vec(), open(&dir, name)?)?];
    while let Some(last) = levels.last_mut() {
        if let Some(next) = last.dirs.pop() {
            let below = open(&last.fd, &next)?;
            levels.push(empty_files(next, below)?);
            continue;
        }
        let Some(done) = levels.pop() else { break };
        match levels.last() {
            Some(up) => sys::rmdir_at(&up.fd, &done.name)?,
            None => sys::rmdir_at(&dir, &done.name)?,
        }
    }
    Ok(())
}

struct OpenDir {
    name: Vec<u8>,
    fd: OwnedFd,
    dirs: Vec<Vec<u8>>,
}

/// Removes all entries that are not directories.
fn empty_files(name: Vec<u8>, fd: OwnedFd) -> SysResult<OpenDir> {
    let mut dirs = Vec::new();
    for entry in sys::list_dir(&fd)? {
        let kind = match entry.kind {
            Some(kind) => kind,
            None => sys::stat_at(&fd, &entry.name)?.kind,
        };
        if kind == Kind::Dir {
            dirs.push(entry.name);
        } else {
            sys::unlink_at(&fd, &entry.name)?;
        }
    }
    Ok(OpenDir { name, fd, dirs })
}

/// A cache of the last entry's directory: consecutive entries mostly share it.
#[derive(Debug, Default)]
pub struct DirCache {
    path: Vec<u8>,
    fd: Option<OwnedFd>,
}

impl DirCache {
    /// Returns the directory at `path` below `root`, creating it if it does not exist.
    ///
    /// # Errors
    /// As [`make_dirs`].
    pub fn at(&mut self, root: impl AsFd, path: &[u8]) -> SysResult<&OwnedFd> {
        if self.fd.is_none() || self.path != path {
            self.fd = Some(make_dirs(root, path)?);
            self.path = path.to_vec();
        }
        self.fd.as_ref().ok_or(Errno::EIO)
    }

    /// As [`DirCache::at`], for an existing directory.
    ///
    /// # Errors
    /// Those of openat2(2).
    pub fn existing(&mut self, root: impl AsFd, path: &[u8]) -> SysResult<&OwnedFd> {
        if self.fd.is_none() || self.path != path {
            self.fd = Some(open_below(root, path, OpenKind::Dir)?);
            self.path = path.to_vec();
        }
        self.fd.as_ref().ok_or(Errno::EIO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_paths_are_made_opened_and_removed() {
        let dir = tempfile::tempdir().expect("directory");
        let root = sys::open_root(dir.path()).expect("open");
        let path = vec![[b'd'; 100].to_vec(); 90].join(&b'/');
        make_dirs(&root, &path).expect("made");
        open_below(&root, &path, OpenKind::Path).expect("opened");
        assert_eq!(split(b"a/b/c"), Some((b"a/b".as_slice(), b"c".as_slice())));
        assert_eq!(
            (split(b"a"), split(b"")),
            (Some((b"".as_slice(), b"a".as_slice())), None)
        );
        remove_tree(&root, &[b'd'; 100]).expect("removed");
        remove_tree(&root, b"none").expect("nothing to do");
        assert!(sys::list_dir(&root).expect("list").is_empty());
    }

    #[test]
    fn a_link_is_removed_and_not_followed() {
        let dir = tempfile::tempdir().expect("directory");
        std::fs::create_dir_all(dir.path().join("kept/x")).expect("mkdir");
        std::fs::create_dir(dir.path().join("gone")).expect("mkdir");
        std::os::unix::fs::symlink("../kept", dir.path().join("gone/link")).expect("symlink");
        let root = sys::open_root(dir.path()).expect("open");
        remove_tree(&root, b"gone").expect("removed");
        assert!(dir.path().join("kept/x").is_dir() && !dir.path().join("gone").exists());
        assert!(make_dirs(&root, b"kept/x/y").is_ok());
        std::os::unix::fs::symlink("/", dir.path().join("out")).expect("symlink");
        assert!(make_dirs(&root, b"out/y").is_err(), "a link leads nowhere");
    }
}
