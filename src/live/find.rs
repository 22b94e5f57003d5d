//! Finding an inode by its slot, and verifying that it is the one.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::Live;
use super::nodes::generation_of;
use crate::history::present::Trail;
use crate::store::ids::{Name, Slot};
use crate::store::record::{Child, Place};
use crate::sys::{self, DirEntry, Errno, Kind, Open, Stat, SysResult};

/// Directories above each other that are looked for at most: deeper trees are served, but only from where the kernel still knows them.
const DEPTH_MAX: u32 = 1000;

/// An inode, and the way by which it was reached if that is known.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    /// The inode.
    pub slot: Slot,
    /// How it was reached.
    pub trail: Option<&'a Arc<Trail>>,
}

impl From<Slot> for At<'_> {
    fn from(slot: Slot) -> Self {
        At { slot, trail: None }
    }
}

impl<'a> From<&'a Arc<Trail>> for At<'a> {
    fn from(trail: &'a Arc<Trail>) -> Self {
        At { slot: trail.slot, trail: Some(trail) }
    }
}

/// An inode where it was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) parent: Slot,
    pub(super) dir: Arc<OwnedFd>,
    pub(super) name: Name,
    pub(super) stat: Stat,
}

/// What says that an inode is not at a place where it was looked for.
pub(super) fn is_elsewhere(errno: Errno) -> bool {
    [Errno::ENOENT, Errno::ENOTDIR, Errno::ESTALE, Errno::ELOOP, Errno::EXDEV].contains(&errno)
}

impl Live {
    /// The names under which an inode may be found, the likeliest first.
    pub(super) fn places(&self, at: At<'_>) -> Vec<Place> {
        self.places_known(at).0
    }

    /// As [`Live::places`], and why there may be more, if history could not be asked.
    fn places_known(&self, at: At<'_>) -> (Vec<Place>, Option<Errno>) {
        let mut places: Vec<Place> = self.nodes.lock().get(at.slot).map(|node| node.links().cloned().collect()).unwrap_or_default();
        let mut unknown = None;
        if places.is_empty() {
            match self.timeline.place_or_fault(at.slot) {
                Ok(place) => places.extend(place),
                Err(errno) => unknown = Some(errno),
            }
            if let Some(Trail { name, up: Some(up), .. }) = at.trail.map(|trail| &**trail) {
                let place = Place { parent: up.slot, name: name.clone() };
                if !places.contains(&place) {
                    places.push(place);
                }
            }
            let found = self.found_ahead.lock().get(&at.slot).cloned();
            places.extend(found.filter(|place| !places.contains(place)));
        }
        (places, unknown)
    }

    /// Finds an inode at one of its names.
    ///
    /// # Errors
    /// ESTALE if it is at none of them; another if that cannot be told.
    pub(super) fn find(&self, at: At<'_>) -> SysResult<Found> {
        self.find_below(at, 0)
    }

    fn find_below(&self, at: At<'_>, depth: u32) -> SysResult<Found> {
        if depth > DEPTH_MAX {
            return Err(Errno::ELOOP);
        }
        let up = at.trail.and_then(|trail| trail.up.as_ref());
        // That it is nowhere must be proven: a place that could not be looked at may be where it is.
        let (places, mut unknown) = self.places_known(at);
        for place in places {
            let parent = At { slot: place.parent, trail: up.filter(|up| up.slot == place.parent) };
            let dir = self.dir_below(parent, depth + 1);
            match dir.and_then(|dir| Ok((sys::stat_at(&dir, place.name.as_bytes())?, dir))) {
                Ok((stat, dir)) if self.slot_of(&stat) == Ok(at.slot) => return Ok(Found { parent: place.parent, dir, name: place.name, stat }),
                Ok(_) => {}
                Err(errno) if is_elsewhere(errno) => {}
                Err(errno) => unknown = Some(errno),
            }
        }
        tracing::debug!(slot = at.slot.0, ?unknown, "an inode is at none of its known names");
        Err(unknown.unwrap_or(Errno::ESTALE))
    }

