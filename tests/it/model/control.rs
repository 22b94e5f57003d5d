//! Operations specific to a ckptfs mount.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use super::calls::open;
use super::checks::check_content;
use super::frees::FreeMethod;
use super::observe::{absolute, compare, observe};
use super::ops::{Op, Verb, bytes};
use super::tree::Tree;
use super::world::{ModelCheckpoint, ModelRun, VIEWS, ViewFile};
use ckptfs_api::{CheckpointOptions, Client, Compare, GetStatus, Retention, StateName, VerbError};

/// Longer than the delay after which the daemon indexes a closed epoch.
const IDLE: Duration = Duration::from_millis(400);
/// Time after which an unused file that is or may be mapped counts as unchanged.
const SETTLED: Duration = Duration::from_millis(2300);

/// Reports whether the changes of an absence become an epoch.
pub(super) fn absences_are_epochs() -> bool {
    std::env::var("CKPTFS_TEST_ABSENCE").is_ok_and(|absence| absence == "on")
}

pub(super) fn said(what: &str, error: &VerbError) -> String {
    format!("{what} failed: {}: {}", error.code, error.message)
}

impl ModelRun {
    pub fn client(&mut self) -> Result<&mut Client, String> {
        let root = self.root.clone();
        let mounted = self.mounted.as_mut().ok_or("there is no mount")?;
        if mounted.client.is_none() {
            let store = File::open(root.join(".ckptfs"))
                .map_err(|error| format!("cannot open the store: {error}"))?;
            mounted.client = Some(
                Client::connect(&store)
                    .map_err(|error| format!("cannot reach the daemon: {error}"))?,
            );
        }
        mounted
            .client
            .as_mut()
            .ok_or_else(|| "there is no mount".to_owned())
    }

    pub fn control_op(&mut self, op: &Op) -> Result<(), String> {
        match op.verb {
            Verb::Checkpoint | Verb::SyncedCheckpoint => {
                self.checkpoint(op.verb == Verb::SyncedCheckpoint)
            }
            Verb::NamedCheckpoint => {
                self.tags += 1;
                let tag = format!("t{}", self.tags);
                let made = rustix::fs::mkdir(
                    self.root.join(".snapshots").join(&tag),
                    Mode::from_raw_mode(0o755),
                );
                made.map_err(|errno| format!("mkdir .snapshots/{tag}: {errno}"))?;
                self.keep_named(tag)
            }
            Verb::LimitedCheckpoint => self.limited_checkpoint(),
            Verb::Free => self.free(op),
            Verb::Verify => self.verify(op),
            Verb::Cut => self.power_cut(),
            Verb::Delete => self.delete(op),
            Verb::Restore => self.restore(op),
            Verb::DryRestore => self.dry_restore(op),
            Verb::Idle => {
                // Gives the daemon time for maintenance; no result depends on it.
                match op.path(0) {
                    "settled" => std::thread::sleep(SETTLED),
                    "unmarked" => self.await_unmarked()?,
                    _ => std::thread::sleep(IDLE),
                }
                Ok(())
            }
            Verb::RestorePaths => self.restore_paths(op),
            Verb::KillWorker => self.replace_worker(),
            Verb::Remount | Verb::Kill => self.mount_again(
                op.verb == Verb::Kill,
                op.number(0).is_multiple_of(2),
                op.number(1).is_multiple_of(4),
            ),
            Verb::ListSnapshots => self.list_snapshots(),
            Verb::CheckViews => self.check_views(),
            Verb::CheckStatus => self.check_status(),
            _ => self.check_diff(op),
        }
    }

    fn checkpoint(&mut self, sync: bool) -> Result<(), String> {
        let options = CheckpointOptions {
            sync,
            ..CheckpointOptions::default()
        };
        let made = self
            .client()?
            .ask(options)
            .map_err(|error| said("checkpoint", &error))?;
        if !made.atomic {
            return Err(
                "no process writes, but the checkpoint is reported as not atomic".to_owned(),
            );
        }
        self.keep(made.id.0, true)?;
        // All earlier checkpoints are then durable.
        self.snaps.iter_mut().for_each(|snap| snap.synced |= sync);
        Ok(())
    }

