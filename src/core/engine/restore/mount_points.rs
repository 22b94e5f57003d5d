//! Mount points inside the tree. Replacing, moving or removing a file or directory detaches a
//! filesystem mounted on it: the kernel does so when it is notified that the name is gone
//! (`d_invalidate`, fs/dcache.c). Mount points therefore stay in place: a restore excludes them,
//! and any other plan that would affect one is rejected before it changes anything.

use std::collections::{BTreeSet, HashMap};
use std::os::unix::ffi::OsStringExt;

use super::Restorer;
use super::excluded::is_at_or_below;
use super::plan::PlanScope;
use crate::engine::Engine;
use crate::engine::error::{Code, failed, hinted};
use crate::history::state::TreeState;
use crate::history::touched::Touched;
use crate::tree::plan::{NameChange, TreePlan};
use ckptfs_api::display::word;
use ckptfs_api::{CheckpointId, VerbError, VerbResult};
use ckptfs_store::ids::{Name, Slot};
use ckptfs_store::record::{Child, Place};
use ckptfs_sys::{self as sys, Kind, SysResult};

/// The mount points in the tree, in any mount namespace that can be read.
#[derive(Clone, Debug, Default)]
pub(in crate::engine) struct MountPoints(Vec<Vec<u8>>);

/// The names that lead to mount points.
#[derive(Default)]
pub(super) struct MountPointNames<'a> {
    names: HashMap<Place, (Child, &'a [u8])>,
    dirs: HashMap<Slot, &'a [u8]>,
}

impl MountPoints {
    /// Reads the mount tables. Later mounts are not included.
    ///
    /// # Errors
    /// Errors of reading `/proc`.
    pub(in crate::engine) fn of(engine: &Engine) -> SysResult<MountPoints> {
        let Some((_, dev)) = engine.place().mounted_as() else {
            return Ok(MountPoints::default());
        };
        let found = sys::mount_points_on(dev)?;
        let paths = found
            .into_iter()
            .map(|path| path.into_os_string().into_vec());
        Ok(MountPoints(paths.collect()))
    }

    /// Returns the topmost paths that a restore of a checkpoint must exclude to preserve the mount
    /// points. Each is the mount point, or a directory above it that is elsewhere or missing in the
    /// checkpoint. Empty if each path is the same in both.
    ///
    /// # Errors
    /// Errors of reading the tree.
    pub(super) fn in_the_way(
        &self,
        engine: &Engine,
        (target, which): (CheckpointId, PlanScope<'_>),
        touched: &Touched,
    ) -> SysResult<BTreeSet<Vec<u8>>> {
        let (then, now) = (
            engine.states.view(TreeState::At(target)),
            engine.states.view(TreeState::Live),
        );
        let mut stay = BTreeSet::new();
        for path in &self.0 {
            for above in ways(path) {
                let Some((live, _)) = now.walk(above)? else {
                    break;
                };
                let was = then.walk(above).ok().flatten();
                let same = was.is_some_and(|(was, _)| was == live)
                    && (live.kind == Kind::Dir || !touched.nodes.contains(&live.slot));
                if !same {
                    stay.insert(above.to_vec());
                    break;
                }
            }
        }
        if let PlanScope::Below(asked @ [_, ..]) | PlanScope::Only(asked) = which {
            stay.retain(|path| {
                asked
                    .iter()
                    .any(|asked| is_at_or_below(path, asked) || is_at_or_below(asked, path))
            });
        }
        Ok(stay)
    }

    /// Returns the places of the mount points in the live tree.
    fn held(&self, engine: &Engine) -> SysResult<MountPointNames<'_>> {
        let mut held = MountPointNames::default();
        let now = engine.states.view(TreeState::Live);
        for path in &self.0 {
            for above in ways(path) {
                let Some((child, trail)) = now.walk(above)? else {
                    break;
                };
                let Some(up) = &trail.up else { break };
                let place = Place {
                    parent: up.slot,
                    name: trail.name.clone(),
                };
                held.names.insert(place, (child, path));
                if child.kind == Kind::Dir {
                    held.dirs.insert(child.slot, path);
                }
            }
        }
        Ok(held)
    }
}

/// Iterates over the path and its ancestors, topmost first.
fn ways(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = path
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'/')
        .map(|(end, _)| end)
        .chain([path.len()]);
    ends.filter_map(|end| path.get(..end))
}

impl<'a> MountPointNames<'a> {
    /// Returns a mount point that the plan would detach.
    pub(super) fn detached_by(&self, plan: &TreePlan) -> Option<&'a [u8]> {
        let at = |parent: Slot, name: &Name| {
            let name = name.clone();
            self.names.get(&Place { parent, name })
        };
        let changed = plan.dirs.iter().find_map(|dir| {
            let live = dir.live.as_ref()?;
            dir.names.iter().find_map(|name| match plan.change(name) {
                None | Some(NameChange::Stays(_)) => None,
                Some(_) => at(live.slot, &name.name).map(|(_, path)| *path),
            })
        });
        let moved = || {
            plan.wanted().find_map(|(_, _, child, _, have)| {
                let here = have.is_some_and(|have| have.slot == child.slot);
                let moves = child.kind == Kind::Dir && plan.keeps(child) && !here;
                self.dirs.get(&child.slot).copied().filter(|_| moves)
            })
        };
        let kept = || {
            let mut from = plan.kept.iter().map(|kept| &kept.from);
            from.find_map(|from| Some(self.names.get(from)?.1))
        };
        changed.or_else(moved).or_else(kept)
    }
}

impl Restorer<'_> {
    /// Rejects a plan that would detach a mount.
    ///
    /// # Errors
    /// `busy`, with the path of the mount point.
    pub(super) fn refuse_detaching(
        &self,
        (what, plan): (&str, &TreePlan),
        covered: &MountPoints,
    ) -> VerbResult<()> {
        let held = covered.held(self.engine).map_err(failed(what))?;
        match held.detached_by(plan) {
            None => Ok(()),
            Some(path) => Err(self.would_detach(what, path)),
        }
    }

    fn would_detach(&self, what: &str, path: &[u8]) -> VerbError {
        let path = String::from_utf8_lossy(path);
        let at = self.engine.place().mount().join(&*path);
        hinted(
            Code::Busy,
            format!(
                "{what}: {path} is a mount point, which would be moved or removed; nothing was changed"
            ),
            format!("unmount it first: umount {}", word(at.display())),
        )
    }
}
