//! Inherited inodes of a branch: see [`branch_state`](super::super::branch_state).

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::branch_state::{BranchState, HIDDEN_PREFIX, device_below, hides};
use super::{Inodes, NodeRef};
use crate::history::present::Trail;
use crate::history::timeline::Timeline;
use crate::history::view::{ContentLocation, OpenContent, View};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::layout::STORE_NAME;
use ckptfs_store::record::{AttrState, Child, Place};
use ckptfs_sys::{self as sys, Access, DirEntry, Errno, Kind, Stat, SysResult, Xattrs};

/// Limit of path depth, above that of any real path.
const DEPTH_MAX: usize = 1 << 20;
/// Number of attempts to copy content that the parent captures concurrently.
const COPIES_MAX: u32 = 64;
/// Files up to this size are copied by reading instead of cloning.
const READ_MAX: u64 = 128 * 1024;
/// Directory offsets: `.` and `..` come first, followed by the names of the base.
const AFTER_DOTS: u64 = 2;
/// Flag bit of the offset of an own name; the other bits are a hash of the name.
const OWN_OFFSET: u64 = 1 << 61;

/// Entries of a directory, and whether they are the last.
type DirListing = (Vec<(DirEntry, Child)>, bool);

/// The inherited part of a branch. For a tree that is not a branch all queries are negative.
#[derive(Clone, Copy)]
pub(in crate::live) struct InheritedPart<'a> {
    pub(super) inodes: &'a Inodes,
}

/// An inherited inode: its place in the branch, and its path in the base.
#[derive(Debug)]
pub(in crate::live) struct InheritedInode {
    pub(in crate::live) place: Place,
    pub(in crate::live) way: Arc<Trail>,
}

fn listed(name: &[u8], child: Child, next: u64) -> (DirEntry, Child) {
    let entry = DirEntry {
        name: name.to_vec(),
        ino: child.slot.0,
        kind: Some(child.kind),
        next,
    };
    (entry, child)
}

/// Returns the offset of an own name. If two names have the same offset, a listing may repeat the
/// first.
fn own_offset(name: &[u8]) -> u64 {
    let mut low = [0; 8];
    low.copy_from_slice(
        blake3::hash(name)
            .as_bytes()
            .first_chunk()
            .unwrap_or(&[0; 8]),
    );
    OWN_OFFSET | u64::from_le_bytes(low) >> 4
}

impl Inodes {
    /// Returns the number of bases below this tree; 0 if it is not a branch.
    pub fn level(&self) -> u64 {
        self.through
            .as_ref()
            .map_or(0, |through| through.base.level)
    }

    /// Returns whether the inode is in the tree's own directory, not in its base.
    pub fn is_own(&self, slot: Slot) -> bool {
        !self.base().is_inherited(slot)
    }

    /// Returns the history of the parent tree; `None` if this is not a branch.
    pub fn parent(&self) -> Option<&Timeline> {
        self.through.as_ref()?.base.parent()
    }

    /// Returns the inherited part of the tree.
    pub(in crate::live) fn base(&self) -> InheritedPart<'_> {
        InheritedPart { inodes: self }
    }
}

