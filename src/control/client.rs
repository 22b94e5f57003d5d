//! The client's side of the socket.

use std::io::{self, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
#[cfg(test)]
use std::path::Path;
use std::time::{Duration, Instant};

use super::SOCKET_NAME;
use super::place::Store;
use super::protocol::{Call, Outcome, PROTOCOL, Reply, Request, Response, encode, join, receive, send};
use crate::engine::Keep;
use crate::engine::api::who::{ByProcess, OnlyBy, RestoredOnly};
use crate::engine::api::{
    AuditEvent, Change, CheckpointInfo, CheckpointOptions, DedupOptions, DedupReport, DuOptions, DuReport, GcOptions, GcReport, OperationInfo, Query,
    RestoreOptions, Restored, Retag, StateName, Stats, Status, TreePath, UndoOptions, Undone, VerbError, VerbResult, Verified, VerifyOptions,
    VersionInfo,
};
use crate::engine::export::parts::{ExportAsk, ExportPart};
use crate::engine::import::{ImportAsk, ImportPart};
use crate::sys::{self, host};

/// A connection to the daemon of a mount. One request at a time; an error of the connection itself ends it.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<Socket>,
    /// The store, in which the daemon that takes over from one that dies has its socket.
    store: Option<Store>,
}

/// The daemon's end of the connection, and descriptors that came with what was read.
#[derive(Debug)]
struct Socket {
    stream: UnixStream,
    files: Vec<OwnedFd>,
}

impl Socket {
    fn reader(stream: UnixStream) -> BufReader<Socket> {
        BufReader::with_capacity(READ_BYTES, Socket { stream, files: Vec::new() })
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(sys::receive_files(&self.stream, buffer, &mut self.files)?)
    }
}

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// How long a daemon that died while it was asked may take to be followed by another.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(5);
const TAKEOVER_PAUSE: Duration = Duration::from_millis(10);
/// How many daemons may die over one question.
const TAKEOVERS_MAX: u32 = 5;

impl Client {
    /// Connects to the daemon that serves a store.
    ///
    /// Errors: `ConnectionRefused` or `NotFound` when no daemon runs; `PermissionDenied` when it is not ours to ask, or runs as another user than the
    /// owner of the store.
    pub fn of(store: &Store) -> io::Result<Client> {
        Ok(Client { stream: Socket::reader(connect(store)?), store: Some(store.try_clone()?) })
    }

    /// As [`Client::of`], of a directory that is known to be the store, to somebody who knows whose it is: whatever tree it is of.
    pub fn connect(store: impl AsFd) -> io::Result<Client> {
        Client::of(&Store::known(store)?)
    }

    /// One more connection to the same daemon, or to the one that took over from it.
    pub fn again(&self) -> Option<Client> {
        Client::of(self.store.as_ref()?).ok()
    }

    /// The store.
    pub fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// Connects to the daemon that takes over; whether there is one.
    fn reconnect(&mut self) -> bool {
        let Some(store) = &self.store else { return false };
        let started = Instant::now();
        while started.elapsed() < TAKEOVER_TIMEOUT {
            if let Ok(stream) = connect(store) {
                self.stream = Socket::reader(stream);
                return true;
            }
            std::thread::sleep(TAKEOVER_PAUSE);
        }
        false
    }

    #[cfg(test)]
    /// Connects to the socket at `path`, at most about 100 bytes long (unix(7), `sun_path`).
    pub fn connect_path(path: &Path) -> io::Result<Client> {
        Ok(Client { stream: Socket::reader(UnixStream::connect(path)?), store: None })
    }

    /// Makes a checkpoint.
    pub fn checkpoint(&mut self, options: CheckpointOptions) -> VerbResult<CheckpointInfo> {
        self.one_checkpoint(Request::Checkpoint(options))
    }

