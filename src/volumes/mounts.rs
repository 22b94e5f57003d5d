//! Mounts of volumes: a volume is mounted at its first use and unmounted after its last.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::files::make_dir;
use super::image;
use super::mount_facts::{self, ForeignMount, VolumePlace};
use super::name::VolumeRef;
use super::options::Options;
use super::process_ident::ProcessIdent;
use super::record::{VolumeRecord, VolumeUse, boot};
use super::registry::Registry;
use super::verbs::VerbRunner;
use ckptfs_api::{Code, DropBranch, Unmount, VerbError, VerbResult, error, hinted};

/// Maximum time for a daemon to close its store.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// How long to wait for a daemon started by a killed driver, and the pause between checks.
const STARTING_PATIENCE: Duration = Duration::from_secs(3);
const STARTING_PAUSE: Duration = Duration::from_millis(20);

/// Prefix of the ids of uses by this program; an engine's ids are hexadecimal.
pub(super) const OWN_ID: &str = "verb-";

/// Mounts and unmounts volumes, and records their uses.
#[derive(Clone, Debug)]
pub struct Mounts {
    pub(super) registry: Registry,
    pub(super) verbs: Arc<dyn VerbRunner>,
}

/// Actual mounts of a volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActualMounts {
    /// At our mount point.
    pub here: bool,
    /// Elsewhere, mostly in containers.
    pub elsewhere: bool,
    /// The volume is a new copy for each use.
    pub ephemeral: bool,
}

impl Mounts {
    pub(super) fn new(registry: Registry, verbs: Arc<dyn VerbRunner>) -> Mounts {
        Mounts { registry, verbs }
    }

    /// Starts a use of a volume or of a past state of it, which is mounted on return. `id`
    /// identifies the use. If the process `by` is killed and cannot end the use, that can be
    /// detected.
    ///
    /// # Errors
    /// `no-such-volume`, `unknown-checkpoint`; failures of the mount.
    pub fn mount(
        &self,
        named: &VolumeRef,
        id: &str,
        by: Option<ProcessIdent>,
    ) -> VerbResult<PathBuf> {
        // No lock file is created for a volume that does not exist.
        self.registry.get(&named.volume)?;
        let _locked = self.registry.lock(&named.volume)?;
        let mut record = self.registry.get(&named.volume)?;
        let id = use_id(named, id);
        if !is_own(&id) {
            self.end_orphans(&mut record)?;
        }
        let (first, new) = (record.mounts.is_empty(), record.add(&id, &boot(), by));
        self.registry.save(&record)?;
        let mounted = self
            .serve(&mut record, first, !is_own(&id))
            .and_then(|()| self.settle(&record, None))
            .and_then(|()| self.point(&record))
            .and_then(|point| match (&named.checkpoint, &named.branch) {
                (Some(state), _) => self.show_past(&mut record, &point, &id, state),
                (None, Some(branch)) => self.show_branch(&record, branch),
                (None, None) => Ok(point),
            });
        if mounted.is_err() && new {
            record.take(&id);
            self.registry.save(&record)?;
            if record.mounts.is_empty() {
                self.rest(&mut record, false)?;
            }
        }
        mounted
    }

    /// Ends a use. An unknown use or volume is not an error.
    ///
    /// # Errors
    /// The pool cannot be written.
    pub fn unmount(&self, named: &VolumeRef, id: &str) -> VerbResult<()> {
        if self.registry.load(&named.volume)?.is_none() {
            return Ok(());
        }
        let _locked = self.registry.lock(&named.volume)?;
        let Some(mut record) = self.registry.load(&named.volume)? else {
            return Ok(());
        };
        if record.take(&use_id(named, id)) {
            if named.checkpoint.is_some() {
                // Before the record is saved: a driver killed in between receives the request
                // again.
                self.registry.history(&record)?.pin_used(&record);
            }
            self.registry.save(&record)?;
        }
        if record.mounts.is_empty() {
            self.rest(&mut record, !is_own(id))
        } else {
            self.settle(&record, None)
        }
    }

    /// Calls `work` on a volume, which is mounted during the call. `what` distinguishes concurrent
    /// calls of this program.
    ///
    /// # Errors
    /// As [`Mounts::mount`]; those of `work`.
    pub fn during<T, E: From<VerbError>>(
        &self,
        volume: &str,
        what: &str,
        work: impl FnOnce(PathBuf) -> Result<T, E>,
    ) -> Result<T, E> {
        self.during_of(&VolumeRef::whole(volume), what, work)
    }

