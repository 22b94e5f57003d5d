//! What a daemon must not have from the process that starts it: everybody else in the mount would
//! have it too.

use rustix::process::{Resource, Rlimit};

use super::{own_thread, set_thread_normal};

/// Limits that are of the work of one program. Of the number of open files see
/// [`super::raise_nofile`].
const LIMITS: [Resource; 6] = [
    Resource::Fsize,
    Resource::Cpu,
    Resource::As,
    Resource::Data,
    Resource::Nproc,
    Resource::Memlock,
];

/// Lifts the limits of this process (setrlimit(2)), as far as its user may: root's are gone, of
/// others the hard ones stay. A write beyond that of file sizes is EFBIG and no signal that ends the
/// process, nor is there one after so much CPU time. Returns the size in bytes that a file may have;
/// `None`: any.
pub fn shed_limits() -> Option<u64> {
    let none = Rlimit {
        current: None,
        maximum: None,
    };
    for limit in LIMITS {
        if rustix::process::setrlimit(limit, none).is_err() {
            let maximum = rustix::process::getrlimit(limit).maximum;
            let current = maximum;
            // What cannot be raised stays.
            let _ = rustix::process::setrlimit(limit, Rlimit { current, maximum });
        }
    }
    for (signal, action) in [
        (libc::SIGXFSZ, libc::SIG_IGN),
        (libc::SIGXCPU, libc::SIG_IGN),
        // Ignored, nobody could wait for a child.
        (libc::SIGCHLD, libc::SIG_DFL),
    ] {
        // SAFETY: no handler is installed; both actions may be set at any time (signal(2)).
        unsafe { libc::signal(signal, action) };
    }
    rustix::process::getrlimit(Resource::Fsize).current
}

/// Gives this process the priority of any other, as far as its user may: nice value, scheduling
/// class, and how soon the kernel ends it when memory is short (proc_pid_oom_score_adj(5)). To be
/// called before it has other threads.
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
