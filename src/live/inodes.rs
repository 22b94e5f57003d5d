//! Finding an inode by its slot, and verifying that it is the one.

mod foreign;
mod inherited;
mod own;
mod present;
mod walk;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::nodes::generation_of;
use super::tables::{Dirs, HotFiles, Locks, NodeTable, Tables};
use super::through::Through;
use crate::history::present::Trail;
use crate::history::timeline::Timeline;
use crate::store::ids::{Name, Slot};
use crate::store::record::Place;
use crate::sys::lock::Mutex;
use crate::sys::{self, Errno, Kind, Open, Stat, SysResult};
use foreign::Foreign;
pub(super) use inherited::{Inheritance, Inherited};
pub(super) use walk::names_of;

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
        At {
            slot: trail.slot,
            trail: Some(trail),
        }
    }
}

impl<'a> At<'a> {
    /// The directory of one of its places.
    fn above(self, place: &Place) -> At<'a> {
        let up = self.trail.and_then(|trail| trail.up.as_ref());
        At {
            slot: place.parent,
            trail: up.filter(|up| up.slot == place.parent),
        }
    }
}

/// A directory that is looked for.
struct Level<'a> {
    at: At<'a>,
    /// Its places that are still to be tried.
    places: std::vec::IntoIter<Place>,
    /// The name at the place that is being tried.
    name: Option<Name>,
    /// Why it may be somewhere else too, or where it could not be looked for.
    unknown: Option<Errno>,
}

impl<'a> Level<'a> {
    fn of(inodes: &Inodes, at: At<'a>) -> Level<'a> {
        let (places, unknown) = inodes.places_known(at);
        Level {
            at,
            places: places.into_iter(),
            name: None,
            unknown,
        }
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
    [
        Errno::ENOENT,
        Errno::ENOTDIR,
        Errno::ESTALE,
        Errno::ELOOP,
        Errno::EXDEV,
    ]
    .contains(&errno)
}

/// Finds inodes by their slots, and looks at them.
pub struct Inodes {
    timeline: Arc<Timeline>,
    root: Arc<OwnedFd>,
    staging: Arc<OwnedFd>,
    locks: Arc<Locks>,
    nodes: Arc<NodeTable>,
    dirs: Arc<Dirs>,
    hot: Arc<HotFiles>,
    device: u64,
    root_ino: u64,
    reflink: bool,
    /// What a branch looks through to.
    through: Option<Arc<Through>>,
    /// Files that were made aside to be read.
    copies: AtomicU64,
    /// Where inodes were found that the kernel may not know.
    pub found: PlacesFound,
    foreign: Foreign,
    /// What this process may not read.
    pub refused: Refused,
}

/// Notes what this process may not read.
#[derive(Default)]
pub struct Refused(AtomicU64);

impl Refused {
    fn noted<T>(&self, slot: Slot, result: SysResult<T>) -> SysResult<T> {
        result.inspect_err(|errno| {
            if *errno == Errno::EACCES {
                self.0.store(slot.0, Ordering::Relaxed);
            }
        })
    }

    /// What was last found so since this was last asked.
    pub fn take(&self) -> Option<Slot> {
        let slot = self.0.swap(0, Ordering::Relaxed);
        (slot != 0).then_some(Slot(slot))
    }
}

/// Where inodes were found that the kernel may not know. Its mutexes are leaves.
#[derive(Default)]
pub struct PlacesFound {
    /// Inodes that a recovery looks for.
    recovered: Mutex<HashMap<Slot, Place>>,
    /// Directories that a plan goes through.
    on_the_way: Mutex<HashMap<Slot, Place>>,
}

impl PlacesFound {
    /// Notes the place of an inode that a recovery needs.
    pub(super) fn remember(&self, dir: Slot, name: &Name, slot: Slot) {
        self.recovered.lock().insert(slot, place(dir, name));
    }

    /// Notes where directories are whose entries are to be changed, in the place of those that were
    /// noted before. The caller holds the freeze lock and the tree for writing as long as they are.
    pub fn remember_ways<'a>(&self, ways: impl Iterator<Item = &'a Arc<Trail>>) {
        let found = ways.filter_map(|way| {
            let up = way.up.as_ref()?;
            Some((way.slot, place(up.slot, &way.name)))
        });
        let found = found.collect();
        *self.on_the_way.lock() = found;
    }

    fn places(&self, slot: Slot) -> impl Iterator<Item = Place> {
        let all = [&self.recovered, &self.on_the_way];
        all.into_iter()
            .filter_map(move |found| found.lock().get(&slot).cloned())
    }
}

impl Inodes {
    pub(super) fn new(tables: &Tables, stat: &Stat) -> Arc<Inodes> {
        Arc::new(Inodes {
            timeline: Arc::clone(&tables.timeline),
            root: Arc::clone(&tables.root),
            staging: Arc::clone(&tables.staging),
            locks: Arc::clone(&tables.locks),
            nodes: Arc::clone(&tables.nodes),
            dirs: Arc::clone(&tables.dirs),
            hot: Arc::clone(&tables.hot),
            device: stat.dev,
            root_ino: stat.ino,
            reflink: tables.reflink,
            through: tables.through.clone(),
            copies: AtomicU64::new(0),
            found: PlacesFound::default(),
            foreign: Foreign::default(),
            refused: Refused::default(),
        })
    }

