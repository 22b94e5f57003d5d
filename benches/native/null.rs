//! The null filesystem: our own adapter, with the same INIT flags and cache timeouts, over a tree
//! in memory. It measures the cost of FUSE; ckptfs adds the backing directory and the history.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use ckptfs_core::engine::counts::RequestCounts;
use ckptfs_core::engine::request::*;
use ckptfs_fuse::{MountConfig, Session, Xattrs};
use ckptfs_sys::{Errno, Kind, Stat, SysResult, Time};

/// The argument that makes this program serve.
pub const ARGUMENT: &str = "--serve-null";
const ROOT: u64 = 1;
const TTL: Duration = Duration::from_secs(1 << 30);
const READERS: usize = 4;
const BLOCK: u64 = 4096;

struct Node {
    stat: Stat,
    data: Vec<u8>,
    names: BTreeMap<Vec<u8>, u64>,
}

#[derive(Default)]
struct Tree {
    nodes: HashMap<u64, Node>,
    last: u64,
}

struct Null {
    counts: Arc<RequestCounts>,
    tree: Mutex<Tree>,
}

/// Mounts on `point` and serves until unmounted.
pub fn serve(point: &Path) {
    let tree = Mutex::new(Tree::default());
    tree.lock().add(Kind::Dir, 0o777, 0, 0);
    let service = Arc::new(Null {
        counts: Arc::default(),
        tree,
    });
    let config = MountConfig {
        mountpoint: point.to_owned(),
        source: "null".into(),
        dev: false,
        suid: false,
        exec: true,
        passthrough: false,
        allow_other: true,
        read_only: false,
        xattrs: Xattrs::All,
        readers: READERS,
    };
    let session = Session::mount(service, &config);
    let (tell, ends) = std::sync::mpsc::channel();
    session
        .expect("a filesystem in memory can be mounted")
        .at_end(move |served| drop(tell.send(served)));
    ends.recv()
        .expect("it ends")
        .expect("the session was served");
}

fn now() -> Time {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Time {
        sec: since.as_secs().cast_signed(),
        nsec: since.subsec_nanos(),
    }
}

impl Tree {
    fn add(&mut self, kind: Kind, mode: u32, uid: u32, gid: u32) -> u64 {
        self.last += 1;
        let (ino, time) = (self.last, now());
        let nlink = if kind == Kind::Dir { 2 } else { 1 };
        let (rdev, size, blocks, blksize, dev) = (0, 0, 0, BLOCK as u32, 0);
        let stat = Stat {
            dev,
            ino,
            kind,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            size,
            blocks,
            blksize,
            atime: time,
            mtime: time,
            ctime: time,
            btime: None,
            protection: Default::default(),
        };
        self.nodes.insert(
            ino,
            Node {
                stat,
                data: Vec::new(),
                names: BTreeMap::new(),
            },
        );
        ino
    }

    fn node(&mut self, node: NodeId) -> SysResult<&mut Node> {
        self.nodes.get_mut(&node.0).ok_or(Errno::ENOENT)
    }

    fn child(&mut self, parent: NodeId, name: &[u8]) -> SysResult<NodeId> {
        self.node(parent)?
            .names
            .get(name)
            .map(|ino| NodeId(*ino))
            .ok_or(Errno::ENOENT)
    }

    fn entry(&mut self, node: NodeId) -> SysResult<Entry> {
        Ok(Entry {
            node,
            generation: 0,
            stat: self.node(node)?.stat,
            ttl: TTL,
        })
    }

    fn touch(&mut self, node: NodeId) -> SysResult<()> {
        let (stat, time) = (&mut self.node(node)?.stat, now());
        (stat.mtime, stat.ctime) = (time, time);
        Ok(())
    }

    fn put(
        &mut self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        kind: Kind,
        mode: u32,
    ) -> SysResult<Entry> {
        if self.node(parent)?.names.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let ino = self.add(kind, mode, caller.uid, caller.gid);
        self.node(parent)?.names.insert(name.to_vec(), ino);
        self.touch(parent)?;
        self.entry(NodeId(ino))
    }

    fn remove(&mut self, parent: NodeId, name: &[u8]) -> SysResult<()> {
        let child = self.child(parent, name)?;
        let stat = &mut self.node(child)?.stat;
        stat.nlink = stat.nlink.saturating_sub(1);
        // An inode without names is not freed: it may be open, and the mount is short-lived.
        self.node(parent)?.names.remove(name);
        self.touch(parent)
    }

    fn resize(&mut self, node: NodeId, size: u64) -> SysResult<()> {
        let found = self.node(node)?;
        found.data.resize(size as usize, 0);
        (found.stat.size, found.stat.blocks) = (size, size.div_ceil(512));
        self.touch(node)
    }
}

