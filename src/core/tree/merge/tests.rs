//! Changes of one side are applied, equal changes are applied once, conflicts are reported, and the
//! plan of a merge turns `ours` into its outcome.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::Tree;
use super::super::apply::apply;
use super::super::memory::{MemorySink, MemoryTree, Node};
use super::super::tests::{Op, op, tree};
use super::outcome::MergeOutcome;
use super::{ClashKind, ConflictPolicy, MergeOptions, MergeParty, merge};
use crate::history::present::Trail;
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::Place;
use ckptfs_sys::{Errno, Kind};

/// Copies the whole outcome to a tree in memory.
fn whole(outcome: &MergeOutcome<'_, MemoryTree>) -> MemoryTree {
    let mut tree = MemoryTree::new();
    let mut open = vec![Trail::root()];
    while let Some(dir) = open.pop() {
        let names = outcome.list(&dir).expect("listed");
        let mut below = BTreeMap::new();
        for (name, child) in names {
            below.insert(name.clone(), child.slot);
            let trail: Arc<Trail> = dir.step(&name, child.slot);
            if child.kind == Kind::Dir {
                assert!(!tree.nodes.contains_key(&child.slot), "no tree");
                tree.nodes.insert(child.slot, Node::Dir(0, BTreeMap::new()));
                open.push(trail);
            } else {
                let mode = outcome.attr(&trail).expect("attributes").stat.mode;
                let content = outcome.read(&trail, 1).expect("content").expect("short")[0];
                tree.nodes.insert(child.slot, Node::File(mode, content));
            }
        }
        let mode = outcome.attr(&dir).expect("attributes").stat.mode;
        tree.nodes.insert(dir.slot, Node::Dir(mode, below));
    }
    tree
}

/// Merges, and checks that the plan turns `ours` into the outcome.
#[track_caller]
fn merged(
    base: &MemoryTree,
    ours: &MemoryTree,
    theirs: &MemoryTree,
) -> (MemoryTree, Vec<(Vec<u8>, ClashKind, Slot)>) {
    merged_by(ConflictPolicy::Name, base, ours, theirs)
}

/// As [`merged`], with a policy; returns the conflicts that it does not settle.
#[track_caller]
fn merged_by(
    policy: ConflictPolicy<'_>,
    base: &MemoryTree,
    ours: &MemoryTree,
    theirs: &MemoryTree,
) -> (MemoryTree, Vec<(Vec<u8>, ClashKind, Slot)>) {
    let how = MergeOptions {
        policy,
        ..MergeOptions::default()
    };
    let outcome = merge(base, ours, theirs, &how).expect("a merge");
    let wanted = whole(&outcome);
    let plan = outcome.plan().expect("a plan");
    let mut becoming = MemorySink::new(ours.clone(), &wanted, true);
    apply(&plan, &mut becoming).expect("carried out");
    assert_eq!(becoming.tree.shown(), wanted.shown(), "{plan:?}");
    for place in wanted.places() {
        let trail = Trail::root().step(&place.1.name, place.0);
        let links = wanted.links(place.0).len();
        if wanted.kind(place.0) != Kind::Dir {
            let nlink = outcome.attr(&trail).expect("attributes").stat.nlink;
            assert_eq!(nlink as usize, links, "{place:?}");
        }
    }
    let conflicts = outcome
        .conflicts()
        .iter()
        .filter(|conflict| !conflict.settled);
    let conflicts =
        conflicts.map(|conflict| (conflict.path.clone(), conflict.clash.clone(), conflict.slot));
    (wanted, conflicts.collect())
}

/// Applies operations to a base on both sides; inodes created on them have different numbers.
fn sides(before: &[Op], ours: &[Op], theirs: &[Op]) -> [MemoryTree; 3] {
    let base = MemoryTree::new().after(before);
    let mut other = base.clone();
    other.last += 1000;
    [base.clone(), base.after(ours), other.after(theirs)]
}

fn three<V: PartialEq + Copy>(base: V, ours: V, theirs: V) -> Option<V> {
    match (ours == base, theirs == base) {
        (_, true) => Some(ours),
        (true, false) => Some(theirs),
        (false, false) => (ours == theirs).then_some(ours),
    }
}

