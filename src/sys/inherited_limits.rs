//! Resets what a daemon inherits from the process that starts it: limits and priorities, which
//! would affect every user of the mount.

use rustix::process::{Resource, Rlimit};

use super::{own_thread, set_thread_normal};

/// Limits meant for one program's work. For the number of open files see [`super::raise_nofile`].
const LIMITS: [Resource; 6] = [
    Resource::Fsize,
    Resource::Cpu,
    Resource::As,
    Resource::Data,
    Resource::Nproc,
    Resource::Memlock,
];

/// Lifts the resource limits of this process (setrlimit(2)) as far as permitted: root's limits are
/// removed, other users' are raised to the hard ones. A write beyond the file size limit then fails
/// with EFBIG instead of a fatal signal, and SIGXCPU is ignored. Returns the maximum size of a file
/// in bytes, or `None` if it is unlimited.
pub fn shed_limits() -> Option<u64> {
    let none = Rlimit {
        current: None,
        maximum: None,
    };
    for limit in LIMITS {
        if rustix::process::setrlimit(limit, none).is_err() {
            let maximum = rustix::process::getrlimit(limit).maximum;
            let current = maximum;
            // A limit that cannot be raised stays.
            let _ = rustix::process::setrlimit(limit, Rlimit { current, maximum });
        }
    }
    for (signal, action) in [
        (libc::SIGXFSZ, libc::SIG_IGN),
        (libc::SIGXCPU, libc::SIG_IGN),
        // If it were ignored, waiting for a child would fail.
        (libc::SIGCHLD, libc::SIG_DFL),
    ] {
        // SAFETY: no handler is installed; both actions may be set at any time (signal(2)).
        unsafe { libc::signal(signal, action) };
    }
    rustix::process::getrlimit(Resource::Fsize).current
}

/// Resets the priority of this process to the default as far as permitted: nice value, scheduling
/// class, and OOM score adjustment (proc_pid_oom_score_adj(5)). Must be called before the process
/// starts other threads.
pub fn shed_priority() {
    let _ = set_thread_normal(own_thread());
    if rustix::process::getpriority_process(None).is_ok_and(|nice| nice > 0) {
        let _ = rustix::process::setpriority_process(None, 0);
    }
    #[cfg(target_os = "linux")]
    {
        const SCORE: &str = "/proc/self/oom_score_adj";
        let score = std::fs::read_to_string(SCORE).ok();
        if score.is_some_and(|score| score.trim().parse().is_ok_and(|score: i32| score > 0)) {
            let _ = std::fs::write(SCORE, "0");
        }
    }
}
