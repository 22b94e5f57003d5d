//! Requests, answers, and their frames.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

use crate::engine::Keep;
use crate::engine::api::who::{ByProcess, OnlyBy, RestoredOnly};
use crate::engine::api::{
    AuditEvent, Change, CheckpointInfo, CheckpointOptions, DedupOptions, DedupReport, DuOptions, DuReport, GcOptions, GcReport, OperationInfo, Query,
    RestoreOptions, Restored, Retag, StateName, Stats, Status, TreePath, UndoOptions, Undone, VerbError, Verified, VerifyOptions, VersionInfo,
};
use crate::engine::export::parts::{ExportAsk, ExportPart};
use crate::engine::import::{ImportAsk, ImportPart};

/// Version of the protocol. It changes when a daemon and a client of different versions would misunderstand each other.
pub const PROTOCOL: u32 = 1;

/// Longest frame in bytes, its newline included.
pub const FRAME_BYTES_MAX: usize = 16 << 20;

/// A list is split into parts of about so many bytes: half a frame, for the estimate may be short by what a frame says besides.
const PART_BYTES: usize = FRAME_BYTES_MAX / 2;

/// Bytes that a change or a checkpoint takes besides its texts, at most.
const ITEM_BYTES: usize = 256;

/// Bytes that one byte of a text becomes at most: a control character is `\u0001` in JSON.
const ESCAPED_BYTES: usize = 6;

/// What a client asks: one variant per verb.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Make a checkpoint.
    Checkpoint(CheckpointOptions),
    /// What is mounted and what is dirty.
    Status,
    /// What the daemon has done and holds.
    Stats,
    /// Every checkpoint, newest first.
    Log,
    /// One checkpoint.
    Show {
        /// Which.
        state: StateName,
    },
    /// The checkpoints that are asked for, newest first.
    Find(Query),
    /// Give a checkpoint other tags.
    Retag {
        /// Which.
        state: StateName,
        /// What it loses and gets.
        retag: Retag,
    },
    /// Pin a checkpoint, or no longer.
    Pin {
        /// Which.
        state: StateName,
        /// Why; `None`: no longer.
        reason: Option<String>,
    },
    /// Every version of a path.
    Versions {
        /// The path.
        path: TreePath,
    },
    /// What changed between two states.
    Diff {
        /// The older one.
        from: StateName,
        /// The newer one; the live tree if absent.
        to: Option<StateName>,
        /// With the sizes of files.
        #[serde(default)]
        sizes: bool,
    },
    /// What differs between two states, and which process changed it.
    ByProcess {
        /// The older one; the newest checkpoint if absent.
        from: Option<StateName>,
        /// The newer one; the live tree if absent.
        to: Option<StateName>,
    },
    /// Take back what a process changed.
    RestoreOnlyBy(OnlyBy),
    /// Make the tree what it was.
    Restore(RestoreOptions),
    /// Delete a checkpoint.
    Delete {
        /// Which.
        state: StateName,
        /// For good: free what only it needs.
        #[serde(default)]
        now: bool,
    },
    /// What was done to the history.
    Operations {
        /// Before this one.
        #[serde(default)]
        before: Option<u64>,
        /// At most so many.
        limit: usize,
    },
    /// Undo operations, or do them again.
    Undo(UndoOptions),
    /// Look for damage, for a moment.
    Verify(VerifyOptions),
    /// What space the history takes, counted for a moment.
    Du(DuOptions),
    /// Thin out the history, for a moment.
    Gc(GcOptions),
    /// The same content once, for a moment.
    Dedup(DedupOptions),
    /// Who did what when.
    Audit,
    /// A checkpoint's tree, in parts.
    Export(ExportAsk),
    /// A step of an import.
    Import(ImportAsk),
    /// Give up what is being done for this connection, if nothing has been changed for it yet: sent while a `restore` or an `undo` is waited for, which
    /// answers for itself.
    Cancel,
    /// Unmount and end.
    Unmount {
        /// Although the mount is in use.
        lazy: bool,
        /// End at once even though somebody still is in the (then detached) mount; without it a lazily unmounted daemon serves on until the last
        /// file is closed.
        #[serde(default)]
        leave: bool,
        /// How much content is kept; absent: as the settings say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keep: Option<Keep>,
    },
    /// Make system calls fail (debug builds, for tests); absent: no more.
    #[cfg(debug_assertions)]
    Fault {
        /// Which.
        plan: Option<crate::sys::fault::Plan>,
    },
}

impl Request {
    /// It may wait long before it changes something.
    pub fn can_be_cancelled(&self) -> bool {
        matches!(self, Request::Restore(_) | Request::RestoreOnlyBy(_) | Request::Undo(_))
    }

