//! Tests of the node table.

use super::*;

/// Regression test: a reverted reply made an adopted inode count as forgotten. A later open for
/// writing then found no writer: the file was not captured at a checkpoint, and its view returned
/// EIO.
#[test]
fn an_answer_that_is_taken_back_does_not_forget_an_adopted_inode() {
    let mut nodes = Nodes::default();
    let slot = Slot(7);
    nodes.adopt(slot, Kind::File, &place("f"));
    nodes.learn(slot, Kind::File, 1, Some(&place("f")), 1);
    nodes.forget(slot, 1);
    assert!(nodes.get(slot).is_some_and(Node::is_known));
    nodes.learn(slot, Kind::File, 1, Some(&place("f")), 1);
    // Two lookups of the previous worker, one of this one.
    nodes.forget(slot, 3);
    assert!(nodes.get(slot).is_none());
}

#[test]
fn a_handle_of_an_unknown_inode_is_counted() {
    let mut nodes = Nodes::default();
    nodes.opened(Slot(7), false, true, IoMode::Passthrough);
    assert_eq!(nodes.get(Slot(7)).map(Node::writers), Some(1));
    assert!(nodes.closed(Slot(7), false, true));
    assert!(nodes.get(Slot(7)).is_none());
}

fn place(name: &str) -> Place {
    Place {
        parent: Slot::ROOT,
        name: ckptfs_store::ids::Name::new(name.as_bytes()),
    }
}

#[test]
fn what_may_be_mapped_is_known_without_looking_at_all_nodes() {
    let mut nodes = Nodes::default();
    nodes.learn(Slot::ROOT, Kind::Dir, 1, None, 1);
    for number in 10..20 {
        nodes.learn(
            Slot(number),
            Kind::File,
            1,
            Some(&place(&number.to_string())),
            1,
        );
    }
    nodes.opened(Slot(11), true, true, IoMode::Daemon);
    nodes.opened(Slot(11), true, true, IoMode::Daemon);
    nodes.opened(Slot(12), false, true, IoMode::Daemon);
    nodes.opened(Slot(13), true, false, IoMode::Daemon);
    nodes.opened(Slot(14), true, true, IoMode::Passthrough);
    let by_daemon = |nodes: &Nodes| nodes.matching(|node| node.io() == Some(IoMode::Daemon));
    assert_eq!(by_daemon(&nodes), [Slot(11)]);
    assert!(!nodes.closed(Slot(11), true, true), "one writer is left");
    assert_eq!(by_daemon(&nodes), [Slot(11)]);
    assert!(nodes.closed(Slot(11), true, true));
    assert!(by_daemon(&nodes).is_empty());
    assert!(!nodes.closed(Slot(13), true, false), "it was no writer");
    assert_eq!(
        nodes.get(Slot(13)).and_then(Node::io),
        None,
        "the next open may choose anew"
    );
}
/// The project's limit is 200 bytes for each inode that the kernel references: a table may be half
/// empty, and a short name takes 32 bytes.
#[test]
fn a_node_is_small() {
    assert!(
        size_of::<(Slot, Node)>() <= 64,
        "{} bytes",
        size_of::<(Slot, Node)>()
    );
}

#[test]
fn names_come_and_go_and_hold_their_directories() {
    let mut nodes = Nodes::default();
    nodes.learn(Slot::ROOT, Kind::Dir, 1, None, 1);
    let (dir, file) = (Slot(10), Slot(11));
    let inside = |name: &str| Place {
        parent: dir,
        name: ckptfs_store::ids::Name::new(name.as_bytes()),
    };
    nodes.learn(dir, Kind::Dir, 1, Some(&place("d")), 1);
    nodes.learn(file, Kind::File, 1, Some(&inside("a")), 1);
    nodes.learn(file, Kind::File, 1, Some(&inside("b")), 1);
    nodes.learn(file, Kind::File, 1, Some(&inside("a")), 1);
    nodes.forget(dir, 1);
    let names = |nodes: &Nodes| {
        nodes
            .get(file)
            .map(|node| node.links().cloned().collect::<BTreeSet<_>>())
            .unwrap_or_default()
    };
    assert_eq!(
        names(&nodes),
        BTreeSet::from([inside("a"), inside("b")]),
        "each name once, and the directory is held by it"
    );
    nodes.move_link(file, &inside("a"), &place("c"));
    assert_eq!(names(&nodes), BTreeSet::from([inside("b"), place("c")]));
    nodes.remove_link(file, &inside("b"));
    assert!(
        nodes.get(dir).is_none(),
        "nothing holds the directory any more"
    );
    assert!(
        nodes.get(file).is_some_and(|node| node.rare.is_none()),
        "one name needs no more room"
    );
    nodes.forget(file, 3);
    assert_eq!(nodes.count(), 1);
}

/// Regression test: the names of the former inode were dropped without updating their directories,
/// which then remained in the table forever.
#[test]
fn a_number_that_is_given_away_again_lets_go_of_its_former_directory() {
    let mut nodes = Nodes::default();
    nodes.learn(Slot::ROOT, Kind::Dir, 1, None, 1);
    nodes.learn(Slot(10), Kind::Dir, 1, Some(&place("d")), 1);
    let former = Place {
        parent: Slot(10),
        name: ckptfs_store::ids::Name::new(b"f"),
    };
    let first = nodes.learn(Slot(11), Kind::File, 1, Some(&former), 1);
    nodes.forget(Slot(10), 1);
    let second = nodes.learn(Slot(11), Kind::Symlink, 1, Some(&place("s")), 1);
    assert!(
        first != second && nodes.get(Slot(10)).is_none(),
        "{first} and {second}"
    );
}

#[test]
fn the_table_shrinks_when_most_nodes_are_gone() {
    let mut nodes = Nodes::default();
    nodes.learn(Slot::ROOT, Kind::Dir, 1, None, 1);
    let slots = || (10..60_000).map(Slot);
    for slot in slots() {
        nodes.learn(slot, Kind::File, 1, Some(&place(&slot.0.to_string())), 1);
    }
    assert!(!nodes.take_shrunk() && nodes.map.capacity() > SHRINK_ABOVE);
    slots().for_each(|slot| nodes.forget(slot, 1));
    assert!(nodes.take_shrunk() && !nodes.take_shrunk());
    assert!(nodes.map.capacity() <= SHRINK_ABOVE && nodes.count() == 1);
}
