//! Transfers to and from remotes (docs/adr/0038-volumes-that-leave.md).
//!
//! **Remotes** are selected by name by the caller, and configured by the administrator of the
//! driver. Otherwise an address or a command in a claim would be used with the driver's privileges.
//!
//! **Long operations** run in a separate thread and process. The caller waits up to a limit, then
//! receives `busy`, and finds the operation completed when it repeats the request. The operation
//! holds at most the lock of the volume that it creates, and a killed process leaves no state that
//! matters. A failure after the caller's timeout is stored in the lock file and reported to the
//! next caller.

use std::io::{Read, Seek, Write};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use super::claims::SNAPSHOT_TAG;
use super::files::{make_dir, remove_tree};
use super::mounts::Mounts;
use super::name::{self, key};
use super::pool::Pool;
use super::record::{RemoteDestination, Snapshot, VolumeOrigin};
use super::registry::VolumeLock;
use super::verbs::RemoteCheckpoint;
use ckptfs_api::display::word;
use ckptfs_api::{
    CheckpointId, Client, Code, ErrorContext, ExportAsk, StateName, VerbError, VerbResult, error,
    hinted,
};
use ckptfs_sys as sys;
use ckptfs_transfer::mark::ExportMark;

/// Maximum number of concurrent transfers per remote, so that an unresponsive remote does not block
/// others.
const AT_ONCE_MAX: u32 = 4;

impl Mounts {
    /// Fetches a state of a volume from a remote into a directory, which may have data of an
    /// earlier attempt. All content is verified by hash.
    pub(super) fn fetch_into(
        &self,
        dir: &Path,
        remote: &str,
        volume: &str,
        state: Option<&str>,
    ) -> VerbResult<VolumeOrigin> {
        let found = choose(self.verbs.pushed(remote)?, remote, volume, state)?;
        match self.verbs.pull(remote, &found.snapshot, dir) {
            // The data in the directory has another origin.
            Err(why) if why.code == Code::NotEmpty => {
                remove_tree(dir)?;
                make_dir(dir, 0o700)?;
                self.verbs.pull(remote, &found.snapshot, dir)?;
            }
            done => done?,
        }
        let root = sys::open_root(dir).on(dir.display())?;
        // The tree is a volume from now on, no longer a copy.
        ExportMark::remove(&root).on(dir.display())?;
        sys::fsync(&root).on(dir.display())?;
        // The repository is untrusted, and its names are arbitrary.
        let is_name = name::check(&found.tree).is_ok();
        Ok(VolumeOrigin {
            volume: if is_name { found.tree } else { found.store },
            checkpoint: found.checkpoint,
            branch: None,
            remote: Some(remote.to_owned()),
        })
    }
}

/// Selects the snapshot of a volume, given by its name or by the id of its store.
fn choose(
    mut all: Vec<RemoteCheckpoint>,
    remote: &str,
    volume: &str,
    state: Option<&str>,
) -> VerbResult<RemoteCheckpoint> {
    all.retain(|one| one.tree == volume || one.store == volume);
    let mut stores: Vec<&str> = all.iter().map(|one| one.store.as_str()).collect();
    stores.sort_unstable();
    stores.dedup();
    let log = format!("ckptfs remote log {} --all", word(remote));
    if stores.len() > 1 {
        return Err(hinted(
            Code::Ambiguous,
            format!("{remote} has several volumes that are called {volume}"),
            format!("name one by its store: from={}", stores.join(", from=")),
        ));
    }
    if all.is_empty() {
        let message = format!("{remote} has no volume {volume}");
        return Err(hinted(
            Code::NoSuchVolume,
            message,
            format!("{log} lists what is there"),
        ));
    }
    let state = state.filter(|state| *state != "latest");
    let is_meant = |one: &RemoteCheckpoint| {
        let is_state =
            |state| one.checkpoint.to_string() == state || one.tags.iter().any(|tag| tag == state);
        state.is_none_or(is_state)
    };
    all.retain(is_meant);
    all.pop().ok_or_else(|| {
        hinted(
            Code::UnknownCheckpoint,
            format!(
                "{remote} has no checkpoint {} of volume {volume}",
                state.unwrap_or_default()
            ),
            format!("{log} lists what is there"),
        )
    })
}

/// Returns the id of the store that a daemon serves.
pub(super) fn store_of(client: &mut Client, checkpoint: CheckpointId) -> VerbResult<String> {
    let state = StateName(checkpoint.to_string());
    // The export ends with the connection, before anything is sent.
    let (begun, _) = client.ask_with_files(ExportAsk::Whole { state, since: None })?;
    Ok(begun.store)
}