    /// As [`Mounts::during`], for a past state or a branch; a missing branch is created.
    ///
    /// # Errors
    /// As [`Mounts::during`].
    pub(super) fn during_of<T, E: From<VerbError>>(
        &self,
        named: &VolumeRef,
        what: &str,
        work: impl FnOnce(PathBuf) -> Result<T, E>,
    ) -> Result<T, E> {
        let id = format!("{OWN_ID}{}-{what}", std::process::id());
        let done = work(self.mount(named, &id, ProcessIdent::this())?);
        self.unmount(named, &id)?;
        done
    }

    /// Creates a branch of a volume from its current state; an existing one is left unchanged.
    ///
    /// # Errors
    /// `bad-option`: the volume is ephemeral. Failures to create a branch.
    pub fn make_branch(&self, named: &VolumeRef) -> VerbResult<()> {
        self.during_of(named, "branch", |_| Ok(()))
    }

    /// Moves a branch of a volume to the trash of its tree, and removes its recorded uses.
    ///
    /// # Errors
    /// `branch-in-use`: it is mounted in a container, or a process has a file of it open.
    pub fn drop_branch(&self, volume: &str, branch: &str) -> VerbResult<()> {
        let history = |volume| self.registry.history(&self.registry.get(volume)?);
        if !history(volume)?
            .branches()?
            .iter()
            .any(|one| one.name == branch)
        {
            // The branch was never created.
            return Ok(());
        }
        self.during(volume, &format!("drop {branch}"), |_| {
            history(volume)?.serving()?.ask(DropBranch {
                name: branch.to_owned(),
                force: false,
                dry_run: false,
            })
        })?;
        let _locked = self.registry.lock(volume)?;
        let mut record = self.registry.get(volume)?;
        let end = format!("@{}", branch_part(branch));
        record.mounts.retain(|mount| !mount.id.ends_with(&end));
        self.registry.save(&record)?;
        if record.mounts.is_empty() {
            self.rest(&mut record, false)?;
        }
        Ok(())
    }

