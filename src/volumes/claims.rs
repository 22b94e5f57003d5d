//! What an orchestrator asks for and calls by names of its own: volumes that are claimed, and checkpoints that are snapshots.
//!
//! **Snapshots** are checkpoints: tagged (so that a driver that was killed finds what it had made), pinned (no rule of retention takes them) and written into
//! the record (so that they can be listed while nothing is mounted). A volume that is deleted while it has snapshots is *retired*: it stays for them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::error::{error, hinted};
use super::facts;
use super::image;
use super::name::Named;
use super::pool::{Pool, own_id};
use super::record::Record;
use crate::control::Client;
use crate::engine::api::{CheckpointInfo, CheckpointOptions, Delete, PinCheckpoint, ShowCheckpoint, StateName, VerbResult};

/// What an orchestrator asked for when it had a volume made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Its name for it.
    pub name: String,
    /// The bytes that it was promised; 0: nobody said any.
    pub bytes: u64,
    /// As they were given.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// What it begins with: a volume, or a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// When, in nanoseconds since 1970.
    pub made_ns: i64,
}

/// A checkpoint that an orchestrator knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its name for it.
    pub name: String,
    /// The number of the checkpoint.
    pub checkpoint: u64,
    /// When it was made: RFC 3339, nanoseconds.
    pub created: String,
    /// What a volume made of it must have room for; 0: not known.
    pub bytes: u64,
}

impl Record {
    /// When it was made, in nanoseconds since 1970: exact if it was claimed.
    pub fn made_ns(&self) -> i64 {
        let told = || self.created.parse::<jiff::Timestamp>().ok().and_then(|time| i64::try_from(time.as_nanosecond()).ok());
        self.claim.as_ref().map(|claim| claim.made_ns).or_else(told).unwrap_or(0)
    }
}

/// A key that can be the name of a file.
fn key(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().as_str().chars().take(32).collect()
}

/// Something that is done to a volume besides others.
fn use_of(what: &str) -> String {
    own_id(&key(what))
}

impl Pool {
    /// Does something that nobody else does to the same thing meanwhile.
    ///
    /// # Errors
    /// `busy`; those of the work.
    pub fn alone<T>(&self, thing: &str, work: impl FnOnce() -> VerbResult<T>) -> VerbResult<T> {
        let locked = self.lock(&format!(".alone-{}", key(thing)))?;
        let done = work();
        locked.forget();
        done
    }

    /// Makes a volume for somebody; one that is there is given if `same` says that it is what was asked for.
    ///
    /// # Errors
    /// As of [`Pool::create`].
    pub fn claim(&self, name: &str, options: BTreeMap<String, String>, claim: Claim, same: impl FnOnce(&Record) -> bool) -> VerbResult<Record> {
        self.make(Record { claim: Some(claim), ..Record::new(name, options) }, same)
    }

    /// Changes a record that nobody else changes meanwhile.
    fn change<T>(&self, name: &str, change: impl FnOnce(&mut Record) -> VerbResult<T>) -> VerbResult<T> {
        let _locked = self.lock(name)?;
        let mut record = self.get(name)?;
        let changed = change(&mut record)?;
        record.save(&self.meta(name))?;
        Ok(changed)
    }

    /// Asks the daemon of a volume; one that is not mounted is for so long.
    fn ask<T>(&self, volume: &str, what: &str, ask: impl FnOnce(&mut Client) -> VerbResult<T>) -> VerbResult<T> {
        let (named, id) = (Named { volume: volume.to_owned(), checkpoint: None }, use_of(what));
        self.mount(&named, &id)?;
        let asked = self.get(volume).and_then(|record| self.daemon(&record)).and_then(|client| {
            let mut client = client.ok_or_else(|| hinted("daemon-busy", format!("no daemon serves volume {volume}"), "try again later"))?;
            ask(&mut client)
        });
        self.unmount(&named, &id)?;
        asked
    }

