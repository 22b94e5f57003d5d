//! The mounts of ckptfs among all mounts: search, detection of dead ones, and unmounting.

use std::path::Path;

use super::error::{ErrorContext, error};
use ckptfs_api::{Code, VerbResult};
pub use ckptfs_core::engine::unmount::{top, unmount, unmount_error};
use ckptfs_sys::{self as sys, Errno, MountPoint, host};

/// Limit of the stacked dead mounts that are removed at one place.
const STACKED_MAX: usize = 64;

/// Returns all mounts in the namespace of this process.
pub fn all() -> VerbResult<Vec<MountPoint>> {
    sys::mounts().on("the table of mounts")
}

/// Returns the mount that `path` is on.
pub fn containing<'a>(mounts: &'a [MountPoint], path: &Path) -> Option<&'a MountPoint> {
    path.ancestors().find_map(|dir| top(mounts, dir))
}

/// Reports whether the daemon of the mount at `at` is gone.
///
/// Uses statfs(2), which always sends a request to the daemon; the attributes for stat(2) may be
/// cached. A daemon that dies during the request causes ECONNABORTED.
pub fn is_dead(at: &Path) -> bool {
    host::open_dir_path(at)
        .and_then(sys::statfs_fd)
        .is_err_and(|cause| matches!(cause, Errno::ENOTCONN | Errno::ECONNABORTED))
}

/// Returns the uppermost mount of ckptfs around `path` whose daemon is gone.
pub fn dead_around<'a>(table: &'a [MountPoint], path: &Path) -> Option<&'a MountPoint> {
    let around = path
        .ancestors()
        .filter_map(|dir| top(table, dir))
        .filter(|mount| mount.is_ours() && is_dead(&mount.at));
    around.last()
}

/// Reports whether `path` is on a live mount of ckptfs.
pub fn serves_around(table: &[MountPoint], path: &Path) -> bool {
    containing(table, path).is_some_and(|mount| mount.is_ours() && !is_dead(&mount.at))
}

/// Removes the dead mounts of ckptfs that are stacked on top at `at`, and returns their number.
pub fn repair(at: &Path) -> VerbResult<usize> {
    for repaired in 0..STACKED_MAX {
        if !top(&all()?, at).is_some_and(MountPoint::is_ours) || !is_dead(at) {
            return Ok(repaired);
        }
        unmount(at, true).map_err(|cause| unmount_error(at, cause))?;
    }
    Err(error(
        Code::Busy,
        format!(
            "more than {STACKED_MAX} dead mounts are stacked at {}",
            at.display()
        ),
    ))
}

/// Removes the dead mounts of ckptfs at `path` and above it, the uppermost first, and returns their
/// number.
pub fn repair_above(path: &Path) -> VerbResult<usize> {
    let mut repaired = 0;
    while let Some(mount) = dead_around(&all()?, path) {
        match repair(&mount.at)? {
            // Another process was faster.
            0 => break,
            some => repaired += some,
        }
    }
    Ok(repaired)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_mount_counts() {
        let mount = |id: u64, at: &str| MountPoint {
            id,
            parent: 0,
            dev: id,
            root: "/".into(),
            at: at.into(),
            read_only: false,
            fs_type: "xfs".into(),
            source: "/dev/a".into(),
            owner: None,
        };
        let table = [mount(1, "/"), mount(2, "/p"), mount(3, "/p")];
        assert_eq!(top(&table, Path::new("/p")).map(|mount| mount.id), Some(3));
        assert_eq!(
            containing(&table, Path::new("/p/a/b")).map(|mount| mount.id),
            Some(3)
        );
        assert_eq!(
            containing(&table, Path::new("/q")).map(|mount| mount.id),
            Some(1)
        );
    }

    #[test]
    fn a_living_directory_needs_no_repair() {
        let dir = tempfile::tempdir().expect("directory");
        assert!(!is_dead(dir.path()));
        assert_eq!(repair_above(dir.path()).expect("repair"), 0);
        assert_eq!(unmount(dir.path(), true), Err(Errno::EINVAL));
    }
}
