//! A tree in memory, for tests of planning and execution.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::Tree;
use super::apply::Sink;
use super::plan::{DirPlan, InodeAction};
use crate::history::present::Trail;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{AttrState, Child, Place};
use ckptfs_sys::{Errno, Kind, Protection, RenameMode, Stat, SysResult, Time, Xattrs};

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// A directory with its mode.
    Dir(u32, BTreeMap<Name, Slot>),
    /// A file with its mode and content.
    File(u32, u8),
}

/// The inodes of a tree, by number. The staging directory is a second root.
#[derive(Clone, Debug)]
pub(super) struct MemoryTree {
    pub(super) nodes: HashMap<Slot, Node>,
    pub(super) last: u64,
    /// Birth times, where set.
    pub(super) births: HashMap<Slot, i64>,
}

impl MemoryTree {
    pub(super) fn new() -> MemoryTree {
        let dir = || Node::Dir(0o755, BTreeMap::new());
        MemoryTree {
            nodes: HashMap::from([(Slot::ROOT, dir()), (Slot::STAGING, dir())]),
            last: 100,
            births: HashMap::new(),
        }
    }

    pub(super) fn names(&self, dir: Slot) -> &BTreeMap<Name, Slot> {
        match self.nodes.get(&dir) {
            Some(Node::Dir(_, names)) => names,
            _ => panic!("{dir:?} is no directory"),
        }
    }

    pub(super) fn names_mut(&mut self, dir: Slot) -> &mut BTreeMap<Name, Slot> {
        match self.nodes.get_mut(&dir) {
            Some(Node::Dir(_, names)) => names,
            _ => panic!("{dir:?} is no directory"),
        }
    }

    pub(super) fn kind(&self, slot: Slot) -> Kind {
        if matches!(self.nodes.get(&slot), Some(Node::Dir(..))) {
            Kind::Dir
        } else {
            Kind::File
        }
    }

    /// Returns the inode at a place. A recreated inode has another number than the one it replaces.
    fn at(&self, place: &Place) -> Slot {
        *self.names(place.parent).get(&place.name).expect("a name")
    }

    /// Returns every place of every inode.
    pub(super) fn places(&self) -> Vec<(Slot, Place)> {
        let dirs = self.nodes.iter().filter_map(|(dir, node)| {
            if let Node::Dir(_, names) = node {
                Some((*dir, names))
            } else {
                None
            }
        });
        dirs.flat_map(|(parent, names)| {
            names.iter().map(move |(name, slot)| {
                (
                    *slot,
                    Place {
                        parent,
                        name: name.clone(),
                    },
                )
            })
        })
        .collect()
    }

    pub(super) fn links(&self, slot: Slot) -> BTreeSet<Place> {
        self.places()
            .into_iter()
            .filter(|(found, _)| *found == slot)
            .map(|(_, place)| place)
            .collect()
    }

    /// Reports whether `slot` is `dir` or an ancestor of it.
    pub(super) fn is_at_or_above(&self, slot: Slot, dir: Slot) -> bool {
        let mut at = Some(dir);
        while let Some(dir) = at {
            if dir == slot {
                return true;
            }
            at = self.links(dir).first().map(|place| place.parent);
        }
        false
    }

    pub(super) fn add(&mut self, at: &Place, node: Node) -> Slot {
        self.last += 1;
        let slot = Slot(self.last);
        self.nodes.insert(slot, node);
        assert_eq!(
            self.names_mut(at.parent).insert(at.name.clone(), slot),
            None,
            "something is at {at:?}"
        );
        slot
    }

    /// Removes a name, everything below it, and every inode that thereby loses its last name.
    pub(super) fn remove_tree(&mut self, at: &Place) {
        let slot = self.names_mut(at.parent).remove(&at.name).expect("a name");
        if self.kind(slot) == Kind::Dir {
            for name in self.names(slot).keys().cloned().collect::<Vec<_>>() {
                self.remove_tree(&Place { parent: slot, name });
            }
        }
        if self.links(slot).is_empty() {
            self.nodes.remove(&slot);
        }
    }
}

impl Tree for MemoryTree {
    fn child(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<Child>> {
        Ok(self.names(dir.slot).get(name).map(|slot| Child {
            slot: *slot,
            kind: self.kind(*slot),
        }))
    }

    fn list(&self, dir: &Arc<Trail>) -> SysResult<Vec<(Name, Child)>> {
        Ok(self
            .names(dir.slot)
            .iter()
            .map(|(name, slot)| {
                (
                    name.clone(),
                    Child {
                        slot: *slot,
                        kind: self.kind(*slot),
                    },
                )
            })
            .collect())
    }

    fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState> {
        let (Node::Dir(mode, _) | Node::File(mode, _)) =
            self.nodes.get(&node.slot).ok_or(Errno::ESTALE)?;
        let nlink = self.links(node.slot).len() as u32;
        let time = Time::default();
        let stat = Stat {
            dev: 1,
            ino: node.slot.0,
            kind: self.kind(node.slot),
            mode: *mode,
            nlink,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: time,
            mtime: time,
            ctime: time,
            btime: self
                .births
                .get(&node.slot)
                .map(|sec| Time { sec: *sec, nsec: 0 }),
            protection: Protection::None,
        };
        Ok(AttrState { stat, target: None })
    }

    fn xattrs(&self, _node: &Arc<Trail>) -> SysResult<Xattrs> {
        Ok(Xattrs::new())
    }

    fn same_content(
        &self,
        file: &Arc<Trail>,
        other: &MemoryTree,
        there: &Arc<Trail>,
    ) -> SysResult<bool> {
        match (self.nodes.get(&file.slot), other.nodes.get(&there.slot)) {
            (Some(Node::File(_, a)), Some(Node::File(_, b))) => Ok(a == b),
            _ => Err(Errno::ESTALE),
        }
    }

    fn read(&self, file: &Arc<Trail>, _most: u64) -> SysResult<Option<Vec<u8>>> {
        match self.nodes.get(&file.slot) {
            Some(Node::File(_, byte)) => Ok(Some(vec![*byte])),
            _ => Err(Errno::ESTALE),
        }
    }
}

/// A sink that turns a tree into another.
pub(super) struct MemorySink<'a> {
    pub(super) tree: MemoryTree,
    pub(super) wanted: &'a MemoryTree,
    /// Inodes put in place.
    put: HashSet<Slot>,
    /// Inodes to put in place at the next flush.
    later: Vec<(Child, Place)>,
    /// Delays [`Sink::put`] until the next flush.
    pub(super) late: bool,
}

