//! Walks a directory and returns export entries, each directory before its content.

use std::os::fd::OwnedFd;

use super::dirs::{DirCache, open_below};
use ckptfs_api::ExportEntry;
use ckptfs_sys::{self as sys, Errno, Kind, OpenKind, SysResult};

/// An entry, and an `O_PATH` descriptor of its inode.
pub type WalkEntry = (ExportEntry, OwnedFd);

/// A path that cannot be read.
#[derive(Debug)]
pub struct WalkError {
    /// Its path.
    pub path: Vec<u8>,
    /// The error number.
    pub errno: Errno,
}

/// A depth-first walk of a directory. It follows no symbolic link and enters no other filesystem.
pub struct Walk {
    root: OwnedFd,
    device: u64,
    /// Directories being listed, each with its remaining names.
    open: Vec<(Vec<u8>, std::vec::IntoIter<Vec<u8>>)>,
    /// The descriptor of one of them: a deep tree could exceed RLIMIT_NOFILE.
    dir: DirCache,
    /// The directory that was returned last, to be listed next.
    enter: Option<Vec<u8>>,
    begun: bool,
}

impl Walk {
    /// Begins a walk at `root`.
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn new(root: OwnedFd) -> SysResult<Walk> {
        let device = sys::stat_fd(&root)?.dev;
        Ok(Walk {
            root,
            device,
            open: Vec::new(),
            dir: DirCache::default(),
            enter: None,
            begun: false,
        })
    }

    /// Returns the next entry with an `O_PATH` descriptor. Skips inodes that vanish during the
    /// walk.
    ///
    /// # Errors
    /// The path that cannot be read; the walk continues after it.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Result<WalkEntry, WalkError>> {
        if !self.begun {
            self.begun = true;
            self.enter = Some(Vec::new());
            let root = open_below(&self.root, b"", OpenKind::Dir);
            return Some(
                root.and_then(|fd| Ok((read(Vec::new(), &fd)?, fd)))
                    .map_err(|errno| WalkError {
                        path: Vec::new(),
                        errno,
                    }),
            );
        }
        loop {
            if let Some(path) = self.enter.take()
                && let Err(errno) = self.list(&path)
            {
                return Some(Err(WalkError { path, errno }));
            }
            let (above, names) = self.open.last_mut()?;
            let Some(name) = names.next() else {
                self.open.pop();
                continue;
            };
            let path = if above.is_empty() {
                name.clone()
            } else {
                [above.as_slice(), b"/", &name].concat()
            };
            let dir = self.dir.existing(&self.root, above);
            let fd = match dir.and_then(|dir| sys::open_path_at(dir, &name)) {
                Err(Errno::ENOENT) => continue,
                Err(errno) => return Some(Err(WalkError { path, errno })),
                Ok(fd) => fd,
            };
            let met = read(path.clone(), &fd);
            let is_dir = sys::stat_fd(&fd)
                .is_ok_and(|stat| stat.kind == Kind::Dir && stat.dev == self.device);
            if is_dir && met.is_ok() {
                self.enter = Some(path.clone());
            }
            return match met {
                Err(Errno::ENOENT) => continue,
                met => Some(
                    met.map(|entry| (entry, fd))
                        .map_err(|errno| WalkError { path, errno }),
                ),
            };
        }
    }

    fn list(&mut self, path: &[u8]) -> SysResult<()> {
        let dir = self.dir.existing(&self.root, path)?;
        let mut names: Vec<Vec<u8>> = sys::list_dir(dir)?
            .into_iter()
            .map(|entry| entry.name)
            .collect();
        names.sort();
        self.open.push((path.to_vec(), names.into_iter()));
        Ok(())
    }
}

fn read(path: Vec<u8>, fd: &OwnedFd) -> SysResult<ExportEntry> {
    let stat = sys::stat_fd(fd)?;
    let target = if stat.kind == Kind::Symlink {
        Some(sys::readlink_fd(fd)?)
    } else {
        None
    };
    Ok(ExportEntry::new(
        path,
        &stat,
        stat.ino,
        target,
        sys::all_xattrs(fd)?,
    ))
}