proptest! {
    #![proptest_config(ckptfs_testkit::config())]

    #[test]
    fn what_one_side_did_is_done(before in vec(op(), 0..40), did in vec(op(), 0..12)) {
        let [base, changed, _] = sides(&before, &did, &[]);
        for (ours, theirs) in [(&base, &changed), (&changed, &base), (&changed, &changed)] {
            let (tree, conflicts) = merged(&base, ours, theirs);
            prop_assert_eq!(&tree.shown(), &changed.shown());
            prop_assert_eq!(conflicts, vec![]);
        }
    }

    #[test]
    fn what_both_did_is_done_or_named(before in vec(op(), 0..40), ours in vec(op(), 0..8), theirs in vec(op(), 0..8)) {
        let [base, ours, theirs] = sides(&before, &ours, &theirs);
        let (tree, conflicts) = merged(&base, &ours, &theirs);
        let (other, others) = merged(&base, &theirs, &ours);
        prop_assert_eq!(conflicts.is_empty(), others.is_empty(), "{:?} {:?}", conflicts, others);
        if conflicts.is_empty() {
            prop_assert_eq!(tree.shown(), other.shown());
        }
        let (by_ours, left) = merged_by(ConflictPolicy::Ours, &base, &ours, &theirs);
        prop_assert_eq!((by_ours.shown(), left.len()), (tree.shown(), 0));
        // Taking theirs equals taking ours with the sides exchanged.
        let (by_theirs, left) = merged_by(ConflictPolicy::Theirs, &base, &ours, &theirs);
        prop_assert_eq!((by_theirs.shown(), left.len()), (other.shown(), 0));
        // With both versions kept, only conflicts about directories remain.
        let (both, left) = merged_by(ConflictPolicy::KeepBoth(b"there"), &base, &ours, &theirs);
        if conflicts.is_empty() {
            prop_assert_eq!(both.shown(), tree.shown());
        }
        for (_, clash, slot) in left {
            let file = matches!(ours.nodes.get(&slot), Some(Node::File(..)));
            prop_assert!(!file || matches!(clash, ClashKind::Name | ClashKind::Directory(_)), "{:?} of {:?}", clash, slot);
        }
        // An independent oracle for inodes in all three states, identified by number.
        for (slot, node) in &base.nodes {
            let (Some(here), Some(there)) = (ours.nodes.get(slot), theirs.nodes.get(slot)) else { continue };
            let named = conflicts.iter().any(|(_, _, clashes)| clashes == slot);
            let values = |node: &Node| match node {
                Node::Dir(mode, _) => (*mode, None),
                Node::File(mode, content) => (*mode, Some(*content)),
            };
            let (b, o, t) = (values(node), values(here), values(there));
            match (three(b.0, o.0, t.0), three(b.1, o.1, t.1), tree.nodes.get(slot).map(values)) {
                (Some(mode), Some(content), Some(now)) => prop_assert_eq!((mode, content), now),
                // Each side may have removed some of its names.
                (Some(_), Some(_), None) => prop_assert!(
                    !conflicts.is_empty() || *slot == Slot::STAGING || no_name_stays(*slot, [&base, &ours, &theirs]),
                    "{:?} is gone", slot,
                ),
                _ => prop_assert!(named, "{:?} clashes, and is not among {:?}", slot, conflicts),
            }
        }
        // Every inode that a side created exists, unless it or a directory above it is in conflict.
        if conflicts.is_empty() {
            let made = |side: &MemoryTree| side.nodes.keys().filter(|slot| !base.nodes.contains_key(slot)).count();
            let there = tree.nodes.keys().filter(|slot| !base.nodes.contains_key(slot)).count();
            prop_assert!(there <= made(&ours) + made(&theirs));
        }
    }
}

/// Reports whether each name of a file, in the base or on a side, was removed or redirected by a
/// side, and neither side removed all of them.
fn no_name_stays(slot: Slot, all: [&MemoryTree; 3]) -> bool {
    let leads = |tree: &MemoryTree, place: &Place| tree.links(slot).contains(place);
    let [base, ours, theirs] = all;
    let mut places = all.iter().flat_map(|tree| tree.links(slot));
    places.all(|place| {
        three(
            leads(base, &place),
            leads(ours, &place),
            leads(theirs, &place),
        ) == Some(false)
    })
}

