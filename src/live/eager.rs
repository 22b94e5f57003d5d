//! Capturing ahead, and what it is for: a change that nobody recorded is recorded after all.
//!
//! **Capturing.** After a checkpoint, whatever changed in the epochs that it closed and has not
//! changed since is taken as it is: a clone of the data, attributes, extended attributes, and the
//! names of a directory. It is taken under the locks that a change of it takes, and recorded before
//! they are given back, so that it is older in the journal than the record of any change after.
//! Nothing becomes dirty: it is no undo record.
//!
//! **Using it.** When a daemon begins to serve, what was captured ahead is compared with what is
//! there. What differs was changed while nobody served the tree: what it was becomes an undo record
//! of the open epoch, and the change one like any other. A directory gets a ctime of now: its names
//! are all accounted for, and it shall not be taken for one that was changed unseen.
//!
//! What is taken under locks is taken by a thread of ordinary priority: an idle one could be kept
//! from running while it holds them.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::capture::data_undo;
use super::inodes::{At, at_place, target_of_fd};
use super::nodes::is_same;
use super::past::{Captures, Inodes, Past};
use super::tables::{Calls, HotFiles, Locks, NodeTable, Tables};
use crate::history::attribution::Author;
use crate::history::eager::{AheadNode, Changed};
use crate::history::timeline::Timeline;
use crate::store::ids::{Epoch, Name, ObjectId, Slot};
use crate::store::layout::STORE_NAME;
use crate::store::record::{AttrState, Child, Key, Undo};
use crate::sys::lock::Mutex;
use crate::sys::{self, Errno, Kind, Open, SetTime, Stat, SysResult};

/// Names in a directory that is captured ahead; of a larger one the names are not.
const ENTRIES_MAX: usize = 4096;
/// Inodes that are captured ahead after one look at the journal; what is beyond stays as it is
/// without.
const NODES_MAX: usize = 50_000;
/// With less space left nothing is captured ahead.
pub(super) const SPACE_KEPT_BYTES: u64 = 256 << 20;

/// Captures ahead, and records what was changed unseen. See the module.
pub struct Eager {
    timeline: Arc<Timeline>,
    locks: Arc<Locks>,
    nodes: Arc<NodeTable>,
    hot: Arc<HotFiles>,
    calls: Arc<Calls>,
    inodes: Arc<Inodes>,
    captures: Arc<Captures>,
    /// Objects that were captured ahead and may be superseded. A leaf.
    ahead_objects: Mutex<HashMap<Slot, Vec<ObjectId>>>,
    /// They have what an earlier daemon captured, too.
    knows_ahead: AtomicBool,
}

impl Eager {
    pub(super) fn new(tables: &Tables, past: &Past) -> Arc<Eager> {
        Arc::new(Eager {
            timeline: Arc::clone(&tables.timeline),
            locks: Arc::clone(&tables.locks),
            nodes: Arc::clone(&tables.nodes),
            hot: Arc::clone(&tables.hot),
            calls: Arc::clone(&tables.calls),
            inodes: Arc::clone(&past.inodes),
            captures: Arc::clone(&past.captures),
            ahead_objects: Mutex::default(),
            knows_ahead: AtomicBool::new(false),
        })
    }

    /// Captures ahead what changed in epochs that were closed since this was last done. `go_on` is
    /// asked before each inode. `false`: something could not be taken just now, and all of it is to
    /// be tried again.
    ///
    /// # Errors
    /// ENOSPC if little space is left; EIO.
    pub(super) fn capture_ahead(&self, mut go_on: impl FnMut() -> bool) -> SysResult<bool> {
        let done = self.timeline.ahead.upto()?;
        let Some(upto) = self
            .timeline
            .catalogue
            .newest_stored()
            .map(|id| id.epoch())
            .filter(|upto| *upto > done)
        else {
            return Ok(true);
        };
        self.find_ahead()?;
        self.drop_unbelieved();
        let changed = self.timeline.ahead.changed_after(done)?;
        let mut all = true;
        for slot in self.slots_of(&changed) {
            if !go_on() {
                return Ok(false);
            }
            if self.timeline.store().layers.free_bytes()? < SPACE_KEPT_BYTES {
                return Err(Errno::ENOSPC);
            }
            self.flush_ahead(slot);
            match self.capture_one_ahead(slot, done) {
                Err(errno @ (Errno::ENOSPC | Errno::EDQUOT)) => return Err(errno),
                // It is gone, or cannot be read: then it is not captured ahead.
                Err(errno) => {
                    tracing::debug!(slot = slot.0, %errno, "an inode is not captured ahead")
                }
                Ok(taken) => all &= taken,
            }
            self.drop_superseded(slot)?;
        }
        if all {
            // What has a record in the open epoch by now is looked at again when that is closed.
            self.timeline
                .ahead
                .add(self.timeline.epochs.epoch(), Vec::new(), upto)?;
        }
        Ok(all)
    }

