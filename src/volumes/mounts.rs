//! Volumes are mounted while somebody uses them, and unmounted when nobody does.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::asker::Asker;
use super::error::{error, hinted};
use super::facts::{self, Elsewhere, Place};
use super::files::make_dir;
use super::image;
use super::name::Named;
use super::options::Options;
use super::record::{MountId, Record, boot};
use super::registry::Registry;
use super::verbs::Verbs;
use crate::engine::api::{Code, DropBranch, Unmount, VerbError, VerbResult};

/// How long a daemon may take to put its store in order.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a daemon that a killed driver has left may take to serve, and how often to see.
const STARTING_PATIENCE: Duration = Duration::from_secs(3);
const STARTING_PAUSE: Duration = Duration::from_millis(20);

/// How uses by this program begin; an engine's are hexadecimal.
pub(super) const OWN_ID: &str = "verb-";

/// Mounting and unmounting, and who uses what.
#[derive(Clone, Debug)]
pub struct Mounts {
    pub(super) registry: Registry,
    pub(super) verbs: Arc<dyn Verbs>,
}

/// Where a volume is really mounted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    /// Where we put it.
    pub here: bool,
    /// Elsewhere: in a container, mostly.
    pub elsewhere: bool,
    /// The volume is a fresh copy each time.
    pub ephemeral: bool,
}

impl Mounts {
    pub(super) fn new(registry: Registry, verbs: Arc<dyn Verbs>) -> Mounts {
        Mounts { registry, verbs }
    }

