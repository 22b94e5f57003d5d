//! Lookup of inodes by slot, and verification of the result.

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

use super::branch_state::BranchState;
use super::nodes::generation_of;
use super::shared_tables::{Dirs, HotFiles, Locks, NodeTable, SharedTables};
use crate::history::present::Trail;
use crate::history::timeline::Timeline;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::Place;
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Access, Errno, Kind, Stat, SysResult};
use foreign::ForeignNames;
pub(super) use inherited::{InheritedInode, InheritedPart};
pub(super) use walk::names_of;

/// An inode, with the path by which it was reached, if known.
#[derive(Clone, Copy, Debug)]
pub struct NodeRef<'a> {
    /// The inode.
    pub slot: Slot,
    /// The path by which it was reached.
    pub trail: Option<&'a Arc<Trail>>,
}

impl From<Slot> for NodeRef<'_> {
    fn from(slot: Slot) -> Self {
        NodeRef { slot, trail: None }
    }
}

impl<'a> From<&'a Arc<Trail>> for NodeRef<'a> {
    fn from(trail: &'a Arc<Trail>) -> Self {
        NodeRef {
            slot: trail.slot,
            trail: Some(trail),
        }
    }
}

impl<'a> NodeRef<'a> {
    /// Returns the parent directory of one of its places.
    fn above(self, place: &Place) -> NodeRef<'a> {
        let up = self.trail.and_then(|trail| trail.up.as_ref());
        NodeRef {
            slot: place.parent,
            trail: up.filter(|up| up.slot == place.parent),
        }
    }
}

/// A directory on the way up, in a search.
struct ClimbLevel<'a> {
    at: NodeRef<'a>,
    /// Places that remain to be tried.
    places: std::vec::IntoIter<Place>,
    /// The name at the place being tried.
    name: Option<Name>,
    /// Error that makes the list of places, or the search in them, incomplete.
    unknown: Option<Errno>,
}

impl<'a> ClimbLevel<'a> {
    fn of(inodes: &Inodes, at: NodeRef<'a>) -> ClimbLevel<'a> {
        let (places, unknown) = inodes.places_known(at);
        ClimbLevel {
            at,
            places: places.into_iter(),
            name: None,
            unknown,
        }
    }
}

/// An inode and the directory entry at which it was found.
#[derive(Debug)]
pub(super) struct FoundInode {
    pub(super) parent: Slot,
    pub(super) dir: Arc<OwnedFd>,
    pub(super) name: Name,
    pub(super) stat: Stat,
}

/// Returns whether an error means that the inode is not at the place that was examined.
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

/// Finds inodes by slot, and reads their attributes.
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
    /// The base of a branch.
    through: Option<Arc<BranchState>>,
    /// Number of temporary files created so far.
    copies: AtomicU64,
    /// Places of inodes that the kernel may not reference.
    pub found: PlaceHints,
    foreign: ForeignNames,
    /// Inodes that this process may not read.
    pub refused: DeniedInode,
}

/// Records the last inode that this process may not read.
#[derive(Default)]
pub struct DeniedInode(AtomicU64);

impl DeniedInode {
    fn noted<T>(&self, slot: Slot, result: SysResult<T>) -> SysResult<T> {
        result.inspect_err(|errno| {
            if *errno == Errno::EACCES {
                self.0.store(slot.0, Ordering::Relaxed);
            }
        })
    }

    /// Returns the last inode refused since the previous call.
    pub fn take(&self) -> Option<Slot> {
        let slot = self.0.swap(0, Ordering::Relaxed);
        (slot != 0).then_some(Slot(slot))
    }
}

/// Places of inodes that the kernel may not reference. The mutexes are leaves.
#[derive(Default)]
pub struct PlaceHints {
    /// Inodes that a recovery looks for.
    recovered: Mutex<HashMap<Slot, Place>>,
    /// Directories on the paths of a plan.
    on_the_way: Mutex<HashMap<Slot, Place>>,
}

