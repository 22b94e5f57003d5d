//! Threads, capabilities and other processes.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::thread::CapabilitySet;

use super::super::name::check;
use super::super::types::{Errno, OwnMemory, ProcessFacts, SysResult};

thread_local! {
    /// This thread was set to idle once.
    static WAS_IDLE: Cell<bool> = const { Cell::new(false) };
}
/// Number of times that a thread was raised.
static RAISED: AtomicU64 = AtomicU64::new(0);

/// Makes the calling thread run only on an otherwise idle CPU (`SCHED_IDLE` of sched(7)).
pub fn set_thread_idle() -> SysResult<()> {
    WAS_IDLE.set(true);
    set_policy(0, libc::SCHED_IDLE)
}

fn set_policy(thread: i32, policy: i32) -> SysResult<()> {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: `param` lives through the call.
    check(unsafe { libc::sched_setscheduler(thread, policy, &param) }).map(|_| ())
}

/// Runs a call with normal priority, for calls that hold a lock on which other threads wait: on a
/// busy machine an idle thread may be preempted for long. Without the privilege to leave the idle
/// policy, the call runs as idle.
pub fn awake<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: it takes and returns an integer; 0 names the calling thread.
    let is_idle = WAS_IDLE.get() && unsafe { libc::sched_getscheduler(0) } == libc::SCHED_IDLE;
    if !is_idle {
        return call();
    }
    let raised = RAISED.load(Ordering::SeqCst);
    let is_awake = set_policy(0, libc::SCHED_OTHER).is_ok();
    let value = call();
    // A thread raised during the call must stay raised, because a caller waits for it.
    if is_awake && RAISED.load(Ordering::SeqCst) == raised {
        let _ = set_policy(0, libc::SCHED_IDLE);
    }
    value
}

/// `IOPRIO_WHO_PROCESS` of linux/ioprio.h: one thread, 0 being the calling one.
const IOPRIO_WHO_PROCESS: libc::c_int = 1;
/// `IOPRIO_CLASS_IDLE`, shifted into the class bits.
const IOPRIO_IDLE: libc::c_int = 3 << 13;

/// Puts the calling thread into the idle I/O class (ioprio_set(2)): its reads and writes wait for
/// those of other threads. No effect, and no error, if the I/O scheduler has no classes. CPU
/// scheduling is unchanged.
pub fn set_thread_io_idle() -> SysResult<()> {
    // SAFETY: ioprio_set(2) takes integers.
    match unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_IDLE) } {
        0 => Ok(()),
        _ => Err(super::super::name::last_errno()),
    }
}

/// Returns the ID of the calling thread.
pub fn own_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Reverts [`set_thread_idle`] for a thread of this process, because a caller now waits for it. A
/// thread that has ended is no error.
pub fn set_thread_normal(thread: i32) -> SysResult<()> {
    RAISED.fetch_add(1, Ordering::SeqCst);
    match set_policy(thread, libc::SCHED_OTHER) {
        Ok(()) | Err(Errno(libc::ESRCH)) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Returns whether the calling thread has CAP_SYS_ADMIN. In a container it may apply only to its
/// user namespace: a call that requires it in the initial one can still fail with EPERM.
pub fn has_sys_admin() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Returns whether a thread is in the user namespace of this process, and has CAP_SYS_ADMIN if this
/// process does (proc_pid_status(5), user_namespaces(7)). False if it cannot be determined.
pub fn has_our_rights(thread: u32) -> bool {
    let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/user")).ok();
    let is_admin = |of: &str| {
        let status = std::fs::read_to_string(format!("/proc/{of}/status")).ok()?;
        let effective = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))?;
        Some(
            CapabilitySet::from_bits_retain(u64::from_str_radix(effective.trim(), 16).ok()?)
                .contains(CapabilitySet::SYS_ADMIN),
        )
    };
    let thread = thread.to_string();
    let same = namespace("self").is_some_and(|ours| namespace(&thread) == Some(ours));
    same && is_admin(&thread).is_some_and(|theirs| theirs || !has_sys_admin())
}

/// Returns the start time of process `pid` in clock ticks since boot. With the ID it identifies one
/// process uniquely (proc_pid_stat(5)). ENOENT if the process does not exist.
pub fn process_starttime(pid: i32) -> SysResult<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat"))?;
    field(&stat, 22).ok_or(Errno::EIO)
}

/// Returns the session of a process or thread (proc_pid_stat(5)). ENOENT if it does not exist.
pub fn process_session(pid: u32) -> SysResult<i32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat"))?;
    field(&stat, 6).ok_or(Errno::EIO)
}

/// Returns whether a process runs a program with the file name of this program, alone or followed by
/// `-` as that of a satellite (`ckptfs-browse`), even after the file was replaced (`/proc/PID/exe`,
/// proc_pid_exe(5)). It accesses no filesystem of the other process. An unrelated program can have
/// such a name.
pub fn runs_our_program(pid: u32) -> bool {
    let program = |pid: &str| {
        let path = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        let name = path.file_name()?.as_bytes();
        Some(name.strip_suffix(b" (deleted)").unwrap_or(name).to_vec())
    };
    let (Some(ours), Some(its)) = (program("self"), program(&pid.to_string())) else {
        return false;
    };
    its.strip_prefix(ours.as_slice())
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"-"))
}

