//! The pool: volumes are made, served, and removed.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::error::{error, failed, hinted};
use super::facts::{self, Elsewhere};
use super::image;
use super::name::{self, Named};
use super::options::{OnRemove, Options};
use super::own::Own;
use super::record::{MountId, Parent, Record, boot, now_text, sync_parent};
use super::uses::Asker;
use crate::control::{Client, History, Store};
use crate::engine::api::{CheckpointInfo, CheckpointOptions, ListCheckpoints, ShowCheckpoint, StateName, Unmount, VerbError, VerbResult};
use crate::engine::offline::Offline;
use crate::engine::word::word;
use crate::store::ids::CheckpointId;
use crate::sys;

/// How long somebody else's work on a volume is waited for.
const LOCK_PATIENCE: Duration = Duration::from_secs(100);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// How long a daemon may take to put its store in order.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a container that has ended may take to be gone.
const ENDING_PATIENCE: Duration = Duration::from_millis(500);
const ENDING_PAUSE: Duration = Duration::from_millis(20);

/// How long a verb that a killed driver has left may take.
const STARTING_PATIENCE: Duration = Duration::from_secs(3);

/// How uses by this program begin; an engine's are hexadecimal.
const OWN_ID: &str = "verb-";

/// The directories of a pool, and their modes: users of containers get through to where volumes are mounted, and to nothing else.
const DIRECTORIES: [(&str, u32); 8] =
    [("", 0o711), ("volumes", 0o700), ("mnt", 0o711), ("meta", 0o700), ("locks", 0o700), ("staging", 0o700), ("images", 0o700), ("gone", 0o700)];

/// Where a volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The directory that is served.
    pub backing: PathBuf,
    /// Where it is seen.
    pub point: PathBuf,
}

/// A pool of volumes.
#[derive(Clone, Debug)]
pub struct Pool {
    root: PathBuf,
    mounts: PathBuf,
    own: Own,
    on_remove: OnRemove,
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

/// A volume that nobody else works on meanwhile.
pub(super) struct Locked {
    file: File,
    path: PathBuf,
}

impl Locked {
    /// The volume is gone, and its lock with it.
    pub(super) fn forget(self) {
        // One that is left is an empty file.
        let _ = fs::remove_file(&self.path);
        drop(self.file);
    }
}

impl Pool {
    /// Opens the pool at `root`, and makes it if there is none; volumes are mounted in `mounts`, or in the pool.
    ///
    /// # Errors
    /// Those of making directories.
    pub fn open(root: &Path, mounts: Option<&Path>, own: Own) -> VerbResult<Pool> {
        fs::create_dir_all(root).map_err(|cause| failed(root, cause))?;
        let root = root.canonicalize().map_err(|cause| failed(root, cause))?;
        for (name, mode) in DIRECTORIES {
            let dir = root.join(name);
            let made = match DirBuilder::new().mode(mode).create(&dir) {
                Err(cause) if cause.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
                made => made,
            };
            made.map_err(|cause| failed(&dir, cause))?;
        }
        let mounts = match mounts {
            Some(dir) => {
                fs::create_dir_all(dir).map_err(|cause| failed(dir, cause))?;
                dir.canonicalize().map_err(|cause| failed(dir, cause))?
            }
            None => root.join("mnt"),
        };
        Ok(Pool { root, mounts, own, on_remove: OnRemove::Delete })
    }

    /// As it is, but with what removal does where a volume does not say.
    pub fn with_on_remove(self, on_remove: OnRemove) -> Pool {
        Pool { on_remove, ..self }
    }

    /// The directory of the pool.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn meta(&self, name: &str) -> PathBuf {
        self.root.join("meta").join(format!("{name}.json"))
    }

    pub(super) fn image(&self, name: &str) -> PathBuf {
        self.root.join("images").join(format!("{name}.img"))
    }

    /// Where a volume is.
    pub fn place(&self, name: &str, options: &Options) -> Place {
        match &options.source {
            Some(source) => Place { backing: source.clone(), point: source.clone() },
            None => Place { backing: self.root.join("volumes").join(name), point: self.mounts.join(name) },
        }
    }

