//! Measures a snapshot before any of it is created.
//!
//! A directory that is in several places of a snapshot is stored once: 27 of them suffice for 100
//! million entries. Each is read once here, and the totals of its subdirectories are added.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;

use rustic_core::repofile::{Node, NodeType};
use rustic_core::{IndexedFullStatus, Repository, TreeId};

use super::{PushedSnapshot, failed, trouble_of};
use crate::limits::{self, DEPTH_MAX, Limits, NODE_BYTES};
use ckptfs_api::{Code, VerbError, VerbResult, hinted};

/// Totals of a directory and everything below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Entries.
    pub entries: u64,
    /// Bytes of the paths of directories, relative to this one.
    pub paths: u64,
    /// Bytes of names, attributes and blob IDs.
    pub held: u64,
    /// Directories.
    dirs: u64,
    /// Depth of directories.
    depth: u64,
    /// Memory for the nodes that a walk holds at the same time.
    open: u64,
}

impl Totals {
    /// Adds one entry, without its subdirectories.
    fn add(&mut self, node: &Node) {
        let bytes = |text: usize| text as u64;
        let target = match &node.node_type {
            NodeType::Symlink { linktarget, .. } => bytes(linktarget.len()),
            _ => 0,
        };
        let xattrs = node.meta.extended_attributes.iter().map(|one| {
            let value = one.value.as_ref().map_or(0, Vec::len);
            bytes(one.name.len() + value) + 64
        });
        let blobs = node.content.as_ref().map_or(0, Vec::len);
        let held = NODE_BYTES + 2 * bytes(node.name.len()) + 32 * bytes(blobs) + target;
        self.entries += 1;
        self.held = self.held.saturating_add(held).saturating_add(xattrs.sum());
        self.open = self.open.saturating_add(held);
    }

    /// Adds a subdirectory; `name`: the length of its name; `own_open`: memory for the nodes of
    /// this directory.
    fn below(&mut self, name: u64, below: &Totals, own_open: u64) {
        let sum = u64::saturating_add;
        let dirs = sum(below.dirs, 1);
        self.entries = sum(self.entries, below.entries);
        self.dirs = sum(self.dirs, dirs);
        self.paths = sum(self.paths, below.paths);
        self.paths = sum(self.paths, dirs.saturating_mul(name + 1));
        self.held = sum(self.held, below.held);
        self.depth = self.depth.max(sum(below.depth, 1));
        self.open = self.open.max(sum(own_open, below.open));
    }
}

/// A directory being read.
struct DirMeasure {
    id: TreeId,
    totals: Totals,
    own_open: u64,
    /// Its remaining subdirectories, with the lengths of their names.
    left: Vec<(TreeId, u64)>,
    /// The length of its name.
    name: u64,
}

/// Returns the error for a snapshot whose tree is invalid.
pub fn broken(pushed: &PushedSnapshot, what: &str) -> VerbError {
    hinted(
        Code::Incomplete,
        format!("snapshot {}: {what}", pushed.snapshot),
        "ckptfs verify --remote, or restic check, tells what is damaged",
    )
}

/// Returns the root directory of a snapshot and its totals.
///
/// # Errors
/// `incomplete`: no directory has the name of the root, or one contains itself; `remote-failed`: a
/// limit is exceeded.
pub fn measure(
    repo: &Repository<IndexedFullStatus>,
    pushed: &PushedSnapshot,
) -> VerbResult<(Node, Totals)> {
    let top = repo.get_tree(&pushed.file.tree).map_err(failed)?;
    let is_root = |node: &Node| node.is_dir() && node.name().as_bytes() == pushed.root.as_bytes();
    let missing = || broken(pushed, &format!("it has no directory {}", pushed.root));
    let root = top.nodes.into_iter().find(is_root).ok_or_else(missing)?;
    let mut totals = Totals::default();
    totals.add(&root);
    if let Some(subtree) = root.subtree {
        let own_open = totals.open;
        totals.below(0, &below(repo, pushed, subtree)?, own_open);
    }
    let limits = Limits::new();
    let whose = format!("snapshot {}", pushed.snapshot);
    limits::check(&whose, totals.entries, limits.entries(), "entries")?;
    limits::check(
        &whose,
        totals.open,
        limits.open(),
        "bytes of entries in directories within each other",
    )?;
    Ok((root, totals))
}

fn below(
    repo: &Repository<IndexedFullStatus>,
    pushed: &PushedSnapshot,
    top: TreeId,
) -> VerbResult<Totals> {
    let mut known: HashMap<TreeId, Option<Totals>> = HashMap::new();
    let mut open: Vec<DirMeasure> = Vec::new();
    let mut next = Some((top, 0));
    loop {
        let (id, name) = match next.take() {
            Some(next) => next,
            None => match open.last_mut().map(|last| (last.left.pop(), last)) {
                Some((Some(next), _)) => next,
                Some((None, _)) => {
                    let Some(done) = open.pop() else { break };
                    known.insert(done.id, Some(done.totals));
                    let Some(above) = open.last_mut() else {
                        return Ok(done.totals);
                    };
                    above.totals.below(done.name, &done.totals, above.own_open);
                    continue;
                }
                None => break,
            },
        };
        match known.get(&id) {
            Some(Some(totals)) => {
                if let Some(above) = open.last_mut() {
                    above.totals.below(name, totals, above.own_open);
                }
            }
            Some(None) => return Err(broken(pushed, "a directory in it is in itself")),
            None if open.len() >= DEPTH_MAX => {
                return Err(broken(pushed, "its directories are too deep"));
            }
            None => {
                known.insert(id, None);
                open.push(read(repo, id, name)?);
            }
        }
    }
    Ok(Totals::default())
}

/// Reads one directory. A missing or damaged one counts as empty here; the code that creates the
/// tree reports it.
fn read(repo: &Repository<IndexedFullStatus>, id: TreeId, name: u64) -> VerbResult<DirMeasure> {
    let nodes = match repo.get_tree(&id) {
        Ok(tree) => tree.nodes,
        Err(cause) if trouble_of(&cause).is_some() => return Err(failed(cause)),
        Err(_) => Vec::new(),
    };
    let mut totals = Totals::default();
    let mut left = Vec::new();
    for node in &nodes {
        totals.add(node);
        if let Some(subtree) = node.subtree.filter(|_| node.is_dir()) {
            left.push((subtree, node.name.len() as u64));
        }
    }
    Ok(DirMeasure {
        id,
        own_open: totals.open,
        totals,
        left,
        name,
    })
}
