//! The Docker volume plugin API, version 1, which Podman also uses.
//!
//! An error is HTTP 500 with `{"Err"}`, because Podman considers every 200 a success. `Mountpoint`
//! is never empty in the response to Mount; otherwise Docker would expose its own configuration to
//! the container. Mount is answered within five seconds, the timeout of Podman. A longer operation
//! continues, and a repeated request finds it completed.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::http::{self, Request, Response};
use super::mount_facts;
use super::name::{self, VolumeRef};
use super::pool::Pool;
use super::process_ident::ProcessIdent;
use super::record::VolumeRecord;
use super::registry::Registry;
use super::sizes::{self, Sizes};
use ckptfs_api::{CheckpointInfo, Code, VerbError, VerbResult, error, hinted};

/// Maximum response time of Mount.
const MOUNT_TIMEOUT: Duration = Duration::from_millis(4500);
/// Maximum response time of Create with a remote. Docker waits two minutes for Create. Podman waits
/// as long as for other requests; a repeated request finds the volume created.
const FETCH_TIMEOUT: Duration = Duration::from_secs(100);
/// Maximum time to query the history for a volume's status.
const STATUS_TIMEOUT: Duration = Duration::from_millis(2000);
/// Maximum number of checkpoints listed.
const CHECKPOINTS_TOLD_MAX: usize = 100;

/// Parameters of all requests; each request has some of them.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct PluginRequest {
    name: String,
    #[serde(rename = "ID")]
    id: String,
    /// Docker sends null without options.
    opts: Option<BTreeMap<String, String>>,
}

