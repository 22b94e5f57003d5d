//! A pool of volumes on a separate filesystem, and the driver that serves it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::command::{fails, run_limited, stdout_of, tool, try_run_limited};
use super::image::{Fs, Image};
use super::mount::{minor_of, mount_table};
use super::process;
use super::variant::skip;
use super::wait::wait_until;

/// Time limit of one call or command, in seconds.
pub const SECONDS: u64 = 60;
/// Time limit of one unmount during the teardown, in seconds.
const UMOUNT_SECONDS: u64 = 60;

/// A pool and its driver. Dropping it unmounts everything.
pub struct Pool {
    driver: Option<Child>,
    /// The directory of the pool.
    pub root: PathBuf,
    /// The driver's socket.
    pub socket: PathBuf,
    /// Processes in other mount namespaces have copies of its mounts.
    pub has_copies: bool,
    /// The filesystem of the pool.
    pub image: Image,
}

/// Returns whether volume tests cannot run on this machine, and prints the reason.
pub fn unavailable() -> bool {
    let why = if Path::new("/dev/fuse").exists() {
        Fs::Xfs.unavailable()
    } else {
        Some("/dev/fuse does not exist".to_owned())
    };
    why.map(|why| skip(&why)).is_some()
}

impl Pool {
    /// Makes a pool without a driver; `socket` is relative to the root of the disk.
    pub fn new(fs: Fs, socket: &str) -> Pool {
        let image = Image::of(fs);
        let socket = image.path().join(socket);
        fs::create_dir(socket.parent().expect("a directory")).expect("the disk is writable");
        Pool {
            driver: None,
            root: image.dir("pool"),
            socket,
            has_copies: false,
            image,
        }
    }

    /// Returns a command of the program for this pool.
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

    /// Runs the program and returns its stdout.
    #[track_caller]
    pub fn ok(&self, arguments: &[&str]) -> String {
        stdout_of(&mut self.ckptfs(arguments), SECONDS)
    }

    /// Runs the program, which must fail, and returns its stderr.
    #[track_caller]
    pub fn refused(&self, arguments: &[&str]) -> String {
        fails(&mut self.ckptfs(arguments), SECONDS)
    }

    /// Returns the driver's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.disk().join("driver.log")
    }

    /// Returns the root of the filesystem.
    pub fn disk(&self) -> &Path {
        self.image.path()
    }

    /// Starts a driver, and waits until it logs that it serves and `answers` returns true.
    pub fn serve(&mut self, mut command: Command, answers: impl Fn(&Path) -> bool) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("the disk is writable");
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a copy"))
            .stderr(log);
        let said = || self.log().matches("serving the volumes in").count();
        let before = said();
        let mut driver = command.spawn().expect("the driver starts");
        let answers = || said() > before && answers(&self.socket);
        wait_until("the driver answers", || {
            answers() || driver.try_wait().expect("a child").is_some()
        });
        assert!(answers(), "the driver ended: {}", self.log());
        self.driver = Some(driver);
    }

    /// Returns the driver's process ID.
    pub fn driver_pid(&self) -> u32 {
        self.driver.as_ref().expect("it runs").id()
    }

    /// Opens 1,500 connections with incomplete requests, which begin with `begins` in turn.
    pub fn half_requests(&self, begins: &[&[u8]]) -> HalfRequests {
        let streams = (0..1500).zip(begins.iter().cycle()).map(|(_, begin)| {
            let mut stream = UnixStream::connect(&self.socket).expect("the driver listens");
            stream.set_nonblocking(true).expect("a socket");
            // The connection may already be closed.
            let _ = stream.write_all(begin);
            stream
        });
        HalfRequests(streams.collect())
    }

    /// Kills the driver as a crash would.
    pub fn kill(&mut self) {
        let mut driver = self.driver.take().expect("it runs");
        driver.kill().expect("the driver can be killed");
        driver.wait().expect("the driver can be waited for");
    }

    /// Kills the driver while others call it.
    pub fn kill_under(&self) {
        process::kill(self.driver_pid());
    }

    /// Ends the driver with SIGTERM, and returns its exit status.
    pub fn end(&mut self) -> i32 {
        let mut driver = self.driver.take().expect("it runs");
        let pid = rustix::process::Pid::from_child(&driver);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .expect("the driver can be signalled");
        wait_until("the driver ends", || {
            driver.try_wait().expect("a child").is_some()
        });
        let status = driver.wait().expect("the driver can be waited for");
        status.code().expect("no signal")
    }

    /// Returns the mount point of a volume in the pool.
    pub fn point(&self, name: &str) -> PathBuf {
        self.root.join("mnt").join(name)
    }

    /// Returns whether a volume is mounted in the pool.
    pub fn is_mounted(&self, name: &str) -> bool {
        minor_of(&self.point(name)).is_some()
    }

    /// Returns the path of a volume's record.
    pub fn record_path(&self, name: &str) -> PathBuf {
        self.root.join("meta").join(format!("{name}.json"))
    }

    /// Returns the record of a volume on disk.
    pub fn record(&self, name: &str) -> Value {
        let text =
            fs::read(self.record_path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        serde_json::from_slice(&text).expect("JSON")
    }

    /// Unmounts a mount point. Aborts the connection if that does not end the filesystem: another
    /// process may have a copy of the mount in a namespace that it has created since.
    fn take_away(&self, point: &Path) {
        let Some(minor) = minor_of(point) else {
            return detach(point);
        };
        let copies = FuseMounts::of(minor);
        let said = try_run_limited(self.ckptfs(&["umount"]).arg(point), UMOUNT_SECONDS);
        let is_left = said.is_err() || minor_of(point).is_some();
        if (is_left || self.has_copies) && copies.are_left() {
            let _ = fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
        }
        if is_left {
            detach(point);
        }
    }
}

