//! Volumes that are branches of other volumes, created in constant time (docs/adr/0019-csi.md).
//!
//! A clone is served by the daemon of its source volume. The source is mounted while a clone of it
//! is in use, and exists while it has clones.
//!
//! **The clones of a volume** are listed in its store: those of its branches whose directories are
//! trees of the pool. `VOLUME@branch/NAME` is next to the volume's tree, and no volume can have
//! such a name. **Whether a clone is in use** is recorded in the clone only. The use is recorded
//! before the source is mounted, and removed before the source is unmounted, each under the
//! source's lock.
//!
//! **Creation and removal** can be interrupted at any point. The record precedes the branch and is
//! marked as being removed. The next attempt therefore either completes the volume or removes its
//! remains; both can be repeated.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::mount_facts;
use super::mounts::{Mounts, OWN_ID};
use super::name::key;
use super::options::{OnRemove, Options};
use super::record::{VolumeOrigin, VolumeRecord, boot};
use ckptfs_api::{
    BranchInfo, CheckpointId, Client, Code, Delete, DropBranch, FreeBranch, ListBranches,
    MountBranch, ShowCheckpoint, StateName, VerbResult, hinted,
};
use ckptfs_core::engine::branches::{base_note, check_name};

/// Prefix of the names of branches that are volumes.
const PREFIX: &str = "volume.";

/// Returns the name of a volume's branch.
fn branch_name(volume: &str) -> String {
    Some(format!("{PREFIX}{volume}"))
        .filter(|name| check_name(name).is_ok())
        .unwrap_or_else(|| format!("{PREFIX}{}", key(volume)))
}

/// Returns why a volume cannot be a branch of another, judging by their options.
fn hindered(options: &Options, source: &Options) -> Option<&'static str> {
    let served = |options: &Options| (options.readonly, options.auto.every, options.snapdir);
    if options.size.is_some() || source.size.is_some() {
        Some("a volume with a size is a filesystem of its own")
    } else if options.ephemeral || source.ephemeral {
        Some("an ephemeral volume is a new copy each time")
    } else if options.on_remove == Some(OnRemove::Trash) {
        Some("removed, it goes to the trash of the pool, and not with its source")
    } else if served(options) != served(source) || options.readonly {
        Some("a branch is served as its source is")
    } else {
        None
    }
}

impl Mounts {
    /// Creates a volume as a branch of its source; `false` if that is impossible and it has to be a
    /// copy. The caller saves the record afterwards; until then the record marks the volume as
    /// being removed.
    ///
    /// # Errors
    /// `no-such-volume`; a partial branch cannot be removed.
    pub(super) fn clone_as_branch(
        &self,
        record: &mut VolumeRecord,
        options: &Options,
    ) -> VerbResult<bool> {
        let Some((volume, state)) = options.from.as_ref().filter(|_| options.remote.is_none())
        else {
            return Ok(false);
        };
        let source = self.registry.get(volume)?.parsed()?;
        if let Some(why) = hindered(options, &source) {
            tracing::info!(name = record.name, %volume, why, "it becomes a copy and no branch");
            return Ok(false);
        }
        record.parent = Some(VolumeOrigin {
            volume: volume.clone(),
            checkpoint: 0,
            branch: Some(branch_name(&record.name)),
            remote: None,
        });
        record.removing = true;
        self.registry.save(record)?;
        let made = self.branch_off(record, volume, state.as_deref(), options);
        if let Err(error) = &made {
            tracing::warn!(name = record.name, %volume, %error, "it becomes a copy and no branch");
            self.drop_clone(record)?;
            record.parent = None;
            self.registry.save(record)?;
        }
        record.removing = false;
        Ok(made.is_ok())
    }

    fn branch_off(
        &self,
        record: &mut VolumeRecord,
        volume: &str,
        state: Option<&str>,
        options: &Options,
    ) -> VerbResult<()> {
        self.with_source(volume, |source| {
            let place = self.registry.place(record)?;
            let history = self.registry.history(source)?;
            let Some(parent) = &mut record.parent else {
                return Ok(());
            };
            let (branch, at) = (parent.branch.clone().unwrap_or_default(), state);
            let made = history.make_branch(&branch, at, &place.backing)?;
            parent.checkpoint = made.base.map_or(0, |base| base.0);
            super::fill::set_owner(&place.point, options)
        })
    }

    /// Calls `work` on the source of a clone, which is mounted during the call.
    fn with_source<T>(
        &self,
        volume: &str,
        work: impl FnOnce(&mut VolumeRecord) -> VerbResult<T>,
    ) -> VerbResult<T> {
        let _locked = self.registry.lock(volume)?;
        let mut source = self.registry.get(volume)?;
        // A source that is a clone is served by another volume, which has another lock and must see
        // this use.
        let id = format!("{OWN_ID}{}-clone", std::process::id());
        let is_new = source.branch().is_some() && source.add(&id, &boot(), None);
        if is_new {
            self.registry.save(&source)?;
        }
        let done = self
            .serve(&mut source, false, false)
            .and_then(|_| work(&mut source));
        if is_new {
            source.take(&id);
            self.registry.save(&source)?;
        }
        if source.mounts.is_empty() {
            self.rest(&mut source, false)?;
        }
        done
    }

