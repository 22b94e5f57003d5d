//! The model of a merge, written from its specification (docs/semantics.md, ADR 31) and not from
//! the code. Each property of each inode is merged separately: a change of one side is taken, equal
//! changes of both sides agree, and anything else is a conflict.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::lines;
use crate::model::tree::{Body, Id, Node, ROOT, Tree};

/// The place of an inode: directory and name.
type At = (Id, Vec<u8>);

/// The result of a merge.
#[derive(Debug)]
pub enum Merged {
    Clean(Tree),
    /// The conflicts, with their inodes.
    Conflict(Vec<String>),
    /// Unspecified, with the reason.
    Unclear(&'static str),
}

/// A state, with ids common to all three.
struct ModelMergeInput {
    nodes: BTreeMap<Id, Node>,
    places: BTreeMap<Id, BTreeSet<At>>,
    unclear: Option<&'static str>,
}

impl ModelMergeInput {
    /// `others` are the states compared before. An inode that is not in the base by number is
    /// searched by place. In the base it may replace a removed inode; on the other side, one may
    /// have been created at the same place.
    fn of(tree: &Tree, others: &[&ModelMergeInput]) -> ModelMergeInput {
        let mut side = ModelMergeInput {
            nodes: BTreeMap::from([(ROOT, tree.node(ROOT).clone())]),
            places: BTreeMap::new(),
            unclear: None,
        };
        let mut common = BTreeMap::from([(ROOT, ROOT)]);
        let mut open = VecDeque::from([(ROOT, ROOT)]);
        while let Some((dir, dir_common)) = open.pop_front() {
            let Body::Dir(names) = &tree.node(dir).body else {
                continue;
            };
            for (name, child) in names {
                let at = (dir_common, name.clone());
                let found = side.stands_for(tree, *child, &at, others);
                let is_new = !common.contains_key(child);
                let known = *common.entry(*child).or_insert(found);
                if known != found {
                    side.unclear = Some("an inode with two new names has two counterparts");
                }
                if is_new
                    && side
                        .nodes
                        .insert(known, tree.node(*child).clone())
                        .is_some()
                {
                    side.unclear = Some("two inodes have the same counterpart");
                }
                side.places.entry(known).or_default().insert(at);
                if is_new && tree.node(*child).is_dir() {
                    open.push_back((*child, known));
                }
            }
        }
        side
    }

    fn stands_for(&self, tree: &Tree, id: Id, at: &At, others: &[&ModelMergeInput]) -> Id {
        let Some((base, rest)) = others.split_first() else {
            return id;
        };
        if base.nodes.contains_key(&id) {
            return id;
        }
        let kind = tree.node(id).body.letter();
        // Replaces a removed inode at this place: an atomic save.
        let replaced = base
            .at(at)
            .filter(|old| !tree.nodes.contains_key(old) && base.nodes[old].body.letter() == kind);
        // Also created here by the other side.
        let alike = || {
            rest.iter().find_map(|other| {
                let there = other.at(at)?;
                let is_new = !base.nodes.contains_key(&there);
                (is_new && other.nodes[&there].body.letter() == kind).then_some(there)
            })
        };
        replaced.or_else(alike).unwrap_or(id)
    }

    fn at(&self, at: &At) -> Option<Id> {
        let here = |(_, places): &(&Id, &BTreeSet<At>)| places.contains(at);
        self.places.iter().find(here).map(|(id, _)| *id)
    }

    fn places(&self, id: Id) -> BTreeSet<At> {
        self.places.get(&id).cloned().unwrap_or_default()
    }

    /// Moves the names `places` from inode `led` to the file `id`.
    fn part(&mut self, led: Id, id: Id, places: &BTreeSet<At>) {
        if led == id {
            return;
        }
        let left = &self.places(led) - places;
        self.nodes.insert(id, self.nodes[&led].clone());
        self.places.insert(id, places.clone());
        if left.is_empty() {
            self.nodes.remove(&led);
            self.places.remove(&led);
        } else {
            self.places.insert(led, left);
        }
    }
}

/// Splits files of the base: hard links that lead to different files now, on one side or on both,
/// become separate files.
fn part(
    base: &mut ModelMergeInput,
    ours: &mut ModelMergeInput,
    theirs: &mut ModelMergeInput,
) -> Option<&'static str> {
    let mut unclear = None;
    let linked = base.places.clone().into_iter();
    for (file, places) in linked.filter(|(_, places)| places.len() > 1) {
        if base.nodes[&file].content().is_none() {
            continue;
        }
        let lead = |side: &ModelMergeInput, at: &At| {
            let id = side.at(at)?;
            let is_new = !base.nodes.contains_key(&id) && side.nodes[&id].content().is_some();
            (id == file || is_new).then_some(id)
        };
        let mut apart: BTreeMap<(Id, Id), BTreeSet<At>> = BTreeMap::new();
        for at in places {
            if let (Some(here), Some(there)) = (lead(ours, &at), lead(theirs, &at)) {
                apart.entry((here, there)).or_default().insert(at);
            }
        }
        apart.retain(|pair, _| *pair != (file, file));
        for ((here, there), places) in &apart {
            let others = apart.keys().filter(|pair| *pair != &(*here, *there));
            let mut others = others.flat_map(|(here, there)| [*here, *there]);
            if others.any(|id| id != file && (id == *here || id == *there)) {
                unclear = Some("separated in two ways");
                continue;
            }
            let one = if *here == file { *there } else { *here };
            // A new file keeps its other names.
            let all = |side: &ModelMergeInput, led: Id| match led == file {
                true => places.clone(),
                false => side.places(led),
            };
            let (of_ours, of_theirs) = (all(ours, *here), all(theirs, *there));
            base.part(file, one, places);
            ours.part(*here, one, &of_ours);
            theirs.part(*there, one, &of_theirs);
        }
    }
    unclear
}

