//! A tree becomes another after any sequence of moves, links, exchanges, removals and creations;
//! inodes in both trees stay the same.

use std::collections::{BTreeMap, HashMap};

use proptest::collection::vec;
use proptest::prelude::*;

use super::apply::apply;
use super::memory::{MemorySink, MemoryTree, Node};
use super::pair::plan;
use super::plan::{InodeAction, NameChange, RescuedPath};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{Child, Place};
use ckptfs_sys::Kind;

/// An operation on a tree; places and inodes are selected among the existing ones.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Make {
        dir: usize,
        name: u8,
        is_dir: bool,
    },
    Link {
        of: usize,
        dir: usize,
        name: u8,
    },
    /// Includes moves into the replaced directory, and moves that replace a tree.
    Move {
        of: usize,
        dir: usize,
        name: u8,
    },
    Exchange {
        a: usize,
        b: usize,
    },
    /// Moves a directory into its replacement.
    Wrap {
        of: usize,
        name: u8,
    },
    Remove {
        of: usize,
    },
    Write {
        of: usize,
        byte: u8,
    },
    Chmod {
        of: usize,
        mode: u32,
    },
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let (nth, name) = (0..64_usize, 0..5_u8);
    prop_oneof![
        3 => (nth.clone(), name.clone(), any::<bool>()).prop_map(|(dir, name, is_dir)| Op::Make { dir, name, is_dir }),
        1 => (nth.clone(), nth.clone(), name.clone()).prop_map(|(of, dir, name)| Op::Link { of, dir, name }),
        3 => (nth.clone(), nth.clone(), name.clone()).prop_map(|(of, dir, name)| Op::Move { of, dir, name }),
        2 => (nth.clone(), nth.clone()).prop_map(|(a, b)| Op::Exchange { a, b }),
        1 => (nth.clone(), name).prop_map(|(of, name)| Op::Wrap { of, name }),
        1 => nth.clone().prop_map(|of| Op::Remove { of }),
        1 => (nth.clone(), any::<u8>()).prop_map(|(of, byte)| Op::Write { of, byte }),
        1 => (nth, 0..0o777_u32).prop_map(|(of, mode)| Op::Chmod { of, mode }),
    ]
}

fn name_of(name: u8) -> Name {
    Name::new(&[b'a' + name])
}

impl MemoryTree {
    fn dirs(&self) -> Vec<Slot> {
        let mut dirs: Vec<Slot> = self
            .nodes
            .keys()
            .copied()
            .filter(|slot| *slot != Slot::STAGING && self.kind(*slot) == Kind::Dir)
            .collect();
        dirs.sort();
        dirs
    }

    fn chosen(&self, of: usize) -> Option<(Slot, Place)> {
        let mut places = self.places();
        places.sort();
        let count = places.len().max(1);
        places.into_iter().nth(of % count)
    }

    /// Returns an emptied place, or `None` if that would remove `keep` or put it into itself.
    fn place_for(&mut self, keep: Option<Slot>, dir: usize, name: u8) -> Option<Place> {
        let dirs = self.dirs();
        let at = Place {
            parent: dirs[dir % dirs.len()],
            name: name_of(name),
        };
        if keep.is_some_and(|keep| self.is_at_or_above(keep, at.parent)) {
            return None;
        }
        if let Some(there) = self.names(at.parent).get(&at.name).copied() {
            if keep.is_some_and(|keep| {
                self.links(keep)
                    .iter()
                    .all(|place| self.is_at_or_above(there, place.parent))
                    || there == keep
            }) {
                return None;
            }
            self.remove_tree(&at);
        }
        Some(at)
    }

    fn relink(&mut self, slot: Slot, from: &Place, to: &Place) {
        self.names_mut(from.parent).remove(&from.name);
        self.names_mut(to.parent).insert(to.name.clone(), slot);
    }

