//! The pool: creation and removal of volumes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::dirs::Dirs;
use super::files::{remove_file, remove_tree};
use super::mounts::Mounts;
use super::name;
use super::options::{OnRemove, Options};
use super::record::VolumeRecord;
use super::registry::{Registry, no_such};
use super::trash::Trash;
use super::verbs::VerbRunner;
use ckptfs_api::display::word;
use ckptfs_api::{Code, VerbResult, error, hinted, io_error};

/// A pool of volumes.
#[derive(Clone, Debug)]
pub struct Pool {
    registry: Registry,
    mounts: Mounts,
    on_remove: OnRemove,
}

impl Pool {
    /// Opens the pool at `root`, creating it if missing. Volumes are mounted in `mounts`, or in the
    /// pool.
    ///
    /// # Errors
    /// Failures to create directories.
    pub fn open(
        root: &Path,
        mounts: Option<&Path>,
        verbs: Arc<dyn VerbRunner>,
    ) -> VerbResult<Pool> {
        let registry = Registry::new(Dirs::open(root, mounts)?);
        Ok(Pool {
            mounts: Mounts::new(registry.clone(), verbs),
            registry,
            on_remove: OnRemove::Delete,
        })
    }

    /// Sets the default action on removal.
    pub fn with_on_remove(self, on_remove: OnRemove) -> Pool {
        Pool { on_remove, ..self }
    }

    /// Returns the registry of volumes.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the mounts.
    pub fn mounts(&self) -> &Mounts {
        &self.mounts
    }