    /// It changes nothing, and may be asked again.
    pub fn only_asks(&self) -> bool {
        match self {
            Request::Cancel | Request::Status | Request::Stats | Request::Log | Request::Show { .. } | Request::Diff { .. } => true,
            Request::Find(_) | Request::Operations { .. } | Request::Versions { .. } | Request::Verify(_) | Request::Audit => true,
            Request::Export(_) => true,
            Request::Import(ask) => matches!(ask, ImportAsk::Begin | ImportAsk::Look),
            // Of a takeover the next daemon knows nothing of a run that goes on.
            Request::Du(options) => options.run.is_none(),
            Request::Gc(options) => options.dry_run && options.run.is_none(),
            Request::Dedup(options) => options.run.is_none(),
            Request::ByProcess { .. } => true,
            Request::RestoreOnlyBy(options) => options.dry_run,
            Request::Restore(options) => options.dry_run,
            Request::Undo(options) => options.dry_run,
            Request::Checkpoint(_) | Request::Retag { .. } | Request::Pin { .. } | Request::Delete { .. } | Request::Unmount { .. } => false,
            #[cfg(debug_assertions)]
            Request::Fault { .. } => false,
        }
    }
}

/// What the daemon answers when the verb succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// To `checkpoint`, `show`, `retag` and `delete`.
    Checkpoint(CheckpointInfo),
    /// To `log` and `find`, and part of a longer answer.
    Checkpoints(Vec<CheckpointInfo>),
    /// To `status`.
    Status(Box<Status>),
    /// To `stats`.
    Stats(Box<Stats>),
    /// To `diff`, and part of a longer answer.
    Changes(Vec<Change>),
    /// To `versions`, and part of a longer answer.
    Versions(Vec<VersionInfo>),
    /// To `by-process`, and part of a longer answer.
    ByProcess(ByProcess),
    /// To `restore-only-by`.
    RestoredOnly(Box<RestoredOnly>),
    /// To `restore`.
    Restored(Restored),
    /// To `operations`, and part of a longer answer.
    Operations(Vec<OperationInfo>),
    /// To `undo`.
    Undone(Box<Undone>),
    /// To `verify`.
    Verified(Box<Verified>),
    /// To `du`.
    Du(Box<DuReport>),
    /// To `gc`.
    Gc(Box<GcReport>),
    /// To `dedup`; descriptors may come with it.
    Dedup(Box<DedupReport>),
    /// To `audit`, and part of a longer answer.
    Audit(Vec<AuditEvent>),
    /// To `export`; descriptors come with it.
    Export(Box<ExportPart>),
    /// To `import`; descriptors may come with it.
    Import(ImportPart),
    /// To `unmount`.
    Done,
    /// To `fault`: what had come of the plan before.
    #[cfg(debug_assertions)]
    Faults {
        /// Calls that counted.
        calls: u64,
        /// Calls that failed.
        failed: u64,
    },
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(clippy::large_enum_variant, reason = "there is one of it for each answer, and it is moved twice")]
pub enum Outcome {
    /// The verb's answer.
    Ok(Response),
    /// Why it failed.
    Error(VerbError),
}

/// The frame of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The client's [`PROTOCOL`].
    pub version: u32,
    /// The tree that it is meant for, as the source of its mount names it; a daemon that serves another one does nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<String>,
    /// What it asks.
    pub request: Request,
}

/// The frame of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The daemon's [`PROTOCOL`].
    pub version: u32,
    /// Another frame of the same answer follows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// The answer.
    pub result: Outcome,
}

/// The one thing that frames of all versions have.
#[derive(Deserialize)]
struct AnyVersion {
    version: u32,
}

impl Call {
    /// The request in a frame, or what to tell a client that speaks another version or nonsense.
    pub fn decode(frame: &[u8]) -> Result<Call, VerbError> {
        match serde_json::from_slice::<Call>(frame) {
            Ok(call) if call.version == PROTOCOL => Ok(call),
            Ok(call) => Err(version_mismatch(PROTOCOL, call.version)),
            Err(error) => match serde_json::from_slice::<AnyVersion>(frame) {
                Ok(any) if any.version != PROTOCOL => Err(version_mismatch(PROTOCOL, any.version)),
                _ => Err(protocol_error(format!("the daemon does not understand the request: {error}"))),
            },
        }
    }

    /// The request, if it is meant for this tree.
    pub fn meant_for(self, tree: &str) -> Result<Request, VerbError> {
        match self.tree {
            Some(other) if other != tree => Err(VerbError {
                code: "wrong-tree".into(),
                message: "the daemon that was found there serves another directory".into(),
                hint: Some("directories were moved meanwhile: try again, and name the directory that is meant with -C".into()),
            }),
            _ => Ok(self.request),
        }
    }
}

