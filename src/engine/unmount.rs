//! Unmounting.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::api::{VerbError, VerbResult};
use super::branches::{Brancher, Ending};
use super::error::{Code, failed, hinted};
use super::requester::Requester;
use super::verb::Verb;
use super::word::word;
use super::{Engine, Keep};
use crate::sys::{self, Errno, MountPoint, SysResult};

/// How long a mount in use is waited for.
const BUSY_PATIENCE: Duration = Duration::from_millis(500);
/// Time between two tries.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Unmounts and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmount {
    /// Although the mount is in use.
    pub lazy: bool,
    /// End at once even though somebody still is in the (then detached) mount; without it a lazily
    /// unmounted daemon serves on until the last file is closed.
    #[serde(default)]
    pub leave: bool,
    /// How much content is kept; absent: as the settings say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Keep>,
}

impl Verb for Unmount {
    type Answer = ();

    fn run(self, engine: &Engine, _: &Requester) -> VerbResult<()> {
        let at = &engine.place().mount();
        engine.hush();
        engine.keep_at_end(self.keep);
        // Whoever takes a mount away because only their own shell is in it means that one alone.
        Brancher::new(engine).end_all(if self.lazy && !self.leave {
            Ending::Lazy
        } else {
            Ending::Unused
        })?;
        unmount(at, self.lazy).map_err(|cause| {
            Brancher::new(engine).mount_all();
            unmount_error(at, cause)
        })
    }
}

/// What is mounted at `at`, on top.
pub fn top<'a>(mounts: &'a [MountPoint], at: &Path) -> Option<&'a MountPoint> {
    mounts.iter().rev().find(|mount| mount.at == at)
}

/// Unmounts what is on top at `at`, by ourselves or with the help of fusermount3; it must say that
/// it is ours. Whoever may unmount it may: root's hands are not tied by whose it is.
pub fn unmount(at: &Path, lazy: bool) -> SysResult<()> {
    if !top(&sys::mounts()?, at).is_some_and(MountPoint::says_ours) {
        return Err(Errno::EINVAL);
    }
    let started = Instant::now();
    loop {
        let unmounted = match sys::unmount(at, lazy) {
            Err(Errno::EPERM) => sys::fusermount_unmount(at, lazy),
            other => other,
        };
        // A process that is being started still holds its parent's files for a moment.
        if unmounted != Err(Errno::EBUSY) || started.elapsed() > BUSY_PATIENCE {
            return unmounted;
        }
        std::thread::sleep(BUSY_PAUSE);
    }
}

/// Why unmounting `at` failed, for people.
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
