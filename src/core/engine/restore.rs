//! Restore: makes the live tree what it was at a checkpoint. The cost depends on the amount of
//! change since the checkpoint, not on the size of the tree.
//!
//! With no lock held, a plan is made from the records since the target (`prepare`), and the inodes
//! to restore are created in the staging directory, complete with owner and times. Then the tree is
//! frozen once. If anything has changed since, the plan is made again. A guard checkpoint closes
//! the epoch, and the plan is carried out with the operations that serve the kernel, so every step
//! captures the past, including that of the guard. The journal records the beginning and the end of
//! a restore. A restore without an end is carried out again at the next mount, with the same
//! result.
//!
//! Staged inodes are renamed into place, many behind one record; a partial inode is never visible.
//! A file whose content changed becomes a new inode: open descriptors refer to the old one, as
//! after unlink(2). Directories keep their inodes.

mod apply;
mod by_writer;
pub(super) mod desired;
mod events;
pub(super) mod excluded;
mod guarded;
mod inodes;
pub(super) mod mount_points;
pub(super) mod plan;
mod planner;
pub(super) mod prepare;
mod protected;
mod rescue;
pub(super) mod stage;
pub(super) mod stale;
pub(super) mod stat_cache;
pub(super) mod threads;

use std::collections::HashSet;
use std::time::Instant;

use self::desired::DesiredInodes;
use self::excluded::{ExcludedPaths, is_at_or_below};
use self::mount_points::MountPoints;
use self::plan::PlanScope;
use self::planner::PlanInput;
use self::prepare::{FrozenOp, PreparedOp, PreparedRestore, RestoreScope};
use self::stage::Stage;
use self::stale::{RestoreRequest, StaleEntries};
use super::Engine;
use super::auto::daemon;
use super::error;
use super::hooks::around;
use super::request::{CacheInvalidation as Forget, NodeId};
use super::requester::Requester;
use crate::history::state::TreeState;
use crate::history::timeline::RecoveryState;
use ckptfs_api::{
    Actor, Change, ChangeKind, CheckpointId, RestoreOptions, Restored, Times, TreePath, VerbError,
    VerbResult,
};
use ckptfs_store::ids::Slot;
use ckptfs_store::record::Record;
use ckptfs_sys::lock::MutexGuard;
use ckptfs_sys::{self as sys, Errno, Kind, SysResult};

/// Restores the live tree of an engine, or paths of it.
#[derive(Clone, Copy)]
pub(super) struct Restorer<'a> {
    pub(super) engine: &'a Engine,
}

/// Returns the result of a restore that created no guard checkpoint.
fn told(
    started: Instant,
    restored: CheckpointId,
    changes: Vec<Change>,
    unknown: Vec<TreePath>,
    spared: &ExcludedPaths,
) -> Restored {
    Restored {
        restored,
        guard: None,
        changes,
        unknown,
        dropped: spared.dropped(),
        mounted: spared.mounted(),
        split: Vec::new(),
        dry_run: false,
        duration_us: ckptfs_api::microseconds(started.elapsed()),
    }
}

/// Separates the changes of a restore from the paths that stay because their past is unknown.
fn told_apart(
    mut changes: Vec<Change>,
    mut unknown: Vec<TreePath>,
    plan: &plan::RestorePlan,
) -> (Vec<Change>, Vec<TreePath>) {
    unknown.extend(plan.unknown.iter().cloned().map(TreePath));
    if sys::ids().0 != 0 {
        // A file that its owner may not read cannot be compared; its content is restored
        // regardless.
        let is_planned = |change: &&mut Change| {
            change.change == ChangeKind::Unknown && !plan.unknown.contains(&change.path.0)
        };
        let planned = changes.iter_mut().filter(is_planned);
        planned.for_each(|change| change.change = ChangeKind::Modified);
    }
    unknown.extend(
        changes
            .iter()
            .filter(|change| change.change == ChangeKind::Unknown)
            .map(|change| change.path.clone()),
    );
    unknown.sort();
    unknown.dedup();
    changes.retain(|change| unknown.binary_search(&change.path).is_err());
    (changes, unknown)
}

