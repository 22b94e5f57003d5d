//! The history of a volume, from its daemon or, without one, from its store.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::mount_facts::VolumePlace;
use super::record::VolumeRecord;
use ckptfs_api::{
    BranchInfo, CheckpointId, CheckpointInfo, CheckpointOptions, Client, Code, CreateBranch,
    ErrorContext, ListBranches, ListCheckpoints, MountBranch, PinCheckpoint, STORE_NAME,
    ShowCheckpoint, StateName, StoreDir, VerbResult, error, hinted,
};
use ckptfs_core::engine::branches::beside;
use ckptfs_core::engine::offline::Offline;
use ckptfs_core::engine::settings::{self, STORE_FILE};
use ckptfs_daemon::VerbExecutor;
use ckptfs_sys as sys;

/// Pin reason of a checkpoint in use as a volume. Pins with other reasons belong to other users.
const PINNED_FOR_USE: &str = "in use as a volume";

/// The history of one volume.
#[derive(Clone, Debug)]
pub struct VolumeHistory {
    name: String,
    place: VolumePlace,
}

impl VolumeHistory {
    pub(super) fn new(name: &str, place: VolumePlace) -> VolumeHistory {
        VolumeHistory {
            name: name.to_owned(),
            place,
        }
    }

    /// Returns the store, if a trustworthy one exists. A source directory named by the user may be
    /// writable by others.
    fn store(&self) -> Option<StoreDir> {
        StoreDir::of(&self.place.backing.canonicalize().ok()?).ok()?
    }

    /// Connects to the daemon that serves the volume, if any.
    pub(super) fn daemon(&self) -> Option<Client> {
        Client::of(&self.store()?).ok()
    }

    /// Connects to the daemon of a mounted volume.
    pub(super) fn serving(&self) -> VerbResult<Client> {
        self.daemon().ok_or_else(|| {
            hinted(
                Code::DaemonBusy,
                format!("no daemon serves volume {}", self.name),
                "try again later",
            )
        })
    }

    /// Returns the source of the history; `None` if it does not exist yet, or is in an image.
    fn teller(&self) -> VerbResult<Option<VerbExecutor>> {
        let Some(store) = self.store() else {
            return Ok(None);
        };
        if let Ok(client) = Client::of(&store) {
            return Ok(Some(VerbExecutor::Daemon(client)));
        }
        let backing = &self.place.backing;
        let root = sys::open_root(backing).on(backing.display())?;
        Ok(Some(VerbExecutor::Store(Box::new(Offline::open(root)?))))
    }

    /// Returns the checkpoints, newest first.
    ///
    /// # Errors
    /// The history cannot be read.
    pub fn checkpoints(&self) -> VerbResult<Vec<CheckpointInfo>> {
        self.teller()?.map_or_else(
            || Ok(Vec::new()),
            |mut history| history.ask(ListCheckpoints),
        )
    }

    /// Returns a checkpoint.
    ///
    /// # Errors
    /// `unknown-checkpoint`.
    pub fn checkpoint(&self, state: &str) -> VerbResult<CheckpointInfo> {
        match self.teller()? {
            Some(mut history) => history.ask(ShowCheckpoint {
                state: StateName(state.to_owned()),
            }),
            None => Err(error(
                Code::UnknownCheckpoint,
                format!("volume {} has no checkpoint {state}", self.name),
            )),
        }
    }

    /// Returns the branches, sorted by name.
    ///
    /// # Errors
    /// The history cannot be read.
    pub fn branches(&self) -> VerbResult<Vec<BranchInfo>> {
        self.teller()?.map_or_else(
            || Ok(Vec::new()),
            |mut history| history.ask(ListBranches::default()),
        )
    }

    /// Returns the mount point of a branch of a mounted volume, next to its tree. The branch is
    /// created from the current state if it does not exist.
    pub(super) fn branch(&self, name: &str) -> VerbResult<PathBuf> {
        let mut client = self.serving()?;
        let all = client.ask(ListBranches::default())?;
        match all.into_iter().find(|branch| branch.name == name) {
            Some(branch) if branch.mounted => return Ok(branch.path),
            Some(branch) => {
                let name = branch.name;
                return Ok(client.ask(MountBranch { name })?.path);
            }
            None => {}
        }
        let path = beside(&self.place.backing, name)?;
        Ok(self.make_branch(name, None, &path)?.path)
    }