    /// The slot of an inode by what stat(2) said of it.
    ///
    /// # Errors
    /// EXDEV if it is on another filesystem: something is mounted there, or it is another
    /// subvolume.
    pub fn slot_of(&self, stat: &Stat) -> SysResult<Slot> {
        if stat.dev != self.device {
            return Err(Errno::EXDEV);
        }
        self.slot_of_ino(stat.ino)
    }

    /// The slot of an inode of this filesystem.
    ///
    /// # Errors
    /// EOVERFLOW: a branch has no room for such numbers.
    pub fn slot_of_ino(&self, ino: u64) -> SysResult<Slot> {
        match &self.through {
            _ if ino == self.root_ino => Ok(Slot::ROOT),
            Some(through) => through.slot_of(ino),
            None => Ok(Slot(ino)),
        }
    }

    /// The names under which an inode may be found, the likeliest first.
    pub(super) fn places(&self, at: At<'_>) -> Vec<Place> {
        self.places_known(at).0
    }

    /// The first of [`Inodes::places`], at the same cost however many there are.
    pub(super) fn likeliest_place(&self, slot: Slot) -> Option<Place> {
        let first = self.known_place(slot);
        first.or_else(|| self.places(slot.into()).into_iter().next())
    }

    /// A name by which the kernel knows it.
    fn known_place(&self, slot: Slot) -> Option<Place> {
        self.nodes.lock().get(slot)?.links().next().cloned()
    }

    /// As [`Inodes::places`], and why there may be more, if history could not be asked.
    fn places_known(&self, at: At<'_>) -> (Vec<Place>, Option<Errno>) {
        let mut places: Vec<Place> = self
            .nodes
            .lock()
            .get(at.slot)
            .map(|node| node.links().cloned().collect())
            .unwrap_or_default();
        let mut unknown = None;
        if places.is_empty() {
            match self.timeline.lookup.place_or_fault(at.slot) {
                Ok(place) => places.extend(place),
                Err(errno) => unknown = Some(errno),
            }
            if let Some(Trail {
                name, up: Some(up), ..
            }) = at.trail.map(|trail| &**trail)
            {
                let place = place(up.slot, name);
                if !places.contains(&place) {
                    places.push(place);
                }
            }
            for found in self.found.places(at.slot) {
                if !places.contains(&found) {
                    places.push(found);
                }
            }
        }
        (places, unknown)
    }

    /// Finds an inode at one of its names.
    ///
    /// # Errors
    /// ESTALE if it is at none of them; another if that cannot be told.
    pub(super) fn find(&self, at: At<'_>) -> SysResult<Found> {
        // That it is nowhere must be proven: a place that could not be looked at may be where it
        // is.
        let look = |place: &Place| {
            let dir = self.dir(at.above(place))?;
            let stat = sys::stat_at(&dir, place.name.as_bytes())?;
            Ok((self.slot_of(&stat) == Ok(at.slot)).then(|| Found {
                parent: place.parent,
                dir,
                name: place.name.clone(),
                stat,
            }))
        };
        // It is nearly always at the first of them, and may have any number.
        let first = self.known_place(at.slot);
        if let Some(Ok(Some(found))) = first.as_ref().map(look) {
            return Ok(found);
        }
        let (places, mut unknown) = self.places_known(at);
        for place in places {
            match look(&place) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(errno) if is_elsewhere(errno) => {}
                Err(errno) => unknown = Some(errno),
            }
        }
        if let Some(found) = self.base().found_by_link(at.slot)? {
            return Ok(found);
        }
        tracing::debug!(
            slot = at.slot.0,
            ?unknown,
            "an inode is at none of its known names"
        );
        Err(unknown.unwrap_or(Errno::ESTALE))
    }

