//! A directory served by an engine in this process, driven by requests as the kernel makes them.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::node_snapshot::{NodeSnapshot, Tree, join, plain};
use ckptfs_api::{
    CheckpointOptions, Delete, GetStatus, ListCheckpoints, RestoreOptions, StateName, Status,
    Times, TreePath, UndoOptions, UndoWalk, VerbResult,
};
use ckptfs_core::engine::request::{
    Caller, Entry, Fh, LookupResult, NewNode, NodeId, RenameMode, Service, SetAttr, SetTime,
    XattrMode,
};
use ckptfs_core::engine::verb::Execute;
use ckptfs_core::engine::{Config, Engine, IoChoice};
use ckptfs_sys::{self as sys, Errno, Kind, SysResult};

pub const ROOT: NodeId = NodeId(1);
const CALLER: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 0,
    request: 0,
    again: false,
};
const SNAPSHOTS: &str = ".snapshots";

pub struct ServedDir {
    pub dir: PathBuf,
    engine: Option<Arc<Engine>>,
    passthrough: bool,
    /// Lookup counts of the nodes, as the kernel has them.
    known: Mutex<HashMap<NodeId, u64>>,
}

impl ServedDir {
    pub fn new(dir: &Path, passthrough: bool) -> ServedDir {
        let mut served = ServedDir {
            dir: dir.to_owned(),
            engine: None,
            passthrough,
            known: Mutex::default(),
        };
        served.open().expect("nothing fails yet");
        served
    }

    /// Starts to serve.
    pub fn open(&mut self) -> VerbResult<()> {
        let root = sys::open_root(&self.dir).map_err(|errno| ckptfs_api::VerbError {
            code: ckptfs_api::Code::Internal,
            message: errno.to_string(),
            hint: None,
        })?;
        let io = if self.passthrough {
            IoChoice::Auto
        } else {
            IoChoice::Daemon
        };
        let config = Config {
            io,
            ..Config::bare(root, self.dir.clone())
        };
        let engine = Engine::open(config)?;
        assert_eq!(engine.wants_passthrough(), self.passthrough);
        engine.started(self.passthrough);
        self.engine = Some(engine);
        Ok(())
    }

    /// Stops in an orderly way.
    pub fn close(&mut self) {
        self.known.lock().unwrap().clear();
        if let Some(engine) = self.engine.take() {
            engine.close();
        }
    }

    /// Returns the backing directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Stops and starts.
    pub fn remount(&mut self) {
        self.close();
        self.open().expect("it can be served again");
    }