/// Returns the name of a process or thread in the kernel: up to 15 bytes, chosen by itself, with
/// invalid UTF-8 replaced (proc_pid_comm(5)). `None` if the ID does not exist, as in another
/// namespace.
pub fn process_name(pid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(
        String::from_utf8_lossy(&name)
            .trim_end_matches('\n')
            .chars()
            .take(15)
            .collect(),
    )
}

/// Returns the process of a thread (or process). While the thread waits for our reply it cannot
/// end, so the result is exact.
///
/// # Errors
/// ENOENT or ESRCH if the thread does not exist; those of reading `/proc`.
pub fn process_facts(thread: u32) -> SysResult<ProcessFacts> {
    let leader = |status: &[u8]| {
        let text = String::from_utf8_lossy(status);
        text.lines()
            .find_map(|line| line.strip_prefix("Tgid:")?.trim().parse::<u32>().ok())
    };
    let status = std::fs::read(format!("/proc/{thread}/status"))?;
    facts_of(leader(&status).ok_or(Errno::EIO)?)
}

/// As [`process_facts`], for a process ID, reading one file less.
///
/// # Errors
/// As [`process_facts`].
pub fn facts_of(pid: u32) -> SysResult<ProcessFacts> {
    let stat = std::fs::read(format!("/proc/{pid}/stat"))?;
    let (from, to) = (
        stat.iter().position(|byte| *byte == b'('),
        stat.iter().rposition(|byte| *byte == b')'),
    );
    let name = from
        .zip(to)
        .and_then(|(from, to)| stat.get(from + 1..to))
        .unwrap_or_default();
    let cgroup = std::fs::read(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    Ok(ProcessFacts {
        pid,
        start: field(&stat, 22).ok_or(Errno::EIO)?,
        parent: field(&stat, 4).unwrap_or(0),
        session: field(&stat, 6).unwrap_or(0),
        name: String::from_utf8_lossy(name).into_owned(),
        cgroup: cgroup_path(&String::from_utf8_lossy(&cgroup)),
    })
}

/// Returns the user of a process; root if the process is not dumpable (proc_pid(5)).
///
/// # Errors
/// ENOENT if it does not exist.
pub fn process_user(pid: u32) -> SysResult<u32> {
    Ok(std::fs::metadata(format!("/proc/{pid}"))?.uid())
}

/// The path in the unified hierarchy, or else in the first one (cgroups(7)).
fn cgroup_path(lines: &str) -> String {
    let unified = lines.lines().find_map(|line| line.strip_prefix("0::"));
    let first = || {
        lines
            .lines()
            .next()
            .and_then(|line| line.splitn(3, ':').nth(2))
    };
    unified.or_else(first).unwrap_or_default().to_owned()
}

/// Returns a field by its number, from 3 on. The name in field 2 may contain blanks and
/// parentheses, so counting starts after its last `)`.
fn field<T: std::str::FromStr>(stat: &[u8], number: usize) -> Option<T> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    rest.split_ascii_whitespace()
        .nth(number.checked_sub(3)?)?
        .parse()
        .ok()
}