    /// Records the expected content of a new checkpoint.
    pub(super) fn keep(&mut self, id: u64, asked: bool) -> Result<(), String> {
        if self.snaps.last().is_some_and(|last| last.id >= id) {
            return Err(format!("the new checkpoint has the number {id}"));
        }
        let loose = self.loose();
        for id in &loose {
            // Its time may change at any moment, before or after the checkpoint.
            self.model.touch(*id);
        }
        let tree = self.model.tree.reachable();
        for id in &loose {
            self.model.touch(*id);
        }
        self.counts.checkpoints += 1;
        self.snaps.push(ModelCheckpoint {
            id,
            asked,
            auto: false,
            tree,
            tag: None,
            inos: HashMap::new(),
            synced: false,
            made: Instant::now(),
        });
        Ok(())
    }

    /// Checks that the changes of an absence (`CKPTFS_TEST_ABSENCE=on`) lie between a checkpoint of
    /// the tree at the unmount and one of the tree at the mount.
    pub fn take_in_absence(&mut self, left: Tree) -> Result<(), String> {
        let told = self
            .client()?
            .ask(GetStatus)
            .map_err(|error| said("status", &error))?
            .absence;
        let Some(told) = told else {
            // A tree without checkpoints has no baseline.
            let expects = absences_are_epochs() && !self.snaps.is_empty();
            let what = "changes made while nothing was mounted are not reported";
            return if expects {
                self.check_changes(what, &[], &left, &self.model.tree.reachable())
            } else {
                Ok(())
            };
        };
        if self
            .snaps
            .last()
            .is_none_or(|last| last.id != told.before.0)
        {
            self.keep(told.before.0, false)?;
            let made = self.snaps.last_mut().expect("it was added just now");
            (made.tree, made.auto) = (left.clone(), true);
        }
        self.keep(told.after.0, false)?;
        self.snaps.last_mut().expect("it was added just now").auto = true;
        let (from, to) = (
            StateName(told.before.to_string()),
            StateName(told.after.to_string()),
        );
        let changes = self
            .client()?
            .ask(Compare {
                from,
                to: Some(to),
                sizes: false,
            })
            .map_err(|error| said("diff", &error))?;
        if changes.len() as u64 != told.paths {
            return Err(format!(
                "{} changes while nothing was mounted, but {} are reported",
                changes.len(),
                told.paths
            ));
        }
        self.check_changes(
            "the changes while nothing was mounted",
            &changes,
            &left,
            &self.model.tree.reachable(),
        )
    }

    /// Returns the newest checkpoint requested by a user, or else the newest made by the daemon.
    pub(super) fn latest(&self) -> Option<u64> {
        let newest = |wanted: fn(&&ModelCheckpoint) -> bool| {
            self.snaps.iter().rfind(wanted).map(|snap| snap.id)
        };
        newest(|snap| snap.asked).or_else(|| newest(|snap| snap.auto))
    }

    /// Returns the index of a checkpoint; `number` wraps around.
    pub(super) fn pick(&self, number: u64) -> Option<usize> {
        (number as usize).checked_rem(self.snaps.len())
    }

    /// Checks that `.snapshots` lists the ids, the tags, and `latest`.
    pub(super) fn list_snapshots(&mut self) -> Result<(), String> {
        let dir = self.root.join(".snapshots");
        let cannot = |error: std::io::Error| format!("cannot list .snapshots: {error}");
        let entries = std::fs::read_dir(&dir)
            .map_err(cannot)?
            .collect::<Result<Vec<_>, _>>()
            .map_err(cannot)?;
        let names: BTreeSet<String> = entries
            .iter()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        let ids = self.snaps.iter().map(|snap| snap.id.to_string());
        let mut expected: BTreeSet<String> = ids
            .chain(self.snaps.iter().filter_map(|snap| snap.tag.clone()))
            .collect();
        if let Some(last) = self.latest() {
            expected.insert("latest".to_owned());
            let target = std::fs::read_link(dir.join("latest")).map_err(cannot)?;
            if target.as_os_str() != last.to_string().as_str() {
                return Err(format!(
                    "latest points to {}, the newest is {}",
                    target.display(),
                    last
                ));
            }
        }
        let automatic = |name: &String| {
            self.has_marks()
                && !expected.contains(name)
                && (name == "latest" || name.parse::<u64>().is_ok())
        };
        let names: BTreeSet<String> = names.into_iter().filter(|name| !automatic(name)).collect();
        if names == expected {
            Ok(())
        } else {
            Err(format!(".snapshots lists {names:?}, expected {expected:?}"))
        }
    }

