//! Volumes that are branches of others: made at once, whatever the size of the tree
//! (docs/adr/0019-csi.md).
//!
//! A clone is served by the daemon of the volume that it was made of, its source. So the source is
//! mounted as long as a clone of it is used, and it is there as long as there is one.
//!
//! **Which clones a volume has** is what its store says: those of its branches whose directories
//! are trees of the pool. What is called `VOLUME@branch/NAME` is beside the volume's tree, and no
//! volume has a name like that. **Whether a clone is used** is in its own record, and nothing of it
//! in that of the source: it is written before the source is mounted, and gone before that is
//! unmounted, each with the source's lock.
//!
//! **Making and removing** can be cut short anywhere. The record is there before the branch, as
//! that of a volume which is being removed; so it ends in one of two ways, both of which come
//! again: it is a volume, or what there is of it goes.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::error::hinted;
use super::facts;
use super::mounts::{Mounts, OWN_ID};
use super::name::key;
use super::options::{OnRemove, Options};
use super::record::{Parent, Record, boot};
use crate::control::Client;
use crate::engine::api::{
    BranchInfo, Code, Delete, DropBranch, FreeBranch, ListBranches, MountBranch, ShowCheckpoint,
    StateName, VerbResult,
};
use crate::engine::branches::{base_note, check_name};
use crate::store::ids::CheckpointId;

/// What the names of branches that are volumes begin with.
const PREFIX: &str = "volume.";

/// The name of the branch that a volume is.
fn branch_name(volume: &str) -> String {
    Some(format!("{PREFIX}{volume}"))
        .filter(|name| check_name(name).is_ok())
        .unwrap_or_else(|| format!("{PREFIX}{}", key(volume)))
}

/// Why a volume cannot be a branch of another, as far as their options say.
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
    /// Makes a volume a branch of the one that it begins as a copy of; `false`: it cannot be one,
    /// and is to be a copy. The caller saves the record then, which says until then that what there
    /// is of the volume is to go.
    ///
    /// # Errors
    /// `no-such-volume`; what was made of it cannot be taken away.
    pub(super) fn clone_as_branch(
        &self,
        record: &mut Record,
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
        record.parent = Some(Parent {
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
        record: &mut Record,
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

    /// Does something with the source of a clone, which is mounted meanwhile.
    fn with_source<T>(
        &self,
        volume: &str,
        work: impl FnOnce(&mut Record) -> VerbResult<T>,
    ) -> VerbResult<T> {
        let _locked = self.registry.lock(volume)?;
        let mut source = self.registry.get(volume)?;
        // What serves the source, if that is a clone too, has another lock: it must see this use.
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

    /// Has the source of a clone serve it. Its use is on record, so the source goes on to be
    /// mounted.
    pub(super) fn serve_clone(&self, record: &Record) -> VerbResult<()> {
        let Some((volume, branch)) = record.branch() else {
            return Ok(());
        };
        let place = self.registry.place(record)?;
        self.with_source(volume, |source| {
            if facts::served(&facts::table()?, &place).is_some() {
                return Ok(());
            }
            let name = branch.to_owned();
            let asked = self.registry.history(source)?.serving()?;
            asked_once(asked, MountBranch { name }).map(drop)
        })
    }

    /// Unmounts the source of a clone that nobody uses any more, if nobody uses that.
    pub(super) fn rest_source(&self, record: &Record) -> VerbResult<()> {
        let Some((volume, _)) = record.branch() else {
            return Ok(());
        };
        let _locked = self.registry.lock(volume)?;
        match self.registry.load(volume)? {
            Some(mut source) if source.mounts.is_empty() => self.rest(&mut source, false),
            _ => Ok(()),
        }
    }

    /// The names of the clones that there are of a volume, or that are being made or removed.
    ///
    /// # Errors
    /// The history cannot be read.
    pub fn clones(&self, record: &Record) -> VerbResult<Vec<String>> {
        let all = self.registry.history(record)?.branches()?;
        Ok(all.iter().filter_map(|one| self.clone_at(one)).collect())
    }

    /// The name of the volume that a branch is, if it is one.
    pub(super) fn clone_at(&self, branch: &BranchInfo) -> Option<String> {
        self.registry.dirs().volume_at(&branch.path)
    }

    /// Whether somebody has asked for the use of a clone of a volume, or of a clone of that.
    pub(super) fn clones_used(&self, record: &Record) -> VerbResult<bool> {
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

    /// Drops the branch that a volume is, for good, and the checkpoint that was there for it only.
    /// What is gone already is as good. The caller has the volume's lock.
    ///
    /// # Errors
    /// `branch-in-use`; `busy`: a daemon is just making it. What goes wrong with the source.
    pub(super) fn drop_clone(&self, record: &Record) -> VerbResult<()> {
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
            // There is nothing that it could be a branch of.
            Err(why) if why.code == Code::NoSuchVolume => Ok(()),
            done => done,
        }
    }

    /// Deletes the checkpoint that a clone began as, if that was made for it, or was a snapshot
    /// that was deleted, unless something else needs it.
    fn release(&self, client: &mut Client, source: &mut Record, clone: &Record) -> VerbResult<()> {
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

/// Asks for the mount of a branch; whoever was faster has done it as well.
fn asked_once(mut client: Client, asked: MountBranch) -> VerbResult<()> {
    match client.ask(asked) {
        Err(why) if why.code == Code::AlreadyMounted => Ok(()),
        done => done.map(drop),
    }
}

/// Removes the directory of a branch that never was, or is dropped.
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
