//! What a branch shows where it has nothing of its own: see [`through`](super::super::through).

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::through::{HIDDEN_PREFIX, Through, device_below, hides};
use super::{At, Inodes};
use crate::history::present::Trail;
use crate::history::timeline::Timeline;
use crate::history::view::{OpenContent, Source, View};
use crate::store::ids::{Name, Slot};
use crate::store::layout::STORE_NAME;
use crate::store::record::{AttrState, Child, Place};
use crate::sys::{self, DirEntry, Errno, Kind, Open, Stat, SysResult, Xattrs};

/// Directories above an inode: more than any path has.
const DEPTH_MAX: usize = 1 << 20;
/// How often content is copied that is captured meanwhile.
const COPIES_MAX: u32 = 64;
/// A file of so many bytes is read, and not cloned, to be read elsewhere.
const READ_MAX: u64 = 128 * 1024;
/// Offsets in a listing: `.` and `..` come first, the names of the base behind them.
const AFTER_DOTS: u64 = 2;
/// The offset of an own name is made from the name, with this bit.
const OWN_OFFSET: u64 = 1 << 61;

/// Names of a directory, and whether none comes after them.
type Listing = (Vec<(DirEntry, Child)>, bool);

/// What of a branch is answered by its base. Of a tree that is no branch it is nothing.
#[derive(Clone, Copy)]
pub(in crate::live) struct Inheritance<'a> {
    pub(super) inodes: &'a Inodes,
}

/// An inherited inode: where it is, and the way to it in the base.
#[derive(Debug)]
pub(in crate::live) struct Inherited {
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

/// The offset of an own name. Where two names share one, a listing may repeat the first.
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
    /// How many bases deep this tree is; 0: it looks through to nothing.
    pub fn level(&self) -> u64 {
        self.through
            .as_ref()
            .map_or(0, |through| through.base.level)
    }

    /// The tree has an inode for it, and does not look through to it.
    pub fn is_own(&self, slot: Slot) -> bool {
        !self.base().is_inherited(slot)
    }

    /// The history of the tree that this is a branch of; `None`: it is no branch.
    pub fn parent(&self) -> Option<&Timeline> {
        self.through.as_ref()?.base.parent()
    }

    /// What is inherited.
    pub(in crate::live) fn base(&self) -> Inheritance<'_> {
        Inheritance { inodes: self }
    }
}

