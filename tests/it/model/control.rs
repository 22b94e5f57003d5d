//! The operations that only a ckptfs mount has, and what is checked.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::Duration;

use ckptfs::Client;
use ckptfs::api::{
    Change, CheckpointOptions, Compare, Delete, GcOptions, GetStatus, Query, RestoreOptions,
    Restored, ShowCheckpoint, StateName, Times, TreePath, UndoOptions, UndoWalk, VerbError,
};
use rustix::fs::{Mode, OFlags};

use super::diffs;
use super::observe::{absolute, compare, observe, shown};
use super::ops::{Op, Verb, bytes};
use super::tree::{Body, Id, Node, Tree};
use super::world::{Handle, Snap, VIEWS, ViewFile, World, open};

/// Longer than the daemon waits until it moves a closed epoch into the index.
const IDLE: Duration = Duration::from_millis(400);

/// The tripwire is on (`CKPTFS_TEST_TRIPWIRE=2/100ms`): there are checkpoints that the model has
/// not made. Nothing that it has made may be other for it.
fn marks_come_and_go() -> bool {
    std::env::var("CKPTFS_TEST_TRIPWIRE").is_ok_and(|tripwire| tripwire != "off")
}

/// What is changed while nothing is mounted is an epoch of its own.
fn absences_are_epochs() -> bool {
    std::env::var("CKPTFS_TEST_ABSENCE").is_ok_and(|absence| absence == "on")
}

fn said(what: &str, error: &VerbError) -> String {
    format!("{what} failed: {}: {}", error.code, error.message)
}

