//! The model: a tree of inodes in memory with POSIX semantics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustix::io::Errno;

pub type Id = u64;
pub const ROOT: Id = 1;

/// An abstract modification time: equal stamps are equal times. The real time may become known
/// later.
pub type Stamp = u64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    File(Arc<Vec<u8>>),
    Dir(BTreeMap<Vec<u8>, Id>),
    Symlink(Vec<u8>),
    Fifo,
    Socket,
}

impl Body {
    pub fn letter(&self) -> char {
        match self {
            Body::File(_) => 'f',
            Body::Dir(_) => 'd',
            Body::Symlink(_) => 'l',
            Body::Fifo => 'p',
            Body::Socket => 's',
        }
    }
}

#[derive(Clone, Debug)]
pub struct Node {
    pub body: Body,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Stamp,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub links: u32,
    /// Of a directory: changes with its entries.
    pub entries: Stamp,
}

impl Node {
    pub fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir(_))
    }

    pub fn content(&self) -> Option<&Arc<Vec<u8>>> {
        match &self.body {
            Body::File(content) => Some(content),
            _ => None,
        }
    }
}

/// A tree. A clone is a checkpoint.
#[derive(Clone, Debug)]
pub struct Tree {
    pub nodes: BTreeMap<Id, Node>,
}

/// A source of unique numbers.
#[derive(Debug)]
pub struct Counter(u64);

impl Counter {
    /// Returns a counter for a branch, in a range that this one does not reach for a long time.
    pub fn apart(&mut self) -> Counter {
        self.0 += 1 << 40;
        Counter(self.0 - (1 << 39))
    }

    pub fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// The live tree of the model, and its counter.
pub struct Model {
    pub tree: Tree,
    pub counter: Counter,
    /// Unlinked nodes that are still open.
    pub held: BTreeSet<Id>,
}

pub type OpResult<T> = Result<T, Errno>;

impl Tree {
    pub fn node(&self, id: Id) -> &Node {
        self.nodes.get(&id).expect("every id has a node")
    }