    /// What is mounted and what is dirty.
    pub fn status(&mut self) -> VerbResult<Status> {
        match self.call(Request::Status)? {
            Response::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    /// What the daemon has done and holds.
    pub fn stats(&mut self) -> VerbResult<Stats> {
        match self.call(Request::Stats)? {
            Response::Stats(stats) => Ok(*stats),
            other => Err(unexpected(&other)),
        }
    }

    /// Every checkpoint, newest first.
    pub fn log(&mut self) -> VerbResult<Vec<CheckpointInfo>> {
        match self.call(Request::Log)? {
            Response::Checkpoints(checkpoints) => Ok(checkpoints),
            other => Err(unexpected(&other)),
        }
    }

    /// One checkpoint.
    pub fn show(&mut self, state: StateName) -> VerbResult<CheckpointInfo> {
        self.one_checkpoint(Request::Show { state })
    }

    /// The checkpoints that are asked for, newest first.
    pub fn find(&mut self, query: Query) -> VerbResult<Vec<CheckpointInfo>> {
        match self.call(Request::Find(query))? {
            Response::Checkpoints(checkpoints) => Ok(checkpoints),
            other => Err(unexpected(&other)),
        }
    }

    /// Gives a checkpoint other tags.
    pub fn retag(&mut self, state: StateName, retag: Retag) -> VerbResult<CheckpointInfo> {
        self.one_checkpoint(Request::Retag { state, retag })
    }

    /// Pins a checkpoint for this reason, or (`None`) no longer.
    pub fn pin(&mut self, state: StateName, reason: Option<String>) -> VerbResult<CheckpointInfo> {
        self.one_checkpoint(Request::Pin { state, reason })
    }

    /// Every version of a path, newest first.
    pub fn versions(&mut self, path: TreePath) -> VerbResult<Vec<VersionInfo>> {
        match self.call(Request::Versions { path })? {
            Response::Versions(versions) => Ok(versions),
            other => Err(unexpected(&other)),
        }
    }

    /// What changed from state `from` to state `to` (`None`: the live tree).
    pub fn diff(&mut self, from: StateName, to: Option<StateName>) -> VerbResult<Vec<Change>> {
        self.changes(Request::Diff { from, to, sizes: false })
    }

    /// As [`Client::diff`], with the sizes of files.
    pub fn diff_sized(&mut self, from: StateName, to: Option<StateName>) -> VerbResult<Vec<Change>> {
        self.changes(Request::Diff { from, to, sizes: true })
    }

    /// What differs between two states (`None`: the newest checkpoint, the live tree), and which process changed it.
    pub fn by_process(&mut self, from: Option<StateName>, to: Option<StateName>) -> VerbResult<ByProcess> {
        match self.call(Request::ByProcess { from, to })? {
            Response::ByProcess(by) => Ok(by),
            other => Err(unexpected(&other)),
        }
    }

    /// Takes back what a process changed.
    pub fn restore_only_by(&mut self, options: OnlyBy) -> VerbResult<RestoredOnly> {
        match self.call(Request::RestoreOnlyBy(options))? {
            Response::RestoredOnly(restored) => Ok(*restored),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes the tree what it was.
    pub fn restore(&mut self, options: RestoreOptions) -> VerbResult<Restored> {
        match self.call(Request::Restore(options))? {
            Response::Restored(restored) => Ok(restored),
            other => Err(unexpected(&other)),
        }
    }

    /// Deletes a checkpoint, so that it can be brought back.
    pub fn delete(&mut self, state: StateName) -> VerbResult<CheckpointInfo> {
        self.one_checkpoint(Request::Delete { state, now: false })
    }

    /// Deletes a checkpoint, also one that is deleted already, for good, and frees what only it needed.
    pub fn free(&mut self, state: StateName) -> VerbResult<CheckpointInfo> {
        self.one_checkpoint(Request::Delete { state, now: true })
    }

    /// At most `limit` operations before `before` (without it: the last), newest first.
    pub fn operations(&mut self, before: Option<u64>, limit: usize) -> VerbResult<Vec<OperationInfo>> {
        match self.call(Request::Operations { before, limit })? {
            Response::Operations(operations) => Ok(operations),
            other => Err(unexpected(&other)),
        }
    }

    /// Undoes operations, or does them again.
    pub fn undo(&mut self, options: UndoOptions) -> VerbResult<Undone> {
        match self.call(Request::Undo(options))? {
            Response::Undone(undone) => Ok(*undone),
            other => Err(unexpected(&other)),
        }
    }

    /// Looks for damage, for a moment.
    pub fn verify(&mut self, options: VerifyOptions) -> VerbResult<Verified> {
        match self.call(Request::Verify(options))? {
            Response::Verified(verified) => Ok(*verified),
            other => Err(unexpected(&other)),
        }
    }

    /// What space the history takes, counted for a moment.
    pub fn du(&mut self, options: DuOptions) -> VerbResult<DuReport> {
        match self.call(Request::Du(options))? {
            Response::Du(report) => Ok(*report),
            other => Err(unexpected(&other)),
        }
    }

    /// Thins out the history, for a moment.
    pub fn gc(&mut self, options: GcOptions) -> VerbResult<GcReport> {
        match self.call(Request::Gc(options))? {
            Response::Gc(report) => Ok(*report),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes the same content share its space, for a moment; and the descriptors that were asked for.
    pub fn dedup(&mut self, options: DedupOptions) -> VerbResult<(DedupReport, Vec<OwnedFd>)> {
        match self.call(Request::Dedup(options))? {
            Response::Dedup(report) => Ok((*report, std::mem::take(&mut self.stream.get_mut().files))),
            other => Err(unexpected(&other)),
        }
    }

    /// Who did what when, oldest first.
    pub fn audit(&mut self) -> VerbResult<Vec<AuditEvent>> {
        match self.call(Request::Audit)? {
            Response::Audit(events) => Ok(events),
            other => Err(unexpected(&other)),
        }
    }

    /// A part of a checkpoint's tree, and descriptors of the files in it, in their order.
    pub fn export(&mut self, ask: ExportAsk) -> VerbResult<(ExportPart, Vec<OwnedFd>)> {
        match self.call(Request::Export(ask))? {
            Response::Export(part) => Ok((*part, std::mem::take(&mut self.stream.get_mut().files))),
            other => Err(unexpected(&other)),
        }
    }

    /// A step of an import, and the descriptors that it gives.
    pub fn import(&mut self, ask: ImportAsk) -> VerbResult<(ImportPart, Vec<OwnedFd>)> {
        match self.call(Request::Import(ask))? {
            Response::Import(part) => Ok((part, std::mem::take(&mut self.stream.get_mut().files))),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks the daemon to unmount; see [`Request::Unmount`]. It has ended when [`Client::wait_ended`] says so.
    pub fn unmount(&mut self, lazy: bool, leave: bool, keep: Option<Keep>) -> VerbResult<()> {
        match self.call(Request::Unmount { lazy, leave, keep })? {
            Response::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes system calls of the daemon fail; `None`: no more. How many calls counted, and how many failed, by the plan before.
    #[cfg(debug_assertions)]
    pub fn fault(&mut self, plan: Option<crate::sys::fault::Plan>) -> VerbResult<(u64, u64)> {
        match self.call(Request::Fault { plan })? {
            Response::Faults { calls, failed } => Ok((calls, failed)),
            other => Err(unexpected(&other)),
        }
    }

    /// Waits until the daemon has ended, for `timeout` at most; whether it has.
    pub fn wait_ended(&mut self, timeout: Duration) -> bool {
        // The daemon never closes a connection first, so the end of the stream is the end of the process.
        if self.stream.get_ref().stream.set_read_timeout(Some(timeout)).is_err() {
            return false;
        }
        match self.stream.read(&mut [0]) {
            // Nothing is asked, so nothing is answered; and if it is, somebody lives there.
            Ok(read) => read == 0,
            Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted),
        }
    }

    /// What says that the request that is waited for is to be given up, from another thread.
    ///
    /// # Errors
    /// Those of dup(2).
    pub fn canceller(&self) -> io::Result<Canceller> {
        self.stream.get_ref().stream.try_clone().map(Canceller)
    }

    fn changes(&mut self, request: Request) -> VerbResult<Vec<Change>> {
        match self.call(request)? {
            Response::Changes(changes) => Ok(changes),
            other => Err(unexpected(&other)),
        }
    }

    fn one_checkpoint(&mut self, request: Request) -> VerbResult<CheckpointInfo> {
        match self.call(request)? {
            Response::Checkpoint(checkpoint) => Ok(checkpoint),
            other => Err(unexpected(&other)),
        }
    }

    /// What changes nothing is asked again of the daemon that takes over.
    fn call(&mut self, request: Request) -> VerbResult<Response> {
        for _ in 0..TAKEOVERS_MAX {
            match self.call_once(request.clone()) {
                Err(error) if error.code == DAEMON_LOST && request.only_asks() && self.reconnect() => {}
                answer => return answer,
            }
        }
        self.call_once(request)
    }

    fn call_once(&mut self, request: Request) -> VerbResult<Response> {
        let tree = self.store.as_ref().and_then(|store| store.tree.clone());
        let frame = encode(&Call { version: PROTOCOL, tree, request }).map_err(|error| VerbError {
            code: "too-large".into(),
            message: format!("cannot ask the daemon: {error}"),
            hint: None,
        })?;
        // A daemon that refuses us answers and closes without reading: what it said is there although sending fails.
        self.stream.get_mut().files.clear();
        let sent = send(&self.stream.get_ref().stream, &frame);
        let mut parts = Vec::new();
        let mut frame = Vec::new();
        loop {
            match receive(&mut self.stream, &mut frame) {
                Ok(true) => {}
                Ok(false) => return Err(lost(&sent.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()))),
                Err(error) => return Err(lost(&sent.err().unwrap_or(error))),
            }
            let reply = Reply::decode(&frame)?;
            match reply.result {
                Outcome::Error(error) => return Err(error),
                Outcome::Ok(part) if reply.more => parts.push(part),
                Outcome::Ok(last) => return join(parts, last).ok_or_else(|| unexpected(&"parts that do not belong together")),
            }
        }
    }
}

/// See [`Client::canceller`].
#[derive(Debug)]
pub struct Canceller(UnixStream);

impl Canceller {
    /// Says so; the daemon's answer tells what became of it.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn cancel(&self) -> io::Result<()> {
        send(&self.0, &encode(&Call { version: PROTOCOL, tree: None, request: Request::Cancel })?)
    }
}

/// Connects to the socket in a store, if it is the store's owner who listens there: the kernel says who called listen(2).
fn connect(store: &Store) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(host::path_in(store.dir.as_fd(), SOCKET_NAME)?)?;
    let (peer, _, _) = sys::peer_cred(&stream)?;
    if peer == store.owner { Ok(stream) } else { Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("user {peer} listens there"))) }
}

const DAEMON_LOST: &str = "daemon-lost";

fn lost(error: &io::Error) -> VerbError {
    VerbError {
        code: DAEMON_LOST.into(),
        message: format!("the daemon ended before it answered ({error})"),
        hint: Some("whether it was done: ckptfs log; what was acknowledged is safe. If nobody took over, mount again: ckptfs mount DIR".into()),
    }
}

fn unexpected(answer: &dyn std::fmt::Debug) -> VerbError {
    let answer: String = format!("{answer:?}").chars().take(80).collect();
    VerbError { code: "protocol".into(), message: format!("the daemon answered something else than was asked: {answer}"), hint: None }
}
