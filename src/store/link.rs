//! Deduplication where files cannot share extents: an object becomes a hard link to one with the
//! same content.
//!
//! Only clones (`.c`) qualify, of which only the bytes count; a moved inode *is* the old inode,
//! with its attributes. The new link is created in `tmp/` and exchanged with the old name, so that
//! the object always exists and a concurrent removal is not undone. Leftovers of a crash in `tmp/`
//! are removed at the next opening.

use super::Store;
use super::extents::same_bytes;
use super::ids::{ObjectId, ObjectOrigin};
use super::layers::file_name;
use ckptfs_sys::{self as sys, Errno, RenameMode, SysResult};

impl Store {
    /// Makes `target` a hard link to `source` if their contents are equal, and returns whether they
    /// are. Both must be of closed epochs.
    ///
    /// # Errors
    /// EOPNOTSUPP if one of them is not a clone, or their modes, owners or devices differ; ENOENT
    /// if one does not exist; EMLINK if the source has the maximum number of links; those of
    /// link(2).
    pub fn link_same(&self, source: ObjectId, target: ObjectId) -> SysResult<bool> {
        if source.origin != ObjectOrigin::Cloned || target.origin != ObjectOrigin::Cloned {
            return Err(Errno::EOPNOTSUPP);
        }
        let open = |object| self.layers.open(object).map_err(|error| error.errno());
        let (from, to) = (open(source)?, open(target)?);
        let (a, b) = (sys::stat_fd(&from)?, sys::stat_fd(&to)?);
        if (a.mode, a.uid, a.gid, a.dev) != (b.mode, b.uid, b.gid, b.dev) {
            return Err(Errno::EOPNOTSUPP);
        }
        if a.ino == b.ino {
            return Ok(true);
        }
        if !same_bytes(&from, &to)? {
            return Ok(false);
        }
        // It replaces an object whose bytes are on disk.
        sys::fsync(&from)?;
        let tmp = self.layout.tmp_dir().map_err(|error| error.errno())?;
        let beside = format!("same-{}-{}", target.epoch.0, file_name(target));
        let place = |object| self.layers.location(object).map_err(|error| error.errno());
        let ((from_dir, from_name), (to_dir, to_name)) = (place(source)?, place(target)?);
        remove(tmp, &beside)?;
        sys::link_at(&*from_dir, from_name.as_bytes(), tmp, beside.as_bytes())?;
        let exchanged = sys::rename_at(
            tmp,
            beside.as_bytes(),
            &*to_dir,
            to_name.as_bytes(),
            RenameMode::Exchange,
        );
        let removed = remove(tmp, &beside);
        exchanged.and(removed).map(|()| true)
    }
}

fn remove(dir: impl std::os::fd::AsFd, name: &str) -> SysResult<()> {
    match sys::unlink_at(dir, name.as_bytes()) {
        Err(Errno::ENOENT) => Ok(()),
        removed => removed,
    }
}