    /// A descriptor of a directory, for use as the base of *at() calls.
    ///
    /// # Errors
    /// ESTALE if it cannot be found, ENOTDIR if it is none.
    pub fn dir<'a>(&self, at: impl Into<At<'a>>) -> SysResult<Arc<OwnedFd>> {
        self.dir_below(at.into(), 0)
    }

    fn dir_below(&self, at: At<'_>, depth: u32) -> SysResult<Arc<OwnedFd>> {
        match at.slot {
            Slot::ROOT => return Ok(Arc::clone(&self.root)),
            Slot::STAGING => return Ok(Arc::clone(&self.staging)),
            _ => {}
        }
        if let Some(fd) = self.dirs.get(at.slot) {
            return Ok(fd);
        }
        if let Some(orphan) = self.orphan(at.slot) {
            return Ok(orphan);
        }
        let found = self.find_below(at, depth)?;
        if found.stat.kind != Kind::Dir {
            return Err(Errno::ENOTDIR);
        }
        let fd = Arc::new(sys::open_path_at(&found.dir, found.name.as_bytes())?);
        if self.slot_of(&sys::stat_fd(&fd)?)? != at.slot {
            return Err(Errno::ESTALE);
        }
        self.dirs.put(at.slot, Arc::clone(&fd));
        Ok(fd)
    }

    pub(super) fn orphan(&self, slot: Slot) -> Option<Arc<OwnedFd>> {
        self.nodes.lock().get(slot).and_then(|node| node.orphan().cloned())
    }

    /// Attributes of an inode; `ino` is the backing filesystem's.
    ///
    /// # Errors
    /// ESTALE if it cannot be found.
    pub fn stat<'a>(&self, at: impl Into<At<'a>>) -> SysResult<Stat> {
        let at = at.into();
        if at.slot == Slot::ROOT {
            return sys::stat_fd(&self.root);
        }
        if let Some(orphan) = self.orphan(at.slot) {
            return Ok(Stat { nlink: 0, ..sys::stat_fd(&orphan)? });
        }
        if let Some(dir) = self.dirs.get(at.slot) {
            return sys::stat_fd(&dir);
        }
        if let Some(file) = self.hot_file(at.slot) {
            return sys::stat_fd(&*file);
        }
        Ok(self.find(at)?.stat)
    }

    /// A descriptor that names an inode of any kind (`O_PATH`).
    ///
    /// # Errors
    /// ESTALE if it cannot be found.
    pub fn fd<'a>(&self, at: impl Into<At<'a>>) -> SysResult<Arc<OwnedFd>> {
        let at = at.into();
        if at.slot == Slot::ROOT {
            return Ok(Arc::clone(&self.root));
        }
        if let Some(fd) = self.orphan(at.slot).or_else(|| self.dirs.get(at.slot)) {
            return Ok(fd);
        }
        if let Some(file) = self.hot_file(at.slot) {
            return Ok(Arc::new(file.try_clone()?.into()));
        }
        if let Some((fd, _)) = self.at_known_name(at, |dir, name| sys::open_path_at(dir, name)) {
            return Ok(Arc::new(fd));
        }
        let found = self.find(at)?;
        let fd = Arc::new(sys::open_path_at(&found.dir, found.name.as_bytes())?);
        if self.slot_of(&sys::stat_fd(&fd)?)? != at.slot {
            return Err(Errno::ESTALE);
        }
        Ok(fd)
    }

    /// Refuses to change an inode that has lost its last name and was moved into a layer: it is a version of the past now. ESTALE makes the kernel
    /// look the name up again.
    pub(super) fn check_not_kept(&self, slot: Slot, fd: impl AsFd) -> SysResult<()> {
        if self.is_dead(slot) && sys::stat_fd(fd)?.nlink > 0 {
            return Err(Errno::ESTALE);
        }
        Ok(())
    }

    /// What `open` opens at the name by which the kernel knows an inode, if it is the inode that is meant: the quick way, which asks once and not
    /// before.
    fn at_known_name<T: AsFd>(&self, at: At<'_>, open: impl FnOnce(&OwnedFd, &[u8]) -> SysResult<T>) -> Option<(T, Stat)> {
        let place = self.nodes.lock().get(at.slot)?.links().next()?.clone();
        let dir = self.dir(place.parent).ok()?;
        let opened = open(&dir, place.name.as_bytes()).ok()?;
        let stat = sys::stat_fd(&opened).ok()?;
        (self.slot_of(&stat) == Ok(at.slot)).then_some((opened, stat))
    }

    /// Opens a regular file, apart from every handle.
    ///
    /// # Errors
    /// ESTALE if it cannot be found, EINVAL if it is no regular file; those of open(2).
    pub(super) fn open_file(&self, at: At<'_>, how: Open) -> SysResult<(File, Stat)> {
        let regular = |stat: &Stat| if stat.kind == Kind::File { Ok(()) } else { Err(Errno::EINVAL) };
        if let Some(orphan) = self.orphan(at.slot) {
            let stat = sys::stat_fd(&orphan)?;
            regular(&stat)?;
            return Ok((sys::reopen(&orphan, how)?, stat));
        }
        if self.nodes.lock().get(at.slot).is_some_and(|node| node.kind == Kind::File)
            && let Some((file, stat)) = self.at_known_name(at, |dir, name| sys::open_file_at(dir, name, how))
        {
            regular(&stat)?;
            return Ok((file, stat));
        }
        let found = self.find(at)?;
        regular(&found.stat)?;
        let file = sys::open_file_at(&found.dir, found.name.as_bytes(), how)?;
        let stat = sys::stat_fd(&file)?;
        if self.slot_of(&stat)? != at.slot {
            return Err(Errno::ESTALE);
        }
        Ok((file, stat))
    }

    /// Names of a directory from a place on, as [`sys::read_dir`] does; what is gone meanwhile is left out.
    ///
    /// # Errors
    /// ESTALE if the directory cannot be found.
    pub fn read_dir(&self, at: At<'_>, from: u64, count: usize) -> SysResult<(Vec<(DirEntry, Child)>, bool)> {
        let fd = self.dir(at)?;
        let (entries, last) = sys::read_dir(&fd, from, count)?;
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
            let child = Child { slot: Slot(entry.ino), kind };
            names.push((entry, child));
        }
        Ok((names, last))
    }

    /// What kind of inode is at a name now.
    ///
    /// # Errors
    /// ENOENT.
    pub fn kind_at(&self, parent: Slot, name: &Name) -> SysResult<Kind> {
        let _tree = self.tree.read();
        let dir = self.dir(parent)?;
        sys::stat_at(&dir, name.as_bytes()).map(|stat| stat.kind)
    }

    /// Finds a name in a directory, tells the kernel's table of it, and counts one look-up.
    ///
    /// # Errors
    /// ENOENT; EXDEV if another filesystem is mounted there.
    pub fn lookup(&self, parent: Slot, name: &Name) -> SysResult<(Slot, u64, Stat)> {
        let _tree = self.tree.read();
        self.lookup_in(parent, name, 1)
    }

    pub(super) fn lookup_in(&self, parent: Slot, name: &Name, lookups: u64) -> SysResult<(Slot, u64, Stat)> {
        let dir = self.dir(parent)?;
        let stat = sys::stat_at(&dir, name.as_bytes())?;
        let slot = self.slot_of(&stat)?;
        let place = Place { parent, name: name.clone() };
        let generation = self.nodes.lock().learn(slot, stat.kind, generation_of(&stat), Some(&place), lookups);
        Ok((slot, generation, stat))
    }
}
