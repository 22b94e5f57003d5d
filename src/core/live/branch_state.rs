//! State of a branch on top of its base: the own inodes, and their identity in the base.
//!
//! An inode of a branch is **own** (it exists in the branch's directory) or **inherited** (the view
//! of the base provides it). An own inode that was copied up keeps its number in the base, which an
//! extended attribute records (its **mark**). An inode created in the branch has the number of the
//! backing filesystem, combined with the level of the branch.
//!
//! An inherited inode has the same path as in the base, relative to the nearest own directory:
//! whatever is renamed is copied up first, with all directories above it. Its path in the base is
//! therefore that of the nearest own directory there, followed by the same names.
//!
//! An own directory with a mark is merged with the directory of the base: entries of the base are
//! visible at all names that it does not have itself. A removed name is hidden by a whiteout, a
//! character device 0:0 (as in overlayfs).
//!
//! **Hard links.** When a file with several names is copied up, one name becomes own. The other
//! names still lead to the own inode, through a link in the store. The name of that link has the
//! number in the base, and how many names exist only in the base. Such a name becomes own before it
//! is changed. A daemon that is not root cannot mark symbolic links and special files, nor read the
//! mark of files that their owner may not read. There the link alone identifies the inode.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::history::base::Base;
use crate::history::present::Trail;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::layout::LINKS_NAME;
use ckptfs_store::record::Child;
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, Errno, Kind, RenameMode, Stat, SysResult, Time, Xattrs};

/// Position of the branch level in the number of an inode created in the branch: above the numbers
/// of backing filesystems, below the bits of snapshot and `.snapshots` nodes.
const LEVEL_SHIFT: u32 = 56;
/// Prefix of the hidden, temporary name of an entry that replaces a whiteout.
pub(super) const HIDDEN_PREFIX: &[u8] = b".ckptfs-hidden-";
/// Name of the staging directory of a branch in `tmp/`.
const ASIDE_NAME: &str = "branch";
/// Mark of files and directories.
const MARK: &[u8] = b"user.ckptfs.origin";
/// Mark of other inodes, which cannot have `user.` attributes (xattr(7)).
const MARK_TRUSTED: &[u8] = b"trusted.ckptfs.origin";
/// Size of a mark without the path, in bytes.
const MARK_HEAD: usize = 8 + 8 + 4;
/// Value of the nanoseconds of an unknown time.
const NO_TIME: u32 = u32::MAX;
/// Maximum path length in a mark. ext4 stores all extended attributes of an inode in one block.
const PATH_MAX: usize = 3000;
/// Device number 511:262143, stored for a device that is visible as 0:0 and would otherwise be a
/// whiteout. No driver uses it, and XFS supports no higher numbers.
const STANDS_FOR_ZERO: u64 = 0x3ff1_ffff;
/// Maximum numbers of cached paths and listings of the base.
const WAYS_MAX: usize = 4096;
const LISTS_MAX: usize = 16;
/// Maximum number of names in these listings, excluding the last listing; about 60 bytes each.
const LISTED_MAX: usize = 100_000;

/// Returns whether an inode of this type can have a mark. Only root can set one on symbolic links
/// and special files.
pub(super) fn bears_mark(kind: Kind) -> bool {
    matches!(kind, Kind::File | Kind::Dir) || sys::ids().0 == 0
}

/// Returns whether the mark of an inode can be read without changing its mode.
pub(super) fn tells_mark(kind: Kind, mode: u32) -> bool {
    sys::ids().0 == 0 || bears_mark(kind) && mode & 0o400 != 0
}

/// Identity of an own inode in the base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OriginMark {
    /// Number in the base.
    pub(super) slot: Slot,
    /// Birth time in the base.
    pub(super) btime: Option<Time>,
    /// Path in the base, for a directory.
    pub(super) path: Vec<u8>,
}

impl OriginMark {
    /// Encodes the mark as an extended attribute of an inode of this type.
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

    /// Decodes the mark among the extended attributes of an inode.
    pub(super) fn of(xattrs: &Xattrs) -> Option<OriginMark> {
        let (_, value) = xattrs
            .iter()
            .find(|(name, _)| name == MARK || name == MARK_TRUSTED)?;
        let (slot, rest) = value.split_first_chunk::<8>()?;
        let (sec, rest) = rest.split_first_chunk::<8>()?;
        let (nsec, path) = rest.split_first_chunk::<4>()?;
        let (sec, nsec) = (i64::from_le_bytes(*sec), u32::from_le_bytes(*nsec));
        Some(OriginMark {
            slot: Slot(u64::from_le_bytes(*slot)),
            btime: (nsec != NO_TIME).then_some(Time { sec, nsec }),
            path: path.to_vec(),
        })
    }
}

