//! The live tree as the history reads it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{Inodes, NodeRef, is_elsewhere};
use crate::history::present::{LiveTree, Trail, absent_beyond};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{AttrState, Child, Place};
use ckptfs_sys::{self as sys, Access, DirEntry, Errno, Kind, Stat, SysResult, Time, Xattrs};

/// Name of the store in the root directory, which is not part of the tree.
pub const STORE_NAME: &[u8] = b".ckptfs";

/// Maximum number of components of a reported path.
const PATH_NAMES_MAX: usize = 1024;

impl LiveTree for Inodes {
    fn child(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<Child>> {
        if self.through.is_some() && !(dir.slot == Slot::ROOT && name.as_bytes() == STORE_NAME) {
            return self.base().child_through(dir.into(), name);
        }
        let found = self.stat_child(dir.into(), name).or_else(absent_beyond)?;
        Ok(found.map(|(child, _)| child))
    }

    fn list(&self, dir: &Arc<Trail>) -> SysResult<Vec<(Name, Child)>> {
        let (entries, _) = self.read_dir(dir.into(), 0, usize::MAX)?;
        let ours = |name: &[u8]| {
            matches!(name, b"." | b"..") || (dir.slot == Slot::ROOT && name == STORE_NAME)
        };
        let names = entries.into_iter().filter(|(entry, _)| !ours(&entry.name));
        let names = names.map(|(entry, child)| (Name::new(&entry.name), child));
        Ok(names
            .filter(|(name, _)| !self.foreign.has(dir.slot, name))
            .collect())
    }

    fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState> {
        if let Some(attr) = self.base().attr_of_base(node.into())? {
            return Ok(attr);
        }
        let stat = self.stat(node)?;
        let target = if stat.kind == sys::Kind::Symlink {
            Some(self.read_link(node)?)
        } else {
            None
        };
        Ok(AttrState { stat, target })
    }

    fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs> {
        match self.base().xattrs_of_base(node.into())? {
            Some(xattrs) => Ok(xattrs),
            None => self
                .refused
                .noted(node.slot, self.fd(node).and_then(sys::all_xattrs)),
        }
    }

    fn open(&self, node: &Arc<Trail>) -> SysResult<File> {
        let opened = self.open_file(NodeRef::from(node), sys::Access::READ);
        self.refused.noted(node.slot, opened).map(|(file, _)| file)
    }

    fn ctime_of(&self, node: &Arc<Trail>, file: &File) -> SysResult<Time> {
        match self.base().attr_of_base(node.into())? {
            Some(attr) => Ok(attr.stat.ctime),
            None => Ok(sys::stat_fd(file)?.ctime),
        }
    }

    fn place(&self, slot: Slot) -> Option<Place> {
        let through = self.through.as_ref();
        self.likeliest_place(slot)
            .or_else(|| through?.base.place(slot))
    }

    fn renames(&self) -> Option<u64> {
        self.locks.renames()
    }
}

impl Inodes {
    /// Returns a current path of an inode; `None` if none is known.
    pub fn path_of(&self, slot: Slot) -> Option<Vec<u8>> {
        let (mut names, mut at) = (Vec::new(), slot);
        while at != Slot::ROOT {
            let place = self
                .likeliest_place(at)
                .filter(|_| names.len() < PATH_NAMES_MAX)?;
            names.push(place.name);
            at = place.parent;
        }
        names.reverse();
        let names: Vec<&[u8]> = names.iter().map(Name::as_bytes).collect();
        Some(names.join(&b'/'))
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// EINVAL if it is not a symbolic link.
    pub fn read_link<'a>(&self, at: impl Into<NodeRef<'a>>) -> SysResult<Vec<u8>> {
        let at = at.into();
        if let Some(attr) = self.base().attr_of_base(at)? {
            return attr.target.ok_or(Errno::EINVAL);
        }
        if let Some(orphan) = self.nodes.orphan(at.slot) {
            return sys::readlink_fd(&orphan);
        }
        let found = self.find(at)?;
        sys::readlink_at(&found.dir, found.name.as_bytes())
    }

    /// Returns names of a directory from an offset, as [`sys::read_dir`] does. Entries removed
    /// concurrently are omitted.
    ///
    /// # Errors
    /// ESTALE if the directory is not found.
    pub fn read_dir(
        &self,
        at: NodeRef<'_>,
        from: u64,
        count: usize,
    ) -> SysResult<(Vec<(DirEntry, Child)>, bool)> {
        if let Some(listed) = self.base().list_through(at, from, count)? {
            return Ok(listed);
        }
        let fd = self.refused.noted(at.slot, self.dir(at))?;
        let (entries, last) = self
            .refused
            .noted(at.slot, sys::read_dir(&fd, from, count))?;
        let mut names = Vec::with_capacity(entries.len());
        for entry in entries {
            let kind = match entry.kind {
                Some(kind) => kind,
                None => match sys::stat_at(&fd, &entry.name) {
                    Ok(stat) => stat.kind,
                    Err(Errno::ENOENT) => continue,
                    Err(errno) => return Err(errno),
                },
            };
            let child = Child {
                slot: self.slot_of_ino(entry.ino)?,
                kind,
            };
            names.push((entry, child));
        }
        Ok((names, last))
    }