    pub(super) fn lock(&self, name: &str) -> VerbResult<Locked> {
        let started = Instant::now();
        while started.elapsed() < LOCK_PATIENCE {
            if let Some(locked) = self.try_lock(name)? {
                return Ok(locked);
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        Err(hinted("busy", format!("volume {name} is being worked on"), "try again later"))
    }

    fn try_lock(&self, name: &str) -> VerbResult<Option<Locked>> {
        let path = self.root.join("locks").join(name);
        let cannot = |cause: std::io::Error| failed(&path, cause);
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(cannot)?;
        if !sys::flock_exclusive(&file).map_err(|cause| cannot(cause.into()))? {
            return Ok(None);
        }
        // Whoever removed the volume has removed the file too: then another one counts.
        let same = fs::metadata(&path).is_ok_and(|there| file.metadata().is_ok_and(|ours| ours.ino() == there.ino()));
        Ok(same.then_some(Locked { file, path }))
    }

    /// A volume.
    ///
    /// # Errors
    /// `no-such-volume`.
    pub fn get(&self, name: &str) -> VerbResult<Record> {
        name::check(name)?;
        match Record::load(&self.meta(name))? {
            Some(record) if !record.removing => Ok(record),
            _ => Err(no_such(name)),
        }
    }

    /// All volumes, by name. What cannot be read is left out, and told in the log.
    ///
    /// # Errors
    /// The pool cannot be read.
    pub fn list(&self) -> VerbResult<Vec<Record>> {
        let records = self.names()?.into_iter().filter_map(|name| match Record::load(&self.meta(&name)) {
            Ok(record) => record.filter(|record| !record.removing),
            Err(error) => {
                tracing::warn!(%name, error = error.message, "a volume cannot be read");
                None
            }
        });
        Ok(records.collect())
    }

    pub(super) fn names(&self) -> VerbResult<Vec<String>> {
        let dir = self.root.join("meta");
        let entries = fs::read_dir(&dir).map_err(|cause| failed(&dir, cause))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(".json").map(str::to_owned));
        let mut names: Vec<String> = names.filter(|name| name::check(name).is_ok()).collect();
        names.sort();
        Ok(names)
    }

    /// Makes a volume; one that is there with the same options is what was asked for.
    ///
    /// # Errors
    /// `bad-name`, `unknown-option`, `bad-option`, `volume-exists`, what goes wrong with the tree. Nothing is left then.
    pub fn create(&self, name: &str, given: &BTreeMap<String, String>) -> VerbResult<Record> {
        self.make(Record::new(name, given.clone()), |there| there.options == *given)
    }

    /// Makes a volume; one that is there is what was asked for if `same` says so.
    pub(super) fn make(&self, mut record: Record, same: impl FnOnce(&Record) -> bool) -> VerbResult<Record> {
        let (name, given) = (&record.name.clone(), &record.options.clone());
        name::check(name)?;
        let options = Options::parse(given)?;
        let locked = self.lock(name)?;
        if let Some(there) = Record::load(&self.meta(name))?.filter(|there| !there.removing) {
            if same(&there) {
                return Ok(there);
            }
            let hint = format!("remove it first, or take another name: ckptfs volumes inspect {}", word(name));
            return Err(hinted("volume-exists", format!("volume {name} is there already, with other options"), hint));
        }
        let made = self.make_tree(&mut record, &options).and_then(|()| record.save(&self.meta(name)));
        if made.is_err() {
            self.unmake(name, &options);
            locked.forget();
        }
        made.map(|()| record)
    }

    fn make_tree(&self, record: &mut Record, options: &Options) -> VerbResult<()> {
        let place = self.place(&record.name, options);
        if let Some(source) = &options.source {
            return match fs::metadata(source) {
                Ok(found) if found.is_dir() => Ok(()),
                Ok(_) => Err(error("not-a-directory", format!("{} is not a directory", source.display()))),
                Err(cause) => Err(failed(source, cause)),
            };
        }
        // A tree without a record was never told to be a volume, or its record was lost: nothing is deleted that may be somebody's.
        self.set_orphan_aside(&record.name)?;
        self.unmake(&record.name, options);
        if options.ephemeral {
            let (parent, state) = options.from.as_ref().ok_or_else(|| error("internal", "ephemeral without from"))?;
            let parent = self.get(parent)?;
            return state.as_ref().map_or(Ok(()), |state| self.checkpoint_of(&parent, state).map(drop));
        }
        self.fill(record, options, &place)
    }

    /// Makes the tree of a volume.
    fn fill(&self, record: &mut Record, options: &Options, place: &Place) -> VerbResult<()> {
        let cannot = |cause: std::io::Error| failed(&place.backing, cause);
        if let Some(bytes) = options.size {
            image::make(&self.image(&record.name), bytes)?;
            make_dir(&place.backing, 0o700)?;
            image::mount(&self.image(&record.name), &place.backing)?;
            self.fill_tree(&place.backing, record, options)?;
            return image::unmount(&place.backing);
        }
        let staged = self.root.join("staging").join(&record.name);
        remove_tree(&staged)?;
        make_dir(&staged, 0o700)?;
        self.fill_tree(&staged, record, options)?;
        fs::rename(&staged, &place.backing).and_then(|()| sync_parent(&place.backing)).map_err(cannot)
    }

    fn fill_tree(&self, dir: &Path, record: &mut Record, options: &Options) -> VerbResult<()> {
        let cannot = |cause: std::io::Error| failed(dir, cause);
        if let Some((volume, state)) = &options.from {
            record.parent = Some(self.clone_into(dir, volume, state.as_deref(), &record.name)?);
        } else {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).map_err(cannot)?;
        }
        if options.uid.is_some() || options.gid.is_some() {
            chown(dir, options.uid, options.gid).map_err(cannot)?;
        }
        match options.mode {
            Some(mode) => fs::set_permissions(dir, fs::Permissions::from_mode(mode)).map_err(cannot),
            None => Ok(()),
        }
    }

