//! Threads, capabilities and other processes.

use std::os::unix::net::UnixStream;

use rustix::thread::{CapabilitySet, CapabilitySets};

use super::super::name::check;
use super::super::types::{Errno, OwnMemory, SysResult};

/// Lets the calling thread run only when nothing else wants to (`SCHED_IDLE` of sched(7)).
pub fn set_thread_idle() -> SysResult<()> {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: `param` lives through the call; 0 names the calling thread.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &param) }).map(|_| ())
}

/// Whether the calling thread has CAP_SYS_ADMIN. In a container it may be one that only counts there: a call that needs the
/// machine's can still fail with EPERM.
pub fn has_sys_admin() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Calls `f` with CAP_FSETID taken from the calling thread, so that the kernel clears set-id bits as it does for an
/// ordinary user (inode(7)); best effort, and nothing at all when the thread does not have it.
pub fn drop_cap_fsetid_for<T>(f: impl FnOnce() -> T) -> T {
    let _restore = without_fsetid();
    f()
}

/// Takes the capability away until the result is dropped; `None` when there is nothing to give back.
fn without_fsetid() -> Option<RestoreCaps> {
    let sets = rustix::thread::capabilities(None).ok()?;
    if !sets.effective.contains(CapabilitySet::FSETID) {
        return None;
    }
    let fewer = CapabilitySets { effective: sets.effective.difference(CapabilitySet::FSETID), ..sets };
    rustix::thread::set_capabilities(None, fewer).ok()?;
    Some(RestoreCaps(sets))
}

/// Gives a thread its capabilities back when dropped, also when the call between panics.
struct RestoreCaps(CapabilitySets);

impl Drop for RestoreCaps {
    fn drop(&mut self) {
        // Raising what the permitted set still holds cannot fail (capset(2)).
        let _ = rustix::thread::set_capabilities(None, self.0);
    }
}

/// When process `pid` started, in clock ticks since boot: with the number, it names one process for good (proc_pid_stat(5)).
/// ENOENT when there is none.
pub fn process_starttime(pid: i32) -> SysResult<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat"))?;
    parse_starttime(&stat).ok_or(Errno::EIO)
}

/// Field 22. The name in field 2 may hold blanks and parentheses, so the count starts after its last `)`.
fn parse_starttime(stat: &[u8]) -> Option<u64> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// Memory and threads of this process (`VmRSS` and `Threads` of proc_pid_status(5)).
pub fn own_memory() -> SysResult<OwnMemory> {
    parse_memory(&std::fs::read_to_string("/proc/self/status")?).ok_or(Errno::EIO)
}

fn parse_memory(status: &str) -> Option<OwnMemory> {
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    Some(OwnMemory { rss_bytes: field("VmRSS")?.checked_mul(1024)?, threads: field("Threads")? })
}

/// Who is at the other end of a socket: user, group and process at the time of connect(2) (`SO_PEERCRED`).
pub fn peer_cred(stream: &UnixStream) -> SysResult<(u32, u32, i32)> {
    let cred = rustix::net::sockopt::socket_peercred(stream)?;
    Ok((cred.uid.as_raw(), cred.gid.as_raw(), cred.pid.as_raw_pid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_read_after_the_last_parenthesis() {
        let stat = b"12 (a) b) c) S 1 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 10";
        assert_eq!(parse_starttime(stat), Some(98_765));
        assert_eq!(parse_starttime(b"12 (x"), None);
    }

    #[test]
    fn memory_is_read_in_kibibytes() {
        let status = "Name:\tVmRSS: 1\nVmHWM:\t   900 kB\nVmRSS:\t   512 kB\nThreads:\t7\n";
        assert_eq!(parse_memory(status), Some(OwnMemory { rss_bytes: 512 << 10, threads: 7 }));
        assert_eq!(parse_memory("Threads:\t7\n"), None);
        let own = own_memory().expect("memory");
        assert!(own.rss_bytes > 100_000 && own.threads > 0, "{own:?}");
    }

    #[test]
    fn own_start_time_stays_and_no_process_is_enoent() {
        let pid = std::process::id() as i32;
        assert_eq!(process_starttime(pid), process_starttime(pid));
        assert_eq!(process_starttime(i32::MAX), Err(Errno::ENOENT));
    }

    #[test]
    fn fsetid_is_gone_inside_and_back_after() {
        let has = || rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::FSETID));
        let before = has();
        assert!(!drop_cap_fsetid_for(has));
        assert_eq!(has(), before);
    }

    #[test]
    fn peer_is_ourselves() {
        let (a, _b) = UnixStream::pair().expect("socketpair");
        let (uid, gid, pid) = peer_cred(&a).expect("peer_cred");
        assert_eq!((uid, gid), crate::sys::ids());
        assert_eq!(pid, std::process::id() as i32);
    }

    #[test]
    fn idle_scheduling_is_granted() {
        std::thread::spawn(|| assert_eq!(set_thread_idle(), Ok(()))).join().expect("thread");
    }
}
