//! A daemon that does not answer, because it is stopped or hangs. A verb that sends it a request
//! waits in the kernel without a limit; another thread reports that.
//!
//! This thread sends no request to the mount or the daemon: it compares paths as text with the
//! mount table, and reads `/proc`. It does not find a mount that is reached by a symbolic link.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ckptfs_api::display::word;
use ckptfs_api::{Code, VerbResult};
use ckptfs_sys::lock::Mutex;
use ckptfs_sys::{self as sys, MountPoint};
use ckptfs_ui::error::{ErrorContext, hinted};
use ckptfs_ui::mounts;
use ckptfs_ui::output::{Out, escape};
use ckptfs_ui::tree_path::normal;

/// Time after which a verb that waits reports the daemon.
const PATIENCE: Duration = Duration::from_secs(2);
/// Period of the check whether the verb waits.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Period of the check whether a process has ended.
const END_PAUSE: Duration = Duration::from_millis(20);

const SIGTERM: i32 = 15;
/// Its value on Linux: elsewhere no daemon is found.
const SIGCONT: i32 = 18;

/// The watch of this process, if it runs.
static WATCH: Mutex<Option<(Sender<()>, JoinHandle<()>)>> = Mutex::new(None);

/// The process that serves a mount.
#[derive(Debug)]
pub struct ServingProcess {
    pid: u32,
    is_stopped: bool,
    /// The mount is that of its tree, not of a branch.
    is_its_tree: bool,
}

/// Reports whether a process of this pid namespace is the daemon of a tree: it has the directory as
/// an argument (proc_pid_cmdline(5)), as in the source of the mount.
pub fn is_daemon(pid: u32, tree: &str) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut arguments = line.split(|byte| *byte == 0);
    arguments.any(|argument| sys::mount_source(Path::new(OsStr::from_bytes(argument))) == tree)
}

/// Reports whether a process has the connection of a mount open, which newer kernels show. A branch
/// is served by the daemon of its parent.
fn has_connection(pid: u32, mount: &MountPoint) -> bool {
    let line = format!("fuse_connection:\t{}", sys::device_minor(mount.dev));
    let infos = fs::read_dir(format!("/proc/{pid}/fdinfo"))
        .into_iter()
        .flatten();
    infos
        .filter_map(|info| fs::read_to_string(info.ok()?.path()).ok())
        .any(|info| info.lines().any(|of_fd| of_fd == line))
}

impl ServingProcess {
    /// Returns the process that serves `mount`, as this user or root: the worker, if it has a
    /// holder.
    pub fn of(mount: &MountPoint) -> Option<ServingProcess> {
        let found = fs::read_dir("/proc").ok()?.filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let user = sys::process_user(pid).ok()?;
            sys::is_trusted(user).then(|| ServingProcess::at(pid, mount))?
        });
        found
            .max_by_key(|(is_worker, _)| *is_worker)
            .map(|(_, daemon)| daemon)
    }

    fn at(pid: u32, mount: &MountPoint) -> Option<(bool, ServingProcess)> {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let mut arguments = line.split(|byte| *byte == 0);
        if arguments.nth(1) != Some(b"daemon") {
            return None;
        }
        let is_its_tree = is_daemon(pid, &mount.source);
        if !is_its_tree && !has_connection(pid, mount) {
            return None;
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let state = status
            .lines()
            .find_map(|line| line.strip_prefix("State:"))?;
        let daemon = ServingProcess {
            pid,
            is_stopped: state.trim_start().starts_with(['T', 't']),
            is_its_tree,
        };
        Some((arguments.any(|argument| argument == b"--worker"), daemon))
    }

    /// Ends the daemon without a request; returns `false` if it serves more than this mount. A
    /// stopped daemon gets the signal before it continues, and does nothing else first.
    ///
    /// # Errors
    /// Those of kill(2); `busy` if it has not exited after `timeout`.
    pub fn end(&self, timeout: Duration) -> VerbResult<bool> {
        if !self.is_its_tree {
            return Ok(false);
        }
        let pid = i32::try_from(self.pid).unwrap_or(0);
        let born = sys::process_starttime(pid);
        let signal = |signal| sys::kill(pid, signal).on(format!("process {pid}"));
        signal(SIGTERM)?;
        signal(SIGCONT)?;
        let began = Instant::now();
        while born.is_ok() && sys::process_starttime(pid) == born {
            if began.elapsed() > timeout {
                let message = format!("the daemon (pid {pid}) has not exited");
                return Err(hinted(Code::Busy, message, "see .ckptfs/daemon.log"));
            }
            std::thread::sleep(END_PAUSE);
        }
        Ok(true)
    }

    /// Formats the warning, with the commands that continue or end the daemon.
    fn explained(&self, mount: &MountPoint) -> String {
        let (pid, at) = (self.pid, mount.at.display());
        let name = sys::process_name(pid).unwrap_or_default();
        let who = format!(
            "the daemon of {at} ({}, pid {pid})",
            escape(name.as_bytes())
        );
        let mut text = if self.is_stopped {
            format!("{who} is stopped and does not answer; to continue it: kill -CONT {pid}")
        } else {
            format!("{who} has not answered for {} s", PATIENCE.as_secs())
        };
        if self.is_its_tree {
            text.push_str(&format!("; to end it: ckptfs umount --force {}", word(at)));
        }
        text
    }
}

