//! The process and its limits: the parts that both systems share.

use std::os::fd::{AsFd, OwnedFd};
#[cfg(not(target_os = "linux"))]
use std::os::unix::ffi::OsStringExt;
#[cfg(target_os = "linux")]
use std::os::{fd::AsRawFd, unix::process::CommandExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Resource, Rlimit};

use super::name::check;
use super::types::{Errno, SysResult, Time};

/// Sets the umask of the process to 0, so that modes reach the filesystem unchanged.
pub fn umask0() {
    rustix::process::umask(rustix::fs::Mode::empty());
}

/// Sets the name of this process, at most 15 bytes, for display by other programs (prctl(2),
/// `PR_SET_NAME`). Must be called on the first thread; on other threads it names only that thread.
pub fn name_process(name: &str) {
    #[cfg(target_os = "linux")]
    if let Ok(name) = std::ffi::CString::new(name) {
        // Best effort.
        let _ = rustix::thread::set_name(&name);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = name;
}

/// Raises the soft limit of open descriptors to the hard one, and returns the resulting limit.
pub fn raise_nofile() -> u64 {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(NOFILE_MAX);
    #[cfg(not(target_os = "linux"))]
    let hard = hard.min(NOFILE_MAX);
    let soft = limit.current.unwrap_or(NOFILE_MAX);
    if soft >= hard {
        return soft;
    }
    match rustix::process::setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(hard),
            maximum: limit.maximum,
        },
    ) {
        Ok(()) => hard,
        Err(_) => soft,
    }
}

/// Returns the maximum number of descriptors of this process.
pub fn nofile() -> u64 {
    rustix::process::getrlimit(Resource::Nofile)
        .current
        .unwrap_or(NOFILE_MAX)
}

/// Limits the memory of this process (`RLIMIT_DATA`, setrlimit(2)): an allocation beyond it aborts
/// the process. A lower limit is left unchanged.
pub fn limit_memory(bytes: u64) {
    let mut limit = rustix::process::getrlimit(Resource::Data);
    limit.current = Some(limit.current.map_or(bytes, |now| now.min(bytes)));
    // A second line of defence, so failure is ignored.
    let _ = rustix::process::setrlimit(Resource::Data, limit);
}

/// Replaces "no limit": the default of `fs.nr_open`.
#[cfg(target_os = "linux")]
const NOFILE_MAX: u64 = 1024 * 1024;
/// Replaces "no limit": `OPEN_MAX`, above which setrlimit(2) fails on macOS.
#[cfg(not(target_os = "linux"))]
const NOFILE_MAX: u64 = 10_240;

