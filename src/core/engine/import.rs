//! The daemon's part of an import: access to the backing directory, and the move of staged inodes
//! into the tree.
//!
//! The client creates complete inodes in the staging directory (owner, times and attributes
//! included). No checkpoint shows that directory, and its files can share extents with the source.
//! The daemon renames the inodes into place with the operation that serves rename(2), so that
//! replaced inodes are captured first. Inodes appear atomically.

use std::fs::File;
use std::sync::Arc;

use super::announce::{Announcement, EventKind};
use super::request::NodeId;
use super::restore::Restorer;
use super::restore::stale::StaleEntries;
use super::{Engine, error};
use crate::history::state::TreeState;
use crate::live::{ChangeCtx, KernelRequest, NodeRef};
use ckptfs_api::{Actor, ImportAsk, ImportPart, Refused, STAGED_PREFIX, TreePath, VerbResult};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_sys::{self as sys, Errno, Kind, RenameMode, SysResult};

/// Moves imported inodes into the live tree.
#[derive(Clone, Copy)]
pub(super) struct Importer<'a> {
    pub(super) engine: &'a Engine,
}

impl<'a> Importer<'a> {
    pub(super) fn new(engine: &'a Engine) -> Importer<'a> {
        Importer { engine }
    }

    /// Returns the reply to a request.
    pub(super) fn part(
        &self,
        by: &Actor,
        ask: &ImportAsk,
        files: &mut Vec<Arc<File>>,
    ) -> VerbResult<ImportPart> {
        match ask {
            ImportAsk::Begin => {
                let failed = error::failed("the import cannot begin");
                self.clear_stage().map_err(failed)?;
                for fd in [self.engine.live.root(), self.engine.live.staging()] {
                    let fd = fd.try_clone().map_err(|cause| failed(cause.into()))?;
                    files.push(Arc::new(File::from(fd)));
                }
                Ok(ImportPart::default())
            }
            ImportAsk::Look => {
                let root = self
                    .engine
                    .live
                    .root()
                    .try_clone()
                    .map_err(error::failed("the tree cannot be read"))?;
                files.push(Arc::new(File::from(root)));
                Ok(ImportPart::default())
            }
            ImportAsk::Put { staged } => Ok(ImportPart {
                refused: self.put_staged(by, staged),
            }),
        }
    }

    fn clear_stage(&self) -> SysResult<()> {
        // A request of a killed import may still be running.
        let _freeze = self.engine.live.busy.freeze()?;
        let staging = self.engine.live.staging();
        for entry in sys::list_dir(&sys::open_dir_at(staging, b".")?)? {
            if entry.name.starts_with(STAGED_PREFIX.as_bytes()) {
                match sys::unlink_at(staging, &entry.name) {
                    Ok(()) | Err(Errno::ENOENT) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        Ok(())
    }

    fn put_staged(&self, by: &Actor, staged: &[(String, TreePath)]) -> Vec<Refused> {
        let mut refused = Vec::new();
        let (mut stale, mut steps) = (StaleEntries::default(), Vec::new());
        let freeze = match self.engine.live.busy.freeze() {
            Ok(freeze) => freeze,
            Err(errno) => {
                return staged
                    .iter()
                    .map(|(_, path)| Refused {
                        path: path.clone(),
                        errno: errno.0,
                    })
                    .collect();
            }
        };
        // A restore may have planned with the former state.
        self.engine.live.locks.count_change();
        let tree = self.engine.live.locks.tree.write();
        let change = ChangeCtx::by(Some(
            self.timeline()
                .processes
                .number(super::attribution::actor_process(by)),
        ));
        for (name, path) in staged {
            if let Err(errno) = self.put_one(&change, name, &path.0, &mut stale, &mut steps) {
                let _ = sys::unlink_at(self.engine.live.staging(), name.as_bytes());
                refused.push(Refused {
                    path: path.clone(),
                    errno: errno.0,
                });
            }
        }
        let forgetting = self.engine.live.locks.stale_names.begin();
        drop(tree);
        drop(freeze);
        Restorer::new(self.engine).forget_stale(&stale);
        drop(forgetting);
        self.engine.announcer.tell(steps);
        refused
    }

    fn put_one(
        &self,
        change: &ChangeCtx,
        staged: &str,
        path: &[u8],
        stale: &mut StaleEntries,
        steps: &mut Vec<Announcement>,
    ) -> SysResult<()> {
        if !staged.starts_with(STAGED_PREFIX) || staged.contains('/') {
            return Err(Errno::EINVAL);
        }
        let (above, name) = path
            .iter()
            .rposition(|byte| *byte == b'/')
            .and_then(|slash| path.split_at_checked(slash))
            .map_or((b"".as_slice(), path), |(above, name)| {
                (above, name.get(1..).unwrap_or_default())
            });
        if name.is_empty()
            || path
                .split(|byte| *byte == b'/')
                .any(|name| [b".".as_slice(), b".."].contains(&name))
        {
            return Err(Errno::EINVAL);
        }
        let found = self.engine.states.view(TreeState::Live).walk(above)?;
        let (dir, trail) = found.ok_or(Errno::ENOENT)?;
        if dir.kind != Kind::Dir {
            return Err(Errno::ENOTDIR);
        }
        let serving = &self.engine.serving;
        if serving.is_reserved(NodeId(dir.slot.0), name) {
            return Err(Errno::EPERM);
        }
        let stage = &self.engine.live.staged;
        let staged = stage.take_up(Name::new(staged.as_bytes()))?;
        let slot = stage.adopt(change, &staged)?;
        let name = Name::new(name);
        let to = (NodeRef::from(&trail), &name);
        let replaced = self.engine.live.names.rename_in(
            change,
            (NodeRef::from(Slot::STAGING), &staged.place().name),
            to,
            RenameMode::Replace,
            KernelRequest::default(),
        )?;
        stale.names.push((dir.slot, name.clone()));
        stale.nodes.extend([slot, dir.slot]);
        match replaced {
            Some(old) if self.engine.live.nodes.is_dead(old) => {
                stale.dead.push((dir.slot, name.clone(), old))
            }
            Some(old) => stale.nodes.push(old),
            None => {}
        }
        let what = if replaced.is_some() && staged.kind() != Kind::Dir {
            EventKind::Replaced
        } else {
            EventKind::Come(staged.kind())
        };
        steps.push(Announcement {
            dir: dir.slot,
            name,
            node: None,
            what,
        });
        Ok(())
    }
}