/// Reports whether the daemon of the mount at `at` answers, or is known to be gone, within
/// [`PATIENCE`].
pub fn answers(at: &Path) -> bool {
    let (asked, answer) = mpsc::channel();
    let at = at.to_owned();
    let ask = move || {
        mounts::is_dead(&at);
        let _ = asked.send(());
    };
    // Without a thread the caller sends the request, and may wait.
    std::thread::Builder::new().spawn(ask).is_err() || answer.recv_timeout(PATIENCE).is_ok()
}

/// Watches the calling thread, which runs a verb, and reports once if it waits for a daemon that
/// does not answer.
pub fn watch(out: &Out, dir: Option<&Path>) {
    if out.json {
        return;
    }
    let (verb, say) = (sys::own_thread(), out.warner());
    let dir = dir.map(Path::to_owned);
    let (ends, end) = mpsc::channel();
    let watched = move || {
        let (mut known, mut since) = (None, Instant::now());
        while end.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
            let Some(runs) = sys::runs_of_thread(verb) else {
                return;
            };
            let waits = known == Some(runs);
            if waits && since.elapsed() < PATIENCE {
                continue;
            }
            if waits && let Some(text) = waits_for(verb, dir.as_deref()) {
                return say(&text);
            }
            (known, since) = (Some(runs), Instant::now());
        }
    };
    // Without it the verb waits silently.
    if let Ok(thread) = sys::start_without_signals(watched) {
        *WATCH.lock() = Some((ends, thread));
    }
}

/// Ends the watch, because the process must have a single thread.
pub fn end_watch() {
    if let Some((ends, thread)) = WATCH.lock().take() {
        drop(ends);
        // A panic there is already reported.
        let _ = thread.join();
        // The kernel counts the thread for a moment longer.
        let began = Instant::now();
        let is_counted =
            || fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() > 1);
        while is_counted() && began.elapsed() < LOOK_EVERY {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the warning about the daemon that the verb in this thread waits for.
fn waits_for(verb: i32, dir: Option<&Path>) -> Option<String> {
    let table = mounts::all().ok()?;
    let asked: Vec<&MountPoint> = named(dir)
        .iter()
        .filter_map(|path| around(&table, path))
        .collect();
    let told = |mount: &MountPoint| {
        let daemon = ServingProcess::of(mount)?;
        let hangs = || waits_in_kernel(verb) && has_requests(mount);
        (daemon.is_stopped || hangs()).then(|| daemon.explained(mount))
    };
    asked.into_iter().find_map(told)
}

/// Returns the arguments of the verb as paths, and its directory. An argument that is not a path
/// matches no mount.
fn named(dir: Option<&Path>) -> Vec<PathBuf> {
    let cwd = std::env::current_dir().unwrap_or_default();
    let mut at = dir.map_or_else(|| cwd.clone(), |dir| cwd.join(dir));
    at = normal(&at);
    let arguments = std::env::args_os().skip(1);
    let mut paths: Vec<PathBuf> = arguments.map(|path| normal(&at.join(path))).collect();
    paths.push(at);
    paths
}

/// Returns the mount of ckptfs that contains a path, or serves a directory above it.
fn around<'a>(table: &'a [MountPoint], path: &Path) -> Option<&'a MountPoint> {
    let within = mounts::containing(table, path).filter(|mount| mount.is_ours());
    let serving = || {
        let mut above = path.ancestors();
        above.find_map(|dir| table.iter().rev().find(|mount| mount.serves(dir)))
    };
    within.or_else(serving)
}

/// Reports whether a thread waits for the answer to a FUSE request (`request_wait_answer` in
/// fs/fuse/dev.c). Some kernels do not show it.
fn waits_in_kernel(thread: i32) -> bool {
    fs::read_to_string(format!("/proc/self/task/{thread}/wchan"))
        .is_ok_and(|place| place == "request_wait_answer" || place.starts_with("fuse_"))
}

/// Reports whether requests of a mount wait. True without the control filesystem of FUSE.
fn has_requests(mount: &MountPoint) -> bool {
    let minor = sys::device_minor(mount.dev);
    fs::read_to_string(format!("/sys/fs/fuse/connections/{minor}/waiting"))
        .map_or(true, |waiting| waiting.trim() != "0")
}
