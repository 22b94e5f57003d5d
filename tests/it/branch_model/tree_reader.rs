//! Reads a whole tree from an engine.

use std::collections::{BTreeMap, HashSet};

use super::handles::read_all;
use super::side::{CALLER, ROOT_NODE};
use crate::model::observe::{ObservedNode, ObservedTree};
use crate::model::tree::Body;
use ckptfs_core::engine::Engine;
use ckptfs_core::engine::request::{Entry, Listed, LookupResult, NodeId, Service};
use ckptfs_sys::{Errno, Kind, SysResult, open_flags};

/// A longer listing is an endless loop.
const NAMES_MAX: usize = 10_000;

/// How a tree is read.
#[derive(Clone, Copy)]
pub struct ReadOptions {
    /// Names consumed per readdir, as with a small buffer; the next call continues at an offset.
    pub names_max: usize,
    /// Uses readdirplus, which includes a lookup.
    pub plus: bool,
}

struct TreeReader<'e> {
    engine: &'e Engine,
    how: ReadOptions,
    looked_up: Vec<NodeId>,
    sight: ObservedTree,
}

/// Reads the tree at the path `way` and forgets its nodes.
pub fn look(engine: &Engine, way: &[&[u8]], how: ReadOptions) -> Result<ObservedTree, String> {
    let mut looker = TreeReader {
        engine,
        how,
        looked_up: Vec::new(),
        sight: ObservedTree::new(),
    };
    let done = looker.all(way);
    for node in looker.looked_up {
        engine.forget(node, 1);
    }
    done.map(|()| looker.sight)
}

impl TreeReader<'_> {
    fn all(&mut self, way: &[&[u8]]) -> Result<(), String> {
        let mut at = ROOT_NODE;
        for name in way {
            at = self
                .child(at, name)
                .map_err(|errno| format!("{}: {errno}", name.escape_ascii()))?
                .node;
        }
        let mut open = vec![(Vec::new(), at)];
        while let Some((path, node)) = open.pop() {
            let cannot = |what: &str, errno: Errno| {
                format!("cannot {what} \"{}\": {errno}", path.escape_ascii())
            };
            let mut seen = self.read(node).map_err(|errno| cannot("read", errno))?;
            if matches!(seen.body, Body::Dir(_)) {
                let listed = self.list(node).map_err(|errno| cannot("list", errno))?;
                let mut names = BTreeMap::new();
                for listed in listed {
                    let entry = self.entry(node, &listed);
                    let entry = entry
                        .map_err(|told| format!("\"{}\": {told}", listed.name.escape_ascii()))?;
                    if names.insert(listed.name.clone(), 0).is_some() {
                        return Err(format!(
                            "\"{}\" is listed twice",
                            listed.name.escape_ascii()
                        ));
                    }
                    let below = if path.is_empty() {
                        listed.name
                    } else {
                        [&path[..], b"/", &listed.name].concat()
                    };
                    open.push((below, entry.node));
                }
                seen.body = Body::Dir(names);
            }
            self.sight.insert(path, seen);
        }
        Ok(())
    }

    fn child(&mut self, dir: NodeId, name: &[u8]) -> SysResult<Entry> {
        match self.engine.lookup(CALLER, dir, name)? {
            LookupResult::Found(entry) => {
                self.looked_up.push(entry.node);
                Ok(entry)
            }
            LookupResult::Absent(_) => Err(Errno::ENOENT),
        }
    }

    /// Lists a directory without `.` and `..`, in parts.
    fn list(&self, dir: NodeId) -> SysResult<Vec<Listed>> {
        let (mut found, mut offset) = (Vec::new(), 0);
        loop {
            let part = self.engine.readdir(dir, offset)?;
            let all = part.names.len() <= self.how.names_max;
            for listed in part.names.into_iter().take(self.how.names_max) {
                offset = listed.next;
                if listed.name != b"." && listed.name != b".." {
                    found.push(listed);
                }
            }
            if all && part.last {
                return Ok(found);
            }
            if found.len() > NAMES_MAX {
                return Err(Errno::ELOOP);
            }
        }
    }

    /// Looks up a listed name and checks that it agrees with the listing.
    fn entry(&mut self, dir: NodeId, listed: &Listed) -> Result<Entry, String> {
        let plus = self
            .how
            .plus
            .then(|| self.engine.plus(dir, listed))
            .flatten();
        self.looked_up
            .extend(plus.iter().map(|plus| plus.entry.node));
        // The kernel ignores the listed attributes of a file that lost a name a moment ago.
        let entry = match plus {
            Some(plus) if plus.told => plus.entry,
            _ => self
                .child(dir, &listed.name)
                .map_err(|errno| format!("listed, but the look-up fails: {errno}"))?,
        };
        if entry.node != listed.node || entry.stat.ino != entry.node.0 {
            let numbers = (listed.node.0, entry.node.0, entry.stat.ino);
            return Err(format!(
                "readdir, lookup and getattr return different inode numbers: {numbers:?}"
            ));
        }
        if entry.stat.kind != listed.kind {
            let kinds = (listed.kind, entry.stat.kind);
            return Err(format!(
                "readdir and lookup return different types: {kinds:?}"
            ));
        }
        Ok(entry)
    }

    fn read(&self, node: NodeId) -> SysResult<ObservedNode> {
        let engine = self.engine;
        let stat = engine.getattr(node, None)?.stat;
        let body = match stat.kind {
            Kind::Dir => Body::Dir(BTreeMap::new()),
            Kind::Symlink => Body::Symlink(engine.readlink(node)?),
            Kind::Fifo => Body::Fifo,
            Kind::Socket => Body::Socket,
            Kind::File => {
                let opened = engine.open(CALLER, node, open_flags::RDONLY)?;
                let content = read_all(engine, node, opened.fh, opened.passthrough.as_deref());
                engine.release(node, opened.fh);
                let content = content?;
                if content.len() as u64 != stat.size {
                    return Err(Errno::EOVERFLOW);
                }
                Body::File(content.into())
            }
            _ => return Err(Errno::EINVAL),
        };
        let names: HashSet<Vec<u8>> = engine.listxattr(CALLER, node)?.into_iter().collect();
        let values = names
            .into_iter()
            .filter(|name| !name.starts_with(b"security."));
        let xattrs = values
            .map(|name| Ok((name.clone(), engine.getxattr(node, &name)?)))
            .collect::<SysResult<_>>()?;
        Ok(ObservedNode {
            body,
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
            mtime: (stat.mtime.sec, i64::from(stat.mtime.nsec)),
            nlink: u64::from(stat.nlink),
            ino: stat.ino,
            xattrs,
        })
    }
}
