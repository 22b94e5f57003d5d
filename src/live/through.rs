//! What a branch looks through to: which of its inodes are its own, and which those are in the
//! base.
//!
//! An inode of a branch is **own** (there is an inode of the branch's directory for it) or
//! **inherited** (the view of the base answers). An own inode that was copied up has the number that
//! it has in the base, which an extended attribute says (its **mark**); one that was made in the
//! branch has the number of the backing filesystem, with the level of the branch above it.
//!
//! What is inherited is where it is in the base, for as long as it is inherited: whatever is renamed
//! is made own before, with every directory above it. So the way to it in the base is the way to the
//! nearest own directory there, and the names from that on.
//!
//! An own directory that has a mark looks through to the directory of the base, at all names but
//! those that it has itself. A name that is gone is hidden by a whiteout, a character device 0:0
//! (as overlayfs has it).
//!
//! **Hard links.** Of a file with several names one is copied up at first; the others lead to the
//! own inode all the same, which a link in the store is kept of (its name there has the number in
//! the base, and how many names are left that only the base has). Such a name is made own when it is
//! to be changed. Where a daemon that is not root can have no mark, of links and the like and of
//! files that their owner may not read, such a link says what the inode was.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::history::base::Base;
use crate::history::present::Trail;
use crate::store::ids::{Name, Slot};
use crate::store::layout::LINKS_NAME;
use crate::store::record::Child;
use crate::sys::lock::Mutex;
use crate::sys::{self, Errno, Kind, RenameMode, Stat, SysResult, Time, Xattrs};

/// Where the level of a branch is in the number of an inode that was made in it: above the numbers
/// of backing filesystems, below the bits of nodes of the past and of `.snapshots`.
const LEVEL_SHIFT: u32 = 56;
/// What an own name begins with that is about to take the place of a whiteout: nobody sees it.
pub(super) const HIDDEN_PREFIX: &[u8] = b".ckptfs-hidden-";
/// The name of the directory for what is about to come, in `tmp/`.
const ASIDE_NAME: &str = "branch";
/// The mark of files and directories, ...
const MARK: &[u8] = b"user.ckptfs.origin";
/// ... and of what can have none of a user's (xattr(7)).
const MARK_TRUSTED: &[u8] = b"trusted.ckptfs.origin";
/// Bytes of a mark before the path.
const MARK_HEAD: usize = 8 + 8 + 4;
/// What stands for a time that is not known, in the place of nanoseconds.
const NO_TIME: u32 = u32::MAX;
/// Bytes of a path in a mark. ext4 has one block for all attributes of an inode.
const PATH_MAX: usize = 3000;
/// The device that an own inode has which is shown as 0:0, for that would be a whiteout: 511:262143,
/// which nobody has. XFS has room for no higher numbers.
const STANDS_FOR_ZERO: u64 = 0x3ff1_ffff;
/// Ways and listings of the base that are kept.
const WAYS_MAX: usize = 4096;
const LISTS_MAX: usize = 16;
/// Names in these listings, but for the last: some 60 bytes each.
const LISTED_MAX: usize = 100_000;

/// An inode of this kind can have a mark: but for root's it is an attribute of a user's.
pub(super) fn bears_mark(kind: Kind) -> bool {
    matches!(kind, Kind::File | Kind::Dir) || sys::ids().0 == 0
}

/// The mark of an inode of this kind and mode can be read without changing that.
pub(super) fn tells_mark(kind: Kind, mode: u32) -> bool {
    sys::ids().0 == 0 || bears_mark(kind) && mode & 0o400 != 0
}

/// What an own inode was in the base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// Its number there.
    pub(super) slot: Slot,
    /// When it was made there.
    pub(super) btime: Option<Time>,
    /// Its path there, if it is a directory.
    pub(super) path: Vec<u8>,
}