    /// Begins to use a volume, or a past state of it: it is mounted when this returns. `id` is what
    /// the use is called; who is known by `by` and killed cannot give it back, which can be told
    /// then.
    ///
    /// # Errors
    /// `no-such-volume`, `unknown-checkpoint`, why it cannot be mounted.
    pub fn mount(&self, named: &Named, id: &str, by: Option<Asker>) -> VerbResult<PathBuf> {
        // What is no volume gets no lock.
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

    /// Ends a use. One that nobody knows, of whatever volume, has ended.
    ///
    /// # Errors
    /// The pool cannot be written.
    pub fn unmount(&self, named: &Named, id: &str) -> VerbResult<()> {
        if self.registry.load(&named.volume)?.is_none() {
            return Ok(());
        }
        let _locked = self.registry.lock(&named.volume)?;
        let Some(mut record) = self.registry.load(&named.volume)? else {
            return Ok(());
        };
        if record.take(&use_id(named, id)) {
            if named.checkpoint.is_some() {
                // Before it is forgotten: a driver that is killed in between is asked again.
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

    /// Does something with a volume, which is mounted meanwhile. `what` tells it from other things
    /// that this program does.
    ///
    /// # Errors
    /// As of [`Mounts::mount`]; those of the work.
    pub fn during<T, E: From<VerbError>>(
        &self,
        volume: &str,
        what: &str,
        work: impl FnOnce(PathBuf) -> Result<T, E>,
    ) -> Result<T, E> {
        self.during_of(&Named::whole(volume), what, work)
    }

    /// The same with a past state or a branch; the branch is made if there is none.
    ///
    /// # Errors
    /// As of [`Mounts::during`].
    pub(super) fn during_of<T, E: From<VerbError>>(
        &self,
        named: &Named,
        what: &str,
        work: impl FnOnce(PathBuf) -> Result<T, E>,
    ) -> Result<T, E> {
        let id = format!("{OWN_ID}{}-{what}", std::process::id());
        let done = work(self.mount(named, &id, Asker::this())?);
        self.unmount(named, &id)?;
        done
    }

    /// Makes a branch of a volume, which begins as that is now; one that there is stays.
    ///
    /// # Errors
    /// `bad-option`: of a volume that is a fresh copy each time. Those of making a branch.
    pub fn make_branch(&self, named: &Named) -> VerbResult<()> {
        self.during_of(named, "branch", |_| Ok(()))
    }

    /// Drops a branch of a volume, to the trash of its tree, and forgets who has asked for it.
    ///
    /// # Errors
    /// `branch-in-use`: it is mounted in a container, or a process has something of it open.
    pub fn drop_branch(&self, volume: &str, branch: &str) -> VerbResult<()> {
        let history = |volume| self.registry.history(&self.registry.get(volume)?);
        if !history(volume)?
            .branches()?
            .iter()
            .any(|one| one.name == branch)
        {
            // The name of one that was never made.
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

    /// Where a volume, or a branch of it, is used besides where we put it.
    fn used_elsewhere(&self, record: &Record, place: &Place) -> VerbResult<Option<Elsewhere>> {
        if let Some(found) = facts::elsewhere(place)?.used.into_iter().next() {
            return Ok(Some(found));
        }
        for branch in self.registry.history(record)?.branches()? {
            let clone = self.clone_at(&branch).map(|name| self.registry.load(&name));
            let found = if let Some(clone) = clone.transpose()?.flatten() {
                self.used_elsewhere(&clone, &self.registry.place(&clone)?)?
            } else {
                facts::elsewhere(&Place::of_branch(&branch.path))?
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

    /// Where a volume that is mounted is seen.
    fn point(&self, record: &Record) -> VerbResult<PathBuf> {
        let place = self.registry.place(record)?;
        Ok(facts::served(&facts::table()?, &place).unwrap_or(place.point))
    }

    /// Where a past state of a mounted volume is seen; it is pinned as long as it is used.
    fn show_past(
        &self,
        record: &mut Record,
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
        // It may have been deleted just before.
        let shown = history.checkpoint(&number.to_string())?.id;
        Ok(point.join(".snapshots").join(shown.to_string()))
    }

    /// Where a branch of a mounted volume is mounted.
    fn show_branch(&self, record: &Record, branch: &str) -> VerbResult<PathBuf> {
        if record.parsed()?.ephemeral {
            return Err(error(
                Code::BadOption,
                format!(
                    "volume {} is a fresh copy each time: a branch of it would go with it",
                    record.name
                ),
            ));
        }
        facts::branch_at(self.registry.history(record)?.branch(branch)?)
    }

    /// Mounts a volume, if it is not.
    pub(super) fn serve(&self, record: &mut Record, first: bool, asked: bool) -> VerbResult<()> {
        let options = record.parsed()?;
        let place = self.registry.place(record)?;
        if record.branch().is_some() {
            self.serve_clone(record)?;
            record.mounted = true;
        } else if facts::served(&facts::table()?, &place).is_none() {
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
            // What serves it must be known to be ours before it is there.
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

    /// Starts what serves a volume. A driver that was killed may have left a daemon that is still
    /// about to do the same: then that one's mount is as good.
    fn start(&self, place: &Place, options: &Options) -> VerbResult<()> {
        let started = Instant::now();
        loop {
            match self.verbs.mount(place, options) {
                Err(error)
                    if [Code::InUse, Code::AlreadyMounted].contains(&error.code)
                        && started.elapsed() < STARTING_PATIENCE =>
                {
                    std::thread::sleep(STARTING_PAUSE);
                    if facts::served(&facts::table()?, place).is_some() {
                        return Ok(());
                    }
                }
                done => return done,
            }
        }
    }

    /// Unmounts a volume that nobody has asked for, unless it is used nevertheless: then it stays
    /// until it is not.
    pub(super) fn rest(&self, record: &mut Record, asked: bool) -> VerbResult<()> {
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
            let serves = || Ok(facts::served(&facts::table()?, &place).is_some());
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

    /// What is left to do when it is not mounted any more.
    pub(super) fn rested(
        &self,
        record: &mut Record,
        options: &Options,
        place: &Place,
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
            // It is made anew when it is needed; only an empty directory goes.
            let _ = fs::remove_dir(&place.point);
        }
        if record.mounted {
            record.mounted = false;
            self.registry.save(record)?;
        }
        Ok(())
    }

    /// Unmounts. Copies of the mount may keep the filesystem, and come at any moment (whoever makes
    /// a namespace has one): its daemon ends all the same.
    fn stop(&self, record: &Record, place: &Place) -> VerbResult<()> {
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
                // One that was started by another version; the command knows what to do.
                Err(why) if why.code == Code::ProtocolVersion => {}
                Err(why) => return Err(why),
            }
        }
        self.verbs.unmount(&place.point)
    }

    /// Unmounts a volume that is to be removed.
    ///
    /// # Errors
    /// `in-use`: it is mounted in a container, whatever is recorded, or a process has something
    /// open in it.
    pub(super) fn end(&self, record: &Record, options: &Options, place: &Place) -> VerbResult<()> {
        if !is_ours(record, options) {
            return Ok(());
        }
        facts::refuse_used(&record.name, facts::still_elsewhere(place)?.as_ref())?;
        match facts::shown(&facts::table()?, place).first() {
            // It ends as it is dropped.
            Some(_) if record.branch().is_some() => Ok(()),
            Some(_) => self.stop(record, place).map_err(|cause| VerbError {
                code: Code::InUse,
                ..cause
            }),
            None => Ok(()),
        }
    }

    /// Forgets the uses that `stays` does not take, and unmounts the volume if none is left. Does
    /// nothing while somebody works on it, and returns false then.
    pub(super) fn drop_uses(
        &self,
        name: &str,
        stays: impl Fn(&MountId, Shown) -> bool,
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
        let shown = Shown {
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

    /// Ends the use of an ephemeral volume if all who asked for it were killed and no container has
    /// it, so that the next one gets a fresh copy.
    ///
    /// # Errors
    /// `in-use`: something still has the old copy open.
    fn end_orphans(&self, record: &mut Record) -> VerbResult<()> {
        let orphans = !record.mounts.is_empty() && record.mounts.iter().all(MountId::is_orphan);
        if !record.parsed()?.ephemeral
            || !orphans
            || facts::still_elsewhere(&self.registry.place(record)?)?.is_some()
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

/// A use by a verb is no use by a container: no checkpoint is made for it.
pub(super) fn is_own(id: &str) -> bool {
    id.starts_with(OWN_ID)
}

/// The use of a past state, or of a branch, is another one than that of the volume, though an engine
/// may call both the same.
fn use_id(named: &Named, id: &str) -> String {
    match (&named.checkpoint, &named.branch) {
        (Some(state), _) => format!("{id}@{state}"),
        (None, Some(branch)) => format!("{id}@{}", branch_part(branch)),
        (None, None) => id.to_owned(),
    }
}

/// What a branch adds to the id of a use; no checkpoint can be called so.
fn branch_part(branch: &str) -> String {
    format!("branch/{branch}")
}

/// Whether a mount of the volume is one that we have made: in the pool nobody else does, and of a
/// directory that there was it is recorded.
fn is_ours(record: &Record, options: &Options) -> bool {
    record.mounted || options.source.is_none()
}

/// Whether the volume is mounted, by us.
fn is_ours_at(record: &Record, options: &Options, place: &Place) -> VerbResult<bool> {
    Ok(is_ours(record, options) && !facts::shown(&facts::table()?, place).is_empty())
}
