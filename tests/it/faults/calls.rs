//! Every call of every operation fails once: versions stay intact, the live tree is unchanged, and
//! the operation succeeds after the fault.

use std::path::Path;

use super::node_snapshot::{Tree, differing, without_times};
use super::ops::{self, FaultOp, FaultOpResult, OpError};
use super::served::ServedDir;
use crate::common::random::is_long;
use crate::common::{Fs, Image, Io, Variant, for_each_variant};
use ckptfs_core::engine::request::SetAttr;
use ckptfs_sys::Errno;
use ckptfs_sys::fault::{self, CallKind, FaultOutcome, FaultPlan};

for_each_variant! { all => each_call_fails_once }

/// The short form tests one call in this many, different ones for each operation and errno;
/// `CKPTFS_LONG=1` tests all.
const STRIDE: u64 = 13;

/// Upper bound of the calls of an operation.
const CALLS_MAX: u64 = 2000;

/// Counts of the cases and their outcomes.
#[derive(Default)]
struct Tally {
    cases: u64,
    refused: u64,
    tolerated: u64,
    remounts: u64,
    half_way: u64,
}

fn each_call_fails_once(v: Variant) {
    if std::env::var_os("CKPTFS_LOG").is_some() {
        let _ = tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
            .with_ansi(false)
            .try_init();
    }
    let image = Image::in_memory(v.fs, 512 << 20);
    let mut run = FaultRun::new(&image, v);
    let only = std::env::var("CKPTFS_OP").ok();
    for (index, op) in ops::all().into_iter().enumerate() {
        let left_out = if only.is_none() {
            !is_long() && !takes(v, index)
        } else {
            only.as_deref() != Some(op.name)
        };
        if left_out {
            continue;
        }
        if let Some(n) = std::env::var("CKPTFS_NTH")
            .ok()
            .and_then(|n| n.parse::<u64>().ok())
        {
            run.operation(&op, |first| FaultPlan::nth(n + first - 1, Errno::EIO));
            continue;
        }
        if is_long() {
            run.anew(&image.dir(&format!("project{index}")));
        }
        // The short form runs two of the four plans.
        let turn = run.turn();
        let others = [
            FaultPlan::nth(1, Errno::ENOSPC),
            FaultPlan::nth(1, Errno::EIO).lasting(),
            FaultPlan::nth(1, Errno::ENOSPC).lasting(),
        ];
        run.operation(&op, |n| FaultPlan::nth(n, Errno::EIO));
        for plan in others
            .iter()
            .enumerate()
            .filter(|(index, _)| is_long() || index == &turn)
            .map(|(_, plan)| *plan)
        {
            run.operation(&op, |n| FaultPlan { nth: n, ..plan });
        }
        if is_long() {
            run.operation(&op, |n| FaultPlan::nth(n, Errno::EMFILE));
            run.operation(&op, |n| FaultPlan::nth(n, Errno::ENOSPC).half());
        }
    }
    let Tally {
        cases,
        refused,
        tolerated,
        remounts,
        half_way,
    } = run.tally;
    eprintln!(
        "{v:?}: {cases} cases, {refused} failed ({half_way} of them after a part), {tolerated} succeeded despite a fault, {remounts} remounts"
    );
    assert!(
        refused > 10 || only.is_some(),
        "no call failed: faults are not injected"
    );
}

/// The short form divides the operations: XFS and btrfs run each of them in one of the two I/O
/// paths, filesystems without reflink one third each.
fn takes(v: Variant, index: usize) -> bool {
    match (v.fs, v.io) {
        (Fs::Xfs, Io::Daemon) | (Fs::Btrfs, Io::Passthrough) => index.is_multiple_of(2),
        (Fs::Xfs, Io::Passthrough) | (Fs::Btrfs, Io::Daemon) => !index.is_multiple_of(2),
        (Fs::Ext4, _) => index.is_multiple_of(3),
        (Fs::Tmpfs, _) => index % 3 == 1,
    }
}

