//! Append-only and immutable files and directories (chattr(1)). The kernel rejects changes to them,
//! so a plan that would change one is rejected before it changes anything.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Restorer;
use super::desired::DesiredInodes;
use super::plan::RestorePlan;
use crate::engine::error::{Code, hinted};
use crate::history::diff::join;
use crate::history::present::Trail;
use crate::history::view::View;
use crate::tree::plan::{DirPlan, InodeAction, NameChange};
use ckptfs_api::display::{count, word};
use ckptfs_api::{Times, VerbResult};
use ckptfs_store::record::Child;
use ckptfs_sys::{Errno, Kind, Protection, SysResult};

/// Limit of paths in a message; the rest is a number.
const NAMED_MAX: usize = 100;

/// Collects the protected inodes that a plan would change.
struct ProtectedScan<'a> {
    plan: &'a RestorePlan,
    want: &'a dyn DesiredInodes,
    now: &'a View<'a>,
    found: BTreeSet<Vec<u8>>,
}

impl Restorer<'_> {
    /// Rejects a plan that would change, move or remove such a file or directory, or change the
    /// entries of such a directory. `now`: the live tree.
    ///
    /// # Errors
    /// `no-permission`, with all their paths; errors of reading directories.
    pub(in crate::engine) fn refuse_protected(
        &self,
        what: &str,
        (plan, want, now): (&RestorePlan, &dyn DesiredInodes, &View<'_>),
    ) -> VerbResult<()> {
        let mut protected = ProtectedScan {
            plan,
            want,
            now,
            found: BTreeSet::new(),
        };
        let looked = plan
            .tree
            .dirs
            .iter()
            .try_for_each(|dir| protected.look_at(dir));
        looked.map_err(|errno| self.engine.checkpoints.failed(what, errno))?;
        let found = protected.found;
        if found.is_empty() {
            return Ok(());
        }
        let shown = || {
            let paths = found.iter().take(NAMED_MAX);
            paths.map(|path| match path.as_slice() {
                b"" => ".".to_owned(),
                path => String::from_utf8_lossy(path).into_owned(),
            })
        };
        let more = match found.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Err(hinted(
            Code::NoPermission,
            format!(
                "{what}: {} would be changed: {}{more}; nothing was changed",
                count(found.len(), "append-only or immutable path"),
                shown().collect::<Vec<_>>().join(", "),
            ),
            format!(
                "unmount the tree (ckptfs umount {}), take the attributes away (chattr -ia {}), and mount it again",
                word(self.engine.place().mount().display()),
                shown().map(word).collect::<Vec<_>>().join(" "),
            ),
        ))
    }
}

impl ProtectedScan<'_> {
    fn look_at(&mut self, dir: &DirPlan) -> SysResult<()> {
        let plan = &self.plan.tree;
        let mut changes = false;
        for name in &dir.names {
            let wanted = name.want.as_ref();
            match plan.change(name) {
                None | Some(NameChange::Stays(InodeAction::Same)) => continue,
                Some(NameChange::Stays(content)) => {
                    if let Some((_, trail)) = wanted {
                        let here = self.want.here(trail);
                        let path = || join(&dir.want.path(), &name.name);
                        let stays = content == InodeAction::Attributes;
                        self.note(&here, path, stays.then_some(trail));
                    }
                    continue;
                }
                Some(_) => {}
            }
            changes = true;
            if let (Some(live), Some(have)) = (&dir.live, name.have) {
                self.goes(live.step(&name.name, have.slot), have)?;
            }
            if let Some((_, trail)) = wanted.filter(|(child, _)| plan.keeps(*child)) {
                let path = || join(&dir.want.path(), &name.name);
                self.note(&self.want.here(trail), path, None);
            }
        }
        if let Some(live) = dir.live.as_ref().filter(|_| changes || dir.with_attrs) {
            self.note(live, || live.path(), (!changes).then_some(&dir.want));
        }
        Ok(())
    }

    /// Notes an inode that is moved, or removed with everything below it.
    fn goes(&mut self, trail: Arc<Trail>, have: Child) -> SysResult<()> {
        let mut open = vec![(trail, have)];
        while let Some((trail, child)) = open.pop() {
            // Other kinds cannot be protected.
            if !matches!(child.kind, Kind::File | Kind::Dir) {
                continue;
            }
            self.note(&trail, || trail.path(), None);
            if child.kind == Kind::Dir && !self.plan.tree.keeps(child) {
                let below = match self.now.list(&trail) {
                    // The owner may not read it; the removal succeeds regardless.
                    Err(Errno::EACCES) => continue,
                    below => below?.into_iter(),
                };
                open.extend(below.map(|(name, child)| (trail.step(&name, child.slot), child)));
            }
        }
        Ok(())
    }

    /// Notes an inode of the live tree if it is protected. With `wanted`: only if its attributes
    /// differ from the desired ones.
    fn note(
        &mut self,
        node: &Arc<Trail>,
        path: impl FnOnce() -> Vec<u8>,
        wanted: Option<&Arc<Trail>>,
    ) {
        let attr = self.now.attr(node);
        let is_protected = attr.is_ok_and(|attr| attr.stat.protection != Protection::None);
        if is_protected && !wanted.is_some_and(|wanted| self.is_so(wanted, node)) {
            self.found.insert(path());
        }
    }

    /// Returns whether an inode has its desired attributes, as far as they are known.
    fn is_so(&self, wanted: &Arc<Trail>, here: &Arc<Trail>) -> bool {
        let same = || {
            let (then, now) = (self.want.attr(wanted)?.stat, self.now.attr(here)?.stat);
            let times = self.plan.times == Times::Now || then.mtime == now.mtime;
            let owner = (then.uid, then.gid) == (now.uid, now.gid);
            let rest = then.mode == now.mode && owner && times;
            Ok::<_, Errno>(rest && self.want.xattrs(wanted)? == self.now.xattrs(here)?)
        };
        same().unwrap_or(false)
    }
}
