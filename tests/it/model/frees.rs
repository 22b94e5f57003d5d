//! All ways in which a checkpoint is freed, and `verify`.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::control::said;
use super::ops::Op;
use super::world::ModelRun;
use ckptfs_api::{
    CheckpointOptions, Client, Delete, GcOptions, GcReport, Retention, ShowCheckpoint, StateName,
    UndoOptions, UndoWalk, VerifyOptions,
};

/// How a checkpoint is freed: `free WAY BACK GC`. BACK counts from the newest; a positive GC runs
/// gc afterwards. For `keep-last` and `max-size`, BACK is the argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeMethod {
    /// `delete --now`.
    Now,
    /// rmdir(2) in `.snapshots`.
    Rmdir,
    /// `delete`.
    Hide,
    /// `delete` and `undo`: the checkpoint returns.
    Revive,
    /// A new checkpoint and `undo`.
    Undo,
    /// `gc` alone, which frees hidden checkpoints.
    Gc,
    /// `gc --keep-last`.
    KeepLast,
    /// `gc --max-size`.
    MaxSize,
}

const WAYS: &[(&str, FreeMethod)] = &[
    ("now", FreeMethod::Now),
    ("rmdir", FreeMethod::Rmdir),
    ("hide", FreeMethod::Hide),
    ("revive", FreeMethod::Revive),
    ("undo", FreeMethod::Undo),
    ("gc", FreeMethod::Gc),
    ("keep-last", FreeMethod::KeepLast),
    ("max-size", FreeMethod::MaxSize),
];

impl FreeMethod {
    fn word(self) -> &'static str {
        WAYS.iter()
            .find(|(_, way)| *way == self)
            .map_or("", |(word, _)| word)
    }
}

fn undo_one() -> UndoOptions {
    UndoOptions {
        walk: UndoWalk::Undo(1),
        skip: false,
        force: true,
        dry_run: false,
    }
}

impl ModelRun {
    pub(super) fn free(&mut self, op: &Op) -> Result<(), String> {
        let way = WAYS
            .iter()
            .find(|(word, _)| *word == op.path(0))
            .ok_or_else(|| format!("unknown way to free: {}", op.path(0)))?
            .1;
        // An open file of a freed view may become unreadable.
        self.views = Default::default();
        match way {
            FreeMethod::Undo => {
                let made = self
                    .client()?
                    .ask(CheckpointOptions::default())
                    .map_err(|error| said("checkpoint", &error))?;
                self.keep(made.id.0, true)?;
                self.client()?
                    .ask(undo_one())
                    .map_err(|error| said("undo", &error))?;
                self.snaps.pop();
                self.counts.free(way.word());
            }
            FreeMethod::Gc => self.gc(Retention::default())?,
            FreeMethod::KeepLast => {
                let keep_last = Some(op.number(0) + 1);
                return self.gc(Retention {
                    keep_last,
                    ..Retention::default()
                });
            }
            FreeMethod::MaxSize => {
                let max_bytes = Some(op.number(0) << 12);
                return self.gc(Retention {
                    max_bytes,
                    ..Retention::default()
                });
            }
            FreeMethod::Now | FreeMethod::Rmdir | FreeMethod::Hide | FreeMethod::Revive => {
                self.delete_from_end(way, op.number(0))?;
            }
        }
        if op.number(1) > 0 {
            self.gc(Retention::default())?;
        }
        Ok(())
    }

    /// Deletes a checkpoint counted from the newest, which may be a mark.
    fn delete_from_end(&mut self, way: FreeMethod, back: u64) -> Result<(), String> {
        let newest_mark = self.marks.last().map(|mark| mark.id);
        let newest = self.snaps.last().map(|snap| snap.id);
        if back == 0 && newest_mark > newest && way != FreeMethod::Revive {
            let mark = self.marks.pop().expect("it exists");
            let state = StateName(mark.id.to_string());
            let now = way == FreeMethod::Now;
            // The mark may be hidden, or was freed just now.
            let done = self.client()?.ask(Delete { state, now });
            if done.is_ok() {
                self.counts.free("mark");
            }
            return Ok(());
        }
        let Some(last) = self.snaps.len().checked_sub(1) else {
            return Ok(());
        };
        self.delete_at(way, last - (back as usize).min(last))
    }

