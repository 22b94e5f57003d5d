//! Helpers of the suites: installation paths, a client, and checkpoints in the background.

use std::fs::{self, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::common::{RunDir, process};
use ckptfs_api::{CheckpointInfo, CheckpointOptions, Client};

/// Returns the program of an installed suite. A missing suite is a failure, not a reason to skip.
pub fn suite(name: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("target/tools/bin")
        .join(name);
    assert!(
        program.is_file(),
        "the suite {name} is not installed. Hint: tests/tools.sh"
    );
    program
}

/// Connects to the daemon of a mount.
pub fn connect(mount: &Path) -> Client {
    let store: OwnedFd = rustix::fs::open(
        mount.join(".ckptfs"),
        OFlags::PATH | OFlags::DIRECTORY,
        Mode::empty(),
    )
    .expect("the store exists");
    Client::connect(&store).expect("the daemon listens")
}

pub fn checkpoint(client: &mut Client) -> CheckpointInfo {
    client
        .ask(CheckpointOptions::default())
        .expect("a checkpoint can be created")
}

/// A temporary directory, removed on drop, or with the run directory if this process is killed.
pub struct SuiteDir {
    path: PathBuf,
    _run: Arc<RunDir>,
}

impl SuiteDir {
    /// Creates a slot in the run directory, on a disk.
    pub fn new(kind: &str) -> SuiteDir {
        let run = RunDir::get();
        SuiteDir {
            path: run.slot(kind),
            _run: run,
        }
    }

    /// Creates a slot in `/tmp`, for short paths. Directories left there by a killed process are
    /// found by their `owner` file.
    pub fn short() -> SuiteDir {
        let path = tempfile::Builder::new()
            .prefix("ckptfs-test-")
            .tempdir_in("/tmp")
            .expect("a directory can be created in /tmp")
            .keep();
        fs::set_permissions(&path, Permissions::from_mode(0o755))
            .expect("the directory is writable");
        let pid = std::process::id();
        let start = process::start_of(pid).expect("this process is alive");
        fs::write(path.join("owner"), format!("{pid} {start}\n"))
            .expect("the directory is writable");
        SuiteDir {
            path,
            _run: RunDir::get(),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SuiteDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("{} was not removed: {error}", self.path.display());
        }
    }
}

/// Sets its flag when dropped, so that a waiting thread ends even when the test panics.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Runs `body` while a checkpoint is made every `pause`; returns its result and the number of
/// checkpoints.
pub fn between_checkpoints<T>(mount: &Path, pause: Duration, body: impl FnOnce() -> T) -> (T, u64) {
    let stop = AtomicBool::new(false);
    let mut client = connect(mount);
    thread::scope(|scope| {
        let maker = scope.spawn(|| {
            let mut made = 0;
            while !stop.load(Ordering::SeqCst) {
                let next = Instant::now() + pause;
                checkpoint(&mut client);
                made += 1;
                thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            made
        });
        let result = {
            let _stop = StopOnDrop(&stop);
            body()
        };
        (result, maker.join().expect("checkpoints can be created"))
    })
}
