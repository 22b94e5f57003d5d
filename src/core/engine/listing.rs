//! Directory listings: live directories, those of views, and `.snapshots`.
//!
//! Directories have no handles: the kernel opens them without a request and caches listings. A
//! listing continues at an **offset**, which must remain valid for every reader while names are
//! created and removed. The kernel finds its position in a cached listing by an offset returned to
//! another reader (`fuse_parse_cache` in fs/fuse/readdir.c). Live directories use the backing
//! filesystem's offsets, views (which are immutable) the index of the sorted name, and `.snapshots`
//! derives offsets from names.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::files::Views;
use super::past::{PastNode, PastNodes};
use super::request::{Listed, Names, NodeId};
use super::snapdir::{SNAPDIR, Snapdir, ZFS, ZFS_LINK, ZFS_LINK_NAME, listed};
use ckptfs_store::ids::Slot;
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{Errno, Kind, SysResult};

/// Number of names returned at a time: more than fit into one reply to the kernel.
pub(super) const BATCH: usize = 512;
/// Limit of cached view listings.
const KEPT_MAX: usize = 64;
/// Limit of names in these together, except in the listing being read: about 100 bytes each.
const KEPT_NAMES_MAX: usize = 100_000;

/// Cache of the most recent view listings: a long one is read in parts, and a short one twice,
/// because the kernel detects its end by an empty reply.
#[derive(Default)]
pub(super) struct ListingCache(Mutex<VecDeque<Listing>>);

struct Listing {
    of: NodeId,
    /// Emptied after a long listing was read to its end.
    names: Arc<Vec<Listed>>,
    /// The offset after the last name.
    end: u64,
}

impl ListingCache {
    /// Returns the names after `offset`; `make` returns the whole listing, sorted by offset.
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

    /// Evicts listings beyond either limit, oldest first, except the one being read. A long one
    /// read to its end loses its names but keeps the end offset, because the kernel reads once
    /// more.
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

/// Returns the names after `offset` from a whole listing sorted by offset.
fn part(all: &[Listed], offset: u64) -> Names {
    let from = all.partition_point(|listed| listed.next <= offset);
    let names: Vec<Listed> = all.iter().skip(from).take(BATCH).cloned().collect();
    Names {
        last: from + names.len() == all.len(),
        names,
    }
}

impl Views {
    /// Lists a directory of a view.
    pub(super) fn list_past(&self, dir: &PastNode, offset: u64) -> SysResult<Names> {
        self.check_kept(dir)?;
        self.kept_listings.part(dir.id, offset, || {
            let mut names = self.states.view(dir.state()).list(&dir.trail)?;
            names.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
            let dot = |name: &[u8]| (name.to_vec(), dir.id, Kind::Dir, dir.id.0);
            let children = names.into_iter().map(|(name, child)| {
                let node = PastNodes::number(dir.checkpoint, dir.door, child);
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
        let all = [
            listed(".", ZFS, Kind::Dir, 1),
            listed("..", NodeId(Slot::ROOT.0), Kind::Dir, 2),
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

    /// Reads a listing to its end and once more, as the kernel does. Returns how often it was made.
    fn read(kept: &ListingCache, node: u64, count: usize) -> u32 {
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

    fn names_kept(kept: &ListingCache) -> usize {
        kept.0
            .lock()
            .iter()
            .map(|listing| listing.names.len())
            .sum()
    }

    #[test]
    fn few_listings_are_kept() {
        let kept = ListingCache::default();
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

    /// With a limit of 64 listings but not of names, 64 directories of a million names take 6 GB.
    #[test]
    fn few_names_are_kept_but_one_that_is_read_is_made_once() {
        let kept = ListingCache::default();
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
