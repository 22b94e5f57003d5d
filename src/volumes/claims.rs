//! What an orchestrator asks for and calls by names of its own: volumes that are claimed, and
//! checkpoints that are snapshots.
//!
//! **Snapshots** are checkpoints: tagged (so that a driver that was killed finds what it had made),
//! pinned (no rule of retention takes them) and written into the record (so that they can be listed
//! while nothing is mounted). A volume that is deleted while it has snapshots, or others are branches
//! of it, is *retired*: it stays for them. So does the checkpoint of a snapshot that is deleted.

use std::collections::BTreeMap;

use super::error::error;
use super::facts;
use super::image;
use super::name::key;
use super::pool::Pool;
use super::record::{Claim, Record, Sent, Snapshot};
use super::remotes::store_of;
use crate::control::Client;
use crate::engine::api::{
    ChangeTags, CheckpointInfo, CheckpointOptions, Code, Delete, PinCheckpoint, Retag,
    ShowCheckpoint, StateName, VerbResult,
};
use crate::store::record::Reason;

/// Tags of checkpoints that are snapshots begin so.
pub const SNAPSHOT_TAG: &str = "csi.";

impl Pool {
    /// Makes a volume for somebody; one that is there is given if `same` says that it is what was
    /// asked for.
    ///
    /// # Errors
    /// As of [`Pool::create`].
    pub fn claim(
        &self,
        name: &str,
        options: BTreeMap<String, String>,
        claim: Claim,
        same: impl FnOnce(&Record) -> bool,
    ) -> VerbResult<Record> {
        self.make(
            Record {
                claim: Some(claim),
                ..Record::new(name, options)
            },
            same,
        )
    }

    /// Asks the daemon of a volume; one that is not mounted is for so long.
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

    /// Makes a checkpoint that is called `name`, and tagged `tag`; one that there is of that name
    /// is given. `remote`: where it is to be as well ([`Pool::send`]).
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
                    Ok(Sent {
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

    /// Deletes a checkpoint for good; none is as good. A snapshot that something looks through to
    /// is one no more, and its checkpoint goes with the last volume that is a branch of it.
    /// `tag`: what a snapshot of a name is tagged.
    ///
    /// # Errors
    /// `pinned`: by somebody who has not called it a snapshot. `held`: it is no snapshot, and
    /// something looks through to it.
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

    /// Removes a volume, or retires it if it has snapshots, or others are branches of it.
    ///
    /// # Errors
    /// `no-such-volume`, `in-use`.
    pub fn retire(&self, name: &str) -> VerbResult<()> {
        let record = self.registry().get(name)?;
        if record.snapshots_told().next().is_none() && self.mounts().clones(&record)?.is_empty() {
            return self.remove_beside(name);
        }
        self.refuse_branches(&record)?;
        facts::refuse_used(
            name,
            facts::elsewhere(&self.registry().place(&record)?)?
                .used
                .first(),
        )?;
        self.registry().change(name, |record| {
            record.retired = true;
            Ok(())
        })?;
        // What has needed it may be gone meanwhile.
        self.remove_unneeded(name)
    }

    /// Lets a volume have so many bytes; what it has already is not taken away.
    ///
    /// # Errors
    /// `no-such-volume`, no room for it.
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

/// Makes a checkpoint, or finds the one that a driver made which was killed before it could write
/// it down.
fn mark(client: &mut Client, name: &str, tag: &str) -> VerbResult<CheckpointInfo> {
    let note = format!("CSI snapshot {name}");
    // On disk before it is answered: whoever asked takes it for done.
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
            // A program in the volume can make a checkpoint of this name by mkdir(2). Only a client of
            // the daemon's user can ask the daemon for one.
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

/// Deletes a checkpoint for good; none is as good. `false`: it is a snapshot, tagged `tag`, that
/// something looks through to, and has lost its pin and its tag only.
fn delete(client: &mut Client, checkpoint: u64, tag: Option<&str>) -> VerbResult<bool> {
    let state = || StateName(checkpoint.to_string());
    let found = match client.ask(ShowCheckpoint { state: state() }) {
        // One that was deleted by hand is there for `undo` still.
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
        // The next snapshot of this name is another one.
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
