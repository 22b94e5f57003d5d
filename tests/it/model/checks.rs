//! Comparisons: the live tree, the views, and the output of the verbs.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

use super::calls::open;
use super::control::said;
use super::diffs;
use super::observe::{absolute, compare, observe, shown};
use super::ops::{Op, Verb};
use super::tree::Tree;
use super::world::{Handle, ModelCheckpoint, ModelRun};
use ckptfs_api::{
    Change, CheckpointOptions, Compare, Delete, GetStatus, Query, Retention, StateName,
};

impl ModelRun {
    /// Checks the whole live tree and all open files.
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
                .ok_or("a mapped inode is a file")?[..length];
            if mapped.mapping.load(length)? != expected {
                return Err("a mapping differs from its file".to_owned());
            }
        }
        Ok(())
    }

    /// Checks the content read through a handle.
    pub fn check_handle(&self, handle: &Handle) -> Result<(), String> {
        if !handle.read {
            return Ok(());
        }
        let expected = self
            .model
            .tree
            .node(handle.id)
            .content()
            .ok_or("an open inode is a file")?;
        check_content("an open file", &handle.file, expected)
    }

    pub(super) fn check_views(&mut self) -> Result<(), String> {
        self.view_inos.clear();
        let mut snaps = std::mem::take(&mut self.snaps);
        let checked = snaps.iter_mut().try_for_each(|snap| self.check_view(snap));
        self.snaps = snaps;
        checked?;
        self.check_marks()
    }

    pub(super) fn check_view(&mut self, snap: &mut ModelCheckpoint) -> Result<(), String> {
        let what = format!("the view of {}", snap.id);
        let sight = observe(&self.root.join(".snapshots").join(snap.id.to_string()))
            .map_err(|problem| format!("{what}: {problem}"))?;
        let none = BTreeSet::new();
        compare(&what, &snap.tree, &sight, &mut self.times, &none)?;
        self.counts.views += 1;
        for (path, seen) in &sight {
            if *snap.inos.entry(path.clone()).or_insert(seen.ino) != seen.ino {
                return Err(format!(
                    "{what}: {} has another inode number than before",
                    shown(path)
                ));
            }
            self.view_inos.insert(seen.ino);
        }
        Ok(())
    }

    /// Checks in each view all open or mapped files, and one other.
    pub(super) fn look(&mut self) -> Result<(), String> {
        self.turn += 1;
        let mut held = self.loose();
        held.extend(self.handles.iter().flatten().map(|handle| handle.id));
        for snap in &self.snaps {
            let mut files = snap.tree.paths();
            files.retain(|_, id| snap.tree.node(*id).content().is_some());
            let turn = self.turn % files.len().max(1);
            for (number, (path, id)) in files.iter().enumerate() {
                let Some(content) = snap.tree.node(*id).content() else {
                    continue;
                };
                if number != turn && !held.contains(id) {
                    continue;
                }
                let what = format!("the view of {}: {}", snap.id, shown(path));
                let view = self.root.join(".snapshots").join(snap.id.to_string());
                let file = open(&absolute(&view, path), OFlags::RDONLY, Mode::empty())
                    .map_err(|errno| format!("{what}: {errno}"))?;
                check_content(&what, &file, content)?;
                self.counts.files += 1;
            }
        }
        Ok(())
    }

    pub(super) fn check_status(&mut self) -> Result<(), String> {
        let status = self
            .client()?
            .ask(GetStatus)
            .map_err(|error| said("status", &error))?;
        let latest = status.latest.map(|id| id.0);
        let last = self.latest();
        let exact = latest == last && status.checkpoints == self.snaps.len() as u64;
        let allowed = self.has_marks() && (last.is_none() || latest == last);
        if !exact && !allowed {
            return Err(format!(
                "status reports {} checkpoints, the latest {latest:?}",
                status.checkpoints
            ));
        }
        // `gc --max-size` requested less than the minimum; or another process of the machine ended
        // while the daemon examined it.
        let expected = |warning: &&String| {
            !warning.contains("over retention.max-size")
                && !warning.contains("some processes could not be checked")
        };
        if let Some(warning) = status.warnings.iter().find(expected) {
            return Err(format!("status warns: {warning}"));
        }
        let base = status.base.map(|id| id.0);
        let Some(last) = self.snaps.iter().find(|snap| Some(snap.id) == base) else {
            return if last.is_none() {
                Ok(())
            } else {
                Err(format!(
                    "status compares with {base:?}, which does not exist"
                ))
            };
        };
        let live = self.model.tree.reachable();
        let expected = diffs::expected(&last.tree, &live, &self.times, &self.loose());
        diffs::check("status", &status.dirty, &expected, &last.tree, &live)
    }

    pub(super) fn check_diff(&mut self, op: &Op) -> Result<(), String> {
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

    pub(super) fn check_changes(
        &self,
        what: &str,
        changes: &[Change],
        old: &Tree,
        new: &Tree,
    ) -> Result<(), String> {
        let expected = diffs::expected(old, new, &self.times, &self.loose());
        diffs::check(what, changes, &expected, old, new)
    }

    /// Checks that without checkpoints the store has no versions.
    pub(super) fn check_empty_layers(&self) -> Result<(), String> {
        if self.has_marks() {
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

    /// Ends a run: compares everything, also without the mount and after a remount.
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
            let deleted = self.client()?.ask(Delete {
                state: StateName(hidden.id.to_string()),
                now: true,
            });
            // The daemon may have just freed a mark.
            if !hidden.reason.is_mark() {
                deleted.map_err(|error| said("delete --now", &error))?;
            }
        }
        // A successor may have captured a file that no checkpoint contains; it is freed by the
        // first gc after that epoch.
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
        self.gc(Retention::default())?;
        let mounted = self.mounted.as_mut().expect("it exists");
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

pub(super) fn check_content(what: &str, file: &OwnedFd, expected: &[u8]) -> Result<(), String> {
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