    /// Starts writeback of a file without waiting for it, because a clone would wait. Failures are
    /// ignored: the clone reports them.
    pub fn begin_writeback(&self, slot: Slot) {
        if self.reflink
            && !self.base().is_inherited(slot)
            && let Ok((file, _)) = self.open_file(NodeRef::from(slot), Access::READ)
        {
            let _ = sys::start_writeback(&file);
        }
    }

    /// Returns the type of the inode at a name.
    ///
    /// # Errors
    /// ENOENT.
    pub fn kind_at(&self, parent: Slot, name: &Name) -> SysResult<Kind> {
        let _tree = self.locks.tree.read();
        let found = self.stat_child(parent.into(), name)?;
        found.map(|(child, _)| child.kind).ok_or(Errno::ENOENT)
    }

    /// Returns whether a name is a character device 0:0.
    pub(in crate::live) fn is_whiteout(&self, at: (Slot, &Name)) -> SysResult<bool> {
        match sys::stat_at(self.dir(at.0)?, at.1.as_bytes()) {
            Ok(stat) => Ok(stat.kind == Kind::CharDev && stat.rdev == 0),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// As [`LiveTree::child`], with the attributes of the inode.
    ///
    /// # Errors
    /// Those of stat(2), except ENOENT; EXDEV.
    pub fn stat_child(&self, dir: NodeRef<'_>, name: &Name) -> SysResult<Option<(Child, Stat)>> {
        if dir.slot == Slot::ROOT && name.as_bytes() == STORE_NAME {
            return Ok(None);
        }
        if self.through.is_some() {
            return self.base().stat_through(dir, name);
        }
        let look = |fd: Arc<OwnedFd>| sys::stat_at(fd, name.as_bytes());
        let stat = match self.refused.noted(dir.slot, self.dir(dir).and_then(look)) {
            Err(Errno::ENOENT) => return Ok(None),
            stat => stat?,
        };
        let slot = self.slot_of(&stat);
        self.foreign.note(dir.slot, name, slot == Err(Errno::EXDEV));
        let kind = stat.kind;
        Ok(Some((Child { slot: slot?, kind }, stat)))
    }

    /// Opens a regular file for reading, without access time updates where this is permitted.
    ///
    /// # Errors
    /// As [`LiveTree::open`].
    pub fn open_quietly(&self, node: &Arc<Trail>) -> SysResult<File> {
        let quietly = sys::Access {
            noatime: true,
            ..sys::Access::READ
        };
        match self.open_file(NodeRef::from(node), quietly) {
            Err(Errno::EPERM) => self.open_file(NodeRef::from(node), sys::Access::READ),
            opened => opened,
        }
        .map(|(file, _)| file)
    }

    /// Returns the disk usage of a file; `None` if it is missing or not a regular file, or if the
    /// filesystem does not report it.
    pub fn allocation(&self, slot: Slot) -> Option<sys::Allocation> {
        if self.base().is_inherited(slot) {
            return None;
        }
        let (file, _) = self
            .open_file(NodeRef::from(slot), sys::Access::READ)
            .ok()?;
        sys::allocation(&file).ok()
    }

    /// Returns the current place of an inode of this type.
    ///
    /// # Errors
    /// ESTALE if it is not found or has another type.
    pub fn locate(&self, at: NodeRef<'_>, kind: Kind) -> SysResult<Place> {
        if at.slot == Slot::ROOT || self.nodes.is_dead(at.slot) {
            return Err(Errno::ESTALE);
        }
        if let Some(inherited) = self.base().inherited(at)?.pop() {
            let is_it = self.stat(at)?.kind == kind;
            return is_it.then_some(inherited.place).ok_or(Errno::ESTALE);
        }
        let found = self.find(at)?;
        if found.stat.kind != kind {
            return Err(Errno::ESTALE);
        }
        if found.parent == Slot::STAGING && self.through.is_some() {
            return self.base().place_in_base(at);
        }
        Ok(Place {
            parent: found.parent,
            name: found.name,
        })
    }

    /// Returns all known places of an inode of this type. A file may also have unknown names.
    ///
    /// # Errors
    /// Those of stat(2), if a place could not be examined.
    pub fn locate_all(&self, at: NodeRef<'_>, kind: Kind) -> SysResult<Vec<Place>> {
        if at.slot == Slot::ROOT || self.nodes.is_dead(at.slot) {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        if self.base().is_inherited(at.slot) {
            return match self.locate(at, kind) {
                Ok(place) => Ok(vec![place]),
                Err(Errno::ESTALE) => Ok(found),
                Err(errno) => Err(errno),
            };
        }
        for place in self.places(at) {
            match self
                .dir(place.parent)
                .and_then(|dir| sys::stat_at(&dir, place.name.as_bytes()))
            {
                Ok(stat) if stat.kind == kind && self.slot_of(&stat) == Ok(at.slot) => {
                    found.push(place)
                }
                Ok(_) => {}
                Err(errno) if is_elsewhere(errno) => {}
                Err(errno) => return Err(errno),
            }
        }
        if found.is_empty() {
            match self.locate(at, kind) {
                Ok(place) => found.push(place),
                Err(Errno::ESTALE) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(found)
    }

    /// Returns whether a process may have the file open or mapped for writing. True if that cannot
    /// be excluded.
    pub fn may_be_written(&self, at: NodeRef<'_>) -> bool {
        // An inherited file is copied up before a process can write to it.
        !self.base().is_inherited(at.slot)
            && !self
                .open_file(at, Access::READ)
                .and_then(|(file, _)| sys::lease_free(&file))
                .unwrap_or(false)
    }
}