fn at(dir: Slot, name: &str) -> Place {
    Place {
        parent: dir,
        name: Name::new(name.as_bytes()),
    }
}

fn base() -> (MemoryTree, HashMap<String, Slot>) {
    tree(&[("d", true), ("d/f", false), ("g", false), ("e", true)])
}

impl MemoryTree {
    fn moved(&mut self, from: &Place, to: &Place) {
        let slot = self
            .names_mut(from.parent)
            .remove(&from.name)
            .expect("it is there");
        self.names_mut(to.parent).insert(to.name.clone(), slot);
    }

    fn written(&mut self, slot: Slot, byte: u8) {
        let Some(Node::File(_, has)) = self.nodes.get_mut(&slot) else {
            panic!("no file")
        };
        *has = byte;
    }
}

/// One side removes the first of two names of a file, the other redirects the second to a new file.
#[test]
fn a_file_goes_if_each_side_takes_one_of_its_names() {
    let (mut base, slots) = base();
    let (first, second) = (at(slots["e"], "first"), at(slots["d"], "f"));
    let file = slots["d/f"];
    base.names_mut(first.parent)
        .insert(first.name.clone(), file);
    let (mut ours, mut theirs) = (base.clone(), base.clone());
    ours.names_mut(first.parent).remove(&first.name);
    let new = Slot(5000);
    theirs.nodes.insert(new, Node::File(0o644, 7));
    theirs
        .names_mut(second.parent)
        .insert(second.name.clone(), new);
    assert!(no_name_stays(file, [&base, &ours, &theirs]));
    let (tree, conflicts) = merged(&base, &ours, &theirs);
    assert_eq!(conflicts, []);
    assert!(tree.links(file).is_empty());
    assert!(tree.names(second.parent).contains_key(&second.name));
}

/// One row of the conflict table: the changes of both sides, and the outcome.
#[track_caller]
fn clash(
    ours: impl Fn(&mut MemoryTree, &HashMap<String, Slot>),
    theirs: impl Fn(&mut MemoryTree, &HashMap<String, Slot>),
    clashes: &[(&str, ClashKind)],
    paths: &[&str],
) {
    let (base, slots) = base();
    let (mut here, mut there) = (base.clone(), base.clone());
    there.last += 1000;
    ours(&mut here, &slots);
    theirs(&mut there, &slots);
    let (tree, conflicts) = merged(&base, &here, &there);
    let conflicts: Vec<(&str, ClashKind)> = conflicts
        .iter()
        .map(|(path, clash, _)| (std::str::from_utf8(path).expect("a path"), clash.clone()))
        .collect();
    assert_eq!(conflicts, clashes);
    let shown: Vec<String> = tree
        .shown()
        .into_iter()
        .map(|(path, (node, _))| match node {
            Node::Dir(..) => String::from_utf8_lossy(&path).into_owned() + "/",
            Node::File(_, content) => format!("{}={content}", String::from_utf8_lossy(&path)),
        })
        .collect();
    assert_eq!(shown, paths);
}

const ROOT: Slot = Slot::ROOT;

#[test]
fn a_rename_here_and_an_edit_there_compose() {
    clash(
        |tree, slots| tree.moved(&at(slots["d"], "f"), &at(slots["e"], "h")),
        |tree, slots| tree.written(slots["d/f"], 9),
        &[],
        &["/", "/d/", "/e/", "/e/h=9", "/g=3"],
    );
}

#[test]
fn a_file_that_was_written_anew_and_renamed_into_place_is_what_it_was() {
    let replaced = |tree: &mut MemoryTree, slots: &HashMap<String, Slot>| {
        tree.remove_tree(&at(slots["d"], "f"));
        tree.add(&at(slots["d"], "f"), Node::File(0o644, 9));
    };
    clash(
        replaced,
        |tree, slots| tree.moved(&at(slots["d"], "f"), &at(ROOT, "f")),
        &[],
        &["/", "/d/", "/e/", "/f=9", "/g=3"],
    );
    clash(
        replaced,
        |tree, slots| tree.written(slots["d/f"], 8),
        &[("d/f", ClashKind::Content)],
        &["/", "/d/", "/d/f=9", "/e/", "/g=3"],
    );
}

