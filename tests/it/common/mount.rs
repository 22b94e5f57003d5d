//! Real mounts of the real binary, with their daemon.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::command::{run_limited, stdout_of, succeeds, tool, try_run_limited};
use super::mount_opts::{MountOpts, binary, mount_command};
use super::process;
use super::run_dir::RunDir;
use super::wait::{WAIT, same, wait_longer};
use ckptfs_api::{Client, GetStats};

/// Time limit of one CLI verb, in seconds.
pub const VERB_SECONDS: u64 = 180;
/// Time limit of an unmount before the connection is aborted, in seconds.
const UMOUNT_SECONDS: u64 = 180;
/// A mounted directory. Dropping it unmounts it; if that fails the test fails, but no mount
/// remains.
pub struct Mount {
    dir: PathBuf,
    /// The path of the branch, if the live tree is one.
    branch: Option<PathBuf>,
    pub(crate) opts: MountOpts,
    /// The daemon's process ID and start time, while it should be alive.
    daemon: Option<(u32, u64)>,
    /// The same of the holder, which starts the next daemon.
    holder: Option<(u32, u64)>,
    /// The time from which the daemon serves.
    serves_since: Instant,
    watchdog: Sender<()>,
    run: Arc<RunDir>,
}

/// The holder counts a daemon that dies within 250 ms as failed, and starts no successor after five
/// of them.
const WORTH_A_SUCCESSOR: Duration = Duration::from_millis(300);

impl Mount {
    /// Mounts `dir`; panics with the command's output on failure.
    pub fn start(dir: &Path, opts: &MountOpts) -> Mount {
        let dir = dir
            .canonicalize()
            .unwrap_or_else(|error| panic!("cannot mount {}: {error}", dir.display()));
        let point = opts.mountpoint.clone().unwrap_or_else(|| dir.clone());
        let branch = opts.branch.then(|| branch_of(&point));
        let points = branch.iter().chain([&point]).cloned().collect();
        let watchdog = start_watchdog(points, opts.limit);
        let mut mount = Mount {
            dir,
            branch,
            opts: opts.clone(),
            daemon: None,
            holder: None,
            serves_since: Instant::now(),
            watchdog,
            run: RunDir::get(),
        };
        mount.remount();
        mount
    }

    /// Runs `ckptfs mount` and returns its output, for tests of rejected mounts.
    pub fn try_start(dir: &Path, opts: &MountOpts) -> Output {
        run_limited(&mut mount_command(dir, opts), VERB_SECONDS)
    }

    /// Mounts it again, after [`Mount::kill`] or [`Mount::umount`].
    pub fn remount(&mut self) {
        let output = Mount::try_start(&self.dir, &self.opts);
        let problem = || {
            format!(
                "ckptfs mount {} failed ({}): {}{}",
                self.dir.display(),
                output.status,
                text(&output.stderr),
                self.log_tail()
            )
        };
        assert!(output.status.success(), "{}", problem());
        self.make_branch();
        self.adopt();
    }

    /// Creates the branch at the first mount; a later mount restores it with its parent.
    fn make_branch(&self) {
        let Some(path) = &self.branch else {
            return;
        };
        if !path.exists() {
            let mut create = binary(&self.opts);
            create.arg("-C").arg(self.parent());
            create.args(["branch", "create", "branch", "--no-git", "--path"]);
            succeeds(create.arg(path), VERB_SECONDS);
        }
    }

    /// Registers the daemon of a mount that the caller has remounted with a command, as
    /// [`Mount::remount`] does.
    pub fn adopt(&mut self) {
        assert!(
            minor_of(self.path()).is_some(),
            "ckptfs mount reported success, but nothing is mounted on {}: {}{}",
            self.path().display(),
            mount_table("self"),
            self.log_tail()
        );
        // The status of a branch does not name the holder.
        let mut ask = binary(&self.opts);
        ask.arg("-C").arg(self.parent()).args(["status", "--json"]);
        let said = stdout_of(&mut ask, VERB_SECONDS);
        let status: Value = serde_json::from_str(&said).expect("--json prints JSON");
        let pid = status["daemon"]["pid"]
            .as_u64()
            .expect("status --json has daemon.pid") as u32;
        self.holder = status["daemon"]["holder"]
            .as_u64()
            .map(|holder| self.noted(holder as u32));
        self.daemon = Some(self.noted(pid));
        self.serves_since = Instant::now();
    }