    /// Makes a checkpoint that is called `name`, and tagged `tag`; one that there is of that name is given.
    ///
    /// # Errors
    /// `no-such-volume`; `snapshot-exists`: of another volume.
    pub fn snapshot(&self, volume: &str, name: &str, tag: &str) -> VerbResult<Snapshot> {
        self.alone(&format!("snapshot {name}"), || {
            let all = self.list()?;
            let known = all.iter().find_map(|record| record.snapshots.iter().find(|one| one.name == name).map(|one| (record, one)));
            match known {
                Some((of, snapshot)) if of.name == volume => return Ok(snapshot.clone()),
                Some((of, _)) => return Err(error("snapshot-exists", format!("snapshot {name} is one of volume {}", of.name))),
                None => {}
            }
            let made = self.ask(volume, tag, |client| mark(client, name, tag))?;
            self.change(volume, |record| {
                let bytes = record.claim.as_ref().map_or(0, |claim| claim.bytes);
                let snapshot = Snapshot { name: name.to_owned(), checkpoint: made.id.0, created: made.created.clone(), bytes };
                record.snapshots.push(snapshot.clone());
                Ok(snapshot)
            })
        })
    }

    /// Deletes a checkpoint for good; none is as good.
    ///
    /// # Errors
    /// `pinned`: by somebody who has not called it a snapshot.
    pub fn drop_snapshot(&self, volume: &str, checkpoint: u64) -> VerbResult<()> {
        self.alone(&format!("checkpoint {volume}@{checkpoint}"), || {
            let Ok(record) = self.get(volume) else { return Ok(()) };
            let known = record.snapshots.iter().any(|one| one.checkpoint == checkpoint);
            let unknown_is_done = |done: VerbResult<CheckpointInfo>| match done {
                Err(why) if why.code == "unknown-checkpoint" => Ok(()),
                done => done.map(drop),
            };
            self.ask(volume, &format!("drop {checkpoint}"), |client| {
                let state = || StateName(checkpoint.to_string());
                if known {
                    unknown_is_done(client.ask(PinCheckpoint { state: state(), reason: None }))?;
                }
                unknown_is_done(client.ask(Delete { state: state(), now: true }))
            })?;
            let last = self.change(volume, |record| {
                record.snapshots.retain(|one| one.checkpoint != checkpoint);
                Ok(record.retired && record.snapshots.is_empty())
            })?;
            if last { super::protocol::remove(self, volume) } else { Ok(()) }
        })
    }

    /// Removes a volume, or retires it if it has snapshots.
    ///
    /// # Errors
    /// `no-such-volume`, `in-use`.
    pub fn retire(&self, name: &str) -> VerbResult<()> {
        let record = self.get(name)?;
        if record.snapshots.is_empty() {
            return super::protocol::remove(self, name);
        }
        let place = self.place(name, &record.parsed()?);
        if let Some(elsewhere) = facts::elsewhere(&place)?.used.first() {
            let message = format!("volume {name} is mounted at {} of process {}", elsewhere.at.display(), elsewhere.pid);
            return Err(hinted("in-use", message, "stop what uses it first"));
        }
        self.change(name, |record| {
            record.retired = true;
            Ok(())
        })
    }

    /// Lets a volume have so many bytes; what it has already is not taken away.
    ///
    /// # Errors
    /// `no-such-volume`, no room for it.
    pub fn expand(&self, name: &str, bytes: u64) -> VerbResult<u64> {
        self.change(name, |record| {
            let options = record.parsed()?;
            let has = record.claim.as_ref().map_or(0, |claim| claim.bytes).max(options.size.unwrap_or(0));
            let bytes = bytes.max(has);
            if options.size.is_some() {
                image::grow(&self.image(name), &self.place(name, &options).backing, bytes)?;
                record.options.insert("size".to_owned(), bytes.to_string());
            }
            if let Some(claim) = &mut record.claim {
                claim.bytes = bytes;
            }
            Ok(bytes)
        })
    }
}

/// Makes a checkpoint, or finds the one that a driver made which was killed before it could write it down.
fn mark(client: &mut Client, name: &str, tag: &str) -> VerbResult<CheckpointInfo> {
    let note = format!("CSI snapshot {name}");
    // On disk before it is answered: whoever asked takes it for done.
    let options = CheckpointOptions { note: note.clone(), tags: vec![tag.to_owned()], sync: true, ..CheckpointOptions::default() };
    let made = match client.ask(options) {
        Err(why) if why.code == "tag-taken" => client.ask(ShowCheckpoint { state: StateName(tag.to_owned()) })?,
        made => made?,
    };
    client.ask(PinCheckpoint { state: StateName(made.id.to_string()), reason: Some(note) })
}