impl World {
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
            Verb::Checkpoint => {
                let made = self
                    .client()?
                    .ask(CheckpointOptions::default())
                    .map_err(|error| said("checkpoint", &error))?;
                if !made.atomic {
                    return Err(
                        "nobody writes, and the checkpoint says that it is not atomic".to_owned(),
                    );
                }
                self.keep(made.id.0, true)
            }
            Verb::NamedCheckpoint => {
                self.tags += 1;
                let tag = format!("t{}", self.tags);
                let made = rustix::fs::mkdir(
                    self.root.join(".snapshots").join(&tag),
                    Mode::from_raw_mode(0o755),
                );
                made.map_err(|errno| format!("mkdir .snapshots/{tag}: {errno}"))?;
                let shown = self
                    .client()?
                    .ask(ShowCheckpoint {
                        state: StateName(tag.clone()),
                    })
                    .map_err(|error| said("show", &error))?;
                self.keep(shown.id.0, true)?;
                self.snaps.last_mut().expect("it was kept").tag = Some(tag);
                Ok(())
            }
            Verb::Delete => self.delete(op),
            Verb::Restore => self.restore(op),
            Verb::DryRestore => self.dry_restore(op),
            Verb::Idle => {
                // The daemon's own upkeep gets a chance; nothing depends on whether it took it.
                std::thread::sleep(IDLE);
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

    /// A checkpoint was made: remembers what it must show.
    fn keep(&mut self, id: u64, asked: bool) -> Result<(), String> {
        if self.snaps.last().is_some_and(|last| last.id >= id) {
            return Err(format!("the new checkpoint has the number {id}"));
        }
        let loose = self.loose();
        for id in &loose {
            // Its time may move at any moment, before the checkpoint or after.
            self.model.touch(*id);
        }
        let tree = self.model.tree.reachable();
        for id in &loose {
            self.model.touch(*id);
        }
        self.snaps.push(Snap {
            id,
            asked,
            auto: false,
            tree,
            tag: None,
            inos: HashMap::new(),
        });
        Ok(())
    }

    /// What was changed while nothing was mounted (`CKPTFS_TEST_ABSENCE=on`) is between a
    /// checkpoint of the tree as it was left and one of the tree as it is.
    pub fn take_in_absence(&mut self, left: Tree) -> Result<(), String> {
        let told = self
            .client()?
            .ask(GetStatus)
            .map_err(|error| said("status", &error))?
            .absence;
        let Some(told) = told else {
            // Of a tree without a checkpoint nothing is written down.
            let expects = absences_are_epochs() && !self.snaps.is_empty();
            let what = "nothing is said of what was changed while nothing was mounted";
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
            let made = self.snaps.last_mut().expect("it was kept");
            (made.tree, made.auto) = (left.clone(), true);
        }
        self.keep(told.after.0, false)?;
        self.snaps.last_mut().expect("it was kept").auto = true;
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
                "{} changes while nothing was mounted, but {} are told",
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

    /// The newest checkpoint that was asked for, or that the daemon made by itself if none was.
    fn latest(&self) -> Option<u64> {
        let newest =
            |wanted: fn(&&Snap) -> bool| self.snaps.iter().rfind(wanted).map(|snap| snap.id);
        newest(|snap| snap.asked).or_else(|| newest(|snap| snap.auto))
    }

    /// A retained checkpoint by number in the list, which wraps around.
    fn pick(&self, number: u64) -> Option<usize> {
        (number as usize).checked_rem(self.snaps.len())
    }

    /// `.snapshots` has the numbers, the tags, and `latest`.
    fn list_snapshots(&mut self) -> Result<(), String> {
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
                    "latest leads to {}, the newest is {}",
                    target.display(),
                    last
                ));
            }
        }
        let automatic = |name: &String| {
            marks_come_and_go()
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

    fn delete(&mut self, op: &Op) -> Result<(), String> {
        let Some(index) = self.pick(op.number(0)) else {
            return Ok(());
        };
        // A file of it that is open is no promise.
        self.views = Default::default();
        let snap = self.snaps.remove(index);
        let (id, state) = (snap.id, StateName(snap.id.to_string()));
        let view = self.root.join(".snapshots").join(id.to_string());
        match op.number(1) % 4 {
            0 => drop(
                self.client()?
                    .ask(Delete { state, now: true })
                    .map_err(|error| said("delete --now", &error))?,
            ),
            1 => rustix::fs::rmdir(&view)
                .map_err(|errno| format!("rmdir .snapshots/{id}: {errno}"))?,
            2 => drop(
                self.client()?
                    .ask(Delete { state, now: false })
                    .map_err(|error| said("delete", &error))?,
            ),
            _ => {
                self.client()?
                    .ask(Delete { state, now: false })
                    .map_err(|error| said("delete", &error))?;
                let options = UndoOptions {
                    walk: UndoWalk::Undo(1),
                    skip: false,
                    force: true,
                    dry_run: false,
                };
                self.client()?
                    .ask(options)
                    .map_err(|error| said("undo", &error))?;
                // It is looked at with the others.
                self.snaps.insert(index, snap);
                return Ok(());
            }
        }
        if op.number(0).is_multiple_of(2) {
            // What is deleted is freed, and nothing else.
            self.gc()?;
        }
        match std::fs::symlink_metadata(&view) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => Err(format!("the view of a deleted checkpoint: {other:?}")),
        }
    }

    fn gc(&mut self) -> Result<(), String> {
        let mut options = GcOptions::default();
        loop {
            let report = self
                .client()?
                .ask(options.clone())
                .map_err(|error| said("gc", &error))?;
            if report.finished {
                return Ok(());
            }
            options.run = Some(report.run);
        }
    }

    /// Kills the worker alone; another takes over, and all that is open stays open.
    fn replace_worker(&mut self) -> Result<(), String> {
        let Some(mounted) = &mut self.mounted else {
            return Ok(());
        };
        mounted.client = None;
        mounted.mount.replace_worker();
        self.handles
            .iter()
            .flatten()
            .try_for_each(|handle| self.check_handle(handle))
    }

    /// Unmounts or kills, and mounts again. In a passthrough mount mappings live through a kill:
    /// the kernel does their work.
    fn mount_again(&mut self, kill: bool, open: bool, rebuild: bool) -> Result<(), String> {
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
            mounted.mount.kill();
            if !mounted.passthrough {
                self.unmap_all();
            }
            self.close_handles();
        } else {
            mounted.mount.umount();
            if rebuild {
                // The index is a cache and nothing more.
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

    /// The whole live tree, and all that is open.
    pub fn check_live(&mut self) -> Result<(), String> {
        let loose = self.loose();
        let sight = observe(&self.root)?;
        compare(
            "the live tree",
            &self.model.tree,
            &sight,
            &mut self.times,
            &loose,
        )?;
        if let Some((path, _)) = sight
            .iter()
            .find(|(_, seen)| self.view_inos.contains(&seen.ino))
        {
            return Err(format!("{} has an inode number of a view", shown(path)));
        }
        self.handles
            .iter()
            .flatten()
            .try_for_each(|handle| self.check_handle(handle))?;
        for mapped in self.maps.iter().flatten() {
            let length = self.model.size(mapped.id).min(mapped.mapping.len());
            let expected = &self
                .model
                .tree
                .node(mapped.id)
                .content()
                .ok_or("what is mapped is a file")?[..length];
            if mapped.mapping.load(length)? != expected {
                return Err("a mapping shows other bytes than its file has".to_owned());
            }
        }
        Ok(())
    }

    /// What can be read through a handle.
    pub fn check_handle(&self, handle: &Handle) -> Result<(), String> {
        if !handle.read {
            return Ok(());
        }
        let expected = self
            .model
            .tree
            .node(handle.id)
            .content()
            .ok_or("what is open is a file")?;
        check_content("an open file", &handle.file, expected)
    }

    fn check_views(&mut self) -> Result<(), String> {
        self.view_inos.clear();
        for snap in &mut self.snaps {
            let sight = observe(&self.root.join(".snapshots").join(snap.id.to_string()))?;
            compare(
                &format!("the view of {}", snap.id),
                &snap.tree,
                &sight,
                &mut self.times,
                &BTreeSet::new(),
            )?;
            for (path, seen) in &sight {
                if *snap.inos.entry(path.clone()).or_insert(seen.ino) != seen.ino {
                    return Err(format!(
                        "the view of {}: {} has another inode number than before",
                        snap.id,
                        shown(path)
                    ));
                }
                self.view_inos.insert(seen.ino);
            }
        }
        Ok(())
    }

    fn check_status(&mut self) -> Result<(), String> {
        let status = self
            .client()?
            .ask(GetStatus)
            .map_err(|error| said("status", &error))?;
        let latest = status.latest.map(|id| id.0);
        let last = self.latest();
        let exact = latest == last && status.checkpoints == self.snaps.len() as u64;
        let allowed = marks_come_and_go() && (last.is_none() || latest == last);
        if !exact && !allowed {
            return Err(format!(
                "status tells {} checkpoints, the latest {latest:?}",
                status.checkpoints
            ));
        }
        if !status.warnings.is_empty() {
            return Err(format!("status warns: {:?}", status.warnings));
        }
        let base = status.base.map(|id| id.0);
        let Some(last) = self.snaps.iter().find(|snap| Some(snap.id) == base) else {
            return if last.is_none() {
                Ok(())
            } else {
                Err(format!("status compares with {base:?}, which is not kept"))
            };
        };
        let live = self.model.tree.reachable();
        let expected = diffs::expected(&last.tree, &live, &self.times, &self.loose());
        diffs::check("status", &status.dirty, &expected, &last.tree, &live)
    }

    fn check_diff(&mut self, op: &Op) -> Result<(), String> {
        let (Some(a), Some(b)) = (self.pick(op.number(0)), self.pick(op.number(1))) else {
            return Ok(());
        };
        let to_live = a == b;
        let name = |index: usize| StateName(self.snaps[index].id.to_string());
        let (from, to) = (name(a), (!to_live).then(|| name(b)));
        let what = format!("diff {} {}", from.0, to.as_ref().map_or("live", |to| &to.0));
        let changes = self
            .client()?
            .ask(Compare {
                from,
                to,
                sizes: false,
            })
            .map_err(|error| said(&what, &error))?;
        let new = if to_live {
            self.model.tree.reachable()
        } else {
            self.snaps[b].tree.clone()
        };
        self.check_changes(&what, &changes, &self.snaps[a].tree, &new)
    }

    fn check_changes(
        &self,
        what: &str,
        changes: &[Change],
        old: &Tree,
        new: &Tree,
    ) -> Result<(), String> {
        let expected = diffs::expected(old, new, &self.times, &self.loose());
        diffs::check(what, changes, &expected, old, new)
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

    /// Tells what a restore would change, and changes nothing.
    fn dry_restore(&mut self, op: &Op) -> Result<(), String> {
        let Some(index) = self.pick(op.number(0)) else {
            return Ok(());
        };
        let (id, tree) = (self.snaps[index].id, self.snaps[index].tree.clone());
        let options = RestoreOptions {
            to: StateName(id.to_string()),
            paths: Vec::new(),
            dry_run: true,
            times: None,
        };
        let told = self
            .client()?
            .ask(options)
            .map_err(|error| said("restore --dry-run", &error))?;
        if told.guard.is_some() {
            return Err("a dry run made a checkpoint".to_owned());
        }
        let live = self.model.tree.reachable();
        self.check_changes(
            &format!("the dry run of restore {id}"),
            &told.changes,
            &live,
            &tree,
        )
    }

    fn ask_restore(
        &mut self,
        id: u64,
        paths: Vec<TreePath>,
    ) -> Result<Result<Restored, VerbError>, String> {
        Ok(self.client()?.ask(RestoreOptions {
            to: StateName(id.to_string()),
            paths,
            dry_run: false,
            times: Some(Times::Kept),
        }))
    }

    fn restore(&mut self, op: &Op) -> Result<(), String> {
        let Some(index) = self.pick(op.number(0)) else {
            return Ok(());
        };
        let (id, mut tree) = (self.snaps[index].id, self.snaps[index].tree.clone());
        let restored = self
            .ask_restore(id, Vec::new())?
            .map_err(|error| said("restore", &error))?;
        let before = self.model.tree.reachable();
        self.check_changes(
            &format!("the changes of restore {id}"),
            &restored.changes,
            &before,
            &tree,
        )?;
        match restored.guard {
            Some(guard) => self.keep(guard.0, false)?,
            None if restored.changes.is_empty() => return Ok(()),
            None => return Err("a restore without a guard".to_owned()),
        }
        for node in tree.nodes.values_mut().filter(|node| node.is_dir()) {
            node.entries = self.model.counter.next();
        }
        self.become_tree(tree)
    }

    /// The live tree was replaced. Whether what is open is still in it is asked of the filesystem;
    /// what it reads is known either way.
    fn become_tree(&mut self, tree: Tree) -> Result<(), String> {
        let before = std::mem::replace(&mut self.model.tree, tree);
        let mut live = HashMap::new();
        for (path, id) in self.model.tree.paths() {
            let path = absolute(&self.root, &path);
            let stat = rustix::fs::lstat(&path)
                .map_err(|errno| format!("restored, and {}: {errno}", path.display()))?;
            live.insert(stat.st_ino, id);
        }
        let mut now: HashMap<Id, Id> = HashMap::new();
        let handles = self
            .handles
            .iter()
            .flatten()
            .map(|handle| (handle.id, handle.ino));
        let open: Vec<(Id, u64)> = handles
            .chain(
                self.maps
                    .iter()
                    .flatten()
                    .map(|mapped| (mapped.id, mapped.ino)),
            )
            .collect();
        for (id, ino) in open {
            let was_linked = before.node(id).links > 0;
            let same = live
                .get(&ino)
                .copied()
                .filter(|same| was_linked && self.model.tree.node(*same).content().is_some());
            let becomes = match same {
                Some(same) => same,
                None => *now.entry(id).or_insert_with(|| self.model.counter.next()),
            };
            now.insert(id, becomes);
            if same.is_none() {
                let mut orphan = before.node(id).clone();
                orphan.links = 0;
                self.model.tree.nodes.entry(becomes).or_insert(orphan);
            }
        }
        self.handles
            .iter_mut()
            .flatten()
            .for_each(|handle| handle.id = now[&handle.id]);
        self.maps
            .iter_mut()
            .flatten()
            .for_each(|mapped| mapped.id = now[&mapped.id]);
        self.model.held = now.into_values().collect();
        Ok(())
    }
}

fn check_content(what: &str, file: &OwnedFd, expected: &[u8]) -> Result<(), String> {
    let mut content = vec![0; expected.len() + 10];
    let mut filled = 0;
    while filled < content.len() {
        match rustix::io::pread(file, &mut content[filled..], filled as u64) {
            Ok(0) => break,
            Ok(got) => filled += got,
            Err(errno) => return Err(format!("cannot read {what}: {errno}")),
        }
    }
    content.truncate(filled);
    if content == *expected {
        return Ok(());
    }
    let first = content
        .iter()
        .zip(expected.iter())
        .position(|(a, b)| a != b);
    Err(format!(
        "{what} reads {} bytes, expected {}; first difference at {first:?}",
        content.len(),
        expected.len()
    ))
}

fn is_below(path: &[u8], above: &[u8]) -> bool {
    path == above || (path.starts_with(above) && path.get(above.len()) == Some(&b'/'))
}

impl World {
    fn restore_paths(&mut self, op: &Op) -> Result<(), String> {
        let Some(index) = self.pick(op.number(0)) else {
            return Ok(());
        };
        let (id, then, now) = (
            self.snaps[index].id,
            self.snaps[index].tree.clone(),
            self.model.tree.reachable(),
        );
        let asked: Vec<Vec<u8>> = op.paths.iter().map(|path| bytes(path)).collect();
        if asked.is_empty() || asked.iter().any(|path| path == b".") {
            return Ok(());
        }
        let unknown = asked
            .iter()
            .any(|path| then.lookup(path).is_err() && now.lookup(path).is_err());
        let answer = self.ask_restore(id, asked.iter().cloned().map(TreePath).collect())?;
        let restored = match answer {
            Err(error) if unknown && error.code == "unknown-path" => return Ok(()),
            Err(error) => return Err(said("restore of paths", &error)),
            Ok(_) if unknown => return Err("a path that never existed was restored".to_owned()),
            Ok(restored) => restored,
        };
        match restored.guard {
            Some(guard) => self.keep(guard.0, false)?,
            None if restored.changes.is_empty() => return Ok(()),
            None => return Err("a restore without a guard".to_owned()),
        }
        let tree = self.with_paths(&then, &now, &asked);
        self.become_tree(tree)
    }

    /// The live tree with some paths as they were. A directory on the way that is missing comes
    /// back too, with nothing else in it.
    fn with_paths(&mut self, then: &Tree, now: &Tree, asked: &[Vec<u8>]) -> Tree {
        let tops = asked.iter().filter(|path| {
            !asked
                .iter()
                .any(|other| other != *path && is_below(path, other))
        });
        let mut tree = now.clone();
        let mut fresh: HashMap<Id, Id> = kept(then, now, asked)
            .into_iter()
            .map(|id| (id, id))
            .collect();
        let mut on_the_way = BTreeSet::new();
        for top in tops.collect::<BTreeSet<_>>() {
            let ways = top
                .iter()
                .enumerate()
                .filter(|(_, byte)| **byte == b'/')
                .map(|(at, _)| &top[..at]);
            for way in ways {
                let there = tree.lookup(way).is_ok_and(|id| tree.node(id).is_dir());
                let Some(wanted) = then
                    .lookup(way)
                    .ok()
                    .filter(|id| !there && then.node(*id).is_dir())
                else {
                    continue;
                };
                let id = self.model.counter.next();
                let mut node = then.node(wanted).clone();
                (node.body, node.entries) = (Body::Dir(BTreeMap::new()), self.model.counter.next());
                tree.nodes.insert(id, node);
                self.put(&mut tree, way, Some(id), &on_the_way);
                on_the_way.insert(id);
            }
            let wanted = then.lookup(top).ok().map(|id| {
                copy_below(then, id, &mut tree, &mut fresh, &mut || {
                    self.model.counter.next()
                })
            });
            if wanted.is_some() || tree.lookup(top).is_ok() {
                self.put(&mut tree, top, wanted, &on_the_way);
            }
        }
        tree = tree.reachable();
        tree.count_links();
        tree
    }

    /// A name leads to something else or to nothing. Directories that came back keep the time that
    /// they had.
    fn put(&mut self, tree: &mut Tree, path: &[u8], to: Option<Id>, came_back: &BTreeSet<Id>) {
        let (dir, name, _) = tree
            .resolve(path)
            .expect("its directory is in the live tree");
        let stamps = (self.model.counter.next(), self.model.counter.next());
        let node = tree.nodes.get_mut(&dir).expect("it was found");
        if !came_back.contains(&dir) {
            (node.mtime, node.entries) = stamps;
        }
        if let Body::Dir(names) = &mut node.body {
            match to {
                Some(id) => drop(names.insert(name, id)),
                None => drop(names.remove(&name)),
            }
        }
    }
}

/// Files of the live tree that stay what they are: they have a name in the paths, and nothing of
/// them changed.
fn kept(then: &Tree, now: &Tree, asked: &[Vec<u8>]) -> BTreeSet<Id> {
    let inside = now
        .paths()
        .into_iter()
        .filter(|(path, _)| asked.iter().any(|top| is_below(path, top)))
        .map(|(_, id)| id);
    let same = |id: &Id| {
        then.nodes.get(id).is_some_and(|old| {
            let new = now.node(*id);
            let dress = |node: &Node| (node.mode, node.uid, node.gid, node.mtime);
            !new.is_dir()
                && old.body == new.body
                && dress(old) == dress(new)
                && old.xattrs == new.xattrs
        })
    };
    inside.filter(same).collect()
}

/// Copies a node and all below it into another tree, under new numbers.
fn copy_below(
    from: &Tree,
    id: Id,
    to: &mut Tree,
    fresh: &mut HashMap<Id, Id>,
    next: &mut dyn FnMut() -> u64,
) -> Id {
    if let Some(known) = fresh.get(&id) {
        return *known;
    }
    let new = next();
    fresh.insert(id, new);
    let mut node = from.node(id).clone();
    node.entries = next();
    if let Body::Dir(names) = &mut node.body {
        for child in names.values_mut() {
            *child = copy_below(from, *child, to, fresh, next);
        }
    }
    to.nodes.insert(new, node);
    new
}

/// Without checkpoints the store keeps no versions.
impl World {
    fn check_empty_layers(&self) -> Result<(), String> {
        if marks_come_and_go() {
            return Ok(());
        }
        let cannot = |error: std::io::Error| format!("cannot list the layers: {error}");
        for epoch in std::fs::read_dir(self.root.join(".ckptfs/layers")).map_err(cannot)? {
            let objects = epoch.map_err(cannot)?.path().join("objects");
            if let Some(object) = std::fs::read_dir(&objects).map_err(cannot)?.next() {
                return Err(format!(
                    "no checkpoint is left, but {}",
                    object.map_err(cannot)?.path().display()
                ));
            }
        }
        Ok(())
    }
}

/// Ends a run: everything is compared, also without the mount and after one more.
impl World {
    pub fn finish(&mut self) -> Result<(), String> {
        self.come_back()?;
        self.check_live()?;
        if self.mounted.is_none() {
            return Ok(());
        }
        self.check_views()?;
        self.check_status()?;
        self.mount_again(false, false, true)?;
        self.check_views()?;
        self.check_live()?;
        self.check_status()?;
        self.close_all();
        while !self.snaps.is_empty() {
            self.delete(&Op::new(Verb::Delete, &[], &[self.tags, self.tags % 3]))?;
            self.tags += 1;
        }
        for hidden in self
            .client()?
            .ask(Query {
                hidden: true,
                ..Query::default()
            })
            .map_err(|error| said("log --deleted", &error))?
        {
            self.client()?
                .ask(Delete {
                    state: StateName(hidden.id.to_string()),
                    now: true,
                })
                .map_err(|error| said("delete --now", &error))?;
        }
        // A worker that took over may have captured a file that no checkpoint has; that goes with
        // the first run after its epoch.
        let made = self
            .client()?
            .ask(CheckpointOptions::default())
            .map_err(|error| said("checkpoint", &error))?;
        self.client()?
            .ask(Delete {
                state: StateName(made.id.to_string()),
                now: true,
            })
            .map_err(|error| said("delete --now", &error))?;
        self.gc()?;
        let mounted = self.mounted.as_mut().expect("it was looked at");
        mounted.client = None;
        mounted.mount.umount();
        self.check_empty_layers()?;
        let sight = observe(&self.root)?;
        compare(
            "the directory at the end",
            &self.model.tree,
            &sight,
            &mut self.times,
            &BTreeSet::new(),
        )
    }
}