/// Returns the number of voluntary context switches of the calling thread (`ru_nvcsw` of
/// getrusage(2)).
pub fn waits_of_thread() -> Option<u64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` has room for the struct and lives through the call; zeroed, it is valid
    // whether or not the call fills it.
    let usage = unsafe {
        (libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) == 0).then(|| usage.assume_init())
    };
    u64::try_from(usage?.ru_nvcsw).ok()
}

/// Returns the number of times that a thread of this process was put on a CPU (the third number of
/// `schedstat`, Documentation/scheduler/sched-stats.rst). It stays the same while the thread waits
/// for a lock; while it waits for the disk, it increases with each completed I/O. `None`: the
/// thread has ended, or the kernel does not count.
pub fn runs_of_thread(thread: i32) -> Option<u64> {
    let counts = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    counts.split_ascii_whitespace().nth(2)?.parse().ok()
}

/// Returns memory and threads of this process (`VmRSS` and `Threads` of proc_pid_status(5)).
pub fn own_memory() -> SysResult<OwnMemory> {
    parse_memory(&std::fs::read_to_string("/proc/self/status")?).ok_or(Errno::EIO)
}

fn parse_memory(status: &str) -> Option<OwnMemory> {
    let field = |name: &str| {
        let value = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    Some(OwnMemory {
        rss_bytes: field("VmRSS")?.checked_mul(1024)?,
        threads: field("Threads")?,
    })
}

/// Returns free memory of the allocator to the system (malloc_trim(3)); no effect without that
/// call.
pub fn release_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes an integer and may be called from any thread at any time.
    let _ = unsafe { libc::malloc_trim(0) };
}

/// Makes the allocator return every block of 8 MiB or more to the system when freed (mallopt(3));
/// no effect without that call. By default it keeps one such block for reuse, and writes zeros over
/// all of it when zeroed memory is requested. The request buffer of each session would then be
/// resident as a whole.
pub fn keep_no_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes two integers and may be called at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 8 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 8 << 20);
    }
}

/// Returns user, group and process of the peer of a socket at the time of connect(2)
/// (`SO_PEERCRED`).
pub fn peer_cred(stream: impl AsFd) -> SysResult<(u32, u32, i32)> {
    let cred = rustix::net::sockopt::socket_peercred(stream)?;
    Ok((cred.uid.as_raw(), cred.gid.as_raw(), cred.pid.as_raw_pid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_read_after_the_last_parenthesis() {
        let stat = b"12 (a) b) c) S 1 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 10";
        assert_eq!(field(stat, 22), Some(98_765_u64));
        assert_eq!(field::<u64>(b"12 (x", 22), None);
    }

    #[test]
    fn a_thread_is_led_to_its_process() {
        let facts = std::thread::spawn(|| process_facts(own_thread() as u32))
            .join()
            .expect("thread")
            .expect("facts");
        assert_eq!(facts, facts_of(std::process::id()).expect("facts"));
        assert_eq!(
            (facts.pid, Ok(facts.start)),
            (
                std::process::id(),
                process_starttime(std::process::id() as i32)
            )
        );
        assert!(!facts.name.is_empty() && facts.parent > 0);
        assert!(facts_of(u32::MAX).is_err());
    }

    #[test]
    fn the_unified_group_counts_and_else_the_first() {
        assert_eq!(
            cgroup_path("4:memory:/a\n0::/user.slice/x:y\n"),
            "/user.slice/x:y"
        );
        assert_eq!(cgroup_path("4:memory:/a:b\n3:cpu:/c\n"), "/a:b");
        assert_eq!(cgroup_path(""), "");
    }

    #[test]
    fn a_thread_that_sleeps_waits() {
        let before = waits_of_thread();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(before.is_some() && waits_of_thread() > before);
        let runs = runs_of_thread(own_thread());
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(runs.is_some() && runs_of_thread(own_thread()) > runs);
    }

    #[test]
    fn this_process_has_its_own_rights() {
        assert!(
            has_our_rights(own_thread() as u32) && !has_our_rights(0) && !has_our_rights(u32::MAX)
        );
    }

    #[test]
    fn memory_is_read_in_kibibytes() {
        let status = "Name:\tVmRSS: 1\nVmHWM:\t   900 kB\nVmRSS:\t   512 kB\nThreads:\t7\n";
        assert_eq!(
            parse_memory(status),
            Some(OwnMemory {
                rss_bytes: 512 << 10,
                threads: 7
            })
        );
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
    fn peer_is_ourselves() {
        let (a, _b) = std::os::unix::net::UnixStream::pair().expect("socketpair");
        let (uid, gid, pid) = peer_cred(&a).expect("peer_cred");
        assert_eq!((uid, gid), crate::ids());
        assert_eq!(pid, std::process::id() as i32);
    }

    #[test]
    fn a_thread_that_somebody_waits_for_can_be_raised_again() {
        let (told, tid) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let idle = std::thread::spawn(move || {
            set_thread_idle().expect("idle scheduling");
            told.send(own_thread()).expect("the test listens");
            let _ = ended.recv();
        });
        let tid = tid.recv().expect("a thread");
        // SAFETY: it takes and returns an integer.
        let policy = || unsafe { libc::sched_getscheduler(tid) };
        assert_eq!(policy(), libc::SCHED_IDLE);
        assert_eq!(set_thread_normal(tid), Ok(()));
        assert_eq!(policy(), libc::SCHED_OTHER);
        drop(end);
        idle.join().expect("thread");
    }

    #[test]
    fn an_idle_thread_is_awake_for_a_call_and_stays_so_if_somebody_raised_it() {
        // SAFETY: it takes and returns an integer.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let idle = std::thread::spawn(move || {
            assert_eq!(awake(policy), libc::SCHED_OTHER);
            set_thread_idle().expect("idle scheduling");
            // Another test may raise a thread at the same time, which also affects this one.
            let again = (0..100).any(|_| {
                set_thread_idle().expect("idle scheduling");
                assert_eq!(awake(|| awake(policy)), libc::SCHED_OTHER);
                policy() == libc::SCHED_IDLE
            });
            assert!(again, "it is idle again");
            awake(|| set_thread_normal(own_thread()).expect("raised"));
            assert_eq!(policy(), libc::SCHED_OTHER);
        });
        idle.join().expect("thread");
    }

    #[test]
    fn idle_scheduling_is_granted() {
        std::thread::spawn(|| assert_eq!(set_thread_idle(), Ok(())))
            .join()
            .expect("thread");
    }
}