struct OwnInode {
    ino: u64,
    btime: Option<Time>,
    is_dir: bool,
    /// Path in the base, for a directory.
    path: Vec<u8>,
    /// Number of names that exist only in the base, if the inode has a link in the store.
    left: Option<u32>,
}

#[derive(Default)]
struct OwnInodes {
    slots: HashMap<u64, Slot>,
    own: HashMap<Slot, OwnInode>,
}

/// Entries of a directory of the base, sorted. They never change.
pub(super) type BaseList = Arc<Vec<(Name, Child)>>;

/// State of a branch on top of its base. See the module. The mutexes are leaves: the base is never
/// queried while one is held.
pub(super) struct BranchState {
    pub(super) base: Arc<Base>,
    marks: Mutex<OwnInodes>,
    /// Paths of directories in the base, by slot. Valid for inherited directories while they are
    /// inherited, for own ones forever.
    ways: Mutex<HashMap<Slot, Arc<Trail>>>,
    lists: Mutex<Vec<(Slot, BaseList)>>,
    /// Staging directory of the branch in the store, for inodes on their way in or out. It is empty
    /// after the store is opened.
    pub(super) aside: Arc<OwnedFd>,
    links: Arc<OwnedFd>,
}

/// Returns the name of a link in the store.
fn link_name(slot: Slot, left: u32) -> Name {
    Name::new(format!("{}-{left}", slot.0).as_bytes())
}

fn parsed_link(name: &[u8]) -> Option<(Slot, u32)> {
    let (slot, left) = std::str::from_utf8(name).ok()?.split_once('-')?;
    Some((Slot(slot.parse().ok()?), left.parse().ok()?))
}

/// Returns whether the inode is a whiteout.
pub(super) fn hides(stat: &Stat) -> bool {
    stat.kind == Kind::CharDev && stat.rdev == 0
}

/// Returns the device number to store in the branch's directory for a device that is visible with
/// `rdev`.
///
/// # Errors
/// EPERM: the stored number would be visible as another.
pub(super) fn device_below(kind: Kind, rdev: u64) -> SysResult<u64> {
    match (kind, rdev) {
        (Kind::CharDev, 0) => Ok(STANDS_FOR_ZERO),
        (Kind::CharDev, STANDS_FOR_ZERO) => Err(Errno::EPERM),
        _ => Ok(rdev),
    }
}

impl BranchState {
    /// Opens the state of a branch. `tmp` is a directory of the store.
    ///
    /// # Errors
    /// Those of creating directories in it.
    pub(super) fn new(base: Arc<Base>, tmp: BorrowedFd<'_>) -> SysResult<Arc<BranchState>> {
        let dir = |name: &str| match sys::mkdir_at(tmp, name.as_bytes(), 0o700) {
            Ok(()) | Err(Errno::EEXIST) => sys::open_dir_at(tmp, name.as_bytes()),
            Err(errno) => Err(errno),
        };
        Ok(Arc::new(BranchState {
            aside: Arc::new(dir(ASIDE_NAME)?),
            links: Arc::new(dir(LINKS_NAME)?),
            base,
            marks: Mutex::default(),
            ways: Mutex::default(),
            lists: Mutex::default(),
        }))
    }

    /// Returns the slot of an own inode.
    ///
    /// # Errors
    /// EOVERFLOW: the inode number is too large for a branch.
    pub(super) fn slot_of(&self, ino: u64) -> SysResult<Slot> {
        if ino >> LEVEL_SHIFT != 0 {
            return Err(Errno::EOVERFLOW);
        }
        let known = self.marks.lock().slots.get(&ino).copied();
        Ok(known.unwrap_or(Slot(ino | self.base.level << LEVEL_SHIFT)))
    }

    /// Returns whether the base provides an inode.
    pub(super) fn is_inherited(&self, slot: Slot) -> bool {
        !matches!(slot, Slot::ROOT | Slot::STAGING)
            && slot.0 >> LEVEL_SHIFT != self.base.level
            && !self.marks.lock().own.contains_key(&slot)
    }

    /// Returns whether an inode was created in the branch.
    pub(super) fn is_born(&self, slot: Slot) -> bool {
        slot.0 >> LEVEL_SHIFT == self.base.level
    }