    /// Returns a use of a volume, or of a branch of it, other than at our mount point.
    fn used_elsewhere(
        &self,
        record: &VolumeRecord,
        place: &VolumePlace,
    ) -> VerbResult<Option<ForeignMount>> {
        if let Some(found) = mount_facts::elsewhere(place)?.used.into_iter().next() {
            return Ok(Some(found));
        }
        for branch in self.registry.history(record)?.branches()? {
            let clone = self.clone_at(&branch).map(|name| self.registry.load(&name));
            let found = if let Some(clone) = clone.transpose()?.flatten() {
                self.used_elsewhere(&clone, &self.registry.place(&clone)?)?
            } else {
                mount_facts::elsewhere(&VolumePlace::of_branch(&branch.path))?
                    .used
                    .into_iter()
                    .next()
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Returns the mount point of a mounted volume.
    fn point(&self, record: &VolumeRecord) -> VerbResult<PathBuf> {
        let place = self.registry.place(record)?;
        Ok(mount_facts::served(&mount_facts::table()?, &place).unwrap_or(place.point))
    }

    /// Returns the path of a past state of a mounted volume. It is pinned while in use.
    fn show_past(
        &self,
        record: &mut VolumeRecord,
        point: &Path,
        id: &str,
        state: &str,
    ) -> VerbResult<PathBuf> {
        let history = self.registry.history(record)?;
        let number = history.checkpoint(state)?.id.0;
        for mount in record.mounts.iter_mut().filter(|mount| mount.id == id) {
            mount.checkpoint = Some(number);
        }
        self.registry.save(record)?;
        history.pin_used(record);
        // It may have been deleted before it was pinned.
        let shown = history.checkpoint(&number.to_string())?.id;
        Ok(point.join(".snapshots").join(shown.to_string()))
    }

    /// Returns the mount point of a branch of a mounted volume.
    fn show_branch(&self, record: &VolumeRecord, branch: &str) -> VerbResult<PathBuf> {
        if record.parsed()?.ephemeral {
            return Err(error(
                Code::BadOption,
                format!(
                    "volume {} is a fresh copy each time: a branch of it would go with it",
                    record.name
                ),
            ));
        }
        mount_facts::branch_at(self.registry.history(record)?.branch(branch)?)
    }

    /// Mounts a volume unless it is mounted.
    pub(super) fn serve(
        &self,
        record: &mut VolumeRecord,
        first: bool,
        asked: bool,
    ) -> VerbResult<()> {
        let options = record.parsed()?;
        let place = self.registry.place(record)?;
        if record.branch().is_some() {
            self.serve_clone(record)?;
            record.mounted = true;
        } else if mount_facts::served(&mount_facts::table()?, &place).is_none() {
            if options.ephemeral {
                self.registry.dirs().delete(&record.name)?;
                self.fill(record, &options, &place)?;
                record.configured = false;
            } else if options.size.is_some() {
                image::mount(&self.registry.dirs().image(&record.name), &place.backing)?;
            }
            if options.source.is_none() {
                make_dir(&place.point, 0o711)?;
            }
            // The mount must be recorded as ours before it exists.
            record.mounted = true;
            self.registry.save(record)?;
            self.start(&place, &options)?;
        }
        if record.mounted && !record.configured {
            self.registry.history(record)?.configure(&options.keep)?;
            record.configured = true;
            self.registry.save(record)?;
        }
        if first && options.auto.mount && asked {
            self.registry.history(record)?.mark("mounted");
        }
        Ok(())
    }

    /// Starts the daemon of a volume. A daemon of a killed driver may still be starting; its mount
    /// is accepted.
    fn start(&self, place: &VolumePlace, options: &Options) -> VerbResult<()> {
        let started = Instant::now();
        loop {
            match self.verbs.mount(place, options) {
                Err(error)
                    if [Code::InUse, Code::AlreadyMounted].contains(&error.code)
                        && started.elapsed() < STARTING_PATIENCE =>
                {
                    std::thread::sleep(STARTING_PAUSE);
                    if mount_facts::served(&mount_facts::table()?, place).is_some() {
                        return Ok(());
                    }
                }
                done => return done,
            }
        }
    }

    /// Unmounts a volume without recorded uses. If it is still in use, it stays mounted until the
    /// use ends.
    pub(super) fn rest(&self, record: &mut VolumeRecord, asked: bool) -> VerbResult<()> {
        let options = record.parsed()?;
        let place = self.registry.place(record)?;
        if is_ours_at(record, &options, &place)? {
            if self.clones_used(record)? {
                return Ok(());
            }
            if let Some(elsewhere) = self.used_elsewhere(record, &place)? {
                tracing::info!(
                    name = record.name,
                    ?elsewhere,
                    "the volume stays mounted: it is in use"
                );
                return Ok(());
            }
            let serves = || Ok(mount_facts::served(&mount_facts::table()?, &place).is_some());
            if asked && options.auto.unmount && serves()? {
                self.registry.history(record)?.mark("unmounted");
            }
            if record.branch().is_none()
                && let Err(error) = self.stop(record, &place)
            {
                tracing::info!(
                    name = record.name,
                    error = error.message,
                    "the volume stays mounted"
                );
                return Ok(());
            }
        }
        self.rested(record, &options, &place)?;
        self.rest_source(record)
    }

    /// Cleans up after an unmount.
    pub(super) fn rested(
        &self,
        record: &mut VolumeRecord,
        options: &Options,
        place: &VolumePlace,
    ) -> VerbResult<()> {
        if options.size.is_some()
            && let Err(error) = image::unmount(&place.backing)
        {
            tracing::warn!(
                name = record.name,
                error = error.message,
                "the image stays mounted"
            );
        }
        if options.ephemeral {
            self.registry.dirs().delete(&record.name)?;
        }
        if place.point != place.backing {
            // Created again when needed. rmdir(2) removes only an empty directory.
            let _ = fs::remove_dir(&place.point);
        }
        if record.mounted {
            record.mounted = false;
            self.registry.save(record)?;
        }
        Ok(())
    }

    /// Unmounts a volume and waits for its daemon. Copies of the mount in other namespaces, which
    /// can appear at any time, may keep the filesystem alive; the daemon ends nevertheless.
    fn stop(&self, record: &VolumeRecord, place: &VolumePlace) -> VerbResult<()> {
        if let Some(mut client) = self.registry.history(record)?.daemon() {
            match client.ask(Unmount {
                lazy: false,
                leave: true,
                keep: None,
            }) {
                Ok(()) if client.wait_ended(END_TIMEOUT) => return Ok(()),
                Ok(()) => {
                    return Err(hinted(
                        Code::DaemonBusy,
                        "the daemon does not end",
                        "try again later",
                    ));
                }
                // The daemon has another version; the command handles that.
                Err(why) if why.code == Code::ProtocolVersion => {}
                Err(why) => return Err(why),
            }
        }
        self.verbs.unmount(&place.point)
    }

    /// Unmounts a volume before its removal.
    ///
    /// # Errors
    /// `in-use`: it is mounted in a container, even without a record, or a process has a file of it
    /// open.
    pub(super) fn end(
        &self,
        record: &VolumeRecord,
        options: &Options,
        place: &VolumePlace,
    ) -> VerbResult<()> {
        if !is_ours(record, options) {
            return Ok(());
        }
        mount_facts::refuse_used(&record.name, mount_facts::still_elsewhere(place)?.as_ref())?;
        match mount_facts::shown(&mount_facts::table()?, place).first() {
            // It is unmounted when it is dropped.
            Some(_) if record.branch().is_some() => Ok(()),
            Some(_) => self.stop(record, place).map_err(|cause| VerbError {
                code: Code::InUse,
                ..cause
            }),
            None => Ok(()),
        }
    }

    /// Removes the recorded uses that `stays` rejects, and unmounts the volume if none remains.
    /// Returns `false` without any effect if the volume is locked.
    pub(super) fn drop_uses(
        &self,
        name: &str,
        stays: impl Fn(&VolumeUse, ActualMounts) -> bool,
    ) -> VerbResult<bool> {
        let Some(_locked) = self.registry.try_lock(name)? else {
            return Ok(false);
        };
        let Some(mut record) = self.registry.load(name)? else {
            return Ok(true);
        };
        let options = record.parsed()?;
        let place = self.registry.place(&record)?;
        let here = is_ours_at(&record, &options, &place)?;
        if record.mounts.is_empty() && !record.mounted && !here {
            return Ok(true);
        }
        let shown = ActualMounts {
            here,
            elsewhere: self.used_elsewhere(&record, &place)?.is_some(),
            ephemeral: options.ephemeral,
        };
        let before = record.mounts.len();
        record.mounts.retain(|mount| stays(mount, shown));
        if record.mounts.len() != before {
            tracing::info!(
                name,
                dropped = before - record.mounts.len(),
                "uses that nobody will end"
            );
            self.registry.history(&record)?.pin_used(&record);
            self.registry.save(&record)?;
        }
        if record.mounts.is_empty() {
            if !shown.elsewhere {
                self.rest(&mut record, true)?;
            }
        } else {
            self.settle(&record, None)?;
        }
        Ok(true)
    }

    /// Ends the uses of an ephemeral volume if all their processes were killed and no container has
    /// it mounted. The next use then gets a new copy.
    ///
    /// # Errors
    /// `in-use`: a process still has a file of the old copy open.
    fn end_orphans(&self, record: &mut VolumeRecord) -> VerbResult<()> {
        let orphans = !record.mounts.is_empty() && record.mounts.iter().all(VolumeUse::is_orphan);
        if !record.parsed()?.ephemeral
            || !orphans
            || mount_facts::still_elsewhere(&self.registry.place(record)?)?.is_some()
        {
            return Ok(());
        }
        tracing::info!(
            name = record.name,
            dropped = record.mounts.len(),
            "uses whose engine was killed"
        );
        record.mounts.clear();
        self.registry.save(record)?;
        self.rest(record, true)?;
        if record.mounted {
            let message = format!(
                "volume {} is still in use by what a killed engine left behind",
                record.name
            );
            return Err(hinted(
                Code::InUse,
                message,
                "stop the processes that have files of it open",
            ));
        }
        Ok(())
    }
}

/// Whether a use belongs to a verb. No automatic checkpoint is made for such a use.
pub(super) fn is_own(id: &str) -> bool {
    id.starts_with(OWN_ID)
}

/// Returns the id of a use. A use of a past state or branch differs from a use of the volume,
/// although an engine may give both the same id.
fn use_id(named: &VolumeRef, id: &str) -> String {
    match (&named.checkpoint, &named.branch) {
        (Some(state), _) => format!("{id}@{state}"),
        (None, Some(branch)) => format!("{id}@{}", branch_part(branch)),
        (None, None) => id.to_owned(),
    }
}

/// Returns the suffix of a use of a branch; no checkpoint can have this name.
fn branch_part(branch: &str) -> String {
    format!("branch/{branch}")
}

/// Whether a mount of the volume was made by us: always in the pool, otherwise if recorded.
fn is_ours(record: &VolumeRecord, options: &Options) -> bool {
    record.mounted || options.source.is_none()
}

/// Whether the volume is mounted, by us.
fn is_ours_at(record: &VolumeRecord, options: &Options, place: &VolumePlace) -> VerbResult<bool> {
    Ok(is_ours(record, options) && !mount_facts::shown(&mount_facts::table()?, place).is_empty())
}
