//! Own inodes of a branch: whiteouts, and the marks found when a branch is opened. See
//! [`branch_state`](super::super::branch_state).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::branch_state::{HIDDEN_PREFIX, OriginMark, hides, tells_mark};
use super::{FoundInode, InheritedPart, NodeRef};
use crate::history::present::{LiveTree, Trail};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::layout::STORE_NAME;
use ckptfs_store::record::Place;
use ckptfs_sys::{self as sys, Errno, Kind, RenameMode, SetTime, Stat, SysResult, XattrMode};

/// Inodes that their owner, who is not root, may not read, made readable temporarily; with the mode
/// to restore.
#[derive(Default)]
struct TemporaryModes(Vec<(OwnedFd, u32)>);

impl TemporaryModes {
    fn open(&mut self, dir: &OwnedFd, name: &[u8], stat: &Stat) -> SysResult<()> {
        let needed = match stat.kind {
            Kind::Dir => 0o500,
            Kind::File => 0o400,
            _ => 0,
        };
        if sys::ids().0 == 0 || stat.mode & needed == needed {
            return Ok(());
        }
        let fd = sys::open_path_at(dir, name)?;
        sys::chmod_fd(&fd, stat.mode | needed)?;
        self.0.push((fd, stat.mode));
        Ok(())
    }
}

impl Drop for TemporaryModes {
    fn drop(&mut self) {
        // A directory after its contents.
        for (fd, mode) in self.0.iter().rev() {
            let closed = sys::chmod_fd(fd, *mode);
            tracing::debug!(?closed, "what its owner may not read");
        }
    }
}

