//! Creation of one inode, with content and attributes.
//!
//! Owners, devices and some extended attributes need root. Without root the copy gets the
//! attributes that the caller may set, and the rest is counted. **A set-id bit is copied only with
//! its owner**: a program that another user made set-id would otherwise run as the user who made
//! the copy.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use super::import::contents::ContentIndex;
use ckptfs_api::ExportEntry;
use ckptfs_sys::{
    self as sys, Access, Errno, Kind, SetTime, SysResult, XattrMode, Xattrs, is_own_xattr,
};

/// The access ACL, which the mode also reflects.
const ACL_NAME: &[u8] = b"system.posix_acl_access";

/// Mode bits (inode(7)).
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;

/// Creates inodes and counts lost attributes.
#[derive(Debug)]
pub struct InodeCreator {
    /// Try to clone files; cleared once cloning is unsupported.
    reflink: AtomicBool,
    /// Files cloned.
    pub cloned: AtomicU64,
    /// Files copied byte by byte.
    pub copied: AtomicU64,
    /// Bytes cloned and copied.
    pub bytes: AtomicU64,
    /// Bytes copied byte by byte.
    pub copied_bytes: AtomicU64,
    /// The error number of the last refused clone, 0 if none was refused.
    pub no_reflink: AtomicI32,
    /// Inodes whose owner could not be set.
    pub owners_lost: AtomicU64,
    /// Extended attributes that could not be set.
    pub xattrs_lost: AtomicU64,
    /// Known contents: a file with one of them shares its extents.
    pub contents: Option<ContentIndex>,
    root: bool,
}

impl Default for InodeCreator {
    fn default() -> Self {
        let none = || AtomicU64::new(0);
        InodeCreator {
            reflink: AtomicBool::new(true),
            cloned: none(),
            copied: none(),
            bytes: none(),
            copied_bytes: none(),
            no_reflink: AtomicI32::new(0),
            owners_lost: none(),
            xattrs_lost: none(),
            contents: None,
            root: sys::ids().0 == 0,
        }
    }
}

impl InodeCreator {
    /// Fills an empty file with the content of another, which has `path` in the source.
    ///
    /// # Errors
    /// Those of reading and writing.
    pub fn fill(&self, out: &File, from: &File, path: &[u8]) -> SysResult<()> {
        match &self.contents {
            Some(contents) => contents.fill(self, out, from, path),
            None => self.fill_plain(out, from, None),
        }
    }

    /// Counts a file that shares the extents of another.
    pub fn count_shared(&self, size: u64) {
        self.bytes.fetch_add(size, Ordering::Relaxed);
        self.cloned.fetch_add(1, Ordering::Relaxed);
    }

