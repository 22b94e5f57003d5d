//! Open files of a tree as the kernel has them: all handles of an inode share one backing inode.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use super::side::{BranchSide, CALLER};
use crate::model::ops::{Op, Verb, bytes};
use crate::model::tree::Id;
use crate::model::world::data;
use ckptfs_core::engine::request::{Fh, NodeId, Opened, Service, SetAttr};
use ckptfs_sys::{Errno, SysResult, open_flags};

/// Maximum number of open handles.
pub const HANDLES: usize = crate::model::world::HANDLES;
const READ_WRITE: i32 = 2;
/// Maximum bytes of a request.
const REQUEST_MAX: usize = 32 << 10;

pub struct BranchHandle {
    pub id: Id,
    node: NodeId,
    fh: Fh,
    /// The backing file in passthrough; `None` for daemon I/O.
    backing: Option<File>,
    read: bool,
    write: bool,
    append: bool,
}

impl BranchHandle {
    fn read_all(&self, side: &BranchSide) -> SysResult<Vec<u8>> {
        read_all(side.engine(), self.node, self.fh, self.backing.as_ref())
    }
}

/// Reads the content of an open file.
pub(super) fn read_all(
    service: &dyn Service,
    node: NodeId,
    fh: Fh,
    backing: Option<&File>,
) -> SysResult<Vec<u8>> {
    let mut content = Vec::new();
    loop {
        let offset = content.len() as u64;
        let part = match backing {
            Some(file) => {
                let mut part = vec![0; REQUEST_MAX];
                let got = file.read_at(&mut part, offset).map_err(Errno::from)?;
                part.truncate(got);
                part
            }
            None => service.read(node, fh, offset, REQUEST_MAX as u32, true)?,
        };
        if part.is_empty() {
            return Ok(content);
        }
        content.extend(part);
    }
}

impl BranchSide {
    /// Opens a file as the kernel does, and checks that all handles of the inode have the same
    /// backing inode.
    pub(super) fn open_node(&self, id: Id, node: NodeId, flags: i32) -> SysResult<BranchHandle> {
        let opened = self.engine().open(CALLER, node, flags)?;
        Ok(self.opened(id, node, flags, opened))
    }

    pub(super) fn opened(&self, id: Id, node: NodeId, flags: i32, opened: Opened) -> BranchHandle {
        let access = flags & 3;
        // The kernel opens the backing file again with the caller's access mode
        // (`backing_file_open`).
        let backing = opened.passthrough.map(|file| {
            let again = OpenOptions::new()
                .read(access != open_flags::WRONLY)
                .write(access != open_flags::RDONLY)
                .open(format!("/proc/self/fd/{}", file.as_raw_fd()));
            again.expect("the backing file for the kernel's I/O can be opened")
        });
        let shared = self.handles.iter().flatten();
        let shared = shared.filter(|open| open.node == node);
        for other in shared.filter_map(|open| open.backing.as_ref()) {
            let inode = |file: &File| file.metadata().expect("it is open").ino();
            assert_eq!(
                backing.as_ref().map(inode),
                Some(inode(other)),
                "an inode that is open has one backing inode"
            );
        }
        BranchHandle {
            id,
            node,
            fh: opened.fh,
            backing,
            read: access != open_flags::WRONLY,
            write: access != open_flags::RDONLY,
            append: flags & open_flags::APPEND != 0,
        }
    }

    pub(super) fn write(&self, open: &BranchHandle, offset: u64, content: &[u8]) -> SysResult<()> {
        if let Some(file) = &open.backing {
            return file.write_all_at(content, offset).map_err(Errno::from);
        }
        let (mut offset, mut left) = (offset, content);
        while !left.is_empty() {
            let part = &left[..left.len().min(REQUEST_MAX)];
            let engine = self.engine();
            let done = engine.write(CALLER, open.node, open.fh, offset, part, false)?;
            offset += u64::from(done);
            left = &left[done as usize..];
        }
        Ok(())
    }

    /// As [`BranchSide::write`], at the end of the file.
    pub(super) fn append(&self, open: &BranchHandle, content: &[u8]) -> SysResult<()> {
        let size = self.engine().getattr(open.node, None)?.stat.size;
        self.write(open, size, content)
    }

    pub(super) fn release(&self, open: &BranchHandle) {
        self.engine().release(open.node, open.fh);
    }

    pub(super) fn fh_of(open: &BranchHandle) -> (NodeId, Fh) {
        (open.node, open.fh)
    }

    pub(super) fn close_handles(&mut self) {
        (0..HANDLES).for_each(|slot| self.close_handle(slot));
    }

    fn close_handle(&mut self, slot: usize) {
        let Some(open) = self.handles[slot].take() else {
            return;
        };
        self.release(&open);
        if !self
            .handles
            .iter()
            .flatten()
            .any(|other| other.id == open.id)
        {
            self.model.let_go(open.id);
        }
    }

    pub(super) fn handle_op(&mut self, op: &Op) -> Result<(), String> {
        let slot = op.number(0) as usize % HANDLES;
        if op.verb == Verb::Open {
            return self.open_handle(op, slot);
        }
        if op.verb == Verb::Close {
            self.close_handle(slot);
            return Ok(());
        }
        let Some(open) = &self.handles[slot] else {
            return Ok(());
        };
        let (id, append) = (open.id, open.append);
        match op.verb {
            Verb::HandleRead if open.read => {
                let content = open.read_all(self).map_err(|errno| errno.to_string())?;
                let expected = self.model.tree.node(id).content();
                if expected.is_none_or(|expected| **expected != content) {
                    let expected = expected.map_or(0, |expected| expected.len());
                    let bytes = content.len();
                    return Err(format!(
                        "an open file has {bytes} bytes, but {expected} were expected"
                    ));
                }
            }
            Verb::HandleWrite if open.write => {
                let content = data(op.number(3), op.number(2));
                let written = if append {
                    self.append(open, &content)
                } else {
                    self.write(open, op.number(1), &content)
                };
                written.map_err(|errno| errno.to_string())?;
                if append {
                    self.model.append(id, &content);
                } else {
                    self.model.write(id, op.number(1) as usize, &content);
                }
            }
            Verb::HandleTruncate if open.write => {
                let set = SetAttr {
                    size: Some(op.number(1)),
                    ..SetAttr::default()
                };
                self.engine()
                    .setattr(CALLER, open.node, Some(open.fh), set)
                    .map_err(|errno| errno.to_string())?;
                self.model.truncate(id, op.number(1) as usize);
            }
            Verb::Fsync => self
                .engine()
                .fsync(open.node, open.fh, false)
                .map_err(|errno| errno.to_string())?,
            _ => {}
        }
        Ok(())
    }

    fn open_handle(&mut self, op: &Op, slot: usize) -> Result<(), String> {
        let (path, tree) = (bytes(op.path(0)), self.model.tree.clone());
        let file = |id: &Id| tree.node(*id).content().is_some();
        let Some(id) = tree.lookup(&path).ok().filter(file) else {
            return Ok(());
        };
        let flags = [
            open_flags::RDONLY,
            READ_WRITE,
            open_flags::WRONLY | open_flags::APPEND,
            open_flags::WRONLY,
        ][op.number(1) as usize % 4];
        self.close_handle(slot);
        let open = self
            .node_of(&tree, &path)
            .and_then(|node| self.open_node(id, node, flags))
            .map_err(|errno| format!("open: {errno}"))?;
        self.handles[slot] = Some(open);
        self.model.held.insert(id);
        Ok(())
    }
}
