//! Threads, privileges and other processes.

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd};

use super::super::name::{check, last_errno};
use super::super::types::{Asker, Errno, OwnMemory, ProcessFacts, SysResult};

/// Lets the calling thread run in the background only, for processor and disk (`PRIO_DARWIN_BG` of
/// setpriority(2)).
pub fn set_thread_idle() -> SysResult<()> {
    // SAFETY: setpriority(2) takes integers; 0 names the calling thread.
    check(unsafe { libc::setpriority(libc::PRIO_DARWIN_THREAD, 0, libc::PRIO_DARWIN_BG) }).map(drop)
}

/// Makes a call; a thread in the background stays there.
pub fn awake<T>(call: impl FnOnce() -> T) -> T {
    call()
}

/// As [`set_thread_idle`]: there is no class for the disk alone.
pub fn set_thread_io_idle() -> SysResult<()> {
    set_thread_idle()
}

/// There is no number by which another thread could raise this one.
pub fn own_thread() -> i32 {
    0
}

/// Nothing: a thread can only be raised by itself here.
pub fn set_thread_normal(_thread: i32) -> SysResult<()> {
    Ok(())
}

/// Whether this process is root: there are no capabilities here.
pub fn has_sys_admin() -> bool {
    rustix::process::geteuid().is_root()
}

/// Nothing: there is no capability to give up.
pub fn give_up_set_id() {}

/// Does something as the user that this process is; EPERM for any other: there is no such call here.
pub fn act_as<T>((uid, _gid): (u32, u32), act: impl FnOnce() -> T) -> SysResult<T> {
    match super::super::process::ids().0 == uid {
        true => Ok(act()),
        false => Err(Errno::EPERM),
    }
}

/// Calls `act`: there is no capability to drop, and the kernel clears the bits for whoever is not
/// root.
pub fn act_for<T>(_asker: Option<Asker>, act: impl FnOnce() -> T) -> T {
    act()
}

/// Calls `act`: there is no capability to drop.
pub fn within_limits_of<T>(_uid: u32, act: impl FnOnce() -> T) -> T {
    act()
}

/// Whether whoever asks is root: attributes have no kinds here.
pub fn may_administer(asker: Asker) -> bool {
    asker.uid == 0
}

/// Whether a process runs the program that this one runs: not known here.
pub fn runs_our_program(_pid: u32) -> bool {
    false
}

/// The session of a process (getsid(2)).
pub fn process_session(pid: u32) -> SysResult<i32> {
    let pid = i32::try_from(pid).map_err(|_| Errno::EINVAL)?;
    // SAFETY: getsid(2) takes an integer and touches no memory of ours.
    match unsafe { libc::getsid(pid) } {
        -1 => Err(last_errno()),
        session => Ok(session),
    }
}

/// When process `pid` started, in microseconds since 1970: with the number, it names one process
/// for good (proc_pidinfo, `PROC_PIDTBSDINFO`). ESRCH as ENOENT when there is none.
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

/// Not told here.
pub fn process_name(_pid: u32) -> Option<String> {
    None
}

/// Its number and start; the rest is not told here.
///
/// # Errors
/// ENOENT if there is none.
pub fn facts_of(pid: u32) -> SysResult<ProcessFacts> {
    let start = process_starttime(i32::try_from(pid).map_err(|_| Errno::ENOENT)?)?;
    Ok(ProcessFacts {
        pid,
        start,
        ..ProcessFacts::default()
    })
}

/// Not told here.
pub fn process_user(_pid: u32) -> SysResult<u32> {
    Err(Errno::ENOSYS)
}

/// macFUSE tells the process, not the thread.
///
/// # Errors
/// As [`facts_of`].
pub fn process_facts(pid: u32) -> SysResult<ProcessFacts> {
    facts_of(pid)
}

/// There are neither user namespaces nor capabilities: who has our user has our rights.
pub fn has_our_rights(_pid: u32) -> bool {
    true
}

/// Not told here for one thread.
pub fn waits_of_thread() -> Option<u64> {
    None
}

/// Nothing: it is not told here.
pub fn runs_of_thread(_thread: i32) -> Option<u64> {
    None
}

/// Memory and threads of this process (proc_pidinfo, `PROC_PIDTASKINFO`).
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

/// Nothing: the allocator here gives memory back by itself.
pub fn release_memory() {}

/// Nothing, as [`release_memory`].
pub fn keep_no_large_blocks() {}

/// Who is at the other end of a socket: user, group and process (getpeereid(3), `LOCAL_PEERPID`).
pub fn peer_cred(stream: impl AsFd) -> SysResult<(u32, u32, i32)> {
    let fd = stream.as_fd().as_raw_fd();
    let (mut uid, mut gid, mut pid): (libc::uid_t, libc::gid_t, libc::pid_t) = (0, 0, 0);
    // SAFETY: the descriptor is borrowed, and both integers may be written through the call.
    check(unsafe { libc::getpeereid(fd, &mut uid, &mut gid) })?;
    let mut len = size_of::<libc::pid_t>() as libc::socklen_t;
    // SAFETY: as above; `len` says how much room `pid` has.
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

/// Nothing here says whether the clock was set.
#[derive(Debug)]
pub struct ClockWatch;

impl ClockWatch {
    /// ENOSYS.
    pub fn begin() -> SysResult<ClockWatch> {
        Err(Errno::ENOSYS)
    }

    /// It may have been.
    pub fn was_set(&self) -> bool {
        true
    }
}
