//! Listings of directories: live ones, those of views, and `.snapshots`.
//!
//! There are no open directories: the kernel opens them without asking and caches what it has listed. A listing goes on at an **offset** that stays
//! right for everybody, whatever has come or gone meanwhile: the kernel finds its place in a cached listing by the offset that another reader was
//! given (`fuse_parse_cache` in fs/fuse/readdir.c). In a live directory it is the backing filesystem's own, in a view (which never changes) the number
//! of the name in order, in `.snapshots` it comes from the name.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Engine;
use super::control::{SNAPDIR, SNAPDIR_NAME, STORE_NAME};
use super::past::{Past, PastNode};
use super::request::{Listed, Names, NodeId};
use crate::store::ids::Slot;
use crate::sys::lock::Mutex;
use crate::sys::{Kind, SysResult};

/// Names handed out at once: more than fit into one reply of the kernel's.
const BATCH: usize = 512;
/// Listings of views that are kept.
const KEPT_MAX: usize = 64;
/// The offset after `.snapshots`, where it is listed: one that no filesystem has.
const AFTER_SNAPDIR: u64 = 1 << 62 | 0x736e_6170;

/// The listings of views that were made last: a long one is asked for in parts, and a short one twice, to hear that it has ended.
#[derive(Default)]
pub(super) struct Kept(Mutex<VecDeque<(NodeId, Arc<Vec<Listed>>)>>);

impl Kept {
    fn get(&self, node: NodeId, make: impl FnOnce() -> SysResult<Vec<Listed>>) -> SysResult<Arc<Vec<Listed>>> {
        if let Some((_, known)) = self.0.lock().iter().find(|(of, _)| *of == node) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(make()?);
        let mut kept = self.0.lock();
        kept.push_front((node, Arc::clone(&made)));
        kept.truncate(KEPT_MAX);
        Ok(made)
    }
}

/// The part of a whole listing, in the order of its offsets, that comes after `offset`.
fn part(all: &[Listed], offset: u64) -> Names {
    let from = all.partition_point(|listed| listed.next <= offset);
    let names: Vec<Listed> = all.iter().skip(from).take(BATCH).cloned().collect();
    Names { last: from + names.len() == all.len(), names }
}

impl Engine {
    /// Names of a live directory, and of `.snapshots` after those of the root, if it is to be seen.
    pub(super) fn list_live(&self, node: NodeId, slot: Slot, offset: u64) -> SysResult<Names> {
        if offset == AFTER_SNAPDIR {
            return Ok(Names { names: Vec::new(), last: true });
        }
        let (entries, last) = self.live.read_dir(slot.into(), offset, BATCH)?;
        let mut names = Vec::with_capacity(entries.len() + 1);
        for (entry, child) in entries {
            let node = match entry.name.as_slice() {
                b"." => node,
                b".." => self.live.parent(slot).map_or(node, |parent| NodeId(parent.0)),
                SNAPDIR_NAME | STORE_NAME if slot == Slot::ROOT => continue,
                _ => NodeId(child.slot.0),
            };
            names.push(Listed { name: entry.name, node, kind: child.kind, slot: node.0, next: entry.next });
        }
        if last && slot == Slot::ROOT && self.config.snapdir_visible {
            names.push(Listed { name: SNAPDIR_NAME.to_vec(), node: SNAPDIR, kind: Kind::Dir, slot: SNAPDIR.0, next: AFTER_SNAPDIR });
        }
        Ok(Names { names, last })
    }

    /// Names of a directory of a view.
    pub(super) fn list_past(&self, dir: &PastNode, offset: u64) -> SysResult<Names> {
        self.check_kept(dir)?;
        let all = self.kept_listings.get(dir.id, || {
            let mut names = self.view(dir.state()).list(&dir.trail)?;
            names.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
            let dot = |name: &[u8]| (name.to_vec(), dir.id, Kind::Dir, dir.id.0);
            let children = names.into_iter().map(|(name, child)| {
                let node = Past::number(dir.checkpoint, dir.named, child);
                (name.as_bytes().to_vec(), node, child.kind, child.slot.0)
            });
            let all = [dot(b"."), dot(b"..")].into_iter().chain(children).zip(1..);
            Ok(all.map(|((name, node, kind, slot), next)| Listed { name, node, kind, slot, next }).collect())
        })?;
        Ok(part(&all, offset))
    }

    /// Names in `.snapshots`.
    pub(super) fn list_control(&self, offset: u64) -> Names {
        self.snapdir_was_read();
        let mut all = self.list_snapshots();
        all.push(Listed { name: b".".to_vec(), node: SNAPDIR, kind: Kind::Dir, slot: SNAPDIR.0, next: 1 });
        all.push(Listed { name: b"..".to_vec(), node: NodeId(Slot::ROOT.0), kind: Kind::Dir, slot: Slot::ROOT.0, next: 2 });
        all.sort_by_key(|listed| listed.next);
        part(&all, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(next: u64) -> Listed {
        Listed { name: next.to_string().into_bytes(), node: NodeId(next), kind: Kind::File, slot: next, next }
    }

    #[test]
    fn a_part_goes_on_where_the_last_one_ended_even_when_that_name_is_gone() {
        let all: Vec<Listed> = (1..=2 * BATCH as u64).map(listed).collect();
        let first = part(&all, 0);
        assert_eq!((first.names.len(), first.last), (BATCH, false));
        let end = first.names.last().map_or(0, |last| last.next);
        let rest: Vec<Listed> = all.into_iter().filter(|listed| listed.next != end).collect();
        let second = part(&rest, end);
        assert_eq!(second.names.first().map(|listed| listed.next), Some(end + 1));
        assert!(second.last);
        assert!(part(&rest, u64::MAX).names.is_empty());
    }

    #[test]
    fn few_listings_are_kept() {
        let kept = Kept::default();
        let mut made = 0;
        for node in 0..=KEPT_MAX as u64 {
            assert!(kept.get(NodeId(node), || Ok(vec![listed(node)])).is_ok());
        }
        assert!(kept.get(NodeId(1), || Ok(Vec::new())).is_ok_and(|names| names.len() == 1), "it is kept");
        let again = kept.get(NodeId(0), || {
            made += 1;
            Ok(Vec::new())
        });
        assert!(again.is_ok_and(|names| names.is_empty()));
        assert_eq!(made, 1, "it was not");
    }
}
