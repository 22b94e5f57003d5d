//! Passing descriptors with the bytes of a stream socket (unix(7), `SCM_RIGHTS`).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::types::{Errno, SysResult};

/// Maximum number of descriptors in one message; the kernel accepts 253 (`SCM_MAX_FD`).
pub const FILES_AT_ONCE: usize = 128;

#[cfg(target_os = "linux")]
const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL;
#[cfg(not(target_os = "linux"))]
const SEND_FLAGS: SendFlags = SendFlags::empty();
#[cfg(target_os = "linux")]
const RECEIVE_FLAGS: RecvFlags = RecvFlags::CMSG_CLOEXEC;
#[cfg(not(target_os = "linux"))]
const RECEIVE_FLAGS: RecvFlags = RecvFlags::empty();

/// Sends bytes, and duplicates of descriptors with the first of them. Returns the number of bytes
/// sent, which may be short. Waits for buffer space.
///
/// # Errors
/// EINVAL for more than [`FILES_AT_ONCE`]; EAGAIN after the stream's timeout; EPIPE if the peer has
/// closed.
pub fn send_files(to: impl AsFd, bytes: &[u8], files: &[BorrowedFd<'_>]) -> SysResult<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_AT_ONCE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if files.len() > FILES_AT_ONCE
        || (!files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)))
    {
        return Err(Errno::EINVAL);
    }
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&to, &[IoSlice::new(bytes)], &mut control, SEND_FLAGS)
    });
    Ok(sent?)
}

/// Reads the available bytes of a stream without consuming them and without waiting. 0: end of
/// stream.
///
/// # Errors
/// EAGAIN if no bytes are available.
pub fn peek(from: impl AsFd, buffer: &mut [u8]) -> SysResult<usize> {
    let (length, _) = rustix::net::recv(&from, buffer, RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    Ok(length)
}

/// Returns whether the peer has closed the stream, and not only its sending direction: an empty
/// write then fails with EPIPE (unix(7)).
pub fn is_peer_gone(stream: impl AsFd) -> bool {
    rustix::net::send(&stream, &[], SEND_FLAGS | SendFlags::DONTWAIT)
        == Err(rustix::io::Errno::PIPE)
}

/// Returns whether a pipe or a socket has lost its reader (poll(2), POLLERR and POLLHUP).
pub fn is_unread(written: impl AsFd) -> bool {
    let mut look = libc::pollfd {
        fd: written.as_fd().as_raw_fd(),
        events: 0,
        revents: 0,
    };
    // SAFETY: `look` is one pollfd, which is writable and lives through the call.
    let found = unsafe { libc::poll(&mut look, 1, 0) };
    found > 0 && look.revents & (libc::POLLERR | libc::POLLHUP) != 0
}

/// Shuts a socket down in both directions for all its descriptors. On a listening socket, accept(2)
/// in other threads returns with an error.
pub fn shutdown(socket: impl AsFd) {
    // It fails only if the socket is already shut down.
    let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
}

/// Receives bytes of a stream, and appends the descriptors passed with them to `files`. 0: the peer
/// has closed.
///
/// # Errors
/// Those of recvmsg(2). EMFILE is not reported: descriptors beyond the limit of the process are
/// lost.
pub fn receive_files(
    from: impl AsFd,
    buffer: &mut [u8],
    files: &mut Vec<OwnedFd>,
) -> SysResult<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_AT_ONCE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            &from,
            &mut [IoSliceMut::new(buffer)],
            &mut control,
            RECEIVE_FLAGS,
        )
    })?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            files.extend(received);
        }
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn files_go_with_the_bytes_and_too_many_are_refused() {
        let (ours, theirs) = UnixStream::pair().expect("pair");
        let file = tempfile::tempfile().expect("file");
        let many = vec![file.as_fd(); FILES_AT_ONCE];
        assert_eq!(send_files(&ours, b"ab", &many), Ok(2));
        assert_eq!(send_files(&ours, b"c", &[]), Ok(1));
        assert_eq!(
            send_files(&ours, b"d", &vec![file.as_fd(); FILES_AT_ONCE + 1]),
            Err(Errno::EINVAL)
        );
        let (mut files, mut buffer) = (Vec::new(), [0; 16]);
        let mut got = Vec::new();
        while got.len() < 3 {
            let count = receive_files(&theirs, &mut buffer, &mut files).expect("receive");
            got.extend_from_slice(&buffer[..count]);
        }
        assert_eq!(
            (got.as_slice(), files.len()),
            (b"abc".as_slice(), FILES_AT_ONCE)
        );
        drop(ours);
        assert_eq!(receive_files(&theirs, &mut buffer, &mut files), Ok(0));
    }
}
