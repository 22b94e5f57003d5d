//! A cache over the live tree that looks up each name and inode once.
//!
//! All users of one cache see the same state, and threads can fill it ahead. Later changes are not
//! visible. The planner then checks that nothing has changed, or plans again. For a past state the
//! result is exact in any case: a live answer counts only if no record follows, and every change
//! has a record.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use super::threads;
use crate::history::present::{LiveTree, Trail, absent_beyond};
use crate::history::touched::Touched;
use crate::live::{Live, NodeRef};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{AttrState, Child, Place};
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{Kind, Stat, SysResult, Time, Xattrs};

/// Names of one directory in one job.
const NAMES_AT_ONCE: usize = 64;
/// Minimum number of jobs for another thread.
const PARTS_FROM: usize = 3;

/// The cache over the live tree.
pub(in crate::engine) struct StatCache<'a> {
    live: &'a Live,
    seen: Mutex<StatCacheEntries>,
}

#[derive(Default)]
struct StatCacheEntries {
    names: HashMap<Slot, HashMap<Name, Option<Child>>>,
    /// Attributes of inodes other than symbolic links.
    stats: HashMap<Slot, Stat>,
    xattrs: HashMap<Slot, Xattrs>,
}

impl StatCacheEntries {
    fn note(&mut self, dir: Slot, name: &Name, found: Option<(Child, Stat)>) {
        self.names
            .entry(dir)
            .or_default()
            .insert(name.clone(), found.map(|(child, _)| child));
        if let Some((child, stat)) = found.filter(|(child, _)| child.kind != Kind::Symlink) {
            self.stats.insert(child.slot, stat);
        }
    }
}

impl<'a> StatCache<'a> {
    pub(in crate::engine) fn new(live: &'a Live) -> StatCache<'a> {
        StatCache {
            live,
            seen: Mutex::default(),
        }
    }

    /// Empties the cache.
    pub(in crate::engine) fn look_anew(&self) {
        *self.seen.lock() = StatCacheEntries::default();
    }

    /// Looks up all recorded names ahead. Failed look-ups are repeated on demand.
    pub(super) fn look_ahead(&self, touched: &Touched) {
        let dirs: Vec<(Slot, Vec<&Name>)> = touched
            .names
            .iter()
            .map(|(dir, names)| (*dir, names.iter().collect()))
            .collect();
        let jobs: Vec<(Slot, &[&Name])> = dirs
            .iter()
            .flat_map(|(dir, names)| names.chunks(NAMES_AT_ONCE).map(|names| (*dir, names)))
            .collect();
        let look = |(dir, names): &(Slot, &[&Name])| {
            let found: Vec<_> = names
                .iter()
                .filter_map(|name| {
                    Some((
                        *name,
                        self.live
                            .inodes
                            .stat_child(NodeRef::from(*dir), name)
                            .ok()?,
                    ))
                })
                .collect();
            let mut seen = self.seen.lock();
            found
                .into_iter()
                .for_each(|(name, found)| seen.note(*dir, name, found));
            Ok(())
        };
        let _ = threads::each(&jobs, ("look", PARTS_FROM), look);
    }
}

impl LiveTree for StatCache<'_> {
    fn child(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<Child>> {
        if let Some(known) = self
            .seen
            .lock()
            .names
            .get(&dir.slot)
            .and_then(|names| names.get(name))
        {
            return Ok(*known);
        }
        let found = self.live.inodes.stat_child(dir.into(), name);
        let found = found.or_else(absent_beyond)?;
        self.seen.lock().note(dir.slot, name, found);
        Ok(found.map(|(child, _)| child))
    }

    fn list(&self, dir: &Arc<Trail>) -> SysResult<Vec<(Name, Child)>> {
        self.live.inodes.list(dir)
    }

    fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState> {
        if let Some(stat) = self.seen.lock().stats.get(&node.slot) {
            return Ok(AttrState {
                stat: *stat,
                target: None,
            });
        }
        let attr = self.live.inodes.attr(node)?;
        if attr.target.is_none() {
            self.seen.lock().stats.insert(node.slot, attr.stat);
        }
        Ok(attr)
    }

    fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs> {
        if let Some(xattrs) = self.seen.lock().xattrs.get(&node.slot) {
            return Ok(xattrs.clone());
        }
        let xattrs = self.live.inodes.xattrs(node)?;
        self.seen.lock().xattrs.insert(node.slot, xattrs.clone());
        Ok(xattrs)
    }

    fn open(&self, node: &Arc<Trail>) -> SysResult<File> {
        LiveTree::open(&*self.live.inodes, node)
    }

    fn ctime_of(&self, node: &Arc<Trail>, file: &File) -> SysResult<Time> {
        self.live.inodes.ctime_of(node, file)
    }

    fn place(&self, slot: Slot) -> Option<Place> {
        self.live.inodes.place(slot)
    }

    fn renames(&self) -> Option<u64> {
        self.live.inodes.renames()
    }
}
