//! Processes by ID and start time, because an ID may have been reused.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::wait::{seen, wait_until};

/// Returns when process `pid` started, in clock ticks, or `None` if it is dead. A zombie counts as
/// dead, because process 1 may reap late, unless it has exiting threads, which still have its files
/// open.
pub fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    if fields[0] == "X" || (fields[0] == "Z" && threads() <= 1) {
        return None;
    }
    fields.get(19)?.parse().ok()
}

/// Sends SIGKILL; ignores a process that no longer exists.
pub fn kill(pid: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Waits until the process that started at `start` as `pid` is dead; returns `false` if it is alive
/// after `limit`.
pub fn wait_dead(pid: u32, start: u64, limit: Duration) -> bool {
    let began = Instant::now();
    while start_of(pid) == Some(start) {
        if began.elapsed() > limit {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Returns whether a process of this name has its working directory or an open file at or below
/// `dir`.
pub fn is_used_by(name: &str, dir: &Path) -> bool {
    let leads_in = |link: PathBuf| fs::read_link(link).is_ok_and(|target| target.starts_with(dir));
    let uses = |process: &Path| {
        leads_in(process.join("cwd"))
            || fs::read_dir(process.join("fd"))
                .is_ok_and(|fds| fds.flatten().any(|fd| leads_in(fd.path())))
    };
    let processes = fs::read_dir("/proc")
        .expect("/proc is mounted")
        .flatten()
        .map(|entry| entry.path());
    let named = |process: &PathBuf| {
        fs::read_to_string(process.join("comm")).is_ok_and(|comm| comm.starts_with(name))
    };
    processes.filter(named).any(|process| uses(&process))
}

/// Waits until a process that received SIGSTOP is stopped. Each thread stops separately, and one
/// may still answer a request before.
pub fn until_stopped(pid: u32) {
    wait_until("every thread is stopped", || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
        let states: Vec<char> = tasks
            .filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok())
            .filter_map(|stat| stat.rsplit(") ").next()?.chars().next())
            .collect();
        seen(states.iter().all(|state| *state == 'T'), states)
    });
}
