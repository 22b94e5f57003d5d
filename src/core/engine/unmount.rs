//! Unmounting.

use std::path::Path;
use std::time::{Duration, Instant};

use super::Engine;
use super::branches::{BranchOps, UnmountMode};
use super::error::{Code, failed, hinted};
use super::requester::Requester;
use crate::engine::verb::Execute;
use ckptfs_api::display::word;
use ckptfs_api::{Unmount, VerbError, VerbResult};
use ckptfs_sys::{self as sys, Errno, MountPoint, SysResult};

/// Time for which a busy mount is retried.
const BUSY_PATIENCE: Duration = Duration::from_millis(500);
/// Interval between retries.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

impl Execute for Unmount {
    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<()> {
        let at = &engine.place().mount();
        engine.hush();
        engine.keep_at_end(self.keep);
        // A user whose own shell blocks the unmount means this mount only.
        BranchOps::new(engine).end_all(if self.lazy && !self.leave {
            UnmountMode::Lazy
        } else {
            UnmountMode::Unused
        })?;
        unmount(at, self.lazy).map_err(|cause| {
            BranchOps::new(engine).mount_all();
            unmount_error(at, cause)
        })
    }
}

/// Unmounts the topmost mount at `at`, directly or by fusermount3, if it is a ckptfs mount. The
/// system's permission check suffices: root may unmount the mounts of any user.
pub fn unmount(at: &Path, lazy: bool) -> SysResult<()> {
    if !sys::topmost_mount(&sys::mounts()?, at).is_some_and(MountPoint::says_ours) {
        return Err(Errno::EINVAL);
    }
    let started = Instant::now();
    loop {
        let unmounted = match sys::unmount(at, lazy) {
            Err(Errno::EPERM) => sys::fusermount_unmount(at, lazy),
            other => other,
        };
        // A process being started briefly holds the files of its parent.
        if unmounted != Err(Errno::EBUSY) || started.elapsed() > BUSY_PATIENCE {
            return unmounted;
        }
        std::thread::sleep(BUSY_PAUSE);
    }
}

/// Returns the error of a failed unmount.
pub fn unmount_error(at: &Path, cause: Errno) -> VerbError {
    let shown = at.display();
    match cause {
        Errno::EBUSY => hinted(
            Code::Busy,
            format!("{shown} is in use"),
            format!(
                "leave it, or unmount it anyway: ckptfs umount --lazy {}",
                word(shown)
            ),
        ),
        Errno::EPERM | Errno::EACCES => hinted(
            Code::NoPermission,
            format!("no permission to unmount {shown}"),
            "only root and the user who mounted it may",
        ),
        Errno::ENOENT => hinted(
            Code::NoPermission,
            format!("no permission to unmount {shown}"),
            "install fusermount3 (the package fuse3), or act as root",
        ),
        cause => failed(&format!("unmounting {shown}"))(cause),
    }
}