#[derive(Serialize)]
struct CheckpointStatus {
    name: u64,
    time: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    note: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

/// Answers a request. `asker` is the client process, if known.
pub fn answer(pool: &Pool, request: &Request, asker: Option<ProcessIdent>) -> Response {
    if request.method != "POST" {
        return response(
            405,
            &json!({"Err": "every call is POST, but for GET /metrics"}),
        );
    }
    let asked = match request.body.trim_ascii() {
        [] => Ok(PluginRequest::default()),
        body => serde_json::from_slice(body).map_err(|cause| {
            error(
                Code::BadRequest,
                format!("the request cannot be parsed: {cause}"),
            )
        }),
    };
    let answered = asked.and_then(|asked| call(pool, &request.path, asked, asker));
    match answered {
        Ok(Some(value)) => response(200, &value),
        Ok(None) => response(
            404,
            &json!({"Err": format!("there is no call {}", request.path)}),
        ),
        Err(error) => {
            tracing::info!(
                call = request.path,
                code = %error.code,
                error = error.message,
                "refused"
            );
            response(500, &json!({"Err": said(&error)}))
        }
    }
}

fn response(status: u16, value: &Value) -> Response {
    let mut body = value.to_string().into_bytes();
    body.push(b'\n');
    Response {
        status,
        kind: http::TYPE,
        body,
    }
}

fn said(error: &VerbError) -> String {
    match &error.hint {
        Some(hint) => format!("{} ({hint})", error.message),
        None => error.message.clone(),
    }
}

fn call(
    pool: &Pool,
    path: &str,
    asked: PluginRequest,
    asker: Option<ProcessIdent>,
) -> VerbResult<Option<Value>> {
    let done = || json!({"Err": ""});
    let value = match path {
        "/Plugin.Activate" => json!({"Implements": ["VolumeDriver"]}),
        "/VolumeDriver.Capabilities" => json!({"Capabilities": {"Scope": "local"}}),
        "/VolumeDriver.List" => {
            let volumes = pool
                .registry()
                .list()?
                .iter()
                .map(|record| listed(pool.registry(), record))
                .collect::<VerbResult<Vec<Value>>>()?;
            json!({"Volumes": volumes, "Err": ""})
        }
        "/VolumeDriver.Create" => {
            create(pool, &asked)?;
            done()
        }
        "/VolumeDriver.Get" => json!({"Volume": inspect(pool.registry(), &asked.name)?, "Err": ""}),
        "/VolumeDriver.Path" => {
            let (record, named) = found(pool.registry(), &asked.name)?;
            json!({"Mountpoint": seen_at(pool.registry(), &record, &named)?, "Err": ""})
        }
        "/VolumeDriver.Mount" => {
            let named = name::parse(&asked.name)?;
            if asked.id.is_empty() {
                return Err(error(Code::BadRequest, "a mount without an ID"));
            }
            let mounts = pool.mounts().clone();
            let point = within(MOUNT_TIMEOUT, move || {
                mounts.mount(&named, &asked.id, asker)
            })
            .unwrap_or_else(|| {
                Err(hinted(
                    Code::Busy,
                    "the volume is still being mounted",
                    "it continues; try again in a moment",
                ))
            })?;
            json!({"Mountpoint": point.to_string_lossy(), "Err": ""})
        }
        "/VolumeDriver.Unmount" => {
            pool.mounts()
                .unmount(&name::parse(&asked.name)?, &asked.id)?;
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

/// Returns the result of `work` if it completes in time. Otherwise it continues in its thread.
fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    let work = move || {
        // The receiver may be gone.
        let _ = sender.send(work());
    };
    std::thread::Builder::new().spawn(work).ok()?;
    receiver.recv_timeout(limit).ok()
}

fn create(pool: &Pool, asked: &PluginRequest) -> VerbResult<()> {
    let named = name::parse(&asked.name)?;
    let options = asked.opts.clone().unwrap_or_default();
    let what = match (&named.checkpoint, &named.branch) {
        (None, None) => return create_whole(pool, &named.volume, options),
        (Some(_), _) => "past state",
        (None, Some(_)) => "branch",
    };
    if !options.is_empty() {
        return Err(error(
            Code::BadOption,
            format!("{} is a {what}, and takes no options", asked.name),
        ));
    }
    found(pool.registry(), &asked.name)?;
    match named.branch {
        // The branch is created from the current state.
        Some(_) => pool.mounts().make_branch(&named),
        None => Ok(()),
    }
}

/// Creates a volume. A fetch from a remote may exceed the timeout of an engine, and then continues.
fn create_whole(pool: &Pool, volume: &str, options: BTreeMap<String, String>) -> VerbResult<()> {
    let Some(remote) = options.get("remote").cloned() else {
        return pool.create(volume, &options).map(drop);
    };
    let (maker, name) = (pool.clone(), volume.to_owned());
    let fetch = move || maker.create(&name, &options).map(drop);
    let thing = format!("fetching volume {volume}");
    pool.long(&thing, &remote, FETCH_TIMEOUT, fetch)
}

/// Resolves a name. A named checkpoint must exist; a branch need not, because Mount creates it.
fn found(registry: &Registry, text: &str) -> VerbResult<(VolumeRecord, VolumeRef)> {
    let named = name::parse(text)?;
    let record = registry.get(&named.volume)?;
    if let Some(state) = &named.checkpoint {
        registry.history(&record)?.checkpoint(state)?;
    }
    Ok((record, named))
}

/// Returns the path for users of a volume; empty if it is not mounted.
fn seen_at(registry: &Registry, record: &VolumeRecord, named: &VolumeRef) -> VerbResult<String> {
    let Some(point) = registry.mountpoint(record)? else {
        return Ok(String::new());
    };
    let history = registry.history(record)?;
    let seen = match (&named.checkpoint, &named.branch) {
        (Some(state), _) => {
            let id = history.checkpoint(state)?.id.to_string();
            Some(point.join(".snapshots").join(id))
        }
        (None, Some(branch)) => {
            let mut all = history.branches()?.into_iter();
            all.find(|one| one.name == *branch && one.mounted)
                .map(|one| mount_facts::branch_at(one.path))
                .transpose()?
        }
        (None, None) => Some(point),
    };
    let seen = seen.unwrap_or_default();
    Ok(seen.to_string_lossy().into_owned())
}

fn listed(registry: &Registry, record: &VolumeRecord) -> VerbResult<Value> {
    let mountpoint = registry
        .mountpoint(record)?
        .map(|point| point.to_string_lossy().into_owned())
        .unwrap_or_default();
    Ok(json!({"Name": record.name, "Mountpoint": mountpoint, "CreatedAt": record.created}))
}

/// Returns all properties of a volume, or of a past state or branch of it.
///
/// # Errors
/// `no-such-volume`, `unknown-checkpoint`.
pub fn inspect(registry: &Registry, text: &str) -> VerbResult<Value> {
    let (record, named) = found(registry, text)?;
    let status = match (&named.checkpoint, &named.branch) {
        (None, None) => status(registry, &record),
        (None, Some(branch)) => {
            let mut all = registry.history(&record)?.branches()?.into_iter();
            let there = all.find(|one| one.name == *branch);
            json!({"volume": record.name, "branch": branch, "made": there.is_some(), "base": there.and_then(|one| one.base)})
        }
        (Some(state), _) => {
            let checkpoint = registry.history(&record)?.checkpoint(state)?;
            json!({"volume": record.name, "checkpoint": told(&checkpoint, &Sizes::load(registry, &record.name).unwrap_or_default()), "readonly": true})
        }
    };
    let mountpoint = seen_at(registry, &record, &named)?;
    Ok(
        json!({"Name": text, "Mountpoint": mountpoint, "CreatedAt": record.created, "Status": status}),
    )
}

/// Returns the status of a volume, which engines show in `volume inspect`.
pub fn status(registry: &Registry, record: &VolumeRecord) -> Value {
    let history = registry.history(record);
    let checkpoints = within(STATUS_TIMEOUT, move || history?.checkpoints());
    let mut status = json!({"mounts": record.mounts.len(), "options": record.options});
    let mut add = |name: &str, value: Value| {
        if let Some(object) = status.as_object_mut() {
            object.insert(name.to_owned(), value);
        }
    };
    let sizes = Sizes::load(registry, &record.name).unwrap_or_default();
    if !sizes.at.is_empty() {
        add("history_bytes", json!(sizes.history_bytes));
        add("counted_at", json!(sizes.at));
    }
    if let Some(used) = sizes::used(registry, record) {
        add("used_bytes", json!(used));
    }
    match checkpoints {
        Some(Ok(list)) => {
            let list: Vec<&CheckpointInfo> = list
                .iter()
                .filter(|one| !one.reason.is_guard_or_mark())
                .collect();
            add(
                "checkpoints",
                list.iter()
                    .take(CHECKPOINTS_TOLD_MAX)
                    .map(|one| json!(told(one, &sizes)))
                    .collect(),
            );
            add("checkpoints_kept", json!(list.len()));
        }
        Some(Err(error)) => add("warning", json!(said(&error))),
        None => add("warning", json!("the history did not answer in time")),
    }
    if let Ok(branches) = registry.history(record).and_then(|one| one.branches())
        && !branches.is_empty()
    {
        let names = branches.iter().map(|branch| branch.name.as_str());
        add("branches", names.collect());
    }
    if let Some(parent) = &record.parent {
        add("parent", json!(parent.told()));
    }
    status
}

fn told(checkpoint: &CheckpointInfo, sizes: &Sizes) -> CheckpointStatus {
    let (tags, note) = (checkpoint.tags.clone(), checkpoint.note.clone());
    let bytes = sizes.checkpoints.get(&checkpoint.id.0).copied();
    CheckpointStatus {
        name: checkpoint.id.0,
        time: checkpoint.created.clone(),
        tags,
        note,
        bytes,
    }
}

fn remove(pool: &Pool, text: &str) -> VerbResult<()> {
    let named = name::parse(text)?;
    match (named.checkpoint, named.branch) {
        // A past state is not a separate object; the engine only removes its name for it.
        (Some(_), _) => pool.registry().get(&named.volume).map(drop),
        (None, Some(branch)) => pool.mounts().drop_branch(&named.volume, &branch),
        (None, None) => pool.remove_beside(&named.volume),
    }
}

/// Returns warnings about limitations of the pool's filesystem.
pub fn warnings(pool: &Pool) -> Vec<String> {
    mount_facts::lacks(pool.registry().root())
        .into_iter()
        .collect()
}