impl<'a> Inheritance<'a> {
    pub(in crate::live) fn through(self) -> Option<&'a Arc<Through>> {
        self.inodes.through.as_ref()
    }

    /// The branch has no inode for it yet.
    pub(in crate::live) fn is_inherited(self, slot: Slot) -> bool {
        self.inodes
            .through
            .as_ref()
            .is_some_and(|through| through.is_inherited(slot))
    }

    /// The inherited inodes on the way from an own directory to this one, outermost first, this one
    /// last; none: it is own.
    ///
    /// # Errors
    /// ESTALE: it cannot be found, or is gone.
    pub(in crate::live) fn inherited(self, at: At<'_>) -> SysResult<Vec<Inherited>> {
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
        // A whiteout says that it is gone.
        match sys::stat_at(self.inodes.dir(at)?, top.name.as_bytes()) {
            Err(Errno::ENOENT) => {}
            Ok(_) => return Err(Errno::ESTALE),
            Err(errno) => return Err(errno),
        }
        // What was own, had got another name and was removed is not in the base under that.
        let there = through.base.view().child(&way, &top.name)?;
        if there.is_none_or(|child| child.slot != *slot) {
            return Err(Errno::ESTALE);
        }
        let mut found = Vec::with_capacity(steps.len());
        for (slot, place) in steps.into_iter().rev() {
            way = way.step(&place.name, slot);
            found.push(Inherited {
                place,
                way: Arc::clone(&way),
            });
        }
        Ok(found)
    }

    fn inherited_place(self, at: At<'_>) -> SysResult<Place> {
        if let Some(place) = self.inodes.known_place(at.slot) {
            return Ok(place);
        }
        let (places, unknown) = self.inodes.places_known(at);
        places
            .into_iter()
            .next()
            .ok_or(unknown.unwrap_or(Errno::ESTALE))
    }

    /// The way to an inherited inode in the base; `None`: it is own.
    ///
    /// # Errors
    /// As [`Inheritance::inherited`].
    pub(in crate::live) fn base_way(
        self,
        at: At<'_>,
    ) -> SysResult<Option<(&'a Through, Arc<Trail>)>> {
        let Some(through) = self.inodes.through.as_deref() else {
            return Ok(None);
        };
        if !through.is_inherited(at.slot) {
            return Ok(None);
        }
        // Nearly always the directory was asked for before.
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
        // It was copied up meanwhile.
        Ok(found.map(|inherited| (through, inherited.way)))
    }

    /// The way in the base to what a directory shows where it has nothing of its own; `None`:
    /// nothing.
    ///
    /// # Errors
    /// As [`Inheritance::inherited`].
    pub(in crate::live) fn looks_through(
        self,
        dir: At<'_>,
    ) -> SysResult<Option<(&'a Through, Arc<Trail>)>> {
        if let Some((through, way)) = self.base_way(dir)? {
            through.keep_way(&way);
            return Ok(Some((through, way)));
        }
        let Some(through) = self.inodes.through.as_deref() else {
            return Ok(None);
        };
        Ok(through.own_way(dir.slot)?.map(|way| (through, way)))
    }

    /// What the base has at a name of a directory that looks through.
    ///
    /// # Errors
    /// Those of the view.
    pub(in crate::live) fn child_of_base(
        self,
        dir: At<'_>,
        name: &Name,
    ) -> SysResult<Option<Child>> {
        match self.looks_through(dir)? {
            Some((through, way)) => through.base.view().child(&way, name),
            None => Ok(None),
        }
    }

    /// The branch's own inode at a name; `Err`: there is none, and whether the name is hidden.
    pub(super) fn own_child(
        self,
        dir: At<'_>,
        name: &Name,
    ) -> SysResult<Result<(Child, Stat), bool>> {
        if self.is_inherited(dir.slot) {
            return Ok(Err(false));
        }
        // The branch's own are not part of the tree; one that the parent has is as elsewhere.
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

    /// As `Present::child`, of a branch.
    pub(in crate::live) fn child_through(
        self,
        dir: At<'_>,
        name: &Name,
    ) -> SysResult<Option<Child>> {
        match self.own_child(dir, name)? {
            Ok((child, _)) => Ok(Some(child)),
            Err(true) => Ok(None),
            Err(false) => self.child_of_base(dir, name),
        }
    }

    /// As [`Inodes::stat_child`], of a branch.
    pub(super) fn stat_through(self, dir: At<'_>, name: &Name) -> SysResult<Option<(Child, Stat)>> {
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

    /// Attributes of an inherited inode; `None`: it is own.
    pub(super) fn attr_of_base(self, at: At<'_>) -> SysResult<Option<AttrState>> {
        let Some((through, way)) = self.base_way(at)? else {
            return Ok(None);
        };
        let mut attr = through.base.view().attr(&way)?;
        attr.stat.ino = at.slot.0;
        Ok(Some(attr))
    }

    /// Extended attributes of an inherited inode, sorted by name; `None`: it is own.
    pub(in crate::live) fn xattrs_of_base(self, at: At<'_>) -> SysResult<Option<Xattrs>> {
        let Some((through, way)) = self.base_way(at)? else {
            return Ok(None);
        };
        through.base.view().xattrs(&way).map(Some)
    }

    /// What is told of an own inode of a branch.
    pub(in crate::live) fn shown(self, slot: Slot, stat: Stat) -> Stat {
        match &self.inodes.through {
            Some(through) => through.shown(slot, stat),
            None => stat,
        }
    }

    /// Makes what is neither a file nor a directory nor a link, to be shown with this device.
    ///
    /// # Errors
    /// Those of mknod(2); EPERM: a branch keeps this device to itself.
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

    /// The tree that the branch began as; `None`: it is no branch.
    pub(in crate::live) fn view(self) -> Option<View<'a>> {
        self.inodes
            .through
            .as_ref()
            .map(|through| through.base.view())
    }

    /// Opens an inherited file to be read as a view's; `None`: it is own.
    ///
    /// # Errors
    /// Those of the view; EINVAL if it is not a regular file.
    pub(in crate::live) fn open_content(
        self,
        at: At<'_>,
    ) -> SysResult<Option<(OpenContent, Stat)>> {
        let Some((through, way, stat)) = self.file_of_base(at)? else {
            return Ok(None);
        };
        let content = OpenContent::open(&through.base.view(), &way)?;
        Ok(Some((content, stat)))
    }

    /// The way to an inherited regular file in the base, and its attributes; `None`: it is own.
    fn file_of_base(self, at: At<'_>) -> SysResult<Option<(&'a Through, Arc<Trail>, Stat)>> {
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

    /// A file without a name that is empty.
    ///
    /// # Errors
    /// Those of open(2).
    pub(in crate::live) fn empty_file(self) -> SysResult<File> {
        let through = self.inodes.through.as_ref().ok_or(Errno::EIO)?;
        self.copied_aside(&through.aside, None)
    }

    /// Opens an inherited file for reading: what is read is its content, whatever is done to the
    /// parent meanwhile.
    ///
    /// # Errors
    /// Those of the view; EBUSY: it is changed again and again.
    pub(super) fn open_inherited(self, at: At<'_>) -> SysResult<Option<(File, Stat)>> {
        let Some((through, way, stat)) = self.file_of_base(at)? else {
            return Ok(None);
        };
        let view = through.base.view();
        for _ in 0..COPIES_MAX {
            let (source, file) = view.open(&way)?;
            let copied = match (source, file) {
                (Source::Object(_), Some(file)) => return Ok(Some((file, stat))),
                (Source::Live, Some(file)) => {
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

    /// A file without a name that holds what another does.
    fn copied_aside(self, aside: &OwnedFd, of: Option<(&File, u64)>) -> SysResult<File> {
        let number = self.inodes.copies.fetch_add(1, Ordering::Relaxed);
        let name = format!("peek-{number}");
        let file = sys::create_file_at(aside, name.as_bytes(), Open::READ_WRITE, 0o600)?;
        let removed = sys::unlink_at(aside, name.as_bytes());
        match of {
            // Whoever writes to it, or reads it, cannot keep us waiting.
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

    /// As [`Inodes::read_dir`], of a directory that looks through; `None`: it does not.
    ///
    /// The names that the base has come first, by their number there: for those it does not matter
    /// whether they are copied up meanwhile. Own names follow in the order of a hash, so that the
    /// place of each stays whatever comes or goes.
    pub(super) fn list_through(
        self,
        at: At<'_>,
        from: u64,
        count: usize,
    ) -> SysResult<Option<Listing>> {
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

    /// The names that the branch itself has in a directory, with what they lead to; `None`: hidden.
    pub(in crate::live) fn own_names(
        self,
        at: At<'_>,
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