/// See [`Pool::half_requests`].
pub struct HalfRequests(Vec<UnixStream>);

impl HalfRequests {
    /// Returns the number of connections that the driver has not closed.
    pub fn open(&mut self) -> usize {
        let mut answer = [0; 4096];
        self.0.retain_mut(|stream| {
            loop {
                match stream.read(&mut answer) {
                    Ok(1..) => {}
                    Ok(0) => return false,
                    Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
                }
            }
        });
        self.0.len()
    }
}

/// The mounts of one FUSE filesystem in all namespaces. The kernel reuses the number of a
/// connection immediately: an abort by number alone ended mounts of other tests.
pub struct FuseMounts {
    device: String,
    source: String,
}

impl FuseMounts {
    /// Returns the filesystem with this device minor.
    pub fn of(minor: u32) -> FuseMounts {
        let device = format!(" 0:{minor} ");
        let table = mount_table("self");
        let line = table.lines().find(|line| line.contains(&device));
        let source = line.and_then(|line| line.split(" - ").nth(1));
        FuseMounts {
            source: source.unwrap_or_default().to_owned(),
            device,
        }
    }

    /// Returns whether any process has a mount of it.
    pub fn are_left(&self) -> bool {
        let mut processes = fs::read_dir("/proc").expect("/proc is mounted").flatten();
        processes.any(|process| self.in_table(&process.file_name().to_string_lossy()) > 0)
    }

    /// Returns the number of its mounts in a process's namespace.
    fn in_table(&self, process: &str) -> usize {
        let shown = |line: &&str| line.contains(&self.device) && line.ends_with(&self.source);
        mount_table(process).lines().filter(shown).count()
    }
}

/// Returns all mount points, in the order of their mounts.
pub fn mount_points() -> Vec<PathBuf> {
    let table = mount_table("self");
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points.map(PathBuf::from).collect()
}

impl Drop for Pool {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the driver's log:\n{}", self.log());
        }
        if let Some(mut driver) = self.driver.take() {
            let _ = driver.kill();
            let _ = driver.wait();
        }
        let ours = |point: &PathBuf| point.starts_with(self.disk()) && point != self.disk();
        let (pool, elsewhere): (Vec<PathBuf>, Vec<PathBuf>) = mount_points()
            .into_iter()
            .rev()
            .filter(ours)
            .partition(|point| point.starts_with(&self.root));
        // Mounts outside the pool first, then the filesystems, each of which ends with its last
        // mount, and images last.
        for point in elsewhere {
            match minor_of(&point).map(FuseMounts::of) {
                Some(copies) if copies.in_table("self") == 1 => self.take_away(&point),
                _ => detach(&point),
            }
        }
        for point in pool {
            self.take_away(&point);
        }
    }
}

fn detach(point: &Path) {
    let _ = try_run_limited(
        &mut tool("umount", &["-l".as_ref(), point.as_os_str()]),
        UMOUNT_SECONDS,
    );
}
