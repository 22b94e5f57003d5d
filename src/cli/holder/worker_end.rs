//! The worker's end of the holder's socket: see [`holder`](super).

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::messages::{
    MESSAGE_MAX, TreeFds, about, branch_in, number_in, numbered, send_patiently,
};
use super::null;
use ckptfs_api::{Code, VerbError, VerbResult};
use ckptfs_core::engine::succession::WorkerHandover;
use ckptfs_core::live::{FdKeeper, KeptFds};
use ckptfs_store::layout::StoreId;
use ckptfs_sys::{self as sys, Errno, Ledger, SysResult, host};
use ckptfs_ui::error::{ErrorContext, error};

/// Limit of a terminating worker's wait for the end of the holder.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of the wait for a holder that does not read its socket; only used by callers that hold no
/// locks.
const PATIENCE: Duration = Duration::from_secs(5);

/// State of a tree that a dead worker left to its successor.
pub struct InheritedTree {
    pub device: OwnedFd,
    pub root: OwnedFd,
    pub orphans: KeptFds,
    pub control: Option<OwnedFd>,
    ledger: OwnedFd,
}

impl InheritedTree {
    fn of(fds: Vec<OwnedFd>) -> VerbResult<InheritedTree> {
        let fds = TreeFds::of(fds).ok_or_else(not_understood)?;
        Ok(InheritedTree {
            device: fds.device,
            root: fds.root,
            orphans: KeptFds::new(),
            control: fds.control,
            ledger: fds.ledger,
        })
    }
}

/// State left by a dead worker: of the tree, and of its branches by store ID.
pub struct InheritedState {
    pub tree: InheritedTree,
    pub branches: HashMap<StoreId, InheritedTree>,
}

/// The worker's end of the socket.
pub struct HolderConnection {
    socket: OwnedFd,
    takeovers: u32,
    taken_over: Option<String>,
}

/// Stores the descriptors of unlinked open files of one tree in the holder.
struct TreeKeeper {
    link: Arc<HolderConnection>,
    /// `None`: the tree itself.
    branch: Option<StoreId>,
}

/// Receiver of the holder's messages.
struct HolderReceiver {
    socket: OwnedFd,
    buffer: [u8; MESSAGE_MAX],
}

impl HolderReceiver {
    fn next(&mut self) -> VerbResult<(Vec<u8>, Vec<OwnedFd>)> {
        let (length, fds) = sys::receive_message(&self.socket, &mut self.buffer).on(HEARING)?;
        let message = self.buffer.get(..length).unwrap_or_default();
        Ok((message.to_vec(), fds))
    }

    /// Receives the remaining state, up to the message that ends it.
    fn rest(&mut self, tree: InheritedTree) -> VerbResult<InheritedState> {
        let branches = HashMap::new();
        let (mut left, mut of) = (InheritedState { tree, branches }, None);
        loop {
            let (message, mut fds) = self.next()?;
            match (message.first(), number_in(&message), fds.len()) {
                (Some(b'O'), Some(number), 1) => {
                    let before = match of {
                        Some(id) => left.branches.get_mut(&id).ok_or_else(not_understood)?,
                        None => &mut left.tree,
                    };
                    before.orphans.extend(fds.pop().map(|file| (number, file)));
                }
                (Some(b't'), ..) => {
                    let (id, _) = branch_in(&message).ok_or_else(not_understood)?;
                    left.branches.insert(id, InheritedTree::of(fds)?);
                    of = Some(id);
                }
                (Some(b'E'), ..) => return Ok(left),
                _ => return Err(not_understood()),
            }
        }
    }
}

const HEARING: &str = "hearing from the holder";

fn not_understood() -> VerbError {
    error(
        Code::Internal,
        "the holder sent something that cannot be understood",
    )
}

/// In a worker: takes the socket from stdin, and receives the first message and the state of the
/// previous worker, if any.
pub fn meet() -> VerbResult<(Arc<HolderConnection>, Option<InheritedState>)> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().on(HEARING)?;
    host::redirect_stdio(0, &null().on(HEARING)?).on(HEARING)?;
    let buffer = [0; MESSAGE_MAX];
    let mut hearing = HolderReceiver { socket, buffer };
    let (first, fds) = hearing.next()?;
    let count = first.get(1..5).and_then(|bytes| bytes.first_chunk::<4>());
    let time = first
        .get(5..)
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .filter(|time| !time.is_empty());
    let left = match first.first() {
        Some(b'S') => None,
        Some(b'T') => Some(hearing.rest(InheritedTree::of(fds)?)?),
        _ => return Err(not_understood()),
    };
    let link = HolderConnection {
        socket: hearing.socket,
        takeovers: count.map_or(0, |bytes| u32::from_le_bytes(*bytes)),
        taken_over: time,
    };
    Ok((Arc::new(link), left))
}