    fn child(&self, dir: Id, name: &[u8]) -> OpResult<Option<Id>> {
        match &self.node(dir).body {
            Body::Dir(names) if name.len() <= 255 => Ok(names.get(name).copied()),
            Body::Dir(_) => Err(Errno::NAMETOOLONG),
            // All symbolic links of the tests dangle.
            Body::Symlink(_) => Err(Errno::NOENT),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// Returns the node at a path, without following a final symbolic link.
    pub fn lookup(&self, path: &[u8]) -> OpResult<Id> {
        if path == b"." {
            return Ok(ROOT);
        }
        path.split(|byte| *byte == b'/')
            .try_fold(ROOT, |at, name| self.child(at, name)?.ok_or(Errno::NOENT))
    }

    /// Returns the directory of a path, the last component, and its node.
    pub fn resolve(&self, path: &[u8]) -> OpResult<(Id, Vec<u8>, Option<Id>)> {
        let (dir, name) = self.parent(path)?;
        let child = self.child(dir, &name)?;
        Ok((dir, name, child))
    }

    fn parent(&self, path: &[u8]) -> OpResult<(Id, Vec<u8>)> {
        let (dir, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (self.lookup(&path[..slash])?, &path[slash + 1..]),
            None => (ROOT, path),
        };
        match self.node(dir).body {
            Body::Dir(_) => Ok((dir, name.to_vec())),
            Body::Symlink(_) => Err(Errno::NOENT),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// Returns all paths with their nodes; the root is the empty path.
    pub fn paths(&self) -> BTreeMap<Vec<u8>, Id> {
        let mut found = BTreeMap::new();
        let mut open = vec![(Vec::new(), ROOT)];
        while let Some((path, id)) = open.pop() {
            if let Body::Dir(names) = &self.node(id).body {
                for (name, child) in names {
                    let below = if path.is_empty() {
                        name.clone()
                    } else {
                        [&path[..], b"/", name].concat()
                    };
                    open.push((below, *child));
                }
            }
            found.insert(path, id);
        }
        found
    }

    /// Reports whether `ancestor` is `id` or an ancestor of it.
    pub fn is_within(&self, ancestor: Id, id: Id) -> bool {
        let mut open = vec![ancestor];
        while let Some(at) = open.pop() {
            if at == id {
                return true;
            }
            if let Body::Dir(names) = &self.node(at).body {
                open.extend(names.values());
            }
        }
        false
    }

    /// Recomputes all link counts.
    pub fn count_links(&mut self) {
        let mut links: BTreeMap<Id, u32> = BTreeMap::new();
        self.paths()
            .into_values()
            .for_each(|id| *links.entry(id).or_default() += 1);
        self.nodes
            .iter_mut()
            .for_each(|(id, node)| node.links = links.get(id).copied().unwrap_or(0));
    }

    /// Returns the nodes with a path, as a checkpoint contains them.
    pub fn reachable(&self) -> Tree {
        let ids: BTreeSet<Id> = self.paths().into_values().collect();
        Tree {
            nodes: self
                .nodes
                .iter()
                .filter(|(id, _)| ids.contains(id))
                .map(|(id, node)| (*id, node.clone()))
                .collect(),
        }
    }
}

impl Model {
    pub fn new() -> Model {
        let mut counter = Counter(ROOT);
        let mtime = counter.next();
        let root = Node {
            body: Body::Dir(BTreeMap::new()),
            mode: 0o755,
            uid: 0,
            gid: 0,
            mtime,
            xattrs: BTreeMap::new(),
            links: 1,
            entries: mtime,
        };
        Model {
            tree: Tree {
                nodes: BTreeMap::from([(ROOT, root)]),
            },
            counter,
            held: BTreeSet::new(),
        }
    }

    pub fn node_mut(&mut self, id: Id) -> &mut Node {
        self.tree.nodes.get_mut(&id).expect("every id has a node")
    }

    /// Changes the modification time.
    pub fn touch(&mut self, id: Id) {
        let stamp = self.counter.next();
        self.node_mut(id).mtime = stamp;
    }

    fn names_mut(&mut self, dir: Id) -> &mut BTreeMap<Vec<u8>, Id> {
        let stamp = self.counter.next();
        let node = self.node_mut(dir);
        (node.mtime, node.entries) = (stamp, stamp);
        match &mut node.body {
            Body::Dir(names) => names,
            _ => panic!("a name in an inode that is not a directory"),
        }
    }

    /// Creates an inode with a name.
    pub fn make(&mut self, path: &[u8], body: Body, mode: u32) -> OpResult<Id> {
        let (dir, name, there) = self.tree.resolve(path)?;
        if there.is_some() {
            return Err(Errno::EXIST);
        }
        let (id, mtime) = (self.counter.next(), self.counter.next());
        let parent = self.tree.node(dir);
        let inherits = parent.mode & 0o2000 != 0;
        let gid = if inherits { parent.gid } else { 0 };
        let mode = if inherits && matches!(body, Body::Dir(_)) {
            mode | 0o2000
        } else {
            mode
        };
        let node = Node {
            body,
            mode,
            uid: 0,
            gid,
            mtime,
            xattrs: BTreeMap::new(),
            links: 1,
            entries: mtime,
        };
        self.tree.nodes.insert(id, node);
        self.names_mut(dir).insert(name, id);
        Ok(id)
    }

    pub fn link(&mut self, from: &[u8], to: &[u8]) -> OpResult<()> {
        let id = self.tree.lookup(from)?;
        let (dir, name, there) = self.tree.resolve(to)?;
        if there.is_some() {
            return Err(Errno::EXIST);
        }
        if self.tree.node(id).is_dir() {
            return Err(Errno::PERM);
        }
        self.node_mut(id).links += 1;
        self.names_mut(dir).insert(name, id);
        Ok(())
    }

    fn is_empty_dir(&self, id: Id) -> bool {
        matches!(&self.tree.node(id).body, Body::Dir(names) if names.is_empty())
    }

    /// unlink(2) or rmdir(2).
    pub fn remove(&mut self, path: &[u8], want_dir: bool) -> OpResult<()> {
        let (dir, name, there) = self.tree.resolve(path)?;
        let id = there.ok_or(Errno::NOENT)?;
        match (self.tree.node(id).is_dir(), want_dir) {
            (true, false) => return Err(Errno::ISDIR),
            (false, true) => return Err(Errno::NOTDIR),
            (true, true) if !self.is_empty_dir(id) => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        self.names_mut(dir).remove(&name);
        self.drop_link(id);
        Ok(())
    }

    fn drop_link(&mut self, id: Id) {
        let node = self.node_mut(id);
        node.links -= 1;
        if node.links == 0 && !self.held.contains(&id) {
            self.tree.nodes.remove(&id);
        }
    }

    /// Drops the last reference to an unlinked node.
    pub fn let_go(&mut self, id: Id) {
        self.held.remove(&id);
        if self.tree.nodes.get(&id).is_some_and(|node| node.links == 0) {
            self.tree.nodes.remove(&id);
        }
    }

    /// renameat2(2).
    pub fn rename(
        &mut self,
        from: &[u8],
        to: &[u8],
        noreplace: bool,
        exchange: bool,
    ) -> OpResult<()> {
        let (from_dir, from_name) = self.tree.parent(from)?;
        let (to_dir, to_name) = self.tree.parent(to)?;
        let source = self.tree.child(from_dir, &from_name)?.ok_or(Errno::NOENT)?;
        let target = self.tree.child(to_dir, &to_name)?;
        match target {
            Some(_) if noreplace => return Err(Errno::EXIST),
            None if exchange => return Err(Errno::NOENT),
            _ => {}
        }
        if self.tree.node(source).is_dir() && self.tree.is_within(source, to_dir) {
            return Err(Errno::INVAL);
        }
        if let Some(target) = target {
            if self.tree.node(target).is_dir() && self.tree.is_within(target, from_dir) {
                return Err(if exchange {
                    Errno::INVAL
                } else {
                    Errno::NOTEMPTY
                });
            }
            if target == source {
                return Ok(());
            }
            if !exchange {
                self.check_replace(source, target)?;
            }
        }
        // A directory's `..` changes with its parent, which on some filesystems changes its time.
        for moved in [Some(source), target.filter(|_| exchange)]
            .into_iter()
            .flatten()
        {
            if from_dir != to_dir && self.tree.node(moved).is_dir() {
                self.touch(moved);
            }
        }
        if exchange {
            let target = target.expect("an exchange has two sides");
            self.names_mut(from_dir).insert(from_name, target);
            self.names_mut(to_dir).insert(to_name, source);
            return Ok(());
        }
        self.names_mut(from_dir).remove(&from_name);
        self.names_mut(to_dir).insert(to_name, source);
        if let Some(target) = target {
            self.drop_link(target);
        }
        Ok(())
    }

    fn check_replace(&self, source: Id, target: Id) -> OpResult<()> {
        match (
            self.tree.node(source).is_dir(),
            self.tree.node(target).is_dir(),
        ) {
            (true, false) => Err(Errno::NOTDIR),
            (false, true) => Err(Errno::ISDIR),
            (true, true) if !self.is_empty_dir(target) => Err(Errno::NOTEMPTY),
            _ => Ok(()),
        }
    }

    /// Opens a regular file for writing by path.
    pub fn file(&self, path: &[u8], create: bool) -> OpResult<Option<Id>> {
        let (dir, _, there) = self.tree.resolve(path)?;
        let Some(id) = there else {
            return if create { Ok(None) } else { Err(Errno::NOENT) };
        };
        let (dir, node) = (self.tree.node(dir), self.tree.node(id));
        // may_create_in_sticky, fs/namei.c; for files and FIFOs only with a sysctl.
        if create
            && matches!(node.body, Body::Symlink(_) | Body::Socket)
            && dir.mode & 0o1002 == 0o1002
            && node.uid != dir.uid
            && node.uid != 0
        {
            return Err(Errno::ACCESS);
        }
        match node.body {
            Body::File(_) => Ok(Some(id)),
            Body::Dir(_) => Err(Errno::ISDIR),
            Body::Symlink(_) => Err(Errno::LOOP),
            // Opened with O_WRONLY | O_NONBLOCK, without a reader.
            Body::Fifo | Body::Socket => Err(Errno::NXIO),
        }
    }

    fn content_mut(&mut self, id: Id) -> &mut Vec<u8> {
        match &mut self.node_mut(id).body {
            Body::File(content) => Arc::make_mut(content),
            _ => panic!("content of an inode that is not a file"),
        }
    }

    pub fn write(&mut self, id: Id, offset: usize, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let content = self.content_mut(id);
        if content.len() < offset + data.len() {
            content.resize(offset + data.len(), 0);
        }
        content[offset..offset + data.len()].copy_from_slice(data);
        self.touch(id);
    }

    pub fn append(&mut self, id: Id, data: &[u8]) {
        let end = self.content_mut(id).len();
        self.write(id, end, data);
    }

    pub fn truncate(&mut self, id: Id, size: usize) {
        self.content_mut(id).resize(size, 0);
        self.touch(id);
    }

    pub fn punch(&mut self, id: Id, offset: usize, length: usize) {
        let content = self.content_mut(id);
        let end = content.len().min(offset + length);
        if offset < end {
            content[offset..end].fill(0);
        }
        self.touch(id);
    }

    pub fn size(&self, id: Id) -> usize {
        self.tree
            .node(id)
            .content()
            .map_or(0, |content| content.len())
    }
}
