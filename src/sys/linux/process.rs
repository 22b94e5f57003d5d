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
    /// This thread was idle once.
    static WAS_IDLE: Cell<bool> = const { Cell::new(false) };
}
/// How often a thread was raised.
static RAISED: AtomicU64 = AtomicU64::new(0);

/// Lets the calling thread run only when nothing else wants to (`SCHED_IDLE` of sched(7)).
pub fn set_thread_idle() -> SysResult<()> {
    WAS_IDLE.set(true);
    set_policy(0, libc::SCHED_IDLE)
}

fn set_policy(thread: i32, policy: i32) -> SysResult<()> {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: `param` lives through the call.
    check(unsafe { libc::sched_setscheduler(thread, policy, &param) }).map(|_| ())
}

/// Makes a call under whose lock everybody waits, as a thread that is not idle: on a busy machine
/// one that is may be kept from going on for long. Without the privilege to come back from idle it
/// is made as it is.
pub fn awake<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: it takes and returns an integer; 0 names the calling thread.
    let is_idle = WAS_IDLE.get() && unsafe { libc::sched_getscheduler(0) } == libc::SCHED_IDLE;
    if !is_idle {
        return call();
    }
    let raised = RAISED.load(Ordering::SeqCst);
    let is_awake = set_policy(0, libc::SCHED_OTHER).is_ok();
    let value = call();
    // Whoever raised it meanwhile waits for it.
    if is_awake && RAISED.load(Ordering::SeqCst) == raised {
        let _ = set_policy(0, libc::SCHED_IDLE);
    }
    value
}

/// `IOPRIO_WHO_PROCESS` of linux/ioprio.h: one thread, 0 being the calling one.
const IOPRIO_WHO_PROCESS: libc::c_int = 1;
/// `IOPRIO_CLASS_IDLE`, where the class is.
const IOPRIO_IDLE: libc::c_int = 3 << 13;

/// Lets the calling thread's reads and writes wait until nobody else's do (ioprio_set(2), the idle
/// class); where the I/O scheduler knows no classes it says nothing. Its share of the processor
/// stays.
pub fn set_thread_io_idle() -> SysResult<()> {
    // SAFETY: ioprio_set(2) takes integers.
    match unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_IDLE) } {
        0 => Ok(()),
        _ => Err(super::super::name::last_errno()),
    }
}

/// A thread of this process, as the scheduler knows it.
pub fn own_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Takes back what [`set_thread_idle`] did to a thread of this process: somebody waits for it now.
/// A thread that has ended is no error.
pub fn set_thread_normal(thread: i32) -> SysResult<()> {
    RAISED.fetch_add(1, Ordering::SeqCst);
    match set_policy(thread, libc::SCHED_OTHER) {
        Ok(()) | Err(Errno(libc::ESRCH)) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Whether the calling thread has CAP_SYS_ADMIN. In a container it may be one that only counts
/// there: a call that needs the machine's can still fail with EPERM.
pub fn has_sys_admin() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Whether a thread is in the user namespace of this process and has CAP_SYS_ADMIN if this process
/// does (proc_pid_status(5), user_namespaces(7)). What cannot be told is no.
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

/// When process `pid` started, in clock ticks since boot: with the number, it names one process for
/// good (proc_pid_stat(5)). ENOENT when there is none.
pub fn process_starttime(pid: i32) -> SysResult<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat"))?;
    field(&stat, 22).ok_or(Errno::EIO)
}

/// The session of a process or thread (proc_pid_stat(5)). ENOENT if there is none of this number.
pub fn process_session(pid: u32) -> SysResult<i32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat"))?;
    field(&stat, 6).ok_or(Errno::EIO)
}

/// Whether a process runs a program with the file name of the one that this process runs, also
/// after that was replaced by another (`/proc/PID/exe`, proc_pid_exe(5)). Nothing of the other
/// process's filesystems is asked. A program of another kind can have this name.
pub fn runs_our_program(pid: u32) -> bool {
    let program = |pid: &str| {
        let path = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        let name = path.file_name()?.as_bytes();
        Some(name.strip_suffix(b" (deleted)").unwrap_or(name).to_vec())
    };
    program("self").is_some_and(|ours| program(&pid.to_string()) == Some(ours))
}

/// The name of a process or thread, as the kernel knows it: at most 15 bytes, chosen by itself,
/// here without what is not UTF-8 (proc_pid_comm(5)). `None` if there is none of this number, as in
/// another namespace.
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

/// The process that a thread (or process) of this number belongs to. While the thread waits for an
/// answer of ours it cannot end, and this is exact.
///
/// # Errors
/// ENOENT or ESRCH if there is none; those of reading `/proc`.
pub fn process_facts(thread: u32) -> SysResult<ProcessFacts> {
    let leader = |status: &[u8]| {
        let text = String::from_utf8_lossy(status);
        text.lines()
            .find_map(|line| line.strip_prefix("Tgid:")?.trim().parse::<u32>().ok())
    };
    let status = std::fs::read(format!("/proc/{thread}/status"))?;
    facts_of(leader(&status).ok_or(Errno::EIO)?)
}

/// The same for the number of a process, with less to read.
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

/// The user of a process; root, if it hides what it has (proc_pid(5), `dumpable`).
///
/// # Errors
/// ENOENT if there is none of this number.
pub fn process_user(pid: u32) -> SysResult<u32> {
    Ok(std::fs::metadata(format!("/proc/{pid}"))?.uid())
}

/// The path in the unified hierarchy; where there is none, that in the first (cgroups(7)).
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

/// A field by its number, from 3 on. The name in field 2 may hold blanks and parentheses, so the
/// count starts after its last `)`.
fn field<T: std::str::FromStr>(stat: &[u8], number: usize) -> Option<T> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    rest.split_ascii_whitespace()
        .nth(number.checked_sub(3)?)?
        .parse()
        .ok()
}

/// How often the calling thread has given up the CPU by itself, to wait for something (`ru_nvcsw`
/// of getrusage(2)).
pub fn waits_of_thread() -> Option<u64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` has room for the struct and lives through the call; zeroed, it is valid
    // whatever the call does.
    let usage = unsafe {
        (libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) == 0).then(|| usage.assume_init())
    };
    u64::try_from(usage?.ru_nvcsw).ok()
}

/// How often a thread of this process has been put on a CPU: one that waits for a lock is not, one
/// that waits for the disk is, whenever that has done something (the third number of `schedstat`,
/// Documentation/scheduler/sched-stats.rst). `None`: it has ended, or the kernel does not count.
pub fn runs_of_thread(thread: i32) -> Option<u64> {
    let counts = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    counts.split_ascii_whitespace().nth(2)?.parse().ok()
}

/// Memory and threads of this process (`VmRSS` and `Threads` of proc_pid_status(5)).
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

/// Gives memory that the allocator holds and nobody uses back to the system (malloc_trim(3));
/// nothing where there is no such call.
pub fn release_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes an integer and may be called from any thread at any time.
    let _ = unsafe { libc::malloc_trim(0) };
}

/// Gives every large block of memory (8 MiB) back to the system when it is freed, whatever was freed
/// before (mallopt(3)); nothing where there is no such call. Without it the allocator keeps one such
/// block for the next, and writes zeros over all of it where zeros are asked for: the buffer for
/// requests of each session would be in memory whole.
pub fn keep_no_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes two integers and may be called at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 8 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 8 << 20);
    }
}

/// Who is at the other end of a socket: user, group and process at the time of connect(2)
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
        assert_eq!((uid, gid), crate::sys::ids());
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
            // Another test may raise a thread meanwhile, and this one with it.
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