#[test]
fn what_one_removed_and_the_other_changed_stays_as_ours_has_it() {
    clash(
        |tree, slots| tree.written(slots["g"], 9),
        |tree, _| tree.remove_tree(&at(ROOT, "g")),
        &[("g", ClashKind::Removed(MergeParty::Theirs))],
        &["/", "/d/", "/d/f=2", "/e/", "/g=9"],
    );
    clash(
        |tree, _| tree.remove_tree(&at(ROOT, "g")),
        |tree, slots| tree.written(slots["g"], 9),
        &[("g", ClashKind::Removed(MergeParty::Ours))],
        &["/", "/d/", "/d/f=2", "/e/"],
    );
}

#[test]
fn two_names_for_one_file_clash_and_so_do_two_files_at_one_name() {
    clash(
        |tree, _| tree.moved(&at(ROOT, "g"), &at(ROOT, "here")),
        |tree, _| tree.moved(&at(ROOT, "g"), &at(ROOT, "there")),
        &[("here", ClashKind::Moved)],
        &["/", "/d/", "/d/f=2", "/e/", "/here=3"],
    );
    let made = |content| {
        move |tree: &mut MemoryTree, _: &HashMap<String, Slot>| {
            tree.add(&at(ROOT, "new"), Node::File(0o644, content));
        }
    };
    clash(
        made(7),
        made(8),
        &[("new", ClashKind::Name)],
        &["/", "/d/", "/d/f=2", "/e/", "/g=3", "/new=7"],
    );
    clash(
        made(7),
        made(7),
        &[],
        &["/", "/d/", "/d/f=2", "/e/", "/g=3", "/new=7"],
    );
}

#[test]
fn a_directory_that_both_made_is_one() {
    let made = |name: &'static str| {
        move |tree: &mut MemoryTree, _: &HashMap<String, Slot>| {
            let dir = tree.add(&at(ROOT, "new"), Node::Dir(0o755, BTreeMap::new()));
            tree.add(&at(dir, name), Node::File(0o644, 1));
        }
    };
    clash(
        made("a"),
        made("b"),
        &[],
        &[
            "/", "/d/", "/d/f=2", "/e/", "/g=3", "/new/", "/new/a=1", "/new/b=1",
        ],
    );
}

#[test]
fn a_directory_that_both_made_with_other_permissions_has_those_of_ours() {
    let made = |mode| {
        move |tree: &mut MemoryTree, _: &HashMap<String, Slot>| {
            tree.add(&at(ROOT, "new"), Node::Dir(mode, BTreeMap::new()));
        }
    };
    clash(
        made(0o700),
        made(0o755),
        &[("new", ClashKind::Mode)],
        &["/", "/d/", "/d/f=2", "/e/", "/g=3", "/new/"],
    );
}

#[test]
fn a_directory_that_one_removed_stays_for_what_the_other_put_into_it() {
    clash(
        |tree, slots| {
            tree.add(&at(slots["d"], "new"), Node::File(0o644, 1));
        },
        |tree, _| tree.remove_tree(&at(ROOT, "d")),
        &[("d", ClashKind::Directory(MergeParty::Theirs))],
        &["/", "/d/", "/d/new=1", "/e/", "/g=3"],
    );
    clash(
        |tree, _| tree.remove_tree(&at(ROOT, "d")),
        |tree, slots| {
            tree.add(&at(slots["d"], "new"), Node::File(0o644, 1));
        },
        &[("d/new", ClashKind::Directory(MergeParty::Ours))],
        &["/", "/e/", "/g=3"],
    );
}

#[test]
fn directories_that_were_moved_into_each_other_stay_where_ours_has_them() {
    clash(
        |tree, slots| tree.moved(&at(ROOT, "d"), &at(slots["e"], "d")),
        |tree, slots| tree.moved(&at(ROOT, "e"), &at(slots["d"], "e")),
        &[("e", ClashKind::Cycle), ("e/d", ClashKind::Cycle)],
        &["/", "/e/", "/e/d/", "/e/d/f=2", "/g=3"],
    );
}