    /// Deletes a checkpoint made by an operation.
    pub(super) fn delete_at(&mut self, way: FreeMethod, index: usize) -> Result<(), String> {
        self.views = Default::default();
        let snap = self.snaps.remove(index);
        let (id, state) = (snap.id, StateName(snap.id.to_string()));
        let snapshots = self.root.join(".snapshots");
        match way {
            FreeMethod::Now => drop(
                self.client()?
                    .ask(Delete { state, now: true })
                    .map_err(|error| said("delete --now", &error))?,
            ),
            FreeMethod::Rmdir => {
                let name = snap.tag.clone().unwrap_or_else(|| id.to_string());
                rustix::fs::rmdir(snapshots.join(&name))
                    .map_err(|errno| format!("rmdir .snapshots/{name}: {errno}"))?;
            }
            _ => drop(
                self.client()?
                    .ask(Delete { state, now: false })
                    .map_err(|error| said("delete", &error))?,
            ),
        }
        if way == FreeMethod::Revive {
            self.client()?
                .ask(undo_one())
                .map_err(|error| said("undo", &error))?;
            // Checked with the others.
            self.snaps.insert(index, snap);
            return Ok(());
        }
        let guard = !snap.asked && !snap.auto;
        self.counts.free(if guard { "guard" } else { way.word() });
        match std::fs::symlink_metadata(snapshots.join(id.to_string())) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => Err(format!("the view of a deleted checkpoint: {other:?}")),
        }
    }

    /// Runs gc, removes the reported checkpoints from the model, and checks that the newest
    /// requested one was kept.
    pub(super) fn gc(&mut self, retention: Retention) -> Result<(), String> {
        self.views = Default::default();
        let report = gc(self.client()?, retention.clone())?;
        let newest = self
            .snaps
            .iter()
            .rfind(|snap| snap.asked || snap.auto)
            .map(|snap| snap.id);
        for gone in &report.gone {
            let id = gone.id.0;
            if Some(id) == newest {
                return Err(format!("gc has freed {id}, the newest"));
            }
            let before = self.snaps.len();
            self.snaps.retain(|snap| snap.id != id);
            self.marks.retain(|mark| mark.id != id);
            let way = match (&retention, before > self.snaps.len()) {
                (
                    Retention {
                        keep_last: Some(_), ..
                    },
                    true,
                ) => FreeMethod::KeepLast.word(),
                (_, true) => FreeMethod::MaxSize.word(),
                _ => FreeMethod::Gc.word(),
            };
            self.counts.free(way);
        }
        Ok(())
    }

    /// Makes a checkpoint by mkdir(2) as a caller subject to `snapdir.per-user`: one checkpoint and
    /// one deleted one are kept, an older deleted one is freed.
    pub(super) fn limited_checkpoint(&mut self) -> Result<(), String> {
        self.tags += 1;
        let tag = format!("t{}", self.tags);
        let path = self.root.join(".snapshots").join(&tag);
        let made = std::thread::scope(|scope| {
            let limited = || {
                let mut ours = rustix::thread::capabilities(None)?;
                ours.effective -= CapabilitySet::SYS_ADMIN;
                ours.permitted -= CapabilitySet::SYS_ADMIN;
                rustix::thread::set_capabilities(None, ours)?;
                rustix::fs::mkdir(&path, Mode::from_raw_mode(0o755))
            };
            scope.spawn(limited).join().expect("no panic")
        });
        match made {
            Err(Errno::DQUOT) => return Ok(()),
            made => made.map_err(|errno| format!("mkdir .snapshots/{tag}: {errno}"))?,
        }
        self.counts.free("quota");
        self.keep_named(tag)
    }

    /// Records a checkpoint made by mkdir(2).
    pub(super) fn keep_named(&mut self, tag: String) -> Result<(), String> {
        let shown = self
            .client()?
            .ask(ShowCheckpoint {
                state: StateName(tag.clone()),
            })
            .map_err(|error| said("show", &error))?;
        self.keep(shown.id.0, true)?;
        self.snaps.last_mut().expect("it was added just now").tag = Some(tag);
        Ok(())
    }

    /// `verify DEEP GC`: checks that verify has no findings, also while gc runs.
    pub(super) fn verify(&mut self, op: &Op) -> Result<(), String> {
        let deep = op.number(0).is_multiple_of(2);
        self.counts.verified += 1;
        if op.number(1).is_multiple_of(2) {
            return verify(self.client()?, deep);
        }
        let store = File::open(self.root.join(".ckptfs"))
            .map_err(|error| format!("cannot open the store: {error}"))?;
        let mut other =
            Client::connect(&store).map_err(|error| format!("cannot reach the daemon: {error}"))?;
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let verifying = scope.spawn(|| {
                loop {
                    verify(&mut other, deep)?;
                    if ended.load(Ordering::SeqCst) {
                        return Ok(());
                    }
                }
            });
            let freed = self.gc(Retention::default());
            ended.store(true, Ordering::SeqCst);
            verifying
                .join()
                .unwrap_or_else(|_| Err("verify panics".to_owned()))
                .and(freed)
        })
    }
}

fn gc(client: &mut Client, retention: Retention) -> Result<GcReport, String> {
    let mut options = GcOptions {
        retention,
        ..GcOptions::default()
    };
    loop {
        let report = client
            .ask(options.clone())
            .map_err(|error| said("gc", &error))?;
        if report.finished {
            return Ok(report);
        }
        options.run = Some(report.run);
    }
}

/// Returns the findings of verify, with the checkpoints they affect.
pub(super) fn findings(client: &mut Client, deep: bool) -> Result<Vec<(String, Vec<u64>)>, String> {
    let mut options = VerifyOptions {
        deep,
        ..VerifyOptions::default()
    };
    let mut found = Vec::new();
    loop {
        let part = client
            .ask(options.clone())
            .map_err(|error| said("verify", &error))?;
        found.extend(part.findings.iter().map(|damage| {
            let told = format!("{:?} {} {}", damage.kind, damage.on, damage.detail);
            (told, damage.checkpoints.iter().map(|id| id.0).collect())
        }));
        if part.finished {
            return Ok(found);
        }
        options.run = Some(part.run);
    }
}

fn verify(client: &mut Client, deep: bool) -> Result<(), String> {
    let found = findings(client, deep)?;
    if found.is_empty() {
        return Ok(());
    }
    let told: Vec<String> = found
        .into_iter()
        .map(|(told, by)| format!("{told} {by:?}"))
        .collect();
    Err(format!("verify finds {}", told.join("; ")))
}
