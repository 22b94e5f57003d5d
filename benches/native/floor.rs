//! The floor: libfuse's `passthrough_ll`, built from the example in Debian's libfuse3-dev, and
//! bindfs, both without a history.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::command::{stdout_of, succeeds, tool, try_run_limited};
use crate::common::mount::minor_of;
use crate::common::{RunDir, process};

const EXAMPLE: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";
const BUILD_SECONDS: u64 = 120;
const MOUNT_SECONDS: u64 = 20;

/// Builds `passthrough_ll` in `dir`.
///
/// # Errors
/// Returns the reason why it cannot be built on this machine.
pub fn build(dir: &Path) -> Result<PathBuf, String> {
    if !Path::new(EXAMPLE).exists() {
        return Err("libfuse3-dev, which contains passthrough_ll.c, is not installed (make bench-native installs it)".to_owned());
    }
    try_run_limited(&mut tool("pkg-config", &["--exists", "fuse3"]), 10)
        .map_err(|_| "pkg-config is not installed".to_owned())?;
    let flags = stdout_of(
        &mut tool("pkg-config", &["--cflags", "--libs", "fuse3"]),
        BUILD_SECONDS,
    );
    let program = dir.join("passthrough_ll");
    succeeds(
        tool("cc", &["-O2", EXAMPLE, "-o"])
            .arg(&program)
            .args(flags.split_whitespace()),
        BUILD_SECONDS,
    );
    Ok(program)
}

/// A mounted reference filesystem, unmounted on drop.
pub struct Floor {
    point: PathBuf,
    child: Child,
}

impl Floor {
    /// Mounts `passthrough_ll` over `source` on `point`, with unlimited caching, and with one
    /// thread or up to 10, each with its own descriptor. It has no extended attributes by default,
    /// which saves a request per write.
    pub fn passthrough_ll(program: &Path, source: &Path, point: &Path, one_thread: bool) -> Floor {
        let mut command = Command::new(program);
        command.arg("-f").args(if one_thread {
            &["-s"][..]
        } else {
            &["-o", "clone_fd,max_threads=10"]
        });
        command.arg("-o").arg(format!(
            "source={},cache=always,allow_other,default_permissions",
            source.display()
        ));
        Floor::start(command.arg(point), point)
    }

    /// Mounts bindfs with many threads.
    pub fn bindfs(source: &Path, point: &Path) -> Floor {
        let mut command = Command::new("bindfs");
        command
            .args([
                "-f",
                "--multithreaded",
                "-o",
                "entry_timeout=86400,attr_timeout=86400,negative_timeout=86400",
            ])
            .arg(source)
            .arg(point);
        Floor::start(&mut command, point)
    }

    /// Mounts a tree in memory behind our own adapter ([`crate::null`]), served by this program.
    pub fn null(point: &Path) -> Floor {
        let this = std::env::current_exe().expect("the path of this program is known");
        Floor::start(
            Command::new(this).arg(crate::null::ARGUMENT).arg(point),
            point,
        )
    }

    fn start(command: &mut Command, point: &Path) -> Floor {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let pid = child.id();
        RunDir::get().note_daemon(pid, process::start_of(pid).unwrap_or(0));
        let mut floor = Floor {
            point: point.to_owned(),
            child,
        };
        let started = Instant::now();
        while minor_of(point).is_none() {
            let ended = floor.child.try_wait().expect("a child can be waited for");
            assert!(ended.is_none(), "{command:?} ended: {ended:?}");
            assert!(
                started.elapsed() < Duration::from_secs(MOUNT_SECONDS),
                "{command:?} did not mount"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        floor
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        let unmounted = try_run_limited(&mut tool("umount", &[&self.point]), MOUNT_SECONDS)
            .is_ok_and(|output| output.status.success());
        // A mount namespace created while this was mounted keeps the connection alive; killing the
        // daemon ends it.
        let pid = self.child.id();
        let gone = || {
            process::start_of(pid).is_none_or(|start| {
                process::wait_dead(pid, start, Duration::from_secs(MOUNT_SECONDS))
            })
        };
        if !unmounted || !gone() {
            eprintln!(
                "native: the daemon of {} did not exit",
                self.point.display()
            );
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
        if !unmounted {
            let _ = try_run_limited(
                &mut tool("umount", &["-l".as_ref(), self.point.as_os_str()]),
                MOUNT_SECONDS,
            );
        }
    }
}