impl Mark {
    /// As an extended attribute of an inode of this kind.
    ///
    /// # Errors
    /// ENAMETOOLONG: the path is too long for a mark.
    pub(super) fn xattr(&self, kind: Kind) -> SysResult<(Vec<u8>, Vec<u8>)> {
        if self.path.len() > PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let mut value = Vec::with_capacity(MARK_HEAD + self.path.len());
        value.extend_from_slice(&self.slot.0.to_le_bytes());
        let (sec, nsec) = self
            .btime
            .map_or((0, NO_TIME), |time| (time.sec, time.nsec));
        value.extend_from_slice(&sec.to_le_bytes());
        value.extend_from_slice(&nsec.to_le_bytes());
        value.extend_from_slice(&self.path);
        let name = match kind {
            Kind::File | Kind::Dir => MARK,
            _ => MARK_TRUSTED,
        };
        Ok((name.to_vec(), value))
    }

    /// The mark among the extended attributes of an inode.
    pub(super) fn of(xattrs: &Xattrs) -> Option<Mark> {
        let (_, value) = xattrs
            .iter()
            .find(|(name, _)| name == MARK || name == MARK_TRUSTED)?;
        let (slot, rest) = value.split_first_chunk::<8>()?;
        let (sec, rest) = rest.split_first_chunk::<8>()?;
        let (nsec, path) = rest.split_first_chunk::<4>()?;
        let (sec, nsec) = (i64::from_le_bytes(*sec), u32::from_le_bytes(*nsec));
        Some(Mark {
            slot: Slot(u64::from_le_bytes(*slot)),
            btime: (nsec != NO_TIME).then_some(Time { sec, nsec }),
            path: path.to_vec(),
        })
    }
}

struct Own {
    ino: u64,
    btime: Option<Time>,
    is_dir: bool,
    /// Of a directory.
    path: Vec<u8>,
    /// Names that only the base has, of what has several there, and a link in the store.
    left: Option<u32>,
}

#[derive(Default)]
struct Marks {
    slots: HashMap<u64, Slot>,
    own: HashMap<Slot, Own>,
}

/// The names of a directory of the base, sorted. They never change.
pub(super) type BaseList = Arc<Vec<(Name, Child)>>;

/// See the module. Its mutexes are leaves: the base is never asked while one is held.
pub(super) struct Through {
    pub(super) base: Arc<Base>,
    marks: Mutex<Marks>,
    /// Directories -> the way to them in the base. Of inherited ones it holds as long as they are
    /// inherited, of own ones for ever.
    ways: Mutex<HashMap<Slot, Arc<Trail>>>,
    lists: Mutex<Vec<(Slot, BaseList)>>,
    /// A directory of the store for what is about to come into the branch, or has gone; it is empty
    /// when the store is opened.
    pub(super) aside: Arc<OwnedFd>,
    links: Arc<OwnedFd>,
}

/// The name of a link in the store.
fn link_name(slot: Slot, left: u32) -> Name {
    Name::new(format!("{}-{left}", slot.0).as_bytes())
}

fn parsed_link(name: &[u8]) -> Option<(Slot, u32)> {
    let (slot, left) = std::str::from_utf8(name).ok()?.split_once('-')?;
    Some((Slot(slot.parse().ok()?), left.parse().ok()?))
}

/// An inode hides the name that it is at.
pub(super) fn hides(stat: &Stat) -> bool {
    stat.kind == Kind::CharDev && stat.rdev == 0
}

/// The device that an inode gets in the directory of a branch which is to be shown with this one.
///
/// # Errors
/// EPERM: it would be shown with another.
pub(super) fn device_below(kind: Kind, rdev: u64) -> SysResult<u64> {
    match (kind, rdev) {
        (Kind::CharDev, 0) => Ok(STANDS_FOR_ZERO),
        (Kind::CharDev, STANDS_FOR_ZERO) => Err(Errno::EPERM),
        _ => Ok(rdev),
    }
}

