//! A private directory for each test, a program environment independent of the caller's, and
//! cleanup however the test ends.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::mount::unescape;
use crate::common::wait::{WAIT, same, wait_until};

/// Limit for each command of a test.
pub const TIME_LIMIT: Duration = WAIT;

/// The result of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Replaced by `[DIR]` in texts that are compared.
    dir: PathBuf,
}

impl Ran {
    /// Returns stdout as text, with the sandbox's path replaced.
    pub fn out(&self) -> String {
        self.text(&self.stdout)
    }

    /// Returns stderr as text, with the sandbox's path replaced.
    pub fn err(&self) -> String {
        self.text(&self.stderr)
    }

    /// Returns stdout as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// Checks that the command succeeded.
    #[track_caller]
    pub fn ok(self) -> Ran {
        assert_eq!(
            self.code,
            0,
            "stdout: {}\nstderr: {}",
            self.out(),
            self.err()
        );
        self
    }

    /// Checks exit status, stdout and stderr.
    #[track_caller]
    pub fn is(&self, code: i32, stdout: &str, stderr: &str) {
        assert_eq!(
            (self.code, self.out().as_str(), self.err().as_str()),
            (code, stdout, stderr)
        );
    }

    fn text(&self, bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes).replace(&self.dir.display().to_string(), "[DIR]")
    }
}

/// A directory for one test.
pub struct Sandbox {
    dir: tempfile::TempDir,
    pub path: PathBuf,
}

impl Sandbox {
    pub fn new() -> Sandbox {
        Sandbox::in_dir(Path::new("/var/tmp"))
    }

    /// Creates a sandbox in a given directory, such as the root of an image.
    pub fn in_dir(above: &Path) -> Sandbox {
        let dir = tempfile::Builder::new()
            .prefix("ckptfs-cli-")
            .tempdir_in(above)
            .expect("a directory for the sandbox");
        let path = dir.path().canonicalize().expect("its path");
        fs::create_dir(path.join("out")).expect("a place for output");
        Sandbox { dir, path }
    }

    /// Creates a file and its parent directories in the sandbox.
    pub fn file(&self, name: impl AsRef<Path>, content: &str) {
        let path = self.path.join(name);
        fs::create_dir_all(path.parent().expect("parent")).expect("directories");
        fs::write(path, content).expect("file");
    }

    /// Runs `ckptfs` in the sandbox.
    pub fn ckptfs(&self, args: &[&str]) -> Ran {
        self.ckptfs_in("", args)
    }

    /// Runs `ckptfs` in a directory of the sandbox.
    pub fn ckptfs_in(&self, dir: &str, args: &[&str]) -> Ran {
        let mut command = self.command(dir);
        command.args(args);
        self.run(command)
    }

    /// Returns the verbs listed in the help, except `help`.
    pub fn verbs(&self) -> Vec<String> {
        let told = [&["--help"][..], &["help", "more"]].map(|ask| self.ckptfs(ask).ok().out());
        let lists = told.iter().map(|told| told.split("\nMore (").next());
        let lines = lists.flatten().flat_map(str::lines);
        lines
            .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
            .filter_map(|line| line.split_whitespace().next())
            .filter(|verb| *verb != "help")
            .map(str::to_owned)
            .collect()
    }

    /// Returns a command of the program, to run in a directory of the sandbox.
    pub fn command(&self, dir: &str) -> Command {
        self.hermetic(env!("CARGO_BIN_EXE_ckptfs"), dir)
    }

    /// Returns a command of any program, to run in a directory of the sandbox with `ckptfs` in its
    /// PATH.
    pub fn hermetic(&self, program: impl AsRef<OsStr>, dir: &str) -> Command {
        let ours = Path::new(env!("CARGO_BIN_EXE_ckptfs"))
            .parent()
            .expect("its directory")
            .to_owned();
        let mut path = ours.into_os_string();
        path.push(":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", path)
            .env("HOME", &self.path)
            .env("LC_ALL", "C.UTF-8")
            .env("TZ", "UTC")
            .env("COLUMNS", "100")
            .env("CKPTFS_TRIPWIRE", "off")
            .env("CKPTFS_AUTO_ABSENCE", "off");
        command
            .current_dir(self.path.join(dir))
            .stdin(Stdio::null());
        command
    }

    /// Runs a command under the time limit. Output goes to files, so a process that keeps it open
    /// does not block the test.
    pub fn run(&self, mut command: Command) -> Ran {
        let out = self.path.join("out");
        let files = [out.join("stdout"), out.join("stderr")];
        command
            .stdout(File::create(&files[0]).expect("stdout"))
            .stderr(File::create(&files[1]).expect("stderr"));
        let mut child = command.spawn().expect("spawn");
        let began = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("wait") {
                break status;
            }
            if began.elapsed() > TIME_LIMIT {
                // It may hang in the kernel: do not wait for it.
                let _ = child.kill();
                panic!("{command:?} has not exited within {TIME_LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let [stdout, stderr] = files.map(|file| fs::read(file).expect("output"));
        let code = status
            .code()
            .unwrap_or_else(|| -status.signal().unwrap_or(0));
        Ran {
            code,
            stdout,
            stderr,
            dir: self.path.clone(),
        }
    }

    /// Returns the mounts in the sandbox, newest first.
    pub fn mounts(&self) -> Vec<PathBuf> {
        let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let at = |line: &[u8]| {
            line.split(|byte| *byte == b' ')
                .nth(4)
                .map(|at| PathBuf::from(unescape(&String::from_utf8_lossy(at))))
        };
        let mut mounts: Vec<PathBuf> = table
            .split(|byte| *byte == b'\n')
            .filter_map(at)
            .filter(|at| at.starts_with(&self.path))
            .collect();
        mounts.reverse();
        mounts
    }

    /// Returns the daemons of this sandbox, identified by its path in their command line.
    pub fn daemons(&self) -> Vec<u32> {
        let ours = |pid: u32| -> Option<u32> {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let mut words = line.split(|byte| *byte == 0);
            let daemon = words.nth(1)? == b"daemon";
            (daemon && words.any(|word| Path::new(OsStr::from_bytes(word)).starts_with(&self.path)))
                .then_some(pid)
        };
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        processes
            .filter_map(|entry| ours(entry.file_name().to_str()?.parse().ok()?))
            .collect()
    }

    /// Kills the daemons, as in a crash.
    pub fn kill_daemons(&self) {
        for pid in self.daemons() {
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
        wait_until("the daemons are dead", || {
            same(self.daemons(), Vec::<u32>::new())
        });
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        for at in self.mounts() {
            let _ = Command::new("umount")
                .arg("-l")
                .arg(at)
                .stderr(Stdio::null())
                .status();
        }
        self.kill_daemons();
        if !self.mounts().is_empty() {
            // Never delete through a mount.
            self.dir.disable_cleanup(true);
        }
    }
}
