//! One tree and the engine that serves it, without a kernel: requests as the kernel makes them, on
//! nodes looked up earlier, and the model of the tree.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::handles::{BranchHandle, HANDLES};
use super::tree_reader::{ReadOptions, look};
use crate::model::expected::expected;
use crate::model::generate::DrawContext;
use crate::model::observe::{StampTimes, compare};
use crate::model::ops::{Op, Verb, bytes};
use crate::model::tree::{Body, Id, Model, Node, ROOT, Tree};
use crate::model::world::same;
use ckptfs_api::{
    CheckpointId, CheckpointOptions, Delete, RestoreOptions, StateName, Times as Kept,
};
use ckptfs_core::engine::request::{Caller, Entry, LookupResult, NodeId, Service};
use ckptfs_core::engine::verb::Execute;
use ckptfs_core::engine::{Config, Engine, IoChoice};
use ckptfs_core::history::base::Base;
use ckptfs_sys::{self as sys, Errno, SysResult};

pub const ROOT_NODE: NodeId = NodeId(1);
pub const CALLER: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 0,
    request: 0,
    again: false,
};

/// The origin of a branch.
pub struct BranchOrigin {
    /// The index of its parent.
    pub side: usize,
    pub at: u64,
    /// The numbers of all inodes of the parent at that time.
    numbers: HashMap<u64, Id>,
}

/// A checkpoint.
#[derive(Clone)]
pub struct BranchCheckpoint {
    id: u64,
    tree: Tree,
    numbers: HashMap<Id, u64>,
}

/// A tree.
pub struct BranchSide {
    pub dir: PathBuf,
    pub from: Option<BranchOrigin>,
    pub model: Model,
    pub times: StampTimes,
    snaps: Vec<BranchCheckpoint>,
    /// Checkpoints that are bases of branches.
    pub held: BTreeSet<u64>,
    pub(super) handles: [Option<BranchHandle>; HANDLES],
    engine: Option<Arc<Engine>>,
    io: IoChoice,
    /// Inode numbers once seen, which never change.
    numbers: HashMap<Id, u64>,
    /// Nodes with their lookup counts, as the kernel has them.
    nodes: HashMap<Id, (NodeId, u64)>,
    /// Dentries: names that are not looked up again.
    entries: HashMap<(Id, Vec<u8>), Id>,
    looks: u64,
}

impl BranchSide {
    pub fn new(dir: &Path, io: IoChoice) -> Result<BranchSide, String> {
        let mut side = BranchSide {
            dir: dir.to_owned(),
            from: None,
            model: Model::new(),
            times: StampTimes::default(),
            snaps: Vec::new(),
            held: BTreeSet::new(),
            handles: Default::default(),
            engine: None,
            io,
            numbers: HashMap::from([(ROOT, ROOT_NODE.0)]),
            nodes: HashMap::new(),
            entries: HashMap::new(),
            looks: 0,
        };
        side.open(None)?;
        Ok(side)
    }

    /// Creates a branch of this tree, which has index `number`.
    pub fn branch(&mut self, number: usize, dir: &Path) -> Result<BranchSide, String> {
        // Records all times and numbers that must be equal in the branch.
        self.check_live()?;
        let at = self.checkpoint()?;
        self.held.insert(at);
        let tree = self.model.tree.reachable();
        let numbers: HashMap<Id, u64> = tree
            .nodes
            .keys()
            .filter_map(|id| Some((*id, *self.numbers.get(id)?)))
            .collect();
        let mut side = BranchSide {
            from: Some(BranchOrigin {
                side: number,
                at,
                numbers: numbers.iter().map(|(id, number)| (*number, *id)).collect(),
            }),
            model: Model {
                tree,
                counter: self.model.counter.apart(),
                held: BTreeSet::new(),
            },
            times: self.times.clone(),
            snaps: Vec::new(),
            held: BTreeSet::new(),
            handles: Default::default(),
            engine: None,
            io: self.io,
            numbers,
            nodes: HashMap::new(),
            entries: HashMap::new(),
            looks: 0,
            dir: dir.to_owned(),
        };
        side.open(Some(self.base(at)))?;
        side.checkpoint()?;
        Ok(side)
    }

