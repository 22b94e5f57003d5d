//! Threads, privileges and other processes.

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd};

use super::super::name::{check, last_errno};
use super::super::types::{Errno, OwnMemory, ProcessFacts, RequesterIds, SysResult};

/// Makes the calling thread run in the background only, for CPU and disk (`PRIO_DARWIN_BG` of
/// setpriority(2)).
pub fn set_thread_idle() -> SysResult<()> {
    // SAFETY: setpriority(2) takes integers; 0 names the calling thread.
    check(unsafe { libc::setpriority(libc::PRIO_DARWIN_THREAD, 0, libc::PRIO_DARWIN_BG) }).map(drop)
}

/// Runs a call; a background thread stays in the background.
pub fn awake<T>(call: impl FnOnce() -> T) -> T {
    call()
}

/// As [`set_thread_idle`]: no class applies to the disk only.
pub fn set_thread_io_idle() -> SysResult<()> {
    set_thread_idle()
}

/// Returns 0: a thread cannot be raised by another one.
pub fn own_thread() -> i32 {
    0
}

/// No effect: only a thread itself can leave the background.
pub fn set_thread_normal(_thread: i32) -> SysResult<()> {
    Ok(())
}

/// Returns whether this process is root: macOS has no capabilities.
pub fn has_sys_admin() -> bool {
    rustix::process::geteuid().is_root()
}

/// No effect: macOS has no capabilities.
pub fn give_up_set_id() {}

/// Runs `act` if this process runs as the user; EPERM for other users.
pub fn act_as<T>((uid, _gid): (u32, u32), act: impl FnOnce() -> T) -> SysResult<T> {
    match super::super::process::ids().0 == uid {
        true => Ok(act()),
        false => Err(Errno::EPERM),
    }
}

/// Calls `act`: macOS has no capabilities, and the kernel clears the bits unless the caller is
/// root.
pub fn act_for<T>(_asker: Option<RequesterIds>, act: impl FnOnce() -> T) -> T {
    act()
}

/// Calls `act`: macOS has no capabilities.
pub fn within_limits_of<T>(_uid: u32, act: impl FnOnce() -> T) -> T {
    act()
}

/// Returns whether the requester is root: attributes have no namespaces here.
pub fn may_administer(asker: RequesterIds) -> bool {
    asker.uid == 0
}

/// Returns false: not supported.
pub fn runs_our_program(_pid: u32) -> bool {
    false
}

/// Returns the session of a process (getsid(2)).
pub fn process_session(pid: u32) -> SysResult<i32> {
    let pid = i32::try_from(pid).map_err(|_| Errno::EINVAL)?;
    // SAFETY: getsid(2) takes an integer and touches no memory of this process.
    match unsafe { libc::getsid(pid) } {
        -1 => Err(last_errno()),
        session => Ok(session),
    }
}

/// Returns the start time of process `pid` in microseconds since 1970. With the ID it identifies
/// one process uniquely (proc_pidinfo, `PROC_PIDTBSDINFO`). ENOENT (for ESRCH) if the process does
/// not exist.
pub fn process_starttime(pid: i32) -> SysResult<u64> {
    let mut info = MaybeUninit::<libc::proc_bsdinfo>::zeroed();
    let len = size_of::<libc::proc_bsdinfo>() as libc::c_int;
    // SAFETY: `info` has room for `len` bytes and lives through the call.
    let written = unsafe {
        libc::proc_pidinfo(
            pid,
            libc::PROC_PIDTBSDINFO,
            0,
            info.as_mut_ptr().cast(),
            len,
        )
    };
    if written != len {
        let errno = last_errno();
        return Err(if errno.0 == libc::ESRCH {
            Errno::ENOENT
        } else {
            errno
        });
    }
    // SAFETY: it was zeroed, which is valid for its integers, and then filled.
    let info = unsafe { info.assume_init() };
    Ok(info
        .pbi_start_tvsec
        .saturating_mul(1_000_000)
        .saturating_add(info.pbi_start_tvusec))
}

/// Not supported.
pub fn process_name(_pid: u32) -> Option<String> {
    None
}

/// Returns ID and start time; the other fields are not available.
///
/// # Errors
/// ENOENT if the process does not exist.
pub fn facts_of(pid: u32) -> SysResult<ProcessFacts> {
    let start = process_starttime(i32::try_from(pid).map_err(|_| Errno::ENOENT)?)?;
    Ok(ProcessFacts {
        pid,
        start,
        ..ProcessFacts::default()
    })
}

/// Not supported.
pub fn process_user(_pid: u32) -> SysResult<u32> {
    Err(Errno::ENOSYS)
}

/// As [`facts_of`]: macFUSE reports the process, not the thread.
///
/// # Errors
/// As [`facts_of`].
pub fn process_facts(pid: u32) -> SysResult<ProcessFacts> {
    facts_of(pid)
}

/// Returns true: without user namespaces and capabilities, a process of our user has our rights.
pub fn has_our_rights(_pid: u32) -> bool {
    true
}

/// Not available for one thread.
pub fn waits_of_thread() -> Option<u64> {
    None
}

/// Not available.
pub fn runs_of_thread(_thread: i32) -> Option<u64> {
    None
}

/// Returns memory and threads of this process (proc_pidinfo, `PROC_PIDTASKINFO`).
pub fn own_memory() -> SysResult<OwnMemory> {
    let mut info = MaybeUninit::<libc::proc_taskinfo>::zeroed();
    let len = size_of::<libc::proc_taskinfo>() as libc::c_int;
    // SAFETY: getpid(2) takes nothing; `info` has room for `len` bytes and lives through the call.
    let written = unsafe {
        libc::proc_pidinfo(
            libc::getpid(),
            libc::PROC_PIDTASKINFO,
            0,
            info.as_mut_ptr().cast(),
            len,
        )
    };
    if written != len {
        return Err(last_errno());
    }
    // SAFETY: it was zeroed, which is valid for its integers, and then filled.
    let info = unsafe { info.assume_init() };
    Ok(OwnMemory {
        rss_bytes: info.pti_resident_size,
        threads: u64::try_from(info.pti_threadnum).unwrap_or(0),
    })
}

/// No effect: the allocator returns memory by itself.
pub fn release_memory() {}

/// No effect, as [`release_memory`].
pub fn keep_no_large_blocks() {}

/// Returns user, group and process of the peer of a socket (getpeereid(3), `LOCAL_PEERPID`).
pub fn peer_cred(stream: impl AsFd) -> SysResult<(u32, u32, i32)> {
    let fd = stream.as_fd().as_raw_fd();
    let (mut uid, mut gid, mut pid): (libc::uid_t, libc::gid_t, libc::pid_t) = (0, 0, 0);
    // SAFETY: the descriptor is borrowed, and both integers are writable, through the call.
    check(unsafe { libc::getpeereid(fd, &mut uid, &mut gid) })?;
    let mut len = size_of::<libc::pid_t>() as libc::socklen_t;
    // SAFETY: as above; `len` is the size of `pid`.
    check(unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_LOCAL,
            libc::LOCAL_PEERPID,
            (&raw mut pid).cast(),
            &mut len,
        )
    })?;
    Ok((uid, gid, pid))
}

/// A stub: changes of the clock are not reported.
#[derive(Debug)]
pub struct ClockWatch;

impl ClockWatch {
    /// Returns ENOSYS.
    pub fn begin() -> SysResult<ClockWatch> {
        Err(Errno::ENOSYS)
    }

    /// Returns true, because it may have been set.
    pub fn was_set(&self) -> bool {
        true
    }
}
