//! A worker's model of its own names: paths, their targets, and hard links.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Seeded random numbers (xorshift64*).
pub struct WorkerRng(u64);

impl WorkerRng {
    pub fn new(seed: u64) -> WorkerRng {
        WorkerRng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// Returns a random element.
    pub fn of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.below(all.len()))
    }

    /// Returns random content.
    pub fn content(&mut self, most: usize) -> Vec<u8> {
        let (len, seed) = (self.below(most + 1), self.next());
        (0..len as u64)
            .map(|at| (seed.wrapping_add(at / 16) >> (at % 5)) as u8)
            .collect()
    }
}

/// The observed target of a name, for reports and comparisons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskNode {
    /// A regular file: size, content hash, link count.
    File(u64, String, u64),
    Dir,
    /// A symbolic link with this target.
    Link(String),
}

impl DiskNode {
    fn file(data: &[u8], names: u64) -> DiskNode {
        DiskNode::File(
            data.len() as u64,
            blake3::hash(data).to_hex()[..16].to_owned(),
            names,
        )
    }

    /// Reads a path; panics if it does not exist.
    pub fn at(path: &Path) -> DiskNode {
        use std::os::unix::fs::MetadataExt;
        let told = |what: &str, error: std::io::Error| -> ! {
            panic!("{what} {}: {error}", path.display())
        };
        let stat = fs::symlink_metadata(path).unwrap_or_else(|error| told("stat", error));
        if stat.is_dir() {
            return DiskNode::Dir;
        }
        if stat.is_symlink() {
            return DiskNode::Link(
                fs::read_link(path)
                    .unwrap_or_else(|error| told("readlink", error))
                    .display()
                    .to_string(),
            );
        }
        DiskNode::file(
            &fs::read(path).unwrap_or_else(|error| told("read", error)),
            stat.nlink(),
        )
    }
}

/// Reads everything below `root/part`, by its path relative to `root`.
pub fn show_all(root: &Path, part: &str, into: &mut BTreeMap<String, DiskNode>) {
    let dir = root.join(part);
    for name in crate::concurrent::walk::names(&dir)
        .unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
    {
        let path = format!("{part}/{name}");
        let shown = DiskNode::at(&root.join(&path));
        if shown == DiskNode::Dir {
            show_all(root, &path, into);
        }
        into.insert(path, shown);
    }
}

/// The target of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelNode {
    /// The regular file with this number.
    File(usize),
    Dir,
    Link(String),
}

/// The names of one worker.
#[derive(Default)]
pub struct Model {
    names: BTreeMap<String, ModelNode>,
    /// The content of each regular file ever created.
    pub contents: Vec<Vec<u8>>,
}

impl Model {
    pub fn get(&self, path: &str) -> Option<&ModelNode> {
        self.names.get(path)
    }

    /// Returns the paths whose target matches `wanted`.
    pub fn paths(&self, wanted: impl Fn(&ModelNode) -> bool) -> Vec<String> {
        self.names
            .iter()
            .filter(|(_, what)| wanted(what))
            .map(|(path, _)| path.clone())
            .collect()
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Adds a new regular file.
    pub fn create(&mut self, path: &str, data: Vec<u8>) {
        self.contents.push(data);
        self.put(path, ModelNode::File(self.contents.len() - 1));
    }

    /// Sets the target of a name.
    pub fn put(&mut self, path: &str, what: ModelNode) {
        self.names.insert(path.to_owned(), what);
    }

    pub fn remove(&mut self, path: &str) {
        self.names.remove(path);
    }

    /// Returns whether a directory is empty.
    pub fn is_empty_dir(&self, path: &str) -> bool {
        !self.names.keys().any(|other| is_below(other, path))
    }

    /// Renames a name, with everything below it.
    pub fn rename(&mut self, from: &str, to: &str) {
        let moved = self.take_tree(from);
        self.names.remove(to);
        self.put_tree(to, moved);
    }

    /// Exchanges two names, with everything below each.
    pub fn exchange(&mut self, a: &str, b: &str) {
        let (from_a, from_b) = (self.take_tree(a), self.take_tree(b));
        self.put_tree(b, from_a);
        self.put_tree(a, from_b);
    }

    fn take_tree(&mut self, path: &str) -> Vec<(String, ModelNode)> {
        let keys: Vec<String> = self
            .names
            .keys()
            .filter(|other| *other == path || is_below(other, path))
            .cloned()
            .collect();
        keys.into_iter()
            .filter_map(|key| {
                self.names
                    .remove(&key)
                    .map(|what| (key[path.len()..].to_owned(), what))
            })
            .collect()
    }

    fn put_tree(&mut self, path: &str, tree: Vec<(String, ModelNode)>) {
        self.names.extend(
            tree.into_iter()
                .map(|(rest, what)| (format!("{path}{rest}"), what)),
        );
    }

    /// Returns the expected target of a name.
    pub fn shown(&self, path: &str) -> Option<DiskNode> {
        Some(match self.get(path)? {
            ModelNode::Dir => DiskNode::Dir,
            ModelNode::Link(target) => DiskNode::Link(target.clone()),
            ModelNode::File(number) => {
                let names = self
                    .names
                    .values()
                    .filter(|what| **what == ModelNode::File(*number))
                    .count();
                DiskNode::file(&self.contents[*number], names as u64)
            }
        })
    }

    /// Returns the expected targets of all names.
    pub fn all(&self) -> BTreeMap<String, DiskNode> {
        self.names
            .keys()
            .filter_map(|path| Some((path.clone(), self.shown(path)?)))
            .collect()
    }
}

/// Returns whether `path` is below the directory `dir`.
pub fn is_below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir)
        .is_some_and(|rest| rest.starts_with('/'))
}