/// Returns the value changed by one side only, or by both alike.
fn three<T: PartialEq + Clone>(base: &T, ours: &T, theirs: &T) -> Option<T> {
    match () {
        () if ours == theirs || theirs == base => Some(ours.clone()),
        () if ours == base => Some(theirs.clone()),
        () => None,
    }
}

/// Returns the attributes, without names and content.
fn dress(node: &Node) -> (u32, u32, u32, &BTreeMap<Vec<u8>, Vec<u8>>) {
    (node.mode, node.uid, node.gid, &node.xattrs)
}

fn same_body(a: &Node, b: &Node) -> bool {
    (a.is_dir() && b.is_dir()) || a.body == b.body
}

struct ModelMerge {
    base: ModelMergeInput,
    ours: ModelMergeInput,
    theirs: ModelMergeInput,
    clashes: Vec<String>,
    unclear: Option<&'static str>,
    result: BTreeMap<Id, (Node, BTreeSet<At>)>,
}

/// Applies the changes from `base` to `theirs` to `ours`.
pub fn merge(base: &Tree, ours: &Tree, theirs: &Tree) -> Merged {
    let mut base = ModelMergeInput::of(base, &[]);
    let mut ours = ModelMergeInput::of(ours, &[&base]);
    let mut theirs = ModelMergeInput::of(theirs, &[&base, &ours]);
    let parted = part(&mut base, &mut ours, &mut theirs);
    let unclear = ours.unclear.or(theirs.unclear).or(parted);
    let mut merge = ModelMerge {
        base,
        ours,
        theirs,
        clashes: Vec::new(),
        unclear,
        result: BTreeMap::new(),
    };
    let sides = [&merge.base, &merge.ours, &merge.theirs];
    let ids: BTreeSet<Id> = sides
        .iter()
        .flat_map(|side| side.nodes.keys().copied())
        .collect();
    for id in ids {
        merge.inode(id);
    }
    merge.is_a_tree();
    match (merge.unclear, merge.clashes.is_empty()) {
        (Some(why), _) => Merged::Unclear(why),
        (None, false) => Merged::Conflict(merge.clashes),
        (None, true) => Merged::Clean(merge.tree()),
    }
}

impl ModelMerge {
    fn clash(&mut self, id: Id, what: &str) {
        self.clashes.push(format!("{id} {what}"));
    }

    fn inode(&mut self, id: Id) {
        let node = |side: &ModelMergeInput| side.nodes.get(&id).cloned();
        let nodes = (node(&self.base), node(&self.ours), node(&self.theirs));
        let (node, places) = match nodes {
            (_, None, None) => return,
            (None, Some(ours), None) => (ours, self.ours.places(id)),
            (None, None, Some(theirs)) => (theirs, self.theirs.places(id)),
            (Some(base), Some(there), None) => return self.removed(id, &base, &there, true),
            (Some(base), None, Some(there)) => return self.removed(id, &base, &there, false),
            (base, Some(ours), Some(theirs)) => {
                let node = self.both(id, base.as_ref(), &ours, &theirs);
                (node, self.places_of_both(id, ours.is_dir()))
            }
        };
        self.result.insert(id, (node, places));
    }

    /// An inode removed by one side and present on the other.
    fn removed(&mut self, id: Id, base: &Node, there: &Node, in_ours: bool) {
        let side = if in_ours { &self.ours } else { &self.theirs };
        let (there_at, base_at) = (side.places(id), self.base.places(id));
        let came = !there_at.is_subset(&base_at);
        if !came && there_at != base_at {
            self.unclear = Some("one side removed a name of an inode that the other removed");
        }
        if came || dress(base) != dress(there) || !same_body(base, there) {
            self.clash(id, "removed and changed");
        }
    }