    /// Records an open inode that was own before it lost its last name.
    pub(super) fn note_dead(&self, ino: u64, kind: Kind, mark: OriginMark) {
        let slot = mark.slot;
        self.note_own(ino, kind, mark, None);
        self.note_gone(slot);
    }

    /// Records an inode as own. It remains own when it is removed.
    pub(super) fn note_own(&self, ino: u64, kind: Kind, mark: OriginMark, left: Option<u32>) {
        let own = OwnInode {
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

    /// As [`BranchState::note_own`], for a mark found when the branch is opened. Root may have
    /// copied the attribute. A mark that cannot be of the base, or that another inode also has, is
    /// ignored: the inode counts as created in the branch.
    pub(super) fn note_marked(&self, ino: u64, kind: Kind, mark: OriginMark, left: Option<u32>) {
        let is_of_base = mark.slot.0 >> LEVEL_SHIFT < self.base.level
            && !matches!(mark.slot, Slot::ROOT | Slot::STAGING);
        if is_of_base && !self.marks.lock().own.contains_key(&mark.slot) {
            self.note_own(ino, kind, mark, left);
        }
    }

    /// Records that an own inode lost its last name. Its number on the backing filesystem may be
    /// reused.
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

    /// Returns whether an own inode has a link in the store.
    pub(super) fn has_link(&self, ino: u64) -> bool {
        let marks = self.marks.lock();
        let own = marks.slots.get(&ino).and_then(|slot| marks.own.get(slot));
        own.is_some_and(|own| own.left.is_some())
    }

    /// Returns the directory of the links.
    pub(super) fn links(&self) -> &Arc<OwnedFd> {
        &self.links
    }

    /// Returns the name of the link of an own inode in the store.
    pub(super) fn link_of(&self, slot: Slot) -> Option<Name> {
        let left = self.marks.lock().own.get(&slot)?.left?;
        Some(link_name(slot, left))
    }

    /// Creates the link of an inode that has `names` names in the base and is at `name` in a
    /// directory.
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

    /// Creates a link for an own file whose mark becomes unreadable with its new mode: the link
    /// then identifies it.
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

    /// Returns whether an own file has a mark and no link in the store.
    pub(super) fn has_mark_alone(&self, slot: Slot) -> bool {
        let marks = self.marks.lock();
        marks
            .own
            .get(&slot)
            .is_some_and(|own| !own.is_dir && own.left.is_none())
    }

    /// Removes the link of a copy-up that failed.
    pub(super) fn drop_link(&self, slot: Slot, names: u32) {
        let removed = sys::unlink_at(&*self.links, link_name(slot, names).as_bytes());
        tracing::debug!(?removed, slot = slot.0, "a link of what was not copied up");
    }

    /// Decrements the number of names that exist only in the base, after one became own.
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

    /// Reads the links that the last daemon left. Removes a link whose inode has no other name and
    /// none in the base.
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
                true => OriginMark::of(&sys::all_xattrs_at(&self.links, name)?),
                false => None,
            };
            let by_link = OriginMark {
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

    /// Returns the attributes of an own inode as users see them. The birth time is that of the
    /// base. Subdirectories of a merged directory are not counted: its link count is 1, as on
    /// btrfs.
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

    /// Returns the path in the base of an own directory; `None` if it is not merged with one.
    ///
    /// # Errors
    /// EIO: the directory is not there.
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

    /// Returns the cached path of a directory in the base.
    pub(super) fn known_way(&self, slot: Slot) -> Option<Arc<Trail>> {
        self.ways.lock().get(&slot).cloned()
    }

    /// Caches the path of a directory in the base.
    pub(super) fn keep_way(&self, way: &Arc<Trail>) {
        let mut ways = self.ways.lock();
        if ways.len() >= WAYS_MAX {
            ways.clear();
        }
        ways.insert(way.slot, Arc::clone(way));
    }

    /// Returns the entries of a directory of the base, sorted.
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
                let mark = OriginMark { slot, btime, path };
                let xattrs = vec![mark.xattr(kind).expect("it fits")];
                assert_eq!(OriginMark::of(&xattrs), Some(mark));
            }
        }
        assert_eq!(
            OriginMark::of(&vec![(MARK.to_vec(), b"short".to_vec())]),
            None
        );
        let path = vec![b'a'; PATH_MAX + 1];
        let mark = OriginMark {
            slot: Slot(5),
            btime: None,
            path,
        };
        assert_eq!(mark.xattr(Kind::Dir), Err(Errno::ENAMETOOLONG));
    }
}
