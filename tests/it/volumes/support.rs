//! A pool on a private filesystem, a driver that serves it, and processes that use volumes like
//! containers.

use std::fs;
use std::io::{Read, Write};
use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::pool::Pool;
pub use crate::common::pool::{SECONDS, unavailable};
use crate::common::wait::wait_until;
use crate::common::{Fs, process, run_limited, tool};

/// A pool and its driver.
pub struct Rig(Pool);

impl Deref for Rig {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.0
    }
}

impl DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut Pool {
        &mut self.0
    }
}

impl Rig {
    /// Starts a driver on a pool on XFS.
    pub fn start() -> Rig {
        Rig::start_on(Fs::Xfs, &[])
    }

    /// Starts a driver on a pool on `fs`, with further arguments.
    pub fn start_on(fs: Fs, arguments: &[&str]) -> Rig {
        let mut rig = Rig(Pool::new(fs, "plugins/ckptfs.sock"));
        rig.has_copies = true;
        rig.serve(arguments);
        rig
    }

    /// Starts a driver, and waits until it replies.
    pub fn serve(&mut self, arguments: &[&str]) {
        let socket = self.socket.to_str().expect("text").to_owned();
        let mut command = self.ckptfs(&["serve", "volumes", "--socket", &socket]);
        command.args(arguments);
        self.0
            .serve(command, |socket| UnixStream::connect(socket).is_ok());
    }

    /// Performs a call on a new connection. Returns status and reply.
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

    /// Sends bytes, and returns the reply up to the end of the connection.
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

    /// Calls a driver that may be killed during the call. Returns `None` without a reply.
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

    /// Performs a call that must succeed.
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

    /// Performs a call that must be rejected, and returns its error. Podman treats every 200 as
    /// success.
    #[track_caller]
    pub fn error(&self, name: &str, body: &Value) -> String {
        let (status, value) = self.call(&format!("VolumeDriver.{name}"), body);
        assert_eq!(status, 500, "{name} {body}: {value}");
        value["Err"]
            .as_str()
            .filter(|text| !text.is_empty())
            .expect("it has a message")
            .to_owned()
    }

    #[track_caller]
    pub fn create(&self, name: &str, options: Value) {
        self.done("Create", &json!({"Name": name, "Opts": options}));
    }

    /// Mounts a volume, and returns its mount point.
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

    /// Mounts a volume for a process that has ended on return, as for a killed engine.
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

    #[track_caller]
    pub fn unmount(&self, name: &str, id: &str) {
        self.done("Unmount", &json!({"Name": name, "ID": id}));
    }

    /// Returns the `Status` in the reply of `Get`.
    #[track_caller]
    pub fn status(&self, name: &str) -> Value {
        self.done("Get", &json!({"Name": name}))["Volume"]["Status"].clone()
    }

    /// Returns the processes that serve a volume: the daemon, and its holder.
    pub fn daemons(&self, name: &str) -> (u32, u32) {
        let point = self.point(name);
        let said = self.ok(&["-C", point.to_str().expect("text"), "status", "--json"]);
        let status: Value = serde_json::from_str(&said).expect("JSON");
        let number = |name: &str| {
            u32::try_from(status["daemon"][name].as_u64().expect("a number")).expect("a process")
        };
        (number("pid"), number("holder"))
    }
}

/// A process with a private mount namespace and root directory, the volume at `/data`, and none of
/// the host's mounts. It is set up in the way container engines do.
pub struct Container {
    process: Child,
}

/// Sets up a root directory with the system's programs and the volume `$1` at `/data`, and detaches
/// the host's root. Then it appends a line to `log` every few milliseconds. The pause is a read(2)
/// that times out, because a child process would outlive the container by a moment.
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

/// Runs a script with an argument in a private mount namespace.
fn apart(script: &str, argument: &Path) -> Child {
    let unshare = ["--mount", "--propagation", "private"];
    tool("unshare", &unshare)
        .args(["bash", "-c", script, "apart"])
        .arg(argument)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("unshare(1) starts")
}

impl Container {
    /// Starts a container with the mount at `point`.
    pub fn start(point: &Path) -> Container {
        let container = Container {
            process: apart(CONTAINER, point),
        };
        container.writes_on();
        container
    }

    fn lines(&self) -> u64 {
        fs::metadata(format!("/proc/{}/root/data/log", self.process.id()))
            .map_or(0, |found| found.len())
    }

    /// Waits until it has written more.
    #[track_caller]
    pub fn writes_on(&self) {
        let before = self.lines();
        wait_until("the container writes", || self.lines() > before);
    }

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

/// A process in a private mount namespace.
pub struct NamespaceHolder {
    process: Child,
}

/// Unmounts the new namespace's copies of other tests' mounts, because their owners would wait for
/// them.
const LET_GO: &str = r#"
set -e
tac /proc/self/mountinfo | while read -r _ _ _ _ at rest; do
    read -r _ source _ <<<"${rest#* - }"
    case $at in /|"$1"|"$1"/*) continue ;; esac
    case $source in ckptfs#*|/dev/loop*) umount -l "$at" 2>/dev/null || true ;; esac
done
"#;

impl NamespaceHolder {
    /// Runs a script, whose `$1` is the disk of the rig. The script must end by waiting for input.
    pub fn start(script: &str, disk: &Path) -> NamespaceHolder {
        NamespaceHolder {
            process: apart(&format!("{LET_GO}{script}"), disk),
        }
    }

    /// Returns whether the process still runs.
    pub fn lives(&mut self) -> bool {
        self.process.try_wait().expect("a child").is_none()
    }

    /// Waits until the process has a private namespace with a mount at a path that ends with
    /// `point`.
    #[track_caller]
    pub fn sees(&self, point: &Path) {
        let below = point.strip_prefix("/").expect("absolute");
        let process = format!("/proc/{}", self.process.id());
        let ours = fs::read_link("/proc/self/ns/mnt").expect("/proc is mounted");
        wait_until("the process has a copy of the mounts", || {
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

    /// Waits until the process has another root directory than ours.
    #[track_caller]
    pub fn is_rooted_elsewhere(&self) {
        use std::os::unix::fs::MetadataExt;
        let root = |path: &str| {
            fs::metadata(path)
                .map(|found| (found.dev(), found.ino()))
                .ok()
        };
        wait_until("the process has its own root", || {
            let theirs = root(&format!("/proc/{}/root/", self.process.id()));
            theirs.is_some() && theirs != root("/")
        });
    }
}

impl Drop for NamespaceHolder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