    /// Returns `None` if the operation is impossible here.
    fn carry_out(&mut self, op: &Op) -> Option<()> {
        match *op {
            Op::Make { dir, name, is_dir } => {
                let at = self.place_for(None, dir, name)?;
                self.add(
                    &at,
                    if is_dir {
                        Node::Dir(0o755, BTreeMap::new())
                    } else {
                        Node::File(0o644, 0)
                    },
                );
            }
            Op::Link { of, dir, name } => {
                let (slot, _) = self.chosen(of)?;
                if self.kind(slot) != Kind::Dir {
                    let at = self.place_for(Some(slot), dir, name)?;
                    self.names_mut(at.parent).insert(at.name, slot);
                }
            }
            Op::Move { of, dir, name } => {
                let (slot, from) = self.chosen(of)?;
                let to = self.place_for(Some(slot), dir, name)?;
                // It may have been below the removed tree and have another name.
                if self.nodes.contains_key(&from.parent)
                    && self.names(from.parent).get(&from.name) == Some(&slot)
                {
                    self.relink(slot, &from, &to);
                }
            }
            Op::Exchange { a, b } => {
                let ((a, at), (b, to)) = (self.chosen(a)?, self.chosen(b)?);
                if !self.is_at_or_above(a, to.parent) && !self.is_at_or_above(b, at.parent) {
                    self.names_mut(at.parent).insert(at.name, b);
                    self.names_mut(to.parent).insert(to.name, a);
                }
            }
            Op::Wrap { of, name } => {
                let (slot, from) = self.chosen(of)?;
                self.names_mut(from.parent).remove(&from.name);
                let above = self.add(&from, Node::Dir(0o755, BTreeMap::new()));
                self.names_mut(above).insert(name_of(name), slot);
            }
            Op::Remove { of } => {
                let (_, at) = self.chosen(of)?;
                self.remove_tree(&at);
            }
            Op::Write { of, byte } => {
                let (slot, _) = self.chosen(of)?;
                if let Some(Node::File(_, bytes)) = self.nodes.get_mut(&slot) {
                    *bytes = byte;
                }
            }
            Op::Chmod { of, mode } => {
                let (slot, _) = self.chosen(of)?;
                if let Some(Node::Dir(has, _) | Node::File(has, _)) = self.nodes.get_mut(&slot) {
                    *has = mode;
                }
            }
        }
        Some(())
    }

    pub(super) fn after(&self, ops: &[Op]) -> MemoryTree {
        let mut tree = self.clone();
        ops.iter().for_each(|op| _ = tree.carry_out(op));
        tree
    }

    /// Returns each path with its attributes, content, and the first path of its inode.
    pub(super) fn shown(&self) -> BTreeMap<Vec<u8>, (Node, Vec<u8>)> {
        let (mut shown, mut first) = (BTreeMap::new(), HashMap::new());
        let mut open = vec![(Vec::new(), Slot::ROOT)];
        while let Some((path, slot)) = open.pop() {
            let first = first.entry(slot).or_insert_with(|| path.clone()).clone();
            let node = match self.nodes.get(&slot).expect("an inode") {
                Node::Dir(mode, names) => {
                    open.extend(names.iter().rev().map(|(name, below)| {
                        ([&path, b"/".as_slice(), name.as_bytes()].concat(), *below)
                    }));
                    Node::Dir(*mode, BTreeMap::new())
                }
                file => file.clone(),
            };
            shown.insert(path, (node, first));
        }
        shown
    }
}

/// Plans and executes a change from one tree to another, and checks the result.
#[track_caller]
fn becomes(from: &MemoryTree, to: &MemoryTree, late: bool) -> MemoryTree {
    let plan = plan(from, to, None).expect("a plan");
    let mut becoming = MemorySink::new(from.clone(), to, late);
    apply(&plan, &mut becoming).expect("carried out");
    let tree = becoming.tree;
    assert_eq!(tree.shown(), to.shown(), "{plan:?}");
    assert_eq!(
        tree.names(Slot::STAGING),
        &BTreeMap::new(),
        "nothing stays aside"
    );
    for slot in to.nodes.keys().filter(|slot| from.nodes.contains_key(slot)) {
        if plan.contents.get(slot) != Some(&InodeAction::New) {
            assert!(
                tree.nodes.contains_key(slot),
                "{slot:?} was there, and is another inode: {plan:?}"
            );
        }
    }
    tree
}

proptest! {
    #![proptest_config(ckptfs_testkit::config())]

    #[test]
    fn a_tree_becomes_another(before in vec(op(), 0..40), ours in vec(op(), 0..12), theirs in vec(op(), 0..12), late in any::<bool>()) {
        let base = MemoryTree::new().after(&before);
        let mut other = base.after(&theirs);
        let one = base.after(&ours);
        // Numbers that both sides assigned denote two inodes.
        if !ours.is_empty() && !theirs.is_empty() {
            other = base.clone();
            other.last += 1000;
            other = other.after(&theirs);
        }
        becomes(&one, &other, late);
        let there = plan(&other, &other, None).expect("a plan");
        prop_assert!(there.dirs.iter().flat_map(|dir| &dir.names).all(|name| there.change(name) == Some(NameChange::Stays(InodeAction::Same))));
    }
}

/// `(path, is directory)`, created in this order.
pub(super) fn tree(paths: &[(&str, bool)]) -> (MemoryTree, HashMap<String, Slot>) {
    let (mut tree, mut slots) = (
        MemoryTree::new(),
        HashMap::from([(String::new(), Slot::ROOT)]),
    );
    for (path, is_dir) in paths {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let at = Place {
            parent: slots[above],
            name: Name::new(name.as_bytes()),
        };
        let content = u8::try_from(slots.len()).unwrap();
        let slot = tree.add(
            &at,
            if *is_dir {
                Node::Dir(0o755, BTreeMap::new())
            } else {
                Node::File(0o644, content)
            },
        );
        slots.insert((*path).to_owned(), slot);
    }
    (tree, slots)
}