struct FaultRun {
    served: ServedDir,
    passthrough: bool,
    number: u64,
    plans: u64,
    turns: usize,
    remount_every: u64,
    tally: Tally,
}

impl FaultRun {
    fn new(image: &Image, v: Variant) -> FaultRun {
        let passthrough = v.io == Io::Passthrough;
        let served = ServedDir::new(&image.dir("project"), passthrough);
        let remount_every = if is_long() { 1 } else { 8 };
        assert_eq!(image.fs() == Fs::Xfs, v.fs == Fs::Xfs);
        FaultRun {
            served,
            passthrough,
            number: 0,
            plans: 0,
            turns: 0,
            remount_every,
            tally: Tally::default(),
        }
    }

    /// Continues in another directory: every remount would read a journal of a thousand cases.
    fn anew(&mut self, dir: &Path) {
        let done = std::mem::replace(&mut self.served, ServedDir::new(dir, self.passthrough));
        let dir = done.dir().to_owned();
        drop(done);
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// Returns 0, 1, 2, 0, ...
    fn turn(&mut self) -> usize {
        self.turns += 1;
        self.turns % 3
    }

    /// Runs an operation with its first, second, third ... call failing, until none fails.
    fn operation(&mut self, op: &FaultOp, plan: impl Fn(u64) -> FaultPlan) {
        let reference = self.reference(op);
        self.plans += 1;
        let stride = if is_long() { 1 } else { STRIDE };
        for n in (1 + self.plans % stride..CALLS_MAX).step_by(stride as usize) {
            let (seen, done) = self.case(op, plan(n), &reference);
            if seen.failed == 0 {
                assert!(
                    done.is_ok(),
                    "{}: {done:?} although nothing failed",
                    op.name
                );
                return;
            }
        }
        panic!("{} makes an unlimited number of calls", op.name);
    }

    /// Returns the result of the operation without a fault.
    fn reference(&mut self, op: &FaultOp) -> Tree {
        let (dir, id, _) = self.prepare(op);
        (op.run)(&self.served, &dir, id).unwrap_or_else(|why| panic!("{}: {why:?}", op.name));
        let after = self.served.plain(&dir);
        self.clear(&dir);
        without_times(&after)
    }

    /// Creates a directory with a checkpoint and the setup of the operation.
    fn prepare(&mut self, op: &FaultOp) -> (String, u64, Tree) {
        self.number += 1;
        let dir = format!("d{}", self.number);
        ops::fill(&self.served, &dir).unwrap();
        let id = self.served.checkpoint().unwrap();
        let kept = self.served.plain(&dir);
        (op.before)(&self.served, &dir).unwrap();
        self.served.forget();
        (dir, id, kept)
    }

    fn case(
        &mut self,
        op: &FaultOp,
        plan: FaultPlan,
        reference: &Tree,
    ) -> (FaultOutcome, FaultOpResult) {
        let (dir, id, kept) = self.prepare(op);
        let before = self.served.plain(&dir);
        fault::arm_thread(plan);
        let done = (op.run)(&self.served, &dir, id);
        let seen = fault::disarm_thread();
        let what = format!("{} in {dir}: {plan:?}, {seen:?}, {done:?}", op.name);
        self.tally.cases += 1;
        self.kept(&what, id, &dir, &kept);
        match &done {
            Ok(()) => {
                self.tally.tolerated += u64::from(seen.failed > 0);
                self.mend(&what);
            }
            Err(why) => {
                self.tally.refused += 1;
                check_errno(&what, why, plan);
                if op.steps {
                    self.undo(&what, id, &dir, &before);
                } else {
                    let now = self.served.plain(&dir);
                    // The change was made, but the stat after it failed: the only error that comes
                    // too late.
                    let told_late =
                        seen.first == Some(CallKind::Stat) && without_times(&now) == *reference;
                    // A write to the live file stopped half-way; write(2) reports only that.
                    let half = plan.half && seen.first == Some(CallKind::Write);
                    let differs = differing(&now, &before);
                    if plan.lasting && !differs.is_empty() {
                        return (
                            seen,
                            self.half_way(&what, (id, &dir), (&kept, &before, reference), done),
                        );
                    }
                    let differs = if told_late || half {
                        Vec::new()
                    } else {
                        differs
                    };
                    assert_eq!(
                        differs,
                        Vec::<String>::new(),
                        "{what}: the live tree differs"
                    );
                    if half {
                        self.cut_back(&dir, &before);
                    }
                }
                self.again(&what, op, &dir, id);
            }
        }
        let after = self.served.plain(&dir);
        assert_eq!(
            differing(&without_times(&after), reference),
            Vec::<String>::new(),
            "{what}: the result is not the expected one"
        );
        self.kept(&what, id, &dir, &kept);
        self.dirty_is_exact(&what, &dir);
        self.remounted(&what, (id, &dir), &kept, &after);
        self.clear(&dir);
        (seen, done)
    }

    /// Checks in some of the cases that the result survives a remount.
    fn remounted(&mut self, what: &str, (id, dir): (u64, &str), kept: &Tree, after: &Tree) {
        if self.tally.cases.is_multiple_of(self.remount_every) {
            self.tally.remounts += 1;
            self.served.remount();
            self.kept(what, id, dir, kept);
            assert_eq!(
                differing(&self.served.plain(dir), after),
                Vec::<String>::new(),
                "{what}: after a remount, the live tree differs"
            );
            self.dirty_is_exact(what, dir);
        }
    }

    /// Operation and rollback failed: the live tree is in an intermediate state. Nothing is lost,
    /// and the history agrees with the tree.
    fn half_way(
        &mut self,
        what: &str,
        (id, dir): (u64, &str),
        (kept, before, reference): (&Tree, &Tree, &Tree),
        done: FaultOpResult,
    ) -> FaultOpResult {
        self.tally.half_way += 1;
        self.served.forget();
        self.mend(what);
        let now = self.served.plain(dir);
        // A remount may have completed the operation.
        for (path, seen) in before.iter().filter(|_| without_times(&now) != *reference) {
            assert!(
                now.values().any(|other| other.content == seen.content),
                "{what}: the content of {path} is lost"
            );
        }
        for _ in 0..2 {
            self.kept(what, id, dir, kept);
            self.dirty_is_exact(what, dir);
            assert_eq!(
                differing(&self.served.plain(dir), &now),
                Vec::<String>::new(),
                "{what}: after a remount, the live tree differs"
            );
            self.served.remount();
        }
        self.clear(dir);
        done
    }

    #[track_caller]
    fn kept(&self, what: &str, id: u64, dir: &str, kept: &Tree) {
        let view = self
            .served
            .view(id, dir)
            .unwrap_or_else(|errno| panic!("{what}: checkpoint {id} cannot be read: {errno:?}"));
        assert_eq!(
            differing(&view, kept),
            Vec::<String>::new(),
            "{what}: checkpoint {id} has changed"
        );
    }

    /// Truncates files to which a partial append was made, because the retry appends everything.
    fn cut_back(&self, dir: &str, before: &Tree) {
        let now = self.served.plain(dir);
        for (path, seen) in before.iter().filter(|(path, seen)| {
            now.get(*path)
                .is_some_and(|now| now.content.len() > seen.content.len())
        }) {
            let size = SetAttr {
                size: Some(seen.content.len() as u64),
                ..SetAttr::default()
            };
            self.served.set(&format!("{dir}/{path}"), size).unwrap();
        }
    }

    /// Repeats the operation without the fault, which must succeed. A failed journal refuses
    /// records until the next mount, and reports this.
    fn again(&mut self, what: &str, op: &FaultOp, dir: &str, id: u64) {
        self.served.forget();
        self.mend(what);
        if let Err(why) = (op.run)(&self.served, dir, id) {
            panic!("{what}: the same without a fault: {why:?}");
        }
    }

    /// A failed journal or index is reported by `status`; the next mount repairs it.
    #[track_caller]
    fn mend(&mut self, what: &str) {
        let mut warnings = self.served.status().expect("status works").warnings;
        // A refused change is not a persistent problem.
        warnings.retain(|warning| !warning.contains("the filesystem was full"));
        if warnings.is_empty() {
            return;
        }
        let known = |warning: &String| {
            warning.contains("cannot be written") || warning.contains("the index failed")
        };
        assert!(warnings.iter().all(known), "{what}: {warnings:?}");
        self.tally.remounts += 1;
        self.served.remount();
        assert_eq!(
            self.served.status().expect("status works").warnings,
            Vec::<String>::new(),
            "{what}"
        );
    }

    /// Restores the guard of a failed operation of many steps and checks the tree.
    fn undo(&mut self, what: &str, id: u64, dir: &str, before: &Tree) {
        let guard = self
            .served
            .checkpoints()
            .into_iter()
            .max()
            .filter(|guard| *guard > id);
        let Some(guard) = guard else {
            assert_eq!(
                differing(&self.served.plain(dir), before),
                Vec::<String>::new(),
                "{what}: there is no guard, and the live tree differs"
            );
            return;
        };
        self.kept(what, guard, dir, before);
        self.mend(what);
        self.served
            .restore(guard, dir)
            .unwrap_or_else(|error| panic!("{what}: the guard cannot be restored: {error}"));
        let now = self.served.plain(dir);
        assert_eq!(
            differing(&now, before),
            Vec::<String>::new(),
            "{what}: the guard did not restore everything"
        );
    }

    #[track_caller]
    fn dirty_is_exact(&self, what: &str, dir: &str) {
        let latest = self.served.latest();
        let then = self.served.view(latest, dir).unwrap_or_else(|errno| {
            panic!("{what}: checkpoint {latest} cannot be read: {errno:?}")
        });
        let now = self.served.plain(dir);
        let (dirty, renames) = self.served.dirty(dir);
        let mut expected = differing(&then, &now);
        for (from, to) in renames {
            // Entries of a renamed directory are covered by its rename.
            let below = |path: &String, dir: &str| {
                path.strip_prefix(dir)
                    .and_then(|rest| rest.strip_prefix('/'))
                    .map(str::to_owned)
            };
            let went = |rest: String| {
                then.get(&format!("{from}/{rest}")) == now.get(&format!("{to}/{rest}"))
            };
            expected.retain(|path| {
                !below(path, &from)
                    .or_else(|| below(path, &to))
                    .is_some_and(went)
            });
        }
        assert_eq!(dirty, expected, "{what}: dirty since checkpoint {latest}");
    }

    /// Removes the directory and all checkpoints, for the next case.
    fn clear(&mut self, dir: &str) {
        self.served.forget();
        let mut paths: Vec<_> = self.served.plain(dir).into_iter().collect();
        paths.push((String::new(), super::node_snapshot::NodeSnapshot::dir()));
        paths.sort_by(|a, b| b.0.cmp(&a.0));
        for (path, seen) in paths {
            let path = format!("{dir}/{path}");
            let path = path.trim_end_matches('/');
            let removed = if seen.kind == ckptfs_sys::Kind::Dir {
                self.served.rmdir(path)
            } else {
                self.served.unlink(path)
            };
            removed.unwrap_or_else(|errno| panic!("{path}: {errno:?}"));
        }
        self.served.forget();
        for id in self.served.checkpoints() {
            self.served.free(id).unwrap();
        }
    }
}

/// Checks that the caller receives the injected error, or a general one.
fn check_errno(what: &str, why: &OpError, plan: FaultPlan) {
    match why {
        OpError::Errno(errno) => assert!(
            errno.0 == plan.errno || *errno == Errno::EIO || *errno == Errno::ESTALE,
            "{what}"
        ),
        OpError::Words(error) => assert!(
            ["io", "no-space"].contains(&error.code.to_string().as_str()),
            "{what}"
        ),
    }
}