    /// Copies a state of a volume to an empty directory. Files share their data where the filesystem can do that.
    fn clone_into(&self, dir: &Path, volume: &str, state: Option<&str>, child: &str) -> VerbResult<Parent> {
        let id = own_id(child);
        let parent = Named { volume: volume.to_owned(), checkpoint: None };
        let point = self.mount(&parent, &id)?;
        let copied = (|| {
            let state = match state {
                Some(state) => self.checkpoint_of(&self.get(volume)?, state)?.id,
                None => self.checkpoint(&self.get(volume)?, &format!("volume {child} begins here"))?,
            };
            let (number, dir) = (state.to_string(), dir.to_string_lossy());
            self.own.verb_in(&point, &["fork", &number, &dir])?;
            Ok(Parent { volume: volume.to_owned(), checkpoint: state.0 })
        })();
        self.unmount(&parent, &id)?;
        copied
    }

    /// Makes a checkpoint of a volume that is mounted, unless the newest one is that already.
    fn checkpoint(&self, record: &Record, note: &str) -> VerbResult<CheckpointId> {
        let client = self.daemon(record)?;
        let mut client = client.ok_or_else(|| hinted("daemon-busy", format!("no daemon serves volume {}", record.name), "try again later"))?;
        Ok(client.ask(CheckpointOptions { note: note.to_owned(), if_changed: true, ..CheckpointOptions::default() })?.id)
    }

    /// Makes a checkpoint that nobody waits for: that there can be none keeps no container from starting or ending.
    fn mark(&self, record: &Record, note: &str) {
        if let Err(error) = self.checkpoint(record, note) {
            tracing::warn!(name = record.name, note, error = error.message, "no checkpoint was made");
        }
    }