    /// Writes a file back before anybody has to wait for it: a clone must do that first.
    fn flush_ahead(&self, slot: Slot) {
        let file = {
            let _tree = self.locks.tree.read();
            self.inodes.open_file(At::from(slot), Open::READ)
        };
        if let Ok((file, _)) = file
            && sys::dirty_pages(&file).is_ok_and(|dirty| dirty > 0)
        {
            // What fails here fails again when it is cloned.
            let _ = sys::start_writeback(&file).and_then(|()| sys::finish_writeback(&file));
        }
    }

    /// Removes what was captured ahead of a file and is of no use any more: a record has an object
    /// of its own, or a later one was captured.
    fn drop_superseded(&self, slot: Slot) -> SysResult<()> {
        let Some(mut objects) = self.ahead_objects.lock().remove(&slot) else {
            return Ok(());
        };
        let newest = objects.last().copied();
        let mut kept = Vec::new();
        for object in objects.drain(..) {
            match self
                .timeline
                .lookup
                .data_since(slot, object.epoch)?
                .map(|data| data.before.object)
            {
                None if Some(object) == newest => kept.push(object),
                // It became the record's.
                Some(recorded) if recorded == Some(object) => {}
                None | Some(_) => self.captures.drop_object(object),
            }
        }
        if !kept.is_empty() {
            self.ahead_objects.lock().insert(slot, kept);
        }
        Ok(())
    }

