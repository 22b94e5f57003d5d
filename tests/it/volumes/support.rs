//! A pool on a filesystem of its own, a driver that serves it, and processes that use volumes as
//! containers do.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::command::try_run_limited;
use crate::common::mount::{minor_of, wait_until};
use crate::common::{Fs, Image, process, run_limited, skip, tool};

/// Seconds for one call, or one command.
pub const SECONDS: u64 = 60;

/// A pool, and its driver.
pub struct Rig {
    driver: Option<Child>,
    /// The directory of the pool.
    pub root: PathBuf,
    /// Where the driver answers.
    pub socket: PathBuf,
    image: Image,
}

/// Why none of these tests can run here, if so; said already.
pub fn unavailable() -> bool {
    let why = if Path::new("/dev/fuse").exists() {
        Fs::Xfs.unavailable()
    } else {
        Some("there is no /dev/fuse".to_owned())
    };
    why.map(|why| skip(&why)).is_some()
}

impl Rig {
    /// A pool on XFS, served.
    pub fn start() -> Rig {
        Rig::start_on(Fs::Xfs, &[])
    }

    /// A pool on this filesystem, served with these further arguments.
    pub fn start_on(fs: Fs, arguments: &[&str]) -> Rig {
        let image = Image::of(fs);
        let (root, sockets) = (image.dir("pool"), image.dir("plugins"));
        let mut rig = Rig {
            driver: None,
            root,
            socket: sockets.join("ckptfs.sock"),
            image,
        };
        rig.serve(arguments);
        rig
    }

    /// The program, for this pool.
    pub fn ckptfs(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ckptfs"));
        command
            .args(arguments)
            .env("CKPTFS_VOLUMES", &self.root)
            .env("CKPTFS_TRIPWIRE", "off")
            .env("CKPTFS_AUTO_ABSENCE", "off")
            .env("NO_COLOR", "1")
            .current_dir("/");
        command
    }

    /// What the program prints.
    #[track_caller]
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = run_limited(&mut self.ckptfs(arguments), SECONDS);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            output.status.success(),
            "{arguments:?}: {}{}",
            text(&output.stdout),
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    /// What the program says on stderr when it fails.
    #[track_caller]
    pub fn refused(&self, arguments: &[&str]) -> String {
        let output = run_limited(&mut self.ckptfs(arguments), SECONDS);
        assert!(
            !output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// The driver's own log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.image.path().join("driver.log")
    }

    /// The filesystem that everything is on.
    pub fn disk(&self) -> &Path {
        self.image.path()
    }

    /// Starts a driver, and waits until it answers.
    pub fn serve(&mut self, arguments: &[&str]) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("the disk is ours");
        let socket = self.socket.to_str().expect("text").to_owned();
        let mut command = self.ckptfs(&["volumes", "serve", "--socket", &socket]);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a copy"))
            .stderr(log);
        let said = || self.log().matches("serving the volumes in").count();
        let before = said();
        let mut driver = command.spawn().expect("the driver starts");
        let answers = || said() > before && UnixStream::connect(&self.socket).is_ok();
        wait_until("the driver answers", SECONDS, || {
            answers() || driver.try_wait().expect("a child").is_some()
        });
        assert!(answers(), "the driver ended: {}", self.log());
        self.driver = Some(driver);
    }

    /// Kills the driver as a crash would.
    pub fn kill(&mut self) {
        let mut driver = self.driver.take().expect("it runs");
        driver.kill().expect("it is ours");
        driver.wait().expect("it is ours");
    }

    /// Ends the driver in order; its exit status.
    pub fn end(&mut self) -> i32 {
        let mut driver = self.driver.take().expect("it runs");
        let pid = rustix::process::Pid::from_child(&driver);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is ours");
        wait_until("the driver ends", SECONDS, || {
            driver.try_wait().expect("a child").is_some()
        });
        driver
            .wait()
            .expect("it is ours")
            .code()
            .expect("no signal")
    }

    /// A call, on a connection of its own: status and answer.
    pub fn call(&self, name: &str, body: &Value) -> (u16, Value) {
        let body = format!("{body}\n");
        let request = format!(
            "POST /{name} HTTP/1.1\r\nHost: \r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let said = self.exchange(request.as_bytes());
        let (head, body) = said
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("{name} was answered with {said:?}; {}", self.log()));
        let status = head
            .split(' ')
            .nth(1)
            .expect("a status")
            .parse()
            .expect("a number");
        (
            status,
            serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {said}")),
        )
    }