    /// Makes a volume of a tree that there is, which `place` puts where it belongs.
    pub(super) fn put_back(&self, record: Record, place: impl FnOnce(&Path, &Path) -> VerbResult<()>) -> VerbResult<()> {
        let _locked = self.lock(&record.name)?;
        let meta = self.meta(&record.name);
        if Record::load(&meta)?.is_some() {
            return Err(hinted(
                "volume-exists",
                format!("there is another volume {}", record.name),
                format!("remove that one first: ckptfs volumes rm {}", word(&record.name)),
            ));
        }
        self.set_orphan_aside(&record.name)?;
        place(&self.root.join("volumes").join(&record.name), &self.image(&record.name))?;
        record.save(&meta)
    }

    /// Takes away what a making, or a removal, that was cut short has left.
    fn unmake(&self, name: &str, options: &Options) {
        if options.source.is_some() {
            return;
        }
        let backing = self.root.join("volumes").join(name);
        let _ = image::unmount(&backing);
        let image = self.image(name);
        let removed = [remove_tree(&self.root.join("staging").join(name)), self.set_gone(&backing, name).map(drop)];
        let _ = fs::remove_file(&image);
        for error in removed.into_iter().filter_map(Result::err) {
            tracing::warn!(name, error = error.message, "what is left of a volume cannot be removed");
        }
    }

    /// Begins to use a volume, or a past state of it: it is mounted when this returns. `id` is what the use is called.
    ///
    /// # Errors
    /// `no-such-volume`, `unknown-checkpoint`, why it cannot be mounted.
    pub fn mount(&self, named: &Named, id: &str) -> VerbResult<PathBuf> {
        self.mount_for(named, id, None)
    }

    /// The same, for somebody who is known: what he has not given back when he is killed can be told to have ended.
    ///
    /// # Errors
    /// As of [`Pool::mount`].
    pub fn mount_for(&self, named: &Named, id: &str, by: Option<Asker>) -> VerbResult<PathBuf> {
        // What is no volume gets no lock.
        self.get(&named.volume)?;
        let _locked = self.lock(&named.volume)?;
        let mut record = self.get(&named.volume)?;
        let options = record.parsed()?;
        let id = use_id(named, id);
        if !is_own(&id) {
            self.end_orphans(&mut record, &options, &self.place(&named.volume, &options))?;
        }
        let (first, new) = (record.mounts.is_empty(), record.add(&id, &boot(), by));
        record.save(&self.meta(&record.name))?;
        let mounted = self.serve(&mut record, first, !is_own(&id)).and_then(|point| match &named.checkpoint {
            Some(state) => self.show_past(&mut record, &point, &id, state),
            None => Ok(point),
        });
        if mounted.is_err() && new {
            record.take(&id);
            record.save(&self.meta(&record.name))?;
            if record.mounts.is_empty() {
                self.rest(&mut record, false)?;
            }
        }
        mounted
    }

    /// Where a past state of a mounted volume is seen; it is pinned as long as it is used.
    fn show_past(&self, record: &mut Record, point: &Path, id: &str, state: &str) -> VerbResult<PathBuf> {
        let number = self.checkpoint_of(record, state)?.id.0;
        for mount in record.mounts.iter_mut().filter(|mount| mount.id == id) {
            mount.checkpoint = Some(number);
        }
        record.save(&self.meta(&record.name))?;
        self.try_pin_used(record);
        // It may have been deleted just before.
        let shown = self.checkpoint_of(record, &number.to_string())?.id;
        Ok(point.join(".snapshots").join(shown.to_string()))
    }

    /// Mounts a volume, if it is not.
    fn serve(&self, record: &mut Record, first: bool, asked: bool) -> VerbResult<PathBuf> {
        let options = record.parsed()?;
        let place = self.place(&record.name, &options);
        if !facts::serves(&facts::table()?, &place.point) {
            if options.ephemeral {
                let backing = &place.backing;
                self.set_gone(backing, &record.name)?.as_deref().map_or(Ok(()), remove_tree)?;
                remove_file(&self.image(&record.name))?;
                self.fill(record, &options, &place)?;
                record.configured = false;
            } else if options.size.is_some() {
                image::mount(&self.image(&record.name), &place.backing)?;
            }
            if options.source.is_none() {
                make_dir(&place.point, 0o711)?;
            }
            // What serves it must be known to be ours before it is there.
            record.mounted = true;
            record.save(&self.meta(&record.name))?;
            self.start(&place, &options)?;
        }
        if record.mounted && !record.configured {
            for (key, value) in &options.keep {
                self.own.verb_in(&place.point, &["config", "set", key, value])?;
            }
            record.configured = true;
            record.save(&self.meta(&record.name))?;
        }
        if first && options.auto.mount && asked {
            self.mark(record, "mounted");
        }
        Ok(place.point)
    }