#[test]
fn a_file_of_which_each_removed_another_name_is_kept() {
    let (mut base, slots) = base();
    base.names_mut(slots["e"])
        .insert(Name::new(b"g2"), slots["g"]);
    let (mut ours, mut theirs) = (base.clone(), base.clone());
    ours.remove_tree(&at(ROOT, "g"));
    theirs.remove_tree(&at(slots["e"], "g2"));
    let (tree, conflicts) = merged(&base, &ours, &theirs);
    assert_eq!(
        conflicts,
        [(b"e/g2".to_vec(), ClashKind::Moved, slots["g"])]
    );
    assert_eq!(tree.shown(), ours.shown());
}

#[test]
fn two_outcomes_are_not_compared() {
    let (base, _) = base();
    let outcome = merge(&base, &base, &base, &MergeOptions::default()).expect("a merge");
    let root = Trail::root();
    assert_eq!(
        outcome.same_content(&root, &outcome, &root),
        Err(Errno::EOPNOTSUPP)
    );
}

/// One side removed `g`, and its number was reused.
#[test]
fn a_number_that_was_given_away_again_is_another_inode() {
    let (mut base, slots) = base();
    let g = slots["g"];
    base.births.insert(g, 1);
    let mut changed = base.clone();
    changed.written(g, 9);
    let mut reused = base.clone();
    reused.remove_tree(&at(ROOT, "g"));
    reused.nodes.insert(g, Node::File(0o600, 7));
    reused.names_mut(slots["d"]).insert(Name::new(b"new"), g);
    reused.births.insert(g, 2);
    let (tree, conflicts) = merged(&base, &base, &reused);
    assert_eq!((tree.shown(), conflicts), (reused.shown(), vec![]));
    let (tree, conflicts) = merged(&base, &reused, &base);
    assert_eq!((tree.shown(), conflicts), (reused.shown(), vec![]));
    let (tree, conflicts) = merged(&base, &reused, &changed);
    let clash = [(b"g".to_vec(), ClashKind::Removed(MergeParty::Ours), g)];
    assert_eq!((tree.shown(), &conflicts[..]), (reused.shown(), &clash[..]));
    let (tree, _) = merged_by(ConflictPolicy::Theirs, &base, &reused, &changed);
    let mut both = changed.clone();
    both.add(&at(slots["d"], "new"), Node::File(0o600, 7));
    assert_eq!(tree.shown(), both.shown());
    // Both sides reused it for different files.
    let mut other = reused.clone();
    other.names_mut(slots["d"]).remove(&Name::new(b"new"));
    other.names_mut(ROOT).insert(Name::new(b"other"), g);
    other.births.insert(g, 3);
    other.written(g, 8);
    let (tree, conflicts) = merged(&base, &reused, &other);
    let mut both = reused.clone();
    both.add(&at(ROOT, "other"), Node::File(0o600, 8));
    assert_eq!((tree.shown(), conflicts), (both.shown(), vec![]));
}

#[test]
fn only_what_is_at_or_below_a_path_is_merged() {
    let (base, slots) = base();
    let mut theirs = base.clone();
    theirs.last += 1000;
    theirs.written(slots["d/f"], 9);
    theirs.written(slots["g"], 9);
    let new = theirs.add(&at(ROOT, "new"), Node::Dir(0o755, BTreeMap::new()));
    theirs.add(&at(new, "a"), Node::File(0o644, 5));
    theirs.add(&at(new, "b"), Node::File(0o644, 6));
    let how = MergeOptions {
        paths: &[b"d".to_vec(), b"new/a".to_vec()],
        ..MergeOptions::default()
    };
    let outcome = merge(&base, &base, &theirs, &how).expect("a merge");
    assert_eq!(outcome.conflicts(), []);
    let mut wanted = base.clone();
    wanted.written(slots["d/f"], 9);
    let new = wanted.add(&at(ROOT, "new"), Node::Dir(0o755, BTreeMap::new()));
    wanted.add(&at(new, "a"), Node::File(0o644, 5));
    assert_eq!(whole(&outcome).shown(), wanted.shown());
}