fn opened(node: NodeId) -> Opened {
    Opened {
        fh: Fh(node.0),
        keep_cache: true,
        direct_io: false,
        no_flush: true,
        passthrough: None,
        by: 0,
    }
}

fn at(time: SetTime) -> Time {
    match time {
        SetTime::Omit | SetTime::Now => now(),
        SetTime::At(time) => time,
    }
}

impl Service for Null {
    fn counts(&self) -> &Arc<RequestCounts> {
        &self.counts
    }
    fn started(&self, _: bool) {}
    fn ended(&self) {}
    fn no_passthrough(&self, _: Fh) {}
    fn waits(&self, _: NodeId) -> bool {
        false
    }
    fn lookup(&self, _: Caller, parent: NodeId, name: &[u8]) -> SysResult<LookupResult> {
        let mut tree = self.tree.lock();
        match tree.child(parent, name) {
            Ok(node) => tree.entry(node).map(LookupResult::Found),
            Err(Errno::ENOENT) => Ok(LookupResult::Absent(TTL)),
            Err(error) => Err(error),
        }
    }
    fn forget(&self, _: NodeId, _: u64) {}
    fn getattr(&self, node: NodeId, _: Option<Fh>) -> SysResult<Attr> {
        Ok(Attr {
            stat: self.tree.lock().node(node)?.stat,
            ttl: TTL,
        })
    }
    fn setattr(&self, _: Caller, node: NodeId, _: Option<Fh>, set: SetAttr) -> SysResult<Attr> {
        let mut tree = self.tree.lock();
        if let Some(size) = set.size {
            tree.resize(node, size)?;
        }
        let stat = &mut tree.node(node)?.stat;
        stat.mode = set.mode.unwrap_or(stat.mode);
        stat.uid = set.uid.unwrap_or(stat.uid);
        stat.gid = set.gid.unwrap_or(stat.gid);
        stat.atime = set.atime.map_or(stat.atime, at);
        stat.mtime = set.mtime.map_or(stat.mtime, at);
        stat.ctime = now();
        Ok(Attr {
            stat: *stat,
            ttl: TTL,
        })
    }
    fn readlink(&self, node: NodeId) -> SysResult<Vec<u8>> {
        Ok(self.tree.lock().node(node)?.data.clone())
    }
    fn make(&self, caller: Caller, parent: NodeId, name: &[u8], new: NewNode) -> SysResult<Entry> {
        self.tree
            .lock()
            .put(caller, parent, name, new.kind, new.mode & !new.umask)
    }
    fn symlink(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> SysResult<Entry> {
        let mut tree = self.tree.lock();
        let made = tree.put(caller, parent, name, Kind::Symlink, 0o777)?;
        let node = tree.node(made.node)?;
        node.data = target.to_vec();
        node.stat.size = target.len() as u64;
        tree.entry(made.node)
    }
    fn link(&self, _caller: Caller, node: NodeId, parent: NodeId, name: &[u8]) -> SysResult<Entry> {
        let mut tree = self.tree.lock();
        tree.node(node)?.stat.nlink += 1;
        tree.node(parent)?.names.insert(name.to_vec(), node.0);
        tree.touch(parent)?;
        tree.entry(node)
    }
    fn unlink(&self, _: Caller, parent: NodeId, name: &[u8]) -> SysResult<()> {
        self.tree.lock().remove(parent, name)
    }
    fn rmdir(&self, _: Caller, parent: NodeId, name: &[u8]) -> SysResult<()> {
        let mut tree = self.tree.lock();
        let child = tree.child(parent, name)?;
        if tree.node(child)?.names.is_empty() {
            tree.remove(parent, name)
        } else {
            Err(Errno::ENOTEMPTY)
        }
    }
    fn rename(
        &self,
        _caller: Caller,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        how: RenameMode,
    ) -> SysResult<()> {
        let mut tree = self.tree.lock();
        let child = tree.child(parent, name)?;
        match (tree.child(new_parent, new_name), how) {
            (_, RenameMode::Exchange | RenameMode::Whiteout | RenameMode::NoReplaceWhiteout) => {
                return Err(Errno::EINVAL);
            }
            (Ok(_), RenameMode::NoReplace) => return Err(Errno::EEXIST),
            (Ok(_), RenameMode::Replace) => tree.remove(new_parent, new_name)?,
            (Err(_), _) => {}
        }
        tree.node(parent)?.names.remove(name);
        tree.node(new_parent)?
            .names
            .insert(new_name.to_vec(), child.0);
        tree.touch(parent)?;
        tree.touch(new_parent)
    }
    fn open(&self, _: Caller, node: NodeId, flags: i32) -> SysResult<Opened> {
        if flags & rustix::fs::OFlags::TRUNC.bits().cast_signed() != 0 {
            self.tree.lock().resize(node, 0)?;
        }
        Ok(opened(node))
    }
    fn create(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
        _: i32,
    ) -> SysResult<(Entry, Opened)> {
        let entry = self
            .tree
            .lock()
            .put(caller, parent, name, Kind::File, mode & !umask)?;
        Ok((entry, opened(entry.node)))
    }
    fn created(&self, _: NodeId) {}
    fn read(&self, node: NodeId, _: Fh, offset: u64, size: u32, _: bool) -> SysResult<Vec<u8>> {
        let mut tree = self.tree.lock();
        let data = &tree.node(node)?.data;
        let from = data.len().min(offset as usize);
        Ok(data[from..data.len().min(from + size as usize)].to_vec())
    }
    fn write(
        &self,
        _: Caller,
        node: NodeId,
        _: Fh,
        offset: u64,
        data: &[u8],
        _: bool,
    ) -> SysResult<u32> {
        let mut tree = self.tree.lock();
        let end = offset + data.len() as u64;
        if tree.node(node)?.stat.size < end {
            tree.resize(node, end)?;
        }
        tree.node(node)?.data[offset as usize..end as usize].copy_from_slice(data);
        tree.touch(node)?;
        Ok(data.len() as u32)
    }
    fn flush(&self, _: NodeId, _: Fh) -> SysResult<()> {
        Ok(())
    }
    fn release(&self, _: NodeId, _: Fh) {}
    fn fsync(&self, _: NodeId, _: Fh, _: bool) -> SysResult<()> {
        Ok(())
    }
    fn readdir(&self, node: NodeId, offset: u64) -> SysResult<Names> {
        let mut tree = self.tree.lock();
        let names: Vec<(Vec<u8>, u64)> = tree
            .node(node)?
            .names
            .iter()
            .map(|(name, ino)| (name.clone(), *ino))
            .collect();
        let dots = [(b".".to_vec(), node.0), (b"..".to_vec(), ROOT)];
        let mut listed = Vec::with_capacity(names.len() + dots.len());
        for (index, (name, ino)) in dots
            .into_iter()
            .chain(names)
            .enumerate()
            .skip(offset as usize)
        {
            listed.push(Listed {
                name,
                node: NodeId(ino),
                kind: tree.node(NodeId(ino))?.stat.kind,
                slot: 0,
                next: index as u64 + 1,
            });
        }
        Ok(Names {
            names: listed,
            last: true,
        })
    }
    fn plus(&self, _: NodeId, listed: &Listed) -> Option<Plus> {
        let entry = self.tree.lock().entry(listed.node).ok()?;
        Some(Plus { entry, told: true })
    }
    fn fsyncdir(&self, _: NodeId, _: bool) -> SysResult<()> {
        Ok(())
    }
    fn statfs(&self, _: NodeId) -> SysResult<FsInfo> {
        let (many, block) = (1 << 30, BLOCK as u32);
        Ok(FsInfo {
            blocks: many,
            bfree: many,
            bavail: many,
            files: many,
            ffree: many,
            bsize: block,
            frsize: block,
            namelen: 255,
            fs_type: 0,
        })
    }
    fn setxattr(&self, _: Caller, _: NodeId, _: &[u8], _: &[u8], _: XattrMode) -> SysResult<()> {
        Err(Errno::ENOSPC)
    }
    fn getxattr(&self, _: NodeId, _: &[u8]) -> SysResult<Vec<u8>> {
        Err(Errno::NO_XATTR)
    }
    fn listxattr(&self, _: Caller, _: NodeId) -> SysResult<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }
    fn removexattr(&self, _: Caller, _: NodeId, _: &[u8]) -> SysResult<()> {
        Err(Errno::NO_XATTR)
    }
    fn access(&self, _: Caller, _: NodeId, _: i32) -> SysResult<()> {
        Ok(())
    }
    fn fallocate(
        &self,
        _: Caller,
        node: NodeId,
        _: Fh,
        offset: u64,
        length: u64,
        _: i32,
    ) -> SysResult<()> {
        let mut tree = self.tree.lock();
        let size = tree.node(node)?.stat.size.max(offset + length);
        tree.resize(node, size)
    }
    fn lseek(&self, _: NodeId, _: Fh, _: u64, _: Seek) -> SysResult<u64> {
        Err(Errno::EINVAL)
    }
    fn copy_file_range(
        &self,
        _: Caller,
        _: (NodeId, Fh, u64),
        _: (NodeId, Fh, u64),
        _: u64,
    ) -> SysResult<u64> {
        Err(Errno::EOPNOTSUPP)
    }
}