    fn places_of_both(&mut self, id: Id, is_dir: bool) -> BTreeSet<At> {
        let (base, ours, theirs) = (
            self.base.places(id),
            self.ours.places(id),
            self.theirs.places(id),
        );
        if id == ROOT {
            return BTreeSet::new();
        }
        if is_dir || !self.base.nodes.contains_key(&id) && ours != theirs {
            return three(&base, &ours, &theirs).unwrap_or_else(|| {
                if !is_dir {
                    self.unclear = Some("created by both, with different other names");
                }
                self.clash(id, "moved twice");
                ours
            });
        }
        let came = |side: &BTreeSet<At>| -> BTreeSet<At> { side - &base };
        let went = |side: &BTreeSet<At>| -> BTreeSet<At> { &base - side };
        let moved_by_both = went(&ours).intersection(&went(&theirs)).count() > 0;
        if moved_by_both && came(&ours) != came(&theirs) {
            if came(&ours).is_empty() || came(&theirs).is_empty() {
                self.unclear = Some("one side removed a name that the other moved");
            } else {
                self.clash(id, "moved twice");
            }
        }
        let kept = base
            .iter()
            .filter(|at| ours.contains(*at) && theirs.contains(*at));
        let mut merged: BTreeSet<At> = kept.cloned().collect();
        merged.extend(came(&ours));
        merged.extend(came(&theirs));
        if merged.is_empty() {
            self.unclear = Some("each side removed a different name");
        }
        merged
    }

    fn both(&mut self, id: Id, base: Option<&Node>, ours: &Node, theirs: &Node) -> Node {
        let mut node = ours.clone();
        // An inode created by both sides has no previous attributes.
        let nothing = Node {
            body: Body::Fifo,
            mode: u32::MAX,
            uid: u32::MAX,
            xattrs: BTreeMap::new(),
            ..ours.clone()
        };
        let before = base.unwrap_or(&nothing);
        if base.is_none() && !ours.is_dir() && dress(ours) != dress(theirs) {
            self.unclear = Some("created by both, and one has more attributes");
        }
        match three(&before.mode, &ours.mode, &theirs.mode) {
            Some(mode) => node.mode = mode,
            None => self.clash(id, "mode"),
        }
        let owner = |node: &Node| (node.uid, node.gid);
        match three(&owner(before), &owner(ours), &owner(theirs)) {
            Some(owner) => (node.uid, node.gid) = owner,
            None => self.clash(id, "owner"),
        }
        let names: BTreeSet<Vec<u8>> = [before, ours, theirs]
            .iter()
            .flat_map(|node| node.xattrs.keys().cloned())
            .collect();
        for name in names {
            let value = |node: &Node| node.xattrs.get(&name).cloned();
            match three(&value(before), &value(ours), &value(theirs)) {
                Some(Some(value)) => drop(node.xattrs.insert(name, value)),
                Some(None) => drop(node.xattrs.remove(&name)),
                None => self.clash(id, "xattr"),
            }
        }
        if !ours.is_dir() {
            node.body = self.body(id, base, ours, theirs);
        }
        node
    }

    fn body(&mut self, id: Id, base: Option<&Node>, ours: &Node, theirs: &Node) -> Body {
        let before = base.map_or(&Body::Fifo, |base| &base.body);
        if let Some(body) = three(before, &ours.body, &theirs.body) {
            return body;
        }
        let all = (
            base.and_then(Node::content),
            ours.content(),
            theirs.content(),
        );
        let (Some(base), Some(a), Some(b)) = all else {
            self.clash(id, "content");
            return ours.body.clone();
        };
        match lines::merge(base, a, b) {
            lines::Lines::Clean(text) => return Body::File(Arc::new(text)),
            lines::Lines::Conflict => self.clash(id, "content"),
            lines::Lines::Unclear => self.unclear = Some("changes in adjacent lines"),
        }
        ours.body.clone()
    }

    /// Checks that every name is in an existing directory and leads to one inode.
    fn is_a_tree(&mut self) {
        let mut taken: BTreeMap<At, Id> = BTreeMap::new();
        let mut told = Vec::new();
        for (id, (_, places)) in &self.result {
            for at in places {
                if !self.result.contains_key(&at.0) {
                    told.push((*id, "in a directory that was removed"));
                }
                if taken.insert(at.clone(), *id).is_some() {
                    told.push((*id, "at the name of another"));
                }
            }
            // Reaches the root unless there is a cycle.
            let mut up = *id;
            for _ in 0..=self.result.len() {
                let above = self.result.get(&up).and_then(|(_, places)| places.first());
                up = above.map_or(ROOT, |at| at.0);
            }
            if up != ROOT {
                told.push((*id, "below itself"));
            }
        }
        told.into_iter().for_each(|(id, what)| self.clash(id, what));
    }

    fn tree(self) -> Tree {
        let mut names: BTreeMap<Id, BTreeMap<Vec<u8>, Id>> = BTreeMap::new();
        for (id, (_, places)) in &self.result {
            for (dir, name) in places {
                names.entry(*dir).or_default().insert(name.clone(), *id);
            }
        }
        let nodes = self.result.into_iter().map(|(id, (mut node, _))| {
            if node.is_dir() {
                node.body = Body::Dir(names.remove(&id).unwrap_or_default());
            }
            (id, node)
        });
        let mut tree = Tree {
            nodes: nodes.collect(),
        };
        tree.count_links();
        tree
    }
}
