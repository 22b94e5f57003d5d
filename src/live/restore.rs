//! What a restore needs beyond the operations of the kernel. Every method here expects the freeze lock and the tree to be held for writing.

use std::fs::File;

use super::Live;
use super::find::{At, is_elsewhere};
use super::names::Made;
use crate::store::ids::Slot;
use crate::store::record::{AttrState, Place};
use crate::sys::{self, Errno, Kind, Open, SetTime, SysResult, Xattrs};

impl Live {
    /// Where an inode of this kind is now.
    ///
    /// # Errors
    /// ESTALE if it is nowhere, or is of another kind.
    pub fn locate(&self, at: At<'_>, kind: Kind) -> SysResult<Place> {
        if at.slot == Slot::ROOT || self.is_dead(at.slot) {
            return Err(Errno::ESTALE);
        }
        let found = self.find(at)?;
        if found.stat.kind != kind {
            return Err(Errno::ESTALE);
        }
        Ok(Place { parent: found.parent, name: found.name })
    }

    /// Every known place where an inode of this kind is now; a file may have names that are not known.
    ///
    /// # Errors
    /// That of stat(2), if it may be at a place that cannot be looked at.
    pub fn locate_all(&self, at: At<'_>, kind: Kind) -> SysResult<Vec<Place>> {
        if at.slot == Slot::ROOT || self.is_dead(at.slot) {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for place in self.places(at) {
            match self.dir(place.parent).and_then(|dir| sys::stat_at(&dir, place.name.as_bytes())) {
                Ok(stat) if stat.kind == kind && self.slot_of(&stat) == Ok(at.slot) => found.push(place),
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

    /// Gives an inode one more name.
    ///
    /// # Errors
    /// Those of link(2).
    pub fn link_in(&self, from: &Place, to: &Place) -> SysResult<Made> {
        let from_dir = self.dir(from.parent)?;
        let stat = sys::stat_at(&from_dir, from.name.as_bytes())?;
        self.link_found(self.slot_of(&stat)?, &from_dir, &from.name, to, 0)
    }

    /// Gives an inode the attributes and extended attributes that it had; says whether anything but times was different. A directory's entries
    /// must be in place: they change its times. `times`: and the time that it had.
    ///
    /// # Errors
    /// Those of chown(2), chmod(2), utimensat(2), setxattr(2).
    pub fn apply_attrs_in(&self, at: At<'_>, wanted: &AttrState, xattrs: &Xattrs, times: bool) -> SysResult<bool> {
        self.probe_first(at.slot)?;
        let fd = self.fd(at)?;
        let now = sys::stat_fd(&fd)?;
        let then = &wanted.stat;
        let owner = now.uid != then.uid || now.gid != then.gid;
        let mode = now.mode != then.mode && now.kind != Kind::Symlink;
        let (kept, times) = (times, times && now.mtime != then.mtime);
        if owner || mode || times {
            self.timeline.processes.touch_attr(at.slot);
            self.keep_inode(at, &fd, owner || mode)?;
        }
        // The owner first: a change of it takes file capabilities away.
        if owner {
            match sys::chown_fd(&fd, Some(then.uid), Some(then.gid)) {
                Ok(()) => self.note_owner(at.slot, then.uid),
                Err(Errno::EPERM) if sys::ids().0 != 0 => {}
                Err(errno) => return Err(errno),
            }
        }
        let different = self.replace_xattrs_in(at, xattrs)? || owner || mode;
        if mode || (owner && now.kind != Kind::Symlink) {
            self.note_mode(at.slot, then.mode);
            sys::chmod_fd(&fd, then.mode)?;
        }
        if owner || mode || times {
            sys::utimens_fd(&fd, SetTime::At(then.atime), if kept { SetTime::At(then.mtime) } else { SetTime::Omit })?;
        }
        Ok(different)
    }

    /// Gives a file with one name the time that it is now.
    ///
    /// # Errors
    /// Those of utimensat(2).
    pub fn renew_in(&self, at: At<'_>) -> SysResult<()> {
        let fd = self.fd(at)?;
        let stat = sys::stat_fd(&fd)?;
        if stat.kind != Kind::File || stat.nlink > 1 {
            return Ok(());
        }
        self.timeline.processes.touch_attr(at.slot);
        self.keep_inode(at, &fd, false)?;
        sys::utimens_fd(&fd, SetTime::Omit, SetTime::Now)
    }

    /// Somebody has a file open, or mapped, to write to it, or it cannot be known that nobody has.
    pub fn may_be_written(&self, at: At<'_>) -> bool {
        !self.open_file(at, Open::READ).and_then(|(file, _)| sys::lease_free(&file)).unwrap_or(false)
    }

    /// Gives a file the content that it had, without changing its number: it has names that are not all known.
    ///
    /// # Errors
    /// Those of open(2), write(2), ftruncate(2).
    pub fn rewrite_in(&self, at: At<'_>, source: Option<&File>, size: u64) -> SysResult<()> {
        self.probe_first(at.slot)?;
        self.void_claim(at.slot);
        let fd = self.fd(at)?;
        let file = sys::reopen(&fd, Open::READ_WRITE)?;
        self.timeline.processes.touch_data(at.slot);
        self.capture(at, &file, false)?;
        self.timeline.processes.tell_touches()?;
        sys::truncate(&file, 0)?;
        match source {
            Some(source) if self.reflink => sys::clone_file(source, &file),
            Some(source) => sys::copy_data(source, &file, size),
            None => Ok(()),
        }
    }
}