impl Reply {
    /// The answer in a frame, or what to tell the user of a daemon of another version.
    pub fn decode(frame: &[u8]) -> Result<Reply, VerbError> {
        match serde_json::from_slice::<Reply>(frame) {
            // An error is told as it is: a daemon of another version says there that it is one.
            Ok(reply) if reply.version == PROTOCOL || matches!(reply.result, Outcome::Error(_)) => Ok(reply),
            Ok(reply) => Err(version_mismatch(reply.version, PROTOCOL)),
            Err(error) => match serde_json::from_slice::<AnyVersion>(frame) {
                Ok(any) if any.version != PROTOCOL => Err(version_mismatch(any.version, PROTOCOL)),
                _ => Err(protocol_error(format!("the daemon's answer cannot be understood: {error}"))),
            },
        }
    }
}

fn version_mismatch(daemon: u32, client: u32) -> VerbError {
    VerbError {
        code: "protocol-version".into(),
        message: format!("the daemon of this mount speaks version {daemon} of the control protocol, and this ckptfs version {client}"),
        hint: Some("restart the daemon with this ckptfs: ckptfs umount DIR && ckptfs mount DIR".into()),
    }
}

fn protocol_error(message: String) -> VerbError {
    VerbError { code: "protocol".into(), message, hint: None }
}

/// The frame of `message`, newline included; an error if it is longer than [`FRAME_BYTES_MAX`].
pub fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut frame = serde_json::to_vec(message)?;
    frame.push(b'\n');
    if frame.len() > FRAME_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a message of {} bytes exceeds the limit of {FRAME_BYTES_MAX}", frame.len()),
        ));
    }
    Ok(frame)
}

/// Sends a frame with one write.
pub fn send(mut stream: impl Write, frame: &[u8]) -> io::Result<()> {
    stream.write_all(frame)
}

/// Reads the next frame into `frame`, without its newline. `false`: the other end closed the connection between two frames.
pub fn receive(stream: impl BufRead, frame: &mut Vec<u8>) -> io::Result<bool> {
    receive_up_to(stream, frame, FRAME_BYTES_MAX)
}

