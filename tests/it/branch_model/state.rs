//! Adapts a tree of the model to `ckptfs_core::tree`, and merges three of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::observe::{ObservedNode, ObservedTree};
use crate::model::tree::{Body, Node, Tree};
use ckptfs_core::history::present::Trail;
use ckptfs_core::tree::Tree as Reads;
use ckptfs_core::tree::merge::{self, MergeOptions};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{AttrState, Child};
use ckptfs_sys::{Errno, Kind, Protection, Stat, SysResult, Time, Xattrs};

/// A state of a tree.
pub struct ModelState(pub Tree);

impl ModelState {
    fn node(&self, slot: Slot) -> SysResult<&Node> {
        self.0.nodes.get(&slot.0).ok_or(Errno::ESTALE)
    }

    fn lead(&self, id: u64) -> Child {
        Child {
            slot: Slot(id),
            kind: kind(self.0.node(id)),
        }
    }
}

fn kind(node: &Node) -> Kind {
    match node.body {
        Body::File(_) => Kind::File,
        Body::Dir(_) => Kind::Dir,
        Body::Symlink(_) => Kind::Symlink,
        Body::Fifo => Kind::Fifo,
        Body::Socket => Kind::Socket,
    }
}

impl Reads for ModelState {
    fn child(&self, dir: &Arc<Trail>, name: &Name) -> SysResult<Option<Child>> {
        match &self.node(dir.slot)?.body {
            Body::Dir(names) => Ok(names.get(name.as_bytes()).map(|id| self.lead(*id))),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn list(&self, dir: &Arc<Trail>) -> SysResult<Vec<(Name, Child)>> {
        let Body::Dir(names) = &self.node(dir.slot)?.body else {
            return Err(Errno::ENOTDIR);
        };
        let all = names.iter();
        Ok(all
            .map(|(name, id)| (Name::new(name), self.lead(*id)))
            .collect())
    }

    fn attr(&self, node: &Arc<Trail>) -> SysResult<AttrState> {
        let inode = self.node(node.slot)?;
        let size = match &inode.body {
            Body::File(content) => content.len() as u64,
            _ => 0,
        };
        let time = |sec: u64| Time {
            sec: sec as i64,
            nsec: 0,
        };
        let stat = Stat {
            dev: 1,
            ino: node.slot.0,
            kind: kind(inode),
            mode: inode.mode,
            nlink: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            rdev: 0,
            size,
            blocks: 0,
            blksize: 4096,
            atime: time(0),
            mtime: time(inode.mtime),
            ctime: time(inode.mtime),
            btime: Some(time(node.slot.0)),
            protection: Protection::None,
        };
        let target = match &inode.body {
            Body::Symlink(target) => Some(target.clone()),
            _ => None,
        };
        Ok(AttrState { stat, target })
    }

    fn xattrs(&self, node: &Arc<Trail>) -> SysResult<Xattrs> {
        let inode = self.node(node.slot)?;
        Ok(inode.xattrs.clone().into_iter().collect())
    }

    fn same_content(
        &self,
        file: &Arc<Trail>,
        other: &ModelState,
        there: &Arc<Trail>,
    ) -> SysResult<bool> {
        let (here, there) = (self.node(file.slot)?, other.node(there.slot)?);
        Ok(here.body == there.body)
    }

    fn read(&self, file: &Arc<Trail>, most: u64) -> SysResult<Option<Vec<u8>>> {
        let content = self.node(file.slot)?.content().ok_or(Errno::EINVAL)?;
        Ok((content.len() as u64 <= most).then(|| content.to_vec()))
    }
}

/// Returns the result of the code under test: the merged tree, or the conflicts.
pub fn merged(
    base: &ModelState,
    ours: &ModelState,
    theirs: &ModelState,
) -> Result<Result<ObservedTree, String>, Errno> {
    let outcome = merge::merge(base, ours, theirs, &MergeOptions::default())?;
    if !outcome.conflicts().is_empty() {
        return Ok(Err(format!("{:?}", outcome.conflicts())));
    }
    let mut sight = ObservedTree::new();
    let mut open = vec![(Vec::new(), Trail::root())];
    while let Some((path, at)) = open.pop() {
        let attr = outcome.attr(&at)?;
        let body = match attr.stat.kind {
            Kind::Dir => {
                for (name, child) in outcome.list(&at)? {
                    let below = if path.is_empty() {
                        name.as_bytes().to_vec()
                    } else {
                        [&path[..], b"/", name.as_bytes()].concat()
                    };
                    open.push((below, at.step(&name, child.slot)));
                }
                Body::Dir(BTreeMap::new())
            }
            Kind::Symlink => Body::Symlink(attr.target.clone().unwrap_or_default()),
            Kind::Fifo => Body::Fifo,
            Kind::Socket => Body::Socket,
            _ => Body::File(outcome.read(&at, u64::MAX - 1)?.unwrap_or_default().into()),
        };
        let stat = attr.stat;
        sight.insert(
            path,
            ObservedNode {
                body,
                mode: stat.mode,
                uid: stat.uid,
                gid: stat.gid,
                mtime: (0, 0),
                nlink: 0,
                ino: at.slot.0,
                xattrs: outcome.xattrs(&at)?.into_iter().collect(),
            },
        );
    }
    let mut links: BTreeMap<u64, u64> = BTreeMap::new();
    for seen in sight.values() {
        *links.entry(seen.ino).or_default() += 1;
    }
    for seen in sight.values_mut() {
        seen.nlink = links[&seen.ino];
    }
    Ok(Ok(sight))
}
