//! A private machine with a container engine, created by `rig.sh`. Every process in it ends when
//! the pipe of this process closes, however this process ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::command::try_run_limited;
use crate::common::run_dir::{RunDir, script};
use crate::common::{has, process, tool};

/// Seconds for one script. An engine retries for 15 when a plugin is dead.
const SCRIPT_SECONDS: u64 = 240;
/// Limit for the namespaces to start and to end.
const RIG_LIMIT: Duration = Duration::from_secs(90);

/// The namespaces. Dropping them ends every process in them.
pub struct Rig {
    unshare: Child,
    /// Closing it ends every process in the namespaces.
    stdin: Option<ChildStdin>,
    /// The init process of the namespaces, as a process id outside.
    init: u32,
    dir: PathBuf,
    name: String,
    _run: Arc<RunDir>,
}

/// Returns why no engine can run here.
pub fn unavailable() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("a container engine needs root".to_owned());
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("/dev/fuse does not exist".to_owned());
    }
    let programs = [
        ("dockerd", "docker.io"),
        ("tini", "tini"),
        ("busybox", "busybox-static"),
        ("mkfs.xfs", "xfsprogs"),
        ("curl", "curl"),
    ];
    if let Some(reason) = missing(&programs) {
        return Some(reason);
    }
    let mut try_it = tool(
        "unshare",
        &[
            "--mount",
            "--pid",
            "--ipc",
            "--uts",
            "--net",
            "--fork",
            "--mount-proc",
            "--propagation",
            "private",
            "true",
        ],
    );
    match try_run_limited(&mut try_it, 60) {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!(
            "namespaces cannot be created: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(problem) => Some(problem),
    }
}

/// Returns why Podman cannot run here.
pub fn podman_unavailable() -> Option<String> {
    unavailable().or_else(|| missing(&[("podman", "podman"), ("runc", "runc")]))
}

fn missing(programs: &[(&str, &str)]) -> Option<String> {
    let (program, package) = programs.iter().find(|(program, _)| !has(program))?;
    Some(format!(
        "{program} is not installed (make deps; apt: {package})"
    ))
}

