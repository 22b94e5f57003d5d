//! The directory of all files of a test process, with the records for their cleanup by other
//! processes.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, Weak};

use super::command::{tool, try_run_limited};
use super::process;

/// The base of run directories: a disk, because tmpfs has no space for images and no loop device
/// with direct I/O.
const DEFAULT_BASE: &str = "/var/tmp";

/// A run directory, removed with its last reference.
pub struct RunDir {
    path: PathBuf,
}

static CURRENT: Mutex<Weak<RunDir>> = Mutex::new(Weak::new());
static NEXT_SLOT: AtomicU64 = AtomicU64::new(1);

impl RunDir {
    /// Returns the run directory of this process. The first call removes the remains of dead test
    /// processes.
    pub fn get() -> Arc<RunDir> {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(sweep_dead);
        let mut current = CURRENT
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(run) = current.upgrade() {
            return run;
        }
        let run = Arc::new(RunDir::create());
        *current = Arc::downgrade(&run);
        run
    }

    fn create() -> RunDir {
        let base = std::env::var_os("CKPTFS_TEST_DIR")
            .map_or_else(|| PathBuf::from(DEFAULT_BASE), PathBuf::from);
        let path = tempfile::Builder::new()
            .prefix("ckptfs-test-")
            .tempdir_in(&base)
            .unwrap_or_else(|error| {
                panic!(
                    "cannot create a run directory in {}: {error}",
                    base.display()
                )
            })
            .keep();
        // Tests that act as another user need to traverse it.
        fs::set_permissions(&path, Permissions::from_mode(0o755))
            .expect("the run directory is writable");
        let pid = std::process::id();
        let start = process::start_of(pid).expect("this process is alive");
        fs::write(path.join("owner"), format!("{pid} {start}\n"))
            .expect("the run directory is writable");
        RunDir { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes an empty directory for one image or one mount.
    pub fn slot(&self, kind: &str) -> PathBuf {
        let slot = self.path.join(format!(
            "{kind}-{}",
            NEXT_SLOT.fetch_add(1, Ordering::Relaxed)
        ));
        fs::create_dir(&slot)
            .unwrap_or_else(|error| panic!("cannot create {}: {error}", slot.display()));
        slot
    }

    /// Records a daemon, so that it is killed even if this process is killed.
    pub fn note_daemon(&self, pid: u32, start: u64) {
        let mut notes = OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.path.join("daemons"))
            .expect("the run directory is writable");
        writeln!(notes, "{pid} {start}").expect("the run directory is writable");
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.path.join("daemons"));
        let _ = fs::remove_file(self.path.join("owner"));
        // Remains of a slot are left for cleanup.sh; removing a directory with a mount in it would
        // be wrong.
        if fs::remove_dir(&self.path).is_err() {
            eprintln!(
                "harness: {} is not empty; tests/cleanup.sh removes it",
                self.path.display()
            );
        }
    }
}

/// Makes a directory on the host's filesystem, removed when dropped.
pub fn scratch() -> tempfile::TempDir {
    let base = std::env::var_os("CKPTFS_TEST_DIR")
        .map_or_else(|| PathBuf::from(DEFAULT_BASE), PathBuf::from);
    tempfile::Builder::new()
        .prefix("ckptfs-scratch-")
        .tempdir_in(base)
        .expect("a scratch directory can be created")
}

/// Returns the path of the script `name` in `tests/`.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(name)
}

fn sweep_dead() {
    if let Err(problem) = try_run_limited(
        &mut tool(&script("cleanup.sh").to_string_lossy(), &["--dead"]),
        60,
    ) {
        eprintln!("harness: {problem}");
    }
}