fn sending(volume: &str, checkpoint: u64) -> String {
    format!("sending {volume}@{checkpoint}")
}

/// Returns the name of the lock of a long operation.
fn lock_of(thing: &str) -> String {
    format!(".long-{}", key(thing))
}

fn under_way(thing: &str) -> VerbError {
    hinted(
        Code::Busy,
        format!("{thing} is under way"),
        "it continues; try again in a moment",
    )
}

impl Pool {
    /// Rejects the name of a remote that is not configured, or that cannot be part of a snapshot
    /// id.
    pub(super) fn check_remote(&self, remote: &str) -> VerbResult<()> {
        self.mounts().verbs.check_remote(remote)?;
        name::check(remote).map_err(|_| {
            hinted(
                Code::BadOption,
                format!("snapshots cannot be sent to the remote {remote}"),
                "rename it: its name must begin with a letter or digit",
            )
        })
    }

    /// Returns the snapshots of a store's checkpoint at a remote.
    ///
    /// # Errors
    /// `unknown-remote`, `bad-password`, `remote-failed`.
    pub fn pushed(
        &self,
        remote: &str,
        store: &str,
        checkpoint: u64,
    ) -> VerbResult<Vec<RemoteCheckpoint>> {
        let mut all = self.mounts().verbs.pushed(remote)?;
        all.retain(|one| one.store == store && one.checkpoint == checkpoint);
        Ok(all)
    }

    /// Runs a long exclusive operation with a remote. The caller waits for up to `patience`.
    ///
    /// # Errors
    /// `busy`: it is in progress, or too many others are. Those of `work`, including the unreported
    /// failure of an earlier run; a new run has started then.
    pub fn long<T: Send + 'static>(
        &self,
        thing: &str,
        remote: &str,
        patience: Duration,
        work: impl FnOnce() -> VerbResult<T> + Send + 'static,
    ) -> VerbResult<T> {
        let registry = self.registry();
        let Some(locked) = registry.try_lock(&lock_of(thing))? else {
            return Err(under_way(thing));
        };
        let slot_of = |number| registry.try_lock(&lock_of(&format!("slot {number} of {remote}")));
        let slots = (0..AT_ONCE_MAX).map(slot_of);
        let Some(slot) = slots.filter_map(Result::transpose).next().transpose()? else {
            return Err(hinted(
                Code::Busy,
                format!("{thing} has to wait for {AT_ONCE_MAX} others"),
                "try again in a moment",
            ));
        };
        let unheard = take_unheard(&locked);
        let (tell, told) = mpsc::channel();
        let work = move || {
            let done = work();
            slot.forget();
            // The lock is passed with the result, so that the caller can repeat the request at
            // once.
            let Err(unheard) = tell.send((done, locked)) else {
                return;
            };
            match unheard.0 {
                (Ok(_), locked) => locked.forget(),
                (Err(error), locked) => {
                    tracing::warn!(code = %error.code, error = error.message, "it failed later");
                    leave_unheard(&locked, &error);
                }
            }
        };
        std::thread::Builder::new()
            .name("long".into())
            .spawn(work)
            .on("starting threads")?;
        match unheard {
            Some(error) => Err(error),
            None => match told.recv_timeout(patience) {
                Ok((done, locked)) => {
                    locked.forget();
                    done
                }
                Err(_) => Err(under_way(thing)),
            },
        }
    }

    /// Ensures that a snapshot is at its destination. Returns `false` while the transfer is in
    /// progress.
    ///
    /// # Errors
    /// A failure that is not retried automatically.
    pub fn send(&self, volume: &str, snapshot: &Snapshot, patience: Duration) -> VerbResult<bool> {
        let Some(sent) = snapshot.sent.clone().filter(|sent| !sent.whole) else {
            return Ok(true);
        };
        let (pool, volume, number) = (self.clone(), volume.to_owned(), snapshot.checkpoint);
        let (thing, remote) = (sending(&volume, number), sent.remote.clone());
        let send = move || pool.send_now(&volume, number, &sent);
        let done = self.long(&thing, &remote, patience, send);
        match done {
            Err(why) if why.code == Code::Busy => Ok(false),
            done => done.map(|()| true),
        }
    }

    fn send_now(&self, volume: &str, number: u64, sent: &RemoteDestination) -> VerbResult<()> {
        // Transfers of one volume are serialized: a later one reads only the changes since the
        // previous one.
        let one = self.registry().try_lock(&lock_of(volume))?;
        let one = one.ok_or_else(|| under_way(&format!("sending volume {volume}")))?;
        let what = format!("send {number}");
        let pushed = self.mounts().during(volume, &what, |point| {
            let verbs = &self.mounts().verbs;
            verbs.push(&point, &sent.remote, CheckpointId(number))
        });
        one.forget();
        pushed?;
        self.registry().change(volume, |record| {
            let mut all = record.snapshots.iter_mut();
            let found = all.find(|one| one.checkpoint == number);
            if let Some(sent) = found.and_then(|one| one.sent.as_mut()) {
                sent.whole = true;
            }
            Ok(())
        })
    }

    /// Removes a snapshot from its remote, and deletes its checkpoint if the volume is here. `tag`
    /// returns the tag of a snapshot name. A missing snapshot is not an error.
    ///
    /// # Errors
    /// `busy`: it is being sent. `pinned`: it is not tagged as a snapshot. Those of the remote;
    /// then nothing is deleted.
    pub fn drop_sent(
        &self,
        volume: &str,
        checkpoint: u64,
        sent: &RemoteDestination,
        tag: impl Fn(&str) -> String,
    ) -> VerbResult<()> {
        let thing = sending(volume, checkpoint);
        let Some(idle) = self.registry().try_lock(&lock_of(&thing))? else {
            return Err(under_way(&thing));
        };
        let dropped = self.drop_idle(volume, checkpoint, sent, tag);
        idle.forget();
        dropped
    }

    fn drop_idle(
        &self,
        volume: &str,
        checkpoint: u64,
        sent: &RemoteDestination,
        tag: impl Fn(&str) -> String,
    ) -> VerbResult<()> {
        for one in self.pushed(&sent.remote, &sent.store, checkpoint)? {
            if !one.tags.iter().any(|tag| tag.starts_with(SNAPSHOT_TAG)) {
                return Err(error(
                    Code::Pinned,
                    format!(
                        "{} has that checkpoint, and nobody has called it a snapshot",
                        sent.remote
                    ),
                ));
            }
            self.mounts().verbs.forget(&sent.remote, &one.snapshot)?;
        }
        match self.registry().get(volume) {
            Ok(record) if record.sent(checkpoint, sent).is_some() => {
                self.drop_snapshot(volume, checkpoint, tag)
            }
            _ => Ok(()),
        }
    }
}

