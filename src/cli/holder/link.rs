//! The worker's end of the holder's socket: see [`holder`](super).

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::null;
use super::words::{MESSAGE_MAX, TreeFds, about, branch_in, number_in, numbered, send_patiently};
use crate::cli::error::{On, error};
use crate::engine::api::{Code, VerbError, VerbResult};
use crate::engine::succession::Succession;
use crate::live::{Keeper, Orphans};
use crate::store::layout::StoreId;
use crate::sys::host;
use crate::sys::{self, Errno, Ledger, SysResult};

/// How long a worker that ends waits until the holder has ended.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a holder is waited for that does not read, where nothing is locked.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a worker that died has left of a tree.
pub struct Before {
    pub device: OwnedFd,
    pub root: OwnedFd,
    pub orphans: Orphans,
    pub control: Option<OwnedFd>,
    ledger: OwnedFd,
}

impl Before {
    fn of(fds: Vec<OwnedFd>) -> VerbResult<Before> {
        let fds = TreeFds::of(fds).ok_or_else(not_understood)?;
        Ok(Before {
            device: fds.device,
            root: fds.root,
            orphans: Orphans::new(),
            control: fds.control,
            ledger: fds.ledger,
        })
    }
}

/// What a worker that died has left: the tree, and its branches by their stores.
pub struct Left {
    pub tree: Before,
    pub branches: HashMap<StoreId, Before>,
}

/// The worker's end.
pub struct Link {
    socket: OwnedFd,
    takeovers: u32,
    taken_over: Option<String>,
}

/// Holds open files without a name of one tree.
struct TreeKeeper {
    link: Arc<Link>,
    /// `None`: the tree itself.
    branch: Option<StoreId>,
}

/// What the holder says to a worker.
struct Hearing {
    socket: OwnedFd,
    buffer: [u8; MESSAGE_MAX],
}

impl Hearing {
    fn next(&mut self) -> VerbResult<(Vec<u8>, Vec<OwnedFd>)> {
        let (length, fds) = sys::receive_message(&self.socket, &mut self.buffer).on(HEARING)?;
        let message = self.buffer.get(..length).unwrap_or_default();
        Ok((message.to_vec(), fds))
    }

    /// The rest of what is left, up to the message that says that this is all.
    fn rest(&mut self, tree: Before) -> VerbResult<Left> {
        let branches = HashMap::new();
        let (mut left, mut of) = (Left { tree, branches }, None);
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
                    left.branches.insert(id, Before::of(fds)?);
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

/// In a worker: takes the socket that is its stdin, and hears what there is to do.
pub fn meet() -> VerbResult<(Arc<Link>, Option<Left>)> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().on(HEARING)?;
    host::redirect_stdio(0, &null().on(HEARING)?).on(HEARING)?;
    let buffer = [0; MESSAGE_MAX];
    let mut hearing = Hearing { socket, buffer };
    let (first, fds) = hearing.next()?;
    let count = first.get(1..5).and_then(|bytes| bytes.first_chunk::<4>());
    let time = first
        .get(5..)
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .filter(|time| !time.is_empty());
    let left = match first.first() {
        Some(b'S') => None,
        Some(b'T') => Some(hearing.rest(Before::of(fds)?)?),
        _ => return Err(not_understood()),
    };
    let link = Link {
        socket: hearing.socket,
        takeovers: count.map_or(0, |bytes| u32::from_le_bytes(*bytes)),
        taken_over: time,
    };
    Ok((Arc::new(link), left))
}

impl Link {
    /// What the engine of a tree is to know of it: of the tree itself, or of this branch.
    ///
    /// # Errors
    /// The ledger cannot be made, or is none.
    pub fn succession(
        self: &Arc<Self>,
        branch: Option<StoreId>,
        before: Option<&mut Before>,
    ) -> VerbResult<Succession> {
        let what = "the ledger of the mount";
        let ledger = match &before {
            Some(before) => Ledger::open(before.ledger.try_clone().on(what)?).on(what)?,
            None => Ledger::create().on(what)?,
        };
        let link = Arc::clone(self);
        Ok(Succession {
            ledger: Arc::new(ledger),
            keeper: Arc::new(TreeKeeper { link, branch }),
            orphans: before.map(|before| std::mem::take(&mut before.orphans)),
            holder: std::os::unix::process::parent_id(),
            takeovers: self.takeovers,
            taken_over: self.taken_over.clone(),
        })
    }

    /// The mount is made: the holder is to hold what the next worker needs, and does when this
    /// returns.
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

    /// As [`Link::mounted`], of a branch: what was sent is held, for the holder reads it all before
    /// it sees that this process has died. Without a holder nothing is.
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

    /// The mount of a branch is gone, or nobody will serve it.
    pub fn branch_ended(&self, id: StoreId) {
        let message = about(b'L', Some(id));
        tell(send_patiently(&self.socket, &message, &[], Some(PATIENCE)));
    }

    /// Requests are served.
    pub fn serves(&self) {
        self.say(b"R", &[]);
    }

    /// The mount is gone: waits until the holder is too, so that whoever waits for this process
    /// finds neither.
    pub fn end(&self) {
        self.say(b"B", &[]);
        let _ = sys::wait_readable([self.socket.as_fd()], Some(END_TIMEOUT));
    }

    /// It never waits: who calls may hold locks.
    fn say(&self, message: &[u8], fds: &[BorrowedFd<'_>]) {
        tell(sys::send_message(&self.socket, message, fds));
    }
}

/// Without a holder there is nobody to be told.
fn tell(sent: SysResult<()>) {
    match sent {
        Ok(()) | Err(Errno::EPIPE | Errno::ECONNRESET) => {}
        Err(cause) => {
            tracing::warn!(%cause, "the holder was not told; what is open may be lost if this daemon dies")
        }
    }
}

impl Keeper for TreeKeeper {
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