#[test]
fn two_directories_that_changed_places_are_the_same_directories() {
    let (from, slots) = tree(&[("a", true), ("a/f", false), ("b", true), ("b/g", false)]);
    let mut to = from.clone();
    to.names_mut(Slot::ROOT)
        .extend([(Name::new(b"a"), slots["b"]), (Name::new(b"b"), slots["a"])]);
    let tree = becomes(&from, &to, true);
    assert_eq!(
        tree.names(Slot::ROOT).get(&Name::new(b"a")),
        Some(&slots["b"])
    );
    assert_eq!(tree.nodes.len(), from.nodes.len());
}

#[test]
fn a_directory_and_a_file_change_places_and_a_file_keeps_its_names() {
    let (mut from, slots) = tree(&[("d", true), ("d/f", false), ("g", false)]);
    from.names_mut(slots["d"])
        .insert(Name::new(b"g2"), slots["g"]);
    let mut to = from.clone();
    to.names_mut(Slot::ROOT)
        .extend([(Name::new(b"d"), slots["g"]), (Name::new(b"g"), slots["d"])]);
    let tree = becomes(&from, &to, false);
    assert_eq!(tree.links(slots["g"]).len(), 2);
}

#[test]
fn a_directory_is_moved_into_what_takes_its_place() {
    let (from, slots) = tree(&[("a", true), ("a/b", true), ("a/b/f", false)]);
    let mut to = from.clone();
    // `a/b` takes the place of `a`, and `a` moves into it.
    to.names_mut(slots["a"]).clear();
    to.names_mut(Slot::ROOT)
        .insert(Name::new(b"a"), slots["a/b"]);
    to.names_mut(slots["a/b"])
        .insert(Name::new(b"a"), slots["a"]);
    let tree = becomes(&from, &to, true);
    assert_eq!(
        tree.names(slots["a/b"]).get(&Name::new(b"a")),
        Some(&slots["a"])
    );
}

#[test]
fn what_was_renamed_and_written_to_is_told_by_two_parts_of_a_plan() {
    let (from, slots) = tree(&[("f", false), ("g", false)]);
    let mut to = from.clone();
    to.names_mut(Slot::ROOT).remove(&Name::new(b"f"));
    to.names_mut(Slot::ROOT).insert(Name::new(b"h"), slots["f"]);
    to.nodes.insert(slots["f"], Node::File(0o600, 1));
    let plan = plan(&from, &to, None).expect("a plan");
    assert_eq!(
        plan.contents,
        HashMap::from([
            (slots["f"], InodeAction::Attributes),
            (slots["g"], InodeAction::Same)
        ])
    );
    let changes: Vec<_> = plan.dirs[0]
        .names
        .iter()
        .map(|name| (name.name.as_bytes(), plan.change(name)))
        .collect();
    let [
        (b"f", Some(NameChange::Goes(gone))),
        (b"g", Some(NameChange::Stays(InodeAction::Same))),
        (b"h", Some(NameChange::Comes(come))),
    ] = changes[..]
    else {
        panic!("{changes:?}")
    };
    assert_eq!((gone.slot, come.slot), (slots["f"], slots["f"]));
    becomes(&from, &to, true);
}

/// The rescued path has the number of a wanted file: its own was reused.
#[test]
fn what_stays_in_a_directory_that_goes_comes_to_the_one_that_takes_its_place() {
    let (from, slots) = tree(&[("a", true), ("a/stays", true), ("a/stays/f", false)]);
    let mut to = MemoryTree::new();
    to.last = from.last + 10;
    let above = to.add(
        &Place {
            parent: Slot::ROOT,
            name: Name::new(b"a"),
        },
        Node::Dir(0o755, BTreeMap::new()),
    );
    to.nodes.insert(slots["a/stays"], Node::File(0o600, 7));
    to.names_mut(above)
        .insert(Name::new(b"g"), slots["a/stays"]);
    let mut plan = plan(&from, &to, None).expect("a plan");
    plan.kept.push(RescuedPath {
        dir: plan
            .dirs
            .iter()
            .position(|dir| dir.want.slot == above)
            .expect("it is planned"),
        name: Name::new(b"stays"),
        child: Child {
            slot: slots["a/stays"],
            kind: Kind::Dir,
        },
        from: Place {
            parent: slots["a"],
            name: Name::new(b"stays"),
        },
        aside: Place {
            parent: Slot::STAGING,
            name: Name::new(b"kept-0"),
        },
    });
    let mut becoming = MemorySink::new(from, &to, true);
    apply(&plan, &mut becoming).expect("carried out");
    let shown: Vec<Vec<u8>> = becoming.tree.shown().into_keys().collect();
    assert_eq!(
        shown,
        [b"".as_slice(), b"/a", b"/a/g", b"/a/stays", b"/a/stays/f"]
    );
}