impl PlaceHints {
    /// Notes the place of an inode that a recovery needs.
    pub(super) fn remember(&self, dir: Slot, name: &Name, slot: Slot) {
        self.recovered.lock().insert(slot, place(dir, name));
    }

    /// Replaces the recorded places of directories whose entries are about to change. The caller
    /// holds the freeze lock and the tree for writing until those changes are made.
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
    pub(super) fn new(tables: &SharedTables, stat: &Stat) -> Arc<Inodes> {
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
            found: PlaceHints::default(),
            foreign: ForeignNames::default(),
            refused: DeniedInode::default(),
        })
    }

    /// Returns the slot of an inode with these attributes.
    ///
    /// # Errors
    /// EXDEV if it is on another filesystem: a mount point or another subvolume.
    pub fn slot_of(&self, stat: &Stat) -> SysResult<Slot> {
        if stat.dev != self.device {
            return Err(Errno::EXDEV);
        }
        self.slot_of_ino(stat.ino)
    }

    /// Returns the slot of an inode number of this filesystem.
    ///
    /// # Errors
    /// EOVERFLOW: the number is too large for a branch.
    pub fn slot_of_ino(&self, ino: u64) -> SysResult<Slot> {
        match &self.through {
            _ if ino == self.root_ino => Ok(Slot::ROOT),
            Some(through) => through.slot_of(ino),
            None => Ok(Slot(ino)),
        }
    }

    /// Returns the names under which an inode may be found, the likeliest first.
    pub(super) fn places(&self, at: NodeRef<'_>) -> Vec<Place> {
        self.places_known(at).0
    }

    /// Returns the first of [`Inodes::places`], at a cost that does not depend on their number.
    pub(super) fn likeliest_place(&self, slot: Slot) -> Option<Place> {
        let first = self.known_place(slot);
        first.or_else(|| self.places(slot.into()).into_iter().next())
    }

    /// Returns a name under which the kernel references the inode.
    fn known_place(&self, slot: Slot) -> Option<Place> {
        self.nodes.lock().get(slot)?.links().next().cloned()
    }

    /// As [`Inodes::places`], with the error of the history lookup if the list may be incomplete.
    fn places_known(&self, at: NodeRef<'_>) -> (Vec<Place>, Option<Errno>) {
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
    /// ESTALE if it is at none of them; another error if a place could not be examined.
    pub(super) fn find(&self, at: NodeRef<'_>) -> SysResult<FoundInode> {
        // ESTALE requires proof: a place that could not be examined may be the right one.
        let look = |place: &Place| {
            let dir = self.dir(at.above(place))?;
            let stat = sys::stat_at(&dir, place.name.as_bytes())?;
            Ok((self.slot_of(&stat) == Ok(at.slot)).then(|| FoundInode {
                parent: place.parent,
                dir,
                name: place.name.clone(),
                stat,
            }))
        };
        // The first name is nearly always right, and the number of names is not limited.
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

    /// Returns a descriptor of a directory, for use as the base of *at() calls.
    ///
    /// # Errors
    /// ESTALE if it is not found, ENOTDIR if it is not a directory; another error if a place could
    /// not be examined.
    pub fn dir<'a>(&self, at: impl Into<NodeRef<'a>>) -> SysResult<Arc<OwnedFd>> {
        let at = at.into();
        match self.dir_at_hand(at.slot) {
            Some(fd) => Ok(fd),
            None => self.climb(at),
        }
    }

    /// Returns a directory whose descriptor is already open.
    fn dir_at_hand(&self, slot: Slot) -> Option<Arc<OwnedFd>> {
        match slot {
            Slot::ROOT => Some(Arc::clone(&self.root)),
            Slot::STAGING => Some(Arc::clone(&self.staging)),
            _ => self.dirs.get(slot).or_else(|| self.nodes.orphan(slot)),
        }
    }

    /// Ascends from a directory to one that is open, and descends again by name. Iterative, because
    /// a tree can be deeper than the stack.
    fn climb(&self, at: NodeRef<'_>) -> SysResult<Arc<OwnedFd>> {
        let (mut levels, mut above) = (vec![ClimbLevel::of(self, at)], HashSet::from([at.slot]));
        // Result for the directory above the last level. `None`: the next place of that level is to
        // be tried.
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
                None if above.insert(up.slot) => levels.push(ClimbLevel::of(self, up)),
                // Stale places can form a cycle.
                None => found = Some(Err(Errno::ESTALE)),
            }
        }
        found.unwrap_or(Err(Errno::ESTALE))
    }

    /// Opens a directory by name; returns `None` if it has another slot.
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

    /// Returns the attributes of an inode; `ino` is that of the backing filesystem.
    ///
    /// # Errors
    /// ESTALE if it is not found.
    pub fn stat<'a>(&self, at: impl Into<NodeRef<'a>>) -> SysResult<Stat> {
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

    /// Returns an `O_PATH` descriptor of an inode of any type.
    ///
    /// # Errors
    /// ESTALE if it is not found.
    pub fn fd<'a>(&self, at: impl Into<NodeRef<'a>>) -> SysResult<Arc<OwnedFd>> {
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

    /// Rejects a change of an inode that lost its last name and was moved into a layer, where it is
    /// a stored version. ESTALE makes the kernel repeat the lookup.
    pub(super) fn check_not_kept(&self, slot: Slot, fd: impl AsFd) -> SysResult<()> {
        if self.nodes.is_dead(slot) && sys::stat_fd(fd)?.nlink > 0 {
            return Err(Errno::ESTALE);
        }
        Ok(())
    }

    /// Fast path: calls `open` at the name under which the kernel references an inode, and returns
    /// the result if it is the right inode.
    fn at_known_name<T: AsFd>(
        &self,
        at: NodeRef<'_>,
        open: impl FnOnce(&OwnedFd, &[u8]) -> SysResult<T>,
    ) -> Option<(T, Stat)> {
        let place = self.known_place(at.slot)?;
        let dir = self.dir(place.parent).ok()?;
        let opened = open(&dir, place.name.as_bytes()).ok()?;
        let stat = sys::stat_fd(&opened).ok()?;
        (self.slot_of(&stat) == Ok(at.slot)).then_some((opened, stat))
    }

    /// Opens a regular file independently of any handle.
    ///
    /// # Errors
    /// ESTALE if it is not found, EINVAL if it is not a regular file; those of open(2).
    pub(super) fn open_file(&self, at: NodeRef<'_>, how: Access) -> SysResult<(File, Stat)> {
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

    /// Looks up a name in a directory, adds the result to the node table, and counts one lookup.
    ///
    /// # Errors
    /// ENOENT; EXDEV for a mount point of another filesystem.
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

/// Returns the place with this parent and name.
pub(super) fn place(parent: Slot, name: &Name) -> Place {
    Place {
        parent,
        name: name.clone(),
    }
}

/// Returns a trail without a path, for an inode found by its place in the history.
pub(super) fn at_place(slot: Slot) -> Arc<Trail> {
    Arc::new(Trail {
        slot,
        name: Name::new(b""),
        up: None,
    })
}

/// Returns the target of a symbolic link by descriptor, for its attribute record.
pub(super) fn target_of_fd(stat: &Stat, fd: impl AsFd) -> SysResult<Option<Vec<u8>>> {
    let is_link = stat.kind == Kind::Symlink;
    is_link.then(|| sys::readlink_fd(fd)).transpose()
}

/// Returns the target of a symbolic link by name.
pub(super) fn target_of(stat: &Stat, dir: impl AsFd, name: &Name) -> SysResult<Option<Vec<u8>>> {
    let is_link = stat.kind == Kind::Symlink;
    is_link
        .then(|| sys::readlink_at(dir, name.as_bytes()))
        .transpose()
}