    fn noted(&self, pid: u32) -> (u32, u64) {
        let start = process::start_of(pid).expect("the processes that status names are alive");
        self.run.note_daemon(pid, start);
        (pid, start)
    }

    /// Returns the root of the live tree.
    pub fn path(&self) -> &Path {
        self.branch.as_deref().unwrap_or_else(|| self.parent())
    }

    /// Returns the mount point: the live tree, or the parent of the branch that is the live tree.
    pub fn parent(&self) -> &Path {
        self.opts.mountpoint.as_deref().unwrap_or(&self.dir)
    }

    /// Returns whether the live tree is a branch, whose backing directory lacks the inherited
    /// files.
    pub fn is_branch(&self) -> bool {
        self.branch.is_some()
    }

    /// Returns its mount points, the last mounted first.
    fn points(&self) -> impl Iterator<Item = &Path> {
        self.branch.as_deref().into_iter().chain([self.parent()])
    }

    /// Returns the path of the view of checkpoint `id`.
    pub fn view(&self, id: u64) -> PathBuf {
        self.path().join(".snapshots").join(id.to_string())
    }

    /// Returns the daemon's process ID. Panics when it was killed.
    pub fn pid(&self) -> u32 {
        self.daemon
            .expect("the daemon was started and not killed")
            .0
    }