    /// Finds what a daemon that was killed has captured ahead, once: whoever takes over from it was
    /// told of none.
    fn find_ahead(&self) -> SysResult<()> {
        if self.knows_ahead.load(Ordering::SeqCst) {
            return Ok(());
        }
        let found = self.timeline.ahead.objects()?;
        let mut ahead = self.ahead_objects.lock();
        for (slot, object) in found {
            let objects = ahead.entry(slot).or_default();
            if !objects.contains(&object) {
                objects.insert(0, object);
            }
        }
        self.knows_ahead.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Removes what was captured ahead and is not believed any more, because no checkpoint is kept
    /// that is older.
    fn drop_unbelieved(&self) {
        let oldest = self
            .timeline
            .catalogue
            .stored_ids()
            .first()
            .map_or(Epoch(u64::MAX), |id| id.epoch());
        let slots: Vec<Slot> = {
            let ahead = self.ahead_objects.lock();
            ahead
                .iter()
                .filter(|(_, objects)| objects.iter().any(|object| object.epoch <= oldest))
                .map(|(slot, _)| *slot)
                .collect()
        };
        for slot in slots {
            let Some(objects) = self.ahead_objects.lock().remove(&slot) else {
                continue;
            };
            for object in objects {
                match self.timeline.lookup.data_since(slot, object.epoch) {
                    Ok(Some(data)) if data.before.object == Some(object) => {}
                    Ok(_) if object.epoch <= oldest => self.captures.drop_object(object),
                    Ok(_) | Err(_) => self
                        .ahead_objects
                        .lock()
                        .entry(slot)
                        .or_default()
                        .push(object),
                }
            }
        }
    }

    fn child_now(&self, dir: Slot, name: &Name) -> SysResult<Child> {
        let _tree = self.locks.tree.read();
        let stat = sys::stat_at(&self.inodes.dir(dir)?, name.as_bytes())?;
        let child = Child {
            slot: self.inodes.slot_of(&stat)?,
            kind: stat.kind,
        };
        // So that it is found again.
        self.inodes.found.remember(dir, name, child.slot);
        Ok(child)
    }

    /// The inodes that changed and are there still, and all below directories that were made then:
    /// of what is in those there are no records.
    fn slots_of(&self, changed: &Changed) -> Vec<Slot> {
        let mut wanted: HashSet<Slot> = changed.nodes.keys().copied().collect();
        let is_new = |child: Child, epoch: Epoch| {
            child.kind == Kind::Dir
                && changed
                    .nodes
                    .get(&child.slot)
                    .copied()
                    .flatten()
                    .is_none_or(|first| first > epoch)
        };
        let mut walked = HashSet::new();
        let mut open = Vec::new();
        for ((dir, name), epoch) in &changed.names {
            let Ok(child) = self.child_now(*dir, name) else {
                continue;
            };
            wanted.insert(child.slot);
            if is_new(child, *epoch) && walked.insert(child.slot) {
                open.push((child.slot, *epoch));
            }
        }
        while let Some((dir, epoch)) = open.pop() {
            for name in self.names_now(dir) {
                let Ok(child) = self.child_now(dir, &name) else {
                    continue;
                };
                if wanted.len() < NODES_MAX {
                    wanted.insert(child.slot);
                    if is_new(child, epoch) && walked.insert(child.slot) {
                        open.push((child.slot, epoch));
                    }
                }
            }
        }
        wanted.into_iter().take(NODES_MAX).collect()
    }

    fn names_now(&self, dir: Slot) -> Vec<Name> {
        let _tree = self.locks.tree.read();
        let (names, _) = self
            .inodes
            .read_dir(dir.into(), 0, NODES_MAX)
            .unwrap_or_default();
        let names = names
            .into_iter()
            .filter(|(entry, _)| !matches!(entry.name.as_slice(), b"." | b".."));
        names.map(|(entry, _)| Name::new(&entry.name)).collect()
    }

    /// The inode has no record in the open epoch, and is not of it.
    fn is_untouched(&self, slot: Slot) -> bool {
        !self.timeline.epochs.is_born(slot)
            && self.timeline.epochs.needs(&Key::Attr(slot))
            && self.timeline.epochs.needs(&Key::Data(slot))
            && !self.nodes.is_dead(slot)
    }

    /// `false`: it may be changing just now.
    fn capture_one_ahead(&self, slot: Slot, upto: Epoch) -> SysResult<bool> {
        let _changing = self.locks.changing();
        let _tree = self.locks.tree.read();
        let _stripe = self.locks.stripe(slot);
        // A checkpoint may have come since the journal was read: it is the epoch that is open now
        // that must have no record.
        let open = self.timeline.epochs.epoch();
        if !self.is_untouched(slot) {
            return Ok(true);
        }
        if self.hot.has(slot) || self.nodes.may_wait(slot) || self.calls.is_claimed(slot) {
            return Ok(false);
        }
        let fd = self.inodes.fd(At::from(slot))?;
        let stat = sys::stat_fd(&fd)?;
        let Some((undo, made)) = self.undo_ahead(open, slot, &fd, &stat)? else {
            return Ok(true);
        };
        let same = sys::stat_fd(&fd).is_ok_and(|now| is_same(&now, &stat));
        let kept = if same {
            self.timeline.ahead.add(open, undo, upto)
        } else {
            Ok(())
        };
        match made {
            Some(object) if !same || kept.is_err() => self.captures.drop_object(object),
            Some(object) => self
                .ahead_objects
                .lock()
                .entry(slot)
                .or_default()
                .push(object),
            None => {}
        }
        kept.map(|()| same)
    }

    /// What an inode holds, and the object that its content was captured into. `None`: it is a
    /// directory of too many names.
    fn undo_ahead(
        &self,
        open: Epoch,
        slot: Slot,
        fd: &OwnedFd,
        stat: &Stat,
    ) -> SysResult<Option<(Vec<Undo>, Option<ObjectId>)>> {
        let target = target_of_fd(stat, fd)?;
        let before = AttrState {
            stat: self.inodes.base().shown(slot, *stat),
            target,
        };
        let mut undo = vec![
            Undo::Attr { slot, before },
            Undo::Xattrs {
                slot,
                before: sys::all_xattrs(fd)?,
            },
        ];
        self.captures
            .keep_homes_ahead(slot, &mut HashSet::new(), &mut undo);
        let mut made = None;
        if stat.kind == Kind::Dir {
            let Some(entries) = self.entries_ahead(slot)? else {
                return Ok(None);
            };
            undo.extend(entries);
        } else if stat.kind == Kind::File {
            let file = sys::reopen(fd, Open::READ)?;
            made = self
                .captures
                .capture_object_in(open, slot, &file, stat.size)?;
            undo.push(data_undo(slot, made, stat.size, false));
        }
        Ok(Some((undo, made)))
    }

    fn entries_ahead(&self, dir: Slot) -> SysResult<Option<Vec<Undo>>> {
        let (names, last) = self.inodes.read_dir(dir.into(), 0, ENTRIES_MAX + 2)?;
        let ours = |name: &[u8]| {
            matches!(name, b"." | b"..") || (dir == Slot::ROOT && name == STORE_NAME.as_bytes())
        };
        let names = names.into_iter().filter(|(entry, _)| !ours(&entry.name));
        Ok(last.then(|| {
            names
                .map(|(entry, child)| Undo::Entry {
                    dir,
                    name: Name::new(&entry.name),
                    before: Some(child),
                })
                .collect()
        }))
    }

    /// Records what was changed while nobody served the tree, where it was captured ahead. Nothing
    /// may be served yet.
    ///
    /// # Errors
    /// ENOSPC or EIO of the journal; what was not recorded gives EIO in views.
    pub fn record_unseen(&self) -> SysResult<()> {
        for (slot, node) in self.timeline.ahead.standing()? {
            if let Some(object) = node.data.and_then(|data| data.object) {
                self.ahead_objects
                    .lock()
                    .entry(slot)
                    .or_default()
                    .push(object);
            }
            // What the baseline has told is on record.
            let Some(attr) = node
                .attr
                .as_ref()
                .filter(|_| self.timeline.epochs.needs(&Key::Attr(slot)))
            else {
                continue;
            };
            let now = self
                .inodes
                .fd(At::from(slot))
                .and_then(|fd| Ok((sys::stat_fd(&fd)?, fd)))
                .ok();
            if now
                .as_ref()
                .is_some_and(|(stat, _)| is_same(stat, &attr.stat))
            {
                continue;
            }
            let undo = self.unseen(slot, &node, attr);
            self.timeline
                .epochs
                .record(&Author::default(), undo, Vec::new())?;
            self.timeline.epochs.count(1);
            if let Some((stat, fd)) = now.filter(|(stat, _)| stat.kind == Kind::Dir) {
                sys::utimens_fd(&fd, SetTime::Omit, SetTime::At(stat.mtime))?;
            }
        }
        Ok(())
    }

    /// What an inode held before a change that nobody saw.
    fn unseen(&self, slot: Slot, node: &AheadNode, attr: &AttrState) -> Vec<Undo> {
        let mut undo = vec![Undo::Attr {
            slot,
            before: attr.clone(),
        }];
        undo.extend(
            node.xattrs
                .clone()
                .map(|before| Undo::Xattrs { slot, before }),
        );
        undo.extend(node.data.map(|before| Undo::Data { slot, before }));
        self.captures.keep_homes(slot.into(), &mut undo);
        if attr.stat.kind != Kind::Dir {
            return undo;
        }
        let live = crate::history::present::Present::list(&*self.inodes, &at_place(slot))
            .unwrap_or_default();
        let live: std::collections::BTreeMap<Name, Child> = live.into_iter().collect();
        for (name, child) in &node.entries {
            if live.get(name) != Some(child) {
                undo.push(Undo::Entry {
                    dir: slot,
                    name: name.clone(),
                    before: Some(*child),
                });
            }
        }
        for name in live.keys().filter(|name| !node.entries.contains_key(*name)) {
            undo.push(Undo::Entry {
                dir: slot,
                name: name.clone(),
                before: None,
            });
        }
        undo
    }
}