impl Through {
    /// `tmp`: a directory of the store.
    ///
    /// # Errors
    /// Those of making directories there.
    pub(super) fn new(base: Arc<Base>, tmp: BorrowedFd<'_>) -> SysResult<Arc<Through>> {
        let dir = |name: &str| match sys::mkdir_at(tmp, name.as_bytes(), 0o700) {
            Ok(()) | Err(Errno::EEXIST) => sys::open_dir_at(tmp, name.as_bytes()),
            Err(errno) => Err(errno),
        };
        Ok(Arc::new(Through {
            aside: Arc::new(dir(ASIDE_NAME)?),
            links: Arc::new(dir(LINKS_NAME)?),
            base,
            marks: Mutex::default(),
            ways: Mutex::default(),
            lists: Mutex::default(),
        }))
    }

    /// The slot of an own inode.
    ///
    /// # Errors
    /// EOVERFLOW: the filesystem has larger numbers than there is room for.
    pub(super) fn slot_of(&self, ino: u64) -> SysResult<Slot> {
        if ino >> LEVEL_SHIFT != 0 {
            return Err(Errno::EOVERFLOW);
        }
        let known = self.marks.lock().slots.get(&ino).copied();
        Ok(known.unwrap_or(Slot(ino | self.base.level << LEVEL_SHIFT)))
    }

    /// The base answers for an inode.
    pub(super) fn is_inherited(&self, slot: Slot) -> bool {
        !matches!(slot, Slot::ROOT | Slot::STAGING)
            && slot.0 >> LEVEL_SHIFT != self.base.level
            && !self.marks.lock().own.contains_key(&slot)
    }

    /// An inode was made in the branch.
    pub(super) fn is_born(&self, slot: Slot) -> bool {
        slot.0 >> LEVEL_SHIFT == self.base.level
    }

    /// An inode was own before it lost its last name, and somebody has it open.
    pub(super) fn note_dead(&self, ino: u64, kind: Kind, mark: Mark) {
        let slot = mark.slot;
        self.note_own(ino, kind, mark, None);
        self.note_gone(slot);
    }

    /// An inode is own from now on, and stays so when it is gone.
    pub(super) fn note_own(&self, ino: u64, kind: Kind, mark: Mark, left: Option<u32>) {
        let own = Own {
            ino,
            btime: mark.btime,
            is_dir: kind == Kind::Dir,
            path: mark.path,
            left,
        };
        let mut marks = self.marks.lock();
        marks.slots.insert(ino, mark.slot);
        marks.own.insert(mark.slot, own);
    }

    /// As [`Through::note_own`], by a mark that was found when the branch was opened. Root can have
    /// copied it: one that tells of nothing that a base can have, or that another inode has too, says
    /// nothing, and the inode was made in the branch.
    pub(super) fn note_marked(&self, ino: u64, kind: Kind, mark: Mark, left: Option<u32>) {
        let is_of_base = mark.slot.0 >> LEVEL_SHIFT < self.base.level
            && !matches!(mark.slot, Slot::ROOT | Slot::STAGING);
        if is_of_base && !self.marks.lock().own.contains_key(&mark.slot) {
            self.note_own(ino, kind, mark, left);
        }
    }

    /// An own inode has lost its last name: its number on the backing filesystem may be given to
    /// another.
    pub(super) fn note_gone(&self, slot: Slot) {
        let left = {
            let mut marks = self.marks.lock();
            let Some(own) = marks.own.get_mut(&slot) else {
                return;
            };
            let (ino, left) = (own.ino, own.left.take());
            if marks.slots.get(&ino) == Some(&slot) {
                marks.slots.remove(&ino);
            }
            left
        };
        if let Some(left) = left {
            let removed = sys::unlink_at(&*self.links, link_name(slot, left).as_bytes());
            tracing::debug!(?removed, slot = slot.0, "a link that nobody needs");
        }
    }

