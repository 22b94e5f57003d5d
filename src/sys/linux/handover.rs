//! Primitives for a takeover by another process: memory and descriptors that outlive a process, and
//! notification of its end.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::super::name::{check, last_errno};
use super::super::types::{Errno, SysResult};

/// Calls until no signal interrupts. These calls access no user's files, so they have no fault
/// injection.
fn uninterrupted<T>(call: impl FnMut() -> rustix::io::Result<T>) -> SysResult<T> {
    rustix::io::retry_on_intr(call).map_err(Errno::from)
}

/// Maximum number of descriptors in one message; the kernel accepts 253 (`SCM_MAX_FD`).
const MESSAGE_FDS_MAX: usize = 16;

/// 64-bit words that processes share, in an unnamed file.
pub struct SharedWords {
    fd: OwnedFd,
    at: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the mapping stays in place until the value is dropped, and exposes only shared references
// to atomics.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Creates `count` words, all 0, of fixed size.
    pub fn create(count: usize) -> SysResult<SharedWords> {
        let bytes = count
            .checked_mul(size_of::<AtomicU64>())
            .ok_or(Errno::EINVAL)? as u64;
        let fd = uninterrupted(|| {
            rustix::fs::memfd_create(
                "ckptfs-ledger",
                MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
            )
        })?;
        uninterrupted(|| rustix::fs::ftruncate(&fd, bytes))?;
        uninterrupted(|| {
            rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        })?;
        SharedWords::open(fd)
    }

    /// Maps the words of another process.
    ///
    /// # Errors
    /// EINVAL if the file could shrink, because reading beyond its end would kill this process
    /// (SIGBUS).
    pub fn open(fd: OwnedFd) -> SysResult<SharedWords> {
        if !uninterrupted(|| rustix::fs::fcntl_get_seals(&fd))?.contains(SealFlags::SHRINK) {
            return Err(Errno::EINVAL);
        }
        let bytes = usize::try_from(uninterrupted(|| rustix::fs::fstat(&fd))?.st_size)
            .map_err(|_| Errno::EINVAL)?;
        let count = bytes / size_of::<AtomicU64>();
        if count == 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: a new mapping at an address that the kernel chooses, of a file sealed against
        // shrinking.
        let at = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )
        }?;
        let at = NonNull::new(at.cast()).ok_or(Errno::EFAULT)?;
        Ok(SharedWords { fd, at, count })
    }

    /// Returns the words.
    pub fn get(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `count` words, is page-aligned, lives as long as `self`, and
        // every process accesses it by atomics only.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.count) }
    }
}

impl AsFd for SharedWords {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `open`; no reference into it outlives `self`.
        let _ = unsafe {
            rustix::mm::munmap(self.at.as_ptr().cast(), self.count * size_of::<AtomicU64>())
        };
    }
}

/// Returns the two ends of a connection that preserves message boundaries and passes descriptors
/// (unix(7), `SOCK_SEQPACKET`).
pub fn message_pair() -> SysResult<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Sends a message with duplicates of descriptors. It never waits: EAGAIN if the peer does not
/// read; EPIPE if it has closed.
pub fn send_message(to: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> SysResult<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::EINVAL);
    }
    uninterrupted(|| {
        rustix::net::sendmsg(
            &to,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        )
    })
    .map(drop)
}

/// Waits for a message of up to `buffer.len()` bytes and returns its length and its descriptors.
/// Length 0: the peer has closed.
pub fn receive_message(from: impl AsFd, buffer: &mut [u8]) -> SysResult<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = uninterrupted(|| {
        rustix::net::recvmsg(
            &from,
            &mut [IoSliceMut::new(buffer)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    Ok((received.bytes, fds))
}

/// Makes descriptor `number` a duplicate of `with` (dup3(2)). The owner of `number` then owns the
/// duplicate.
pub fn replace_descriptor(number: BorrowedFd<'_>, with: impl AsFd) -> SysResult<()> {
    // SAFETY: both are open through the call. It closes the old file of `number`, but the number
    // stays open, so its owner still owns an open descriptor.
    check(unsafe {
        libc::dup3(
            with.as_fd().as_raw_fd(),
            number.as_raw_fd(),
            libc::O_CLOEXEC,
        )
    })
    .map(|_| ())
}

/// Calls `wrap`, a library function that creates an owner for a registered ID (`fuser`'s
/// `wrap_backing`).
///
/// The library requires that the ID is registered with this session and is not closed while the
/// owner lives. The kernel rejects a wrong ID (ENOENT) on use and on close; memory safety does not
/// depend on it.
pub fn wrap_number<S, T>(wrap: unsafe fn(&S, u32) -> T, session: &S, number: u32) -> T {
    // SAFETY: see above: `wrap` only stores the ID with a reference to the session.
    unsafe { wrap(session, number) }
}

/// `FUSE_DEV_IOC_BACKING_CLOSE`: `_IOW(229, 2, uint32_t)`.
const BACKING_CLOSE: libc::Ioctl = 0x4004_e502;

/// Closes a backing ID of the FUSE connection of `device`.
pub fn backing_close(device: impl AsFd, number: u32) -> SysResult<()> {
    // SAFETY: the call reads 32 bits at the address, which lives through it.
    check(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), BACKING_CLOSE, &raw const number) })
        .map(|_| ())
}

