//! Messages between the holder and a worker: see [`holder`](super).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ckptfs_store::layout::StoreId;
use ckptfs_sys::{self as sys, Errno, SysResult};

/// Maximum size of a message, bytes.
pub(super) const MESSAGE_MAX: usize = 64;
/// Interval of retries to a peer that does not read.
const PAUSE: Duration = Duration::from_millis(1);
/// Sizes of the letter, of a store ID, and of an inode number, bytes.
const LETTER: usize = 1;
const ID: usize = 16;
const NUMBER: usize = 8;

/// The descriptors of a mounted tree that outlive its worker.
pub(super) struct TreeFds {
    pub(super) ledger: OwnedFd,
    /// `/dev/fuse`.
    pub(super) device: OwnedFd,
    /// The backing directory.
    pub(super) root: OwnedFd,
    /// The listening control socket. Clients that connect while no worker runs wait for the next
    /// one, which need not create a socket on a full disk.
    pub(super) control: Option<OwnedFd>,
}

impl TreeFds {
    /// Converts the descriptors of a message; `None`: some are missing.
    pub(super) fn of(fds: Vec<OwnedFd>) -> Option<TreeFds> {
        let mut fds = fds.into_iter();
        Some(TreeFds {
            ledger: fds.next()?,
            device: fds.next()?,
            root: fds.next()?,
            control: fds.next(),
        })
    }

    /// Returns the descriptors in the order of a message.
    pub(super) fn all(&self) -> Vec<BorrowedFd<'_>> {
        let three = [&self.ledger, &self.device, &self.root];
        let all = three.into_iter().chain(&self.control);
        all.map(AsFd::as_fd).collect()
    }
}

/// Encodes a message about an inode of a branch; `None`: of the tree itself.
pub(super) fn numbered(letter: u8, branch: Option<StoreId>, number: u64) -> Vec<u8> {
    let mut message = about(letter, branch);
    message.extend(number.to_le_bytes());
    message
}

/// Encodes a message about a tree.
pub(super) fn about(letter: u8, branch: Option<StoreId>) -> Vec<u8> {
    let mut message = vec![letter];
    message.extend(branch.into_iter().flat_map(|id| id.0));
    message
}

/// Decodes the inode of a message about the tree itself.
pub(super) fn number_in(message: &[u8]) -> Option<u64> {
    let bytes = message.get(LETTER..LETTER + NUMBER)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

/// Decodes the branch of a message, and the inode, if any.
pub(super) fn branch_in(message: &[u8]) -> Option<(StoreId, Option<u64>)> {
    let id = message.get(LETTER..LETTER + ID)?.first_chunk()?;
    let number = message.get(LETTER + ID..)?.first_chunk();
    Some((StoreId(*id), number.map(|bytes| u64::from_le_bytes(*bytes))))
}

/// Sends a message, and retries while the peer's buffer is full, up to `limit` if given. Ends when
/// the peer reads or dies.
///
/// # Errors
/// EAGAIN: the peer did not read within the limit. Those of sendmsg(2).
pub(super) fn send_patiently(
    socket: &OwnedFd,
    message: &[u8],
    fds: &[BorrowedFd<'_>],
    limit: Option<Duration>,
) -> SysResult<()> {
    let began = Instant::now();
    loop {
        match sys::send_message(socket, message, fds) {
            Err(Errno::EAGAIN) if limit.is_none_or(|limit| began.elapsed() < limit) => {
                std::thread::sleep(PAUSE);
            }
            sent => return sent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_branch_is_not_taken_for_the_tree() {
        let id = StoreId([7; 16]);
        let of_branch = numbered(b'k', Some(id), 99);
        assert!(of_branch.len() <= MESSAGE_MAX);
        assert_eq!(branch_in(&of_branch), Some((id, Some(99))));
        assert_eq!(branch_in(&about(b'L', Some(id))), Some((id, None)));
        let of_tree = numbered(b'K', None, 99);
        assert_eq!((number_in(&of_tree), branch_in(&of_tree)), (Some(99), None));
        assert_eq!(number_in(&about(b'B', None)), None);
    }
}
