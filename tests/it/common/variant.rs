//! One test body for every filesystem and both I/O paths, and skipped tests with a reason.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::image::{Fs, Image};
use super::mount::Mount;
use super::mount_opts::{Io, MountOpts};
use ckptfs_api::Client;
#[cfg(debug_assertions)]
use ckptfs_api::Fault;
#[cfg(debug_assertions)]
use ckptfs_sys::fault::FaultPlan;

/// FUSE_PASSTHROUGH exists since 6.9, the fine-grained timestamps that it requires here since this
/// version.
const PASSTHROUGH_KERNEL: (u32, u32) = (6, 13);

/// Reports the reason why the test is skipped, to the file that `tests/run.py` names. `make test`
/// then counts the test as skipped, never as passed. The caller must return immediately.
pub fn skip(reason: &str) {
    match std::env::var_os("CKPTFS_SKIPPED") {
        Some(path) => {
            let mut file = File::options()
                .append(true)
                .create(true)
                .open(path)
                .expect("the file for skipped tests can be opened");
            // One write, because other tests append concurrently.
            file.write_all(format!("{reason}\n").as_bytes())
                .expect("the reason can be written");
        }
        // Not `println!`, because the test runner discards that output of a passing test.
        None => {
            let _ = writeln!(std::io::stdout().lock(), "\nSKIPPED: {reason}");
        }
    }
}

/// A filesystem and an I/O path.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// The backing filesystem.
    pub fs: Fs,
    /// The I/O path.
    pub io: Io,
}

/// A project directory on an image, mounted in place.
pub struct Rig {
    // Fields in drop order.
    pub mount: Mount,
    /// The backing filesystem.
    pub image: Image,
}

impl Rig {
    /// Returns the root of the live tree.
    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    /// Returns the path of the view of checkpoint `id`.
    pub fn view(&self, id: u64) -> PathBuf {
        self.mount.view(id)
    }

    /// Sets the fault plan for the daemon's system calls. Returns the number of calls since the
    /// last plan, and of those that failed.
    #[cfg(debug_assertions)]
    pub fn fault(&self, plan: Option<FaultPlan>) -> (u64, u64) {
        let store = File::open(self.path().join(".ckptfs")).expect("the store");
        let mut client = Client::connect(store).expect("the daemon");
        client.ask(Fault { plan }).expect("an answer")
    }
}

impl Variant {
    /// Returns the reason why it cannot run on this machine, if any.
    pub fn unavailable(self) -> Option<String> {
        if !Path::new("/dev/fuse").exists() {
            return Some("/dev/fuse does not exist".to_owned());
        }
        if self.io == Io::Passthrough && kernel() < PASSTHROUGH_KERNEL {
            return Some("this kernel has no FUSE passthrough with times that show every change (6.13 or later)".to_owned());
        }
        self.fs.unavailable()
    }

    /// Mounts the directory `project` on a new image.
    pub fn start(self) -> Rig {
        self.start_with(MountOpts::new(self.io), |_| {})
    }

    /// As [`Variant::start`], with these options, and with a directory that `fill` populates before
    /// the mount.
    pub fn start_with(self, opts: MountOpts, fill: impl FnOnce(&Path)) -> Rig {
        self.start_on(Image::of(self.fs), opts, fill)
    }

    /// As [`Variant::start_with`], on the given image.
    pub fn start_on(self, image: Image, opts: MountOpts, fill: impl FnOnce(&Path)) -> Rig {
        let dir = image.dir("project");
        fill(&dir);
        let mount = Mount::start(&dir, &opts);
        let io = mount.status_json()["io"].clone();
        assert_eq!(
            io,
            opts.io.name(),
            "the mount uses another I/O path than requested"
        );
        Rig { mount, image }
    }
}

fn kernel() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("/proc is mounted");
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Makes a `#[test]` of each named function `fn(Variant)` for each variant of the set.
///
/// | set | variants |
/// |---|---|
/// | `xfs` | XFS with passthrough and with the daemon's I/O |
/// | `reflink` | `xfs`, and the same on btrfs |
/// | `all` | `reflink`, and ext4 and tmpfs with the daemon's I/O: without reflink there is no passthrough |
/// | `branch` | on a branch with inherited files: XFS with passthrough, btrfs with the daemon's I/O |
///
/// `make test` runs one variant of each body, chosen by a hash of its name; `make test-all` runs
/// them all. CKPTFS_TEST_BRANCH=1 runs every variant on a branch. A test's name reads
/// `a_view_keeps_the_old_bytes::xfs_passthrough`, or `on_branch::NAME::xfs_passthrough`.
macro_rules! for_each_variant {
    (@test $body:ident $name:ident $fs:ident $io:ident $($on_branches:expr)?) => {
        #[test]
        fn $name() {
            use $crate::common::{Fs, Io, Variant, skip};
            let variant = Variant { fs: Fs::$fs, io: Io::$io };
            $(let _on_branches = $on_branches;)?
            match variant.unavailable() {
                Some(reason) => skip(&reason),
                None => super::$body(variant),
            }
        }
    };
    (@set xfs $body:ident) => {
        $crate::common::for_each_variant! { @test $body xfs_passthrough Xfs Passthrough }
        $crate::common::for_each_variant! { @test $body xfs_daemon Xfs Daemon }
    };
    (@set reflink $body:ident) => {
        $crate::common::for_each_variant! { @set xfs $body }
        $crate::common::for_each_variant! { @test $body btrfs_passthrough Btrfs Passthrough }
        $crate::common::for_each_variant! { @test $body btrfs_daemon Btrfs Daemon }
    };
    (@set all $body:ident) => {
        $crate::common::for_each_variant! { @set reflink $body }
        $crate::common::for_each_variant! { @test $body ext4_daemon Ext4 Daemon }
        $crate::common::for_each_variant! { @test $body tmpfs_daemon Tmpfs Daemon }
    };
    (branch => $($body:ident),+ $(,)?) => {
        mod on_branch {
            use super::*;
            use $crate::common::OnBranches;
            $(mod $body {
                use super::OnBranches;
                $crate::common::for_each_variant! { @test $body xfs_passthrough Xfs Passthrough OnBranches::start() }
                $crate::common::for_each_variant! { @test $body btrfs_daemon Btrfs Daemon OnBranches::start() }
            })+
        }
    };
    ($set:ident => $($body:ident),+ $(,)?) => {
        $(mod $body { $crate::common::for_each_variant! { @set $set $body } })+
    };
}
pub(crate) use for_each_variant;
