//! Volumes and snapshots requested by an orchestrator under its own names: claims, and checkpoints
//! that are snapshots.
//!
//! **Snapshots** are checkpoints. They are tagged, so that a driver restarted after a kill finds
//! them; pinned, so that no retention rule deletes them; and recorded, so that they can be listed
//! while the volume is not mounted. A volume deleted while it has snapshots, or while other volumes
//! are branches of it, is *retired*: it exists until these are gone. The checkpoint of a deleted
//! snapshot is retired in the same way.

use std::collections::BTreeMap;

use super::image;
use super::mount_facts;
use super::name::key;
use super::pool::Pool;
use super::record::{Claim, RemoteDestination, Snapshot, VolumeRecord};
use super::remotes::store_of;
use ckptfs_api::{
    ChangeTags, CheckpointInfo, CheckpointOptions, Client, Code, Delete, PinCheckpoint, Reason,
    Retag, ShowCheckpoint, StateName, VerbResult, error,
};

/// Prefix of the tags of snapshots.
pub const SNAPSHOT_TAG: &str = "csi.";

impl Pool {
    /// Creates a volume for an orchestrator; returns an existing one if `same` accepts it.
    ///
    /// # Errors
    /// As [`Pool::create`].
    pub fn claim(
        &self,
        name: &str,
        options: BTreeMap<String, String>,
        claim: Claim,
        same: impl FnOnce(&VolumeRecord) -> bool,
    ) -> VerbResult<VolumeRecord> {
        self.make(
            VolumeRecord {
                claim: Some(claim),
                ..VolumeRecord::new(name, options)
            },
            same,
        )
    }

    /// Queries the daemon of a volume, which is mounted during the call if necessary.
    fn ask<T>(
        &self,
        volume: &str,
        what: &str,
        ask: impl FnOnce(&mut Client) -> VerbResult<T>,
    ) -> VerbResult<T> {
        self.mounts().during(volume, &key(what), |_| {
            let record = self.registry().get(volume)?;
            ask(&mut self.registry().history(&record)?.serving()?)
        })
    }

    /// Creates a checkpoint named `name` and tagged `tag`; returns an existing one of that name.
    /// `remote`: where to send it ([`Pool::send`]).
    ///
    /// # Errors
    /// `no-such-volume`; `unknown-remote`; `snapshot-exists`: of another volume, or for another
    /// remote.
    pub fn snapshot(
        &self,
        volume: &str,
        name: &str,
        tag: &str,
        remote: Option<&str>,
    ) -> VerbResult<Snapshot> {
        self.registry().alone(&format!("snapshot {name}"), || {
            let all = self.registry().list()?;
            let known = all.iter().find_map(|record| {
                record
                    .snapshots_told()
                    .find(|one| one.name == name)
                    .map(|one| (record, one))
            });
            match known {
                Some((of, snapshot)) if of.name == volume => {
                    let known = snapshot.sent.as_ref().map(|sent| sent.remote.as_str());
                    if known != remote {
                        let message = format!("snapshot {name} exists, for another remote");
                        return Err(error(Code::SnapshotExists, message));
                    }
                    return Ok(snapshot.clone());
                }
                Some((of, _)) => {
                    return Err(error(
                        Code::SnapshotExists,
                        format!("snapshot {name} is one of volume {}", of.name),
                    ));
                }
                None => {}
            }
            remote.map_or(Ok(()), |remote| self.check_remote(remote))?;
            let (made, sent) = self.ask(volume, tag, |client| {
                let made = mark(client, name, tag)?;
                let sent = remote.map(|remote| {
                    Ok(RemoteDestination {
                        remote: remote.to_owned(),
                        store: store_of(client, made.id)?,
                        whole: false,
                    })
                });
                Ok((made, sent.transpose()?))
            })?;
            self.registry().change(volume, |record| {
                let bytes = record.claim.as_ref().map_or(0, |claim| claim.bytes);
                let snapshot = Snapshot {
                    name: name.to_owned(),
                    checkpoint: made.id.0,
                    created: made.created.clone(),
                    bytes,
                    deleted: false,
                    sent,
                };
                record.snapshots.push(snapshot.clone());
                Ok(snapshot)
            })
        })
    }