    /// There is a link in the store of an own inode.
    pub(super) fn has_link(&self, ino: u64) -> bool {
        let marks = self.marks.lock();
        let own = marks.slots.get(&ino).and_then(|slot| marks.own.get(slot));
        own.is_some_and(|own| own.left.is_some())
    }

    /// The directory of the links.
    pub(super) fn links(&self) -> &Arc<OwnedFd> {
        &self.links
    }

    /// The link in the store of an own inode that has names in the base alone.
    pub(super) fn link_of(&self, slot: Slot) -> Option<Name> {
        let left = self.marks.lock().own.get(&slot)?.left?;
        Some(link_name(slot, left))
    }

    /// Keeps a link of what has `names` in the base, and is at `name` in a directory.
    ///
    /// # Errors
    /// Those of link(2).
    pub(super) fn keep_link(
        &self,
        slot: Slot,
        names: u32,
        (dir, name): (&OwnedFd, &[u8]),
    ) -> SysResult<()> {
        sys::link_at(dir, name, &*self.links, link_name(slot, names).as_bytes())
    }

    /// An own file, at `name` in a directory, is about to get a mode with which its mark cannot be
    /// read: a link says it from then on.
    ///
    /// # Errors
    /// Those of link(2).
    pub(super) fn keep_unread(&self, slot: Slot, at: (&OwnedFd, &[u8])) -> SysResult<()> {
        self.keep_link(slot, 0, at)?;
        if let Some(own) = self.marks.lock().own.get_mut(&slot) {
            own.left = Some(0);
        }
        Ok(())
    }

    /// An own file has a mark and no link in the store.
    pub(super) fn has_mark_alone(&self, slot: Slot) -> bool {
        let marks = self.marks.lock();
        marks
            .own
            .get(&slot)
            .is_some_and(|own| !own.is_dir && own.left.is_none())
    }

    /// What [`Through::keep_link`] has kept is not needed.
    pub(super) fn drop_link(&self, slot: Slot, names: u32) {
        let removed = sys::unlink_at(&*self.links, link_name(slot, names).as_bytes());
        tracing::debug!(?removed, slot = slot.0, "a link of what was not copied up");
    }

    /// One more of the names of an own inode is the branch's own.
    ///
    /// # Errors
    /// Those of rename(2).
    pub(super) fn made_own(&self, slot: Slot) -> SysResult<()> {
        let left = match self.marks.lock().own.get_mut(&slot) {
            Some(own) => match &mut own.left {
                Some(left) => {
                    *left = left.saturating_sub(1);
                    *left
                }
                None => return Ok(()),
            },
            None => return Ok(()),
        };
        sys::rename_at(
            &*self.links,
            link_name(slot, left + 1).as_bytes(),
            &*self.links,
            link_name(slot, left).as_bytes(),
            RenameMode::Replace,
        )
    }

    /// Finds the links again that the last daemon has left. What has no other name, and none in the
    /// base, is nothing any more.
    ///
    /// # Errors
    /// Those of reading the directory.
    pub(super) fn read_links(&self) -> SysResult<()> {
        for entry in sys::list_dir(&*self.links)? {
            let name = entry.name.as_slice();
            let stat = sys::stat_at(&*self.links, name)?;
            let Some((slot, left)) = parsed_link(name) else {
                continue;
            };
            let told = tells_mark(stat.kind, stat.mode);
            let mark = match told {
                true => Mark::of(&sys::all_xattrs_at(&self.links, name)?),
                false => None,
            };
            let by_link = Mark {
                slot,
                btime: None,
                path: Vec::new(),
            };
            let Some(mark) = mark.or((!told).then_some(by_link)) else {
                continue;
            };
            if left == 0 && stat.nlink == 1 || mark.slot != slot {
                sys::unlink_at(&*self.links, name)?;
            } else {
                self.note_marked(stat.ino, stat.kind, mark, Some(left));
            }
        }
        Ok(())
    }