    /// Mounts. A driver that was killed may have left a verb that is still about to do the same: then that one's mount is as good.
    fn start(&self, place: &Place, options: &Options) -> VerbResult<()> {
        let started = Instant::now();
        loop {
            match self.own.verb(&mount_arguments(place, options)) {
                Err(error) if ["in-use", "already-mounted"].contains(&error.code.as_str()) && started.elapsed() < STARTING_PATIENCE => {
                    std::thread::sleep(ENDING_PAUSE);
                    if facts::serves(&facts::table()?, &place.point) {
                        return Ok(());
                    }
                }
                done => return done.map(drop),
            }
        }
    }

    /// Ends a use. One that nobody knows, of whatever volume, has ended.
    ///
    /// # Errors
    /// The pool cannot be written.
    pub fn unmount(&self, named: &Named, id: &str) -> VerbResult<()> {
        if Record::load(&self.meta(&named.volume))?.is_none() {
            return Ok(());
        }
        let _locked = self.lock(&named.volume)?;
        let Some(mut record) = Record::load(&self.meta(&named.volume))? else { return Ok(()) };
        if record.take(&use_id(named, id)) {
            if named.checkpoint.is_some() {
                // Before it is forgotten: a driver that is killed in between is asked again.
                self.try_pin_used(&record);
            }
            record.save(&self.meta(&record.name))?;
        }
        if record.mounts.is_empty() { self.rest(&mut record, !is_own(id)) } else { Ok(()) }
    }

    /// Unmounts a volume that nobody has asked for, unless it is used nevertheless: then it stays until it is not.
    pub(super) fn rest(&self, record: &mut Record, asked: bool) -> VerbResult<()> {
        let options = record.parsed()?;
        let place = self.place(&record.name, &options);
        if is_ours(record, &options) && facts::ours(&facts::table()?, &place.point).is_some() {
            if let Some(elsewhere) = facts::elsewhere(&place)?.used.first() {
                tracing::info!(name = record.name, ?elsewhere, "the volume stays mounted: it is in use");
                return Ok(());
            }
            if asked && options.auto.unmount && facts::serves(&facts::table()?, &place.point) {
                self.mark(record, "unmounted");
            }
            if let Err(error) = self.stop(&place) {
                tracing::info!(name = record.name, error = error.message, "the volume stays mounted");
                return Ok(());
            }
        }
        self.rested(record, &options, &place)
    }

    pub(super) fn is_removing(&self, name: &str) -> bool {
        Record::load(&self.meta(name)).is_ok_and(|record| record.is_some_and(|record| record.removing))
    }

    /// Forgets the uses that `stays` does not take, and unmounts the volume if none is left. Does nothing while somebody works on it.
    pub(super) fn drop_uses(&self, name: &str, stays: impl Fn(&MountId, Shown) -> bool) -> VerbResult<()> {
        let Some(_locked) = self.try_lock(name)? else { return Ok(()) };
        let Some(mut record) = Record::load(&self.meta(name))? else { return Ok(()) };
        let options = record.parsed()?;
        let place = self.place(name, &options);
        let here = is_ours(&record, &options) && facts::ours(&facts::table()?, &place.point).is_some();
        if record.mounts.is_empty() && !record.mounted && !here {
            return Ok(());
        }
        let shown = Shown { here, elsewhere: !facts::elsewhere(&place)?.used.is_empty(), ephemeral: options.ephemeral };
        let before = record.mounts.len();
        record.mounts.retain(|mount| stays(mount, shown));
        if record.mounts.len() != before {
            tracing::info!(name, dropped = before - record.mounts.len(), "uses that nobody will end");
            self.try_pin_used(&record);
            record.save(&self.meta(name))?;
        }
        if record.mounts.is_empty() && !shown.elsewhere { self.rest(&mut record, true) } else { Ok(()) }
    }