    pub fn base(&self, at: u64) -> Arc<Base> {
        self.engine().as_base(CheckpointId(at))
    }

    /// Starts to serve.
    pub fn open(&mut self, base: Option<Arc<Base>>) -> Result<(), String> {
        let root = sys::open_root(&self.dir)
            .map_err(|errno| format!("cannot open {}: {errno}", self.dir.display()))?;
        let config = Config {
            io: self.io,
            base,
            ..Config::bare(root, self.dir.clone())
        };
        let engine = Engine::open(config).map_err(|error| format!("not served: {error}"))?;
        engine.started(engine.wants_passthrough());
        self.engine = Some(engine);
        Ok(())
    }

    /// Stops in an orderly way.
    pub fn close(&mut self) {
        self.close_handles();
        self.nodes.clear();
        self.entries.clear();
        if let Some(engine) = self.engine.take() {
            engine.close();
        }
    }

    pub(super) fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("it is served")
    }

    /// Returns the state from which operations are drawn.
    pub fn scene(&self) -> DrawContext<'_> {
        DrawContext {
            tree: &self.model.tree,
            past: self.snaps.iter().map(|snap| &snap.tree).collect(),
            set_ids: false,
            held: Vec::new(),
        }
    }

    /// Performs one operation.
    pub fn run(&mut self, op: &Op) -> Result<(), String> {
        match op.verb {
            Verb::Open
            | Verb::Close
            | Verb::HandleWrite
            | Verb::HandleTruncate
            | Verb::HandleRead
            | Verb::Fsync => self.handle_op(op),
            Verb::Checkpoint => self.checkpoint().map(drop),
            Verb::Restore => self.restore(op),
            Verb::Delete => self.delete(op),
            // All caches are dropped.
            Verb::Idle => {
                self.forget();
                Ok(())
            }
            Verb::CheckLive => self.check_live(),
            Verb::CheckViews => self.check_views(),
            _ => self.path_op(op),
        }
    }

    /// Performs an operation by path. Requests that the kernel itself refuses are not sent.
    fn path_op(&mut self, op: &Op) -> Result<(), String> {
        let (first, second) = (bytes(op.path(0)), bytes(op.path(1)));
        let before = self.model.tree.clone();
        let expected = expected(&mut self.model, &mut self.times, op, &first, &second);
        let refused_here = [rustix::io::Errno::NOTEMPTY, rustix::io::Errno::NODATA];
        match expected {
            Err(rustix::io::Errno::NOENT) => return self.is_absent(&before, &first),
            Err(errno) if !refused_here.contains(&errno) => return Ok(()),
            // The kernel detects an ancestor when it locks both directories.
            Err(_) if first.starts_with(&[&second[..], b"/"].concat()) => return Ok(()),
            _ => {}
        }
        let actual = self
            .actual(&before, op, &first, &second)
            .map_err(|errno| rustix::io::Errno::from_raw_os_error(errno.0));
        same(expected, actual)
    }

    /// Checks that a path absent in the model does not exist.
    fn is_absent(&mut self, tree: &Tree, path: &[u8]) -> Result<(), String> {
        let Ok((dir, name, None)) = tree.resolve(path) else {
            return Ok(());
        };
        let node = match self.node_of(tree, path_above(path)) {
            Ok(node) => node,
            Err(errno) => return Err(format!("directory {dir}: {errno}")),
        };
        match self.engine().lookup(CALLER, node, &name) {
            Ok(LookupResult::Absent(_)) => Ok(()),
            Ok(LookupResult::Found(entry)) => {
                self.engine().forget(entry.node, 1);
                Err("it exists".to_owned())
            }
            Err(errno) => Err(format!("look-up of a missing name: {errno}")),
        }
    }

    /// Counts a lookup of an inode.
    pub(super) fn know(&mut self, id: Id, entry: Entry) -> NodeId {
        let known = self.nodes.entry(id).or_insert((entry.node, 0));
        if known.0 != entry.node {
            let old = std::mem::replace(known, (entry.node, 0));
            self.engine().forget(old.0, old.1);
        }
        if let Some((_, count)) = self.nodes.get_mut(&id) {
            *count += 1;
        }
        entry.node
    }

    /// Caches the dentry of a path of the model.
    pub(super) fn enter(&mut self, path: &[u8]) {
        if let Ok((dir, name, Some(id))) = self.model.tree.resolve(path) {
            self.entries.insert((dir, name), id);
        }
    }

    /// Returns the node of a path in `tree`, with a lookup for each component that is not cached.
    pub(super) fn node_of(&mut self, tree: &Tree, path: &[u8]) -> SysResult<NodeId> {
        let (mut at, mut node) = (ROOT, ROOT_NODE);
        if path.is_empty() || path == b"." {
            return Ok(node);
        }
        for name in path.split(|byte| *byte == b'/') {
            let Body::Dir(names) = &tree.node(at).body else {
                return Err(Errno::ENOTDIR);
            };
            let dir = std::mem::replace(&mut at, *names.get(name).ok_or(Errno::ENOENT)?);
            let entry = (dir, name.to_vec());
            let known = self.entries.insert(entry, at) == Some(at);
            node = match self.nodes.get(&at).filter(|_| known) {
                Some((known, _)) => *known,
                None => match self.engine().lookup(CALLER, node, name)? {
                    LookupResult::Found(entry) => self.know(at, entry),
                    LookupResult::Absent(_) => return Err(Errno::ENOENT),
                },
            };
        }
        Ok(node)
    }

    /// Returns the parent directory and the last component.
    pub(super) fn place_of<'p>(
        &mut self,
        tree: &Tree,
        path: &'p [u8],
    ) -> SysResult<(NodeId, &'p [u8])> {
        let above = path_above(path);
        let name = if above.is_empty() {
            path
        } else {
            &path[above.len() + 1..]
        };
        Ok((self.node_of(tree, above)?, name))
    }

    /// Drops all dentries and all inodes that are not open.
    pub fn forget(&mut self) {
        self.entries.clear();
        let open: HashSet<Id> = self.handles.iter().flatten().map(|open| open.id).collect();
        let (stay, go) = std::mem::take(&mut self.nodes)
            .into_iter()
            .partition(|(id, _)| open.contains(id));
        self.nodes = stay;
        let go: HashMap<Id, (NodeId, u64)> = go;
        for (node, count) in go.into_values() {
            self.engine().forget(node, count);
        }
    }

    /// Checks the whole live tree: names, content, attributes, times, hard links, and inode
    /// numbers, also those inherited from the parent.
    pub fn check_live(&mut self) -> Result<(), String> {
        let sight = self.sight(&[])?;
        compare(
            "the live tree",
            &self.model.tree,
            &sight,
            &mut self.times,
            &BTreeSet::new(),
        )?;
        for (path, id) in self.model.tree.paths() {
            let (seen, shown) = (sight[&path].ino, path.escape_ascii());
            match self.numbers.get(&id) {
                Some(known) if *known == seen => {}
                Some(known) => {
                    return Err(format!("{shown}: inode number {seen}, previously {known}"));
                }
                None => {
                    let is_another = |from: &BranchOrigin| {
                        from.numbers.get(&seen).is_some_and(|other| *other != id)
                    };
                    if self.from.as_ref().is_some_and(is_another) {
                        return Err(format!(
                            "{shown}: inode number {seen} belongs to the parent"
                        ));
                    }
                    self.numbers.insert(id, seen);
                }
            }
        }
        Ok(())
    }

    /// Checks that every checkpoint is unchanged.
    pub fn check_views(&mut self) -> Result<(), String> {
        for BranchCheckpoint { id, tree, .. } in self.snaps.clone() {
            let sight = self.sight(&[b".snapshots", id.to_string().as_bytes()])?;
            let what = format!("checkpoint {id}");
            compare(&what, &tree, &sight, &mut self.times, &BTreeSet::new())?;
        }
        Ok(())
    }

    fn sight(&mut self, way: &[&[u8]]) -> Result<crate::model::observe::ObservedTree, String> {
        self.looks += 1;
        let how = ReadOptions {
            names_max: 1 + (self.looks % 4) as usize,
            plus: self.looks.is_multiple_of(3),
        };
        look(self.engine(), way, how)
    }

    /// Makes a checkpoint and returns its id.
    pub fn checkpoint(&mut self) -> Result<u64, String> {
        let made = self
            .ask(CheckpointOptions::default())
            .map_err(|error| format!("checkpoint: {error}"))?;
        self.keep(made.id.0);
        Ok(made.id.0)
    }

    /// Records a checkpoint of the current tree.
    fn keep(&mut self, id: u64) {
        self.snaps.push(BranchCheckpoint {
            id,
            tree: self.model.tree.reachable(),
            numbers: self.numbers.clone(),
        });
    }

    fn ask<V: Execute>(&self, verb: V) -> ckptfs_api::VerbResult<V::Answer> {
        verb.run(self.engine(), &CALLER.actor().into())
    }

    fn picked(&self, op: &Op) -> Option<BranchCheckpoint> {
        let index = (op.number(0) as usize).checked_rem(self.snaps.len())?;
        self.snaps.get(index).cloned()
    }

    fn delete(&mut self, op: &Op) -> Result<(), String> {
        let free = |snap: &BranchCheckpoint| !self.held.contains(&snap.id);
        let Some(BranchCheckpoint { id, .. }) = self.picked(op).filter(free) else {
            return Ok(());
        };
        let verb = Delete {
            state: StateName(id.to_string()),
            now: op.number(1).is_multiple_of(2),
        };
        self.ask(verb)
            .map_err(|error| format!("delete {id}: {error}"))?;
        self.snaps.retain(|snap| snap.id != id);
        Ok(())
    }

    fn restore(&mut self, op: &Op) -> Result<(), String> {
        let Some(BranchCheckpoint {
            id,
            mut tree,
            numbers,
        }) = self.picked(op)
        else {
            return Ok(());
        };
        self.close_handles();
        self.forget();
        let restored = self
            .ask(RestoreOptions {
                to: StateName(id.to_string()),
                paths: Vec::new(),
                dry_run: false,
                times: Some(Kept::Kept),
            })
            .map_err(|error| format!("restore {id}: {error}"))?;
        let before = self.model.tree.reachable();
        match restored.guard {
            Some(guard) => self.keep(guard.0),
            None if restored.changes.is_empty() => return Ok(()),
            None => return Err("a restore without a guard".to_owned()),
        }
        tree.count_links();
        // A recreated inode has a new number.
        let stays = |id: &Id, number: u64| {
            let (then, now) = (tree.nodes.get(id), before.nodes.get(id));
            let same = |(then, now): (&Node, &Node)| then.is_dir() || alike(then, now);
            numbers.get(id) == Some(&number) && then.zip(now).is_some_and(same)
        };
        self.numbers.retain(|id, number| stays(id, *number));
        self.model.tree = tree;
        self.model.held.clear();
        Ok(())
    }
}

fn alike(a: &Node, b: &Node) -> bool {
    let dress = |node: &Node| (node.mode, node.uid, node.gid, node.mtime);
    a.body == b.body && dress(a) == dress(b) && a.xattrs == b.xattrs
}

/// Returns the path of the parent directory.
fn path_above(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => &path[..slash],
        None => &[],
    }
}

impl Drop for BranchSide {
    fn drop(&mut self) {
        self.close();
    }
}
