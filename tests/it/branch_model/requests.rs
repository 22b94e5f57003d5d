//! The FUSE requests of each operation.

use super::side::{BranchSide, CALLER};
use crate::model::calls::{target, xattr};
use crate::model::ops::{Op, Verb};
use crate::model::tree::Tree;
use crate::model::world::data;
use ckptfs_core::engine::request::{
    LookupResult, NewNode, NodeId, RenameMode, Service, SetAttr, SetTime, XattrMode,
};
use ckptfs_sys::{Errno, Kind, SysResult, Time, open_flags};

/// FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
const PUNCH: i32 = 3;

impl BranchSide {
    /// Performs an operation on the engine. `tree` is the model before it; `self.model` already
    /// contains the result.
    pub(super) fn actual(
        &mut self,
        tree: &Tree,
        op: &Op,
        path: &[u8],
        second: &[u8],
    ) -> SysResult<()> {
        match op.verb {
            Verb::Create | Verb::Mkdir | Verb::Mkfifo | Verb::Mksock | Verb::Symlink => {
                self.make(tree, op, path)
            }
            Verb::Put | Verb::Write | Verb::Append | Verb::Punch | Verb::Truncate => {
                self.write_content(tree, op, path)
            }
            Verb::Copy => self.copy(tree, op, path, second),
            Verb::Unlink | Verb::Rmdir => {
                let (dir, name) = self.place_of(tree, path)?;
                if self.node_of(tree, path).is_err() {
                    return Err(Errno::ENOENT);
                }
                match op.verb {
                    Verb::Rmdir => self.engine().rmdir(CALLER, dir, name),
                    _ => self.engine().unlink(CALLER, dir, name),
                }
            }
            Verb::Rename => self.rename(tree, path, second, RenameMode::Replace),
            Verb::RenameNoReplace => self.rename(tree, path, second, RenameMode::NoReplace),
            Verb::Exchange => self.rename(tree, path, second, RenameMode::Exchange),
            Verb::Link => {
                let node = self.node_of(tree, path)?;
                let (dir, name) = self.vacant(tree, second)?;
                let entry = self.engine().link(CALLER, node, dir, name)?;
                self.learn(second, entry);
                Ok(())
            }
            _ => self.set_attributes(tree, op, path),
        }
    }

    /// Caches the inode created at a path of the model.
    fn learn(&mut self, path: &[u8], entry: ckptfs_core::engine::request::Entry) -> NodeId {
        let id = self.model.tree.lookup(path).expect("it was created");
        self.enter(path);
        self.know(id, entry)
    }

