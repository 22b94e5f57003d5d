//! Restore: the tree becomes what it was at a checkpoint, in the time that what changed since takes.
//!
//! Everything happens inside one freeze: a guard checkpoint closes the epoch, a plan is made from what was recorded since the target, and the plan
//! is carried out with the same operations that serve the kernel, so that every step keeps the past, the guard's included. The journal says that a
//! restore began and that it ended; one that did not end is carried out again at the next mount, which leads to the same tree.
//!
//! What comes back is prepared in the staging directory, complete with owner and times, and then renamed into place: nobody ever sees half of it. A
//! file whose content changed comes back as a new inode, so whoever has it open keeps what it opened, as with a removed file. Directories keep
//! their inodes.

mod apply;
mod news;
mod only;
mod plan;
pub(super) mod spared;

use std::collections::HashSet;
use std::time::Instant;

use self::plan::Which;
use super::Engine;
use super::api::{Change, ChangeKind, RestoreOptions, Restored, TreePath, VerbResult};
use super::error;
use super::request::{NodeId, Stale as Forget};
use crate::history::timeline::Aftermath;
use crate::history::touched::Touched;
use crate::history::view::State;
use crate::store::ids::{CheckpointId, Name, Slot};
use crate::store::record::{Actor, Reason, Record};
use crate::sys::lock::MutexGuard;
use crate::sys::{Kind, SysResult};

/// What the kernel must forget after a restore.
#[derive(Debug, Default)]
pub(super) struct Stale {
    pub(super) names: Vec<(Slot, Name)>,
    pub(super) nodes: Vec<Slot>,
    /// Names that led to an inode that the kernel knows and that is in the tree no longer, children before parents.
    pub(super) dead: Vec<(Slot, Name, Slot)>,
    /// Directories that got back attributes other than times.
    pub(super) dressed: Vec<Slot>,
}

/// Who asked for a restore, and why.
pub(super) struct Asked<'a> {
    pub(super) by: &'a Actor,
    /// The operation that it undoes.
    pub(super) undoes: Option<u64>,
    pub(super) started: Instant,
    /// Paths that are not known as they were.
    pub(super) unknown: Vec<TreePath>,
}

fn took(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX)
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
    parts.extend(paths.get(from..).filter(|rest| !rest.is_empty() || from == 0));
    parts
}

impl Engine {
    /// See [`super::api::Verbs::restore`].
    pub(super) fn restore_to(&self, by: &Actor, options: &RestoreOptions) -> VerbResult<Restored> {
        let started = Instant::now();
        let target = self.checkpoint_id(&options.to)?;
        let paths = self.checked_paths(target, &options.paths)?;
        let failed = |errno| error::failed("the restore failed", errno);
        let unknown = self.unknown_in(target).map_err(failed)?;
        if options.dry_run {
            self.settle();
            let touched = self.touched(target, None).map_err(failed)?;
            let spared = self.spared(target, Which::Below(&paths)).map_err(failed)?;
            let changes = spared.filter(self.changes_to(target, &paths, &touched).map_err(failed)?);
            return Ok(Restored {
                restored: target,
                guard: None,
                changes,
                unknown,
                dropped: spared.told(),
                dry_run: true,
                duration_us: took(started),
            });
        }
        let one_at_a_time = self.checkpointing.lock();
        let asked = Asked { by, undoes: None, started, unknown };
        self.restore_now(asked, target, &paths, one_at_a_time)
    }

    /// Makes the tree, or these paths, what it was, with a guard. Takes the lock of whoever makes checkpoints, and gives it back.
    pub(super) fn restore_now(
        &self,
        asked: Asked<'_>,
        target: CheckpointId,
        paths: &[Vec<u8>],
        one_at_a_time: MutexGuard<'_, ()>,
    ) -> VerbResult<Restored> {
        let failed = |errno| error::failed("the restore failed", errno);
        let Asked { by, undoes, started, unknown } = asked;
        let (gate, flushed) = self.freeze();
        let touched = self.touched(target, None).map_err(failed)?;
        let changes = self.changes_to(target, paths, &touched).map_err(failed)?;
        let spared = self.spared(target, Which::Below(paths)).map_err(failed)?;
        let changes = spared.filter(changes);
        let plan = plan::Plan::make(self, target, Which::Below(paths), touched).map_err(failed)?;
        let note = format!("before restoring {target}");
        let (guard, opened) = self.seal(Some(by), &note, Vec::new(), Reason::Guard { restored: target }, flushed).map_err(failed)?;
        let tree = self.live.tree.write();
        let applied = self.carry_out(Some((by, undoes)), &plan, guard.id, Which::Below(paths), paths);
        drop(tree);
        drop(gate);
        self.tell_open(guard.id, opened);
        // Whoever makes or removes a directory in `.snapshots` holds it while waiting for this lock, and to have it forgotten waits for them.
        drop(one_at_a_time);
        self.told_after(&plan, guard.id, applied)?;
        Ok(Restored { restored: target, guard: Some(guard.id), changes, unknown, dropped: spared.told(), dry_run: false, duration_us: took(started) })
    }

    /// After a restore, with nothing held: the kernel forgets what is no longer so, and watchers are told.
    fn told_after(&self, plan: &plan::Plan, guard: CheckpointId, applied: SysResult<Stale>) -> VerbResult<()> {
        self.snapdir_changed();
        match applied {
            Ok(stale) => {
                self.forget_stale(&stale);
                self.announce(plan, &stale);
                Ok(())
            }
            Err(errno) => {
                let stale = apply::all_of(plan);
                self.forget_stale(&stale);
                self.announce(plan, &stale);
                let mut error = error::failed("the restore failed", errno);
                error.hint = Some(format!("nothing is lost: `ckptfs restore {guard}` brings back what was there"));
                Err(error)
            }
        }
    }