    /// Returns a command with `-C` for this mount and these arguments.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = binary(&self.opts);
        command.arg("-C").arg(self.path()).args(arguments);
        command
    }

    /// Runs `ckptfs -C MOUNT ARGUMENTS`.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Output {
        run_limited(&mut self.command(arguments), VERB_SECONDS)
    }

    /// As [`Mount::run`]; panics unless it exits with 0, and returns its stdout.
    pub fn ok<S: AsRef<OsStr>>(&self, arguments: &[S]) -> String {
        let output = self.run(arguments);
        let shown: Vec<_> = arguments
            .iter()
            .map(|argument| argument.as_ref().to_string_lossy())
            .collect();
        let problem = || {
            format!(
                "ckptfs {} failed ({}): {}{}",
                shown.join(" "),
                output.status,
                text(&output.stderr),
                self.log_tail()
            )
        };
        assert!(output.status.success(), "{}", problem());
        text(&output.stdout)
    }

    /// As [`Mount::ok`] with `--json`; returns the value.
    pub fn json<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Value {
        let mut all: Vec<&OsStr> = arguments.iter().map(AsRef::as_ref).collect();
        all.push("--json".as_ref());
        let said = self.ok(&all);
        serde_json::from_str(&said)
            .unwrap_or_else(|error| panic!("{all:?} printed no JSON ({error}): {said}"))
    }

    /// Returns the daemon's counters.
    pub fn stats(&self) -> Value {
        let store = fs::File::open(self.path().join(".ckptfs")).expect("the store");
        let stats = Client::connect(store).expect("the daemon").ask(GetStats);
        serde_json::to_value(stats.expect("the counters")).expect("JSON")
    }

    /// Returns the end of the daemon's log, for a failure message.
    fn log_tail(&self) -> String {
        let mut cat = tool("tail", &["-n", "20"]);
        try_run_limited(cat.arg(self.path().join(".ckptfs/daemon.log")), 60)
            .map_or_else(|problem| problem, |output| text(&output.stdout))
    }

    /// Makes a checkpoint and returns its ID.
    pub fn checkpoint(&self) -> u64 {
        let said = self.ok(&["checkpoint"]);
        said.trim()
            .parse()
            .unwrap_or_else(|_| panic!("checkpoint prints the id alone, not {said:?}"))
    }

    /// Makes a checkpoint with additional arguments and returns its JSON.
    pub fn checkpoint_json(&self, arguments: &[&str]) -> Value {
        self.json(&[&["checkpoint"], arguments].concat())
    }

    /// Restores the whole tree.
    pub fn restore(&self, id: u64) {
        self.ok(&["restore", &id.to_string()]);
    }

    /// Returns `status --json`.
    pub fn status_json(&self) -> Value {
        self.json(&["status"])
    }

    /// Returns `log --json`: the checkpoints, newest first.
    pub fn log_json(&self) -> Value {
        self.json(&["log"])
    }

    /// Returns `diff A [B] --json`.
    pub fn diff_json(&self, a: &str, b: Option<&str>) -> Value {
        let arguments: Vec<&str> = ["diff", a].into_iter().chain(b).collect();
        self.json(&arguments)
    }

    /// Returns the paths that `status` reports dirty, sorted. Names that are not UTF-8 keep their
    /// JSON form.
    pub fn dirty(&self) -> Vec<String> {
        let status = self.status_json();
        let entries = status["dirty"]
            .as_array()
            .expect("status --json has the array dirty");
        let mut paths: Vec<String> = entries
            .iter()
            .map(|entry| {
                entry["path"]
                    .as_str()
                    .map_or_else(|| entry["path"].to_string(), str::to_owned)
            })
            .collect();
        paths.sort();
        paths
    }

    /// Waits until the daemon has received every RELEASE, which the kernel sends after close(2) has
    /// returned, and has settled the files.
    pub fn all_is_closed(&self) {
        wait_longer("every file is closed", VERB_SECONDS, || {
            same(self.stats()["open_files"].clone(), 0)
        });
        self.status_json();
    }

    /// Kills the holder and the daemon as a crash would, and waits for their exit. The dead mount
    /// remains.
    pub fn kill(&mut self) {
        self.kill_holder();
        let (pid, start) = self
            .daemon
            .take()
            .expect("the daemon was started and not killed");
        process::kill(pid);
        assert!(
            process::wait_dead(pid, start, WAIT),
            "daemon {pid} survives SIGKILL"
        );
    }

    /// Sends SIGTERM to the daemon, and waits for its exit, even if the mount is in use.
    pub fn end_by_signal(&mut self) {
        let (pid, start) = self
            .daemon
            .take()
            .expect("the daemon was started and not killed");
        self.holder = None;
        let number = rustix::process::Pid::from_raw(pid as i32).expect("a process");
        rustix::process::kill_process(number, rustix::process::Signal::TERM).expect("it is alive");
        assert!(
            process::wait_dead(pid, start, WAIT),
            "daemon {pid} does not exit"
        );
    }

    /// Kills the holder, if any.
    pub fn kill_holder(&mut self) {
        if let Some((pid, start)) = self.holder.take() {
            process::kill(pid);
            assert!(
                process::wait_dead(pid, start, WAIT),
                "holder {pid} survives SIGKILL"
            );
        }
    }

    /// Returns the process ID of the holder, if any.
    pub fn holder_pid(&self) -> Option<u32> {
        self.holder.map(|(pid, _)| pid)
    }

    /// Kills only the daemon, without waiting for its successor.
    pub fn kill_worker(&self) {
        process::kill(self.pid());
    }

    /// Kills only the daemon, and waits until its successor has taken over. Returns the duration.
    pub fn replace_worker(&mut self) -> Duration {
        let before = self.pid();
        std::thread::sleep(WORTH_A_SUCCESSOR.saturating_sub(self.serves_since.elapsed()));
        let began = Instant::now();
        self.kill_worker();
        let asked = fs::metadata(self.path())
            .and_then(|_| rustix::fs::statfs(self.path()).map_err(Into::into));
        let took = began.elapsed();
        asked.unwrap_or_else(|error| {
            panic!(
                "the mount does not outlive its daemon: {error}{}",
                self.log_tail()
            )
        });
        self.adopt();
        assert_ne!(self.pid(), before, "another daemon serves");
        took
    }

    /// Unmounts with the verb, as a user would, and waits for the daemon's exit.
    pub fn umount(&mut self) {
        self.try_umount()
            .unwrap_or_else(|problem| panic!("{problem}"));
    }

    /// Checks the comparison of the baseline that the last unmount wrote with a walk. Returns
    /// `false` if the unmount wrote it by a walk.
    ///
    /// # Errors
    /// The difference.
    pub fn compared_baseline(&self) -> Result<bool, String> {
        let compared = self.path().join(".ckptfs/baseline.compared");
        let Ok(said) = std::fs::read_to_string(&compared) else {
            return Ok(false);
        };
        std::fs::remove_file(&compared).map_err(|error| error.to_string())?;
        if said == "right\n" {
            Ok(true)
        } else {
            Err(format!("a walk contradicts the baseline: {said}"))
        }
    }

    fn try_umount(&mut self) -> Result<(), String> {
        let output = self.umount_once()?;
        if !output.status.success() {
            return Err(format!(
                "ckptfs umount {} failed ({}): {}",
                self.parent().display(),
                output.status,
                text(&output.stderr)
            ));
        }
        if let Some(point) = self.points().find(|point| minor_of(point).is_some()) {
            return Err(format!(
                "ckptfs umount succeeded, but {} is still mounted",
                point.display()
            ));
        }
        let Some((pid, start)) = self.daemon.take() else {
            return Ok(());
        };
        if process::wait_dead(pid, start, Duration::from_secs(UMOUNT_SECONDS)) {
            return Ok(());
        }
        self.daemon = Some((pid, start));
        Err(format!(
            "daemon {pid} still runs {UMOUNT_SECONDS} s after the unmount"
        ))
    }

    /// Runs `umount`, and retries while the mount is busy. Between fork and exec, a child of
    /// another thread has copies of this process's descriptors, which keep a mount busy for some
    /// microseconds. A test that has already failed does not retry.
    fn umount_once(&self) -> Result<Output, String> {
        let began = Instant::now();
        loop {
            let output = try_run_limited(
                binary(&self.opts).arg("umount").arg(self.parent()),
                UMOUNT_SECONDS,
            )?;
            let busy = text(&output.stderr).contains(" is in use\n");
            if !busy || thread::panicking() || began.elapsed() > WAIT {
                return Ok(output);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Last resort: ends the connection, the mount and the daemon in any state.
    fn tear_down(&mut self) {
        for point in self.points() {
            for _ in 0..4 {
                if minor_of(point).is_none() {
                    break;
                }
                abort(point);
                let _ = try_run_limited(
                    &mut tool("umount", &["-l".as_ref(), point.as_os_str()]),
                    UMOUNT_SECONDS,
                );
            }
        }
        for (pid, start) in [self.holder.take(), self.daemon.take()]
            .into_iter()
            .flatten()
        {
            if process::start_of(pid) == Some(start) {
                process::kill(pid);
                process::wait_dead(pid, start, Duration::from_secs(UMOUNT_SECONDS));
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let alive = self.daemon.is_some();
        let result = if alive && minor_of(self.parent()).is_some() {
            self.try_umount()
        } else {
            Ok(())
        };
        self.tear_down();
        let _ = self.watchdog.send(());
        match result {
            Err(problem) if !thread::panicking() => panic!("{problem}"),
            Err(problem) => eprintln!("harness: {problem}"),
            Ok(()) => {}
        }
    }
}

/// Returns the path of the branch of a mount point.
fn branch_of(point: &Path) -> PathBuf {
    let mut name = point.file_name().unwrap_or_default().to_owned();
    name.push("@branch");
    point.with_file_name(name)
}

/// Aborts the mounts on `points` after `limit`, unless a message arrives before.
fn start_watchdog(points: Vec<PathBuf>, limit: Duration) -> Sender<()> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        if receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            for point in points {
                eprintln!(
                    "harness: {} has been mounted for {} s: aborting it",
                    point.display(),
                    limit.as_secs()
                );
                abort(&point);
            }
        }
    });
    sender
}

