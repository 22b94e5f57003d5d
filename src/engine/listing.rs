//! Listings of directories: live ones, those of views, and `.snapshots`.
//!
//! There are no open directories: the kernel opens them without asking and caches what it has
//! listed. A listing goes on at an **offset** that stays right for everybody, whatever has come or
//! removed meanwhile: the kernel finds its place in a cached listing by the offset that another reader
//! was given (`fuse_parse_cache` in fs/fuse/readdir.c). In a live directory it is the backing
//! filesystem's own, in a view (which never changes) the number of the name in order, in
//! `.snapshots` it comes from the name.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::control::{SNAPDIR, Snapdir, ZFS, ZFS_LINK, ZFS_LINK_NAME};
use super::files::Views;
use super::past::{Past, PastNode};
use super::request::{Listed, Names, NodeId};
use crate::store::ids::Slot;
use crate::sys::lock::Mutex;
use crate::sys::{Errno, Kind, SysResult};

/// Names handed out at once: more than fit into one reply of the kernel's.
pub(super) const BATCH: usize = 512;
/// Listings of views that are kept at most.
const KEPT_MAX: usize = 64;
/// Names in them together at most, but for the one that is being read: some 100 bytes each.
const KEPT_NAMES_MAX: usize = 100_000;

/// The listings of views that were made last: a long one is asked for in parts, and a short one
/// twice, to hear that it has ended.
#[derive(Default)]
pub(super) struct Kept(Mutex<VecDeque<Listing>>);

struct Listing {
    of: NodeId,
    /// Empty once a long one was read to its end.
    names: Arc<Vec<Listed>>,
    /// The offset after the last name.
    end: u64,
}

impl Kept {
    /// The part of a listing that comes after `offset`; `make` gives all of it, in the order of
    /// offsets.
    fn part(
        &self,
        node: NodeId,
        offset: u64,
        make: impl FnOnce() -> SysResult<Vec<Listed>>,
    ) -> SysResult<Names> {
        if let Some(known) = self.known(node, offset) {
            return Ok(known);
        }
        let names = Arc::new(make()?);
        let end = names.last().map_or(0, |last| last.next);
        let part = part(&names, offset);
        self.0.lock().push_front(Listing {
            of: node,
            names,
            end,
        });
        self.tidy(node, part.last);
        Ok(part)
    }

    fn known(&self, node: NodeId, offset: u64) -> Option<Names> {
        let (names, end) = self
            .0
            .lock()
            .iter()
            .find(|kept| kept.of == node)
            .map(|kept| (Arc::clone(&kept.names), kept.end))?;
        let part = match () {
            () if offset >= end => Names {
                names: Vec::new(),
                last: true,
            },
            () if names.is_empty() => return None,
            () => part(&names, offset),
        };
        self.tidy(node, part.last);
        Some(part)
    }

    /// Lets go of what is too much: listings beyond the number of them and of names, the oldest
    /// first, but not of the one that is being read. A long one that was read to its end goes too;
    /// where that was is kept, for the kernel asks once more.
    fn tidy(&self, reading: NodeId, to_its_end: bool) {
        let mut kept = self.0.lock();
        if to_its_end {
            kept.iter_mut()
                .filter(|kept| kept.of == reading && kept.names.len() > KEPT_NAMES_MAX)
                .for_each(|kept| kept.names = Arc::default());
        }
        let mut seen = HashSet::new();
        let mut room = KEPT_NAMES_MAX;
        kept.retain(|kept| {
            let fits = kept.names.len() <= room;
            let stays = seen.insert(kept.of) && (fits || kept.of == reading);
            room = room.saturating_sub(if stays { kept.names.len() } else { 0 });
            stays
        });
        kept.truncate(KEPT_MAX);
    }
}

/// The part of a whole listing, in the order of its offsets, that comes after `offset`.
fn part(all: &[Listed], offset: u64) -> Names {
    let from = all.partition_point(|listed| listed.next <= offset);
    let names: Vec<Listed> = all.iter().skip(from).take(BATCH).cloned().collect();
    Names {
        last: from + names.len() == all.len(),
        names,
    }
}

impl Views {
    /// Names of a directory of a view.
    pub(super) fn list_past(&self, dir: &PastNode, offset: u64) -> SysResult<Names> {
        self.check_kept(dir)?;
        self.kept_listings.part(dir.id, offset, || {
            let mut names = self.states.view(dir.state()).list(&dir.trail)?;
            names.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
            let dot = |name: &[u8]| (name.to_vec(), dir.id, Kind::Dir, dir.id.0);
            let children = names.into_iter().map(|(name, child)| {
                let node = Past::number(dir.checkpoint, dir.door, child);
                (name.as_bytes().to_vec(), node, child.kind, child.slot.0)
            });
            let all = [dot(b"."), dot(b"..")].into_iter().chain(children).zip(1..);
            Ok(all
                .map(|((name, node, kind, slot), next)| Listed {
                    name,
                    node,
                    kind,
                    slot,
                    next,
                })
                .collect())
        })
    }
}