/// Returns and clears the unreported failure of the last run.
fn take_unheard(locked: &VolumeLock) -> Option<VerbError> {
    let mut text = Vec::new();
    locked.file().take(1 << 16).read_to_end(&mut text).ok()?;
    locked.file().set_len(0).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Stores a failure for the next caller. If that fails, it is only in the log.
fn leave_unheard(locked: &VolumeLock, error: &VerbError) {
    let mut file = locked.file();
    let text = serde_json::to_vec(error).unwrap_or_default();
    let _ = file.rewind().and_then(|()| file.write_all(&text));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed(tree: &str, store: &str, checkpoint: u64, tags: &[&str]) -> RemoteCheckpoint {
        RemoteCheckpoint {
            snapshot: format!("{store}{checkpoint}"),
            store: store.to_owned(),
            checkpoint,
            tree: tree.to_owned(),
            tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
            note: String::new(),
            created: String::new(),
        }
    }

    #[test]
    fn a_volume_is_meant_by_its_name_or_its_store_and_never_two() {
        let all = || {
            vec![
                pushed("data", "s1", 1, &["v1"]),
                pushed("data", "s1", 2, &[]),
                pushed("data", "s2", 1, &[]),
                pushed("other", "s3", 7, &["v1"]),
            ]
        };
        let chosen = |volume: &str, state: Option<&str>| {
            choose(all(), "home", volume, state)
                .map(|one| one.snapshot)
                .map_err(|why| (why.code, why.hint.unwrap_or_default()))
        };
        let code = |volume: &str, state: Option<&str>| chosen(volume, state).unwrap_err().0;
        assert_eq!(chosen("other", None).unwrap(), "s37");
        assert_eq!(chosen("s1", None).unwrap(), "s12");
        assert_eq!(chosen("s1", Some("latest")).unwrap(), "s12");
        assert_eq!(chosen("s1", Some("v1")).unwrap(), "s11");
        assert_eq!(chosen("s2", Some("1")).unwrap(), "s21");
        assert_eq!(code("s2", Some("2")), Code::UnknownCheckpoint);
        assert_eq!(code("s", None), Code::NoSuchVolume);
        let (ambiguous, hint) = chosen("data", Some("1")).unwrap_err();
        assert_eq!(ambiguous, Code::Ambiguous);
        assert!(hint.contains("from=s1, from=s2"), "{hint}");
    }
}