    /// Creates a branch of a mounted volume at `path`, which must not exist. Its base is the
    /// checkpoint `at`, or the current state.
    pub(super) fn make_branch(
        &self,
        name: &str,
        at: Option<&str>,
        path: &Path,
    ) -> VerbResult<BranchInfo> {
        let mut client = self.serving()?;
        make_dir_new(path)?;
        let made = client.ask(CreateBranch {
            name: name.to_owned(),
            at: at.map(|at| StateName(at.to_owned())),
            path: path.to_owned(),
            git: false,
            dry_run: false,
        });
        made.inspect_err(|_| {
            // The daemon may have removed it.
            let _ = fs::remove_dir(path);
        })
    }

    /// Makes a checkpoint of a mounted volume, unless it is unchanged since the newest one.
    pub(super) fn make(&self, note: &str) -> VerbResult<CheckpointId> {
        let options = CheckpointOptions {
            note: note.to_owned(),
            if_changed: true,
            ..CheckpointOptions::default()
        };
        Ok(self.serving()?.ask(options)?.id)
    }

    /// Makes an optional checkpoint: a failure is logged, and does not prevent the start or end of
    /// a container.
    pub(super) fn mark(&self, note: &str) {
        if let Err(error) = self.make(note) {
            tracing::warn!(
                name = self.name,
                note,
                error = error.message,
                "no checkpoint was made"
            );
        }
    }

    /// Sets configuration keys of a mounted volume.
    pub(super) fn configure(&self, keys: &[(&'static str, String)]) -> VerbResult<()> {
        let store = self.serving()?.open_store()?;
        let file = self.place.backing.join(STORE_NAME).join(STORE_FILE);
        let bad = |why: String| error(Code::BadConfig, format!("{}: {why}", file.display()));
        for (key, value) in keys {
            let key = settings::find(key)
                .ok_or_else(|| error(Code::UnknownKey, format!("there is no key {key:?}")))?;
            let value = settings::parse_value(key, value).map_err(bad)?;
            let text = settings::store_with(&store, key, Some(&value))
                .map_err(|cause| bad(cause.to_string()))?;
            sys::replace_file(&store, STORE_FILE, text.as_bytes()).on(file.display())?;
        }
        Ok(())
    }

    /// Pins the checkpoints that uses refer to, against retention rules, and unpins unused ones.
    /// Pins of other users are unchanged and sufficient. A failure is logged, and does not prevent
    /// the start or end of a container; `log` shows a checkpoint that is pinned too long.
    pub(super) fn pin_used(&self, record: &VolumeRecord) {
        if let Err(error) = self.try_pin_used(record) {
            tracing::warn!(
                name = self.name,
                error = error.message,
                "the pins of past states in use are not as they should be"
            );
        }
    }

    fn try_pin_used(&self, record: &VolumeRecord) -> VerbResult<()> {
        let Some(mut client) = self.daemon() else {
            return Ok(());
        };
        let used: BTreeSet<u64> = record
            .mounts
            .iter()
            .filter_map(|mount| mount.checkpoint)
            .collect();
        for one in client.ask(ListCheckpoints)? {
            let reason = match (one.pinned.as_deref(), used.contains(&one.id.0)) {
                (None, true) => Some(PINNED_FOR_USE.to_owned()),
                (Some(PINNED_FOR_USE), false) => None,
                _ => continue,
            };
            client.ask(PinCheckpoint {
                state: StateName(one.id.to_string()),
                reason,
            })?;
        }
        Ok(())
    }
}

/// Creates a directory, which must not exist, with access for the owner only.
fn make_dir_new(path: &Path) -> VerbResult<()> {
    fs::DirBuilder::new()
        .mode(0o700)
        .create(path)
        .on(path.display())
}