/// As [`receive`]; `InvalidData` of a frame that has more than `limit` bytes, its newline included, of which `frame` then holds so many.
pub fn receive_up_to(stream: impl BufRead, frame: &mut Vec<u8>, limit: usize) -> io::Result<bool> {
    frame.clear();
    stream.take(limit as u64).read_until(b'\n', frame)?;
    match frame.last() {
        Some(b'\n') => {
            frame.pop();
            Ok(true)
        }
        None => Ok(false),
        Some(_) if frame.len() >= limit => Err(io::Error::new(io::ErrorKind::InvalidData, "the message exceeds the limit")),
        Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Splits an answer so that each part fits a frame; the last one is the answer itself with what is left of its list.
pub fn split(mut response: Response) -> Vec<Response> {
    let mut parts: Vec<Response> = match &mut response {
        Response::Status(status) => heads(&mut status.dirty, change_bytes).into_iter().map(Response::Changes).collect(),
        Response::Changes(changes) => heads(changes, change_bytes).into_iter().map(Response::Changes).collect(),
        Response::Restored(restored) => heads(&mut restored.changes, change_bytes).into_iter().map(Response::Changes).collect(),
        Response::RestoredOnly(only) => heads(&mut only.restored.changes, change_bytes).into_iter().map(Response::Changes).collect(),
        Response::ByProcess(all) => {
            let part = |changes| Response::ByProcess(ByProcess { processes: Vec::new(), changes });
            heads(&mut all.changes, |one| change_bytes(&one.change) + 16 * one.by.len()).into_iter().map(part).collect()
        }
        Response::Checkpoints(checkpoints) => heads(checkpoints, checkpoint_bytes).into_iter().map(Response::Checkpoints).collect(),
        Response::Versions(versions) => heads(versions, version_bytes).into_iter().map(Response::Versions).collect(),
        Response::Audit(events) => heads(events, event_bytes).into_iter().map(Response::Audit).collect(),
        Response::Operations(list) => heads(list, operation_bytes).into_iter().map(Response::Operations).collect(),
        // A part of a verification has few findings: `verify` sees to that.
        Response::Checkpoint(_)
        | Response::Stats(_)
        | Response::Verified(_)
        | Response::Undone(_)
        | Response::Du(_)
        | Response::Gc(_)
        | Response::Dedup(_)
        | Response::Export(_)
        | Response::Import(_)
        | Response::Done => Vec::new(),
        #[cfg(debug_assertions)]
        Response::Faults { .. } => Vec::new(),
    };
    parts.push(response);
    parts
}

/// Puts the parts that came before back in front of the last one. `None`: they do not belong together.
pub fn join(parts: Vec<Response>, last: Response) -> Option<Response> {
    let mut changes = Vec::new();
    let mut checkpoints = Vec::new();
    let mut events = Vec::new();
    let mut versions = Vec::new();
    let mut operations = Vec::new();
    let mut by = Vec::new();
    for part in parts {
        match part {
            Response::Changes(mut more) => changes.append(&mut more),
            Response::Checkpoints(mut more) => checkpoints.append(&mut more),
            Response::Audit(mut more) => events.append(&mut more),
            Response::Versions(mut more) => versions.append(&mut more),
            Response::Operations(mut more) => operations.append(&mut more),
            Response::ByProcess(mut more) => by.append(&mut more.changes),
            _ => return None,
        }
    }
    let mut last = last;
    let list = match &mut last {
        Response::Status(status) => Some(&mut status.dirty),
        Response::Changes(list) => Some(list),
        Response::Restored(restored) => Some(&mut restored.changes),
        Response::RestoredOnly(only) => Some(&mut only.restored.changes),
        Response::ByProcess(all) => {
            by.append(&mut all.changes);
            all.changes = std::mem::take(&mut by);
            None
        }
        Response::Checkpoints(list) => {
            checkpoints.append(list);
            *list = std::mem::take(&mut checkpoints);
            None
        }
        Response::Audit(list) => {
            events.append(list);
            *list = std::mem::take(&mut events);
            None
        }
        Response::Versions(list) => {
            versions.append(list);
            *list = std::mem::take(&mut versions);
            None
        }
        Response::Operations(list) => {
            operations.append(list);
            *list = std::mem::take(&mut operations);
            None
        }
        Response::Checkpoint(_)
        | Response::Stats(_)
        | Response::Verified(_)
        | Response::Undone(_)
        | Response::Du(_)
        | Response::Gc(_)
        | Response::Dedup(_)
        | Response::Export(_)
        | Response::Import(_)
        | Response::Done => None,
        #[cfg(debug_assertions)]
        Response::Faults { .. } => None,
    };
    if let Some(list) = list {
        changes.append(list);
        *list = std::mem::take(&mut changes);
    }
    let all_used = by.is_empty() && changes.is_empty() && checkpoints.is_empty() && versions.is_empty() && events.is_empty() && operations.is_empty();
    all_used.then_some(last)
}

/// Takes parts of [`PART_BYTES`] off the front of `list`, until what is left fits.
fn heads<T>(list: &mut Vec<T>, bytes: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let total: usize = list.iter().map(&bytes).sum();
    if total <= PART_BYTES {
        return Vec::new();
    }
    let mut parts = Vec::new();
    let mut part = Vec::new();
    let mut used = 0;
    for item in std::mem::take(list) {
        let size = bytes(&item);
        if used + size > PART_BYTES && !part.is_empty() {
            parts.push(std::mem::take(&mut part));
            used = 0;
        }
        used += size;
        part.push(item);
    }
    *list = part;
    parts
}

fn change_bytes(change: &Change) -> usize {
    let texts = change.path.0.len() + change.from.as_ref().map_or(0, |from| from.0.len());
    ITEM_BYTES + ESCAPED_BYTES * texts
}

fn event_bytes(event: &AuditEvent) -> usize {
    let texts = event.note.len()
        + event.tags.iter().map(|tag| tag.len() + 1).sum::<usize>()
        + event.paths.iter().map(|path| path.0.len() + 16).sum::<usize>();
    2 * ITEM_BYTES + ESCAPED_BYTES * (texts + event.by.as_ref().map_or(0, |by| by.process.len()))
}

fn operation_bytes(operation: &OperationInfo) -> usize {
    let tags = |tags: &[String]| tags.iter().map(|tag| tag.len() + 1).sum::<usize>();
    let texts = operation.by.process.len()
        + operation.reason.as_ref().map_or(0, String::len)
        + operation.obstacle.as_ref().map_or(0, String::len)
        + operation.paths.iter().map(|path| path.0.len() + 16).sum::<usize>()
        + operation.tags.iter().map(|change| 16 + tags(&change.lost) + tags(&change.got)).sum::<usize>();
    2 * ITEM_BYTES + ESCAPED_BYTES * texts
}

fn checkpoint_bytes(checkpoint: &CheckpointInfo) -> usize {
    let texts = checkpoint.note.len()
        + checkpoint.tags.iter().map(|tag| tag.len() + 1).sum::<usize>()
        + checkpoint.pinned.as_ref().map_or(0, String::len)
        + checkpoint.by.as_ref().map_or(0, |by| by.process.len());
    2 * ITEM_BYTES + ESCAPED_BYTES * texts
}

fn version_bytes(version: &VersionInfo) -> usize {
    ITEM_BYTES + version.checkpoint.as_ref().map_or(0, checkpoint_bytes)
}