    /// Sends some bytes, and gives all that comes back until the driver closes the connection.
    pub fn exchange(&self, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(&self.socket).expect("the driver listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(SECONDS)))
            .expect("a timeout");
        stream.write_all(bytes).expect("the driver reads");
        let mut text = String::new();
        stream
            .read_to_string(&mut text)
            .expect("the driver answers");
        text
    }

    /// A call to a driver that may be killed meanwhile: `None` if it was not answered.
    pub fn try_call(&self, name: &str, body: &Value) -> Option<(u16, Value)> {
        let body = body.to_string();
        let request = format!(
            "POST /VolumeDriver.{name} HTTP/1.1\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let mut stream = UnixStream::connect(&self.socket).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(SECONDS)))
            .ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        let mut said = String::new();
        stream.read_to_string(&mut said).ok()?;
        let (head, body) = said.split_once("\r\n\r\n")?;
        Some((
            head.split(' ').nth(1)?.parse().ok()?,
            serde_json::from_str(body).ok()?,
        ))
    }

    /// Kills the driver, with others still calling it.
    pub fn kill_under(&self) {
        process::kill(self.driver.as_ref().expect("it runs").id());
    }

    /// A call that must succeed.
    #[track_caller]
    pub fn done(&self, name: &str, body: &Value) -> Value {
        let (status, value) = self.call(&format!("VolumeDriver.{name}"), body);
        assert_eq!(
            (status, value["Err"].as_str()),
            (200, Some("")),
            "{name} {body}: {value}; {}",
            self.log()
        );
        value
    }

    /// What a call says that must be refused. Podman takes every 200 for success.
    #[track_caller]
    pub fn error(&self, name: &str, body: &Value) -> String {
        let (status, value) = self.call(&format!("VolumeDriver.{name}"), body);
        assert_eq!(status, 500, "{name} {body}: {value}");
        value["Err"]
            .as_str()
            .filter(|text| !text.is_empty())
            .expect("it says why")
            .to_owned()
    }

    /// Makes a volume.
    #[track_caller]
    pub fn create(&self, name: &str, options: Value) {
        self.done("Create", &json!({"Name": name, "Opts": options}));
    }

    /// Mounts a volume; where.
    #[track_caller]
    pub fn mount(&self, name: &str, id: &str) -> PathBuf {
        let value = self.done("Mount", &json!({"Name": name, "ID": id}));
        let point = value["Mountpoint"].as_str().expect("a path");
        assert!(
            point.starts_with('/'),
            "docker binds the container's own directory where this is empty: {value}"
        );
        PathBuf::from(point)
    }

    /// Mounts a volume for a process that has ended when this returns, as for an engine that was
    /// killed.
    #[track_caller]
    pub fn mount_for_the_dead(&self, name: &str, id: &str) {
        let body = json!({"Name": name, "ID": id}).to_string();
        let mut curl = tool("curl", &["-sS", "--fail", "--data", &body, "--unix-socket"]);
        let output = run_limited(
            curl.arg(&self.socket)
                .arg("http://engine/VolumeDriver.Mount"),
            SECONDS,
        );
        assert!(
            output.status.success(),
            "{}; {}",
            String::from_utf8_lossy(&output.stderr),
            self.log()
        );
    }

    /// Gives a mount back.
    #[track_caller]
    pub fn unmount(&self, name: &str, id: &str) {
        self.done("Unmount", &json!({"Name": name, "ID": id}));
    }

    /// The status part of what `Get` says.
    #[track_caller]
    pub fn status(&self, name: &str) -> Value {
        self.done("Get", &json!({"Name": name}))["Volume"]["Status"].clone()
    }

    /// Where a volume is mounted in the pool.
    pub fn point(&self, name: &str) -> PathBuf {
        self.root.join("mnt").join(name)
    }

    /// Whether a volume is mounted.
    pub fn is_mounted(&self, name: &str) -> bool {
        minor_of(&self.point(name)).is_some()
    }

    /// The record of a volume, as it is on disk.
    pub fn record(&self, name: &str) -> Value {
        let text =
            fs::read(self.record_path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        serde_json::from_slice(&text).expect("JSON")
    }

    /// Where that is.
    pub fn record_path(&self, name: &str) -> PathBuf {
        self.root.join("meta").join(format!("{name}.json"))
    }

    /// The processes that serve a volume: the daemon, and its holder.
    pub fn daemons(&self, name: &str) -> (u32, u32) {
        let point = self.point(name);
        let said = self.ok(&["-C", point.to_str().expect("text"), "status", "--json"]);
        let status: Value = serde_json::from_str(&said).expect("JSON");
        let number = |name: &str| {
            u32::try_from(status["daemon"][name].as_u64().expect("a number")).expect("a process")
        };
        (number("pid"), number("holder"))
    }

    fn mounts(&self) -> Vec<PathBuf> {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
        let points = table
            .lines()
            .filter_map(|line| line.split(' ').nth(4).map(PathBuf::from));
        points
            .filter(|point| point.starts_with(&self.root))
            .collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the driver's log:\n{}", self.log());
        }
        if let Some(mut driver) = self.driver.take() {
            let _ = driver.kill();
            let _ = driver.wait();
        }
        for point in self.mounts().iter().rev() {
            take_away(point, &mut self.ckptfs(&["umount"]));
        }
    }
}

/// Unmounts, and ends the filesystem too: another process of this machine may have a copy of the
/// mount in a namespace that it has made meanwhile.
fn take_away(point: &Path, umount: &mut Command) {
    let minor = minor_of(point);
    let said = if minor.is_some() {
        try_run_limited(umount.arg(point), 20).map(drop)
    } else {
        Ok(())
    };
    if let Some(minor) = minor {
        let _ = fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
    }
    if said.is_err() || minor.is_none() || minor_of(point).is_some() {
        let _ = try_run_limited(&mut tool("umount", &["-l".as_ref(), point.as_os_str()]), 20);
    }
}

/// A process with the volume at `/data` of a mount namespace and a root directory of its own, and
/// nothing of the host's mounts: what a container is to a volume, made as container engines do it.
pub struct Container {
    process: Child,
}

/// Makes a root directory with the system's programs in it, the volume `$1` at `/data`, and leaves
/// the host's behind. Then it appends a line to `log` there every few milliseconds; the pause is a
/// read(2) of what never comes, for a child would outlive the container by a moment.
const CONTAINER: &str = r#"
set -e
mount -t tmpfs tmpfs /mnt
cd /mnt
mkdir usr dev proc data old
for dir in usr dev proc; do mount --bind /$dir $dir; done
for dir in bin sbin lib lib64; do if [ -L /$dir ]; then ln -s usr/$dir $dir; elif [ -d /$dir ]; then mkdir $dir; mount --bind /$dir $dir; fi; done
mount --bind "$1" data
pivot_root . old
cd /
umount -l /old
while echo line >>/data/log; do read -rt 0.02 _ || true; done
read -r _
"#;

impl Container {
    /// Starts one on what is mounted at `point`.
    pub fn start(point: &Path) -> Container {
        let mut command = tool(
            "unshare",
            &[
                "--mount",
                "--propagation",
                "private",
                "bash",
                "-c",
                CONTAINER,
                "container",
            ],
        );
        let process = command
            .arg(point)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("unshare(1) starts");
        let container = Container { process };
        container.writes_on();
        container
    }

    fn lines(&self) -> u64 {
        fs::metadata(format!("/proc/{}/root/data/log", self.process.id()))
            .map_or(0, |found| found.len())
    }

    /// Waits until it has written something more.
    #[track_caller]
    pub fn writes_on(&self) {
        let before = self.lines();
        wait_until("the container writes", SECONDS, || self.lines() > before);
    }

    /// Ends it.
    pub fn end(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        let start = process::start_of(self.process.id());
        let _ = self.process.kill();
        let _ = self.process.wait();
        if let Some(start) = start {
            process::wait_dead(self.process.id(), start, Duration::from_secs(SECONDS));
        }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A process in a mount namespace of its own.
pub struct Held {
    process: Child,
}

/// Lets go of the mounts of others that a new namespace has copies of: their owners would wait for
/// them.
const LET_GO: &str = r#"
set -e
tac /proc/self/mountinfo | while read -r _ _ _ _ at rest; do
    read -r _ source _ <<<"${rest#* - }"
    case $at in /|"$1"|"$1"/*) continue ;; esac
    case $source in ckptfs#*|/dev/loop*) umount -l "$at" 2>/dev/null || true ;; esac
done
"#;

impl Held {
    /// Runs a script, whose `$1` is the disk of the rig, and which then waits for something to
    /// read.
    pub fn start(script: &str, disk: &Path) -> Held {
        let script = format!("{LET_GO}{script}");
        let mut command = tool(
            "unshare",
            &[
                "--mount",
                "--propagation",
                "private",
                "bash",
                "-c",
                &script,
                "held",
            ],
        );
        let process = command
            .arg(disk)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("unshare(1) starts");
        Held { process }
    }

    /// Whether it still runs.
    pub fn lives(&mut self) -> bool {
        self.process.try_wait().expect("a child").is_none()
    }

    /// Waits until it has a namespace of its own, in which something is mounted at a path that ends
    /// with this one.
    #[track_caller]
    pub fn sees(&self, point: &Path) {
        let below = point.strip_prefix("/").expect("absolute");
        let process = format!("/proc/{}", self.process.id());
        let ours = fs::read_link("/proc/self/ns/mnt").expect("/proc is mounted");
        wait_until("the process has a copy of the mounts", SECONDS, || {
            let other =
                fs::read_link(format!("{process}/ns/mnt")).is_ok_and(|namespace| namespace != ours);
            let table = fs::read_to_string(format!("{process}/mountinfo")).unwrap_or_default();
            other
                && table.lines().any(|line| {
                    line.split(' ')
                        .nth(4)
                        .is_some_and(|at| Path::new(at).ends_with(below))
                })
        });
    }

    /// Waits until its root directory is another than ours.
    #[track_caller]
    pub fn is_rooted_elsewhere(&self) {
        use std::os::unix::fs::MetadataExt;
        let root = |path: &str| {
            fs::metadata(path)
                .map(|found| (found.dev(), found.ino()))
                .ok()
        };
        wait_until("the process has a root of its own", SECONDS, || {
            let theirs = root(&format!("/proc/{}/root/", self.process.id()));
            theirs.is_some() && theirs != root("/")
        });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