    /// What is told of an own inode: when it was made is a matter of the base, and of how many
    /// directories are in one that looks through nobody keeps count (1, as btrfs has it).
    pub(super) fn shown(&self, slot: Slot, mut stat: Stat) -> Stat {
        if stat.kind == Kind::CharDev && stat.rdev == STANDS_FOR_ZERO {
            stat.rdev = 0;
        }
        if slot == Slot::ROOT {
            return Stat { nlink: 1, ..stat };
        }
        match self.marks.lock().own.get(&slot) {
            Some(own) => Stat {
                btime: own.btime,
                nlink: match own.left {
                    _ if own.is_dir => 1,
                    Some(left) => stat.nlink.saturating_sub(1).saturating_add(left),
                    None => stat.nlink,
                },
                ..stat
            },
            None => stat,
        }
    }

    /// The way in the base to what an own directory looks through to; `None`: to nothing.
    ///
    /// # Errors
    /// EIO: it is not there.
    pub(super) fn own_way(&self, slot: Slot) -> SysResult<Option<Arc<Trail>>> {
        if slot == Slot::ROOT {
            return Ok(Some(Trail::root()));
        }
        if let Some(way) = self.known_way(slot) {
            return Ok(Some(way));
        }
        let path = match self.marks.lock().own.get(&slot) {
            Some(own) if own.is_dir => own.path.clone(),
            _ => return Ok(None),
        };
        match self.base.view().walk(&path)? {
            Some((child, way)) if child.slot == slot => {
                self.keep_way(&way);
                Ok(Some(way))
            }
            _ => Err(Errno::EIO),
        }
    }

    /// The way to a directory, if it is at hand.
    pub(super) fn known_way(&self, slot: Slot) -> Option<Arc<Trail>> {
        self.ways.lock().get(&slot).cloned()
    }

    /// Keeps the way to a directory.
    pub(super) fn keep_way(&self, way: &Arc<Trail>) {
        let mut ways = self.ways.lock();
        if ways.len() >= WAYS_MAX {
            ways.clear();
        }
        ways.insert(way.slot, Arc::clone(way));
    }

    /// The names of a directory of the base, sorted.
    ///
    /// # Errors
    /// Those of the view.
    pub(super) fn base_list(&self, way: &Arc<Trail>) -> SysResult<BaseList> {
        let known = |lists: &Vec<(Slot, BaseList)>| {
            let known = lists.iter().find(|(slot, _)| *slot == way.slot);
            known.map(|(_, list)| Arc::clone(list))
        };
        if let Some(list) = known(&self.lists.lock()) {
            return Ok(list);
        }
        let list = Arc::new(self.base.view().list(way)?);
        let mut lists = self.lists.lock();
        let names = |lists: &[(Slot, BaseList)]| -> usize {
            lists.iter().map(|(_, list)| list.len()).sum()
        };
        while lists.len() >= LISTS_MAX || !lists.is_empty() && names(&lists) > LISTED_MAX {
            lists.remove(0);
        }
        lists.push((way.slot, Arc::clone(&list)));
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        for btime in [None, Some(Time { sec: -5, nsec: 7 })] {
            for (kind, path) in [(Kind::Dir, b"a/b\xff".to_vec()), (Kind::Symlink, vec![])] {
                let slot = Slot(1 << 56 | 77);
                let mark = Mark { slot, btime, path };
                let xattrs = vec![mark.xattr(kind).expect("it fits")];
                assert_eq!(Mark::of(&xattrs), Some(mark));
            }
        }
        assert_eq!(Mark::of(&vec![(MARK.to_vec(), b"short".to_vec())]), None);
        let path = vec![b'a'; PATH_MAX + 1];
        let mark = Mark {
            slot: Slot(5),
            btime: None,
            path,
        };
        assert_eq!(mark.xattr(Kind::Dir), Err(Errno::ENAMETOOLONG));
    }
}