    /// Returns the trash.
    pub fn trash(&self) -> Trash<'_> {
        Trash::of(&self.registry)
    }

    /// Creates a volume; returns an existing one with the same options.
    ///
    /// # Errors
    /// `bad-name`, `unknown-option`, `bad-option`, `volume-exists`; failures to create the tree.
    /// Nothing remains then.
    pub fn create(&self, name: &str, given: &BTreeMap<String, String>) -> VerbResult<VolumeRecord> {
        self.make(VolumeRecord::new(name, given.clone()), |there| {
            there.options == *given
        })
    }

    /// Creates a volume; returns an existing one if `same` accepts it.
    pub(super) fn make(
        &self,
        mut record: VolumeRecord,
        same: impl FnOnce(&VolumeRecord) -> bool,
    ) -> VerbResult<VolumeRecord> {
        let name = &record.name.clone();
        name::check(name)?;
        let options = record.parsed()?;
        let locked = self.registry.lock(name)?;
        if let Some(there) = self.registry.known(name)? {
            if same(&there) {
                return Ok(there);
            }
            let hint = format!(
                "remove it first, or choose another name; to see it: ckptfs volumes inspect {}",
                word(name)
            );
            return Err(hinted(
                Code::VolumeExists,
                format!("volume {name} already exists, with other options"),
                hint,
            ));
        }
        let left = self.registry.load(name)?;
        match &left {
            Some(left) if left.making => self.registry.dirs().unmake(name),
            Some(left) => self.mounts.drop_clone(left)?,
            None => {}
        }
        let made = self
            .make_tree(&mut record, &options)
            .and_then(|()| self.registry.save(&record));
        // The remains of a branch are recorded, and removed at the next attempt.
        if made.is_err() && record.branch().is_none() {
            if options.source.is_none() {
                self.registry.dirs().unmake(name);
            }
            self.registry.forget(name, locked)?;
        }
        made.map(|()| record)
    }

    fn make_tree(&self, record: &mut VolumeRecord, options: &Options) -> VerbResult<()> {
        if let Some(source) = &options.source {
            return match fs::metadata(source) {
                Ok(found) if found.is_dir() => Ok(()),
                Ok(_) => Err(error(
                    Code::NotADirectory,
                    format!("{} is not a directory", source.display()),
                )),
                Err(cause) => Err(io_error(source.display(), cause)),
            };
        }
        // A tree without a record was never acknowledged as a volume, or its record was lost. It
        // may contain user data and is not deleted.
        self.trash().take_orphan(&record.name)?;
        self.registry.dirs().unmake(&record.name);
        if options.ephemeral {
            let (parent, state) = options
                .from
                .as_ref()
                .ok_or_else(|| error(Code::Internal, "ephemeral without from"))?;
            let parent = self.registry.get(parent)?;
            return state.as_ref().map_or(Ok(()), |state| {
                self.registry.history(&parent)?.checkpoint(state).map(drop)
            });
        }
        if record.claim.is_some()
            && !self.keeps(record)?
            && self.mounts.clone_as_branch(record, options)?
        {
            return Ok(());
        }
        let place = self.registry.place(record)?;
        self.mounts.fill(record, options, &place)
    }

    /// Removes a volume. Returns the tree that remains to be deleted; the volume itself is already
    /// gone.
    ///
    /// # Errors
    /// `no-such-volume`; `in-use`: it is mounted in a container, even without a record, or a
    /// process has a file of it open.
    pub fn remove(&self, name: &str) -> VerbResult<Option<PathBuf>> {
        self.remove_if(name, |_| true)
    }

    /// As [`Pool::remove`], if `wanted` accepts the record under the lock.
    pub(super) fn remove_if(
        &self,
        name: &str,
        wanted: impl FnOnce(&VolumeRecord) -> bool,
    ) -> VerbResult<Option<PathBuf>> {
        name::check(name)?;
        self.registry.load(name)?.ok_or_else(|| no_such(name))?;
        let locked = self.registry.lock(name)?;
        let mut record = self.registry.load(name)?.ok_or_else(|| no_such(name))?;
        if !wanted(&record) {
            return Ok(None);
        }
        let options = record.parsed()?;
        let place = self.registry.place(&record)?;
        self.refuse_branches(&record)?;
        self.refuse_clones(&record)?;
        self.mounts.end(&record, &options, &place)?;
        // If this fails because the branch is in use, the volume stays.
        self.mounts.drop_clone(&record)?;
        record.removing = true;
        record.mounts.clear();
        self.registry.save(&record)?;
        self.mounts.rested(&mut record, &options, &place)?;
        let gone = self.put_away(&record, &options)?;
        self.registry.forget(name, locked)?;
        if let Some((source, _)) = record.branch()
            && let Err(error) = self.remove_unneeded(source)
        {
            tracing::warn!(name = source, %error, "a deleted volume stays until the next driver");
        }
        Ok(gone)
    }

    /// Removes a retired volume without snapshots and clones.
    pub(super) fn remove_unneeded(&self, name: &str) -> VerbResult<()> {
        match self.registry.known(name)? {
            Some(record)
                if record.retired
                    && record.snapshots_told().next().is_none()
                    && self.mounts.clones(&record)?.is_empty() =>
            {
                self.remove_beside(name)
            }
            _ => Ok(()),
        }
    }

    /// Rejects the removal of a volume with branches, which may contain work.
    pub(super) fn refuse_branches(&self, record: &VolumeRecord) -> VerbResult<()> {
        let mut all = self.registry.history(record)?.branches()?;
        all.retain(|branch| self.mounts.clone_at(branch).is_none());
        let names: Vec<String> = all.into_iter().map(|branch| branch.name).collect();
        let volume = &record.name;
        refuse_needed(volume, "branches", &names, |first| {
            format!("remove them first: {volume}@branch/{first}")
        })
    }

    /// Rejects the removal of a volume with clones.
    fn refuse_clones(&self, record: &VolumeRecord) -> VerbResult<()> {
        let names = self.mounts.clones(record)?;
        refuse_needed(
            &record.name,
            "volumes that are branches of it",
            &names,
            |first| format!("remove them first: ckptfs volumes rm {}", word(first)),
        )
    }

    /// Removes a volume, and deletes its tree in the background.
    ///
    /// # Errors
    /// As [`Pool::remove`].
    pub fn remove_beside(&self, name: &str) -> VerbResult<()> {
        if let Some(gone) = self.remove(name)? {
            let delete = move || {
                if let Err(error) = remove_tree(&gone) {
                    tracing::warn!(
                        error = error.message,
                        "what is left of a volume is deleted later"
                    );
                }
            };
            // Without a thread, the next driver deletes it.
            drop(
                std::thread::Builder::new()
                    .name("delete".into())
                    .spawn(delete),
            );
        }
        Ok(())
    }

    /// Whether a removed volume is moved to the trash.
    ///
    /// # Errors
    /// The record has invalid options.
    pub fn keeps(&self, record: &VolumeRecord) -> VerbResult<bool> {
        let options = record.parsed()?;
        Ok(options.source.is_none()
            && !record.making
            && !options.ephemeral
            && record.branch().is_none()
            && options.on_remove.unwrap_or(self.on_remove) == OnRemove::Trash)
    }

    /// Moves the tree away: to the trash, or for deletion.
    fn put_away(&self, record: &VolumeRecord, options: &Options) -> VerbResult<Option<PathBuf>> {
        if options.source.is_some() {
            return Ok(None);
        }
        if self.keeps(record)? {
            self.trash().take(record)?;
            return Ok(None);
        }
        let dirs = self.registry.dirs();
        remove_file(&dirs.image(&record.name))?;
        dirs.set_gone(&record.name)
    }
}

fn refuse_needed(
    volume: &str,
    what: &str,
    names: &[String],
    hint: impl FnOnce(&str) -> String,
) -> VerbResult<()> {
    let Some(first) = names.first() else {
        return Ok(());
    };
    Err(hinted(
        Code::InUse,
        format!("volume {volume} has {what}: {}", names.join(", ")),
        hint(first),
    ))
}