/// Size limit of the paths in one record, in bytes.
const PATHS_BYTES: usize = 1 << 20;

/// Splits paths into parts that each fit into a record; returns at least one part.
fn in_frames(paths: &[Vec<u8>]) -> Vec<&[Vec<u8>]> {
    let (mut parts, mut from, mut bytes) = (Vec::new(), 0, 0);
    for (at, path) in paths.iter().enumerate() {
        if bytes > PATHS_BYTES {
            parts.extend(paths.get(from..at));
            (from, bytes) = (at, 0);
        }
        bytes += path.len() + 4;
    }
    parts.extend(
        paths
            .get(from..)
            .filter(|rest| !rest.is_empty() || from == 0),
    );
    parts
}

impl<'a> Restorer<'a> {
    pub(super) fn new(engine: &'a Engine) -> Restorer<'a> {
        Restorer { engine }
    }

    /// Restores between the hooks; a dry run runs no hooks.
    pub(super) fn restore_with_hooks(
        &self,
        requester: &Requester,
        options: &RestoreOptions,
    ) -> VerbResult<Restored> {
        if options.dry_run {
            return self.restore_to(requester, options);
        }
        let target = self.engine.states.whole_id(&options.to)?;
        let variables = vec![("CKPTFS_ID", target.to_string())];
        let after = |restored: &Restored| {
            let guard = restored
                .guard
                .map(|guard| ("CKPTFS_GUARD", guard.to_string()));
            [("CKPTFS_ID", target.to_string())]
                .into_iter()
                .chain(guard)
                .collect()
        };
        around(
            self.engine.checkpoints.hooks.as_ref(),
            &self.engine.serving,
            requester.by(),
            ("restore", variables),
            || self.restore_to(requester, options),
            after,
        )
    }

    pub(super) fn restore_to(
        &self,
        requester: &Requester,
        options: &RestoreOptions,
    ) -> VerbResult<Restored> {
        let started = Instant::now();
        let target = self.engine.states.whole_id(&options.to)?;
        let failed = error::failed("the restore failed");
        let mut unknown = Vec::new();
        let paths = self.checked_paths(target, &options.paths, &mut unknown)?;
        let asked = |path: &TreePath| {
            paths.is_empty() || paths.iter().any(|asked| is_at_or_below(&path.0, asked))
        };
        unknown.extend(
            self.unknown_in(target)
                .map_err(failed)?
                .into_iter()
                .filter(asked),
        );
        let times = Times::or_default(options.times, !paths.is_empty());
        if options.dry_run {
            self.engine.checkpoints.settle();
            let touched = &self.engine.states.touched(target, None).map_err(failed)?;
            let covered = MountPoints::of(self.engine).map_err(failed)?;
            let spared = self
                .spared(target, PlanScope::Below(&paths), (&covered, touched))
                .map_err(failed)?;
            let ground = PlanInput {
                engine: self.engine,
                present: &*self.engine.live.inodes,
                target,
                touched,
                spared: &spared,
                times,
            };
            let changes = spared.filter(self.changes_to(ground, &paths).map_err(failed)?);
            let plan = plan::RestorePlan::make(ground, PlanScope::Below(&paths)).map_err(failed)?;
            let states = &self.engine.states;
            let (then, now) = (
                states.view(TreeState::At(target)),
                states.view(TreeState::Live),
            );
            self.refuse_protected("the restore would fail", (&plan, &then, &now))?;
            let (changes, unknown) = told_apart(changes, unknown, &plan);
            return Ok(Restored {
                dry_run: true,
                ..told(started, target, changes, unknown, &spared)
            });
        }
        let one_at_a_time = self.engine.checkpoints.wait_turn(requester)?;
        let asked = RestoreRequest {
            requester,
            undoes: None,
            started,
            unknown,
            times,
        };
        self.restore_now(asked, target, &paths, one_at_a_time)
    }

    /// Restores the tree or these paths behind a guard checkpoint. Takes over the checkpoint lock
    /// and releases it.
    pub(super) fn restore_now(
        &self,
        asked: RestoreRequest<'_>,
        target: CheckpointId,
        paths: &[Vec<u8>],
        one_at_a_time: MutexGuard<'_, ()>,
    ) -> VerbResult<Restored> {
        let failed = |errno| self.engine.checkpoints.failed("the restore failed", errno);
        let below = RestoreScope::Below(paths);
        let (mut prepared, frozen) = self.prepared(&asked, target, below, one_at_a_time)?;
        let changes = std::mem::take(&mut prepared.changes);
        let (plan, spared) = (&prepared.plan, &prepared.spared);
        let (changes, unknown) = told_apart(changes, asked.unknown, plan);
        // An undo is recorded as an operation even if it changes nothing.
        let is_so = asked.undoes.is_none()
            && changes.is_empty()
            && plan.is_so(self.engine).unwrap_or(false);
        let done = || told(asked.started, target, changes, unknown, spared);
        if is_so {
            if paths.is_empty() && self.timeline().base() != Some(target) {
                let by = asked.requester.by();
                self.timeline().comes_from(by, target).map_err(failed)?;
            }
            return Ok(done());
        }
        let note = format!("before restoring {target}");
        let guard =
            self.restore_frozen(frozen, &note, &prepared, PlanScope::Below(paths), paths)?;
        Ok(Restored {
            guard: Some(guard),
            split: plan.split(self.engine),
            ..done()
        })
    }

    /// Carries out a plan behind a guard checkpoint. `named`: the paths to record in the journal.
    fn restore_frozen(
        &self,
        frozen: FrozenOp<'_>,
        note: &str,
        prepared: &PreparedRestore<'_>,
        which: PlanScope<'_>,
        named: &[Vec<u8>],
    ) -> VerbResult<CheckpointId> {
        // Held until watchers are notified, which also uses memory.
        let _index_later = self.timeline().indexer.hold();
        let (plan, want) = (&prepared.plan, prepared.want());
        let (by, undoes) = (frozen.requester.by(), frozen.undoes);
        let (guard, applied, forgetting) = self.behind_guard(
            frozen,
            ("the restore failed", note),
            Some(plan.target),
            |stage, guard| {
                self.carry_out(Some((by, undoes)), (plan, want, stage), guard, which, named)
            },
        )?;
        let told = self.told_after(plan, applied, forgetting);
        told.map_err(|errno| VerbError {
            hint: Some(format!(
                "nothing is lost: `ckptfs restore {guard}` brings back what was there"
            )),
            ..self.engine.checkpoints.failed("the restore failed", errno)
        })?;
        Ok(guard)
    }

    /// Returns the paths that changed while the tree was not served. Their state at a checkpoint is
    /// unknown.
    pub(super) fn unknown_in(&self, target: CheckpointId) -> SysResult<Vec<TreePath>> {
        Ok(self
            .engine
            .states
            .changed_unserved(target)?
            .iter()
            .map(|change| change.path.clone())
            .collect())
    }

    /// Applies a plan between the records of its beginning and its end. The caller holds the freeze
    /// lock and the tree lock for writing.
    ///
    /// A failed restore is ended like a complete one: the next mount does not repeat it, and the
    /// guard preserves the previous state. `named`: the paths that the journal records; empty for
    /// the whole tree.
    fn carry_out(
        &self,
        by: Option<(&Actor, Option<u64>)>,
        (plan, want, stage): (&plan::RestorePlan, &dyn DesiredInodes, Stage<'_>),
        guard: CheckpointId,
        which: PlanScope<'_>,
        named: &[Vec<u8>],
    ) -> SysResult<StaleEntries> {
        let change = self.change_by(by.map(|(by, _)| by));
        if let PlanScope::Only(paths) = which {
            for paths in in_frames(paths) {
                self.timeline().journal.append(&[Record::RestoreOnly {
                    paths: paths.to_vec(),
                }])?;
            }
        }
        self.timeline().operations.begin_restore(
            by,
            plan.target,
            guard,
            named,
            matches!(which, PlanScope::Only(_)),
        )?;
        let applied = apply::apply(self.engine, &change, (plan, want), stage);
        // This record must precede the next change. Otherwise the next mount would repeat the
        // restore and overwrite later changes.
        self.timeline().journal.tell(Record::RestoreEnd);
        applied
    }

    /// Finishes a restore that a killed daemon left incomplete. Runs before the tree is served.
    pub(super) fn finish_restore(
        &self,
        aftermath: &RecoveryState,
    ) -> SysResult<Option<StaleEntries>> {
        if let Err(errno) = self.engine.live.staged.sweep() {
            tracing::warn!(%errno, "what was staged by a restore that did not begin is not removed");
        }
        let Some((target, guard, paths)) = &aftermath.restoring else {
            return Ok(None);
        };
        if self.timeline().catalogue.checkpoint(*target).is_none() {
            return Ok(None);
        }
        tracing::info!(%target, "a restore that was interrupted is finished");
        let _freeze = self.engine.live.busy.freeze()?;
        let _tree = self.engine.live.locks.tree.write();
        let which = aftermath
            .restoring_only
            .as_ref()
            .map_or(PlanScope::Below(paths), |only| PlanScope::Only(only));
        let nobody = Requester::from(daemon());
        let covered = MountPoints::of(self.engine)?;
        let (plan, stage) = self.in_freeze(*target, (which, &covered), &nobody)?;
        let want = self.engine.states.view(TreeState::At(*target));
        self.carry_out(None, (&plan, &want, stage), *guard, which, paths)
            .map(Some)
    }

    /// Plans the restore of a checkpoint and stages all its inodes. The caller has frozen the tree.
    fn in_freeze<'s>(
        &self,
        target: CheckpointId,
        (which, covered): (PlanScope<'_>, &MountPoints),
        requester: &'s Requester,
    ) -> SysResult<(plan::RestorePlan, Stage<'s>)>
    where
        'a: 's,
    {
        let touched = &self.engine.states.touched(target, None)?;
        let spared = &self.spared(target, which, (covered, touched))?;
        let some = !matches!(which, PlanScope::Below([]));
        let ground = PlanInput {
            engine: self.engine,
            present: &*self.engine.live.inodes,
            target,
            touched,
            spared,
            times: Times::or_default(None, some),
        };
        let plan = plan::RestorePlan::make(ground, which)?;
        let mut stage = Stage::new(self.engine, requester);
        stage.fill(&plan, &self.engine.states.view(TreeState::At(target)), true)?;
        Ok((plan, stage))
    }

    /// Returns the changes that a restore would make to the live tree.
    fn changes_to(
        &self,
        PlanInput {
            present,
            target,
            touched,
            times,
            ..
        }: PlanInput<'_>,
        paths: &[Vec<u8>],
    ) -> SysResult<Vec<Change>> {
        let compare = |path: &[u8]| {
            self.engine.states.compare_touched(
                present,
                (TreeState::Live, TreeState::At(target)),
                path,
                touched,
                times == Times::Kept,
            )
        };
        if paths.is_empty() {
            return compare(b"");
        }
        let mut changes = Vec::new();
        for path in paths {
            changes.extend(self.missing_above(target, path)?);
            changes.extend(compare(path)?);
        }
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        changes.dedup();
        Ok(changes)
    }

    /// Returns the missing directories above a path, which are restored with it.
    fn missing_above(&self, target: CheckpointId, path: &[u8]) -> SysResult<Vec<Change>> {
        let mut changes = Vec::new();
        for (end, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            let above = path.get(..end).unwrap_or_default();
            let kind_in = |state| {
                self.engine
                    .states
                    .view(state)
                    .walk(above)
                    .map(|found| found.map(|(child, _)| child.kind))
            };
            let (then, now) = (kind_in(TreeState::At(target))?, kind_in(TreeState::Live)?);
            if then == Some(Kind::Dir) && now != Some(Kind::Dir) {
                let change = if now.is_none() {
                    ChangeKind::Added
                } else {
                    ChangeKind::TypeChanged
                };
                changes.push(Change::new(above.to_vec(), change, Kind::Dir));
            }
        }
        Ok(changes)
    }

    /// Normalizes paths (`.`, doubled slashes) and checks that each exists now or existed at the
    /// checkpoint. Returns an empty list for the root, which means the whole tree. Adds paths whose
    /// state at the checkpoint is unknown to `unknown`.
    fn checked_paths(
        &self,
        target: CheckpointId,
        paths: &[TreePath],
        unknown: &mut Vec<TreePath>,
    ) -> VerbResult<Vec<Vec<u8>>> {
        let mut cleaned: Vec<Vec<u8>> = Vec::new();
        for path in paths {
            let names: Vec<&[u8]> = path
                .0
                .split(|byte| *byte == b'/')
                .filter(|name| !name.is_empty() && *name != b".")
                .collect();
            let ours = names.first().is_some_and(|name| {
                let root = super::request::NodeId(ckptfs_store::ids::Slot::ROOT.0);
                self.engine.serving.is_reserved(root, name)
            });
            if names.contains(&b"..".as_slice()) || ours {
                return Err(error::unknown_path(&path.0, target));
            }
            if names.is_empty() {
                return Ok(Vec::new());
            }
            let clean = names.join(&b'/');
            let then = match self.engine.states.view(TreeState::At(target)).walk(&clean) {
                Err(Errno::EIO) => {
                    unknown.push(TreePath(clean));
                    continue;
                }
                then => then.map_err(error::failed("the path cannot be read"))?,
            };
            let now = self
                .engine
                .states
                .view(TreeState::Live)
                .walk(&clean)
                .unwrap_or(None);
            if then.is_none() && now.is_none() {
                return Err(error::unknown_path(&path.0, target));
            }
            cleaned.push(clean);
        }
        // An empty list would mean the whole tree.
        if cleaned.is_empty() && !paths.is_empty() {
            return Err(error::cannot_be_told(unknown.last(), target));
        }
        cleaned.sort();
        cleaned.dedup();
        // A path below another one is restored with it.
        let all: HashSet<Vec<u8>> = cleaned.iter().cloned().collect();
        cleaned.retain(|path| {
            let mut above = path
                .iter()
                .enumerate()
                .filter(|(_, byte)| **byte == b'/')
                .filter_map(|(end, _)| path.get(..end));
            !above.any(|above| all.contains(above))
        });
        Ok(cleaned)
    }

    /// Invalidates stale entries and inodes in the kernel's caches. Must be called without locks:
    /// the kernel may wait for a request to end.
    pub(super) fn forget_stale(&self, stale: &StaleEntries) {
        let Some(caches) = self.engine.serving.caches.get() else {
            return;
        };
        // Names first: the kernel takes the lock of their directory, and so waits for listings that
        // are being added to its cache.
        let node = |slot: &Slot| NodeId(slot.0);
        let dead = stale.dead.iter();
        let dead = dead.map(|(parent, name, child)| Forget::Deleted {
            parent: node(parent),
            child: node(child),
            name: name.as_bytes().to_vec(),
        });
        let names = stale.names.iter().map(|(parent, name)| Forget::Entry {
            parent: node(parent),
            name: name.as_bytes().to_vec(),
        });
        let nodes = stale.nodes.iter().map(|slot| Forget::Data(node(slot)));
        caches.forget(dead.chain(names).chain(nodes).collect());
        self.engine.snapdir.root_changed(Slot::ROOT);
    }
}