impl InheritedPart<'_> {
    /// Returns whether a name of an own directory is a whiteout.
    ///
    /// # Errors
    /// Those of stat(2), except ENOENT.
    pub(in crate::live) fn is_hidden(self, dir: &OwnedFd, name: &Name) -> SysResult<bool> {
        if self.inodes.through.is_none() {
            return Ok(false);
        }
        match sys::stat_at(dir, name.as_bytes()) {
            Ok(stat) => Ok(hides(&stat)),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Returns whether removal of a name requires a whiteout, because the base has an entry there.
    ///
    /// # Errors
    /// Those of the view.
    pub(in crate::live) fn must_hide(self, dir: NodeRef<'_>, name: &Name) -> SysResult<bool> {
        Ok(self.child_of_base(dir, name)?.is_some())
    }

    /// Checks that a name is unused. `fd` is the directory.
    ///
    /// # Errors
    /// EEXIST; EPERM for names that a branch reserves.
    pub(in crate::live) fn check_free(
        self,
        dir: NodeRef<'_>,
        fd: &OwnedFd,
        name: &Name,
    ) -> SysResult<()> {
        if self.inodes.through.is_some() && name.as_bytes().starts_with(HIDDEN_PREFIX) {
            return Err(Errno::EPERM);
        }
        match sys::stat_at(fd, name.as_bytes()) {
            Err(Errno::ENOENT) => {}
            Ok(stat) if self.inodes.through.is_some() && hides(&stat) => return Ok(()),
            Ok(_) => return Err(Errno::EEXIST),
            Err(errno) => return Err(errno),
        }
        if self.inodes.through.is_none() {
            return Ok(());
        }
        match self.child_of_base(dir, name)? {
            Some(_) => Err(Errno::EEXIST),
            None => Ok(()),
        }
    }

    /// Creates an entry in an own directory and atomically replaces the whiteout at `name` with it.
    /// The entry first gets a hidden temporary name.
    ///
    /// # Errors
    /// Those of `make` and of rename(2); the whiteout then remains.
    pub(in crate::live) fn make_over<T>(
        self,
        dir: &OwnedFd,
        name: &Name,
        make: impl FnOnce(&Name) -> SysResult<T>,
    ) -> SysResult<T> {
        let mut hidden = HIDDEN_PREFIX.to_vec();
        let number = self.inodes.copies.fetch_add(1, Ordering::Relaxed);
        hidden.extend_from_slice(number.to_string().as_bytes());
        let hidden = Name::new(&hidden);
        let made = make(&hidden)?;
        let is_dir = sys::stat_at(dir, hidden.as_bytes())?.kind == Kind::Dir;
        let (from, to) = (hidden.as_bytes(), name.as_bytes());
        let put = match is_dir {
            true => sys::rename_at(dir, from, dir, to, RenameMode::Exchange),
            false => sys::rename_at(dir, from, dir, to, RenameMode::Replace),
        };
        match (is_dir, &put) {
            // The whiteout, after the exchange.
            (true, Ok(())) => sys::unlink_at(dir, from)?,
            (true, Err(_)) => sys::rmdir_at(dir, from)?,
            (false, Ok(())) => {}
            (false, Err(_)) => sys::unlink_at(dir, from)?,
        }
        put.map(|()| made)
    }

    /// Called before an inode gets this mode: see `Through::keep_unread`.
    ///
    /// # Errors
    /// Those of finding it, and of link(2).
    pub(in crate::live) fn keep_mark(self, at: NodeRef<'_>, mode: u32) -> SysResult<()> {
        let Some(through) = self.inodes.through.as_ref() else {
            return Ok(());
        };
        if tells_mark(Kind::File, mode) || !through.has_mark_alone(at.slot) {
            return Ok(());
        }
        let found = self.inodes.find(at)?;
        through.keep_unread(at.slot, (&found.dir, found.name.as_bytes()))
    }

    /// Finds an own inode whose remaining names are all in the base.
    pub(super) fn found_by_link(self, slot: Slot) -> SysResult<Option<FoundInode>> {
        let Some(through) = self.inodes.through.as_ref() else {
            return Ok(None);
        };
        let Some(name) = through.link_of(slot) else {
            return Ok(None);
        };
        let dir = Arc::clone(through.links());
        let stat = sys::stat_at(&dir, name.as_bytes())?;
        Ok(
            (self.inodes.slot_of(&stat) == Ok(slot)).then_some(FoundInode {
                parent: Slot::STAGING,
                dir,
                name,
                stat,
            }),
        )
    }

    /// Returns a name of an own inode that exists only in the base.
    ///
    /// # Errors
    /// ESTALE: no such name is known.
    pub(super) fn place_in_base(self, at: NodeRef<'_>) -> SysResult<Place> {
        for place in self.inodes.places(at) {
            let child = self.child_through(place.parent.into(), &place.name)?;
            if child.is_some_and(|child| child.slot == at.slot) {
                return Ok(place);
            }
        }
        Err(Errno::ESTALE)
    }

    /// Returns whether a name of an own directory exists only in the base. It then leads to an own
    /// inode that has several names.
    ///
    /// # Errors
    /// Those of the view.
    pub(in crate::live) fn is_left(self, dir: NodeRef<'_>, name: &Name) -> SysResult<bool> {
        Ok(self.own_child(dir, name)? == Err(false))
    }

    /// Returns whether a directory has no names.
    ///
    /// # Errors
    /// Those of listing it.
    pub(in crate::live) fn is_empty(self, at: NodeRef<'_>) -> SysResult<bool> {
        if self.inodes.through.is_none() {
            return Ok(sys::list_dir(self.inodes.dir(at)?)?.is_empty());
        }
        Ok(self.inodes.list(&super::at_place(at.slot))?.is_empty())
    }

    /// Opens a branch. At the first open its root gets the attributes of the root in the base;
    /// later opens read the marks of its own inodes.
    ///
    /// # Errors
    /// Those of reading the branch's directory and the base, and of setting attributes.
    pub(in crate::live) fn begin_branch(self) -> SysResult<()> {
        let Some(through) = self.inodes.through.as_ref() else {
            return Ok(());
        };
        if OriginMark::of(&sys::all_xattrs(&self.inodes.root)?).is_some() {
            return self.read_marks();
        }
        let (view, root) = (through.base.view(), Trail::root());
        let (stat, xattrs) = (view.attr(&root)?.stat, view.xattrs(&root)?);
        let mark = OriginMark {
            slot: Slot::ROOT,
            btime: stat.btime,
            path: Vec::new(),
        };
        match sys::chown_fd(&self.inodes.root, Some(stat.uid), Some(stat.gid)) {
            Err(Errno::EPERM) if sys::ids().0 != 0 => {}
            owned => owned?,
        }
        sys::chmod_fd(&self.inodes.root, stat.mode)?;
        for (name, value) in xattrs.into_iter().chain([mark.xattr(Kind::Dir)?]) {
            sys::setxattr(&self.inodes.root, &name, &value, XattrMode::Any)?;
        }
        sys::utimens_fd(
            &self.inodes.root,
            SetTime::At(stat.atime),
            SetTime::At(stat.mtime),
        )
    }

    /// Finds the own inodes of a branch by their marks, and removes temporary names left by an
    /// interrupted replacement of a whiteout. The cost depends on the number of own inodes.
    ///
    /// # Errors
    /// Those of reading the branch's directory.
    fn read_marks(self) -> SysResult<()> {
        let Some(through) = self.inodes.through.as_ref() else {
            return Ok(());
        };
        let mut open = vec![
            Arc::clone(&self.inodes.root),
            Arc::clone(&self.inodes.staging),
        ];
        through.read_links()?;
        let mut below: Vec<(Arc<OwnedFd>, Vec<u8>)> = Vec::new();
        let mut opened = TemporaryModes::default();
        loop {
            let dir = match (open.pop(), below.pop()) {
                (Some(dir), None) => dir,
                (top, Some((dir, name))) => {
                    open.extend(top);
                    Arc::new(sys::open_path_at(&dir, &name)?)
                }
                (None, None) => return Ok(()),
            };
            for entry in sys::list_dir(&dir)? {
                let ours =
                    Arc::ptr_eq(&dir, &self.inodes.root) && entry.name == STORE_NAME.as_bytes();
                if ours {
                    continue;
                }
                let stat = sys::stat_at(&dir, &entry.name)?;
                if entry.name.starts_with(HIDDEN_PREFIX) {
                    let removed = match stat.kind {
                        Kind::Dir => sys::rmdir_at(&dir, &entry.name),
                        _ => sys::unlink_at(&dir, &entry.name),
                    };
                    tracing::debug!(?removed, "what was to take the place of a whiteout");
                } else if !hides(&stat) {
                    let known = stat.nlink > 1 && through.has_link(stat.ino);
                    if !known {
                        opened.open(&dir, &entry.name, &stat)?;
                    }
                    if !known
                        && let Some(mark) = OriginMark::of(&sys::all_xattrs_at(&dir, &entry.name)?)
                    {
                        through.note_marked(stat.ino, stat.kind, mark, None);
                    }
                    if stat.kind == Kind::Dir {
                        below.push((Arc::clone(&dir), entry.name));
                    }
                }
            }
        }
    }
}