    /// A descriptor of a directory, for use as the base of *at() calls.
    ///
    /// # Errors
    /// ESTALE if it cannot be found, ENOTDIR if it is none; another if that cannot be told.
    pub fn dir<'a>(&self, at: impl Into<At<'a>>) -> SysResult<Arc<OwnedFd>> {
        let at = at.into();
        match self.dir_at_hand(at.slot) {
            Some(fd) => Ok(fd),
            None => self.climb(at),
        }
    }

    /// A directory whose descriptor need not be looked for.
    fn dir_at_hand(&self, slot: Slot) -> Option<Arc<OwnedFd>> {
        match slot {
            Slot::ROOT => Some(Arc::clone(&self.root)),
            Slot::STAGING => Some(Arc::clone(&self.staging)),
            _ => self.dirs.get(slot).or_else(|| self.nodes.orphan(slot)),
        }
    }

    /// Goes up from a directory to one that is at hand, and down again by names. Without recursion:
    /// a tree can be deeper than the stack.
    fn climb(&self, at: At<'_>) -> SysResult<Arc<OwnedFd>> {
        let (mut levels, mut above) = (vec![Level::of(self, at)], HashSet::from([at.slot]));
        // What became of the directory above the last level; `None`: the next place of that level
        // is to be tried.
        let mut found: Option<SysResult<Arc<OwnedFd>>> = None;
        while let Some(last) = levels.last_mut() {
            let stepped = match (found.take(), last.name.take()) {
                (Some(Ok(dir)), Some(name)) => self.step_down(last.at.slot, &dir, &name),
                (Some(Err(errno)), _) if !is_elsewhere(errno) => Err(errno),
                _ => Ok(None),
            };
            match stepped {
                Ok(None) => {}
                Err(errno) if errno != Errno::ENOTDIR => {
                    last.unknown = if is_elsewhere(errno) {
                        last.unknown
                    } else {
                        Some(errno)
                    }
                }
                settled => {
                    found = settled.transpose();
                    levels.pop();
                    continue;
                }
            }
            let Some(place) = last.places.next() else {
                found = Some(Err(last.unknown.unwrap_or(Errno::ESTALE)));
                levels.pop();
                continue;
            };
            let up = last.at.above(&place);
            last.name = Some(place.name);
            match self.dir_at_hand(up.slot) {
                Some(fd) => found = Some(Ok(fd)),
                None if above.insert(up.slot) => levels.push(Level::of(self, up)),
                // Places that are no longer true can lead in a circle.
                None => found = Some(Err(Errno::ESTALE)),
            }
        }
        found.unwrap_or(Err(Errno::ESTALE))
    }

    /// Opens a directory by name; `None` if it is not the one that is meant.
    fn step_down(&self, slot: Slot, dir: &OwnedFd, name: &Name) -> SysResult<Option<Arc<OwnedFd>>> {
        let stat = match sys::stat_at(dir, name.as_bytes()) {
            Err(errno) if is_elsewhere(errno) => return Ok(None),
            stat => stat?,
        };
        if self.slot_of(&stat) != Ok(slot) {
            return Ok(None);
        }
        if stat.kind != Kind::Dir {
            return Err(Errno::ENOTDIR);
        }
        let fd = Arc::new(sys::open_path_at(dir, name.as_bytes())?);
        if self.slot_of(&sys::stat_fd(&fd)?)? != slot {
            return Err(Errno::ESTALE);
        }
        self.dirs.put(slot, Arc::clone(&fd));
        Ok(Some(fd))
    }

    /// Attributes of an inode; `ino` is the backing filesystem's.
    ///
    /// # Errors
    /// ESTALE if it cannot be found.
    pub fn stat<'a>(&self, at: impl Into<At<'a>>) -> SysResult<Stat> {
        let at = at.into();
        if let Some(attr) = self.base().attr_of_base(at)? {
            return Ok(attr.stat);
        }
        let shown = |stat| Ok(self.base().shown(at.slot, stat));
        if at.slot == Slot::ROOT {
            return shown(sys::stat_fd(&self.root)?);
        }
        if let Some(orphan) = self.nodes.orphan(at.slot) {
            return Ok(Stat {
                nlink: 0,
                ..sys::stat_fd(&orphan)?
            });
        }
        if let Some(dir) = self.dirs.get(at.slot) {
            return shown(sys::stat_fd(&dir)?);
        }
        if let Some(file) = self.hot.file(at.slot) {
            return shown(sys::stat_fd(&*file)?);
        }
        shown(self.find(at)?.stat)
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
        if let Some(fd) = self
            .nodes
            .orphan(at.slot)
            .or_else(|| self.dirs.get(at.slot))
        {
            return Ok(fd);
        }
        if let Some(file) = self.hot.file(at.slot) {
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

    /// Refuses to change an inode that has lost its last name and was moved into a layer: it is a
    /// version of the past now. ESTALE makes the kernel look the name up again.
    pub(super) fn check_not_kept(&self, slot: Slot, fd: impl AsFd) -> SysResult<()> {
        if self.nodes.is_dead(slot) && sys::stat_fd(fd)?.nlink > 0 {
            return Err(Errno::ESTALE);
        }
        Ok(())
    }

    /// What `open` opens at the name by which the kernel knows an inode, if it is the inode that is
    /// meant: the quick way, which asks once and not before.
    fn at_known_name<T: AsFd>(
        &self,
        at: At<'_>,
        open: impl FnOnce(&OwnedFd, &[u8]) -> SysResult<T>,
    ) -> Option<(T, Stat)> {
        let place = self.known_place(at.slot)?;
        let dir = self.dir(place.parent).ok()?;
        let opened = open(&dir, place.name.as_bytes()).ok()?;
        let stat = sys::stat_fd(&opened).ok()?;
        (self.slot_of(&stat) == Ok(at.slot)).then_some((opened, stat))
    }

    /// Opens a regular file, apart from every handle.
    ///
    /// # Errors
    /// ESTALE if it cannot be found, EINVAL if it is not a regular file; those of open(2).
    pub(super) fn open_file(&self, at: At<'_>, how: Open) -> SysResult<(File, Stat)> {
        let regular = |stat: &Stat| {
            if stat.kind == Kind::File {
                Ok(())
            } else {
                Err(Errno::EINVAL)
            }
        };
        if !how.write
            && let Some(opened) = self.base().open_inherited(at)?
        {
            return Ok(opened);
        }
        if let Some(orphan) = self.nodes.orphan(at.slot) {
            let stat = sys::stat_fd(&orphan)?;
            regular(&stat)?;
            return Ok((sys::reopen(&orphan, how)?, stat));
        }
        if self
            .nodes
            .lock()
            .get(at.slot)
            .is_some_and(|node| node.kind == Kind::File)
            && let Some((file, stat)) =
                self.at_known_name(at, |dir, name| sys::open_file_at(dir, name, how))
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

    /// Finds a name in a directory, tells the kernel's table of it, and counts one look-up.
    ///
    /// # Errors
    /// ENOENT; EXDEV if another filesystem is mounted there.
    pub fn lookup(&self, parent: Slot, name: &Name) -> SysResult<(Slot, u64, Stat)> {
        let _tree = self.locks.tree.read();
        self.lookup_in(parent, name, 1)
    }

    pub(super) fn lookup_in(
        &self,
        parent: Slot,
        name: &Name,
        lookups: u64,
    ) -> SysResult<(Slot, u64, Stat)> {
        let (child, stat) = self.stat_child(parent.into(), name)?.ok_or(Errno::ENOENT)?;
        let (slot, place) = (child.slot, place(parent, name));
        let generation =
            self.nodes
                .lock()
                .learn(slot, stat.kind, generation_of(&stat), Some(&place), lookups);
        Ok((slot, generation, stat))
    }
}

/// The place of an inode as its parent and name.
pub(super) fn place(parent: Slot, name: &Name) -> Place {
    Place {
        parent,
        name: name.clone(),
    }
}

/// An inode that is found by the place that history keeps of it.
pub(super) fn at_place(slot: Slot) -> Arc<Trail> {
    Arc::new(Trail {
        slot,
        name: Name::new(b""),
        up: None,
    })
}

/// The target of a symbolic link that a descriptor names, for its attributes' record.
pub(super) fn target_of_fd(stat: &Stat, fd: impl AsFd) -> SysResult<Option<Vec<u8>>> {
    let is_link = stat.kind == Kind::Symlink;
    is_link.then(|| sys::readlink_fd(fd)).transpose()
}

/// The target of a symbolic link at a name.
pub(super) fn target_of(stat: &Stat, dir: impl AsFd, name: &Name) -> SysResult<Option<Vec<u8>>> {
    let is_link = stat.kind == Kind::Symlink;
    is_link
        .then(|| sys::readlink_at(dir, name.as_bytes()))
        .transpose()
}