    /// Removes a tree that was being made, if nobody makes it now.
    pub(super) fn drop_staged(&self, name: &str) {
        if let Ok(Some(locked)) = self.try_lock(name) {
            let removed = remove_tree(&self.root.join("staging").join(name));
            if let Err(error) = removed {
                tracing::warn!(name, error = error.message, "what is left of a volume cannot be deleted");
            }
            if !self.meta(name).exists() {
                locked.forget();
            }
        }
    }

    /// What is left to do when it is not mounted any more.
    fn rested(&self, record: &mut Record, options: &Options, place: &Place) -> VerbResult<()> {
        if options.size.is_some()
            && let Err(error) = image::unmount(&place.backing)
        {
            tracing::warn!(name = record.name, error = error.message, "the image stays mounted");
        }
        if options.ephemeral
            && let Some(gone) = self.set_gone(&place.backing, &record.name)?
        {
            remove_tree(&gone)?;
            remove_file(&self.image(&record.name))?;
        }
        if options.source.is_none() {
            // It is made anew when it is needed; only an empty directory goes.
            let _ = fs::remove_dir(&place.point);
        }
        if record.mounted {
            record.mounted = false;
            record.save(&self.meta(&record.name))?;
        }
        Ok(())
    }

    /// Unmounts. Copies of the mount may keep the filesystem, and come at any moment (whoever makes a namespace has one): its daemon ends all the same.
    fn stop(&self, place: &Place) -> VerbResult<()> {
        if let Some(mut client) = store(place).and_then(|store| Client::of(&store).ok()) {
            match client.ask(Unmount { lazy: false, leave: true, keep: None }) {
                Ok(()) if client.wait_ended(END_TIMEOUT) => return Ok(()),
                Ok(()) => return Err(hinted("daemon-busy", "the daemon does not end", "try again later")),
                // One that was started by another version; the command knows what to do.
                Err(why) if why.code == "protocol-version" => {}
                Err(why) => return Err(why),
            }
        }
        self.own.verb(&["umount".as_ref(), place.point.as_os_str()]).map(drop)
    }

    /// Removes a volume. What is to be deleted is given back: the volume is gone before that is done.
    ///
    /// # Errors
    /// `no-such-volume`, `in-use`: it is mounted in a container, whatever is recorded, or a process has something open in it.
    pub fn remove(&self, name: &str) -> VerbResult<Option<PathBuf>> {
        name::check(name)?;
        Record::load(&self.meta(name))?.ok_or_else(|| no_such(name))?;
        let locked = self.lock(name)?;
        let mut record = Record::load(&self.meta(name))?.ok_or_else(|| no_such(name))?;
        let options = record.parsed()?;
        let place = self.place(name, &options);
        if is_ours(&record, &options) {
            if let Some(elsewhere) = self.still_elsewhere(&place)? {
                let message = format!("volume {name} is mounted at {} of process {}", elsewhere.at.display(), elsewhere.pid);
                return Err(hinted("in-use", message, "stop what uses it first"));
            }
            if facts::ours(&facts::table()?, &place.point).is_some() {
                self.stop(&place).map_err(|cause| VerbError { code: "in-use".into(), ..cause })?;
            }
        }
        record.removing = true;
        record.mounts.clear();
        record.save(&self.meta(name))?;
        self.rested(&mut record, &options, &place)?;
        let gone = self.put_away(name, &options, &place, &record)?;
        self.forget_sizes(name);
        fs::remove_file(self.meta(name)).and_then(|()| sync_parent(&self.meta(name))).map_err(|cause| failed(&self.meta(name), cause))?;
        locked.forget();
        Ok(gone)
    }