impl<'a> InheritedPart<'a> {
    pub(in crate::live) fn through(self) -> Option<&'a Arc<BranchState>> {
        self.inodes.through.as_ref()
    }

    /// Returns whether the base provides the inode.
    pub(in crate::live) fn is_inherited(self, slot: Slot) -> bool {
        self.inodes
            .through
            .as_ref()
            .is_some_and(|through| through.is_inherited(slot))
    }

    /// Returns the inherited inodes on the path from an own directory to this one, outermost first,
    /// this one last. The result is empty if the inode is own.
    ///
    /// # Errors
    /// ESTALE: it is not found, or was removed.
    pub(in crate::live) fn inherited(self, at: NodeRef<'_>) -> SysResult<Vec<InheritedInode>> {
        let Some(through) = self.inodes.through.as_ref() else {
            return Ok(Vec::new());
        };
        let (mut at, mut steps) = (at, Vec::new());
        while through.is_inherited(at.slot) {
            if steps.len() == DEPTH_MAX {
                return Err(Errno::ESTALE);
            }
            let place = self.inherited_place(at)?;
            steps.push((at.slot, place.clone()));
            at = at.above(&place);
        }
        let Some((slot, top)) = steps.last() else {
            return Ok(Vec::new());
        };
        let mut way = through.own_way(at.slot)?.ok_or(Errno::ESTALE)?;
        // A whiteout means that it was removed.
        match sys::stat_at(self.inodes.dir(at)?, top.name.as_bytes()) {
            Err(Errno::ENOENT) => {}
            Ok(_) => return Err(Errno::ESTALE),
            Err(errno) => return Err(errno),
        }
        // An own inode that was renamed and then removed is not in the base at that name.
        let there = through.base.view().child(&way, &top.name)?;
        if there.is_none_or(|child| child.slot != *slot) {
            return Err(Errno::ESTALE);
        }
        let mut found = Vec::with_capacity(steps.len());
        for (slot, place) in steps.into_iter().rev() {
            way = way.step(&place.name, slot);
            found.push(InheritedInode {
                place,
                way: Arc::clone(&way),
            });
        }
        Ok(found)
    }

    fn inherited_place(self, at: NodeRef<'_>) -> SysResult<Place> {
        if let Some(place) = self.inodes.known_place(at.slot) {
            return Ok(place);
        }
        let (places, unknown) = self.inodes.places_known(at);
        places
            .into_iter()
            .next()
            .ok_or(unknown.unwrap_or(Errno::ESTALE))
    }

    /// Returns the path of an inherited inode in the base; `None` if it is own.
    ///
    /// # Errors
    /// As [`InheritedPart::inherited`].
    pub(in crate::live) fn base_way(
        self,
        at: NodeRef<'_>,
    ) -> SysResult<Option<(&'a BranchState, Arc<Trail>)>> {
        let Some(through) = self.inodes.through.as_deref() else {
            return Ok(None);
        };
        if !through.is_inherited(at.slot) {
            return Ok(None);
        }
        // Usually the directory was looked up before.
        if let Some(way) = through.known_way(at.slot) {
            return Ok(Some((through, way)));
        }
        let place = self.inherited_place(at)?;
        if through.is_inherited(place.parent)
            && let Some(up) = through.known_way(place.parent)
        {
            return Ok(Some((through, up.step(&place.name, at.slot))));
        }
        let found = self.inherited(at)?.pop();
        // A concurrent copy-up returns `None`.
        Ok(found.map(|inherited| (through, inherited.way)))
    }

    /// Returns the path of a directory in the base whose entries are visible in this one; `None` if
    /// no such directory exists.
    ///
    /// # Errors
    /// As [`InheritedPart::inherited`].
    pub(in crate::live) fn looks_through(
        self,
        dir: NodeRef<'_>,
    ) -> SysResult<Option<(&'a BranchState, Arc<Trail>)>> {
        if let Some((through, way)) = self.base_way(dir)? {
            through.keep_way(&way);
            return Ok(Some((through, way)));
        }
        let Some(through) = self.inodes.through.as_deref() else {
            return Ok(None);
        };
        Ok(through.own_way(dir.slot)?.map(|way| (through, way)))
    }

    /// Returns the entry of the base at a name of a directory, if entries of the base are visible
    /// there.
    ///
    /// # Errors
    /// Those of the view.
    pub(in crate::live) fn child_of_base(
        self,
        dir: NodeRef<'_>,
        name: &Name,
    ) -> SysResult<Option<Child>> {
        match self.looks_through(dir)? {
            Some((through, way)) => through.base.view().child(&way, name),
            None => Ok(None),
        }
    }

    /// Returns the branch's own inode at a name. `Err` means that no own inode exists, and is
    /// `true` if a whiteout hides the name.
    pub(super) fn own_child(
        self,
        dir: NodeRef<'_>,
        name: &Name,
    ) -> SysResult<Result<(Child, Stat), bool>> {
        if self.is_inherited(dir.slot) {
            return Ok(Err(false));
        }
        // Temporary names of the branch are not part of the tree. The base may have such names.
        if name.as_bytes().starts_with(HIDDEN_PREFIX) {
            return Ok(Err(false));
        }
        let stat = match sys::stat_at(self.inodes.dir(dir)?, name.as_bytes()) {
            Ok(stat) if hides(&stat) => return Ok(Err(true)),
            Ok(stat) => stat,
            Err(Errno::ENOENT) => return Ok(Err(false)),
            Err(errno) => return Err(errno),
        };
        let (slot, kind) = (self.inodes.slot_of(&stat)?, stat.kind);
        Ok(Ok((Child { slot, kind }, self.shown(slot, stat))))
    }

    /// As `Present::child`, for a branch.
    pub(in crate::live) fn child_through(
        self,
        dir: NodeRef<'_>,
        name: &Name,
    ) -> SysResult<Option<Child>> {
        match self.own_child(dir, name)? {
            Ok((child, _)) => Ok(Some(child)),
            Err(true) => Ok(None),
            Err(false) => self.child_of_base(dir, name),
        }
    }

    /// As [`Inodes::stat_child`], for a branch.
    pub(super) fn stat_through(
        self,
        dir: NodeRef<'_>,
        name: &Name,
    ) -> SysResult<Option<(Child, Stat)>> {
        match self.own_child(dir, name)? {
            Ok(found) => Ok(Some(found)),
            Err(true) => Ok(None),
            Err(false) => {
                let Some((through, way)) = self.looks_through(dir)? else {
                    return Ok(None);
                };
                let view = through.base.view();
                let Some((child, way)) = view.step(&way, name)? else {
                    return Ok(None);
                };
                if !through.is_inherited(child.slot) {
                    return Ok(Some((child, self.inodes.stat(child.slot)?)));
                }
                let stat = view.attr(&way)?.stat;
                let ino = child.slot.0;
                Ok(Some((child, Stat { ino, ..stat })))
            }
        }
    }

    /// Returns the attributes of an inherited inode; `None` if it is own.
    pub(super) fn attr_of_base(self, at: NodeRef<'_>) -> SysResult<Option<AttrState>> {
        let Some((through, way)) = self.base_way(at)? else {
            return Ok(None);
        };
        let mut attr = through.base.view().attr(&way)?;
        attr.stat.ino = at.slot.0;
        Ok(Some(attr))
    }

    /// Returns the extended attributes of an inherited inode, sorted by name; `None` if it is own.
    pub(in crate::live) fn xattrs_of_base(self, at: NodeRef<'_>) -> SysResult<Option<Xattrs>> {
        let Some((through, way)) = self.base_way(at)? else {
            return Ok(None);
        };
        through.base.view().xattrs(&way).map(Some)
    }

    /// Returns the attributes of an own inode as users see them.
    pub(in crate::live) fn shown(self, slot: Slot, stat: Stat) -> Stat {
        match &self.inodes.through {
            Some(through) => through.shown(slot, stat),
            None => stat,
        }
    }

    /// Creates a special file that is visible with this device number.
    ///
    /// # Errors
    /// Those of mknod(2); EPERM: the branch reserves the device number.
    pub(in crate::live) fn make_node(
        self,
        (dir, name): (&OwnedFd, &[u8]),
        kind: Kind,
        mode: u32,
        rdev: u64,
    ) -> SysResult<()> {
        let rdev = match self.inodes.through {
            Some(_) => device_below(kind, rdev)?,
            None => rdev,
        };
        sys::mknod_at(dir, name, kind, mode, rdev)
    }

    /// Returns the view that the branch is based on; `None` if this is not a branch.
    pub(in crate::live) fn view(self) -> Option<View<'a>> {
        self.inodes
            .through
            .as_ref()
            .map(|through| through.base.view())
    }

    /// Opens an inherited file for reading through the view; `None` if it is own.
    ///
    /// # Errors
    /// Those of the view; EINVAL if it is not a regular file.
    pub(in crate::live) fn open_content(
        self,
        at: NodeRef<'_>,
    ) -> SysResult<Option<(OpenContent, Stat)>> {
        let Some((through, way, stat)) = self.file_of_base(at)? else {
            return Ok(None);
        };
        let content = OpenContent::open(&through.base.view(), &way)?;
        Ok(Some((content, stat)))
    }

    /// Returns path in the base and attributes of an inherited regular file; `None` if it is own.
    fn file_of_base(
        self,
        at: NodeRef<'_>,
    ) -> SysResult<Option<(&'a BranchState, Arc<Trail>, Stat)>> {
        let Some((through, way)) = self.base_way(at)? else {
            return Ok(None);
        };
        let stat = through.base.view().attr(&way)?.stat;
        if stat.kind != Kind::File {
            return Err(Errno::EINVAL);
        }
        let ino = at.slot.0;
        Ok(Some((through, way, Stat { ino, ..stat })))
    }

    /// Creates an empty, unlinked file.
    ///
    /// # Errors
    /// Those of open(2).
    pub(in crate::live) fn empty_file(self) -> SysResult<File> {
        let through = self.inodes.through.as_ref().ok_or(Errno::EIO)?;
        self.copied_aside(&through.aside, None)
    }

    /// Opens an inherited file for reading. Concurrent changes in the parent do not affect its
    /// content.
    ///
    /// # Errors
    /// Those of the view; EBUSY: the parent keeps changing the file.
    pub(super) fn open_inherited(self, at: NodeRef<'_>) -> SysResult<Option<(File, Stat)>> {
        let Some((through, way, stat)) = self.file_of_base(at)? else {
            return Ok(None);
        };
        let view = through.base.view();
        for _ in 0..COPIES_MAX {
            let (source, file) = view.open(&way)?;
            let copied = match (source, file) {
                (ContentLocation::Object(_), Some(file)) => return Ok(Some((file, stat))),
                (ContentLocation::Live, Some(file)) => {
                    let copied = self.copied_aside(&through.aside, Some((&file, stat.size)));
                    if !view.still_live(&way, Some(&file))? {
                        continue;
                    }
                    copied
                }
                _ => self.copied_aside(&through.aside, None),
            };
            return Ok(Some((copied?, stat)));
        }
        Err(Errno::EBUSY)
    }

    /// Creates an unlinked file with the content of another.
    fn copied_aside(self, aside: &OwnedFd, of: Option<(&File, u64)>) -> SysResult<File> {
        let number = self.inodes.copies.fetch_add(1, Ordering::Relaxed);
        let name = format!("peek-{number}");
        let file = sys::create_file_at(aside, name.as_bytes(), Access::READ_WRITE, 0o600)?;
        let removed = sys::unlink_at(aside, name.as_bytes());
        match of {
            // No reader or writer of the source can block this.
            Some((source, size)) if size <= READ_MAX => {
                let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
                let filled = sys::read_unlocked_at(source, &mut bytes, 0)?;
                sys::write_all_at(&file, bytes.get(..filled).unwrap_or_default(), 0)?;
            }
            Some((source, _)) if self.inodes.reflink => sys::clone_file(source, &file)?,
            Some((source, size)) => sys::copy_data(source, &file, size)?,
            None => {}
        }
        removed.map(|()| file)
    }

    /// As [`Inodes::read_dir`], for a directory in which entries of the base are visible; `None`
    /// for others.
    ///
    /// The names of the base come first, by their index there, which a concurrent copy-up does not
    /// change. Own names follow in the order of a hash. The offset of a name therefore does not
    /// depend on the other names.
    pub(super) fn list_through(
        self,
        at: NodeRef<'_>,
        from: u64,
        count: usize,
    ) -> SysResult<Option<DirListing>> {
        let Some((through, way)) = self.looks_through(at)? else {
            return Ok(None);
        };
        let base = through.base_list(&way)?;
        let mut own = self.own_names(at)?;
        let mut names = Vec::new();
        let dots = [b".".as_slice(), b".."].into_iter().zip(1_u64..);
        for (name, next) in dots.filter(|(_, next)| *next > from) {
            let (slot, kind) = (at.slot, Kind::Dir);
            names.push(listed(name, Child { slot, kind }, next));
        }
        for (at, (name, child)) in base.iter().enumerate() {
            let next = AFTER_DOTS + 1 + at as u64;
            let here = own.remove(name.as_bytes());
            if next <= from {
                continue;
            }
            match here {
                Some(None) => {}
                Some(Some(here)) => names.push(listed(name.as_bytes(), here, next)),
                None => names.push(listed(name.as_bytes(), *child, next)),
            }
        }
        let mut rest: Vec<(u64, Vec<u8>, Child)> = own
            .into_iter()
            .filter_map(|(name, child)| Some((own_offset(&name), name, child?)))
            .filter(|(next, ..)| *next > from)
            .collect();
        rest.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        names.extend(
            rest.into_iter()
                .map(|(next, name, child)| listed(&name, child, next)),
        );
        let last = names.len() <= count;
        names.truncate(count);
        Ok(Some((names, last)))
    }

    /// Returns the branch's own names in a directory, with their targets; `None` for a whiteout.
    pub(in crate::live) fn own_names(
        self,
        at: NodeRef<'_>,
    ) -> SysResult<HashMap<Vec<u8>, Option<Child>>> {
        let mut names = HashMap::new();
        if self.is_inherited(at.slot) {
            return Ok(names);
        }
        let fd = self.inodes.dir(at)?;
        for entry in sys::list_dir(&fd)? {
            let ours = at.slot == Slot::ROOT && entry.name == STORE_NAME.as_bytes();
            if ours || entry.name.starts_with(HIDDEN_PREFIX) {
                continue;
            }
            let kind = match entry.kind {
                Some(kind) if kind != Kind::CharDev => kind,
                _ => match sys::stat_at(&fd, &entry.name) {
                    Ok(stat) if hides(&stat) => {
                        names.insert(entry.name, None);
                        continue;
                    }
                    Ok(stat) => stat.kind,
                    Err(Errno::ENOENT) => continue,
                    Err(errno) => return Err(errno),
                },
            };
            let slot = self.inodes.slot_of_ino(entry.ino)?;
            names.insert(entry.name, Some(Child { slot, kind }));
        }
        Ok(names)
    }
}