/// Waits until the clock used for file timestamps has passed `time`, so that every later change has
/// a later ctime. That clock is the wall clock at the last kernel tick, up to 10 ms ago
/// (`ktime_get_coarse_real_ts64`). Stops waiting after 50 ms.
pub fn wait_for_tick(time: Time) {
    let started = std::time::Instant::now();
    while stamp_now() <= time && started.elapsed() < TICK_WAIT_MAX {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Maximum wait for a tick: the slowest kernels tick every 10 ms.
const TICK_WAIT_MAX: std::time::Duration = std::time::Duration::from_millis(50);

/// Returns the effective user of this process, cached after the first call: a daemon never changes
/// it.
pub fn own_user() -> u32 {
    static USER: OnceLock<u32> = OnceLock::new();
    *USER.get_or_init(|| ids().0)
}

/// Returns the effective user and group of this process.
pub fn ids() -> (u32, u32) {
    (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    )
}

/// Creates a session without a terminal (setsid(2)). Fails with EPERM if this process already leads
/// a process group.
pub fn setsid() -> SysResult<()> {
    rustix::process::setsid().map(|_| ()).map_err(Errno::from)
}

/// Sends a signal to a process (kill(2)); signal 0 only checks for permission. Fails with EINVAL
/// unless `pid` is positive, which excludes groups.
pub fn kill(pid: i32, signal: i32) -> SysResult<()> {
    if pid <= 0 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: kill(2) takes two integers and touches no memory of this process.
    check(unsafe { libc::kill(pid, signal) }).map(|_| ())
}

/// Sends a signal to a process group (killpg(3)). Fails with EINVAL unless `group` is above 1.
pub fn kill_group(group: i32, signal: i32) -> SysResult<()> {
    if group <= 1 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: killpg(3) takes two integers and touches no memory of this process.
    check(unsafe { libc::killpg(group, signal) }).map(|_| ())
}

/// Returns the process group of a process (getpgid(2)), or `None` if the process does not exist.
pub fn process_group(pid: u32) -> Option<i32> {
    let pid = i32::try_from(pid).ok()?;
    // SAFETY: getpgid(2) takes an integer and touches no memory of this process.
    check(unsafe { libc::getpgid(pid) }).ok()
}

/// Lets a command inherit a descriptor under its number. Returns a path by which the command can
/// open or execute the file. execve(2) of a script passes that path to the interpreter, so the
/// descriptor must survive the exec.
#[cfg(target_os = "linux")]
pub fn inherited(command: &mut Command, fd: OwnedFd) -> SysResult<PathBuf> {
    let path = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    // SAFETY: the child makes one call between fork and exec, which is async-signal-safe
    // (signal-safety(7)), on a descriptor that the closure owns.
    unsafe {
        command.pre_exec(
            move || match libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            },
        );
    }
    Ok(path)
}

/// As on Linux, except that a descriptor cannot be executed: the path is that of the file
/// (`F_GETPATH`).
#[cfg(not(target_os = "linux"))]
pub fn inherited(_command: &mut Command, fd: OwnedFd) -> SysResult<PathBuf> {
    Ok(PathBuf::from(std::ffi::OsString::from_vec(
        rustix::fs::getpath(fd)?.into_bytes(),
    )))
}

/// Returns the wall clock, which may go back.
pub fn now() -> Time {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(after) => Time {
            sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nsec: after.subsec_nanos(),
        },
        Err(before) => before_epoch(before.duration()),
    }
}

/// Returns the wall clock minus the monotonic clock, in nanoseconds. It decreases when the wall
/// clock is set back.
pub fn clock_ahead_ns() -> i64 {
    let steady = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = now();
    let nanoseconds = |sec: i64, nsec: i64| sec.saturating_mul(1_000_000_000).saturating_add(nsec);
    nanoseconds(now.sec, i64::from(now.nsec))
        .saturating_sub(nanoseconds(steady.tv_sec, steady.tv_nsec))
}

/// Returns the clock that filesystems use for timestamps. On Linux it lags behind [`now`] by up to
/// a kernel tick (CLOCK_REALTIME_COARSE). A later change never has an earlier ctime.
pub fn stamp_now() -> Time {
    #[cfg(target_os = "linux")]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Time {
            sec: time.tv_sec,
            nsec: u32::try_from(time.tv_nsec).unwrap_or(0),
        }
    }
    #[cfg(not(target_os = "linux"))]
    now()
}

/// The time that lies `before` the Unix epoch, with nanoseconds counted upwards.
fn before_epoch(before: std::time::Duration) -> Time {
    let sec = i64::try_from(before.as_secs()).map_or(i64::MIN, |sec| -sec);
    match before.subsec_nanos() {
        0 => Time { sec, nsec: 0 },
        nsec => Time {
            sec: sec.saturating_sub(1),
            nsec: 1_000_000_000 - nsec,
        },
    }
}

/// Returns the number of lines of a terminal. `None`: it is no terminal, or does not report its
/// size (tcgetwinsize(3)).
pub fn terminal_rows(terminal: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    (size.ws_row > 0).then(|| size.ws_row.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn nanoseconds_count_upwards_before_1970() {
        assert_eq!(before_epoch(Duration::new(1, 0)), Time { sec: -1, nsec: 0 });
        assert_eq!(
            before_epoch(Duration::new(0, 1)),
            Time {
                sec: -1,
                nsec: 999_999_999
            }
        );
    }

    #[test]
    fn kill_refuses_groups_and_the_clock_is_of_today() {
        assert_eq!(kill(-1, 0), Err(Errno::EINVAL));
        assert!(now().sec > 1_700_000_000);
        assert!(raise_nofile() > 0);
    }
}
