//! Real mounts of the real binary, with their daemon.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use ckptfs::Client;
use ckptfs::api::GetStats;
use serde_json::Value;

use super::command::{run_limited, stdout_of, succeeds, tool, try_run_limited};
use super::mount_opts::{MountOpts, binary, mount_command};
use super::process;
use super::run_dir::RunDir;
use super::wait::{WAIT, same, wait_longer};

/// Seconds for one verb of the command line.
pub const VERB_SECONDS: u64 = 180;
/// Seconds for an unmount before the connection is aborted.
const UMOUNT_SECONDS: u64 = 180;
/// A mounted directory. Dropping it unmounts it; if that does not work the test fails, but nothing
/// is left mounted.
pub struct Mount {
    dir: PathBuf,
    /// Where the branch is, if it is of one.
    branch: Option<PathBuf>,
    pub(crate) opts: MountOpts,
    /// The daemon's id and start time, while it should be alive.
    daemon: Option<(u32, u64)>,
    /// The same of the process that would start another daemon.
    holder: Option<(u32, u64)>,
    /// Since when the daemon is known to serve.
    serves_since: Instant,
    watchdog: Sender<()>,
    run: Arc<RunDir>,
}

/// A daemon that dies sooner than 250 ms after it began to serve is taken for one that cannot live,
/// and after five of them nobody takes over.
const WORTH_A_SUCCESSOR: Duration = Duration::from_millis(300);

impl Mount {
    /// Mounts `dir`; panics with what the command said if that fails.
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

    /// Runs `ckptfs mount` without taking its result for granted, for tests of what must be
    /// refused.
    pub fn try_start(dir: &Path, opts: &MountOpts) -> Output {
        run_limited(&mut mount_command(dir, opts), VERB_SECONDS)
    }

    /// Mounts it (again): after [`Mount::kill`] this is the repair, after [`Mount::umount`] the
    /// next day.
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

    /// The first time; later it comes back with its parent.
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

    /// Takes over a mount that the caller has made again with a command of its own, as
    /// [`Mount::remount`] would.
    pub fn adopt(&mut self) {
        assert!(
            minor_of(self.path()).is_some(),
            "ckptfs mount said that it serves, but nothing is mounted on {}: {}{}",
            self.path().display(),
            mount_table("self"),
            self.log_tail()
        );
        // That of a branch names no holder.
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

    /// Where the live tree is.
    pub fn path(&self) -> &Path {
        self.branch.as_deref().unwrap_or_else(|| self.parent())
    }

    /// Where what was mounted is: the live tree, or the parent of the branch that is that.
    pub fn parent(&self) -> &Path {
        self.opts.mountpoint.as_deref().unwrap_or(&self.dir)
    }

    /// What is shown is a branch: the directory below it has not all of it.
    pub fn is_branch(&self) -> bool {
        self.branch.is_some()
    }

    /// Every mount of it, the last one first.
    fn points(&self) -> impl Iterator<Item = &Path> {
        self.branch.as_deref().into_iter().chain([self.parent()])
    }

    /// The view of checkpoint `id`.
    pub fn view(&self, id: u64) -> PathBuf {
        self.path().join(".snapshots").join(id.to_string())
    }

    /// The daemon's process id. Panics when there is none.
    pub fn pid(&self) -> u32 {
        self.daemon
            .expect("the daemon was started and not killed")
            .0
    }

    /// The binary with `-C` for this mount and these arguments.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = binary(&self.opts);
        command.arg("-C").arg(self.path()).args(arguments);
        command
    }