/// Returns the mount table of a process (proc_pid_mountinfo(5)), or an empty string if the process
/// does not exist. Names of other tests that are not UTF-8 appear with replacement characters.
pub fn mount_table(process: &str) -> String {
    let table = fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    String::from_utf8_lossy(&table).into_owned()
}

/// Returns the device minor of the FUSE filesystem on `point`, which identifies its connection.
/// Does not access the mount, which may hang.
pub fn minor_of(point: &Path) -> Option<u32> {
    mount_table("self").lines().rev().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let fields: Vec<&str> = left.split(' ').collect();
        let here = unescape(fields.get(4)?) == point.as_os_str().to_string_lossy();
        (here && right.starts_with("fuse")).then(|| fields[2].split_once(':')?.1.parse().ok())?
    })
}

/// Decodes the octal escapes of the mount table.
pub fn unescape(field: &str) -> String {
    field
        .replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

/// Aborts the FUSE connection of the mount on `point`: pending requests fail.
pub fn abort(point: &Path) {
    let control = Path::new("/sys/fs/fuse/connections");
    if fs::read_dir(control).is_ok_and(|mut entries| entries.next().is_none()) {
        let _ = try_run_limited(
            &mut tool(
                "mount",
                &["-t", "fusectl", "fusectl", "/sys/fs/fuse/connections"],
            ),
            60,
        );
    }
    if let Some(minor) = minor_of(point)
        && let Err(error) = fs::write(control.join(minor.to_string()).join("abort"), "1")
    {
        eprintln!(
            "harness: cannot abort the connection of {}: {error}",
            point.display()
        );
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
