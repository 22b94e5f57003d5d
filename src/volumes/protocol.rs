//! The volume plugin API of Docker, version 1, which Podman speaks too: what is asked, and how it is answered.
//!
//! An error is HTTP 500 with `{"Err"}`: Podman takes every 200 for success. `Mountpoint` is never empty in an answer to Mount: Docker would show the container
//! its own configuration. Mount is answered within five seconds, for Podman waits no longer: what takes more goes on, and is found done when it is asked again.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::{error, hinted};
use super::facts;
use super::http::{Request, Response};
use super::name::{self, Named};
use super::pool::{Pool, remove_tree};
use super::record::Record;
use super::sizes::Sizes;
use super::uses::Asker;
use crate::engine::api::{CheckpointInfo, VerbError, VerbResult};

/// Mount is answered within this time.
const MOUNT_TIMEOUT: Duration = Duration::from_millis(4500);
/// What a volume's state says of its history must not keep an engine waiting.
const STATUS_TIMEOUT: Duration = Duration::from_millis(2000);
/// Checkpoints that are listed.
const CHECKPOINTS_TOLD_MAX: usize = 100;

/// What all calls are given, in parts.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Asked {
    name: String,
    #[serde(rename = "ID")]
    id: String,
    /// Docker says null where nobody gave any.
    opts: Option<BTreeMap<String, String>>,
}

#[derive(Serialize)]
struct Told {
    name: u64,
    time: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    note: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

/// Answers a request; `asker` is the process that made it, if that is known.
pub fn answer(pool: &Pool, request: &Request, asker: Option<Asker>) -> Response {
    if request.method != "POST" {
        return response(405, &json!({"Err": "every call is POST"}));
    }
    let asked = match request.body.trim_ascii() {
        [] => Ok(Asked::default()),
        body => serde_json::from_slice(body).map_err(|cause| error("bad-request", format!("the request cannot be understood: {cause}"))),
    };
    let answered = asked.and_then(|asked| call(pool, &request.path, asked, asker));
    match answered {
        Ok(Some(value)) => response(200, &value),
        Ok(None) => response(404, &json!({"Err": format!("there is no call {}", request.path)})),
        Err(error) => {
            tracing::info!(call = request.path, code = error.code, error = error.message, "refused");
            response(500, &json!({"Err": said(&error)}))
        }
    }
}

fn response(status: u16, value: &Value) -> Response {
    let mut body = value.to_string().into_bytes();
    body.push(b'\n');
    Response { status, body }
}

fn said(error: &VerbError) -> String {
    match &error.hint {
        Some(hint) => format!("{} ({hint})", error.message),
        None => error.message.clone(),
    }
}

fn call(pool: &Pool, path: &str, asked: Asked, asker: Option<Asker>) -> VerbResult<Option<Value>> {
    let done = || json!({"Err": ""});
    let value = match path {
        "/Plugin.Activate" => json!({"Implements": ["VolumeDriver"]}),
        "/VolumeDriver.Capabilities" => json!({"Capabilities": {"Scope": "local"}}),
        "/VolumeDriver.List" => {
            let volumes = pool.list()?.iter().map(|record| listed(pool, record)).collect::<VerbResult<Vec<Value>>>()?;
            json!({"Volumes": volumes, "Err": ""})
        }
        "/VolumeDriver.Create" => {
            create(pool, &asked)?;
            done()
        }
        "/VolumeDriver.Get" => json!({"Volume": inspect(pool, &asked.name)?, "Err": ""}),
        "/VolumeDriver.Path" => {
            let (record, named) = found(pool, &asked.name)?;
            json!({"Mountpoint": seen_at(pool, &record, &named)?, "Err": ""})
        }
        "/VolumeDriver.Mount" => {
            let named = name::parse(&asked.name)?;
            if asked.id.is_empty() {
                return Err(error("bad-request", "a mount without an ID"));
            }
            let pool = pool.clone();
            let point = within(MOUNT_TIMEOUT, move || pool.mount_for(&named, &asked.id, asker))
                .unwrap_or_else(|| Err(hinted("busy", "the volume is still being mounted", "it goes on; try again in a moment")))?;
            json!({"Mountpoint": point.to_string_lossy(), "Err": ""})
        }
        "/VolumeDriver.Unmount" => {
            pool.unmount(&name::parse(&asked.name)?, &asked.id)?;
            done()
        }
        "/VolumeDriver.Remove" => {
            remove(pool, &asked.name)?;
            done()
        }
        _ => return Ok(None),
    };
    Ok(Some(value))
}

/// The result of some work, if it is done in time; it goes on otherwise.
fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    let work = move || {
        // Nobody may wait for it any more.
        let _ = sender.send(work());
    };
    std::thread::Builder::new().spawn(work).ok()?;
    receiver.recv_timeout(limit).ok()
}