impl MemorySink<'_> {
    pub(super) fn new(tree: MemoryTree, wanted: &MemoryTree, late: bool) -> MemorySink<'_> {
        MemorySink {
            tree,
            wanted,
            put: HashSet::new(),
            later: Vec::new(),
            late,
        }
    }

    fn put_now(&mut self, child: Child, at: &Place) {
        if self.tree.names(at.parent).contains_key(&at.name) {
            self.tree.remove_tree(at);
        }
        let node = self.wanted.nodes.get(&child.slot).expect("wanted").clone();
        self.tree.add(at, node);
    }

    /// Asserts that all queued inodes were flushed, as the contract of [`Sink`] requires.
    fn settled(&self) {
        assert!(
            self.later.is_empty(),
            "{:?} is not in place yet",
            self.later
        );
    }
}

impl Sink for MemorySink<'_> {
    fn locate(&self, child: Child, _want: Option<&Arc<Trail>>) -> SysResult<Place> {
        self.settled();
        self.tree.links(child.slot).pop_last().ok_or(Errno::ESTALE)
    }

    fn has_one_name(&self, want: &Arc<Trail>) -> bool {
        self.wanted.links(want.slot).len() == 1
    }

    fn rewrite(&mut self, child: Child, want: &Arc<Trail>, content: InodeAction) -> SysResult<()> {
        let Some(Node::File(mode, bytes)) = self.wanted.nodes.get(&want.slot) else {
            return Err(Errno::ESTALE);
        };
        let Some(Node::File(has_mode, has)) = self.tree.nodes.get_mut(&child.slot) else {
            return Err(Errno::ESTALE);
        };
        *has_mode = *mode;
        if content == InodeAction::InPlace {
            *has = *bytes;
        }
        Ok(())
    }

    fn rename(
        &mut self,
        child: Child,
        from: &Place,
        to: &Place,
        mode: RenameMode,
    ) -> SysResult<()> {
        self.settled();
        let slot = self.tree.at(from);
        assert!(
            !self.tree.is_at_or_above(slot, to.parent),
            "a directory is moved into itself"
        );
        match self.tree.names(to.parent).get(&to.name).copied() {
            Some(_) if mode == RenameMode::NoReplace => return Err(Errno::EEXIST),
            Some(there) if self.tree.kind(there) != child.kind => return Err(Errno::EISDIR),
            // As rename(2), which does nothing then.
            Some(there) if there == slot => return Ok(()),
            Some(_) => self.tree.remove_tree(to),
            None => {}
        }
        self.tree.names_mut(from.parent).remove(&from.name);
        self.tree.names_mut(to.parent).insert(to.name.clone(), slot);
        Ok(())
    }

    fn link(&mut self, _child: Child, from: &Place, to: &Place) -> SysResult<()> {
        self.settled();
        let slot = self.tree.at(from);
        match self.tree.names(to.parent).get(&to.name) {
            Some(_) => Err(Errno::EEXIST),
            None => {
                self.tree.names_mut(to.parent).insert(to.name.clone(), slot);
                Ok(())
            }
        }
    }

    fn remove(&mut self, dir: &Arc<Trail>, name: &Name, have: Child) -> SysResult<()> {
        self.settled();
        if self
            .tree
            .child(dir, name)?
            .is_some_and(|now| now.slot == have.slot)
        {
            self.tree.remove_tree(&Place {
                parent: dir.slot,
                name: name.clone(),
            });
        }
        Ok(())
    }

    fn make_dir(&mut self, _want: &Arc<Trail>, at: &Place) -> SysResult<Slot> {
        self.settled();
        Ok(self.tree.add(at, Node::Dir(0o700, BTreeMap::new())))
    }

    fn make(&mut self, _child: Child, _want: &Arc<Trail>) -> SysResult<()> {
        Ok(())
    }

    fn put(&mut self, child: Child, at: &Place) -> SysResult<bool> {
        if !self.put.insert(child.slot) {
            return Ok(false);
        }
        self.later.push((child, at.clone()));
        if !self.late {
            self.flush()?;
        }
        Ok(true)
    }

    fn flush(&mut self) -> SysResult<()> {
        for (child, at) in std::mem::take(&mut self.later) {
            self.put_now(child, &at);
        }
        Ok(())
    }

    fn arrived(&mut self, _child: Child) -> SysResult<()> {
        Ok(())
    }

    fn apply_attrs(&mut self, dir: &DirPlan, here: Slot) -> SysResult<()> {
        let Some(Node::Dir(mode, _)) = self.wanted.nodes.get(&dir.want.slot) else {
            return Err(Errno::ESTALE);
        };
        let Some(Node::Dir(has, _)) = self.tree.nodes.get_mut(&here) else {
            return Err(Errno::ESTALE);
        };
        *has = *mode;
        Ok(())
    }
}