impl Rig {
    /// Starts the namespaces with a disk, without an engine.
    pub fn new() -> Rig {
        let run = RunDir::get();
        let dir = run.slot("engine");
        let name = format!(
            "ckptfs-test-{}-{}",
            std::process::id(),
            dir.file_name().expect("a name").to_string_lossy()
        );
        let flags = [
            "--mount",
            "--pid",
            "--ipc",
            "--uts",
            "--net",
            "--fork",
            "--mount-proc",
            "--kill-child",
            "--propagation",
            "private",
        ];
        let mut unshare = tool("unshare", &flags);
        unshare
            .args(["tini", "-s", "--", "bash"])
            .arg(rig_sh())
            .arg("hold");
        let log = fs::File::create(dir.join("hold.log")).expect("the slot is writable");
        let command = environment(&mut unshare, &dir, &name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut child = command.spawn().expect("unshare starts");
        let stdin = child.stdin.take();
        let mut rig = Rig {
            unshare: child,
            stdin,
            init: 0,
            dir,
            name,
            _run: run,
        };
        let mut said = String::new();
        let stdout = rig.unshare.stdout.take().expect("stdout is piped");
        let heard = BufReader::new(stdout).read_line(&mut said);
        assert!(
            heard.is_ok() && said == "ready\n",
            "the rig does not start: {said}{}",
            rig.log("hold.log")
        );
        rig.init = child_of(rig.unshare.id()).expect("unshare has a child");
        rig
    }

    /// Docker with the image `bb:local`.
    pub fn docker() -> Rig {
        let rig = Rig::new();
        rig.sh("dk_start; dk_image");
        rig
    }

    /// Docker with the image and our driver.
    pub fn with_driver() -> Rig {
        let rig = Rig::new();
        rig.sh("vol_start; dk_start; dk_image");
        rig
    }

    /// Podman with the image `bb:local`.
    pub fn podman_alone() -> Rig {
        let rig = Rig::new();
        rig.sh("pm_image");
        rig
    }

    /// Podman with the image and our driver.
    pub fn podman() -> Rig {
        let rig = Rig::new();
        rig.sh("vol_start; pm_image");
        rig
    }

    /// Runs a script in the namespaces and returns its stdout. Panics with its output if it fails.
    #[track_caller]
    pub fn sh(&self, text: &str) -> String {
        let output = self.output(text);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{text}\n{}: {said}{}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr),
            self.logs()
        );
        said
    }

    /// Runs a script that must fail, and returns its output.
    #[track_caller]
    pub fn fails(&self, text: &str) -> String {
        let output = self.output(text);
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(
            !output.status.success(),
            "{text}\nsucceeded: {said}{}",
            self.logs()
        );
        said
    }

    /// Runs a script in the namespaces.
    #[track_caller]
    pub fn output(&self, text: &str) -> Output {
        let mut command = self.enter();
        command
            .arg("-c")
            .arg(format!(". {}\n{text}", rig_sh().display()));
        try_run_limited(&mut command, SCRIPT_SECONDS)
            .unwrap_or_else(|problem| panic!("{text}\n{problem}{}", self.logs()))
    }

    /// Returns a command that starts bash in the namespaces.
    pub fn enter(&self) -> Command {
        let init = self.init.to_string();
        let mut command = tool(
            "nsenter",
            &["-t", &init, "-m", "-p", "-i", "-u", "-n", "--", "bash"],
        );
        environment(&mut command, &self.dir, &self.name).current_dir("/");
        command
    }

    pub fn init(&self) -> u32 {
        self.init
    }

    /// The directory of the rig, with the same path outside and inside.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn log(&self, name: &str) -> String {
        let log = fs::read_to_string(self.dir.join(name)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(25)..].join("\n");
        format!("\n-- {name}\n{tail}")
    }

    /// Returns the last lines of the logs, for a failed test.
    pub fn logs(&self) -> String {
        ["hold.log", "driver.log", "dockerd.log"]
            .map(|name| self.log(name))
            .concat()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let began = Instant::now();
        while !matches!(self.unshare.try_wait(), Ok(Some(_))) {
            if began.elapsed() > RIG_LIMIT {
                eprintln!(
                    "harness: the namespaces of {} do not end",
                    self.dir.display()
                );
                process::kill(self.init);
                let _ = self.unshare.kill();
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        remove_cgroups(&self.name);
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            eprintln!("harness: {} was not removed: {error}", self.dir.display());
        }
    }
}

fn rig_sh() -> PathBuf {
    script("it/engine/rig.sh")
}

fn environment<'a>(command: &'a mut Command, dir: &Path, name: &str) -> &'a mut Command {
    let ours = Path::new(env!("CARGO_BIN_EXE_ckptfs"))
        .parent()
        .expect("its directory")
        .display()
        .to_string();
    let path = format!("{ours}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin");
    command
        .env_clear()
        .env("PATH", path)
        .env("W", dir)
        .env("RIG", name)
        .env("PROJECT", env!("CARGO_MANIFEST_DIR"))
}

/// Returns the only child of process `parent`.
fn child_of(parent: u32) -> Option<u32> {
    let numbers = fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    numbers.into_iter().find(|number| {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok())
            == Some(parent)
    })
}

/// Removes the control groups of the rig `name` and of rigs whose test process is dead. No
/// namespace contains control groups here.
pub fn remove_cgroups(name: &str) {
    let ours = |group: &str| {
        let maker = group
            .strip_prefix("ckptfs-test-")
            .and_then(|rest| rest.split('-').next()?.parse().ok());
        group == name || maker.is_some_and(|maker| process::start_of(maker).is_none())
    };
    let top = PathBuf::from("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(&top)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    for hierarchy in hierarchies.chain([top.clone()]) {
        for entry in fs::read_dir(&hierarchy).into_iter().flatten().flatten() {
            if ours(&entry.file_name().to_string_lossy()) {
                remove_group(&entry.path());
            }
        }
        // Podman's groups have one name for all rigs: removed only when empty.
        let _ = fs::remove_dir(hierarchy.join("libpod_parent/conmon"));
        let _ = fs::remove_dir(hierarchy.join("libpod_parent"));
    }
}

/// Removes a control group and its children. The kernel removes the files; a group in use stays.
fn remove_group(group: &Path) {
    for entry in fs::read_dir(group)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
    {
        remove_group(&entry.path());
    }
    let _ = fs::remove_dir(group);
}