fn create(pool: &Pool, asked: &Asked) -> VerbResult<()> {
    let named = name::parse(&asked.name)?;
    let options = asked.opts.clone().unwrap_or_default();
    if named.checkpoint.is_none() {
        return pool.create(&named.volume, &options).map(drop);
    }
    if !options.is_empty() {
        return Err(error("bad-option", format!("{} is a past state, and takes no options", asked.name)));
    }
    found(pool, &asked.name).map(drop)
}

/// A volume, and if a checkpoint is named, it is there.
fn found(pool: &Pool, text: &str) -> VerbResult<(Record, Named)> {
    let named = name::parse(text)?;
    let record = pool.get(&named.volume)?;
    if let Some(state) = &named.checkpoint {
        pool.checkpoint_of(&record, state)?;
    }
    Ok((record, named))
}

/// Where somebody who uses it sees it; empty if nobody does.
fn seen_at(pool: &Pool, record: &Record, named: &Named) -> VerbResult<String> {
    let Some(point) = pool.mountpoint(record)? else { return Ok(String::new()) };
    let seen = match &named.checkpoint {
        Some(state) => point.join(".snapshots").join(pool.checkpoint_of(record, state)?.id.to_string()),
        None => point,
    };
    Ok(seen.to_string_lossy().into_owned())
}

fn listed(pool: &Pool, record: &Record) -> VerbResult<Value> {
    let mountpoint = pool.mountpoint(record)?.map(|point| point.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(json!({"Name": record.name, "Mountpoint": mountpoint, "CreatedAt": record.created}))
}

/// All that is known of a volume, or a past state of one.
///
/// # Errors
/// `no-such-volume`, `unknown-checkpoint`.
pub fn inspect(pool: &Pool, text: &str) -> VerbResult<Value> {
    let (record, named) = found(pool, text)?;
    let status = match &named.checkpoint {
        None => status(pool, &record),
        Some(state) => {
            let checkpoint = pool.checkpoint_of(&record, state)?;
            json!({"volume": record.name, "checkpoint": told(&checkpoint, &pool.sizes(&record.name).unwrap_or_default()), "readonly": true})
        }
    };
    let mountpoint = seen_at(pool, &record, &named)?;
    Ok(json!({"Name": text, "Mountpoint": mountpoint, "CreatedAt": record.created, "Status": status}))
}

/// What is known of a volume: what an engine shows for `volume inspect`.
pub fn status(pool: &Pool, record: &Record) -> Value {
    let (asked_pool, asked) = (pool.clone(), record.clone());
    let checkpoints = within(STATUS_TIMEOUT, move || asked_pool.checkpoints(&asked));
    let mut status = json!({"mounts": record.mounts.len(), "options": record.options});
    let mut add = |name: &str, value: Value| {
        if let Some(object) = status.as_object_mut() {
            object.insert(name.to_owned(), value);
        }
    };
    let sizes = pool.sizes(&record.name).unwrap_or_default();
    if !sizes.at.is_empty() {
        add("history_bytes", json!(sizes.history_bytes));
        add("counted_at", json!(sizes.at));
    }
    if let Some(used) = pool.used(record) {
        add("used_bytes", json!(used));
    }
    match checkpoints {
        Some(Ok(list)) => {
            let list: Vec<&CheckpointInfo> = list.iter().filter(|one| !one.reason.is_guard_or_mark()).collect();
            add("checkpoints", list.iter().take(CHECKPOINTS_TOLD_MAX).map(|one| json!(told(one, &sizes))).collect());
            add("checkpoints_kept", json!(list.len()));
        }
        Some(Err(error)) => add("warning", json!(said(&error))),
        None => add("warning", json!("the history does not answer in time")),
    }
    if let Some(parent) = &record.parent {
        add("parent", json!(format!("{}@{}", parent.volume, parent.checkpoint)));
    }
    status
}

fn told(checkpoint: &CheckpointInfo, sizes: &Sizes) -> Told {
    let (tags, note) = (checkpoint.tags.clone(), checkpoint.note.clone());
    let bytes = sizes.checkpoints.get(&checkpoint.id.0).copied();
    Told { name: checkpoint.id.0, time: checkpoint.created.clone(), tags, note, bytes }
}

/// Removes a volume; what it had is deleted beside.
///
/// # Errors
/// `no-such-volume`, `in-use`.
pub fn remove(pool: &Pool, text: &str) -> VerbResult<()> {
    let named = name::parse(text)?;
    if named.checkpoint.is_some() {
        // A past state is not a thing of its own: what an engine forgets is only its name for it.
        return pool.get(&named.volume).map(drop);
    }
    if let Some(gone) = pool.remove(&named.volume)? {
        let delete = move || {
            if let Err(error) = remove_tree(&gone) {
                tracing::warn!(error = error.message, "what is left of a volume is deleted later");
            }
        };
        // What no thread could be made for is deleted by the next driver.
        drop(std::thread::Builder::new().name("delete".into()).spawn(delete));
    }
    Ok(())
}

/// Whether a directory can be a pool that costs little.
pub fn warnings(pool: &Pool) -> Vec<String> {
    facts::lacks(pool.root()).into_iter().collect()
}