    /// Where it is mounted besides, when a moment has passed: a container that has just ended takes its mounts with it a little later.
    pub(super) fn still_elsewhere(&self, place: &Place) -> VerbResult<Option<Elsewhere>> {
        let started = Instant::now();
        loop {
            let found = facts::elsewhere(place)?.used.into_iter().next();
            if found.is_none() || started.elapsed() > ENDING_PATIENCE {
                return Ok(found);
            }
            std::thread::sleep(ENDING_PAUSE);
        }
    }

    /// Whether a volume that is removed goes to the trash.
    ///
    /// # Errors
    /// Its record was written by somebody else.
    pub fn keeps(&self, record: &Record) -> VerbResult<bool> {
        let options = record.parsed()?;
        Ok(options.source.is_none() && !options.ephemeral && options.on_remove.unwrap_or(self.on_remove) == OnRemove::Trash)
    }

    /// Takes the tree out of the way: into the trash, or to where it is deleted.
    fn put_away(&self, name: &str, options: &Options, place: &Place, record: &Record) -> VerbResult<Option<PathBuf>> {
        if options.source.is_some() {
            return Ok(None);
        }
        if self.keeps(record)? {
            let (trash, image) = (self.trash_for(name)?, self.image(name));
            record.save(&trash.join("volume.json"))?;
            for (from, to) in [(&place.backing, "tree"), (&image, "disk.img")] {
                match fs::rename(from, trash.join(to)) {
                    Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => return Err(failed(from, cause)),
                    _ => {}
                }
            }
            return Ok(None);
        }
        remove_file(&self.image(name))?;
        self.set_gone(&place.backing, name)
    }

    fn set_orphan_aside(&self, name: &str) -> VerbResult<()> {
        let (tree, image) = (self.root.join("volumes").join(name), self.image(name));
        image::unmount(&tree)?;
        let found: Vec<(&Path, &str)> =
            [(tree.as_path(), "tree"), (image.as_path(), "disk.img")].into_iter().filter(|(path, _)| path.exists()).collect();
        if found.is_empty() {
            return Ok(());
        }
        let trash = self.trash_for(name)?;
        found.into_iter().try_for_each(|(from, to)| fs::rename(from, trash.join(to)).map_err(|cause| failed(from, cause)))
    }

    fn trash_for(&self, name: &str) -> VerbResult<PathBuf> {
        let trash = self.root.join("trash");
        make_dir(&trash, 0o700)?;
        let dir = free_name(&trash, &format!("{name}@{}", now_text()));
        make_dir(&dir, 0o700)?;
        Ok(dir)
    }

    /// Moves a tree to where trees are deleted.
    fn set_gone(&self, tree: &Path, name: &str) -> VerbResult<Option<PathBuf>> {
        let gone = free_name(&self.root.join("gone"), name);
        match fs::rename(tree, &gone) {
            Ok(()) => Ok(Some(gone)),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(failed(tree, cause)),
        }
    }

    /// The place where a volume is seen, if it is mounted.
    ///
    /// # Errors
    /// The table of mounts cannot be read.
    pub fn mountpoint(&self, record: &Record) -> VerbResult<Option<PathBuf>> {
        let place = self.place(&record.name, &record.parsed()?);
        Ok(facts::ours(&facts::table()?, &place.point).map(|_| place.point))
    }

    /// Who tells the history of a volume: its daemon, or without one its store. `None`: there is no history yet, or it is in an image.
    fn history(&self, record: &Record) -> VerbResult<Option<History>> {
        let place = self.place(&record.name, &record.parsed()?);
        let Some(store) = store(&place) else { return Ok(None) };
        if let Ok(client) = Client::of(&store) {
            return Ok(Some(History::Daemon(client)));
        }
        let root = sys::open_root(&place.backing).map_err(|cause| failed(&place.backing, cause))?;
        Ok(Some(History::Store(Box::new(Offline::open(root)?))))
    }