    /// As [`InodeCreator::fill`], ignoring known contents; `whole` is the content of `from` if it
    /// was read.
    ///
    /// # Errors
    /// Those of reading and writing.
    pub fn fill_plain(&self, out: &File, from: &File, whole: Option<&[u8]>) -> SysResult<()> {
        let size = super::regular(from)?.size;
        self.bytes.fetch_add(size, Ordering::Relaxed);
        if self.reflink.load(Ordering::Relaxed) {
            match sys::clone_file(from, out) {
                Ok(()) => {
                    self.cloned.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                Err(
                    errno @ (Errno::EOPNOTSUPP
                    | Errno::EXDEV
                    | Errno::EINVAL
                    | Errno::ENOTTY
                    | Errno::ENOSYS),
                ) => {
                    // The next file may be on the same filesystem.
                    self.reflink.store(errno == Errno::EXDEV, Ordering::Relaxed);
                    self.no_reflink.store(errno.0, Ordering::Relaxed);
                }
                // The filesystem supports cloning, but not of this file (EPERM: immutable; ETXTBSY:
                // swap file).
                Err(Errno::EPERM | Errno::ETXTBSY) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.copied.fetch_add(1, Ordering::Relaxed);
        self.copied_bytes.fetch_add(size, Ordering::Relaxed);
        match whole {
            Some(bytes) => sys::write_all_at(out, bytes, 0),
            None => sys::copy_data(from, out, size),
        }
    }

    /// Creates an inode that is not a directory as `name` in `dir`.
    ///
    /// # Errors
    /// EEXIST; those of creating it.
    pub fn make(
        &self,
        dir: &OwnedFd,
        name: &[u8],
        entry: &ExportEntry,
        content: Option<&File>,
    ) -> SysResult<()> {
        match entry.kind {
            Kind::File => {
                let out = sys::create_file_at(dir, name, Access::WRITE, 0o600)?;
                content.map_or(Ok(()), |from| self.fill(&out, from, &entry.path.0))?;
                return self.apply_attrs_to_file(&out, entry);
            }
            Kind::Symlink => {
                sys::symlink_at(&entry.target.as_ref().ok_or(Errno::EIO)?.0, dir, name)?
            }
            Kind::Dir => return Err(Errno::EISDIR),
            kind => sys::mknod_at(dir, name, kind, 0o600, entry.rdev)?,
        }
        self.apply_attrs(sys::open_path_at(dir, name)?, entry)
    }

    /// Replaces content and attributes of an open file in place, because it may have several names.
    ///
    /// # Errors
    /// Those of writing.
    pub fn make_again(
        &self,
        out: &File,
        entry: &ExportEntry,
        content: Option<&File>,
    ) -> SysResult<()> {
        sys::truncate(out, 0)?;
        content.map_or(Ok(()), |from| self.fill(out, from, &entry.path.0))?;
        self.apply_attrs_to_file(out, entry)
    }

    /// Applies attributes to an open file.
    fn apply_attrs_to_file(&self, out: &File, entry: &ExportEntry) -> SysResult<()> {
        let now = sys::stat_fd(out)?;
        let mut owner = (now.uid, now.gid);
        if owner != (entry.uid, entry.gid) {
            owner = self.owner_set(
                sys::set_file_owner(out, entry.uid, entry.gid),
                |gid| sys::set_file_owner(out, now.uid, gid),
                owner,
                entry,
            )?;
        }
        self.replace_xattrs(&sys::file_xattrs(out)?, entry, |name, value| match value {
            Some(value) => sys::set_file_xattr(out, name, value),
            None => sys::remove_file_xattr(out, name),
        })?;
        sys::set_file_mode(
            out,
            mode_for(owner, entry.kind, entry.mode, (entry.uid, entry.gid)),
        )?;
        sys::set_file_times(out, entry.atime(), entry.mtime())
    }

    /// Applies attributes to an inode of any kind; the descriptor may be `O_PATH`.
    ///
    /// # Errors
    /// Those of chown(2), chmod(2), setxattr(2), utimensat(2), except failures for lack of root
    /// rights.
    pub fn apply_attrs(&self, fd: impl AsFd, entry: &ExportEntry) -> SysResult<()> {
        let now = sys::stat_fd(&fd)?;
        let mut owner = (now.uid, now.gid);
        if owner != (entry.uid, entry.gid) {
            let set = sys::chown_fd(&fd, Some(entry.uid), Some(entry.gid));
            owner = self.owner_set(set, |gid| sys::chown_fd(&fd, None, Some(gid)), owner, entry)?;
        }
        // A new symbolic link has no attributes to replace.
        if entry.kind != Kind::Symlink || !entry.xattrs.is_empty() {
            self.replace_xattrs(&sys::all_xattrs(&fd)?, entry, |name, value| match value {
                Some(value) => sys::setxattr(&fd, name, value, XattrMode::Any),
                None => sys::removexattr(&fd, name),
            })?;
        }
        let mode = mode_for(owner, entry.kind, entry.mode, (entry.uid, entry.gid));
        if entry.kind != Kind::Symlink && sys::stat_fd(&fd)?.mode != mode {
            sys::chmod_fd(&fd, mode)?;
        }
        sys::utimens_fd(&fd, SetTime::At(entry.atime()), SetTime::At(entry.mtime()))
    }

    /// Evaluates a chown: without the right to it, at least the group is set if allowed. `now` is
    /// the previous owner; returns the current one.
    fn owner_set(
        &self,
        set: SysResult<()>,
        group: impl FnOnce(u32) -> SysResult<()>,
        now: Owner,
        entry: &ExportEntry,
    ) -> SysResult<Owner> {
        match set {
            Err(Errno::EPERM | Errno::EINVAL) if !self.root => {
                self.owners_lost.fetch_add(1, Ordering::Relaxed);
                Ok((
                    now.0,
                    if group(entry.gid).is_ok() {
                        entry.gid
                    } else {
                        now.1
                    },
                ))
            }
            set => set.map(|()| (entry.uid, entry.gid)),
        }
    }

    fn replace_xattrs(
        &self,
        now: &Xattrs,
        entry: &ExportEntry,
        set: impl Fn(&[u8], Option<&[u8]>) -> SysResult<()>,
    ) -> SysResult<()> {
        for (name, _) in now {
            if !is_own_xattr(name)
                && !entry.xattrs.iter().any(|(wanted, _)| wanted.0 == *name)
                && !is_the_systems(name)
            {
                match set(name, None) {
                    Ok(()) | Err(Errno::NO_XATTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        for (name, value) in &entry.xattrs {
            if is_own_xattr(&name.0)
                || now
                    .iter()
                    .any(|(known, has)| *known == name.0 && *has == value.0)
            {
                continue;
            }
            match set(&name.0, Some(&value.0)) {
                Ok(()) => {}
                Err(Errno::EPERM | Errno::EOPNOTSUPP | Errno::EINVAL) => {
                    self.xattrs_lost.fetch_add(1, Ordering::Relaxed);
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Reports whether an existing inode matches an entry, except for its content.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn is_as_told(&self, dir: &OwnedFd, name: &[u8], entry: &ExportEntry) -> SysResult<bool> {
        self.is_dressed(&sys::open_path_at(dir, name)?, entry)
    }

    /// As [`InodeCreator::is_as_told`], for a descriptor.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn is_dressed(&self, fd: &OwnedFd, entry: &ExportEntry) -> SysResult<bool> {
        is_as_told(fd, entry, self.root)
    }
}

/// User and group.
pub type Owner = (u32, u32);

/// Returns the permission bits for a copy owned by `owner`, of an inode with `mode` owned by
/// `theirs`.
pub fn mode_for(owner: Owner, kind: Kind, mode: u32, theirs: Owner) -> u32 {
    // On a directory, set-id bits do not affect execution.
    if kind == Kind::Dir {
        return mode;
    }
    let lost = if owner.0 == theirs.0 { 0 } else { SET_UID }
        | if owner.1 == theirs.1 { 0 } else { SET_GID };
    mode & !lost
}

/// Reports whether the system sets an attribute that users cannot remove.
fn is_the_systems(name: &[u8]) -> bool {
    name == b"security.selinux"
        || (name.starts_with(b"system.") && name != ACL_NAME && name != b"system.posix_acl_default")
        || name.starts_with(b"btrfs.")
}

/// As [`InodeCreator::is_as_told`], for a descriptor; compares owners if `owners` is set.
///
/// # Errors
/// Those of reading it.
pub fn is_as_told(fd: &OwnedFd, entry: &ExportEntry, owners: bool) -> SysResult<bool> {
    let stat = sys::stat_fd(fd)?;
    let mode = mode_for(
        (stat.uid, stat.gid),
        entry.kind,
        entry.mode,
        (entry.uid, entry.gid),
    );
    let linked = entry.kind == Kind::Symlink || stat.mode == mode;
    let sized = entry.kind != Kind::File || stat.size == entry.size;
    let device = !matches!(entry.kind, Kind::CharDev | Kind::BlockDev) || stat.rdev == entry.rdev;
    let owned = !owners || (stat.uid, stat.gid) == (entry.uid, entry.gid);
    if stat.kind != entry.kind
        || !linked
        || !sized
        || !device
        || !owned
        || stat.mtime != entry.mtime()
    {
        return Ok(false);
    }
    if entry.kind == Kind::Symlink
        && sys::readlink_fd(fd).ok() != entry.target.as_ref().map(|target| target.0.clone())
    {
        return Ok(false);
    }
    let mut now = sys::all_xattrs(fd)?;
    now.retain(|(name, _)| !is_own_xattr(name));
    Ok(now.len() == entry.xattrs.len()
        && now
            .iter()
            .zip(&entry.xattrs)
            .all(|(a, b)| a.0 == b.0.0 && a.1 == b.1.0))
}