/// Signals received by reading a descriptor (signalfd(2)): termination requests, and SIGCHLD.
pub struct Signals(File);

impl Signals {
    /// Blocks the signals in this process until they are read. Must be called before any thread is
    /// started.
    pub fn new() -> SysResult<Signals> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set; the other calls receive that set, which lives
        // through them, and valid numbers.
        let fd = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGCHLD] {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            if libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) != 0 {
                return Err(Errno::EINVAL);
            }
            libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: signalfd has just created it, and nothing else owns it.
        Ok(Signals(unsafe { File::from_raw_fd(fd) }))
    }

    /// Returns a received termination signal, if any; SIGCHLD is discarded.
    pub fn take(&mut self) -> Option<i32> {
        let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
        while self.0.read_exact(&mut info).is_ok() {
            // `ssi_signo` is the first field.
            let number = info
                .first_chunk::<4>()
                .map_or(0, |number| i32::from_ne_bytes(*number));
            if number != libc::SIGCHLD {
                return Some(number);
            }
        }
        None
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of the descriptors is readable or at its end, up to `limit`. Returns which are.
pub fn wait_readable<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    limit: Option<Duration>,
) -> SysResult<[bool; N]> {
    let mut polled = fds.map(|fd| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    let limit = limit.map_or(-1, |limit| {
        i32::try_from(limit.as_millis()).unwrap_or(i32::MAX)
    });
    // SAFETY: `polled` has N records and lives through the call, as do the descriptors in it.
    match check(unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, limit) }) {
        Ok(_) => Ok(polled.map(|polled| polled.revents != 0)),
        Err(Errno::EINTR) => Ok([false; N]),
        Err(errno) => Err(errno),
    }
}

/// Returns whether a descriptor is in error (poll(2), POLLERR): `/dev/fuse` after its connection
/// has ended. False if poll(2) fails.
pub fn is_in_error(fd: impl AsFd) -> bool {
    let mut polled = libc::pollfd {
        fd: fd.as_fd().as_raw_fd(),
        events: 0,
        revents: 0,
    };
    // SAFETY: one record, which lives through the call, as does its descriptor.
    let polls = check(unsafe { libc::poll(&raw mut polled, 1, 0) });
    polls.is_ok() && polled.revents & libc::POLLERR != 0
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn a_descriptor_goes_with_a_message_and_the_end_is_told() {
        let (ours, theirs) = message_pair().expect("socketpair");
        let mut file = tempfile::tempfile().expect("file");
        file.write_all(b"kept").expect("write");
        send_message(&ours, b"K", &[file.as_fd()]).expect("send");
        drop((file, ours));
        let mut buffer = [0; 8];
        let (length, mut fds) = receive_message(&theirs, &mut buffer).expect("receive");
        assert_eq!((&buffer[..length], fds.len()), (b"K".as_slice(), 1));
        let mut file = File::from(fds.remove(0));
        file.rewind().expect("seek");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read");
        assert_eq!(text, "kept");
        assert_eq!(receive_message(&theirs, &mut buffer).expect("receive").0, 0);
        assert_eq!(send_message(&theirs, b"K", &[]), Err(Errno::EPIPE));
    }

    #[test]
    fn a_number_becomes_another_file() {
        let (ours, theirs) = message_pair().expect("socketpair");
        let file = tempfile::tempfile().expect("file");
        replace_descriptor(ours.as_fd(), &file).expect("dup3");
        assert_eq!(
            receive_message(&theirs, &mut [0; 1]).expect("receive").0,
            0,
            "the other end of what it was is gone"
        );
        let mut same = File::from(ours);
        same.write_all(b"x").expect("write");
        assert_eq!(file.metadata().expect("stat").len(), 1);
    }

    #[test]
    fn shared_words_are_shared_and_cannot_shrink() {
        let words = SharedWords::create(4).expect("memory");
        let other = SharedWords::open(words.as_fd().try_clone_to_owned().expect("descriptor"))
            .expect("opens");
        words.get()[3].store(7, Ordering::Release);
        assert_eq!(other.get()[3].load(Ordering::Acquire), 7);
        assert!(rustix::fs::ftruncate(words.as_fd(), 0).is_err());
        assert!(SharedWords::open(tempfile::tempfile().expect("file").into()).is_err());
    }
}