    /// The daemon that serves a volume.
    pub(super) fn daemon(&self, record: &Record) -> VerbResult<Option<Client>> {
        let place = self.place(&record.name, &record.parsed()?);
        Ok(store(&place).and_then(|store| Client::of(&store).ok()))
    }

    /// The checkpoints of a volume, newest first.
    ///
    /// # Errors
    /// Its history cannot be read.
    pub fn checkpoints(&self, record: &Record) -> VerbResult<Vec<CheckpointInfo>> {
        self.history(record)?.map_or_else(|| Ok(Vec::new()), |mut history| history.ask(ListCheckpoints))
    }

    /// One checkpoint of a volume.
    ///
    /// # Errors
    /// `unknown-checkpoint`.
    pub fn checkpoint_of(&self, record: &Record, state: &str) -> VerbResult<CheckpointInfo> {
        match self.history(record)? {
            Some(mut history) => history.ask(ShowCheckpoint { state: StateName(state.to_owned()) }),
            None => Err(error("unknown-checkpoint", format!("volume {} has no checkpoint {state}", record.name))),
        }
    }
}

fn no_such(name: &str) -> VerbError {
    hinted("no-such-volume", format!("no such volume: {name}"), "ckptfs volumes ls")
}

/// What a use by this program is called.
pub fn own_id(what: &str) -> String {
    format!("{OWN_ID}{}-{what}", std::process::id())
}

/// A use by a verb is no use by a container: no checkpoint is made for it.
fn is_own(id: &str) -> bool {
    id.starts_with(OWN_ID)
}

/// The use of a past state is another one than that of the volume, though an engine may call both the same.
fn use_id(named: &Named, id: &str) -> String {
    named.checkpoint.as_ref().map_or_else(|| id.to_owned(), |state| format!("{id}@{state}"))
}

/// Whether a mount of the volume is one that we have made: in the pool nobody else does, and of a directory that there was it is recorded.
/// The store of a volume, if there is one that may be believed. A source that somebody names is where somebody else may write, too.
fn store(place: &Place) -> Option<Store> {
    Store::of(&place.backing.canonicalize().ok()?).ok()?
}

fn is_ours(record: &Record, options: &Options) -> bool {
    record.mounted || options.source.is_none()
}

fn mount_arguments(place: &Place, options: &Options) -> Vec<std::ffi::OsString> {
    // Whoever is in the containers of one volume is one party, whatever users they run as.
    let mut arguments: Vec<std::ffi::OsString> = vec!["mount".into(), "--allow-other".into(), "--others-io=kernel".into()];
    arguments.extend(options.snapdir.map(|snapdir| format!("--snapdir={snapdir}").into()));
    arguments.extend(options.auto.every.map(|every| format!("--auto-every={}ms", every.as_millis()).into()));
    arguments.extend(options.readonly.then(|| "-oro".into()));
    arguments.extend(["--".into(), place.backing.clone().into()]);
    arguments.extend((place.point != place.backing).then(|| place.point.clone().into()));
    arguments
}

/// Makes a directory, if it is not there.
pub(super) fn make_dir(dir: &Path, mode: u32) -> VerbResult<()> {
    match DirBuilder::new().mode(mode).create(dir) {
        Err(cause) if cause.kind() != std::io::ErrorKind::AlreadyExists => Err(failed(dir, cause)),
        _ => Ok(()),
    }
}

/// Removes a tree, if it is there.
pub(super) fn remove_tree(dir: &Path) -> VerbResult<()> {
    match fs::remove_dir_all(dir) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => Err(failed(dir, cause)),
        _ => Ok(()),
    }
}

/// Removes a file, if it is there.
fn remove_file(path: &Path) -> VerbResult<()> {
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => Err(failed(path, cause)),
        _ => Ok(()),
    }
}

/// A name in `dir` that nothing has.
fn free_name(dir: &Path, name: &str) -> PathBuf {
    let mut path = dir.join(name);
    for number in 1.. {
        if fs::symlink_metadata(&path).is_err() {
            break;
        }
        path = dir.join(format!("{name}.{number}"));
    }
    path
}