    /// Makes the source of a clone serve it. Its use is recorded, so the source stays mounted.
    pub(super) fn serve_clone(&self, record: &VolumeRecord) -> VerbResult<()> {
        let Some((volume, branch)) = record.branch() else {
            return Ok(());
        };
        let place = self.registry.place(record)?;
        self.with_source(volume, |source| {
            if mount_facts::served(&mount_facts::table()?, &place).is_some() {
                return Ok(());
            }
            let name = branch.to_owned();
            let asked = self.registry.history(source)?.serving()?;
            asked_once(asked, MountBranch { name }).map(drop)
        })
    }

    /// Unmounts the source of an unused clone, if it is not in use either.
    pub(super) fn rest_source(&self, record: &VolumeRecord) -> VerbResult<()> {
        let Some((volume, _)) = record.branch() else {
            return Ok(());
        };
        let _locked = self.registry.lock(volume)?;
        match self.registry.load(volume)? {
            Some(mut source) if source.mounts.is_empty() => self.rest(&mut source, false),
            _ => Ok(()),
        }
    }

    /// Returns the names of a volume's clones, including those being created or removed.
    ///
    /// # Errors
    /// The history cannot be read.
    pub fn clones(&self, record: &VolumeRecord) -> VerbResult<Vec<String>> {
        let all = self.registry.history(record)?.branches()?;
        Ok(all.iter().filter_map(|one| self.clone_at(one)).collect())
    }

    /// Returns the name of the volume that a branch is, if any.
    pub(super) fn clone_at(&self, branch: &BranchInfo) -> Option<String> {
        self.registry.dirs().volume_at(&branch.path)
    }

    /// Whether a clone of a volume has recorded uses, directly or through its own clones.
    pub(super) fn clones_used(&self, record: &VolumeRecord) -> VerbResult<bool> {
        for name in self.clones(record)? {
            let known = self.registry.load(&name).ok().flatten();
            if let Some(clone) = known
                && (!clone.mounts.is_empty() || self.clones_used(&clone)?)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Drops a volume's branch permanently, and the checkpoint made only for it. A missing branch
    /// is not an error. The caller holds the volume's lock.
    ///
    /// # Errors
    /// `branch-in-use`; `busy`: a daemon is creating it. Failures of the source.
    pub(super) fn drop_clone(&self, record: &VolumeRecord) -> VerbResult<()> {
        let Some((volume, branch)) = record.branch() else {
            return Ok(());
        };
        let tree = self.registry.dirs().tree(&record.name);
        let done = self.with_source(volume, |source| {
            let mut client = self.registry.history(source)?.serving()?;
            let here = |one: &BranchInfo| one.path == tree;
            for one in client
                .ask(ListBranches::default())?
                .into_iter()
                .filter(here)
            {
                client.ask(DropBranch {
                    name: one.name,
                    force: false,
                    dry_run: false,
                })?;
            }
            let name = branch.to_owned();
            client.ask(FreeBranch { name })?;
            remove_left(&tree)?;
            self.release(&mut client, source, record)
        });
        match done {
            // Without its source volume, no branch exists.
            Err(why) if why.code == Code::NoSuchVolume => Ok(()),
            done => done,
        }
    }

    /// Deletes the base checkpoint of a clone if it was made for the clone, or was a deleted
    /// snapshot, and nothing else needs it.
    fn release(
        &self,
        client: &mut Client,
        source: &mut VolumeRecord,
        clone: &VolumeRecord,
    ) -> VerbResult<()> {
        let Some((_, branch)) = clone.branch() else {
            return Ok(());
        };
        let number = clone.parent.as_ref().map_or(0, |parent| parent.checkpoint);
        let state = || StateName(number.to_string());
        let known = source
            .snapshots
            .iter()
            .find(|one| one.checkpoint == number)
            .map(|one| one.deleted);
        let made_for_it = |client: &mut Client| {
            client
                .ask(ShowCheckpoint { state: state() })
                .is_ok_and(|one| {
                    one.id == CheckpointId(number)
                        && one.note == base_note(branch)
                        && one.tags.is_empty()
                        && one.pinned.is_none()
                })
        };
        if number == 0 || !known.unwrap_or_else(|| made_for_it(client)) {
            return Ok(());
        }
        let deleted = client.ask(Delete {
            state: state(),
            now: true,
        });
        match deleted {
            Err(why) if why.code == Code::Held => return Ok(()),
            Err(why) if why.code != Code::UnknownCheckpoint => return Err(why),
            _ => {}
        }
        source.snapshots.retain(|one| one.checkpoint != number);
        self.registry.save(source)
    }
}

/// Mounts a branch; a concurrent mount is not an error.
fn asked_once(mut client: Client, asked: MountBranch) -> VerbResult<()> {
    match client.ask(asked) {
        Err(why) if why.code == Code::AlreadyMounted => Ok(()),
        done => done.map(drop),
    }
}

/// Removes the directory of a branch that was not created, or was dropped.
fn remove_left(tree: &Path) -> VerbResult<()> {
    match fs::remove_dir(tree) {
        Err(cause) if cause.kind() != ErrorKind::NotFound => Err(hinted(
            Code::Busy,
            format!(
                "{} is being made, or contains something else: {cause}",
                tree.display()
            ),
            "try again later",
        )),
        _ => Ok(()),
    }
}
