//! Restore: the tree becomes what it was at a checkpoint, in the time that what changed since
//! takes.
//!
//! With nothing held a plan is made from what was recorded since the target (`prepare`), and what
//! comes back is made in the staging directory, complete with owner and times. Then comes one
//! freeze: if anything has changed meanwhile it is planned again; a guard checkpoint closes the
//! epoch; and the plan is carried out with the same operations that serve the kernel, so that every
//! step keeps the past, the guard's included. The journal says that a restore began and that it
//! ended; one that did not end is carried out again at the next mount, which leads to the same
//! tree.
//!
//! What was made is renamed into place, many inodes behind one record: nobody ever sees half of
//! one. A file whose content changed comes back as a new inode, so whoever has it open keeps what
//! it opened, as with a removed file. Directories keep their inodes.

mod apply;
pub(super) mod covered;
pub(super) mod glance;
mod guarded;
mod inodes;
mod left;
mod news;
mod only;
pub(super) mod plan;
mod planner;
pub(super) mod prepare;
mod protected;
pub(super) mod spared;
pub(super) mod stage;
pub(super) mod stale;
pub(super) mod threads;
pub(super) mod want;

use std::collections::HashSet;
use std::time::Instant;

use self::covered::Covered;
use self::plan::Which;
use self::planner::Ground;
use self::prepare::{Choice, Frozen, Prepared, Ready};
use self::spared::{Spared, is_at_or_below};
use self::stage::Stage;
use self::stale::{Asked, Stale};
use self::want::Want;
use super::Engine;
use super::api::{
    Change, ChangeKind, RestoreOptions, Restored, Times, TreePath, VerbError, VerbResult,
};
use super::auto::daemon;
use super::error;
use super::hooks::around;
use super::request::{NodeId, Stale as Forget};
use super::requester::Requester;
use crate::history::state::State;
use crate::history::timeline::Aftermath;
use crate::store::ids::{CheckpointId, Slot};
use crate::store::record::{Actor, Record};
use crate::sys::lock::MutexGuard;
use crate::sys::{self, Errno, Kind, SysResult};

/// Makes the live tree of an engine, or paths of it, what it was.
#[derive(Clone, Copy)]
pub(super) struct Restorer<'a> {
    pub(super) engine: &'a Engine,
}

/// What is told of a restore that has found all to be so already.
fn told(
    started: Instant,
    restored: CheckpointId,
    changes: Vec<Change>,
    unknown: Vec<TreePath>,
    spared: &Spared,
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
        duration_us: super::api::microseconds(started.elapsed()),
    }
}