    /// As [`BranchSide::place_of`], for a name that does not exist: the kernel looks it up first.
    fn vacant<'p>(&mut self, tree: &Tree, path: &'p [u8]) -> SysResult<(NodeId, &'p [u8])> {
        let (dir, name) = self.place_of(tree, path)?;
        match self.engine().lookup(CALLER, dir, name)? {
            LookupResult::Absent(_) => Ok((dir, name)),
            LookupResult::Found(entry) => {
                self.engine().forget(entry.node, 1);
                Err(Errno::EEXIST)
            }
        }
    }

    fn make(&mut self, tree: &Tree, op: &Op, path: &[u8]) -> SysResult<()> {
        let (dir, name) = self.vacant(tree, path)?;
        let mode = op.number(0) as u32;
        let kind = match op.verb {
            Verb::Mkdir => Kind::Dir,
            Verb::Mkfifo => Kind::Fifo,
            Verb::Mksock => Kind::Socket,
            Verb::Symlink => {
                let to = target(op.number(0));
                let entry = self.engine().symlink(CALLER, dir, name, &to)?;
                self.learn(path, entry);
                return Ok(());
            }
            _ => return self.create(dir, name, mode, path, &[]),
        };
        let new = NewNode {
            kind,
            mode,
            umask: 0,
            rdev: 0,
        };
        let entry = self.engine().make(CALLER, dir, name, new)?;
        self.learn(path, entry);
        Ok(())
    }

    fn create(
        &mut self,
        dir: NodeId,
        name: &[u8],
        mode: u32,
        path: &[u8],
        content: &[u8],
    ) -> SysResult<()> {
        let flags = open_flags::WRONLY;
        let (entry, opened) = self.engine().create(CALLER, dir, name, mode, 0, flags)?;
        let node = self.learn(path, entry);
        self.engine().created(node);
        let open = self.opened(0, node, flags, opened);
        let written = self.write(&open, 0, content);
        self.release(&open);
        written
    }

    fn write_content(&mut self, tree: &Tree, op: &Op, path: &[u8]) -> SysResult<()> {
        let n = |index| op.number(index);
        if op.verb == Verb::Put && tree.lookup(path).is_err() {
            let (dir, name) = self.vacant(tree, path)?;
            return self.create(dir, name, 0o644, path, &data(n(1), n(0)));
        }
        let node = self.node_of(tree, path)?;
        if op.verb == Verb::Truncate {
            let set = SetAttr {
                size: Some(n(0)),
                ..SetAttr::default()
            };
            return self.engine().setattr(CALLER, node, None, set).map(drop);
        }
        let flags = match op.verb {
            Verb::Put => open_flags::WRONLY | open_flags::TRUNC,
            Verb::Append => open_flags::WRONLY | open_flags::APPEND,
            _ => open_flags::WRONLY,
        };
        let open = self.open_node(0, node, flags)?;
        let (node, fh) = BranchSide::fh_of(&open);
        let done = match op.verb {
            Verb::Put => self.write(&open, 0, &data(n(1), n(0))),
            Verb::Write => self.write(&open, n(0), &data(n(2), n(1))),
            Verb::Append => self.append(&open, &data(n(1), n(0))),
            _ => self.engine().fallocate(CALLER, node, fh, n(0), n(1), PUNCH),
        };
        self.release(&open);
        done
    }

    fn copy(&mut self, tree: &Tree, op: &Op, path: &[u8], second: &[u8]) -> SysResult<()> {
        let ids = (tree.lookup(path), tree.lookup(second));
        let (Ok(source), Ok(to)) = ids else {
            return Ok(());
        };
        if source == to || tree.node(source).content().is_none() {
            return Ok(());
        }
        let (from, into) = (self.node_of(tree, path)?, self.node_of(tree, second)?);
        let from = self.open_node(0, from, open_flags::RDONLY)?;
        let result = self
            .open_node(0, into, open_flags::WRONLY)
            .and_then(|into| {
                let ((a, a_fh), (b, b_fh)) = (BranchSide::fh_of(&from), BranchSide::fh_of(&into));
                let (mut done, length) = (0, op.number(2));
                while done < length {
                    let part = self.engine().copy_file_range(
                        CALLER,
                        (a, a_fh, op.number(0) + done),
                        (b, b_fh, op.number(1) + done),
                        length - done,
                    )?;
                    if part == 0 {
                        break;
                    }
                    done += part;
                }
                self.release(&into);
                Ok(())
            });
        self.release(&from);
        result
    }

    fn rename(&mut self, tree: &Tree, from: &[u8], to: &[u8], how: RenameMode) -> SysResult<()> {
        // The kernel ignores such a rename.
        if tree.lookup(from).ok() == tree.lookup(to).ok() {
            return Ok(());
        }
        self.node_of(tree, from)?;
        let (dir, name) = self.place_of(tree, from)?;
        let (new_dir, new_name) = match tree.lookup(to) {
            Ok(_) => {
                self.node_of(tree, to)?;
                self.place_of(tree, to)?
            }
            Err(_) => self.vacant(tree, to)?,
        };
        self.engine()
            .rename(CALLER, dir, name, new_dir, new_name, how)?;
        self.enter(from);
        self.enter(to);
        Ok(())
    }

    fn set_attributes(&mut self, tree: &Tree, op: &Op, path: &[u8]) -> SysResult<()> {
        let n = |index| op.number(index);
        let node = self.node_of(tree, path)?;
        let engine = self.engine();
        let set = match op.verb {
            Verb::SetXattr => {
                let value = data(n(2), n(1));
                return engine.setxattr(CALLER, node, &xattr(n(0)), &value, XattrMode::Any);
            }
            Verb::RemoveXattr => return engine.removexattr(CALLER, node, &xattr(n(0))),
            Verb::Chmod => SetAttr {
                mode: Some(n(0) as u32),
                ..SetAttr::default()
            },
            Verb::Chown => SetAttr {
                uid: Some(n(0) as u32),
                gid: Some(n(1) as u32),
                ..SetAttr::default()
            },
            Verb::Utimens => {
                let time = Some(SetTime::At(Time {
                    sec: n(0) as i64,
                    nsec: n(1) as u32,
                }));
                SetAttr {
                    atime: time,
                    mtime: time,
                    ..SetAttr::default()
                }
            }
            _ => panic!("unexpected operation {op}"),
        };
        engine.setattr(CALLER, node, None, set).map(drop)
    }
}