    /// Runs `ckptfs -C MOUNT ARGUMENTS`.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Output {
        run_limited(&mut self.command(arguments), VERB_SECONDS)
    }

    /// Runs it, panics unless it exits with 0, and returns its stdout.
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

    /// Runs it with `--json` and returns the value.
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

    /// The end of the daemon's log, for a test that fails.
    fn log_tail(&self) -> String {
        let mut cat = tool("tail", &["-n", "20"]);
        try_run_limited(cat.arg(self.path().join(".ckptfs/daemon.log")), 60)
            .map_or_else(|problem| problem, |output| text(&output.stdout))
    }

    /// Makes a checkpoint and returns its id.
    pub fn checkpoint(&self) -> u64 {
        let said = self.ok(&["checkpoint"]);
        said.trim()
            .parse()
            .unwrap_or_else(|_| panic!("checkpoint prints the id alone, not {said:?}"))
    }

    /// Makes a checkpoint with these further arguments and returns what is known about it.
    pub fn checkpoint_json(&self, arguments: &[&str]) -> Value {
        self.json(&[&["checkpoint"], arguments].concat())
    }

    /// Restores the whole tree.
    pub fn restore(&self, id: u64) {
        self.ok(&["restore", &id.to_string()]);
    }

    /// `status --json`.
    pub fn status_json(&self) -> Value {
        self.json(&["status"])
    }

    /// `log --json`: the checkpoints, newest first.
    pub fn log_json(&self) -> Value {
        self.json(&["log"])
    }

    /// `diff A [B] --json`.
    pub fn diff_json(&self, a: &str, b: Option<&str>) -> Value {
        let arguments: Vec<&str> = ["diff", a].into_iter().chain(b).collect();
        self.json(&arguments)
    }

    /// The paths that `status` calls dirty, sorted. Names that are not UTF-8 come as the JSON shows
    /// them.
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

    /// Waits until the daemon has heard of every close, which the kernel tells some time after
    /// close(2) has returned, and has looked at the files after it.
    pub fn all_is_closed(&self) {
        wait_longer("every file is closed", VERB_SECONDS, || {
            same(self.stats()["open_files"].clone(), 0)
        });
        self.status_json();
    }

    /// Kills the holder and the daemon as a crash would and waits until they are dead. The mount
    /// stays behind, dead.
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

    /// Asks the daemon to end, and waits until it has, whoever uses the mount.
    pub fn end_by_signal(&mut self) {
        let (pid, start) = self
            .daemon
            .take()
            .expect("the daemon was started and not killed");
        self.holder = None;
        let number = rustix::process::Pid::from_raw(pid as i32).expect("a process");
        rustix::process::kill_process(number, rustix::process::Signal::TERM).expect("it lives");
        assert!(
            process::wait_dead(pid, start, WAIT),
            "daemon {pid} does not end"
        );
    }

    /// Kills the process that would start another daemon, if there is one.
    pub fn kill_holder(&mut self) {
        if let Some((pid, start)) = self.holder.take() {
            process::kill(pid);
            assert!(
                process::wait_dead(pid, start, WAIT),
                "holder {pid} survives SIGKILL"
            );
        }
    }

    /// The process that would start another daemon, if there is one.
    pub fn holder_pid(&self) -> Option<u32> {
        self.holder.map(|(pid, _)| pid)
    }

    /// Kills the daemon alone, and does not wait: another takes over.
    pub fn kill_worker(&self) {
        process::kill(self.pid());
    }

    /// Kills the daemon alone and waits until another has taken over; how long that took.
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

    /// Unmounts with the verb, as a user would, and waits until the daemon has gone.
    pub fn umount(&mut self) {
        self.try_umount()
            .unwrap_or_else(|problem| panic!("{problem}"));
    }

    /// What the last unmount has written is what a walk says. `false`: it was a walk.
    ///
    /// # Errors
    /// What differs.
    pub fn compared_baseline(&self) -> Result<bool, String> {
        let compared = self.path().join(".ckptfs/baseline.compared");
        let Ok(said) = std::fs::read_to_string(&compared) else {
            return Ok(false);
        };
        std::fs::remove_file(&compared).map_err(|error| error.to_string())?;
        if said == "right\n" {
            Ok(true)
        } else {
            Err(format!(
                "a walk says something else than the baseline: {said}"
            ))
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

    /// Between fork and exec a child that another thread starts holds copies of this process's
    /// descriptors, and keeps a mount busy with them for some microseconds: one that is in use by
    /// nobody is tried again, but not for long by a test that has failed.
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

    /// The last resort: ends the connection, the mount and the daemon, whatever state they are in.
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

/// Where the branch of what is mounted there is.
fn branch_of(point: &Path) -> PathBuf {
    let mut name = point.file_name().unwrap_or_default().to_owned();
    name.push("@branch");
    point.with_file_name(name)
}

/// Aborts the mounts on `points` after `limit` unless it is told before that all is well.
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

/// The mount table of a process (proc_pid_mountinfo(5)); empty if there is no such process. Other
/// tests mount names that are not UTF-8: these are shown with replacement characters.
pub fn mount_table(process: &str) -> String {
    let table = fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    String::from_utf8_lossy(&table).into_owned()
}

/// The device minor of the FUSE filesystem on `point`, which names its connection. Does not touch
/// the mount, which may hang.
pub fn minor_of(point: &Path) -> Option<u32> {
    mount_table("self").lines().rev().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let fields: Vec<&str> = left.split(' ').collect();
        let here = unescape(fields.get(4)?) == point.as_os_str().to_string_lossy();
        (here && right.starts_with("fuse")).then(|| fields[2].split_once(':')?.1.parse().ok())?
    })
}

/// The mount table writes blanks and backslashes in octal.
pub fn unescape(field: &str) -> String {
    field
        .replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

/// Ends the FUSE connection of the mount on `point`: whoever waits for it gets an error.
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
