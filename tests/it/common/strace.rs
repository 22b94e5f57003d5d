//! strace(1) of a daemon, for faults that the daemon cannot inject itself.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::command::tool;
use super::mount::Mount;
use super::process::start_of;
use super::wait::wait_until;

/// Time limit until every thread is traced, in seconds.
const SECONDS: u64 = 60;
/// Time limit of a detach.
const DETACH: Duration = Duration::from_secs(2);

/// A running strace, which detaches when dropped.
pub struct Strace(Child);

impl Strace {
    /// Traces every thread of process `pid`, injects this fault at these calls (`--inject`), and
    /// writes its output to `log`. Returns `None` without a permitted strace.
    pub fn start(pid: u32, calls: &str, fault: &str, log: &Path) -> Option<Strace> {
        let fault = format!("inject={calls}:{fault}");
        Strace::follow(pid, calls, &["-e", &fault], log)
    }

    /// Traces every thread of process `pid`, and writes these calls to `log`, each with its thread
    /// ID. Returns `None` without a permitted strace.
    pub fn watch(pid: u32, calls: &str, log: &Path) -> Option<Strace> {
        Strace::follow(pid, calls, &[], log)
    }

    fn follow(pid: u32, calls: &str, more: &[&str], log: &Path) -> Option<Strace> {
        Strace::attach(pid, calls, more, log).filter(Strace::runs)
    }

    /// Starts strace, which may already have ended with the traced process.
    fn attach(pid: u32, calls: &str, more: &[&str], log: &Path) -> Option<Strace> {
        let mut command = tool("strace", &["-f", "-q", "-o"]);
        command
            .arg(log)
            .args(["-e", &format!("trace={calls}")])
            .args(more)
            .args(["-p", &pid.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let strace = Strace(command.spawn().ok()?);
        wait_until("strace is attached to every thread of the daemon", || {
            !strace.runs() || all_traced(pid)
        });
        Some(strace)
    }

    /// Kills process `pid` at its `nth` of these calls.
    pub fn kills(pid: u32, calls: &str, nth: u32, log: &Path) -> Strace {
        let fault = format!("inject={calls}:signal=SIGKILL:when={nth}");
        let strace = Strace::attach(pid, calls, &["-e", &fault], log).expect("strace starts");
        // The process may be killed before every thread is traced.
        let is_at_work = || strace.runs() || start_of(pid).is_none();
        assert!(is_at_work(), "strace cannot trace the daemon");
        strace
    }

    /// Returns whether strace has killed the daemon of `mount`. A live daemon is checked again
    /// after the detach, because other threads make such calls and may trigger the kill until then.
    pub fn has_killed(self, mount: &Mount) -> bool {
        let lives = || start_of(mount.pid()).is_some() && mount.run(&["status"]).status.success();
        if !lives() {
            return true;
        }
        drop(self);
        !lives()
    }

    fn runs(&self) -> bool {
        start_of(self.0.id()).is_some()
    }
}

impl Drop for Strace {
    /// Detaches with SIGINT. strace may wait without end if the process died while traced.
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::INT);
        let began = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) && began.elapsed() < DETACH {
            thread::sleep(Duration::from_millis(5));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn all_traced(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let of =
        |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).unwrap_or_default();
    tasks.map(of).all(|status| {
        status
            .lines()
            .filter_map(|line| line.strip_prefix("TracerPid:\t"))
            .any(|tracer| tracer != "0")
    })
}
