//! The same content once where files cannot share extents: an object becomes another name of one
//! that holds the same.
//!
//! Only clones (`.c`) qualify: of them nothing but the bytes counts, while a moved inode *is* the
//! old inode, with its attributes. The new name is made beside and exchanged with the old one, so
//! that there is an object at every moment, and a removal that comes between is not undone. What a
//! crash leaves in `tmp/` goes at the next opening.

use super::Store;
use super::extents::same_bytes;
use super::ids::{ObjectId, ObjectOrigin};
use super::layers::file_name;
use crate::sys::{self, Errno, RenameMode, SysResult};

impl Store {
    /// Makes `target` another name of `source`, both of closed epochs, if they hold the same;
    /// whether they do.
    ///
    /// # Errors
    /// EOPNOTSUPP if one of them is no clone, or belongs to somebody else; ENOENT if one is gone;
    /// EMLINK if the source has all the names that it can have; those of linking.
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
        // It is to stand for another whose bytes are on disk.
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