    pub fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("it is served")
    }

    fn ask<V: Execute>(&self, verb: V) -> VerbResult<V::Answer> {
        verb.run(self.engine(), &CALLER.actor().into())
    }

    /// Forgets all nodes.
    pub fn forget(&self) {
        for (node, count) in self.known.lock().unwrap().drain() {
            if node != ROOT {
                self.engine().forget(node, count);
            }
        }
    }

    fn learn(&self, entry: Entry) -> NodeId {
        *self.known.lock().unwrap().entry(entry.node).or_default() += 1;
        entry.node
    }

    fn know(&self, entry: Entry) {
        self.learn(entry);
    }

    pub fn child(&self, parent: NodeId, name: &[u8]) -> SysResult<NodeId> {
        match self.engine().lookup(CALLER, parent, name)? {
            LookupResult::Found(entry) => Ok(self.learn(entry)),
            LookupResult::Absent(_) => Err(Errno::ENOENT),
        }
    }

    pub fn node(&self, path: &str) -> SysResult<NodeId> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .try_fold(ROOT, |at, name| self.child(at, name.as_bytes()))
    }

    /// Returns the parent directory and the last component of a path.
    fn place<'a>(&self, path: &'a str) -> SysResult<(NodeId, &'a [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.node(dir)?, name.as_bytes()))
    }

    pub fn create(&self, path: &str, data: &[u8]) -> SysResult<()> {
        let (dir, name) = self.place(path)?;
        let (entry, opened) =
            self.engine()
                .create(CALLER, dir, name, 0o644, 0o022, libc_flags::WRITE)?;
        let node = self.learn(entry);
        let written = if data.is_empty() {
            Ok(())
        } else {
            self.write_to(node, opened.fh, path, 0, data)
        };
        self.engine().release(node, opened.fh);
        written
    }

    /// Writes through the engine, or in passthrough directly to the backing file as the kernel
    /// does.
    fn write_to(
        &self,
        node: NodeId,
        fh: Fh,
        path: &str,
        offset: u64,
        data: &[u8],
    ) -> SysResult<()> {
        if self.passthrough {
            let file = File::options()
                .write(true)
                .open(self.dir.join(path))
                .map_err(Errno::from)?;
            return file.write_all_at(data, offset).map_err(Errno::from);
        }
        self.engine()
            .write(CALLER, node, fh, offset, data, false)
            .map(drop)
    }

    pub fn open_fh(&self, path: &str, flags: i32) -> SysResult<(NodeId, Fh)> {
        let node = self.node(path)?;
        Ok((node, self.engine().open(CALLER, node, flags)?.fh))
    }

    pub fn release(&self, (node, fh): (NodeId, Fh)) {
        self.engine().release(node, fh);
    }

    pub fn write(&self, path: &str, offset: u64, data: &[u8]) -> SysResult<()> {
        let (node, fh) = self.open_fh(path, libc_flags::READ_WRITE)?;
        let written = self.write_to(node, fh, path, offset, data);
        self.release((node, fh));
        written
    }

    pub fn append(&self, path: &str, data: &[u8]) -> SysResult<()> {
        let node = self.node(path)?;
        let size = self.engine().getattr(node, None)?.stat.size;
        let fh = self
            .engine()
            .open(CALLER, node, libc_flags::WRITE | libc_flags::APPEND)?
            .fh;
        let written = self.write_to(node, fh, path, size, data);
        self.release((node, fh));
        written
    }

    pub fn empty(&self, path: &str) -> SysResult<()> {
        self.open_fh(path, libc_flags::WRITE | libc_flags::TRUNC)
            .map(|open| self.release(open))
    }

    pub fn fsync(&self, path: &str) -> SysResult<()> {
        let (node, fh) = self.open_fh(path, libc_flags::READ_WRITE)?;
        let synced = self.engine().fsync(node, fh, false);
        self.release((node, fh));
        synced
    }

    pub fn fallocate(&self, path: &str, offset: u64, length: u64) -> SysResult<()> {
        let (node, fh) = self.open_fh(path, libc_flags::READ_WRITE)?;
        let done = self.engine().fallocate(CALLER, node, fh, offset, length, 0);
        self.release((node, fh));
        done
    }

    pub fn copy_range(&self, from: &str, to: &str, length: u64) -> SysResult<()> {
        let source = self.open_fh(from, libc_flags::READ)?;
        let result = self.open_fh(to, libc_flags::READ_WRITE).and_then(|target| {
            let copied = self.engine().copy_file_range(
                CALLER,
                (source.0, source.1, 0),
                (target.0, target.1, 0),
                length,
            );
            self.release(target);
            copied
        });
        self.release(source);
        result.map(drop)
    }

    pub fn set(&self, path: &str, set: SetAttr) -> SysResult<()> {
        self.engine()
            .setattr(CALLER, self.node(path)?, None, set)
            .map(drop)
    }

    pub fn make(&self, path: &str, kind: Kind) -> SysResult<()> {
        let (dir, name) = self.place(path)?;
        let mode = if kind == Kind::Dir { 0o755 } else { 0o644 };
        self.engine()
            .make(
                CALLER,
                dir,
                name,
                NewNode {
                    kind,
                    mode,
                    umask: 0o022,
                    rdev: 0,
                },
            )
            .map(|entry| self.know(entry))
    }

    pub fn symlink(&self, path: &str, target: &str) -> SysResult<()> {
        let (dir, name) = self.place(path)?;
        self.engine()
            .symlink(CALLER, dir, name, target.as_bytes())
            .map(|entry| self.know(entry))
    }

    pub fn link(&self, from: &str, to: &str) -> SysResult<()> {
        let (dir, name) = self.place(to)?;
        let node = self.node(from)?;
        self.engine()
            .link(CALLER, node, dir, name)
            .map(|entry| self.know(entry))
    }

    pub fn unlink(&self, path: &str) -> SysResult<()> {
        let (dir, name) = self.place(path)?;
        self.engine().unlink(CALLER, dir, name)
    }

    pub fn rmdir(&self, path: &str) -> SysResult<()> {
        let (dir, name) = self.place(path)?;
        self.engine().rmdir(CALLER, dir, name)
    }

    pub fn rename(&self, from: &str, to: &str, how: RenameMode) -> SysResult<()> {
        let ((from_dir, from), (to_dir, to)) = (self.place(from)?, self.place(to)?);
        self.engine()
            .rename(CALLER, from_dir, from, to_dir, to, how)
    }

    pub fn setxattr(&self, path: &str, name: &str, value: &[u8]) -> SysResult<()> {
        self.engine().setxattr(
            CALLER,
            self.node(path)?,
            name.as_bytes(),
            value,
            XattrMode::Any,
        )
    }

    pub fn removexattr(&self, path: &str, name: &str) -> SysResult<()> {
        self.engine()
            .removexattr(CALLER, self.node(path)?, name.as_bytes())
    }

    pub fn checkpoint(&self) -> VerbResult<u64> {
        self.checkpoint_with(false)
    }

    pub fn checkpoint_with(&self, sync: bool) -> VerbResult<u64> {
        Ok(self
            .ask(CheckpointOptions {
                sync,
                ..CheckpointOptions::default()
            })?
            .id
            .0)
    }

    pub fn restore(&self, id: u64, path: &str) -> VerbResult<()> {
        let paths = if path.is_empty() {
            Vec::new()
        } else {
            vec![TreePath(path.as_bytes().to_vec())]
        };
        let options = RestoreOptions {
            to: StateName(id.to_string()),
            paths,
            dry_run: false,
            times: Some(Times::Kept),
        };
        let unknown = self.ask(options)?.unknown;
        // The restore is complete except for unreadable files, and the verb fails.
        if unknown.is_empty() {
            Ok(())
        } else {
            Err(ckptfs_api::VerbError {
                code: ckptfs_api::Code::Io,
                message: format!("{unknown:?} is unknown"),
                hint: None,
            })
        }
    }

    pub fn delete(&self, id: u64) -> VerbResult<()> {
        self.ask(Delete {
            state: StateName(id.to_string()),
            now: false,
        })
        .map(drop)
    }

    pub fn free(&self, id: u64) -> VerbResult<()> {
        self.ask(Delete {
            state: StateName(id.to_string()),
            now: true,
        })
        .map(drop)
    }

    pub fn undo(&self) -> VerbResult<()> {
        self.ask(UndoOptions {
            walk: UndoWalk::Undo(1),
            skip: false,
            force: true,
            dry_run: false,
        })
        .map(drop)
    }

    pub fn checkpoints(&self) -> Vec<u64> {
        self.ask(ListCheckpoints)
            .expect("the checkpoints are in memory")
            .iter()
            .map(|info| info.id.0)
            .collect()
    }

    /// Returns the newest requested checkpoint, with which `status` compares after a restore of
    /// paths.
    pub fn latest(&self) -> u64 {
        let log = self
            .ask(ListCheckpoints)
            .expect("the checkpoints are in memory");
        log.iter()
            .filter(|info| info.reason.is_asked())
            .map(|info| info.id.0)
            .max()
            .expect("a checkpoint exists")
    }

    pub fn status(&self) -> VerbResult<Status> {
        self.ask(GetStatus)
    }

    /// Returns the dirty paths below `dir`, sorted, and the renamed directories as pairs of old and
    /// new path.
    pub fn dirty(&self, dir: &str) -> (Vec<String>, Vec<(String, String)>) {
        let (mut paths, mut renames) = (Vec::new(), Vec::new());
        let inside = |path: TreePath| {
            let path = String::from_utf8(path.0).expect("the names in the tests are UTF-8");
            Some(path.strip_prefix(dir)?.strip_prefix('/')?.to_owned())
        };
        for change in self.status().expect("the tree can be compared").dirty {
            let (path, from) = (inside(change.path), change.from.and_then(inside));
            if let (Kind::Dir, Some(path), Some(from)) = (change.kind, &path, &from) {
                renames.push((from.clone(), path.clone()));
            }
            paths.extend(path.into_iter().chain(from));
        }
        paths.sort();
        paths.dedup();
        (paths, renames)
    }

    /// Reads the backing directory.
    pub fn plain(&self, dir: &str) -> Tree {
        let mut tree = Tree::new();
        plain(&self.dir.join(dir), "", &mut tree);
        tree
    }

    /// Reads a directory of a view; fails if any part cannot be read.
    pub fn view(&self, id: u64, dir: &str) -> SysResult<Tree> {
        let mut tree = Tree::new();
        match self.node(&format!("{SNAPSHOTS}/{id}/{dir}")) {
            Ok(node) => self.view_below(node, "", &mut tree)?,
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        Ok(tree)
    }

    fn view_below(&self, dir: NodeId, path: &str, tree: &mut Tree) -> SysResult<()> {
        let mut offset = 0;
        loop {
            let listed = self.engine().readdir(dir, offset)?;
            for entry in &listed.names {
                offset = entry.next;
                if entry.name == b"." || entry.name == b".." {
                    continue;
                }
                let path = join(path, &String::from_utf8_lossy(&entry.name));
                let node = self.child(dir, &entry.name)?;
                let seen = self.look(node)?;
                let kind = seen.kind;
                tree.insert(path.clone(), seen);
                if kind == Kind::Dir {
                    self.view_below(node, &path, tree)?;
                }
            }
            if listed.last || listed.names.is_empty() {
                return Ok(());
            }
        }
    }

    fn look(&self, node: NodeId) -> SysResult<NodeSnapshot> {
        let engine = self.engine();
        let stat = engine.getattr(node, None)?.stat;
        let content = match stat.kind {
            Kind::File => {
                let fh = engine.open(CALLER, node, libc_flags::READ)?.fh;
                let read = engine.read(
                    node,
                    fh,
                    0,
                    u32::try_from(stat.size).expect("files are small"),
                    false,
                );
                engine.release(node, fh);
                read?
            }
            Kind::Symlink => engine.readlink(node)?,
            _ => Vec::new(),
        };
        let mut xattrs = BTreeMap::new();
        for name in engine.listxattr(CALLER, node)? {
            let value = engine.getxattr(node, &name)?;
            xattrs.insert(name, value);
        }
        let mtime = if stat.kind == Kind::Dir {
            (0, 0)
        } else {
            (stat.mtime.sec, stat.mtime.nsec)
        };
        Ok(NodeSnapshot {
            kind: stat.kind,
            mode: stat.mode,
            owner: (stat.uid, stat.gid),
            mtime,
            content,
            xattrs,
        })
    }
}

impl Drop for ServedDir {
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns a request that sets atime and mtime.
pub fn at(sec: i64) -> SetAttr {
    let time = SetTime::At(sys::Time { sec, nsec: 5 });
    SetAttr {
        atime: Some(time),
        mtime: Some(time),
        ..SetAttr::default()
    }
}

/// Flags of open(2).
pub mod libc_flags {
    use ckptfs_sys::open_flags;
    pub const READ: i32 = open_flags::RDONLY;
    pub const WRITE: i32 = open_flags::WRONLY;
    pub const READ_WRITE: i32 = 2;
    pub const APPEND: i32 = open_flags::APPEND;
    pub const TRUNC: i32 = open_flags::TRUNC;
}
