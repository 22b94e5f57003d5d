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

use std::collections::HashMap;
use std::sync::Arc;

use crate::history::base::Base;
use crate::history::present::Trail;
use crate::store::ids::{Name, Slot};
use crate::store::record::Child;
use crate::sys::lock::Mutex;
use crate::sys::{Errno, Kind, Stat, SysResult, Time, Xattrs};

/// Where the level of a branch is in the number of an inode that was made in it: above the numbers
/// of backing filesystems, below the bits of nodes of the past and of `.snapshots`.
const LEVEL_SHIFT: u32 = 56;
/// What an own name begins with that is about to take the place of a whiteout: nobody sees it.
pub(super) const HIDDEN_PREFIX: &[u8] = b".ckptfs-hidden-";
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
/// Ways and listings of the base that are kept.
const WAYS_MAX: usize = 4096;
const LISTS_MAX: usize = 16;

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
}

/// An inode hides the name that it is at.
pub(super) fn hides(stat: &Stat) -> bool {
    stat.kind == Kind::CharDev && stat.rdev == 0
}

impl Through {
    pub(super) fn new(base: Arc<Base>) -> Arc<Through> {
        Arc::new(Through {
            base,
            marks: Mutex::default(),
            ways: Mutex::default(),
            lists: Mutex::default(),
        })
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

    /// An inode is own from now on, and stays so when it is gone.
    pub(super) fn note_own(&self, ino: u64, kind: Kind, mark: Mark) {
        let own = Own {
            ino,
            btime: mark.btime,
            is_dir: kind == Kind::Dir,
            path: mark.path,
        };
        let mut marks = self.marks.lock();
        marks.slots.insert(ino, mark.slot);
        marks.own.insert(mark.slot, own);
    }

    /// An own inode has lost its last name: its number on the backing filesystem may be given to
    /// another.
    pub(super) fn note_gone(&self, slot: Slot) {
        let mut marks = self.marks.lock();
        if let Some(ino) = marks.own.get(&slot).map(|own| own.ino)
            && marks.slots.get(&ino) == Some(&slot)
        {
            marks.slots.remove(&ino);
        }
    }

    /// What is told of an own inode: when it was made is a matter of the base, and of how many
    /// directories are in one that looks through nobody keeps count (1, as btrfs has it).
    pub(super) fn shown(&self, slot: Slot, stat: Stat) -> Stat {
        if slot == Slot::ROOT {
            return Stat { nlink: 1, ..stat };
        }
        match self.marks.lock().own.get(&slot) {
            Some(own) => Stat {
                btime: own.btime,
                nlink: if own.is_dir { 1 } else { stat.nlink },
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
        if lists.len() >= LISTS_MAX {
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