/// What a restore changes, and what stays as it is because it cannot be told what it was.
fn told_apart(
    mut changes: Vec<Change>,
    mut unknown: Vec<TreePath>,
    plan: &plan::Plan,
) -> (Vec<Change>, Vec<TreePath>) {
    unknown.extend(plan.unknown.iter().cloned().map(TreePath));
    if sys::ids().0 != 0 {
        // What its owner may not read gets what it held, whatever it holds.
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

/// Bytes of paths in one record.
const PATHS_BYTES: usize = 1 << 20;

/// Paths in parts that fit into a record each; at least one.
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

    /// Restores between its hooks; a dry run has none.
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
            let covered = Covered::of(self.engine).map_err(failed)?;
            let spared = self
                .spared(target, Which::Below(&paths), (&covered, touched))
                .map_err(failed)?;
            let ground = Ground {
                engine: self.engine,
                present: &*self.engine.live.inodes,
                target,
                touched,
                spared: &spared,
                times,
            };
            let changes = spared.filter(self.changes_to(ground, &paths).map_err(failed)?);
            let plan = plan::Plan::make(ground, Which::Below(&paths)).map_err(failed)?;
            let states = &self.engine.states;
            let (then, now) = (states.view(State::At(target)), states.view(State::Live));
            self.refuse_protected("the restore would fail", (&plan, &then, &now))?;
            let (changes, unknown) = told_apart(changes, unknown, &plan);
            return Ok(Restored {
                dry_run: true,
                ..told(started, target, changes, unknown, &spared)
            });
        }
        let one_at_a_time = self.engine.checkpoints.wait_turn(requester)?;
        let asked = Asked {
            requester,
            undoes: None,
            started,
            unknown,
            times,
        };
        self.restore_now(asked, target, &paths, one_at_a_time)
    }

    /// Makes the tree, or these paths, what it was, with a guard. Takes the lock of whoever makes
    /// checkpoints, and gives it back.
    pub(super) fn restore_now(
        &self,
        asked: Asked<'_>,
        target: CheckpointId,
        paths: &[Vec<u8>],
        one_at_a_time: MutexGuard<'_, ()>,
    ) -> VerbResult<Restored> {
        let failed = |errno| self.engine.checkpoints.failed("the restore failed", errno);
        let below = Choice::Below(paths);
        let (mut prepared, frozen) = self.prepared(&asked, target, below, one_at_a_time)?;
        let changes = std::mem::take(&mut prepared.changes);
        let (plan, spared) = (&prepared.plan, &prepared.spared);
        let (changes, unknown) = told_apart(changes, asked.unknown, plan);
        // One that undoes another is an operation all the same.
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
        let guard = self.restore_frozen(frozen, &note, &prepared, Which::Below(paths), paths)?;
        Ok(Restored {
            guard: Some(guard),
            split: plan.split(self.engine),
            ..done()
        })
    }

    /// Carries out a plan, behind a guard. The journal is told of `named`.
    fn restore_frozen(
        &self,
        frozen: Frozen<'_>,
        note: &str,
        prepared: &Prepared<'_>,
        which: Which<'_>,
        named: &[Vec<u8>],
    ) -> VerbResult<CheckpointId> {
        // Also while watchers are told, which takes memory as well.
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

    /// Paths that were changed while nobody served the tree, and that a checkpoint therefore does
    /// not know.
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
    /// lock and the tree for writing.
    ///
    /// A restore that failed is at its end too: it is not begun again at the next mount, and the
    /// guard has what was there. `named`: what the journal is told was restored; of the whole tree
    /// nothing.
    fn carry_out(
        &self,
        by: Option<(&Actor, Option<u64>)>,
        (plan, want, stage): (&plan::Plan, &dyn Want, Stage<'_>),
        guard: CheckpointId,
        which: Which<'_>,
        named: &[Vec<u8>],
    ) -> SysResult<Stale> {
        let change = self.change_by(by.map(|(by, _)| by));
        if let Which::Only(paths) = which {
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
            matches!(which, Which::Only(_)),
        )?;
        let applied = apply::apply(self.engine, &change, (plan, want), stage);
        // Were it not told before the next change, the next mount would restore once more, over
        // what was done since.
        self.timeline().journal.tell(Record::RestoreEnd);
        applied
    }

    /// Finishes a restore that a killed daemon left half done. Nothing is served yet.
    pub(super) fn finish_restore(&self, aftermath: &Aftermath) -> SysResult<Option<Stale>> {
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
            .map_or(Which::Below(paths), |only| Which::Only(only));
        let nobody = Requester::from(daemon());
        let covered = Covered::of(self.engine)?;
        let (plan, stage) = self.in_freeze(*target, (which, &covered), &nobody)?;
        let want = self.engine.states.view(State::At(*target));
        self.carry_out(None, (&plan, &want, stage), *guard, which, paths)
            .map(Some)
    }

    /// What it takes to restore a checkpoint, with all of it staged. The caller has frozen the
    /// tree.
    fn in_freeze<'s>(
        &self,
        target: CheckpointId,
        (which, covered): (Which<'_>, &Covered),
        requester: &'s Requester,
    ) -> SysResult<(plan::Plan, Stage<'s>)>
    where
        'a: 's,
    {
        let touched = &self.engine.states.touched(target, None)?;
        let spared = &self.spared(target, which, (covered, touched))?;
        let some = !matches!(which, Which::Below([]));
        let ground = Ground {
            engine: self.engine,
            present: &*self.engine.live.inodes,
            target,
            touched,
            spared,
            times: Times::or_default(None, some),
        };
        let plan = plan::Plan::make(ground, which)?;
        let mut stage = Stage::new(self.engine, requester);
        stage.fill(&plan, &self.engine.states.view(State::At(target)), true)?;
        Ok((plan, stage))
    }

    /// What a restore would change in the live tree.
    fn changes_to(
        &self,
        Ground {
            present,
            target,
            touched,
            times,
            ..
        }: Ground<'_>,
        paths: &[Vec<u8>],
    ) -> SysResult<Vec<Change>> {
        let compare = |path: &[u8]| {
            self.engine.states.compare_touched(
                present,
                (State::Live, State::At(target)),
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

    /// The directories above a path that come back with it, because they are missing.
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
            let (then, now) = (kind_in(State::At(target))?, kind_in(State::Live)?);
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

    /// Paths cleaned of `.` and doubled slashes; each exists now or did then. The root stands for
    /// the whole tree. One of which it cannot be told whether it did goes to `unknown`.
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
                let root = super::request::NodeId(crate::store::ids::Slot::ROOT.0);
                self.engine.serving.is_reserved(root, name)
            });
            if names.contains(&b"..".as_slice()) || ours {
                return Err(error::unknown_path(&path.0, target));
            }
            if names.is_empty() {
                return Ok(Vec::new());
            }
            let clean = names.join(&b'/');
            let then = match self.engine.states.view(State::At(target)).walk(&clean) {
                Err(Errno::EIO) => {
                    unknown.push(TreePath(clean));
                    continue;
                }
                then => then.map_err(error::failed("the path cannot be read"))?,
            };
            let now = self
                .engine
                .states
                .view(State::Live)
                .walk(&clean)
                .unwrap_or(None);
            if then.is_none() && now.is_none() {
                return Err(error::unknown_path(&path.0, target));
            }
            cleaned.push(clean);
        }
        // None stands for the whole tree.
        if cleaned.is_empty() && !paths.is_empty() {
            return Err(error::cannot_be_told(unknown.last(), target));
        }
        cleaned.sort();
        cleaned.dedup();
        // A path below another is restored with it.
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

    /// Makes the kernel forget what is no longer so. Holds no lock: the kernel may wait for a
    /// request to end.
    pub(super) fn forget_stale(&self, stale: &Stale) {
        let Some(caches) = self.engine.serving.caches.get() else {
            return;
        };
        // Names first: the kernel takes their directory's lock, and so waits for listings that are
        // on their way into its cache.
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