    pub(super) fn delete(&mut self, op: &Op) -> Result<(), String> {
        let Some(index) = self.pick(op.number(0)) else {
            return Ok(());
        };
        let ways = [
            FreeMethod::Now,
            FreeMethod::Rmdir,
            FreeMethod::Hide,
            FreeMethod::Revive,
        ];
        let way = ways[op.number(1) as usize % ways.len()];
        self.delete_at(way, index)?;
        if way != FreeMethod::Revive && op.number(0).is_multiple_of(2) {
            // Frees only the deleted checkpoints.
            self.gc(Retention::default())?;
        }
        Ok(())
    }

    /// Kills only the worker; its successor takes over all open files.
    pub(super) fn replace_worker(&mut self) -> Result<(), String> {
        let Some(mounted) = &mut self.mounted else {
            return Ok(());
        };
        mounted.client = None;
        mounted.mount.replace_worker();
        self.counts.takeovers += 1;
        self.handles
            .iter()
            .flatten()
            .try_for_each(|handle| self.check_handle(handle))
    }

    /// Unmounts or kills, and mounts again. In a passthrough mount mappings survive a kill, because
    /// the kernel does their I/O.
    pub(super) fn mount_again(
        &mut self,
        kill: bool,
        open: bool,
        rebuild: bool,
    ) -> Result<(), String> {
        let Some(mounted) = &self.mounted else {
            return Ok(());
        };
        match (kill && open, mounted.passthrough) {
            (false, _) => self.close_all(),
            (true, true) => self.unmap_served(),
            (true, false) => self.flush_maps(),
        }
        let Some(mounted) = &mut self.mounted else {
            return Ok(());
        };
        mounted.client = None;
        if kill {
            self.counts.kills += 1;
            mounted.mount.kill();
            if !mounted.passthrough {
                self.unmap_all();
            }
            self.close_handles();
        } else {
            self.counts.remounts += 1;
            mounted.mount.umount();
            if rebuild {
                // The index is only a cache.
                std::fs::remove_dir_all(self.root.join(".ckptfs/index"))
                    .map_err(|error| format!("cannot remove the index: {error}"))?;
            }
            let sight = observe(&self.root)?;
            compare(
                "the directory, unmounted",
                &self.model.tree,
                &sight,
                &mut self.times,
                &BTreeSet::new(),
            )?;
        }
        if let Some(mounted) = &mut self.mounted {
            mounted.mount.remount();
        }
        Ok(())
    }

    pub fn view_op(&mut self, op: &Op) -> Result<(), String> {
        let slot = op.number(0) as usize % VIEWS;
        if op.verb == Verb::OpenView {
            let Some(index) = self.pick(op.number(1)) else {
                return Ok(());
            };
            let (snap, path) = (&self.snaps[index], bytes(op.path(0)));
            let Some(content) = snap
                .tree
                .lookup(&path)
                .ok()
                .and_then(|id| snap.tree.node(id).content())
                .cloned()
            else {
                return Ok(());
            };
            let at = absolute(
                &self.root.join(".snapshots").join(snap.id.to_string()),
                &path,
            );
            let file = open(&at, OFlags::RDONLY, Mode::empty())
                .map_err(|errno| format!("cannot open {}: {errno}", at.display()))?;
            self.views[slot] = Some(ViewFile { file, content });
            return Ok(());
        }
        let Some(view) = &self.views[slot] else {
            return Ok(());
        };
        check_content("an open file of a view", &view.file, &view.content)
    }
}