impl HolderConnection {
    /// Returns the succession for the engine of a branch, or of the tree itself.
    ///
    /// # Errors
    /// The ledger cannot be created, or the received one is invalid.
    pub fn succession(
        self: &Arc<Self>,
        branch: Option<StoreId>,
        before: Option<&mut InheritedTree>,
    ) -> VerbResult<WorkerHandover> {
        let what = "the ledger of the mount";
        let ledger = match &before {
            Some(before) => Ledger::open(before.ledger.try_clone().on(what)?).on(what)?,
            None => Ledger::create().on(what)?,
        };
        let link = Arc::clone(self);
        Ok(WorkerHandover {
            ledger: Arc::new(ledger),
            keeper: Arc::new(TreeKeeper { link, branch }),
            orphans: before.map(|before| std::mem::take(&mut before.orphans)),
            holder: std::os::unix::process::parent_id(),
            takeovers: self.takeovers,
            taken_over: self.taken_over.clone(),
        })
    }

    /// Sends the descriptors of the new mount to the holder, and waits until it has stored them for
    /// the next worker.
    ///
    /// # Errors
    /// The holder is gone.
    pub fn mounted(
        &self,
        [ledger, device, root]: [BorrowedFd<'_>; 3],
        control: Option<BorrowedFd<'_>>,
        log: Option<BorrowedFd<'_>>,
    ) -> SysResult<()> {
        let message: Vec<u8> = [Some(b'M'), log.map(|_| b'l')]
            .into_iter()
            .flatten()
            .collect();
        let fds: Vec<BorrowedFd<'_>> = [ledger, device, root]
            .into_iter()
            .chain(control)
            .chain(log)
            .collect();
        sys::send_message(&self.socket, &message, &fds)?;
        sys::receive_message(&self.socket, &mut [0; MESSAGE_MAX]).map(drop)
    }

    /// As [`HolderConnection::mounted`], for a branch, without an acknowledgement: the holder reads
    /// all messages before it detects the death of this process. Without a holder this has no
    /// effect.
    pub fn branch_mounted(
        &self,
        id: StoreId,
        three: [BorrowedFd<'_>; 3],
        control: Option<BorrowedFd<'_>>,
    ) {
        let fds: Vec<BorrowedFd<'_>> = three.into_iter().chain(control).collect();
        let message = about(b'H', Some(id));
        tell(send_patiently(&self.socket, &message, &fds, Some(PATIENCE)));
    }

    /// Reports that a branch is unmounted, or that no worker will serve it.
    pub fn branch_ended(&self, id: StoreId) {
        let message = about(b'L', Some(id));
        tell(send_patiently(&self.socket, &message, &[], Some(PATIENCE)));
    }

    /// Reports that requests are served.
    pub fn serves(&self) {
        self.say(b"R", &[]);
    }

    /// Reports the orderly end of the mount, and waits for the exit of the holder, so that both
    /// have ended when this process exits.
    pub fn end(&self) {
        self.say(b"B", &[]);
        let _ = sys::wait_readable([self.socket.as_fd()], Some(END_TIMEOUT));
    }

    /// Never blocks, because the caller may hold locks.
    fn say(&self, message: &[u8], fds: &[BorrowedFd<'_>]) {
        tell(sys::send_message(&self.socket, message, fds));
    }
}

/// Logs an error, unless the holder is gone.
fn tell(sent: SysResult<()>) {
    match sent {
        Ok(()) | Err(Errno::EPIPE | Errno::ECONNRESET) => {}
        Err(cause) => {
            tracing::warn!(%cause, "the holder was not told; what is open may be lost if this daemon dies")
        }
    }
}

impl FdKeeper for TreeKeeper {
    fn keep(&self, number: u64, fd: BorrowedFd<'_>) {
        let letter = if self.branch.is_some() { b'k' } else { b'K' };
        let message = numbered(letter, self.branch, number);
        self.link.say(&message, &[fd]);
    }

    fn let_go(&self, number: u64) {
        let letter = if self.branch.is_some() { b'd' } else { b'D' };
        self.link.say(&numbered(letter, self.branch, number), &[]);
    }
}