impl Snapdir {
    /// Returns the names in `.snapshots` or `.zfs` after `offset`.
    ///
    /// # Errors
    /// ENOTDIR: the node is a link.
    pub(super) fn list_control(&self, node: NodeId, offset: u64) -> SysResult<Names> {
        match node {
            SNAPDIR => {
                self.snapdir_was_read();
                let names = self.list_snapshots(offset, BATCH);
                Ok(Names {
                    last: names.len() < BATCH,
                    names,
                })
            }
            ZFS => Ok(self.list_zfs(offset)),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn list_zfs(&self, offset: u64) -> Names {
        let listed = |name: &[u8], node: NodeId, kind: Kind, next: u64| Listed {
            name: name.to_vec(),
            node,
            kind,
            slot: node.0,
            next,
        };
        let all = [
            listed(b".", ZFS, Kind::Dir, 1),
            listed(b"..", NodeId(Slot::ROOT.0), Kind::Dir, 2),
            listed(ZFS_LINK_NAME, ZFS_LINK, Kind::Symlink, 3),
        ];
        Names {
            names: all.into_iter().filter(|one| one.next > offset).collect(),
            last: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(next: u64) -> Listed {
        Listed {
            name: next.to_string().into_bytes(),
            node: NodeId(next),
            kind: Kind::File,
            slot: next,
            next,
        }
    }

    #[test]
    fn a_part_goes_on_where_the_last_one_ended_even_when_that_name_is_gone() {
        let all: Vec<Listed> = (1..=2 * BATCH as u64).map(listed).collect();
        let first = part(&all, 0);
        assert_eq!((first.names.len(), first.last), (BATCH, false));
        let end = first.names.last().map_or(0, |last| last.next);
        let rest: Vec<Listed> = all
            .into_iter()
            .filter(|listed| listed.next != end)
            .collect();
        let second = part(&rest, end);
        assert_eq!(
            second.names.first().map(|listed| listed.next),
            Some(end + 1)
        );
        assert!(second.last);
        assert!(part(&rest, u64::MAX).names.is_empty());
    }

    fn all(count: usize) -> Vec<Listed> {
        (1..=count as u64).map(listed).collect()
    }

    /// Reads a listing of so many names to its end as the kernel does, and once more; how often it
    /// was made.
    fn read(kept: &Kept, node: u64, count: usize) -> u32 {
        let (mut made, mut offset, mut names, mut ends) = (0, 0, 0, 0);
        while ends < 2 {
            let part = kept.part(NodeId(node), offset, || {
                made += 1;
                Ok(all(count))
            });
            let part = part.unwrap_or(Names {
                names: Vec::new(),
                last: true,
            });
            names += part.names.len();
            offset = part.names.last().map_or(offset, |last| last.next);
            ends += u32::from(part.last);
        }
        assert_eq!(names, count);
        made
    }

    fn names_kept(kept: &Kept) -> usize {
        kept.0
            .lock()
            .iter()
            .map(|listing| listing.names.len())
            .sum()
    }

    #[test]
    fn few_listings_are_kept() {
        let kept = Kept::default();
        for node in 0..=KEPT_MAX as u64 {
            assert_eq!(read(&kept, node, 1), 1);
        }
        assert_eq!(kept.0.lock().len(), KEPT_MAX);
        assert_eq!(
            (read(&kept, 1, 1), read(&kept, 0, 1)),
            (0, 1),
            "one is kept, the oldest is not"
        );
    }

    /// The last 64 were kept whatever their length: 64 directories of a million names are 6 GB.
    #[test]
    fn few_names_are_kept_but_one_that_is_read_is_made_once() {
        let kept = Kept::default();
        let half = KEPT_NAMES_MAX / 2;
        for node in 0..4 {
            assert_eq!(read(&kept, node, half), 1);
        }
        assert_eq!(names_kept(&kept), 2 * half);
        assert_eq!(
            read(&kept, 9, 2 * KEPT_NAMES_MAX),
            1,
            "it is asked for in many parts"
        );
        assert!(
            names_kept(&kept) <= KEPT_NAMES_MAX,
            "and let go of at its end"
        );
        assert_eq!(
            read(&kept, 9, 2 * KEPT_NAMES_MAX),
            1,
            "whoever lists it again has it made again"
        );
    }
}