    /// Deletes a checkpoint permanently; a missing one is not an error. A snapshot that is the base
    /// of a branch is only marked as deleted. Its checkpoint is deleted with the last volume that
    /// is a branch of it. `tag` returns the tag of a snapshot name.
    ///
    /// # Errors
    /// `pinned`: the checkpoint is pinned and not a snapshot. `held`: it is not a snapshot, and is
    /// the base of a branch.
    pub fn drop_snapshot(
        &self,
        volume: &str,
        checkpoint: u64,
        tag: impl FnOnce(&str) -> String,
    ) -> VerbResult<()> {
        self.registry()
            .alone(&format!("checkpoint {volume}@{checkpoint}"), || {
                let Ok(record) = self.registry().get(volume) else {
                    return Ok(());
                };
                let is_it = |one: &Snapshot| one.checkpoint == checkpoint;
                let known = record.snapshots.iter().find(|one| is_it(one));
                let tag = known.map(|one| tag(&one.name));
                let gone = self.ask(volume, &format!("drop {checkpoint}"), |client| {
                    delete(client, checkpoint, tag.as_deref())
                })?;
                self.registry().change(volume, |record| {
                    if gone {
                        record.snapshots.retain(|one| !is_it(one));
                    }
                    let mut left = record.snapshots.iter_mut();
                    if let Some(left) = left.find(|one| is_it(one)) {
                        left.deleted = true;
                    }
                    Ok(())
                })?;
                self.remove_unneeded(volume)
            })
    }

    /// Removes a volume, or retires it if it has snapshots or if other volumes are branches of it.
    ///
    /// # Errors
    /// `no-such-volume`, `in-use`.
    pub fn retire(&self, name: &str) -> VerbResult<()> {
        let record = self.registry().get(name)?;
        if record.snapshots_told().next().is_none() && self.mounts().clones(&record)?.is_empty() {
            return self.remove_beside(name);
        }
        self.refuse_branches(&record)?;
        mount_facts::refuse_used(
            name,
            mount_facts::elsewhere(&self.registry().place(&record)?)?
                .used
                .first(),
        )?;
        self.registry().change(name, |record| {
            record.retired = true;
            Ok(())
        })?;
        // The last dependent may have been removed concurrently.
        self.remove_unneeded(name)
    }

    /// Grows a volume to `bytes`; it is never shrunk.
    ///
    /// # Errors
    /// `no-such-volume`; no space.
    pub fn expand(&self, name: &str, bytes: u64) -> VerbResult<u64> {
        self.registry().change(name, |record| {
            let options = record.parsed()?;
            let has = record
                .claim
                .as_ref()
                .map_or(0, |claim| claim.bytes)
                .max(options.size.unwrap_or(0));
            let bytes = bytes.max(has);
            if options.size.is_some() {
                image::grow(
                    &self.registry().dirs().image(name),
                    &self.registry().place(record)?.backing,
                    bytes,
                )?;
                record.options.insert("size".to_owned(), bytes.to_string());
            }
            if let Some(claim) = &mut record.claim {
                claim.bytes = bytes;
            }
            Ok(bytes)
        })
    }
}

/// Creates a checkpoint, or finds the one of a driver that was killed before it recorded it.
fn mark(client: &mut Client, name: &str, tag: &str) -> VerbResult<CheckpointInfo> {
    let note = format!("CSI snapshot {name}");
    // Synced before the answer: the caller considers it durable.
    let options = CheckpointOptions {
        note: note.clone(),
        tags: vec![tag.to_owned()],
        sync: true,
        ..CheckpointOptions::default()
    };
    let made = match client.ask(options) {
        Err(why) if why.code == Code::TagTaken => {
            let found = client.ask(ShowCheckpoint {
                state: StateName(tag.to_owned()),
            })?;
            // A program in the volume can create a checkpoint of this name by mkdir(2). Only a
            // client that runs as the daemon's user can request one from the daemon.
            (found.reason == Reason::Asked)
                .then_some(found)
                .ok_or(why)?
        }
        made => made?,
    };
    client.ask(PinCheckpoint {
        state: StateName(made.id.to_string()),
        reason: Some(note),
    })
}

/// Deletes a checkpoint permanently; a missing one is not an error. Returns `false` for a snapshot
/// tagged `tag` that is the base of a branch: it lost only its pin and its tag.
fn delete(client: &mut Client, checkpoint: u64, tag: Option<&str>) -> VerbResult<bool> {
    let state = || StateName(checkpoint.to_string());
    let found = match client.ask(ShowCheckpoint { state: state() }) {
        // A checkpoint deleted by the user is still stored for `undo`.
        Err(why) if why.code == Code::UnknownCheckpoint => None,
        found => Some(found?),
    };
    if let (Some(found), Some(tag)) = (found, tag) {
        if found.pinned.is_some() {
            client.ask(PinCheckpoint {
                state: state(),
                reason: None,
            })?;
        }
        // A later snapshot of this name is independent.
        if found.tags.iter().any(|one| one == tag) {
            let retag = Retag {
                remove: vec![tag.to_owned()],
                ..Retag::default()
            };
            client.ask(ChangeTags {
                state: state(),
                retag,
            })?;
        }
    }
    let deleted = client.ask(Delete {
        state: state(),
        now: true,
    });
    match deleted {
        Err(why) if why.code == Code::UnknownCheckpoint => Ok(true),
        Err(why) if why.code == Code::Held && tag.is_some() => Ok(false),
        deleted => deleted.map(|_| true),
    }
}