    /// Paths that were changed while nobody served the tree, and that a checkpoint therefore does not know.
    pub(super) fn unknown_in(&self, target: CheckpointId) -> SysResult<Vec<TreePath>> {
        Ok(self.changed_unserved(target)?.iter().map(|change| change.path.clone()).collect())
    }

    /// Applies a plan between the records of its beginning and its end. The caller holds the gate and the tree for writing.
    ///
    /// A restore that failed is at its end too: it is not begun again at the next mount, and the guard has what was there.
    /// `named`: what the journal is told was restored; of the whole tree nothing.
    fn carry_out(
        &self,
        by: Option<(&Actor, Option<u64>)>,
        plan: &plan::Plan,
        guard: CheckpointId,
        which: Which<'_>,
        named: &[Vec<u8>],
    ) -> SysResult<Stale> {
        let _acting = crate::history::timeline::Timeline::acting(by.map(|(by, _)| self.timeline().number(super::who::actor_process(by))));
        if let Which::Only(paths) = which {
            for paths in in_frames(paths) {
                self.timeline().append(&[Record::RestoreOnly { paths: paths.to_vec() }])?;
            }
        }
        self.timeline().begin_restore(by, plan.target, guard, named, matches!(which, Which::Only(_)))?;
        let applied = apply::apply(self, plan);
        // Were it not told before the next change, the next mount would restore once more, over what was done since.
        self.timeline().tell(Record::RestoreEnd);
        applied
    }

    /// Finishes a restore that a killed daemon left half done. Nothing is served yet.
    pub(super) fn finish_restore(&self, aftermath: &Aftermath) -> SysResult<Option<Stale>> {
        let Some((target, guard, paths)) = &aftermath.restoring else { return Ok(None) };
        if self.timeline().checkpoint(*target).is_none() {
            return Ok(None);
        }
        tracing::info!(%target, "a restore that was interrupted is finished");
        let _gate = self.live.gate.write();
        let _tree = self.live.tree.write();
        let which = aftermath.restoring_only.as_ref().map_or(Which::Below(paths), |only| Which::Only(only));
        let plan = plan::Plan::make(self, *target, which, self.touched(*target, None)?)?;
        self.carry_out(None, &plan, *guard, which, paths).map(Some)
    }

    /// What a restore would change in the live tree.
    fn changes_to(&self, target: CheckpointId, paths: &[Vec<u8>], touched: &Touched) -> SysResult<Vec<Change>> {
        if paths.is_empty() {
            return self.compare_touched(State::Live, State::At(target), b"", touched);
        }
        let mut changes = Vec::new();
        for path in paths {
            changes.extend(self.missing_above(target, path)?);
            changes.extend(self.compare_touched(State::Live, State::At(target), path, touched)?);
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
            let kind_in = |state| self.view(state).walk(above).map(|found| found.map(|(child, _)| child.kind));
            let (then, now) = (kind_in(State::At(target))?, kind_in(State::Live)?);
            if then == Some(Kind::Dir) && now != Some(Kind::Dir) {
                let change = if now.is_none() { ChangeKind::Added } else { ChangeKind::TypeChanged };
                changes.push(Change { path: TreePath(above.to_vec()), change, from: None, kind: Kind::Dir, old_size: None, size: None });
            }
        }
        Ok(changes)
    }

    /// Paths cleaned of `.` and doubled slashes; each exists now or did then. The root stands for the whole tree.
    fn checked_paths(&self, target: CheckpointId, paths: &[TreePath]) -> VerbResult<Vec<Vec<u8>>> {
        let mut cleaned: Vec<Vec<u8>> = Vec::new();
        for path in paths {
            let names: Vec<&[u8]> = path.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").collect();
            let ours = names.first().is_some_and(|name| *name == super::control::STORE_NAME || *name == super::control::SNAPDIR_NAME);
            if names.contains(&b"..".as_slice()) || ours {
                return Err(error::unknown_path(&path.0, target));
            }
            if names.is_empty() {
                return Ok(Vec::new());
            }
            let clean = names.join(&b'/');
            let then = self.view(State::At(target)).walk(&clean).map_err(|errno| error::failed("the path cannot be read", errno))?;
            let now = self.view(State::Live).walk(&clean).unwrap_or(None);
            if then.is_none() && now.is_none() {
                return Err(error::unknown_path(&path.0, target));
            }
            cleaned.push(clean);
        }
        cleaned.sort();
        cleaned.dedup();
        // A path below another is restored with it.
        let all: HashSet<Vec<u8>> = cleaned.iter().cloned().collect();
        cleaned.retain(|path| {
            let mut above = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').filter_map(|(end, _)| path.get(..end));
            !above.any(|above| all.contains(above))
        });
        Ok(cleaned)
    }

    /// Makes the kernel forget what is no longer so. Holds no lock: the kernel may wait for a request to end.
    pub(super) fn forget_stale(&self, stale: &Stale) {
        let Some(caches) = self.caches.get() else { return };
        // Names first: the kernel takes their directory's lock, and so waits for listings that are on their way into its cache.
        let node = |slot: &Slot| NodeId(slot.0);
        let dead = stale.dead.iter();
        let dead = dead.map(|(parent, name, child)| Forget::Deleted { parent: node(parent), child: node(child), name: name.as_bytes().to_vec() });
        let names = stale.names.iter().map(|(parent, name)| Forget::Entry { parent: node(parent), name: name.as_bytes().to_vec() });
        let nodes = stale.nodes.iter().map(|slot| Forget::Data(node(slot)));
        caches.forget(dead.chain(names).chain(nodes).collect());
        self.root_changed(Slot::ROOT);
    }
}
